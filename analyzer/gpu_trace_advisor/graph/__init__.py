"""The timeline as a graph: what each launch, return and operation waited for.

Points are moments that can move: an operation's start, a call's start, the return of a call that waits, a step's mark. An
edge says that its target comes at least so long after its source. The weights are nominal (the trace's medians for each
kind of edge), so what a replay moves is explained by the graph and nothing else; an operation's delay that no edge explains
is kept beside them and counted.

    root ─host─> call ─host─> call ─host─> return      thread order, hand-over between threads
                  │launch      │launch        ^block
                  v            v              │
                 op ──stream─> op ──stream─> op         stream order, graph replay, events, queue depth
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_trace_advisor.columns.compact import blocks, index_type
from gpu_trace_advisor.columns.durations import Nanoseconds
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import Timeline
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int8, Int64, Trace

if TYPE_CHECKING:
    import networkx


class Point(IntEnum):
    ROOT = 0  # the recording's start
    OPERATION = 1
    CALL = 2  # start of a call that launches or waits
    RETURN = 3  # end of a call that waits
    MARK = 4  # start or end of a step marker


class Edge(IntEnum):
    THREAD = 0  # host work between two calls of a thread
    HANDOVER = 1  # host work after another thread handed over
    LAUNCH = 2
    STREAM = 3
    GRAPH = 4  # inside one graph replay
    EVENT = 5  # a stream waits for another one
    BLOCK = 6  # a blocking call returns after its operation ended
    QUEUE = 7  # a launch into a full queue returns when an operation starts
    DISTANCE = 8  # an operation without a launch keeps its measured distance


PASSES, MODELLED = 16, 32  # beside an edge's kind, in one number


@dataclass(frozen=True)
class Graph:
    """One process and its devices: p points in an order in which every edge goes forward, e edges sorted by target.

    Numbers of points, edges, operations and rows are int32 where that holds them, times int64 unless said otherwise.
    """

    trace: Trace = field(repr=False)
    timelines: tuple[Timeline, ...] = field(repr=False)
    point: Int8
    """[p] Point. Point 0 is the root."""
    ref: Index
    """[p] index into the operations; row in the trace for calls, returns and marks; -1 for the root."""
    source: Index
    """[e] point."""
    target: Index
    """[e] point, ascending."""
    weight_ns: Nanoseconds
    """[e] without the duration of the source where that `passes`."""
    flags: Int8
    """[e] its Edge, PASSES and MODELLED as one number."""
    row: Index
    """[m] trace row of each operation; m operations of all devices."""
    device: Index
    """[m] index into `timelines`."""
    duration_ns: Index
    """[m] int32 where they are short."""
    delay_ns: Int64
    """[m] wait that no edge explains; 0 for nearly all."""
    host_edge: Index
    """[h] host time on edges, by cause: the edge it is part of, ascending, `host_cause` (index into IDLE), `host_ns`."""
    host_cause: Int8
    host_ns: Nanoseconds
    mark_ns: Int64
    """[marks] measured, in the order of their points."""
    operation_point: Index
    """[m] point of each operation's start."""
    queued_gap_ns: int
    """Nominal distance between operations of a stream; likewise inside a graph replay."""
    graph_gap_ns: int
    launch_ns: int
    """Nominal time from launch call to operation."""
    lasting: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What is found out about the points and kept for changes of the graph, which share it."""

    @property
    def kind(self) -> Int8:
        """[e] Edge."""
        return self.flags & np.int8(PASSES - 1)

    @property
    def passes(self) -> Bool:
        """[e] the source is an operation whose duration is to pass as well: the edge starts at its end."""
        return (self.flags & np.int8(PASSES)) > 0

    @property
    def modelled(self) -> Bool:
        """[e] inferred (no event names it, or a nominal weight) rather than read off a record."""
        return (self.flags & np.int8(MODELLED)) > 0

    @cached_property
    def marks(self) -> Int64:
        """Points that are step marks."""
        return np.flatnonzero(self.point == Point.MARK)

    @property
    def time_ns(self) -> Int64:
        """[p] measured; worked out anew each time."""
        found = np.empty(len(self.point), np.int64)
        for part in blocks(len(found)):
            found[part] = self.times(np.arange(part.start, part.stop))
        return found

    def times(self, points: Index) -> Int64:
        """[k] when these points came to pass as measured."""
        point, row = self.point[points], self.ref[points]
        operations, returns = point == Point.OPERATION, point == Point.RETURN
        row[operations] = self.row[row[operations]]
        found = self.trace.start_ns[row]
        found[returns] = self.trace.end_ns[row[returns]]
        found[point == Point.ROOT] = self.trace.origin_ns
        marks = point == Point.MARK
        found[marks] = self.mark_ns[np.searchsorted(self.marks, points[marks])]
        return found

    def time(self, point: int) -> int:
        """When a point came to pass as measured."""
        return int(self.times(np.array([point]))[0])

    def last_before(self, instant: int) -> int | None:
        """The last point that came to pass by then, in the order of points."""
        for part in reversed(tuple(blocks(len(self.point)))):
            by_then = np.arange(part.start, part.stop)
            by_then = by_then[self.times(by_then) <= instant]
            if len(by_then):
                return int(by_then[-1])
        return None

    @cached_property
    def first_edge(self) -> Index:
        """[p + 1] where each point's incoming edges begin."""
        first = np.empty(len(self.point) + 1, index_type(len(self.target)))
        for part in blocks(len(first)):
            first[part] = np.searchsorted(self.target, np.arange(part.start, part.stop))
        return first

    @property
    def total_ns(self) -> Int64:
        """[e] weight with durations and delays; worked out anew each time."""
        total = self.weight_ns[:]
        for part in blocks(len(total)):
            after = self.after(part)
            total[part] += np.where(after != NONE, self.duration_ns[after], 0)
            target = self.target[part]
            of_operation = self.point[target] == Point.OPERATION
            total[part] += np.where(of_operation, self.delay_ns[self.ref[target] * of_operation], 0)
        return total

    def after(self, edges: Any = slice(None)) -> Index:
        """The operation whose duration is to pass before each of these edges, -1 for none."""
        operation = self.ref[self.source[edges]]
        passes = (self.flags[edges] & np.int8(PASSES)) > 0
        found: Index = np.where(passes, operation, operation.dtype.type(NONE))
        return found

    @cached_property
    def stream(self) -> Int64:
        return self.trace.stream[self.row]

    @cached_property
    def call_point(self) -> dict[int, int]:
        """Row of a call -> its point."""
        at = np.flatnonzero(self.point == Point.CALL)
        return dict(zip(self.ref[at].tolist(), at.tolist(), strict=True))

    def edges(self, *kinds: Edge) -> Int64:
        """Edges of these kinds."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """The graph for people to explore; times in ns.

        Nodes have `point` (root, operation, call, return, mark), `name`, `time_ns` and `row` of the trace, operations also
        `duration_ns`, `stream` and `delay_ns`. Edges have `kind`, `grade` and `weight_ns`, durations included.
        """
        import networkx as nx

        graph: networkx.MultiDiGraph[int] = nx.MultiDiGraph()
        for i, (point, time, ref) in enumerate(
            zip(self.point.tolist(), self.time_ns.tolist(), self.ref.tolist(), strict=True)
        ):
            row = int(self.row[ref]) if point == Point.OPERATION else ref
            name = "root" if point == Point.ROOT else self.trace.label(row)
            graph.add_node(i, point=Point(point).name.lower(), name=name, time_ns=time, row=row)
            if point == Point.OPERATION:
                graph.nodes[i].update(
                    duration_ns=int(self.duration_ns[ref]),
                    stream=int(self.stream[ref]),
                    delay_ns=int(self.delay_ns[ref]),
                )
        for source, target, weight, kind, modelled in zip(
            *(c.tolist() for c in (self.source, self.target, self.total_ns, self.kind, self.modelled)), strict=True
        ):
            grade = "modelled" if modelled else "measured"
            graph.add_edge(source, target, kind=Edge(kind).name.lower(), grade=grade, weight_ns=weight)
        return graph
