"""The critical path of a window: what, one after the other, made it last as long as it did."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import IDLE
from analyzer.graph import Edge, Graph, Point
from analyzer.timeline import COMMUNICATION, COMPUTE, SET
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


def critical_path(graph: Graph, window: Window, device: int) -> CriticalPath:
    """Walk back from the window's end through what each point waited for, on measured times.

    At each point the edge that should have come last decides, and the stretch of measured time since its source is what
    the edge stands for; so the stretches follow each other without gap and add up to the span.
    """
    by = binding_edges(graph)
    does = np.concatenate([t.does for t in graph.timelines])[
        np.argsort(np.concatenate([t.row for t in graph.timelines]))
    ]
    sums: dict[str, int] = defaultdict(int)
    passed: list[int] = []
    pieces = _HostPieces(graph)
    now, point = _last(graph, window, device, does, sums, passed)
    while now > window.start_ns:
        edge = int(by[point])
        if edge == NONE:
            sums["host-unknown"] += now - window.start_ns
            break
        source, after = int(graph.source[edge]), int(graph.after[edge])
        since = max(min(int(graph.time_ns[source]), now), window.start_ns)
        done = since
        if after != NONE:
            done = min(max(since, int(graph.time_ns[source] + graph.duration_ns[after])), now)
            sums[operation_cause(int(does[after]))] += done - since
            if done > since:
                passed.append(after)
        _spread(graph, edge, now - done, sums, pieces)
        now, point = since, source
    return CriticalPath(
        window.wall_ns,
        {c: ns for c, ns in sorted(sums.items(), key=lambda i: -i[1]) if ns},
        np.array(passed[::-1], np.int64),
    )


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


@dataclass
class _HostPieces:
    """Host time of each edge by cause, looked up by edge."""

    graph: Graph

    def __post_init__(self) -> None:
        self.order = np.argsort(self.graph.host_edge, kind="stable")
        self.edges = self.graph.host_edge[self.order]

    def of(self, edge: int) -> list[tuple[str, int]]:
        low, high = np.searchsorted(self.edges, (edge, edge + 1))
        at = self.order[low:high]
        return [
            (IDLE[c], int(ns))
            for c, ns in zip(self.graph.host_cause[at].tolist(), self.graph.host_ns[at].tolist(), strict=True)
        ]


def _spread(graph: Graph, edge: int, ns: int, sums: dict[str, int], pieces: _HostPieces) -> None:
    """Give a stretch to the causes of its edge: what is known of it first, the kind's own cause the rest."""
    kind, target = Edge(int(graph.kind[edge])), int(graph.target[edge])
    left = ns
    if graph.point[target] == Point.OPERATION and kind in (Edge.STREAM, Edge.GRAPH, Edge.LAUNCH, Edge.EVENT):
        delay = min(int(graph.delay_ns[graph.ref[target]]), left)
        sums["device-unknown"] += delay
        left -= delay
    for cause, part in pieces.of(edge):
        taken = min(part, left)
        sums[cause] += taken
        left -= taken
    if kind == Edge.THREAD and graph.point[target] == Point.RETURN:
        sums["host-sync"] += left
    else:
        sums[EDGE_CAUSE[kind]] += left
