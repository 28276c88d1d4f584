"""Advice values made by hand, for tests of what reads them."""

import dataclasses
from typing import Any

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, HostAdvice, ReplayAdvice, StepAdvice, TraceInfo
from gpu_trace_advisor.advice.verdict import verdict
from gpu_trace_advisor.analysis.summary import (
    CopyTime,
    Gap,
    GapPart,
    HostTime,
    KernelTime,
    Launches,
    MemoryUse,
    OwnerTime,
)
from gpu_trace_advisor.attribution import TimeSlice

MS = 1_000_000
ITEMS = (
    TimeSlice("compute", "unmodelled", "measured", None, "", 50 * MS),
    TimeSlice("copy", "exposed-copy", "measured", None, "HtoD pageable", 6 * MS),
    TimeSlice("idle", "dataloader", "measured", "host", "", 30 * MS),
    TimeSlice("idle", "framework", "measured", "host", "", 8 * MS),
    TimeSlice("idle", "python", "modelled", "host", "", 4 * MS),
    TimeSlice("idle", "launch-latency", "measured", "submitted", "", 2 * MS),
)
STEPS = (
    StepAdvice("ProfilerStep#1", 0, 50 * MS, 28 * MS, 10, None),
    StepAdvice("ProfilerStep#2", 50 * MS, 100 * MS, 28 * MS, 10, None),
)


def device(items: tuple[TimeSlice, ...] = ITEMS, **changes: Any) -> DeviceAdvice:
    """A device whose numbers follow from the parts of its wall time."""

    def ns(when: str, side: str | None = None) -> int:
        return sum(item.ns for item in items if item.when == when and side in (None, item.side))

    wall = sum(item.ns for item in items)
    made = DeviceAdvice(
        file="run.json", rank=None, process=None, device=0, gpu=None, name="NVIDIA H100", window="steps",
        window_why="all 2 marked steps", start_ns=0, end_ns=wall, operations=21, kernels=20, busy_ns=wall - ns("idle"),
        idle_ns=ns("idle"), compute_ns=ns("compute"), communication_ns=ns("communication"), copy_ns=ns("copy"),
        idle_host_ns=ns("idle", "host"), idle_submitted_ns=ns("idle", "submitted"),
        idle_unlinked_ns=ns("idle", "unlinked"), communication_total_ns=ns("communication"), attribution=items,
        steps=STEPS, step_ns=50 * MS, kernels_by_name=(KernelTime("ampere_sgemm_128x64_tn", "gemm", 20, 50 * MS),),
        copies=(CopyTime("HtoD pageable", 1, 6 * MS, 60_000_000),),
        launches=Launches(21, 21, 0, 0, 0, 0, (2_000, 9_000)), syncs=2, blocking_copies=1, allocations=0,
        launch_latency_ns=6_000, queued_gap_ns=1_000,
        operators=(OwnerTime("aten::mm", 20, 20, 50 * MS),),
        modules=(OwnerTime("Linear_0", 1, 10, 30 * MS), OwnerTime("Linear_1", 1, 10, 20 * MS)),
        gaps=(
            Gap(0, 32 * MS, "Memcpy HtoD", (GapPart("dataloader", "host", 30 * MS, "next(loader)"),), "train.py(7): main", 2.5),
        ),
        memory=MemoryUse(0, 2**30, 2**31, 0), replay=ReplayAdvice(0.01, 0.0, True),
        critical_path=(("unmodelled", wall - 30 * MS), ("dataloader", 30 * MS)),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def host(**changes: Any) -> HostAdvice:
    """A recording of the host alone."""
    made = HostAdvice(
        file="run.json", start_ns=0, end_ns=100 * MS, ranges=(HostTime("forward", 4, 60 * MS, 0.6, 15 * MS),),
        operators=(HostTime("aten::mm", 8, 40 * MS, 0.4, 5 * MS),), calls=(), steps=STEPS, step_ns=50 * MS,
        to_record="activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def advice(*devices: DeviceAdvice, host: HostAdvice | None = None, **changes: Any) -> Advice:
    """An Advice with its verdict."""
    made = Advice(
        traces=(TraceInfo("run.json", "kineto", None, 21, 20, 300, "torch.profiler (CUDA 12080)", None),),
        window=devices[0].window if devices else "all", devices=devices, host=host,
        memory=tuple(d.memory for d in devices if d.memory is not None), verdict="", health=(),
    )  # fmt: skip
    made = dataclasses.replace(made, **changes)
    return dataclasses.replace(made, verdict=verdict(made.devices, made.host))
