"""Lanes of boxes: idle time by cause, streams, and host threads with what encloses what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.drawing.calling import Callers, told_rows
from gpu_trace_advisor.drawing.details import Details, host_details, idle_details, operation_details
from gpu_trace_advisor.drawing.model import Lane, Path
from gpu_trace_advisor.graph import Edge, Point
from gpu_trace_advisor.timelines.host import HostActivity, doing_by_name
from gpu_trace_advisor.trace.model import NONE, Int64, Kind, Trace

STREAMS, THREADS = 16, 6  # lanes shown, those with the most work
DEPTHS = 8  # lanes of a thread; what lies deeper is not drawn
DEEPEST = 64  # depths looked at: the outermost ones may be around everything
MARGIN = 0.02  # of the window, shown before and after it


def shown_span(start_ns: int, end_ns: int) -> tuple[int, int]:
    """What a timeline shows: the window with a margin."""
    margin = int(MARGIN * (end_ns - start_ns))
    return start_ns - margin, end_ns + margin


def thread_label(trace: Trace, thread: int) -> str:
    """What a lane of a host thread is called."""
    who = trace.threads[thread]
    return who.name if who.name.startswith("thread ") else f"thread {who.name or who.tid}"


def device_lanes(view: DeviceWindow, threads: Sequence[int], callers: Callers, details: Details) -> tuple[Lane, ...]:
    """All lanes of a device, with what runs in the window and its margin."""
    low, high = shown_span(view.window.start_ns, view.window.end_ns)
    found = [_idle_lane(view, callers, details), *_stream_lanes(view, threads, callers, details)]
    for thread in threads:
        found += thread_lanes(view.trace, view.timeline.host.doing, thread, low, high, callers, details)
    return tuple(found)


def _idle_lane(view: DeviceWindow, callers: Callers, details: Details) -> Lane:
    pieces = view.attribution.pieces
    starts = pieces.start
    low, high = np.searchsorted(starts, (view.window.start_ns - 1, view.window.end_ns))
    part = pieces.part(slice(max(int(low) - 1, 0), int(high)))
    inside = np.flatnonzero((part.end > view.window.start_ns) & (part.start < view.window.end_ns))
    codes = idle_details(view, part, callers, details)
    start = np.maximum(part.start[inside], view.window.start_ns)
    end = np.minimum(part.end[inside], view.window.end_ns)
    return Lane("idle", "idle, by cause", 0, start, end, codes[inside])


def _stream_lanes(view: DeviceWindow, threads: Sequence[int], callers: Callers, details: Details) -> Iterator[Lane]:
    timeline, trace = view.timeline, view.trace
    low, high = shown_span(view.window.start_ns, view.window.end_ns)
    streams, which = np.unique(timeline.stream, return_inverse=True)
    work = np.bincount(which, timeline.length, len(streams))
    codes = operation_details(view, callers, details)
    number = np.full(len(trace.threads) + 1, NONE, np.int64)
    number[list(threads)] = np.arange(len(threads))
    thread = np.where(timeline.linked, number[trace.thread[timeline.launch]], NONE)
    launch = np.where(thread == NONE, NONE, timeline.launch_start)
    seen = (timeline.end > low) & (timeline.start < high)
    for i in sorted(np.argsort(-work, kind="stable")[:STREAMS].tolist()):
        at = np.flatnonzero((which == i) & seen)
        stream = int(streams[i])
        label = f"stream {stream}" if stream != NONE else "no stream"
        yield Lane("stream", label, 0, timeline.start[at], timeline.end[at], codes[at], launch[at], thread[at])


def thread_lanes(
    trace: Trace, doing: NDArray[np.int8], thread: int, low: int, high: int, callers: Callers | None, details: Details
) -> Iterator[Lane]:
    """The records of a host thread in [low, high), one lane for each depth."""
    rows = np.flatnonzero((trace.thread == thread) & (trace.end_ns > low) & (trace.start_ns < high))
    rows = rows[(trace.kind[rows] < Kind.OS) & (trace.kind[rows] != Kind.SPAN)]
    rows = rows[doing[rows] != HostActivity.STEP]  # those stand above the lanes
    rows = rows[told_rows(trace, doing, rows) & (trace.end_ns[rows] > trace.start_ns[rows])]
    label, depth, spare = thread_label(trace, thread), 0, int(2 * MARGIN * (high - low))
    for at in nested(trace.start_ns[rows], trace.end_ns[rows], DEEPEST):
        mine = rows[at]
        if len(mine) == 1 and trace.start_ns[mine[0]] <= low + spare and trace.end_ns[mine[0]] >= high - spare:
            continue  # around everything: it stands in the stacks
        if depth == DEPTHS:
            return
        codes = host_details(trace, doing, mine, callers, details)
        yield Lane("host", label, depth, trace.start_ns[mine], trace.end_ns[mine], codes)
        depth += 1


def nested(start: Int64, end: Int64, most: int) -> Iterator[Int64]:
    """Places of the records by depth, the outermost first; of one depth none overlap. Sorted by start, the longest first."""
    left = np.arange(len(start))
    for _ in range(most):
        if not len(left):
            return
        reach = np.maximum.accumulate(end[left])
        outer = np.ones(len(left), np.bool_)
        outer[1:] = start[left[1:]] >= reach[:-1]
        yield left[outer]
        left = left[~outer]


def host_thread_lanes(trace: Trace, details: Details) -> tuple[tuple[str, ...], tuple[Lane, ...]]:
    """Threads and lanes of a recording without GPU work: those with the most records."""
    rows = np.flatnonzero((trace.kind < Kind.OS) & (trace.thread != NONE))
    if not len(rows):
        return (), ()
    doing = np.full(len(trace), HostActivity.NOTHING, np.int8)
    key = trace.name_code[rows].astype(np.int64) * 8 + trace.kind[rows]
    distinct, which = np.unique(key, return_inverse=True)
    table = [doing_by_name(trace.names[code // 8], code % 8) for code in distinct.tolist()]
    doing[rows] = np.array(table, np.int8)[which]
    count = np.bincount(trace.thread[rows], trace.end_ns[rows] - trace.start_ns[rows])
    threads = [t for t in np.argsort(-count, kind="stable").tolist() if count[t] > 0][:THREADS]
    low, high = int(trace.start_ns[0]), int(trace.end_ns.max()) + 1
    lanes = [lane for t in threads for lane in thread_lanes(trace, doing, t, low, high, None, details)]
    return tuple(thread_label(trace, t) for t in threads), tuple(lanes)


def critical_lanes(view: DeviceWindow, lanes: Sequence[Lane], threads: Sequence[int]) -> Path:
    """The critical path as stretches on lanes, in time order."""
    graph, path, trace = view.graph, view.critical_path, view.trace
    streams = {lane.label: i for i, lane in enumerate(lanes) if lane.kind == "stream"}
    number = ascending(trace.stream[graph.row])
    of_stream = np.array([streams.get(f"stream {s}", NONE) if s != NONE else NONE for s in number.tolist()], np.int64)
    of_operation = np.full(len(graph.row) + 1, NONE, np.int64)
    mine = np.flatnonzero(graph.device == view.index)
    of_operation[mine] = of_stream[np.searchsorted(number, trace.stream[graph.row[mine]])]
    of_thread = np.full(len(trace.threads) + 1, NONE, np.int64)
    for thread in threads:
        label = thread_label(trace, thread)
        of_thread[thread] = next((i for i, lane in enumerate(lanes) if lane.label == label), NONE)
    edges = path.edges
    target, kind = graph.target[edges], graph.kind[edges]
    on_device = (graph.point[target] == Point.OPERATION) & (kind != Edge.LAUNCH)
    ref = graph.ref[target]
    waits = np.full(len(target), NONE, np.int64)
    waits[on_device] = of_operation[ref[on_device]]
    host = np.isin(graph.point[target], (Point.CALL, Point.RETURN, Point.MARK))
    waits[host] = of_thread[trace.thread[ref[host]]]
    launches = ~on_device & ~host
    waits[launches] = of_operation[ref[launches]]
    after = graph.after(edges)
    since, done, until = path.since, path.done, path.until
    runs = np.where(after != NONE, of_operation[after], waits)
    operation_names = np.where(after != NONE, trace.name_code[graph.row[after]], NONE) if len(graph.row) else after
    used, which = np.unique(operation_names[done > since], return_inverse=True)
    names = [trace.names[code] if code != NONE else "" for code in used.tolist()]
    edge_kinds = [f"waits: {Edge(code).name.lower()}" for code in range(max(Edge) + 1)]
    lasts, wait = done > since, until > done
    start = np.concatenate([since[lasts], done[wait]])
    end = np.concatenate([done[lasts], until[wait]])
    lane = np.concatenate([runs[lasts], waits[wait]])
    name = np.concatenate([which, len(names) + kind[wait].astype(np.int64)])
    order = np.argsort(start, kind="stable")
    return Path(start[order], end[order], lane[order], name[order], (*names, *edge_kinds))
