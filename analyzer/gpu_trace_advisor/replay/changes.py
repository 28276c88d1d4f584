"""What-ifs: small pure transformations of a graph. `change(graph)` is the graph with something taken away or made faster.

They compose: `together(a, b)(graph)` has both. Points and operations keep their numbers, and an edge is emptied rather than
removed, so changes may be applied in any order. Every change only takes time away, but for `captured`, which adds the cost
of one graph launch where a region's launches were, and `overlapped`, whose contention may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from gpu_trace_advisor.attribution import GENERIC
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among, first_places
from gpu_trace_advisor.columns.compact import blocks, where
from gpu_trace_advisor.columns.durations import NEVER, durations
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.graph import MODELLED, PASSES, Edge, Graph, Point
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int64

Change = Callable[[Graph], Graph]
Factor = float | np.ndarray[tuple[int], np.dtype[np.float64]]


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
        return _less_host(graph, among(graph.host_cause, np.array(codes)), share)

    return change


def _less_host(graph: Graph, parts: Bool, share: float = 1.0, *, own: bool = False) -> Graph:
    """Take these parts of the host time off their edges; what is taken off once is gone.

    `own`: the weights were made for this graph, and are changed where they are.
    """
    weight = graph.weight_ns if own else graph.weight_ns.copy()
    host_ns = graph.host_ns.copy()
    for part in blocks(len(weight)):
        ends = np.array([part.start, part.stop], graph.host_edge.dtype)
        entries = slice(*np.searchsorted(graph.host_edge, ends).tolist())
        here, ns = weight[part], host_ns[entries]
        less = ns if share == 1.0 else np.rint(ns * share).astype(np.int64)
        taken = np.where(parts[entries], less, 0)
        least = np.minimum(here, 0)  # what is below 0 stays as it is
        np.subtract.at(here, graph.host_edge[entries] - ends[0], taken)
        weight[part] = np.maximum(here, least)
        host_ns[entries] = ns - taken
    return replace(graph, weight_ns=weight, host_ns=host_ns)


def _is_generic(graph: Graph) -> Bool:
    """[h] host time that is nothing in particular."""
    return among(graph.host_cause, np.array(GENERIC))


def without_waits(calls: Collection[int] | None = None) -> Change:
    """These blocking calls (rows of the trace; None: all synchronisations) are gone: they cost and wait for nothing.

    Blocking copies stay unless named: the program needs their data.
    """

    def change(graph: Graph) -> Graph:
        rows = np.fromiter(calls, np.int64) if calls is not None else synchronisations(graph)
        returns = (graph.point == Point.RETURN) & among(graph.ref, rows)
        into = _at(returns, graph.target)
        weight = graph.weight_ns.copy()
        weight[into & (graph.kind == Edge.THREAD)] = 0
        weight[into & (graph.kind == Edge.BLOCK)] = NEVER
        return replace(graph, weight_ns=weight)

    return change


def synchronisations(graph: Graph) -> Int64:
    """Rows of the calls that wait, and neither move data nor free memory."""
    waits = graph.ref[graph.point == Point.RETURN]
    waits = waits[graph.timelines[0].host.doing[waits] != HostActivity.ALLOCATOR]
    launches = np.zeros(len(graph.trace) + 1, np.bool_)  # the last one for operations without a launch
    launches[graph.trace.launch[graph.row]] = True
    found: Int64 = ascending(waits[~launches[waits]])
    return found


def waiting_frees(graph: Graph) -> Int64:
    """Rows of the calls that free memory and wait for the device."""
    waits = graph.ref[graph.point == Point.RETURN]
    found: Int64 = ascending(waits[graph.timelines[0].host.doing[waits] == HostActivity.ALLOCATOR])
    return found


def scaled(operations: Int64, factor: Factor, least_ns: Factor = 0.0) -> Change:
    """These operations take `factor` times as long (quantization, precision, a faster kernel), no less than `least_ns` unless
    they did: another change may have made them as fast as that already."""

    def change(graph: Graph) -> Graph:
        before = graph.duration_ns[operations]
        after = np.maximum(np.rint(before * factor), np.minimum(before, np.ceil(least_ns))).astype(np.int64)
        return _lasting(graph, _with(graph.duration_ns, operations, after))

    return change


def _lasting(graph: Graph, duration: Index) -> Graph:
    """The graph with operations of these durations.

    What starts before the operation ahead of it has ended (programmatic dependent launch) never starts before that one.
    """
    weight, own = graph.weight_ns, False
    for part in blocks(len(weight)):
        ns = weight[part]
        early = np.flatnonzero((ns < 0) & (ns != NEVER) & ((graph.flags[part] & np.int8(PASSES)) > 0))
        least = -duration[graph.after(early + part.start)].astype(np.int64)
        sooner = ns[early] < least
        if sooner.any():
            weight, own = weight if own else weight.copy(), True
            weight[early[sooner] + part.start] = least[sooner]
    return replace(graph, duration_ns=duration, weight_ns=weight)


def _times(duration: Index, operations: Int64, factor: Factor) -> Index:
    """Durations of which these are so many times as long."""
    return _with(duration, operations, np.rint(duration[operations] * factor).astype(np.int64))


def _with(duration: Index, operations: Int64, ns: Int64) -> Index:
    """Durations of which these are other ones."""
    result = duration.astype(np.result_type(duration, durations(ns)))
    result[operations] = ns
    return result


def fused(
    operations: Int64, counts: Sequence[int] | Int64, durations_ns: Sequence[int] | Int64, *, host: bool = True
) -> Change:
    """Each run of operations (adjacent on a stream, in order) becomes its first one, with the given duration.

    The others keep their place with no duration, no gap and, unless `host` is false, no host work to launch them.
    `operations` has one run after the other, of so many each.
    """
    begins = np.cumsum(counts, dtype=np.int64) - counts
    rest = np.delete(operations, begins)

    def change(graph: Graph) -> Graph:
        whole = np.add.reduceat(graph.duration_ns[operations], begins, dtype=np.int64)
        duration = _with(graph.duration_ns, operations[begins], np.minimum(durations_ns, whole))
        duration[rest] = 0
        gone = np.zeros(len(graph.row), np.bool_)
        gone[rest] = True
        into = _into_operations(graph, gone)
        weight = graph.weight_ns.copy()
        weight[into & _of_kinds(graph, Edge.STREAM, Edge.GRAPH)] = 0
        graph = _lasting(replace(graph, weight_ns=weight), duration)
        return _without_launches(graph, graph.trace.launch[graph.row[rest]], own=True) if host else graph

    return change


def _into_operations(graph: Graph, mask: Bool) -> Bool:
    """[e] the edge ends at one of these operations."""
    found = np.empty(len(graph.target), np.bool_)
    for part in blocks(len(found)):
        target = graph.target[part]
        is_operation = graph.point[target] == Point.OPERATION
        found[part] = is_operation & mask[np.where(is_operation, graph.ref[target], 0)]
    return found


def _at(mask: Bool, numbers: Index) -> Bool:
    """[k] the mask at these numbers."""
    found = np.empty(len(numbers), np.bool_)
    for part in blocks(len(found)):
        found[part] = mask[numbers[part]]
    return found


def _of_kinds(graph: Graph, one: Edge, other: Edge) -> Bool:
    """[e] the edge is of one of these kinds."""
    kind = graph.kind
    found: Bool = (kind == one) | (kind == other)
    return found


def _without_launches(graph: Graph, calls: Index, *, own: bool) -> Graph:
    """The generic host work that led to these calls is gone, and the time of the calls themselves."""
    at = (graph.point == Point.CALL) & among(graph.ref, calls)
    into = _at(at, graph.target) & _of_kinds(graph, Edge.THREAD, Edge.HANDOVER)
    parts = _at(into, graph.host_edge) & _is_generic(graph)
    return _less_host(graph, parts, own=own)


@dataclass(frozen=True)
class Regions:
    """Maximal runs of launches between blocking calls, polls and step marks, of two at least: one CUDA Graph each could
    replay them."""

    first: Index
    """[r] points of their first calls."""
    later: Bool
    """[p] the point is another call of one."""
    inside: Bool
    """[m] the operation is of one, and not its first."""

    def __len__(self) -> int:
        return len(self.first)


def regions(graph: Graph) -> Regions:
    """What could be captured. No change of a graph changes that: it is worked out once."""
    if "regions" not in graph.lasting:
        graph.lasting["regions"] = _regions(graph)
    found: Regions = graph.lasting["regions"]
    return found


def _regions(graph: Graph) -> Regions:
    calls = where((graph.point != Point.ROOT) & (graph.point != Point.OPERATION))
    row, point = graph.ref[calls], graph.point[calls]
    rows_that_wait = graph.ref[graph.point == Point.RETURN]
    launch = graph.trace.launch[graph.row]
    breaks = (point != Point.CALL) | among(row, rows_that_wait)
    # A launch into a full queue waits, but does not forbid capture.
    breaks &= ~among(row, graph.ref[graph.target[graph.kind == Edge.QUEUE]])
    keep = among(row, launch) & (point == Point.CALL) & ~breaks
    # One that the host makes when it has seen the device done begins another region.
    polled = (point == Point.CALL) & among(calls, graph.target[graph.kind == Edge.BLOCK])
    number = np.cumsum(breaks | polled, dtype=calls.dtype)[keep]
    calls, row = calls[keep], row[keep]
    del breaks, keep, point
    several = np.bincount(number) > 1 if len(number) else np.empty(0, np.bool_)
    kept = several[number]
    number, calls, row = number[kept], calls[kept], row[kept]
    begins = np.diff(number, prepend=NONE) != 0
    later = np.zeros(len(graph.point), np.bool_)
    later[calls[~begins]] = True
    # The operations of the launches of each region, and of those the one that starts first.
    region = np.full(len(graph.trace) + 1, NONE, number.dtype)  # the last one for operations without a launch
    region[row] = number
    region = region[launch]
    inside = region != NONE
    inside[first_places(region)[1]] = False
    return Regions(calls[begins], later, inside)


def captured(chosen: Regions, *, launch_ns: int, gap_ns: int | None) -> Change:
    """Each region is replayed by one graph launch.

    The generic host work between its first and its last launch is gone; the first call takes `launch_ns`; operations
    follow each other after `gap_ns` (None: as now).
    """

    def change(graph: Graph) -> Graph:
        if not len(chosen):
            return graph
        host = _at(chosen.later, graph.target) & _of_kinds(graph, Edge.THREAD, Edge.HANDOVER)
        graph = _less_host(graph, _at(host, graph.host_edge) & _is_generic(graph))
        weight = graph.weight_ns  # made just now
        # What the launch of the graph costs is paid by whatever follows the region's first call.
        into = np.zeros(len(graph.point), np.bool_)
        into[chosen.first] = True
        from_first = _at(into, graph.source) & _of_kinds(graph, Edge.THREAD, Edge.HANDOVER)
        weight.change(from_first, lambda ns: ns + launch_ns)
        if gap_ns is not None:
            chain = _into_operations(graph, chosen.inside) & (graph.kind == Edge.STREAM)
            weight.change(chain, lambda ns: np.minimum(ns, gap_ns))
        return replace(graph, weight_ns=weight)

    return change


def unnamed_wait_decides(graph: Graph) -> bool:
    """Communication runs on a stream of its own, and what waits for it is inferred: capture cannot be priced."""
    communicates = np.concatenate([t.row[t.op_class == COMMUNICATION] for t in graph.timelines])
    if not len(communicates):
        return False
    mine = np.isin(graph.row, communicates)
    lanes = set(graph.stream[mine].tolist()) - set(graph.stream[~mine].tolist())
    if not lanes:
        return False
    events = np.flatnonzero((graph.kind == Edge.EVENT) & graph.modelled)
    after = graph.after(events)
    from_comm = mine[after] & (after != NONE)
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
        from_moving = graph.passes & moves[graph.after()]
        into_moving = _into_operations(graph, moves)
        crosses = _of_kinds(graph, Edge.EVENT, Edge.STREAM) & (graph.point[graph.target] == Point.OPERATION)
        emptied = crosses & ((from_moving & ~into_moving) | (into_moving & ~from_moving & independent))
        duration = _times(graph.duration_ns, operations, slowdown)
        weight = graph.weight_ns.copy()
        weight[emptied] = NEVER
        return _in_lanes(_lasting(replace(graph, weight_ns=weight), duration), moves)

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
        graph, graph.operation_point[before], graph.operation_point[after], graph.queued_gap_ns, Edge.STREAM
    )


def with_edges(graph: Graph, source: Int64, target: Int64, weight_ns: int, kind: Edge) -> Graph:
    """The graph with more edges, from the ends of operations; they must go forward in the order of points."""
    at = np.searchsorted(graph.target, target, side="right")
    order = np.argsort(at, kind="stable")
    at, source, target = at[order], source[order], target[order]
    return replace(
        graph,
        source=np.insert(graph.source, at, source),
        target=np.insert(graph.target, at, target),
        weight_ns=graph.weight_ns.with_inserted(at, weight_ns),
        flags=np.insert(graph.flags, at, kind | PASSES | MODELLED),
        host_edge=graph.host_edge + np.searchsorted(at, graph.host_edge, side="right"),
    )


def without_gaps(operations: Int64) -> Change:
    """These operations follow their predecessors at once, without gap or delay (one persistent kernel)."""

    def change(graph: Graph) -> Graph:
        mine = np.zeros(len(graph.row), np.bool_)
        mine[operations] = True
        chain = _into_operations(graph, mine) & _of_kinds(graph, Edge.STREAM, Edge.GRAPH)
        weight = graph.weight_ns.copy()
        weight.change(chain, lambda ns: np.minimum(ns, 0))
        return replace(graph, weight_ns=weight, delay_ns=np.where(mine, 0, graph.delay_ns))

    return change
