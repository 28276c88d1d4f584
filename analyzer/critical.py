"""The critical path of a window: what, one after the other, made it last as long as it did."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field, replace
from typing import Any

import numpy as np

from analyzer import compiled
from analyzer.attribution import IDLE
from analyzer.classes import dataclass
from analyzer.device_timeline import COMMUNICATION, COMPUTE, SET
from analyzer.distinct import present
from analyzer.graph import Edge, Graph, Point
from analyzer.narrow import blocks, index_type
from analyzer.trace import NONE, Index, Int8, Int64
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
    edges: Index
    """The edges walked, from the window's end back to its start; each stands for [since, until), the operation that it
    starts after for the part until `done`."""
    graph: Graph = field(repr=False)
    last: int
    """The operation (index into the graph's) that the window ends with; -1 where it is another moment."""
    begun_ns: int
    """Where the first edge's stretch ends: what comes after is `last`, or the host's."""
    start_ns: int

    @property
    def until(self) -> Int64:
        return self._reached()[:-1]

    @property
    def since(self) -> Int64:
        return np.maximum(self._reached()[1:], self.start_ns)

    @property
    def done(self) -> Int64:
        graph, since = self.graph, self.since
        after = graph.after[self.edges]
        ended = graph.time_ns[graph.source[self.edges]] + graph.duration_ns[after]
        return np.clip(np.where(after != NONE, ended, since), since, self.until)

    @property
    def operations(self) -> Int64:
        """Operations on the path (index into the graph's), in time order."""
        after = self.graph.after[self.edges]
        passed = after[(after != NONE) & (self.done > self.since)][::-1].astype(np.int64)
        return np.append(passed, self.last) if self.last != NONE else passed

    def _reached(self) -> Int64:
        """[k + 1] where the path has got to before each edge, and after the last."""
        times = self.graph.time_ns[self.graph.source[self.edges]]
        return np.concatenate([[self.begun_ns], np.minimum.accumulate(np.minimum(times, self.begun_ns))])


def critical_path(graph: Graph, window: Window, device: int) -> CriticalPath:
    """Walk back from the window's end through what each point waited for, on measured times.

    At each point the edge that should have come last decides, and the stretch of measured time since its source is what
    the edge stands for; so the stretches follow each other without gap and add up to the span.
    """
    does = _does(graph)
    sums: dict[str, int] = defaultdict(int)
    now, point, last = _last(graph, window, device, does, sums)
    walked = np.zeros(len(graph.point), index_type(len(graph.source)))
    count = compiled.call(
        walk_back,
        len(graph.point),
        (
            graph.source, graph.target, graph.weight_ns, graph.after, graph.duration_ns, graph.time_ns,
            point, now, window.start_ns,
        ),
        (walked,),
    )  # fmt: skip
    edges = walked[:count].copy()
    del walked
    path = CriticalPath(window.wall_ns, {}, edges, graph, last, now, window.start_ns)
    since, done = path.since, path.done
    sums["host-unknown"] += int(since[-1] if count else now) - window.start_ns
    after = graph.after[edges]
    of = np.where(after != NONE, does[after], NONE)
    on_device = np.where(after != NONE, done - since, 0)
    for what in present(of[of != NONE]).tolist():
        sums[operation_cause(what)] += int(on_device[of == what].sum())
    del since, of, on_device
    _spread(graph, edges, path.until - done, sums)
    by_cause = {cause: ns for cause, ns in sorted(sums.items(), key=lambda item: -item[1]) if ns}
    return replace(path, by_cause=by_cause)


def walk_back(
    source: Any, target: Any, weight: Any, after: Any, duration: Any, time: Any, point: int, now: int, start: int,
    path: Any,
) -> int:  # fmt: skip
    """Write the binding edges from a point back to the window's start; returns how many.

    Of a point's incoming edges the one binds that comes last by measured times, of several the first. What delays a point
    delays all of them alike.
    """
    count = 0
    edge = len(source) - 1
    while now > start:
        while edge >= 0 and target[edge] > point:
            edge -= 1
        binding = -1
        latest = 0
        while edge >= 0 and target[edge] == point:
            at = time[source[edge]] + weight[edge]
            if after[edge] >= 0:
                at += duration[after[edge]]
            if binding < 0 or at >= latest:
                binding = edge
                latest = at
            edge -= 1
        if binding < 0:
            break
        path[count] = binding
        count += 1
        point = source[binding]
        now = min(now, time[point])
    return count


def _does(graph: Graph) -> Int8:
    """[m] what each operation of the graph does."""
    if len(graph.timelines) == 1:
        return graph.timelines[0].does
    does = np.empty(len(graph.row), np.int8)
    for timeline in graph.timelines:
        does[np.searchsorted(graph.row, timeline.row)] = timeline.does
    return does


def operation_cause(does: int) -> str:
    """The cause of busy time that an operation is."""
    if does == COMPUTE:
        return "unmodelled"
    if does == COMMUNICATION:
        return "exposed-communication"
    return "memset" if does == SET else "exposed-copy"


def _last(graph: Graph, window: Window, device: int, does: Int8, sums: dict[str, int]) -> tuple[int, int, int]:
    """Where the walk begins: the operation or host point that the window ends with. Returns (instant, point, operation)."""
    running, ends = _running(graph, device, window.end_ns)
    marks = np.flatnonzero((graph.point == Point.MARK) & (graph.time_ns == window.end_ns))
    if len(running) and not (len(marks) and not (ends == window.end_ns).any()):
        operation = int(running[np.argmin(ends)])
        begun = max(int(graph.trace.start_ns[graph.row[operation]]), window.start_ns)
        sums[operation_cause(int(does[operation]))] += window.end_ns - begun
        return begun, int(graph.operation_point[operation]), operation
    before = marks if len(marks) else np.flatnonzero(graph.time_ns <= window.end_ns)
    point = int(before[-1])
    since = max(int(graph.time_ns[point]), window.start_ns)
    sums["host-unknown"] += window.end_ns - since
    return since, point, NONE


def _running(graph: Graph, device: int, instant: int) -> tuple[Int64, Int64]:
    """Operations of a device that run up to this instant or across it, and their ends."""
    trace = graph.trace
    found = [np.empty(0, np.int64)]
    for part in blocks(len(graph.row)):
        row = graph.row[part]
        mine = (graph.device[part] == device) & (trace.start_ns[row] < instant) & (trace.end_ns[row] >= instant)
        found.append(np.flatnonzero(mine) + part.start)
    running = np.concatenate(found)
    return running, trace.end_ns[graph.row[running]]


def _spread(graph: Graph, edges: Index, ns: Int64, sums: dict[str, int]) -> None:
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
    known, at = _on_path(graph, edges)
    part = graph.host_ns[known]
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


def _on_path(graph: Graph, edges: Index) -> tuple[Int64, Int64]:
    """Entries of host time on these edges (descending), in their order, and the place of each one's edge among them."""
    upward = edges[::-1]
    at = np.minimum(np.searchsorted(upward, graph.host_edge), max(len(edges) - 1, 0))
    known = np.flatnonzero(upward[at] == graph.host_edge) if len(edges) else np.empty(0, np.int64)
    place = len(edges) - 1 - at[known]
    order = np.argsort(place, kind="stable")
    return known[order], place[order]
