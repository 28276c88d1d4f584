"""The critical path of a window: what, one after the other, made it last as long as it did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.columns.compact import blocks, index_type
from gpu_trace_advisor.graph import PASSES, Edge, Graph, Point
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE, MIGRATION, SET
from gpu_trace_advisor.timelines.steps import Window
from gpu_trace_advisor.trace.model import NONE, Index, Int8, Int64

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


class Stretches(NamedTuple):
    """What some edges of a path stand for, [since, until) each, the operation that they start after until `done`."""

    edges: Index
    since: Int64
    done: Int64
    until: Int64


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

    def stretches(self) -> Iterator[Stretches]:
        """The path block by block, so that what is worked out on the way is never as long as it is."""
        graph, reached = self.graph, self.begun_ns
        for part in blocks(len(self.edges)):
            edges = self.edges[part]
            source, after = graph.times(graph.source[edges]), graph.after(edges)
            times = np.minimum.accumulate(np.concatenate([[reached], source]))
            until, since = times[:-1], np.maximum(times[1:], self.start_ns)
            done = np.where(after != NONE, source + graph.duration_ns[after], since)
            yield Stretches(edges, since, np.clip(done, since, until), until)
            reached = int(times[-1])

    def _column(self, name: str) -> Int64:
        return np.concatenate([np.empty(0, np.int64), *(getattr(some, name) for some in self.stretches())])

    @property
    def until(self) -> Int64:
        return self._column("until")

    @property
    def since(self) -> Int64:
        return self._column("since")

    @property
    def done(self) -> Int64:
        return self._column("done")

    @property
    def operations(self) -> Int64:
        """Operations on the path (index into the graph's), in time order."""
        after = self.graph.after(self.edges)
        passed = after[(after != NONE) & (self.done > self.since)][::-1].astype(np.int64)
        return np.append(passed, self.last) if self.last != NONE else passed


def critical_path(graph: Graph, window: Window, device: int) -> CriticalPath:
    """Walk back from the window's end through what each point waited for, on measured times.

    At each point the edge that should have come last decides, and the stretch of measured time since its source is what
    the edge stands for; so the stretches follow each other without gap and add up to the span.
    """
    op_class = _does(graph)
    sums: dict[str, int] = defaultdict(int)
    now, point, last = _last(graph, window, device, op_class, sums)
    walked = np.zeros(len(graph.point), index_type(len(graph.source)))
    count = compiled.call(
        loops.walk_back,
        (
            graph.source, graph.target, *graph.weight_ns.columns, graph.flags, PASSES, graph.duration_ns,
            graph.ref, graph.time_ns,
            point, now, window.start_ns,
        ),
        (walked,),
    )  # fmt: skip
    edges = walked[:count].copy()
    del walked
    path = CriticalPath(window.wall_ns, {}, edges, graph, last, now, window.start_ns)
    _share_out(path, op_class, sums)
    by_cause = {cause: ns for cause, ns in sorted(sums.items(), key=lambda item: -item[1]) if ns}
    return replace(path, by_cause=by_cause)


def _does(graph: Graph) -> Int8:
    """[m] what each operation of the graph does."""
    if len(graph.timelines) == 1:
        return graph.timelines[0].op_class
    op_class = np.empty(len(graph.row), np.int8)
    for timeline in graph.timelines:
        op_class[np.searchsorted(graph.row, timeline.row)] = timeline.op_class
    return op_class


def operation_cause(op_class: int) -> str:
    """The cause of busy time that an operation is."""
    if op_class == COMPUTE:
        return "unmodelled"
    if op_class == COMMUNICATION:
        return "exposed-communication"
    return {SET: "memset", MIGRATION: "migration"}.get(op_class, "exposed-copy")


def _last(graph: Graph, window: Window, device: int, op_class: Int8, sums: dict[str, int]) -> tuple[int, int, int]:
    """Where the walk begins: the operation or host point that the window ends with. Returns (instant, point, operation)."""
    running, ends = _running(graph, device, window.end_ns)
    marks = graph.marks[graph.mark_ns == window.end_ns]
    if len(running) and not (len(marks) and not (ends == window.end_ns).any()):
        operation = int(running[np.argmin(ends)])
        begun = max(int(graph.trace.start_ns[graph.row[operation]]), window.start_ns)
        sums[operation_cause(int(op_class[operation]))] += window.end_ns - begun
        return begun, int(graph.operation_point[operation]), operation
    point = int(marks[-1]) if len(marks) else graph.last_before(window.end_ns)
    assert point is not None  # the root comes first
    since = max(graph.time(point), window.start_ns)
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


def _share_out(path: CriticalPath, op_class: Int8, sums: dict[str, int]) -> None:
    """Give each stretch to its causes: the operation, then what is known of its edge, the kind's own cause the rest."""
    graph, begun = path.graph, path.begun_ns
    operations = np.zeros(int(op_class.max(initial=0)) + 1, np.int64)
    host, kinds = np.zeros(len(IDLE), np.int64), np.zeros(len(Edge), np.int64)
    delayed = returned = 0
    for edges, since, done, until in path.stretches():
        begun = int(since[-1])
        after = graph.after(edges)
        passes = np.flatnonzero(after != NONE)
        np.add.at(operations, op_class[after[passes]], (done - since)[passes])
        left = until - done
        del after, passes, since, done, until
        kind, target = graph.flags[edges] & np.int8(PASSES - 1), graph.target[edges]
        delay = _delays(graph, kind, target, left)
        delayed += int(delay.sum())
        left -= delay
        _take_host(graph, edges, left, host)
        returns = (kind == Edge.THREAD) & (graph.point[target] == Point.RETURN)
        returned += int(left[returns].sum())
        np.add.at(kinds, kind[~returns], left[~returns])
    sums["host-unknown"] += begun - path.start_ns
    for what in np.flatnonzero(operations).tolist():
        sums[operation_cause(what)] += int(operations[what])
    sums["device-unknown"] += delayed
    for code in np.flatnonzero(host).tolist():
        sums[IDLE[code]] += int(host[code])
    sums["host-sync"] += returned
    for code, cause in EDGE_CAUSE.items():
        sums[cause] += int(kinds[code])


def _delays(graph: Graph, kind: Int8, target: Index, left: Int64) -> Int64:
    """[k] what of each stretch no edge explains."""
    found = np.zeros(len(left), np.int64)
    at = np.flatnonzero(
        (graph.point[target] == Point.OPERATION) & np.isin(kind, (Edge.STREAM, Edge.GRAPH, Edge.LAUNCH, Edge.EVENT))
    )
    found[at] = np.minimum(graph.delay_ns[graph.ref[target[at]]], left[at])
    return found


def _take_host(graph: Graph, edges: Index, left: Int64, host: Int64) -> None:
    """Host time known by cause, in order, as far as the stretches of these edges (descending) go: off `left`, and on to
    what is known of each cause."""
    low, high = np.searchsorted(graph.host_edge, [edges[-1], edges[0] + 1])
    entries, upward = graph.host_edge[low:high], edges[::-1]
    place = np.minimum(np.searchsorted(upward, entries), len(edges) - 1)
    known = np.flatnonzero(upward[place] == entries)
    at = len(edges) - 1 - place[known]
    part = graph.host_ns[low:high][known]
    before = np.cumsum(part) - part
    first = np.searchsorted(place[known], place[known], side="left")
    before -= before[first] if len(first) else 0
    taken = np.clip(left[at] - before, 0, part)
    np.add.at(host, graph.host_cause[low:high][known], taken)
    np.subtract.at(left, at, taken)
