"""Kernels, copies, launches, owners, gaps, memory and host times of a window. Times are µs."""

from __future__ import annotations

from pathlib import Path

from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.analysis.summary import host_ranges, memory_use
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.trace.model import Kind

from tests.build import (
    Event,
    advice,
    annotation,
    call,
    copy,
    device,
    event,
    frame,
    kernel,
    memset,
    op,
    sync,
    trace,
    written,
)


def test_kernels_are_summed_over_streams_and_cut_at_the_window() -> None:
    events = [
        kernel(0, 30, 0, "a"), kernel(20, 50, 0, "a", stream=8), kernel(50, 50, 0, "zero"), kernel(60, 90, 0, "b"),
        copy(90, 95, 0),
    ]  # fmt: skip
    for window, expected in (
        ("gpu", [("a", 2, 60_000), ("b", 1, 30_000), ("zero", 1, 0)]),
        ("0.01:0.07", [("a", 2, 20_000 + 30_000), ("b", 1, 10_000), ("zero", 1, 0)]),
    ):
        assert [(k.name, k.calls, k.ns) for k in device(*events, window=window).kernels_by_name] == expected


def test_copies_by_kind() -> None:
    found = device(
        copy(0, 10, 0, "HtoD (Pageable -> Device)", bytes=100), copy(5, 15, 0, "HtoD (Pageable -> Device)", bytes=50),
        copy(20, 22, 0, "DtoH (Device -> Pinned)", bytes=7), copy(30, 31, 0, "DtoH (Device -> Pinned)"), memset(40, 45),
    ).copies  # fmt: skip
    assert [(c.kind, c.calls, c.ns, c.bytes) for c in found] == [
        ("HtoD pageable", 2, 20_000, 150), ("memset", 1, 5_000, None), ("DtoH pinned", 2, 3_000, None),
    ]  # fmt: skip


def test_launches() -> None:
    """A replay is one launch, a driver call inside its runtime call none of its own, and a lost one has no operation."""
    found = device(
        call(0, 2, 1), kernel(5, 6, 1), call(10, 12, 2, "cudaGraphLaunch"), kernel(15, 16, 2), kernel(17, 18, 2),
        call(20, 29, 3), event("cuda_driver", "cuLaunchKernel", 22, 28, correlation=4), kernel(30, 31, 3),
        call(40, 41, 5), kernel(50, 51), sync(52, 53), call(54, 55, 6, "cudaLaunchHostFunc"),
    ).launches  # fmt: skip
    assert (found.calls, found.linked, found.without_operation, found.operations_without_launch) == (4, 3, 1, 1)
    assert (found.graph_launches, found.graph_operations) == (1, 2)
    assert found.queue_delay_ns == (3_000, 3_000)  # 3, 3 and 1 µs behind the calls; the second node waited for no call


def test_owners_of_kernels() -> None:
    found = device(
        frame("nn.Module: Linear_0", 0, 30), op("aten::linear", 0, 20), op("aten::addmm", 2, 18), call(5, 6, 1), call(8, 9, 2),
        frame("nn.Module: Linear_1", 40, 60), op("aten::linear", 40, 60), op("aten::addmm", 42, 50), call(45, 46, 3),
        call(52, 53, 4), call(70, 71, 5), kernel(100, 110, 1), kernel(110, 112, 2), kernel(112, 113, 3), kernel(113, 120, 4),
        kernel(120, 121, 5), kernel(121, 122),
    )  # fmt: skip
    assert [(o.name, o.calls, o.kernels, o.ns) for o in found.operators] == [
        ("aten::addmm", 2, 3, 13_000), ("aten::linear", 1, 1, 7_000),
    ]  # fmt: skip
    assert [(m.name, m.calls, m.kernels, m.ns) for m in found.modules] == [
        ("Linear_0", 1, 2, 12_000), ("Linear_1", 1, 2, 8_000),
    ]  # fmt: skip


GAPPED = (
    kernel(0, 10), frame("train.py(5): main", 0, 500), frame("torch/nn/modules/linear.py(9): forward", 10, 300),
    frame("<built-in method mm>", 20, 300), op("aten::mm", 20, 295), call(290, 292, 1), kernel(300, 310, 1, "gemm<float>(int)"),
    call(311, 312, 2), kernel(320, 330, 2, "small"),
)  # fmt: skip


def test_largest_gaps() -> None:
    first, second = device(*GAPPED).gaps
    assert (first.start_ns, first.end_ns, first.ns) == (10_000, 300_000, 290_000)
    assert first.closed_by.startswith("gemm")
    assert [(p.cause, p.side, p.ns, p.evidence) for p in first.parts] == [
        ("framework", "host", 270_000, "aten::mm"),
        ("python", "host", 10_000, "torch/nn/modules/linear.py(9): forward"),
        ("launch-latency", "submitted", 10_000, "cudaLaunchKernel"),
    ]
    assert first.python == "train.py(5): main"  # the innermost frame that is no library's
    assert (second.ns, second.closed_by) == (10_000, "small")


def test_gaps_are_cut_at_the_window() -> None:
    (only,) = device(*GAPPED, window="0.2:0.305").gaps
    assert (only.start_ns, only.end_ns, only.closed_by[:4]) == (200_000, 300_000, "gemm")
    assert sum(p.ns for p in only.parts) == 100_000
    last = device(*GAPPED, window="0.305:0.315").gaps
    assert [(g.ns, g.closed_by) for g in last] == [(5_000, "")]


def test_at_most_ten_gaps() -> None:
    events = [kernel(100 * i, 100 * i + 100 - i) for i in range(1, 15)]
    assert [g.ns for g in device(*events).gaps] == [1000 * i for i in range(13, 3, -1)]


def test_synchronisations_of_the_window() -> None:
    events = [
        call(0, 1, 1), kernel(5, 50, 1), sync(10, 52), call(60, 85, 2, "cudaMemcpyAsync"),
        copy(70, 80, 2, "DtoH (Device -> Pageable)"), sync(90, 95), call(96, 97, 3), kernel(100, 110, 3),
    ]  # fmt: skip
    assert [(d.syncs, d.blocking_copies) for d in (device(*events), device(*events, window="0.04:0.06"))] == [
        (2, 1),
        (1, 0),
    ]


def test_allocations_of_the_window() -> None:
    events = [call(10, 11, 0, "cudaMalloc"), call(20, 21, 0, "cudaFree"), kernel(15, 30), call(40, 41, 0, "cudaMalloc")]
    assert (device(*events).allocations, device(*events, window="all").allocations) == (1, 3)


# Memory


def instant(ts: float, device: int, size: int, allocated: int | None = None, reserved: int | None = None) -> Event:
    arguments = {"Bytes": size, "Device Id": device, "Device Type": int(device >= 0), "Total Allocated": allocated}
    return {
        "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts,
        "args": {**arguments, "Total Reserved": reserved},
    }  # fmt: skip


def test_memory_is_told_by_device() -> None:
    """Peaks are of the totals; summed bytes would be a change, not a use."""
    events = [
        instant(1, 0, 100, 600, 800),
        instant(2, 0, 50, 650, 900),
        instant(3, 0, -500, 150, 900),
        instant(2, -1, 9, 9, 9),
    ]
    found = {m.device: (m.peak_allocated, m.peak_reserved, m.baseline) for m in memory_use(trace(*events).memory)}
    assert found == {0: (650, 900, 500), -1: (9, 9, 0)}
    memory = device(*events, kernel(1, 2)).memory
    assert memory is not None
    assert (memory.peak_allocated, memory.baseline) == (650, 500)
    assert device(*events, kernel(1, 2, device=1)).memory is None


def test_memory_without_totals_is_unknown() -> None:
    (found,) = memory_use(trace(instant(1, 0, 100)).memory)
    assert (found.peak_allocated, found.peak_reserved, found.baseline) == (None, None, None)


# A recording of the host alone


def test_host_times() -> None:
    """Calls inside calls of the same name count once; the share is of the recording."""
    events = [
        op("aten::mm", 0, 40), op("aten::mm", 10, 20), op("aten::mm", 50, 60), op("aten::mm", 55, 65, tid=2),
        op("aten::add", 60, 100), annotation("forward", 0, 70),
    ]  # fmt: skip
    found = host_ranges(trace(*events), (Kind.OPERATOR,))
    assert [(h.name, h.calls, h.ns, h.share, h.median_ns) for h in found] == [
        ("aten::mm", 4, 60_000, 0.6, 10_000), ("aten::add", 1, 40_000, 0.4, 40_000),
    ]  # fmt: skip
    host = advice(*events).host
    assert host is not None
    assert [(r.name, r.ns) for r in host.ranges] == [("forward", 70_000)]
    assert (host.start_ns, host.end_ns, host.steps, host.step_ns) == (0, 100_000, (), None)


def test_a_gap_is_named_by_the_deepest_record_that_covers_half_of_it() -> None:
    """12 ms between two launches: a function of 11 ms with sixty operators of 60 µs, inside `main`."""
    events = [
        call(0, 4, 1), kernel(5, 10, 1), frame("train.py(1): main", 0, 20_000),
        frame("decode.py(12): pick_tokens", 500, 11_500), frame("numpy/core.py(3): where", 700, 1_000),
    ]  # fmt: skip
    events += [op("aten::index", 1_000 + 170 * i, 1_060 + 170 * i) for i in range(60)]
    events += [call(12_000, 12_004, 2), kernel(12_005, 12_100, 2)]
    (gap, *_) = device(*events).gaps
    assert gap.parts[0].evidence == "decode.py(12): pick_tokens"


def test_the_latency_of_launches_is_measured_or_none(tmp_path: Path) -> None:
    """One launch meets an idle GPU and starts 60 µs after its call began; the others wait in the queue behind it."""
    queued = [call(4 * i, 4 * i + 2, i + 1) for i in range(1, 20)]
    ran = [kernel(60 + 10 * i, 70 + 10 * i, i + 1) for i in range(20)]
    path = written(tmp_path / "run.json", call(0, 2, 1), *queued, *ran)
    assert advise_traces([read(path)]).devices[0].launch_latency_ns == 60_000
