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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer import compiled
from analyzer.attribution import CODE, IDLE, STAGING_NS, SUBMITTED, Attribution, causes_of_segments, silent_cause
from analyzer.host import Doing, Host
from analyzer.intervals import Intervals, ascending, overlaps, remainder
from analyzer.timeline import Blocking, Timeline
from analyzer.trace import NONE, Bool, Int8, Int64, Kind, Trace

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


SPANS_AT_ONCE = 4_096
HANDOVER_HOLE_NS = 50_000  # a shorter hole on a thread is not a wait for another one
QUEUE_IN_FLIGHT = (
    500  # launches in flight from which a long launch call is taken for a full queue (the depth is about 1,022)
)
QUEUE_CALL_RATIO = 2  # … and longer than this many times the tenth percentile
LAUNCH_LATENCY_NS = 200_000  # what took longer to start than this is no example of what a launch takes
FREE_RETURN_NS = 100_000  # a call that frees memory and returns this soon after an operation's end had waited for it
QUEUED_GAP_NS = 1_000  # between operations of a stream, when the trace shows none that was queued behind another
INTRINSIC_SYNC_NS = 5_000  # what a blocking call costs at least, when the trace shows none that had nothing to wait for


@dataclass(frozen=True)
class Graph:
    """One process and its devices: p points in an order in which every edge goes forward, e edges sorted by target."""

    trace: Trace
    timelines: tuple[Timeline, ...]
    point: Int8
    """[p] Point. Point 0 is the root."""
    time_ns: Int64
    """[p] measured."""
    ref: Int64
    """[p] index into the operations; row in the trace for calls, returns and marks; -1 for the root."""
    source: Int64
    """[e] point."""
    target: Int64
    """[e] point, ascending."""
    weight_ns: Int64
    """[e] without the duration of `after`."""
    after: Int64
    """[e] operation whose duration is to pass as well (the edge starts at its end), -1 for none."""
    kind: Int8
    """[e] Edge."""
    modelled: Bool
    """[e] inferred (no event names it, or a nominal weight) rather than read off a record."""
    row: Int64
    """[m] trace row of each operation; m operations of all devices."""
    device: Int64
    """[m] index into `timelines`."""
    duration_ns: Int64
    """[m]"""
    delay_ns: Int64
    """[m] wait that no edge explains; 0 for nearly all."""
    host_edge: Int64
    """[h] host time on edges, by cause: the edge it is part of, `host_cause` (index into IDLE), `host_ns`."""
    host_cause: Int8
    host_ns: Int64
    operation_point: Int64
    """[m] point of each operation's start."""
    queued_gap_ns: int
    """Nominal distance between operations of a stream; likewise inside a graph replay."""
    graph_gap_ns: int
    launch_ns: int
    """Nominal time from launch call to operation."""

    @cached_property
    def first_edge(self) -> Int64:
        """[p + 1] where each point's incoming edges begin."""
        return np.searchsorted(self.target, np.arange(len(self.point) + 1))

    @cached_property
    def total_ns(self) -> Int64:
        """[e] weight with durations and delays."""
        total = self.weight_ns + np.where(self.after != NONE, self.duration_ns[self.after], 0)
        of_operation = self.point[self.target] == Point.OPERATION
        return total + np.where(of_operation, self.delay_ns[self.ref[self.target] * of_operation], 0)

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


@dataclass
class _Edges:
    """Edges being collected, in terms of provisional points."""

    source: list[Int64]
    target: list[Int64]
    weight: list[Int64]
    after: list[Int64]
    kind: list[Int8]
    modelled: list[Bool]

    @property
    def count(self) -> int:
        """How many there are so far."""
        return sum(map(len, self.source))

    def add(
        self, source: Int64, target: Int64, weight: Int64 | int, kind: Edge, *, after: Int64 | None = None,
        modelled: bool = True,
    ) -> None:  # fmt: skip
        n = len(source)
        self.source.append(np.asarray(source, np.int64))
        self.target.append(np.asarray(target, np.int64))
        self.weight.append(np.broadcast_to(np.asarray(weight, np.int64), n))
        self.after.append(np.full(n, NONE, np.int64) if after is None else np.asarray(after, np.int64))
        self.kind.append(np.full(n, kind, np.int8))
        self.modelled.append(np.full(n, modelled, np.bool_))


@dataclass(frozen=True)
class _Calls:
    """Calls that launch or wait, and step marks, by (thread, start): c of them."""

    row: Int64
    thread: Int64
    start: Int64
    end: Int64
    waits: Bool
    """[c] the call's return depends on the device, so it is a point of its own."""
    mark: Bool


def build_graph(attributions: Sequence[Attribution], marks: Int64 | None = None) -> Graph:
    """The graph of one process from the attributions of its devices. `marks` are rows of step markers."""
    timelines = tuple(a.timeline for a in attributions)
    trace, host = timelines[0].trace, timelines[0].host
    row = np.concatenate([t.row for t in timelines])
    device = np.repeat(np.arange(len(timelines)), [len(t.row) for t in timelines])
    order = np.argsort(row, kind="stable")
    row, device = row[order], device[order]
    start, end = trace.start_ns[row], trace.end_ns[row]
    operations = _Operations(trace, row, device, start, end)
    blocking = _all_blocking(attributions, operations)
    queue = _queue_full(operations, trace)
    calls = _collect_calls(
        trace, host, operations, blocking, queue, marks if marks is not None else np.empty(0, np.int64)
    )

    # Provisional points: root, operations, call starts (marks among them), returns.
    m, c = len(row), len(calls.row)
    op_point = 1 + np.arange(m)
    call_point = 1 + m + np.arange(c)
    returns = np.flatnonzero(calls.waits)
    return_point = np.full(c, NONE, np.int64)
    return_point[returns] = 1 + m + c + np.arange(len(returns))

    edges = _Edges([], [], [], [], [], [])
    spans = _host_edges(trace, host, calls, call_point, return_point, edges)
    waits = _event_waits(trace, timelines[0].process, host, operations)
    excess = _call_excess(attributions, operations)
    nominal = _nominal(attributions, operations, waits, excess)
    extra = _within_delay(operations, nominal, excess, waits, queue)
    _launch_edges(operations, calls, call_point, op_point, nominal, extra, edges)
    _stream_edges(operations, op_point, nominal, edges)
    _event_edges(operations, waits, op_point, nominal, edges)
    freed = _return_edges(host, operations, calls, blocking, queue, call_point, return_point, op_point, edges)
    return _finish(
        trace,
        timelines,
        operations,
        calls,
        edges,
        spans,
        freed,
        nominal,
        extra,
        op_point,
        call_point,
        return_point,
        attributions,
    )


@dataclass(frozen=True)
class _Operations:
    trace: Trace
    row: Int64
    device: Int64
    start: Int64
    end: Int64

    @cached_property
    def launch(self) -> Int64:
        return self.trace.launch[self.row]

    @cached_property
    def linked(self) -> Bool:
        return np.asarray(self.launch != NONE, np.bool_)

    @cached_property
    def launch_start(self) -> Int64:
        return np.where(self.linked, self.trace.start_ns[self.launch], self.start)

    @cached_property
    def lane(self) -> Int64:
        """[m] device and stream as one number."""
        streams = ascending(self.trace.stream[self.row])
        key = self.device * max(len(streams), 1) + np.searchsorted(streams, self.trace.stream[self.row])
        return np.asarray(np.searchsorted(np.flatnonzero(np.bincount(key)), key), np.int64)

    @cached_property
    def previous(self) -> Int64:
        """[m] the operation before on the same lane, -1 for the first."""
        order = np.argsort(self.lane, kind="stable")
        previous = np.full(len(self.row), NONE, np.int64)
        same = self.lane[order][1:] == self.lane[order][:-1]
        previous[order[1:][same]] = order[:-1][same]
        return previous

    @cached_property
    def graph(self) -> Bool:
        """[m] one of several operations of a launch."""
        count = np.bincount(self.launch[self.linked], minlength=len(self.trace))
        return np.asarray(self.linked & (count[self.launch] > 1), np.bool_)

    @cached_property
    def first(self) -> Bool:
        """[m] the first operation of its launch by start: the only one the host submits."""
        number = np.arange(len(self.row))
        earliest = np.full(len(self.trace), NONE, np.int64)
        earliest[self.launch[self.linked][::-1]] = number[self.linked][::-1]
        return np.asarray(self.linked & (earliest[self.launch] == number), np.bool_)


def _all_blocking(attributions: Sequence[Attribution], operations: _Operations) -> Blocking:
    """Blocking calls of all devices of the process, each once; and frees that waited for the device (inferred)."""
    frees = _waiting_frees(attributions[0].timeline, operations)
    row = ascending(np.concatenate([*(a.blocking.row for a in attributions), frees]))
    is_copy, busy = np.zeros(len(row), np.bool_), np.zeros(len(row), np.int64)
    for a in attributions:
        at = np.searchsorted(row, a.blocking.row)
        is_copy[at] |= a.blocking.is_copy
        busy[at] = np.maximum(busy[at], a.blocking.busy_ns)
    return Blocking(row, is_copy, busy)


def _waiting_frees(timeline: Timeline, operations: _Operations) -> Int64:
    """Rows of calls that free memory and returned just after an operation that was running when they began."""
    trace, host = timeline.trace, timeline.host
    named = np.array(["free" in name.lower() for name in trace.names], np.bool_)
    rows = np.flatnonzero(
        (host.doing == Doing.ALLOCATOR) & np.isin(trace.thread, host.launching) & trace.name_mask(named)
    )
    target = _waited_for(operations, trace.start_ns[rows], trace.end_ns[rows])
    waited = (target != NONE) & (trace.end_ns[rows] - operations.end[target] <= FREE_RETURN_NS)
    return np.asarray(rows[waited], np.int64)


def _queue_full(operations: _Operations, trace: Trace) -> Int64:
    """Rows of launch calls that waited for room in the queue."""
    linked = np.flatnonzero(operations.first & (trace.kind[operations.row] == Kind.KERNEL))
    if len(linked) < QUEUE_IN_FLIGHT:
        return np.empty(0, np.int64)
    calls = operations.launch[linked]
    begun = np.sort(trace.start_ns[calls])
    started = np.sort(operations.start[linked])
    in_flight = np.searchsorted(begun, trace.start_ns[calls]) - np.searchsorted(started, trace.start_ns[calls])
    length = trace.end_ns[calls] - trace.start_ns[calls]
    long = length > QUEUE_CALL_RATIO * np.percentile(length, 10)
    return np.asarray(calls[long & (in_flight >= QUEUE_IN_FLIGHT)], np.int64)


def _collect_calls(
    trace: Trace, host: Host, operations: _Operations, blocking: Blocking, queue: Int64, marks: Int64
) -> _Calls:  # fmt: skip
    rows = ascending(np.concatenate([operations.launch[operations.linked], blocking.row]))
    threads = np.union1d(np.array(host.launching, np.int64), np.flatnonzero(np.bincount(trace.thread[rows] + 1)) - 1)
    threads = threads[threads != NONE]
    marks = marks[np.isin(trace.thread[marks], threads)]
    waits = np.isin(rows, blocking.row) | np.isin(rows, queue)
    row = np.concatenate([rows, marks, marks])
    start = np.concatenate([trace.start_ns[rows], trace.start_ns[marks], trace.end_ns[marks]])
    end = np.concatenate([trace.end_ns[rows], trace.start_ns[marks], trace.end_ns[marks]])
    waits = np.concatenate([waits, np.zeros(2 * len(marks), np.bool_)])
    mark = np.arange(len(row)) >= len(rows)
    thread = trace.thread[row].astype(np.int64)
    order = np.lexsort((np.arange(len(row)), ~mark, start, thread))
    return _Calls(row[order], thread[order], start[order], end[order], waits[order], mark[order])


@dataclass(frozen=True)
class _Spans:
    """Stretches of a thread's time that host edges stand for."""

    edge: Int64
    """Number of the edge, in the order in which they were added."""
    start: Int64
    end: Int64
    thread: Int64
    group: Int64
    """Those of one group and thread are disjoint."""


def _host_edges(
    trace: Trace, host: Host, calls: _Calls, call_point: Int64, return_point: Int64, edges: _Edges
) -> _Spans:  # fmt: skip
    """Thread order and hand-over; the first call of a thread is host work since the start."""
    c = len(calls.row)
    first = np.concatenate([[True], calls.thread[1:] != calls.thread[:-1]]) if c else np.empty(0, np.bool_)
    before = np.arange(c) - 1
    from_return = ~first & (return_point[before] != NONE)
    source = np.where(first, 0, np.where(from_return, return_point[before], call_point[before]))
    begin = np.where(first, trace.origin_ns, np.where(from_return, calls.end[before], calls.start[before]))
    giver, woken = _handovers(host, calls, np.where(first, trace.origin_ns, np.maximum(calls.end[before], begin)))
    handed = giver != NONE
    giver_returns = handed & (return_point[giver] != NONE)
    from_giver = np.where(giver_returns, return_point[giver], call_point[giver])
    giver_time = np.where(giver_returns, calls.end[giver], calls.start[giver])
    keep = ~handed
    edges.add(source[keep], call_point[keep], np.maximum(calls.start - begin, 0)[keep], Edge.THREAD, modelled=False)
    edges.add(from_giver[handed], call_point[handed], np.maximum(calls.start - giver_time, 0)[handed], Edge.HANDOVER)
    # Thread order still holds where another thread handed over: not before its own last call was done.
    floor = handed & ~first
    own = np.where(from_return, 0, calls.end[before] - calls.start[before])
    edges.add(source[floor], call_point[floor], own[floor], Edge.THREAD, modelled=False)
    # Until the waiting thread woke the time was the other one's.
    woken = np.clip(woken, giver_time, np.maximum(calls.start, giver_time))[handed]
    number = np.arange(c + int(floor.sum()))
    kept, given, own_call = np.split(number, np.cumsum([int(keep.sum()), int(handed.sum())]))
    start = np.concatenate([begin[keep], giver_time[handed], woken, begin[floor]])
    stop = np.concatenate([calls.start[keep], woken, calls.start[handed], (begin + own)[floor]])
    thread = calls.thread
    return _Spans(
        np.concatenate([kept, given, given, own_call]), start, np.maximum(stop, start),
        np.concatenate([thread[keep], thread[giver[handed]], thread[handed], thread[floor]]),
        np.concatenate([0 * kept, 3 + thread[handed], 0 * given + 1, 0 * own_call + 2]),
    )  # fmt: skip


def _handovers(host: Host, calls: _Calls, since: Int64) -> tuple[Int64, Int64]:
    """[c] the call of another thread that handed over to this one, -1 for none; and when this one went on.

    A thread with a hole of over 50 µs, without operator or call in it, during which another launching thread made a
    call or marked a step, was waiting for that thread: autograd's workers, and the thread that waits for them.
    """
    giver, woken = np.full(len(calls.row), NONE, np.int64), calls.start.copy()
    by_start = np.argsort(calls.start, kind="stable")
    trace_start, trace_end = host.trace.origin_ns, int(host.trace.end_ns.max())
    for thread in np.flatnonzero(np.bincount(calls.thread)).tolist():
        mine = np.flatnonzero((calls.thread == thread) & (calls.start - since > HANDOVER_HOLE_NS))
        others = by_start[calls.thread[by_start] != thread]
        if not len(mine) or not len(others) or thread not in host.segments:
            continue
        segments = host.segments[thread]
        active = segments.where((segments.doing != Doing.WAITING) & (segments.doing != Doing.RANGE)).span
        low = np.concatenate([[trace_start], active.end])
        high = np.concatenate([active.start, [trace_end]])
        wide = high - low > HANDOVER_HOLE_NS
        low, high = low[wide], high[wide]
        # The other threads' calls in this one's holes, and of those the last one before each of its own calls.
        hole = np.searchsorted(low, calls.start[others], side="right") - 1
        within = (hole >= 0) & (calls.start[others] < high[np.maximum(hole, 0)]) if len(low) else hole >= len(others)
        others, hole = others[within], hole[within]
        at = np.searchsorted(calls.start[others], calls.start[mine], side="left") - 1
        mine, at = mine[at >= 0], at[at >= 0]
        begin, end = np.maximum(low[hole[at]], since[mine]), np.minimum(high[hole[at]], calls.start[mine])
        found = (end - begin > HANDOVER_HOLE_NS) & (calls.start[others[at]] >= begin)
        giver[mine[found]], woken[mine[found]] = others[at[found]], end[found]
    return giver, woken


@dataclass(frozen=True)
class _Nominal:
    launch: Int64
    """[m] from launch call to operation, by what is launched."""
    launch_ns: int
    queued_ns: int
    graph_ns: int
    branches: tuple[Int64, Int64]
    event_ns: int
    """From the end of what a stream waits for to the start of what waited."""
    explained_ns: int


def _nominal(
    attributions: Sequence[Attribution], operations: _Operations, waits: _Waits, excess: tuple[Int64, Int8, Int64]
) -> _Nominal:  # fmt: skip
    """The trace's own medians."""
    trace, previous = operations.trace, operations.previous
    explained = max(a.explained_ns for a in attributions)
    same_graph = (previous != NONE) & operations.graph & (operations.launch == operations.launch[previous])
    gap = operations.start - operations.end[previous]
    branches = _branches(operations)
    inside = same_graph & (gap >= 0) & (gap <= explained)
    inside[branches[1]] = False
    waiting = (previous != NONE) & ~same_graph & operations.linked & (gap >= 0) & (gap <= explained)
    waiting &= trace.end_ns[operations.launch] <= operations.end[previous]
    waiting[waits.waiter] = False
    queued_ns = int(np.median(gap[waiting])) if waiting.any() else QUEUED_GAP_NS
    graph_ns = int(np.median(gap[inside])) if inside.any() else queued_ns
    launch, launch_ns = _launch_latencies(attributions, operations, waits, excess, queued_ns)
    event_ns = _event_latency(operations, waits, explained)
    return _Nominal(launch, launch_ns, queued_ns, graph_ns, branches, event_ns, explained)


def _launch_latencies(
    attributions: Sequence[Attribution], operations: _Operations, waits: _Waits, excess: tuple[Int64, Int8, Int64],
    queued_ns: int,
) -> tuple[Int64, int]:  # fmt: skip
    """[m] and over all: from launch call to operation, medians of each kind of operation."""
    previous = operations.previous
    delay = operations.start - operations.launch_start
    special = excess[1] != CODE["launch-call"]
    np.subtract.at(delay, excess[0][special], excess[2][special])
    usable = operations.first & (delay >= 0) & (delay <= LAUNCH_LATENCY_NS)
    idle = usable & ((previous == NONE) | _ended_before_launch(operations))
    closing = np.zeros(len(operations.row), np.bool_)
    for a in attributions:
        gaps = a.timeline.gaps
        mine = gaps.interior & ~gaps.unlinked & (a.timeline.launch_start[gaps.closing] >= gaps.start)
        closing[np.searchsorted(operations.row, a.timeline.row[gaps.closing[mine]])] = True
    idle &= closing
    # Where none of a kind went into an idle device: those that waited for nothing on their own stream.
    free = usable & ((previous == NONE) | (operations.start - operations.end[previous] > 2 * queued_ns))
    free[waits.waiter] = False
    usual = [a.launch_latency_ns for a in attributions if a.launch_latency_ns]
    overall = int(np.median(delay[idle])) if idle.any() else (int(np.median(usual)) if usual else 0)
    launch = np.full(len(operations.row), overall, np.int64)
    what = operations.trace.kind[operations.row].astype(np.int64) * 2 + operations.graph
    for group in np.flatnonzero(np.bincount(what)).tolist():
        mine = what == group
        for clean in (mine & idle, mine & free):
            if clean.any():
                launch[mine] = int(np.median(delay[clean]))
                break
    return launch, overall


def _event_latency(operations: _Operations, waits: _Waits, explained_ns: int) -> int:
    """Median from the end of what was waited for last to the start of what waited for nothing else by then."""
    source, waiter = waits.source, waits.waiter
    gap = operations.start[waiter] - operations.end[source]
    previous = operations.previous[waiter]
    ready = operations.trace.end_ns[operations.launch[waiter]] <= operations.end[source]
    ready &= (previous == NONE) | (operations.end[previous] <= operations.end[source])
    latest = np.full(len(operations.row), np.iinfo(np.int64).min)
    np.maximum.at(latest, waiter, operations.end[source])
    ready &= (operations.end[source] == latest[waiter]) & (gap <= explained_ns)
    for mine in (ready & waits.named, ready):
        if mine.any():
            return int(np.median(gap[mine]))
    return 0


def _call_excess(attributions: Sequence[Attribution], operations: _Operations) -> tuple[Int64, Int8, Int64]:
    """(operation, cause, ns) for launch calls that ran on before their operation started: loading, staging, allocating."""
    found: list[tuple[Int64, Int8, Int64]] = []
    causes = [CODE[c] for c in ("launch-call", "module-load", "allocator", "copy-staging")]
    for a in attributions:
        pieces, gaps = a.pieces, a.timeline.gaps
        at = np.flatnonzero((pieces.side == SUBMITTED) & np.isin(pieces.cause, causes))
        closing = a.timeline.row[gaps.closing[pieces.gap[at]]]
        found.append((np.searchsorted(operations.row, closing), pieces.cause[at], (pieces.end - pieces.start)[at]))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))  # type: ignore[return-value]


def _within_delay(
    operations: _Operations, nominal: _Nominal, excess: tuple[Int64, Int8, Int64], waits: _Waits, queue: Int64
) -> tuple[Int64, Int8, Int64]:  # fmt: skip
    """The same, together no more than what each operation started later than is usual for its kind.

    Gaps tell nothing of the time when the device was busy with another stream: where an operation started no sooner
    than its call let it, although its stream and its events were ready, the call's whole excess counts.
    """
    order = np.lexsort((excess[1] == CODE["launch-call"], excess[0]))
    operation, cause, ns = excess[0][order], excess[1][order], excess[2][order]
    trace, start = operations.trace, operations.start
    room = np.maximum(start - operations.launch_start - nominal.launch, 0)
    before = np.cumsum(ns) - ns
    before -= before[np.searchsorted(operation, operation)] if len(operation) else 0
    ns = np.clip(room[operation] - before, 0, ns)
    np.subtract.at(room, operation, ns)
    is_copy = trace.kind[operations.row] == Kind.COPY
    known = np.where(is_copy, CODE["copy-staging"], CODE["launch-call"]).astype(np.int8)
    known[operation[::-1]] = cause[::-1]
    noise = np.where(is_copy, STAGING_NS, nominal.explained_ns)
    noise[operation] = max(nominal.queued_ns, nominal.event_ns)
    ready = np.where(operations.previous != NONE, operations.end[operations.previous], trace.origin_ns)
    np.maximum.at(ready, waits.waiter, operations.end[waits.source])
    held = operations.first & (trace.end_ns[operations.launch] + nominal.launch >= start) & (start - ready > noise)
    late = np.flatnonzero(held & (room > noise) & ~np.isin(operations.launch, queue))
    return np.concatenate([operation, late]), np.concatenate([cause, known[late]]), np.concatenate([ns, room[late]])


def _ended_before_launch(operations: _Operations) -> Bool:
    """[m] the operation before on the stream had ended when the launch call began."""
    return np.asarray(operations.end[operations.previous] <= operations.launch_start, np.bool_)


def _launch_edges(
    operations: _Operations, calls: _Calls, call_point: Int64, op_point: Int64, nominal: _Nominal,
    extra: tuple[Int64, Int8, Int64], edges: _Edges,
) -> None:  # fmt: skip
    at = np.flatnonzero(operations.first)
    place = np.argsort(np.where(calls.mark, NONE, calls.row), kind="stable")
    call = place[np.searchsorted(np.where(calls.mark, NONE, calls.row)[place], operations.launch[at])]
    late = np.zeros(len(operations.row), np.int64)
    np.add.at(late, extra[0], extra[2])
    # What started sooner than is usual shows that it could.
    weight = np.minimum(nominal.launch + late, operations.start - operations.launch_start)
    edges.add(call_point[call], op_point[at], weight[at], Edge.LAUNCH)


def _stream_edges(operations: _Operations, op_point: Int64, nominal: _Nominal, edges: _Edges) -> None:
    """Stream order; inside a replay also the node that ended last before; orphans keep their measured distance."""
    previous = operations.previous
    gap = operations.start - operations.end[previous]
    orphan = ~operations.linked
    first_orphan = orphan & (previous == NONE)
    edges.add(
        np.zeros(int(first_orphan.sum()), np.int64), op_point[first_orphan],
        (operations.start - operations.trace.origin_ns)[first_orphan], Edge.DISTANCE,
    )  # fmt: skip
    at = np.flatnonzero(orphan & (previous != NONE))
    edges.add(op_point[previous[at]], op_point[at], gap[at], Edge.DISTANCE, after=previous[at])
    same_graph = (previous != NONE) & operations.graph & (operations.launch == operations.launch[previous])
    for mask, ns, kind in (
        (~orphan & (previous != NONE) & ~same_graph, nominal.queued_ns, Edge.STREAM),
        (~orphan & same_graph, nominal.graph_ns, Edge.GRAPH),
    ):
        at = np.flatnonzero(mask)
        # An operation that overlaps its predecessor (programmatic dependent launch) keeps its overlap.
        edges.add(
            op_point[previous[at]], op_point[at], np.minimum(gap[at], ns), kind, after=previous[at], modelled=False
        )
    source, node = nominal.branches
    gap = operations.start[node] - operations.end[source]
    edges.add(op_point[source], op_point[node], np.minimum(gap, nominal.graph_ns), Edge.GRAPH, after=source)


def _branches(operations: _Operations) -> tuple[Int64, Int64]:
    """(source, node): of a replay on several streams each node waits for the one that ended last before it started,
    where that is not the one before it on its stream."""
    none = np.empty(0, np.int64)
    nodes = np.flatnonzero(operations.graph & operations.linked)
    if not len(nodes):
        return none, none
    order = nodes[np.argsort(operations.launch[nodes], kind="stable")]
    replay = np.cumsum(np.diff(operations.launch[order], prepend=operations.launch[order[0]]) != 0)
    first = np.flatnonzero(np.diff(replay, prepend=-1))
    lane = operations.lane[order]
    branched = (np.maximum.reduceat(lane, first) > np.minimum.reduceat(lane, first))[replay]
    order, replay = order[branched], replay[branched]
    if not len(order):
        return none, none
    # Ends and starts of each replay's nodes in time order, ends first; what ended last before a start is behind it.
    n = len(order)
    time = np.concatenate([operations.end[order], operations.start[order]])
    is_start = np.repeat([False, True], n)
    merged = np.lexsort((is_start, time, np.tile(replay, 2)))
    last = np.maximum.accumulate(np.where(is_start[merged], -1, np.arange(2 * n)))
    at = np.flatnonzero(is_start[merged] & (last >= 0))
    node, source = order[merged[at] - n], order[merged[last[at]] % n]
    real = (operations.launch[source] == operations.launch[node]) & (source != operations.previous[node])
    real &= operations.start[source] < operations.start[node]
    return source[real], node[real]


@dataclass(frozen=True)
class _Waits:
    """Operations that an event holds back until another one has ended."""

    source: Int64
    waiter: Int64
    named: Bool
    """The recording says which event."""


def _event_waits(trace: Trace, process: int, host: Host, operations: _Operations) -> _Waits:
    """What streams wait for: the event that the recording names, else everything earlier on the other streams."""
    matches = np.array(["streamwaitevent" in name.lower() for name in trace.names], np.bool_)
    calls = np.flatnonzero((trace.kind == Kind.CALL) & trace.name_mask(matches) & np.isin(trace.thread, host.launching))
    lanes = _lanes(operations)
    found: list[tuple[Int64, Int64, bool]] = []
    named = np.empty(0, np.int64)
    if len(calls):
        named = _named_waits(trace, process, calls, lanes, operations, found)
        unnamed = calls[~np.isin(calls, named)]
        _unnamed_waits(trace, unnamed, lanes, operations, found)
    source, waiter = (np.concatenate([np.empty(0, np.int64), *(part[i] for part in found)]) for i in (0, 1))
    is_named = np.repeat([part[2] for part in found], [len(part[0]) for part in found]).astype(np.bool_)
    real = (operations.lane[source] != operations.lane[waiter]) & (operations.end[source] <= operations.start[waiter])
    source, waiter, is_named = source[real], waiter[real], is_named[real]
    # Each pair once, as named where it is.
    order = np.lexsort((~is_named, source, waiter))
    source, waiter, is_named = source[order], waiter[order], is_named[order]
    new = (np.diff(source, prepend=-1) != 0) | (np.diff(waiter, prepend=-1) != 0)
    return _Waits(source[new], waiter[new], is_named[new])


@dataclass(frozen=True)
class _Lane:
    """The operations of one stream, in order."""

    device: int
    stream: int
    operation: Int64
    launched: Int64
    """Start of the launch call, never before an earlier one's."""
    ended: Int64
    """End, never before an earlier one's."""


def _lanes(operations: _Operations) -> list[_Lane]:
    order = np.argsort(operations.lane, kind="stable")
    low = np.iinfo(np.int64).min
    launched = np.where(operations.linked, operations.launch_start, low)
    runs = np.split(order, np.flatnonzero(np.diff(operations.lane[order])) + 1) if len(order) else []
    return [
        _Lane(
            int(operations.device[mine[0]]), int(operations.trace.stream[operations.row[mine[0]]]), mine,
            np.maximum.accumulate(launched[mine]), np.maximum.accumulate(operations.end[mine]),
        )
        for mine in runs
    ]  # fmt: skip


def _named_waits(
    trace: Trace, process: int, calls: Int64, lanes: Sequence[_Lane], operations: _Operations,
    found: list[tuple[Int64, Int64, bool]],
) -> Int64:  # fmt: skip
    """Adds the waits whose event the recording names; returns the rows of their calls."""
    keys = ("wait_on_cuda_event_record_corr_id", "wait_on_stream")
    if any(key not in trace.integers for key in keys):
        return np.empty(0, np.int64)
    recorded = trace.integers[keys[0]]
    mine = trace.process[recorded.rows] == process
    row, record = recorded.rows[mine], recorded.values[mine].astype(np.int64)
    on = trace.integers[keys[1]].dense(len(trace))[row]
    by_id = np.flatnonzero((trace.kind == Kind.CALL) & (trace.process == process) & (trace.correlation != NONE))
    by_id = by_id[np.argsort(trace.correlation[by_id], kind="stable")]
    ids = trace.correlation[by_id]

    def call_of(wanted: Int64) -> Int64:
        at = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
        return np.where(ids[at] == wanted, by_id[at], NONE) if len(ids) else np.full(len(wanted), NONE)

    call, source_call = call_of(trace.correlation[row]), call_of(record)
    # -1 is unknown; an id from the future belongs to another session.
    known = (call != NONE) & (source_call != NONE) & (record <= trace.correlation[row]) & np.isin(call, calls)
    call, source_call, on, row = call[known], source_call[known], on[known], row[known]
    device, stream = trace.device[row].astype(np.int64), trace.stream[row]
    ordinal = {lane.device: int(trace.device[operations.row[lane.operation[0]]]) for lane in lanes}
    usable = np.zeros(len(call), np.bool_)
    for waiting in lanes:
        here = (stream == waiting.stream) & ((device == ordinal[waiting.device]) | (device == NONE))
        usable |= here
        for lane in lanes:
            pairs = np.flatnonzero(here & (on == lane.stream) & (lane.device == waiting.device))
            k = np.searchsorted(waiting.launched, trace.start_ns[call[pairs]], side="left")
            j = np.searchsorted(lane.launched, trace.start_ns[source_call[pairs]], side="left") - 1
            real = (k < len(waiting.operation)) & (j >= 0)
            found.append((lane.operation[j[real]], waiting.operation[k[real]], True))
    return ascending(call[usable])


def _unnamed_waits(
    trace: Trace, calls: Int64, lanes: Sequence[_Lane], operations: _Operations,
    found: list[tuple[Int64, Int64, bool]],
) -> None:  # fmt: skip
    """The next operation that the thread launches waits for everything earlier on the other streams of its device."""
    submitted = np.flatnonzero(operations.first)
    thread, begun = trace.thread[operations.launch[submitted]], operations.launch_start[submitted]
    for one in np.flatnonzero(np.bincount(trace.thread[calls])).tolist():
        here = np.flatnonzero(thread == one)
        here = here[np.argsort(begun[here], kind="stable")]
        since = trace.start_ns[calls[trace.thread[calls] == one]]
        k = np.searchsorted(begun[here], since, side="left")
        since, waiter = since[k < len(here)], submitted[here[k[k < len(here)]]]
        for lane in lanes:
            mine = operations.device[waiter] == lane.device
            j = np.searchsorted(lane.launched, since, side="left")
            j = np.minimum(j, np.searchsorted(lane.ended, operations.start[waiter], side="right")) - 1
            mine &= j >= 0
            found.append((lane.operation[j[mine]], waiter[mine], False))


def _event_edges(
    operations: _Operations, waits: _Waits, op_point: Int64, nominal: _Nominal, edges: _Edges
) -> None:  # fmt: skip
    """A stream waits for an event."""
    gap = operations.start[waits.waiter] - operations.end[waits.source]
    for mine, modelled in ((waits.named, False), (~waits.named, True)):
        source, waiter = waits.source[mine], waits.waiter[mine]
        weight = np.minimum(gap[mine], nominal.event_ns)
        edges.add(op_point[source], op_point[waiter], weight, Edge.EVENT, after=source, modelled=modelled)


def _return_edges(
    host: Host, operations: _Operations, calls: _Calls, blocking: Blocking, queue: Int64, call_point: Int64,
    return_point: Int64, op_point: Int64, edges: _Edges,
) -> tuple[Int64, Int8, Int64]:  # fmt: skip
    """When a call that waits returns: its own cost at least, and after what it waits for.

    Returns the host time on these edges: number of the edge, cause, ns.
    """
    at = np.flatnonzero(calls.waits)
    row, begin, end = calls.row[at], calls.start[at], calls.end[at]
    is_copy = np.isin(row, blocking.row[blocking.is_copy])
    is_queue = np.isin(row, queue) & ~np.isin(row, blocking.row)
    target = np.full(len(at), NONE, np.int64)
    target[is_copy] = _own_operation(operations, row[is_copy])
    syncs = np.flatnonzero(~is_copy & ~is_queue)
    target[syncs] = _waited_for(operations, begin[syncs], end[syncs])
    # A launch into a full queue returns when the operation that started last before its return starts.
    target[is_queue] = np.searchsorted(operations.start, end[is_queue], side="right") - 1
    released = np.where(is_queue, operations.start[target], operations.end[target])
    waited = (target != NONE) & (released > begin) & (released <= end)
    cost = end - begin
    # With nothing to wait for it takes no longer than others did that had nothing, or than it takes to return.
    idle, late = cost[~is_copy & ~is_queue & ~waited], (end - released)[waited & ~is_queue]
    intrinsic = min(
        int(idle.min()) if len(idle) else INTRINSIC_SYNC_NS,
        int(np.median(late)) if len(late) else INTRINSIC_SYNC_NS,
        INTRINSIC_SYNC_NS,
    )
    usual = _usual_call_ns(operations, queue)
    cost = np.where(waited, np.minimum(cost, np.where(is_queue, usual, intrinsic)), cost)
    # What a call that frees memory takes is the allocator's, but for the wait.
    first, frees = edges.count, host.doing[row] == Doing.ALLOCATOR
    edges.add(call_point[at], return_point[at], cost, Edge.THREAD, modelled=False)
    found = [(first + np.flatnonzero(frees), cost[frees])]
    for kind, mine in ((Edge.BLOCK, waited & ~is_queue), (Edge.QUEUE, waited & is_queue)):
        passes = None if kind == Edge.QUEUE else target[mine]
        found.append((edges.count + np.flatnonzero(frees[mine]), (end - released)[mine & frees]))
        edges.add(op_point[target[mine]], return_point[at[mine]], (end - released)[mine], kind, after=passes)
    edge, ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return edge, np.full(len(edge), CODE["allocator"], np.int8), ns


def _usual_call_ns(operations: _Operations, queue: Int64) -> int:
    """What a launch call takes when the queue has room: median of those that did not wait, else a short one."""
    if not len(queue):
        return 0
    trace, calls = operations.trace, operations.launch[operations.first]
    length, waited = trace.end_ns[calls] - trace.start_ns[calls], np.isin(calls, queue)
    return int(np.percentile(length, 10) if waited.all() else np.median(length[~waited]))


def _own_operation(operations: _Operations, calls: Int64) -> Int64:
    """[k] of the operations that a call submitted the one that ends last."""
    linked = np.flatnonzero(operations.linked)
    order = linked[np.lexsort((operations.end[linked], operations.launch[linked]))]
    return np.asarray(order[np.searchsorted(operations.launch[order], calls, side="right") - 1], np.int64)


def _waited_for(operations: _Operations, begin: Int64, end: Int64) -> Int64:
    """[k] the operation a synchronisation waited for: launched before it, and of those the last to end before it
    returned. -1 when all of them had ended before it began."""
    by_end = np.argsort(operations.end, kind="stable")
    ends = operations.end[by_end]
    found = np.full(len(begin), NONE, np.int64)
    last = np.searchsorted(ends, end, side="right") - 1
    compiled.call(
        sweep_waited,
        len(begin) + len(ends),
        (begin, last, ends, operations.launch_start[by_end], by_end),
        (found,),
    )
    return found


def sweep_waited(begin: Any, last: Any, ends: Any, launched: Any, operation: Any, found: Any) -> None:
    """For each wait the operation that ended last, from `last` back, of those launched before it began."""
    for i in range(len(begin)):
        k = last[i]
        while k >= 0 and ends[k] > begin[i]:
            if launched[k] < begin[i]:
                found[i] = operation[k]
                break
            k -= 1


def _finish(
    trace: Trace, timelines: tuple[Timeline, ...], operations: _Operations, calls: _Calls, edges: _Edges, spans: _Spans,
    freed: tuple[Int64, Int8, Int64], nominal: _Nominal, extra: tuple[Int64, Int8, Int64], op_point: Int64,
    call_point: Int64, return_point: Int64, attributions: Sequence[Attribution],
) -> Graph:  # fmt: skip
    """Order the points so that every edge goes forward, sort the edges, find the delays that no edge explains."""
    m = len(op_point)
    returns = np.flatnonzero(calls.waits)
    time = np.concatenate([[trace.origin_ns], operations.start, calls.start, calls.end[returns]])
    point = np.concatenate(
        [
            [Point.ROOT],
            np.full(m, Point.OPERATION),
            np.where(calls.mark, Point.MARK, Point.CALL),
            np.full(len(returns), Point.RETURN),
        ]
    ).astype(np.int8)
    ref = np.concatenate([[NONE], np.arange(m), calls.row, calls.row[returns]])
    # Equal times: operations, then returns, then calls; an operation never before its own launch.
    key = time.copy()
    rank = np.choose(point, [0, 1, 3, 2, 3])
    key[op_point] = np.where(operations.first, np.maximum(operations.start, operations.launch_start), operations.start)
    key[op_point] = _not_before_predecessors(operations, key[op_point])
    late = operations.first & (operations.launch_start >= operations.start)
    rank[op_point[late | (key[op_point] > operations.start)]] = 4
    rank[0], key[0] = -1, min(int(key.min()), trace.origin_ns)
    order = np.lexsort((np.arange(len(time)), rank, key))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    source, target = place[np.concatenate(edges.source)], place[np.concatenate(edges.target)]
    columns = [np.concatenate(getattr(edges, name)) for name in ("weight", "after", "kind", "modelled")]
    forward = source < target
    number = np.flatnonzero(forward)
    by_target = number[np.argsort(target[number], kind="stable")]
    weight, after, kind, modelled = (column[by_target] for column in columns)
    new_edge = np.full(len(source), NONE, np.int64)
    new_edge[by_target] = np.arange(len(by_target))
    host_edge, host_cause, host_ns = _host_time(trace, attributions[0], spans, new_edge)
    launch_edge = np.full(m, NONE, np.int64)
    launches = np.flatnonzero(kind == Edge.LAUNCH)
    launch_edge[ref[order][target[by_target][launches]]] = launches
    host_edge = np.concatenate([host_edge, launch_edge[extra[0]], new_edge[freed[0]]])
    known = np.flatnonzero(host_edge != NONE)
    graph = Graph(
        trace=trace, timelines=timelines, point=point[order], time_ns=time[order], ref=ref[order],
        source=source[by_target], target=target[by_target], weight_ns=weight, after=after, kind=kind, modelled=modelled,
        row=operations.row, device=operations.device, duration_ns=operations.end - operations.start,
        delay_ns=np.zeros(m, np.int64),
        host_edge=host_edge[known],
        host_cause=np.concatenate([host_cause, extra[1], freed[1]]).astype(np.int8)[known],
        host_ns=np.concatenate([host_ns, extra[2], freed[2]])[known],
        operation_point=place[op_point], queued_gap_ns=nominal.queued_ns, graph_gap_ns=nominal.graph_ns,
        launch_ns=nominal.launch_ns,
    )  # fmt: skip
    return replace(graph, delay_ns=_unexplained_delays(graph, nominal.explained_ns))


def _not_before_predecessors(operations: _Operations, key: Int64) -> Int64:
    """Where skewed clocks moved an operation behind its launch, those after it on its stream move with it."""
    moved = np.flatnonzero(key > operations.start)
    result = key.copy()
    for lane in ascending(operations.lane[moved]).tolist():
        mine = np.flatnonzero(operations.lane == lane)
        result[mine] = np.maximum.accumulate(key[mine])
    return result


def _host_time(
    trace: Trace, attribution: Attribution, spans: _Spans, new_edge: Int64
) -> tuple[Int64, Int8, Int64]:  # fmt: skip
    """What the host did on each host edge, by cause."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.int64))]
    timeline = attribution.timeline
    for thread, segments, causes in causes_of_segments(timeline, attribution.blocking):
        of_thread = np.flatnonzero((spans.thread == thread) & (spans.end > spans.start))
        for group in np.flatnonzero(np.bincount(spans.group[of_thread])).tolist():
            mine = of_thread[spans.group[of_thread] == group]
            mine = mine[np.argsort(spans.start[mine], kind="stable")]
            # Block by block: a span of a large trace holds many times its own size in records.
            for block in np.split(mine, np.arange(SPANS_AT_ONCE, len(mine), SPANS_AT_ONCE)):
                span = Intervals(spans.start[block], spans.end[block])
                met = overlaps(span, segments.span)
                silent = remainder(span, met)
                silence = silent.end - silent.start
                ns = np.concatenate([met.end - met.start, silence])
                cause = np.concatenate([causes[met.right], silent_cause(timeline, segments, silence)])
                edge = new_edge[spans.edge[block[np.concatenate([met.left, silent.left])]]]
                found.append(_summed(edge, cause, ns))
    edge, cause, ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return edge, cause, ns


def _summed(edge: Int64, cause: Int8, ns: Int64) -> tuple[Int64, Int8, Int64]:
    """One entry for each edge and cause; entries of edges that are gone are left out."""
    keep = edge != NONE
    key, ns = edge[keep] * len(IDLE) + cause[keep], ns[keep]
    order = np.argsort(key, kind="stable")
    key, ns = key[order], ns[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.empty(0, np.int64)
    total = np.add.reduceat(ns, first) if len(first) else ns
    return key[first] // len(IDLE), (key[first] % len(IDLE)).astype(np.int8), total


def _unexplained_delays(graph: Graph, explained_ns: int) -> Int64:
    """[m] how much later an operation started than its edges say, where that is more than noise."""
    expected = np.full(len(graph.point), np.iinfo(np.int64).min)
    np.maximum.at(expected, graph.target, graph.time_ns[graph.source] + graph.total_ns)
    late = graph.time_ns[graph.operation_point] - expected[graph.operation_point]
    late[expected[graph.operation_point] == np.iinfo(np.int64).min] = 0
    return np.where(late > explained_ns, late, 0)
