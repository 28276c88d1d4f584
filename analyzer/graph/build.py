"""The graph of a process from the attributions of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer.attribution import CODE, Attribution
from analyzer.device_timeline import Blocking, Timeline
from analyzer.graph import Edge, Graph, Point
from analyzer.graph.host_edges import Spans, add_host_edges, host_time
from analyzer.graph.nominal import Nominal, call_excess, nominal_weights, within_delay
from analyzer.graph.operations import (
    Calls,
    Edges,
    Operations,
    all_blocking,
    collect_calls,
    own_operation,
    queue_full,
    waited_for,
)
from analyzer.graph.waits import Waits, event_waits
from analyzer.host import Doing, Host
from analyzer.intervals import ascending
from analyzer.trace import NONE, Int8, Int64, Trace

INTRINSIC_SYNC_NS = 5_000  # what a blocking call costs at least, when the trace shows none that had nothing to wait for


def build_graph(attributions: Sequence[Attribution], marks: Int64 | None = None) -> Graph:
    """The graph of one process from the attributions of its devices. `marks` are rows of step markers."""
    timelines = tuple(a.timeline for a in attributions)
    trace, host = timelines[0].trace, timelines[0].host
    row = np.concatenate([t.row for t in timelines])
    device = np.repeat(np.arange(len(timelines)), [len(t.row) for t in timelines])
    order = np.argsort(row, kind="stable")
    row, device = row[order], device[order]
    start, end = trace.start_ns[row], trace.end_ns[row]
    operations = Operations(trace, row, device, start, end)
    blocking = all_blocking(attributions, operations)
    queue = queue_full(operations, trace)
    calls = collect_calls(
        trace, host, operations, blocking, queue, marks if marks is not None else np.empty(0, np.int64)
    )

    # Provisional points: root, operations, call starts (marks among them), returns.
    m, c = len(row), len(calls.row)
    op_point = 1 + np.arange(m)
    call_point = 1 + m + np.arange(c)
    returns = np.flatnonzero(calls.waits)
    return_point = np.full(c, NONE, np.int64)
    return_point[returns] = 1 + m + c + np.arange(len(returns))

    edges = Edges([], [], [], [], [], [])
    spans = add_host_edges(trace, host, calls, call_point, return_point, edges)
    waits = event_waits(trace, timelines[0].process, host, operations)
    excess = call_excess(attributions, operations)
    nominal = nominal_weights(attributions, operations, waits, excess)
    extra = within_delay(operations, nominal, excess, waits, queue)
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


def _launch_edges(
    operations: Operations, calls: Calls, call_point: Int64, op_point: Int64, nominal: Nominal,
    extra: tuple[Int64, Int8, Int64], edges: Edges,
) -> None:  # fmt: skip
    at = np.flatnonzero(operations.first)
    place = np.argsort(np.where(calls.mark, NONE, calls.row), kind="stable")
    call = place[np.searchsorted(np.where(calls.mark, NONE, calls.row)[place], operations.launch[at])]
    late = np.zeros(len(operations.row), np.int64)
    np.add.at(late, extra[0], extra[2])
    # What started sooner than is usual shows that it could.
    weight = np.minimum(nominal.launch + late, operations.start - operations.launch_start)
    edges.add(call_point[call], op_point[at], weight[at], Edge.LAUNCH)


def _stream_edges(operations: Operations, op_point: Int64, nominal: Nominal, edges: Edges) -> None:
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


def _event_edges(
    operations: Operations, waits: Waits, op_point: Int64, nominal: Nominal, edges: Edges
) -> None:  # fmt: skip
    """A stream waits for an event."""
    gap = operations.start[waits.waiter] - operations.end[waits.source]
    for mine, modelled in ((waits.named, False), (~waits.named, True)):
        source, waiter = waits.source[mine], waits.waiter[mine]
        weight = np.minimum(gap[mine], nominal.event_ns)
        edges.add(op_point[source], op_point[waiter], weight, Edge.EVENT, after=source, modelled=modelled)


def _return_edges(
    host: Host, operations: Operations, calls: Calls, blocking: Blocking, queue: Int64, call_point: Int64,
    return_point: Int64, op_point: Int64, edges: Edges,
) -> tuple[Int64, Int8, Int64]:  # fmt: skip
    """When a call that waits returns: its own cost at least, and after what it waits for.

    Returns the host time on these edges: number of the edge, cause, ns.
    """
    at = np.flatnonzero(calls.waits)
    row, begin, end = calls.row[at], calls.start[at], calls.end[at]
    is_copy = np.isin(row, blocking.row[blocking.is_copy])
    is_queue = np.isin(row, queue) & ~np.isin(row, blocking.row)
    target = np.full(len(at), NONE, np.int64)
    target[is_copy] = own_operation(operations, row[is_copy])
    syncs = np.flatnonzero(~is_copy & ~is_queue)
    target[syncs] = waited_for(operations, begin[syncs], end[syncs])
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


def _usual_call_ns(operations: Operations, queue: Int64) -> int:
    """What a launch call takes when the queue has room: median of those that did not wait, else a short one."""
    if not len(queue):
        return 0
    trace, calls = operations.trace, operations.launch[operations.first]
    length, waited = trace.end_ns[calls] - trace.start_ns[calls], np.isin(calls, queue)
    return int(np.percentile(length, 10) if waited.all() else np.median(length[~waited]))


def _finish(
    trace: Trace, timelines: tuple[Timeline, ...], operations: Operations, calls: Calls, edges: Edges, spans: Spans,
    freed: tuple[Int64, Int8, Int64], nominal: Nominal, extra: tuple[Int64, Int8, Int64], op_point: Int64,
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
    host_edge, host_cause, host_ns = host_time(trace, attributions[0], spans, new_edge)
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


def _not_before_predecessors(operations: Operations, key: Int64) -> Int64:
    """Where skewed clocks moved an operation behind its launch, those after it on its stream move with it."""
    moved = np.flatnonzero(key > operations.start)
    result = key.copy()
    for lane in ascending(operations.lane[moved]).tolist():
        mine = np.flatnonzero(operations.lane == lane)
        result[mine] = np.maximum.accumulate(key[mine])
    return result


def _unexplained_delays(graph: Graph, explained_ns: int) -> Int64:
    """[m] how much later an operation started than its edges say, where that is more than noise."""
    expected = np.full(len(graph.point), np.iinfo(np.int64).min)
    np.maximum.at(expected, graph.target, graph.time_ns[graph.source] + graph.total_ns)
    late = graph.time_ns[graph.operation_point] - expected[graph.operation_point]
    late[expected[graph.operation_point] == np.iinfo(np.int64).min] = 0
    return np.where(late > explained_ns, late, 0)
