"""The critical path of a window: what, one after the other, made it last as long as it did."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer import compiled
from analyzer.attribution import IDLE
from analyzer.device_timeline import COMMUNICATION, COMPUTE, SET
from analyzer.distinct import present
from analyzer.graph import Edge, Graph, Point
from analyzer.trace import NONE, Int64
from analyzer.window import Window

EDGE_CAUSE = {
    Edge.THREAD: "host-unknown",
    Edge.HANDOVER: "host-unknown",
    Edge.LAUNCH: "launch-latency",
    Edge.STREAM: "queued-gap",
    Edge.GRAPH: "queued-gap",
    Edge.EVENT: "dependency-wait",
    Edge.BLOCK: "host-sync",
    Edge.QUEUE: "launch-call",
    Edge.DISTANCE: "device-unknown",
}


@dataclass(frozen=True)
class CriticalPath:
    """From the window's end back to its start; the parts add up to its span exactly."""

    span_ns: int
    by_cause: dict[str, int]
    """ns on the path: operations under the causes of busy time, the rest under those of idle time."""
    operations: Int64
    """Operations on the path (index into the graph's), in time order."""
    edges: Int64
    """The edges walked, from the window's end back to its start; each stands for [since, until), the operation that it
    starts after for the part until `done`."""
    since: Int64
    until: Int64
    done: Int64


def critical_path(graph: Graph, window: Window, device: int) -> CriticalPath:
    """Walk back from the window's end through what each point waited for, on measured times.

    At each point the edge that should have come last decides, and the stretch of measured time since its source is what
    the edge stands for; so the stretches follow each other without gap and add up to the span.
    """
    rows = np.concatenate([t.row for t in graph.timelines])
    does = np.concatenate([t.does for t in graph.timelines])[np.argsort(rows, kind="stable")]
    sums: dict[str, int] = defaultdict(int)
    passed: list[int] = []
    now, point = _last(graph, window, device, does, sums, passed)
    path = np.zeros(len(graph.point), np.int64)
    count = compiled.call(
        walk_back,
        len(graph.point),
        (binding_edges(graph), graph.source, graph.time_ns, point, now, window.start_ns),
        (path,),
    )
    edges = path[:count]
    end = np.concatenate([[now], np.minimum.accumulate(np.minimum(graph.time_ns[graph.source[edges]], now))])
    since, until = np.maximum(end[1:], window.start_ns), end[:-1]
    sums["host-unknown"] += int(since[-1] if count else now) - window.start_ns
    after = graph.after[edges]
    on_device = after != NONE
    done = np.where(
        on_device, graph.time_ns[graph.source[edges]] + graph.duration_ns[np.where(on_device, after, 0)], since
    )
    done = np.clip(done, since, until)
    for what in present(does[after[on_device]]).tolist():
        mine = on_device.copy()
        mine[on_device] = does[after[on_device]] == what
        sums[operation_cause(what)] += int((done - since)[mine].sum())
    passed += after[on_device & (done > since)].tolist()
    _spread(graph, edges, until - done, sums)
    by_cause = {cause: ns for cause, ns in sorted(sums.items(), key=lambda item: -item[1]) if ns}
    return CriticalPath(window.wall_ns, by_cause, np.array(passed[::-1], np.int64), edges, since, until, done)


def walk_back(by: Any, source: Any, time: Any, point: int, now: int, start: int, path: Any) -> int:
    """Write the binding edges from a point back to the window's start; returns how many."""
    count = 0
    while now > start and by[point] >= 0:
        edge = by[point]
        path[count] = edge
        count += 1
        point = source[edge]
        now = min(now, time[point])
    return count


def binding_edges(graph: Graph) -> Int64:
    """[p] of each point's incoming edges the one that comes last by measured times; -1 for none."""
    arrives = graph.time_ns[graph.source] + graph.total_ns
    latest = np.full(len(graph.point), np.iinfo(np.int64).min)
    np.maximum.at(latest, graph.target, arrives)
    last = np.flatnonzero(arrives == latest[graph.target])
    by = np.full(len(graph.point), NONE, np.int64)
    by[graph.target[last][::-1]] = last[::-1]
    return by


def operation_cause(does: int) -> str:
    """The cause of busy time that an operation is."""
    if does == COMPUTE:
        return "unmodelled"
    if does == COMMUNICATION:
        return "exposed-communication"
    return "memset" if does == SET else "exposed-copy"


def _last(
    graph: Graph, window: Window, device: int, does: Int64, sums: dict[str, int], passed: list[int]
) -> tuple[int, int]:  # fmt: skip
    """Where the walk begins: the operation or host point that the window ends with. Returns (instant, point)."""
    end = graph.trace.end_ns[graph.row]
    start = graph.trace.start_ns[graph.row]
    running = np.flatnonzero((graph.device == device) & (start < window.end_ns) & (end >= window.end_ns))
    marks = np.flatnonzero((graph.point == Point.MARK) & (graph.time_ns == window.end_ns))
    if len(running) and not (len(marks) and not (end[running] == window.end_ns).any()):
        operation = int(running[np.argmin(end[running])])
        begun = max(int(start[operation]), window.start_ns)
        sums[operation_cause(int(does[operation]))] += window.end_ns - begun
        passed.append(operation)
        return begun, int(graph.operation_point[operation])
    before = marks if len(marks) else np.flatnonzero(graph.time_ns <= window.end_ns)
    point = int(before[-1])
    since = max(int(graph.time_ns[point]), window.start_ns)
    sums["host-unknown"] += window.end_ns - since
    return since, point


def _spread(graph: Graph, edges: Int64, ns: Int64, sums: dict[str, int]) -> None:
    """Give each edge's stretch to its causes: what is known of it first, the kind's own cause the rest."""
    kind, target = graph.kind[edges], graph.target[edges]
    left = ns.copy()
    delayed = (graph.point[target] == Point.OPERATION) & np.isin(
        kind, (Edge.STREAM, Edge.GRAPH, Edge.LAUNCH, Edge.EVENT)
    )
    delay = np.where(delayed, np.minimum(graph.delay_ns[np.where(delayed, graph.ref[target], 0)], left), 0)
    sums["device-unknown"] += int(delay.sum())
    left -= delay
    # Host time known by cause, in order, as far as the stretch goes.
    place = np.full(len(graph.source), NONE, np.int64)
    place[edges] = np.arange(len(edges))
    known = np.flatnonzero(place[graph.host_edge] != NONE)
    known = known[np.argsort(place[graph.host_edge[known]], kind="stable")]
    at, part = place[graph.host_edge[known]], graph.host_ns[known]
    before = np.cumsum(part) - part
    first = np.searchsorted(at, at, side="left")
    before -= before[first] if len(first) else 0
    taken = np.clip(left[at] - before, 0, part)
    for code in present(graph.host_cause[known]).tolist():
        sums[IDLE[code]] += int(taken[graph.host_cause[known] == code].sum())
    np.subtract.at(left, at, taken)
    returns = (kind == Edge.THREAD) & (graph.point[target] == Point.RETURN)
    sums["host-sync"] += int(left[returns].sum())
    for code, cause in EDGE_CAUSE.items():
        sums[cause] += int(left[~returns & (kind == code)].sum())
