"""What an edge of each kind takes as a rule, from the trace's own medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_trace_advisor.attribution import STAGING_NS, SUBMITTED, Attribution
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among, present
from gpu_trace_advisor.columns.compact import where
from gpu_trace_advisor.graph.operations import Operations
from gpu_trace_advisor.graph.waits import Waits
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int8, Int64, Kind

LAUNCH_LATENCY_NS = 200_000  # what took longer to start than this is no example of what a launch takes
QUEUED_GAP_NS = 1_000  # between operations of a stream, when the trace shows none that was queued behind another


@dataclass(frozen=True)
class Nominal:
    what: Int8
    """[m] kind of the operation's launch."""
    launch_of: Int64
    """[kinds] from launch call to operation."""
    launch_ns: int
    queued_ns: int
    graph_ns: int
    branches: tuple[Int64, Int64]
    event_ns: int
    """From the end of what a stream waits for to the start of what waited."""
    explained_ns: int

    def launch(self, at: Any = slice(None)) -> Int64:
        """From launch call to operation, for these operations."""
        found: Int64 = self.launch_of[self.what[at]]
        return found


def nominal_weights(
    attributions: Sequence[Attribution], operations: Operations, waits: Waits, excess: tuple[Int64, Int8, Int64]
) -> Nominal:  # fmt: skip
    """The trace's own medians."""
    explained = max(a.explained_ns for a in attributions)
    branches = _branches(operations)
    queued_ns, graph_ns = _stream_gaps(operations, waits, branches[1], explained)
    what, launch_of, launch_ns = _launch_latencies(attributions, operations, waits, excess, queued_ns)
    event_ns = _event_latency(operations, waits, explained)
    return Nominal(what, launch_of, launch_ns, queued_ns, graph_ns, branches, event_ns, explained)


def _stream_gaps(operations: Operations, waits: Waits, nodes: Int64, explained: int) -> tuple[int, int]:
    """Medians between an operation that was queued in time and the one before on its stream; and inside a replay."""
    trace, previous = operations.trace, operations.previous
    candidate = operations.linked & (previous != NONE)
    at = where(candidate)
    before = previous[at]
    gap = operations.start[at] - operations.end[before]
    near = (gap >= 0) & (gap <= explained)
    at, before, gap = at[near], before[near], gap[near]
    inside = operations.same_graph[at]
    waiting = ~inside & (trace.end_ns[operations.launch[at]] <= operations.end[before])
    waiting &= ~_among(waits.waiter, candidate)[at]
    inside &= ~_among(nodes, candidate)[at]
    queued_ns = int(np.median(gap[waiting])) if waiting.any() else QUEUED_GAP_NS
    return queued_ns, int(np.median(gap[inside])) if inside.any() else queued_ns


def _among(operations: Int64, like: Bool) -> Bool:
    """[m] one of these operations."""
    mask = np.zeros_like(like)
    mask[operations] = True
    return mask


def _launch_latencies(
    attributions: Sequence[Attribution], operations: Operations, waits: Waits, excess: tuple[Int64, Int8, Int64],
    queued_ns: int,
) -> tuple[Int8, Int64, int]:  # fmt: skip
    """[m] kind of each operation's launch; of each kind, and over all: medians from launch call to operation."""
    trace = operations.trace
    delay = operations.launch_start()
    np.subtract(operations.start, delay, out=delay)
    special = excess[1] != CODE["launch-call"]
    np.subtract.at(delay, excess[0][special], excess[2][special])
    at = where(operations.first & (delay >= 0) & (delay <= LAUNCH_LATENCY_NS))  # of use
    delay = delay[at]
    before = operations.previous[at]
    begins = before == NONE
    closing = np.zeros(len(operations.row), np.bool_)
    for a in attributions:
        timeline, gaps = a.timeline, a.timeline.gaps
        ends = where(gaps.interior & ~gaps.unlinked)
        by = gaps.closing[ends]
        by = by[trace.start_ns[timeline.launch[by]] >= gaps.start[ends]]
        closing[np.searchsorted(operations.row, timeline.row[by])] = True
    idle = closing[at] & (begins | (operations.end[before] <= operations.launch_start(at)))
    # Where none of a kind went into an idle device: those that waited for nothing on their own stream.
    free = begins | (operations.start[at] - operations.end[before] > 2 * queued_ns)
    free &= ~_among(waits.waiter, closing)[at]
    usual = [a.launch_latency_ns for a in attributions if a.launch_latency_ns]
    overall = int(np.median(delay[idle])) if idle.any() else (int(np.median(usual)) if usual else 0)
    what = trace.kind[operations.row] * np.int8(2) + operations.graph
    by_kind = np.full(int(what.max(initial=0)) + 1, overall, np.int64)
    for group in present(what).tolist():
        mine = what[at] == group
        for clean in (mine & idle, mine & free):
            if clean.any():
                by_kind[group] = int(np.median(delay[clean]))
                break
    return what, by_kind, overall


def _event_latency(operations: Operations, waits: Waits, explained_ns: int) -> int:
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


def _branches(operations: Operations) -> tuple[Int64, Int64]:
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


def call_excess(attributions: Sequence[Attribution], operations: Operations) -> tuple[Int64, Int8, Int64]:
    """(operation, cause, ns) for launch calls that ran on before their operation started: loading, staging, allocating."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.int64))]
    causes = [CODE[c] for c in ("launch-call", "module-load", "allocator", "copy-staging")]
    for a in attributions:
        for part in a.pieces.parts():
            at = np.flatnonzero((part.side == SUBMITTED) & np.isin(part.cause, causes))
            closing = a.timeline.row[a.timeline.gaps.closing[part.gap[at]]]
            operation = np.searchsorted(operations.row, closing)
            found.append((operation, part.cause[at], (part.end - part.start)[at]))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))  # type: ignore[return-value]


def within_delay(
    operations: Operations, nominal: Nominal, excess: tuple[Int64, Int8, Int64], waits: Waits, queue: Int64
) -> tuple[Int64, Int8, Int64]:  # fmt: skip
    """The same, together no more than what each operation started later than is usual for its kind.

    Gaps tell nothing of the time when the device was busy with another stream: where an operation started no sooner
    than its call let it, although its stream and its events were ready, the call's whole excess counts.
    """
    order = np.lexsort((excess[1] == CODE["launch-call"], excess[0]))
    operation, cause, ns = excess[0][order], excess[1][order], excess[2][order]
    trace, start = operations.trace, operations.start
    room = np.maximum(start - operations.launch_start() - nominal.launch(), 0)
    before = np.cumsum(ns) - ns
    before -= before[np.searchsorted(operation, operation)] if len(operation) else 0
    ns = np.clip(room[operation] - before, 0, ns)
    np.subtract.at(room, operation, ns)
    at = where(operations.first & (room > min(STAGING_NS, nominal.explained_ns, nominal.queued_ns, nominal.event_ns)))
    begun = start[at]
    at = at[trace.end_ns[operations.launch[at]] + nominal.launch(at) >= begun]
    is_copy = trace.kind[operations.row[at]] == Kind.COPY
    known = np.where(is_copy, CODE["copy-staging"], CODE["launch-call"]).astype(np.int8)
    noise = np.where(is_copy, STAGING_NS, nominal.explained_ns)
    if len(operation):  # sorted: where it stands first
        place = np.minimum(np.searchsorted(operation, at), len(operation) - 1)
        found = operation[place] == at
        known[found] = cause[place[found]]
        noise[found] = max(nominal.queued_ns, nominal.event_ns)
    before = operations.previous[at]
    ready = np.where(before != NONE, operations.end[before], trace.origin_ns)
    place = np.searchsorted(at, waits.waiter)
    waits_here = np.flatnonzero(place < len(at))
    waits_here = waits_here[at[place[waits_here]] == waits.waiter[waits_here]]
    np.maximum.at(ready, place[waits_here], operations.end[waits.source[waits_here]])
    held = (start[at] - ready > noise) & (room[at] > noise) & ~among(operations.launch[at], queue)
    late = at[held]
    return (
        np.concatenate([operation, late]), np.concatenate([cause, known[held]]), np.concatenate([ns, room[late]]),
    )  # fmt: skip
