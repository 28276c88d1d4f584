"""The graph of a process from the attributions of its devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_trace_advisor.attribution import Attribution
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.compact import blocks, index_type, narrowed, places, where
from gpu_trace_advisor.columns.durations import Nanoseconds, durations
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.graph import PASSES, Edge, Graph, Point
from gpu_trace_advisor.graph.host_edges import Released, add_host_edges, host_time
from gpu_trace_advisor.graph.nominal import Nominal, call_excess, nominal_weights, within_delay
from gpu_trace_advisor.graph.operations import (
    Awaited,
    Edges,
    HostCalls,
    Operations,
    all_blocking,
    awaited,
    collect_calls,
    last_of_other_streams,
    merge_operations,
    own_operation,
    queue_full,
    waited_for,
    would_wait_for,
)
from gpu_trace_advisor.graph.waits import Waits, event_waits
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.timelines.device import Blocking, Timeline
from gpu_trace_advisor.timelines.host import Host, HostActivity
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int8, Int64, Trace

LONGEST_NS = 1 << 60  # a shorter span leaves room for a rank beside the time
WAITS_FOR_ALL = re.compile(r"(?:device|ctx|context)synchronize", re.IGNORECASE)
INTRINSIC_SYNC_NS = 5_000  # what a blocking call costs at least, when the trace shows none that had nothing to wait for


def build_graph(attributions: Sequence[Attribution], marks: Int64 | None = None) -> Graph:
    """The graph of one process from the attributions of its devices. `marks` are rows of step markers."""
    timelines = tuple(a.timeline for a in attributions)
    trace, host = timelines[0].trace, timelines[0].host
    operations = merge_operations(timelines)
    blocking = all_blocking(attributions, operations)
    queue = queue_full(operations, trace)
    calls = collect_calls(
        trace, host, operations, blocking, queue, marks if marks is not None else np.empty(0, np.int64)
    )

    # Provisional points: root, operations, call starts (marks among them), returns.
    m, c = len(operations.row), len(calls.row)
    returns = where(calls.waits)
    kind = index_type(1 + m + c + len(returns))
    op_point = np.arange(1, 1 + m, dtype=kind)
    call_point = np.arange(1 + m, 1 + m + c, dtype=kind)
    return_point = np.full(c, NONE, kind)
    return_point[returns] = np.arange(1 + m + c, 1 + m + c + len(returns))

    edges = Edges(kind)
    released = _released(attributions, operations, calls, op_point)
    spans, seen = add_host_edges(trace, host, calls, call_point, return_point, edges, released)
    on_host = [host_time(attributions[0], spans), _noticing(calls, released, seen)]
    del spans
    host.forget()
    waits = event_waits(trace, timelines[0].process, host, operations)
    excess = call_excess(attributions, operations)
    nominal = nominal_weights(attributions, operations, waits, excess)
    extra = within_delay(operations, nominal, excess, waits, queue)
    _launch_edges(operations, calls, call_point, op_point, nominal, extra, edges)
    _stream_edges(operations, op_point, nominal, edges)
    _event_edges(operations, waits, op_point, nominal, edges)
    on_host.append(_return_edges(host, operations, calls, blocking, queue, call_point, return_point, op_point, edges))
    del op_point, call_point, return_point, waits, excess
    return _finish(trace, timelines, operations, calls, edges, on_host, nominal, extra)


def _released(
    attributions: Sequence[Attribution], operations: Operations, calls: HostCalls, op_point: Index
) -> Released:  # fmt: skip
    """Calls that follow what the host polled for; of several devices' the first."""
    found = [(np.empty(0, np.int64),) * 3]
    for a in attributions:
        operation = np.searchsorted(operations.row, a.timeline.row[a.polls.operation])
        found.append((a.polls.call, operation, a.polls.usual_ns))
    row, operation, usual = (np.concatenate(column) for column in zip(*found, strict=True))
    row, first = np.unique(row, return_index=True)
    operation, usual = operation[first], usual[first]
    order = np.argsort(calls.row, kind="stable")
    order = order[~calls.mark[order]]
    at = order[np.searchsorted(calls.row[order], row)] if len(row) else row
    while (step := _marked_before(calls, at, operations.end[operation])).any():  # the mark moves with the call
        at = at - step
    # In the order of the calls, as their edges are.
    by_call = np.argsort(at, kind="stable")
    at, operation, usual = at[by_call], operation[by_call], usual[by_call]
    return Released(at, op_point[operation], operations.end[operation], usual)


def _marked_before(calls: HostCalls, at: Index, done: Int64) -> Bool:
    """[k] the thread's call before is a step mark after these instants."""
    before = np.maximum(at - 1, 0)
    found = (at > 0) & calls.mark[before] & (calls.thread[before] == calls.thread[at]) & (calls.start[before] >= done)
    return np.asarray(found, np.bool_)


def _noticing(calls: HostCalls, released: Released, edge: Index) -> tuple[Int64, Int8, Int64]:
    """The host's time to see that what it polls for has ended: edge, cause, ns."""
    ns = np.minimum(released.usual_ns, calls.start[released.call] - released.done)
    return edge, np.full(len(edge), CODE["host-poll"], np.int8), narrowed(ns)


def _launch_edges(
    operations: Operations, calls: HostCalls, call_point: Index, op_point: Index, nominal: Nominal,
    extra: tuple[Int64, Int8, Int64], edges: Edges,
) -> None:  # fmt: skip
    at = where(operations.first)
    if not len(at):
        return
    point = np.full(len(operations.trace), NONE, call_point.dtype)
    submits = np.flatnonzero(~calls.mark)
    point[calls.row[submits]] = call_point[submits]
    source = point[operations.launch[at]]
    del point, submits
    late = np.zeros(len(operations.row), np.int64)
    np.add.at(late, extra[0], extra[2])
    # What started sooner than is usual shows that it could.
    weight = Nanoseconds.empty(len(at))
    for part in blocks(len(at)):
        some = at[part]
        weight[part] = np.minimum(
            nominal.launch(some) + late[some], operations.start[some] - operations.launch_start(some)
        )
    edges.add(source, op_point[at], weight, Edge.LAUNCH)


def _stream_edges(operations: Operations, op_point: Index, nominal: Nominal, edges: Edges) -> None:
    """Stream order; inside a replay also the node that ended last before; orphans keep their measured distance."""
    previous, start = operations.previous, operations.start
    alone = previous == NONE
    at = where(~operations.linked & alone)
    edges.add(np.zeros(len(at), op_point.dtype), op_point[at], start[at] - operations.trace.origin_ns, Edge.DISTANCE)
    at = where(~operations.linked & ~alone)
    before = previous[at]
    edges.add(op_point[before], op_point[at], start[at] - operations.end[before], Edge.DISTANCE, passes=True)
    same_graph = operations.same_graph
    for mask, ns, kind in (
        (operations.linked & ~alone & ~same_graph, nominal.queued_ns, Edge.STREAM),
        (operations.linked & same_graph, nominal.graph_ns, Edge.GRAPH),
    ):
        at = where(mask)
        before = previous[at]
        # An operation that overlaps its predecessor (programmatic dependent launch) keeps its overlap.
        weight = np.minimum(start[at] - operations.end[before], ns)
        edges.add(op_point[before], op_point[at], weight, kind, passes=True, modelled=False)
    source, at = operations.outlasting
    weight = np.minimum(start[at] - operations.end[source], nominal.queued_ns)
    edges.add(op_point[source], op_point[at], weight, Edge.STREAM, passes=True)
    source, node = nominal.branches
    gap = start[node] - operations.end[source]
    edges.add(op_point[source], op_point[node], np.minimum(gap, nominal.graph_ns), Edge.GRAPH, passes=True)


def _event_edges(
    operations: Operations, waits: Waits, op_point: Index, nominal: Nominal, edges: Edges
) -> None:  # fmt: skip
    """A stream waits for an event."""
    gap = operations.start[waits.waiter] - operations.end[waits.source]
    for mine, modelled in ((waits.named, False), (~waits.named, True)):
        source, waiter = waits.source[mine], waits.waiter[mine]
        weight = np.minimum(gap[mine], nominal.event_ns)
        edges.add(op_point[source], op_point[waiter], weight, Edge.EVENT, passes=True, modelled=modelled)


def _return_edges(
    host: Host, operations: Operations, calls: HostCalls, blocking: Blocking, queue: Int64, call_point: Index,
    return_point: Index, op_point: Index, edges: Edges,
) -> tuple[Int64, Int8, Int64]:  # fmt: skip
    """When a call that waits returns: its own cost at least, and after what it waits for, or would wait for.

    Returns the host time on these edges: number of the edge as it was added, cause, ns.
    """
    at = np.flatnonzero(calls.waits)
    row, begin, end = calls.row[at], calls.start[at], calls.end(at)
    is_copy = among(row, blocking.row[blocking.is_copy])
    is_queue = among(row, queue) & ~among(row, blocking.row)
    target = np.full(len(at), NONE, np.int64)
    target[is_copy] = own_operation(operations, row[is_copy])
    syncs = np.flatnonzero(~is_copy & ~is_queue)
    what = awaited(operations, row[syncs], begin[syncs])
    target[syncs] = waited_for(operations, what, begin[syncs], end[syncs])
    # A launch into a full queue returns when the operation that started last before its return starts.
    target[is_queue] = np.searchsorted(operations.start, end[is_queue], side="right") - 1
    released = np.where(is_queue, operations.start[target], operations.end[target])
    waited = (target != NONE) & (released > begin) & (released <= end)
    cost = end - begin
    # With nothing to wait for it takes no longer than others did that had nothing, or than it takes to return.
    frees = host.doing[row] == HostActivity.ALLOCATOR
    idle, late = cost[~is_copy & ~is_queue & ~waited & ~frees], (end - released)[waited & ~is_queue]
    intrinsic = min(
        int(idle.min()) if len(idle) else INTRINSIC_SYNC_NS,
        int(np.median(late)) if len(late) else INTRINSIC_SYNC_NS,
        INTRINSIC_SYNC_NS,
    )
    usual = _usual_call_ns(operations, queue)
    # One that had nothing to wait for would have waited had it come sooner.
    idle_at = np.flatnonzero(~waited[syncs])
    would = syncs[idle_at]
    target[would] = would_wait_for(operations, Awaited(*(column[idle_at] for column in what)), begin[would])
    would = would[target[would] != NONE]
    least = np.where(frees, cost, intrinsic)[would]
    released[would] = end[would] - np.minimum(least, end[would] - operations.end[target[would]])
    # What a call that frees memory takes is the allocator's, but for the wait: it frees when it has waited.
    own = np.where(is_queue, usual, np.where(frees, end - released, intrinsic))
    cost = np.where(waited, np.minimum(cost, own), cost)
    waited[would] = True
    first = edges.count
    edges.add(call_point[at], return_point[at], cost, Edge.THREAD, modelled=False)
    found = [(first + np.flatnonzero(frees), cost[frees])]
    for kind, mine in ((Edge.BLOCK, waited & ~is_queue), (Edge.QUEUE, waited & is_queue)):
        found.append((edges.count + np.flatnonzero(frees[mine]), (end - released)[mine & frees]))
        source = op_point[target[mine]]
        edges.add(source, return_point[at[mine]], (end - released)[mine], kind, passes=kind == Edge.BLOCK)
    everything = np.array([WAITS_FOR_ALL.search(name) is not None for name in operations.trace.names], np.bool_)
    wide = syncs[(everything[operations.trace.name_code[row[syncs]]] | frees[syncs]) & waited[syncs]]
    wait, source = last_of_other_streams(operations, target[wide], begin[wide], end[wide])
    wide = wide[wait]
    after = np.minimum(np.where(frees, cost, intrinsic)[wide], end[wide] - operations.end[source])
    found.append((edges.count + np.flatnonzero(frees[wide]), after[frees[wide]]))
    edges.add(op_point[source], return_point[at[wide]], after, Edge.BLOCK, passes=True)
    edge, ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return edge, np.full(len(edge), CODE["allocator"], np.int8), narrowed(ns)


def _usual_call_ns(operations: Operations, queue: Int64) -> int:
    """What a launch call takes when the queue has room: median of those that did not wait, else a short one."""
    if not len(queue):
        return 0
    trace, calls = operations.trace, operations.launch[operations.first]
    waited = among(calls, queue)
    if not waited.all():
        calls = calls[~waited]
    length = trace.end_ns[calls]
    length -= trace.start_ns[calls]
    if waited.all():
        return int(np.percentile(length, 10))
    return int(np.median(length, overwrite_input=True))


def _finish(
    trace: Trace, timelines: tuple[Timeline, ...], operations: Operations, calls: HostCalls, edges: Edges,
    on_host: list[tuple[Int64, Int8, Int64]], nominal: Nominal, extra: tuple[Int64, Int8, Int64],
) -> Graph:  # fmt: skip
    """Order the points so that every edge goes forward, sort the edges, find the delays that no edge explains.

    What was found so far is used up.
    """
    m, returns = len(operations.row), where(calls.waits)
    duration = durations(operations.end - operations.start)
    operations.without_edges()
    time = np.concatenate([[trace.origin_ns], operations.start, calls.start, calls.end(returns)])
    count = len(time)
    point = np.empty(count, np.int8)
    point[0] = Point.ROOT
    point[1 : 1 + m] = Point.OPERATION
    point[1 + m : 1 + m + len(calls.row)] = np.where(calls.mark, np.int8(Point.MARK), np.int8(Point.CALL))
    point[count - len(returns) :] = Point.RETURN
    row_of_call = calls.used_up()
    operations.start = operations.end = time[1 : 1 + m]  # starts are the same numbers, ends are not needed any more
    marks = np.flatnonzero(point == Point.MARK)
    mark_ns = time[marks]
    order = _order(operations, time, point)
    del time
    row, device = operations.used_up()
    place = np.empty(count, order.dtype)
    place[order] = places(count)
    ref = np.concatenate(
        [[NONE], places(m), row_of_call, row_of_call[returns]],
        dtype=index_type(max(len(trace), m)),
        casting="same_kind",
    )
    point, ref = point[order], ref[order]
    mark_ns = mark_ns[np.argsort(place[marks])]
    del order, row_of_call
    source, target, weight, flags, new_edge = edges.placed(place)
    operation_point = place[1 : 1 + m].copy()
    del place
    host_edge = np.concatenate([new_edge[edge] for edge, _, _ in on_host])
    host_cause, host_ns = (np.concatenate([part[i] for part in on_host]) for i in (1, 2))
    on_host.clear()
    del new_edge
    launch_edge = np.full(m, NONE, index_type(len(source)))
    launches = where(flags & np.int8(PASSES - 1) == Edge.LAUNCH)
    launch_edge[ref[target[launches]]] = launches
    del launches
    host_edge = np.concatenate([host_edge, launch_edge[extra[0]]])
    del launch_edge
    known = np.argsort(host_edge, kind="stable").astype(index_type(len(host_edge)))
    known = known[np.searchsorted(host_edge, 0, sorter=known) :]  # without those of edges that are gone
    host_edge = host_edge[known].astype(source.dtype, copy=False)
    host_cause = np.concatenate([host_cause, extra[1]], dtype=np.int8)[known]
    host_ns = np.concatenate([host_ns, narrowed(extra[2])])[known]
    del known
    graph = Graph(
        trace=trace, timelines=timelines, point=point, ref=ref,
        source=source, target=target, weight_ns=weight, flags=flags,
        row=row, device=device, duration_ns=duration,
        delay_ns=np.zeros(m, np.int64),
        host_edge=host_edge, host_cause=host_cause, host_ns=Nanoseconds.of(host_ns),
        mark_ns=mark_ns,
        operation_point=operation_point, queued_gap_ns=nominal.queued_ns, graph_gap_ns=nominal.graph_ns,
        launch_ns=nominal.launch_ns,
    )  # fmt: skip
    return replace(graph, delay_ns=_unexplained_delays(graph, nominal.explained_ns))


def _order(operations: Operations, time: Int64, point: Int8) -> Index:
    """The provisional points in an order in which every edge goes forward. Their times are used up.

    Equal times: operations, then returns, then calls; an operation never before its own launch.
    """
    rank = np.array([0, 1, 3, 2, 3], np.int8)[point]
    _move_behind(operations, time[1 : 1 + len(operations.row)], rank[1 : 1 + len(operations.row)])
    rank[0], time[0] = -1, min(int(time.min()), operations.trace.origin_ns)
    low, high = int(time[0]), int(time.max())
    if high - low >= LONGEST_NS:
        return np.lexsort((rank, time)).astype(index_type(len(time)))
    # Both as one number: a single sort, of what is three runs in order one behind the other.
    time -= low
    time *= 8
    time += rank
    return np.argsort(time, kind="stable").astype(index_type(len(time)))


def _move_behind(operations: Operations, start: Int64, rank: Int8) -> None:
    """Operations before their launches, by skewed clocks, move behind them, and those after them on their stream with them."""
    moved = [np.empty(0, np.int64)]
    for part in blocks(len(start)):
        launched = operations.launch_start(part)
        late = np.flatnonzero(operations.first[part] & (launched >= start[part])) + part.start
        rank[late] = 4
        moved.append(late[launched[late - part.start] > start[late]])
        start[late] = launched[late - part.start]
    for lane in ascending(operations.lane[np.concatenate(moved)]).tolist():
        mine = np.flatnonzero(operations.lane == lane)
        start[mine] = np.maximum.accumulate(start[mine])
        rank[mine[start[mine] > operations.trace.start_ns[operations.row[mine]]]] = 4


def _unexplained_delays(graph: Graph, explained_ns: int) -> Int64:
    """[m] how much later an operation started than its edges say, where that is more than noise."""
    delay = np.zeros(len(graph.row), np.int64)  # nearly all of them stay so, and take no memory
    compiled.call(
        loops.sweep_delays,
        (
            graph.source, graph.target, *graph.weight_ns.columns, graph.flags, PASSES, graph.duration_ns,
            graph.point == Point.OPERATION,
            graph.ref, graph.time_ns, explained_ns,
        ),
        (delay,),
    )  # fmt: skip
    return delay
