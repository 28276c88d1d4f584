"""What-ifs: small pure transformations of a graph. `change(graph)` is the graph with something taken away or made faster.

They compose: `together(a, b)(graph)` has both. Points and operations keep their numbers, and an edge is emptied rather than
removed, so changes may be applied in any order. Every change only takes time away, but for `captured`, which adds the cost
of one graph launch where a region's launches were, and `overlapped`, whose contention may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from analyzer.attribution import CODE, GENERIC
from analyzer.classes import dataclass
from analyzer.device_timeline import COMMUNICATION
from analyzer.distinct import among
from analyzer.graph import Edge, Graph, Point
from analyzer.intervals import ascending
from analyzer.narrow import blocks
from analyzer.trace import NONE, Bool, Int64

Change = Callable[[Graph], Graph]

NEVER = -(1 << 60)  # weight of an edge that holds nothing back


def together(*changes: Change) -> Change:
    """All of these, one after the other."""

    def change(graph: Graph) -> Graph:
        for one in changes:
            graph = one(graph)
        return graph

    return change


def without_host(causes: Collection[str], share: float = 1.0) -> Change:
    """Host time of these causes is gone, wherever it was; of each only `share` (0 to 1)."""
    codes = [CODE[cause] for cause in causes]

    def change(graph: Graph) -> Graph:
        return _less_host(graph, np.isin(graph.host_cause, codes), share)

    return change


def _less_host(graph: Graph, parts: Bool, share: float = 1.0) -> Graph:
    """Take these parts of the host time off their edges; what is taken off once is gone."""
    taken = np.where(parts, np.rint(graph.host_ns * share).astype(np.int64), 0)
    weight = graph.weight_ns.copy()
    np.subtract.at(weight, graph.host_edge, taken)
    np.maximum(weight, 0, out=weight)
    below = np.flatnonzero(graph.weight_ns < 0)
    weight[below] = graph.weight_ns[below]
    return replace(graph, weight_ns=weight, host_ns=graph.host_ns - taken)


def without_waits(calls: Collection[int] | None = None) -> Change:
    """These blocking calls (rows of the trace; None: all synchronisations) are gone: they cost and wait for nothing.

    Blocking copies stay unless named: the program needs their data.
    """

    def change(graph: Graph) -> Graph:
        rows = np.fromiter(calls, np.int64) if calls is not None else synchronisations(graph)
        returns = (graph.point == Point.RETURN) & np.isin(graph.ref, rows)
        into = returns[graph.target]
        weight = np.where(into & (graph.kind == Edge.THREAD), 0, graph.weight_ns)
        weight = np.where(into & (graph.kind == Edge.BLOCK), NEVER, weight)
        return replace(graph, weight_ns=weight)

    return change


def synchronisations(graph: Graph) -> Int64:
    """Rows of the calls that wait and move no data."""
    waits = graph.ref[graph.point == Point.RETURN]
    launches = np.zeros(len(graph.trace) + 1, np.bool_)  # the last one for operations without a launch
    launches[graph.trace.launch[graph.row]] = True
    found: Int64 = ascending(waits[~launches[waits]])
    return found


def scaled(operations: Int64, factor: float | np.ndarray[tuple[int], np.dtype[np.float64]]) -> Change:
    """These operations take `factor` times as long (quantization, precision, a faster kernel)."""

    def change(graph: Graph) -> Graph:
        duration = graph.duration_ns.copy()
        duration[operations] = np.rint(duration[operations] * factor).astype(np.int64)
        return replace(graph, duration_ns=duration)

    return change


def fused(
    operations: Int64, counts: Sequence[int], durations_ns: Sequence[int] | Int64, *, host: bool = True
) -> Change:
    """Each run of operations (adjacent on a stream, in order) becomes its first one, with the given duration.

    The others keep their place with no duration, no gap and, unless `host` is false, no host work to launch them.
    `operations` has one run after the other, of so many each.
    """
    begins = np.cumsum(counts, dtype=np.int64) - counts
    rest = np.delete(operations, begins)

    def change(graph: Graph) -> Graph:
        duration = graph.duration_ns.copy()
        duration[operations[begins]] = np.minimum(durations_ns, np.add.reduceat(duration[operations], begins))
        duration[rest] = 0
        gone = np.zeros(len(graph.row), np.bool_)
        gone[rest] = True
        into = _into_operations(graph, gone)
        weight = graph.weight_ns.copy()
        weight[into & _of_kinds(graph, Edge.STREAM, Edge.GRAPH)] = 0
        graph = replace(graph, weight_ns=weight, duration_ns=duration)
        return _without_launches(graph, graph.trace.launch[graph.row[rest]]) if host else graph

    return change


def _into_operations(graph: Graph, mask: Bool) -> Bool:
    """[e] the edge ends at one of these operations."""
    found = np.empty(len(graph.target), np.bool_)
    for part in blocks(len(found)):
        target = graph.target[part]
        is_operation = graph.point[target] == Point.OPERATION
        found[part] = is_operation & mask[np.where(is_operation, graph.ref[target], 0)]
    return found


def _of_kinds(graph: Graph, one: Edge, other: Edge) -> Bool:
    """[e] the edge is of one of these kinds."""
    found: Bool = (graph.kind == one) | (graph.kind == other)
    return found


def _without_launches(graph: Graph, calls: Int64) -> Graph:
    """The generic host work that led to these calls is gone, and the time of the calls themselves."""
    at = (graph.point == Point.CALL) & np.isin(graph.ref, calls)
    into = at[graph.target] & _of_kinds(graph, Edge.THREAD, Edge.HANDOVER)
    parts = into[graph.host_edge] & np.isin(graph.host_cause, GENERIC)
    return _less_host(graph, parts)


@dataclass(frozen=True)
class Region:
    """Launches that one CUDA Graph could replay: calls in time order without anything between that forbids capture."""

    calls: Int64
    """[c] points."""
    operations: Int64
    """[k] in order of start."""


def regions(graph: Graph, fewest: int = 2) -> list[Region]:
    """Maximal runs of launches between blocking calls and step marks; shorter ones than `fewest` launches left out."""
    calls = np.flatnonzero(np.isin(graph.point, (Point.CALL, Point.RETURN, Point.MARK)))
    waits = np.isin(graph.point[calls], (Point.RETURN, Point.MARK))
    rows_that_wait = graph.ref[graph.point == Point.RETURN]
    launching = among(graph.ref[calls], graph.trace.launch[graph.row]) & (graph.point[calls] == Point.CALL)
    breaks = waits | ((graph.point[calls] == Point.CALL) & np.isin(graph.ref[calls], rows_that_wait))
    # A launch into a full queue waits, but does not forbid capture.
    queued = graph.ref[graph.target[graph.kind == Edge.QUEUE]]
    breaks &= ~np.isin(graph.ref[calls], queued)
    keep = launching & ~breaks
    # The launches of each region, and the operations of each launch.
    number, members = np.cumsum(breaks)[keep], calls[keep]
    if not len(members):
        return []
    launch = graph.trace.launch[graph.row]
    by_launch = np.argsort(launch, kind="stable")
    low, high = (np.searchsorted(launch, graph.ref[members], side, sorter=by_launch) for side in ("left", "right"))
    operations = by_launch[_ranges(low, high)]
    region = np.concatenate([[0], np.cumsum(np.diff(number) != 0)])
    of_region = np.repeat(region, high - low)
    in_order = np.lexsort((operations, of_region))
    ends = np.cumsum(np.bincount(of_region, minlength=int(region[-1]) + 1))
    parts = zip(
        np.split(members, np.flatnonzero(np.diff(number)) + 1), np.split(operations[in_order], ends[:-1]), strict=True
    )
    return [Region(mine, ordered) for mine, ordered in parts if len(mine) >= fewest]


def _ranges(low: Int64, high: Int64) -> Int64:
    """The integers of each [low, high), one after the other."""
    count = high - low
    return np.asarray(
        np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count), np.int64
    )


def captured(chosen: Sequence[Region], *, launch_ns: int, gap_ns: int | None) -> Change:
    """Each region is replayed by one graph launch.

    The generic host work between its first and its last launch is gone; the first call takes `launch_ns`; operations
    follow each other after `gap_ns` (None: as now).
    """

    def change(graph: Graph) -> Graph:
        if not chosen:
            return graph
        first = np.array([region.calls[0] for region in chosen])
        later = np.concatenate([region.calls[1:] for region in chosen])
        into = np.zeros(len(graph.point), np.bool_)
        into[later] = True
        host = into[graph.target] & _of_kinds(graph, Edge.THREAD, Edge.HANDOVER)
        graph = _less_host(graph, host[graph.host_edge] & np.isin(graph.host_cause, GENERIC))
        weight = graph.weight_ns.copy()
        # What the launch of the graph costs is paid by whatever follows the region's first call.
        from_first = np.isin(graph.source, first) & _of_kinds(graph, Edge.THREAD, Edge.HANDOVER)
        weight[from_first] += launch_ns
        if gap_ns is not None:
            inside = np.zeros(len(graph.row), np.bool_)
            inside[np.concatenate([region.operations[1:] for region in chosen])] = True
            chain = _into_operations(graph, inside) & (graph.kind == Edge.STREAM)
            weight[chain] = np.minimum(weight[chain], gap_ns)
        return replace(graph, weight_ns=weight)

    return change


def unnamed_wait_decides(graph: Graph) -> bool:
    """Communication runs on a stream of its own, and what waits for it is inferred: capture cannot be priced."""
    communicates = np.concatenate([t.row[t.does == COMMUNICATION] for t in graph.timelines])
    if not len(communicates):
        return False
    mine = np.isin(graph.row, communicates)
    lanes = set(graph.stream[mine].tolist()) - set(graph.stream[~mine].tolist())
    if not lanes:
        return False
    events = np.flatnonzero((graph.kind == Edge.EVENT) & graph.modelled)
    from_comm = mine[np.where(graph.after[events] == NONE, 0, graph.after[events])] & (graph.after[events] != NONE)
    into_comm = _into_operations(graph, mine)[events]
    return bool((from_comm | into_comm).any())


def overlapped(operations: Int64, *, slowdown: float = 1.0, independent: bool = False) -> Change:
    """These operations run on a stream of their own, one after the other, and nothing else waits for them.

    They still wait for what ran before them on their stream or by an event, unless they are `independent`. Each lasts
    `slowdown` times as long (contention).
    """

    def change(graph: Graph) -> Graph:
        moves = np.zeros(len(graph.row), np.bool_)
        moves[operations] = True
        from_moving = (graph.after != NONE) & moves[np.where(graph.after == NONE, 0, graph.after)]
        into_moving = _into_operations(graph, moves)
        crosses = _of_kinds(graph, Edge.EVENT, Edge.STREAM) & (graph.point[graph.target] == Point.OPERATION)
        emptied = crosses & ((from_moving & ~into_moving) | (into_moving & ~from_moving & independent))
        duration = graph.duration_ns.copy()
        duration[operations] = np.rint(duration[operations] * slowdown).astype(np.int64)
        graph = replace(graph, weight_ns=np.where(emptied, NEVER, graph.weight_ns), duration_ns=duration)
        return _in_lanes(graph, moves)

    return change


def _in_lanes(graph: Graph, moves: Bool) -> Graph:
    """Stream order among those that move and among those that stay, where the two were mixed."""
    device = graph.device.astype(np.int64)
    lane = (device * 2 + moves) * (1 << 40) + graph.stream
    order = np.argsort(lane, kind="stable")
    before, after = order[:-1], order[1:]
    apart = (lane[before] == lane[after]) & (np.diff(order) != 0)
    # Neighbours now that were not neighbours before: something of the other kind ran between them.
    mixed = ascending(device[moves] * (1 << 40) + graph.stream[moves])
    apart &= np.isin((device * (1 << 40) + graph.stream)[after], mixed)
    before, after = before[apart], after[apart]
    return with_edges(
        graph, graph.operation_point[before], graph.operation_point[after], graph.queued_gap_ns, before, Edge.STREAM
    )


def with_edges(graph: Graph, source: Int64, target: Int64, weight_ns: int, after: Int64, kind: Edge) -> Graph:
    """The graph with more edges; they must go forward in the order of points."""
    at = np.searchsorted(graph.target, target, side="right")
    order = np.argsort(at, kind="stable")
    at, source, target, after = at[order], source[order], target[order], after[order]
    return replace(
        graph,
        source=np.insert(graph.source, at, source),
        target=np.insert(graph.target, at, target),
        weight_ns=np.insert(graph.weight_ns, at, weight_ns),
        after=np.insert(graph.after, at, after),
        kind=np.insert(graph.kind, at, kind),
        modelled=np.insert(graph.modelled, at, True),
        host_edge=graph.host_edge + np.searchsorted(at, graph.host_edge, side="right"),
    )


def without_gaps(operations: Int64) -> Change:
    """These operations follow their predecessors at once, without gap or delay (one persistent kernel)."""

    def change(graph: Graph) -> Graph:
        mine = np.zeros(len(graph.row), np.bool_)
        mine[operations] = True
        chain = _into_operations(graph, mine) & _of_kinds(graph, Edge.STREAM, Edge.GRAPH)
        weight = np.where(chain, np.minimum(graph.weight_ns, 0), graph.weight_ns)
        return replace(graph, weight_ns=weight, delay_ns=np.where(mine, 0, graph.delay_ns))

    return change
