"""Shares of equal parts of a stretch of time: what overviews and strips are drawn from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.columns.intervals import Intervals, merge, subtract, union
from gpu_trace_advisor.drawing.lanes import shown_span
from gpu_trace_advisor.drawing.model import Coverage, HeatRow, MemoryCurve
from gpu_trace_advisor.replay.sweep import Replay
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE
from gpu_trace_advisor.trace.model import NONE, Int8, Int64, Memory

BINS = 480  # of an overview
STRIP_BINS = 160  # of a step before and after
MEMORY_POINTS = 600
STEPS = 400  # of a heat strip

Edges = NDArray[np.float64]


def covered(part: Intervals, edges: Edges) -> Edges:
    """Time of each stretch between two edges that disjoint intervals cover."""
    if not len(part.start):
        return np.zeros(len(edges) - 1)
    times = np.stack([part.start, part.end], axis=1).ravel()
    done = np.cumsum(part.end - part.start)
    reached = np.stack([done - (part.end - part.start), done], axis=1).ravel()
    return np.asarray(np.diff(np.interp(edges, times, reached)))


def busy_parts(op_class: Int8, start: Int64, end: Int64) -> dict[str, Intervals]:
    """When a device computes, else communicates, else copies."""
    compute, communication, copies = (
        union(start[mask], end[mask])
        for mask in (op_class == COMPUTE, op_class == COMMUNICATION, op_class > COMMUNICATION)
    )
    return {
        "kernels": compute,
        "communication": subtract(communication, compute),
        "copies": subtract(copies, merge(compute, communication)),
    }


def shares(parts: dict[str, Intervals], start_ns: int, end_ns: int, bins: int) -> Coverage:
    """The parts that cover anything, as shares of equal stretches."""
    edges = np.linspace(start_ns, end_ns, bins + 1)
    each = max(end_ns - start_ns, 1) / bins
    found = {name: np.clip(covered(part, edges) / each, 0, 1).round(4) for name, part in parts.items()}
    return Coverage(start_ns, end_ns, {name: share.tolist() for name, share in found.items() if share.any()})


def overview(view: DeviceWindow, bins: int = BINS) -> Coverage:
    """What the device did or waited for, over what the timeline shows."""
    timeline, window = view.timeline, view.window
    parts = busy_parts(timeline.op_class, timeline.start, timeline.end) | dict(idle_spans(view))
    inside = Intervals(np.array([window.start_ns]), np.array([window.end_ns]))
    parts = {name: _within(part, inside) for name, part in parts.items()}
    return shares(parts, *shown_span(window.start_ns, window.end_ns), bins)


def _within(part: Intervals, inside: Intervals) -> Intervals:
    start, end = np.maximum(part.start, inside.start[0]), np.minimum(part.end, inside.end[0])
    return Intervals(start[end > start], end[end > start])


def idle_spans(view: DeviceWindow) -> Iterator[tuple[str, Intervals]]:
    """The idle time by cause, in time order."""
    pieces = view.attribution.pieces
    for code, cause in enumerate(IDLE):
        spans = pieces.spans(code)
        if len(spans.start):
            yield cause, spans


def heat(view: DeviceWindow) -> tuple[HeatRow, ...]:
    """Idle time by cause, and busy time, of each step until the next one; the first steps of very many."""
    steps = view.steps[:STEPS]
    if len(steps) < 2:
        return ()
    last = view.steps[STEPS].start_ns if len(view.steps) > STEPS else steps[-1].end_ns
    edges = np.array([*(step.start_ns for step in steps), last], np.float64)
    timeline = view.timeline
    parts = busy_parts(timeline.op_class, timeline.start, timeline.end) | dict(idle_spans(view))
    rows = [
        HeatRow(name, tuple(covered(part, edges).round().astype(np.int64).tolist())) for name, part in parts.items()
    ]
    return tuple(sorted((row for row in rows if any(row.ns)), key=lambda row: -sum(row.ns)))


def strip(done: Replay, device: int, op_class: Int8, start_ns: int, end_ns: int) -> Coverage:
    """What a replayed device does in a stretch of the replay's time."""
    mine = np.flatnonzero(done.graph.device == device)
    start, end = done.operation_start[mine], done.operation_end[mine]
    seen = (end > start_ns) & (start < end_ns)
    parts = busy_parts(op_class[seen], np.maximum(start[seen], start_ns), np.minimum(end[seen], end_ns))
    return shares(parts, start_ns, end_ns, STRIP_BINS)


def memory_curve(memory: Memory, device: int) -> MemoryCurve | None:
    """The allocator's bytes over time on one device; None where they were not recorded."""
    mine = np.flatnonzero((memory.device == device) & (memory.allocated != NONE))
    if len(mine) < 2:
        return None
    time, allocated, reserved = memory.time_ns[mine], memory.allocated[mine], memory.reserved[mine]
    if len(mine) > MEMORY_POINTS:
        first = np.unique(np.linspace(0, len(mine), MEMORY_POINTS, endpoint=False).astype(np.int64))
        time = time[first]
        allocated, reserved = np.maximum.reduceat(allocated, first), np.maximum.reduceat(reserved, first)
    return MemoryCurve(tuple(time.tolist()), tuple(allocated.tolist()), tuple(reserved.tolist()))
