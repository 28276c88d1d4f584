"""A device's window reduced to what crosses ranks: a few kilobytes, whatever the size of the recording."""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.analysis.collectives import collectives, phases_between
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.ranks.model import RankSummary
from gpu_trace_advisor.trace.model import Trace

STEPS_KEPT = 64
COLLECTIVES_KEPT = 1 << 17  # of all ranks together: about 16 MiB
FEWEST, MOST = 64, 1 << 14  # of one rank
EPOCH_NS = 10**18  # a time above it (2001) counts from the Unix epoch although the recording does not say so


def budget(ranks: int) -> int:
    """How many collectives each of so many ranks may keep."""
    return min(max(COLLECTIVES_KEPT // max(ranks, 1), FEWEST), MOST)


def summarise(view: DeviceWindow, most: int = MOST, local: str = "") -> RankSummary:
    """The summary of one device's window with at most `most` collectives; `local` tells its recording from all others."""
    trace, window, timeline = view.trace, view.window, view.timeline
    found, stride = collectives(view, most)
    kept = view.kept_steps
    steps = [
        (index if step.number is None else step.number, step.start_ns, step.end_ns) for index, step in enumerate(kept)
    ]
    every = -(-len(steps) // STEPS_KEPT) if steps else 1
    span = np.array([window.start_ns]), np.array([window.end_ns])
    hardware = view.hardware
    link, link_name = None, ""
    if hardware is not None:
        link, link_name = (hardware.nvlink, "NVLink") if hardware.nvlink else (hardware.pcie, "PCIe")
    items: dict[str, int] = {}
    for item in view.attribution.partition(window.start_ns, window.end_ns):
        items[item.cause] = items.get(item.cause, 0) + item.ns
    busy = sum(items.get(cause, 0) for cause in ("unmodelled", "exposed-communication", "exposed-copy", "memset"))
    process = view.process
    return RankSummary(
        file=trace.name,
        process=process.pid,
        device=timeline.device,
        rank=process.rank if process.rank is not None else trace.rank,
        world=world(trace),
        local=local or trace.name,
        clock_ns=clock(trace),
        window=window.kind,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        origin_ns=trace.origin_ns,
        busy_ns=busy,
        causes=tuple(sorted(items.items(), key=lambda pair: -pair[1])),
        phases_ns=tuple(phases_between(view, *span)[0].tolist()),
        steps=tuple(steps[::every]),
        step_count=len(steps),
        step_ns=view.step_ns,
        collectives=found,
        stride=stride,
        name=view.device.name,
        link=link,
        link_name=link_name,
    )


def world(trace: Trace) -> int | None:
    """Ranks of the job, where the recording says it."""
    info = trace.metadata.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    if isinstance(size, bool) or not isinstance(size, int | str) or not re.fullmatch("[0-9]{1,18}", str(size)):
        return None
    return int(size) or None


def clock(trace: Trace) -> int | None:
    """What makes the recording's times count from the Unix epoch; None where it does not say."""
    if trace.base_ns is not None:
        return trace.base_ns
    return 0 if trace.origin_ns > EPOCH_NS else None
