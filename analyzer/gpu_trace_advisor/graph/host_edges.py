"""Edges of host work: a thread's order, hand-over between threads, and what the host did meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpu_trace_advisor.attribution import Attribution
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.attribution.host_side import causes_of_segments, python_holes, silent_cause
from gpu_trace_advisor.columns.compact import constant, narrowed, places, where
from gpu_trace_advisor.columns.intervals import Intervals, overlaps, remainder
from gpu_trace_advisor.graph import Edge
from gpu_trace_advisor.graph.operations import Edges, HostCalls
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.host import Host, HostActivity
from gpu_trace_advisor.trace.model import NONE, Index, Int8, Int64, Trace

SPANS_AT_ONCE = 4_096
HANDOVER_HOLE_NS = 50_000  # a shorter hole on a thread is not a wait for another one


@dataclass(frozen=True)
class Spans:
    """Stretches of a thread's time that host edges stand for."""

    edge: Index
    """Number of the edge, in the order in which they were added."""
    start: Int64
    end: Int64
    thread: Index
    group: Index
    """Those of one group and thread are disjoint."""


class Released(NamedTuple):
    """Calls that the host makes when it has seen an operation end, k of them."""

    call: Index
    """[k] index into the calls."""
    point: Index
    """[k] of the operation."""
    done: Int64
    """[k] its end."""
    usual_ns: Int64
    """[k] from there to the call, usually."""


def add_host_edges(
    trace: Trace, host: Host, calls: HostCalls, call_point: Int64, return_point: Int64, edges: Edges,
    released: Released,
) -> tuple[Spans, Index]:  # fmt: skip
    """Thread order, hand-over and polling; the first call of a thread is host work since the start. Beside the spans the
    numbers of the edges from what was polled for, whose spans begin when the host has usually seen it."""
    c = len(calls.row)
    first = np.concatenate([[True], calls.thread[1:] != calls.thread[:-1]]) if c else np.empty(0, np.bool_)
    before = np.arange(c) - 1
    from_return = ~first & (return_point[before] != NONE)
    source = np.where(first, 0, np.where(from_return, return_point[before], call_point[before]))
    begin = np.where(first, trace.origin_ns, np.where(from_return, calls.end(before), calls.start[before]))
    if c and not len(released.call) and (calls.thread == calls.thread[0]).all():  # nobody hands over
        edges.add(source, call_point, np.maximum(calls.start - begin, 0), Edge.THREAD, modelled=False)
        alike = (constant(int(calls.thread[0]), c, np.int32), constant(0, c, np.int32))
        late = calls.start if (calls.start >= begin).all() else np.maximum(calls.start, begin)
        return Spans(places(c), begin, late, *alike), places(0)
    giver, woken = _handovers(host, calls, np.where(first, trace.origin_ns, np.maximum(calls.end(before), begin)))
    polled = np.zeros(c, np.bool_)
    polled[released.call] = True
    handed = (giver != NONE) & ~polled
    giver_returns = handed & (return_point[giver] != NONE)
    from_giver = np.where(giver_returns, return_point[giver], call_point[giver])
    giver_time = np.where(giver_returns, calls.end(giver), calls.start[giver])
    keep = ~handed & ~polled
    edges.add(source[keep], call_point[keep], np.maximum(calls.start - begin, 0)[keep], Edge.THREAD, modelled=False)
    edges.add(from_giver[handed], call_point[handed], np.maximum(calls.start - giver_time, 0)[handed], Edge.HANDOVER)
    reacts = calls.start[released.call] - released.done
    edges.add(released.point, call_point[released.call], reacts, Edge.BLOCK, passes=True)
    # Thread order still holds where another thread or the device did so: not before its own last call was done.
    floor = (handed | polled) & ~first
    own = np.where(from_return, 0, calls.end(before) - calls.start[before])
    edges.add(source[floor], call_point[floor], own[floor], Edge.THREAD, modelled=False)
    # Until the waiting thread woke the time was the other one's.
    woken = np.clip(woken, giver_time, np.maximum(calls.start, giver_time))[handed]
    number = places(c + int(floor.sum()))
    counts = [int(mask.sum()) for mask in (keep, handed, polled)]
    kept, given, seen, own_call = np.split(number, np.cumsum(counts))
    noticed = released.done + np.minimum(released.usual_ns, reacts)
    start = np.concatenate([begin[keep], giver_time[handed], woken, noticed, begin[floor]])
    stop = np.concatenate([
        calls.start[keep], woken, calls.start[handed], calls.start[released.call], (begin + own)[floor]
    ])  # fmt: skip
    thread = calls.thread.astype(np.int32)
    return Spans(
        np.concatenate([kept, given, given, seen, own_call]), start, np.maximum(stop, start),
        np.concatenate([
            thread[keep], thread[giver[handed]], thread[handed], thread[released.call], thread[floor]
        ]),
        np.concatenate([0 * kept, 3 + thread[handed], 0 * given + 1, 0 * seen, 0 * own_call + 2], dtype=np.int32),
    ), seen  # fmt: skip


def _handovers(host: Host, calls: HostCalls, since: Int64) -> tuple[Int64, Int64]:
    """[c] the call of another thread that handed over to this one, -1 for none; and when this one went on.

    A thread with a hole of over 50 µs, without operator or call in it, during which another launching thread made a
    call or marked a step, was waiting for that thread: autograd's workers, and the thread that waits for them.
    """
    giver, woken = np.full(len(calls.row), NONE, np.int64), calls.start.copy()
    by_start = np.argsort(calls.start, kind="stable")
    trace_start, trace_end = host.trace.origin_ns, int(host.trace.end_ns.max())
    for thread in host.segments:  # few, however many there are
        first, last = np.searchsorted(calls.thread, (thread, thread + 1))
        mine = first + np.flatnonzero(calls.start[first:last] - since[first:last] > HANDOVER_HOLE_NS)
        if not len(mine):
            continue
        others = by_start[calls.thread[by_start] != thread]
        if not len(others):
            continue
        segments = host.segments[thread]
        active = segments.where((segments.doing != HostActivity.WAITING) & (segments.doing != HostActivity.RANGE)).span
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


def host_time(attribution: Attribution, spans: Spans) -> tuple[Int64, Int8, Int64]:
    """What the host did on each host edge, by cause: the edge's number as it was added, cause, ns."""
    found: list[Any] = [(np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0, np.int32))]
    timeline = attribution.timeline
    for thread, segments, causes in causes_of_segments(attribution):
        python = python_holes(timeline, segments)
        of_thread = where((spans.thread == thread) & (spans.end > spans.start))
        for group in np.flatnonzero(np.bincount(spans.group[of_thread])).tolist():
            mine = of_thread[spans.group[of_thread] == group]
            begun = spans.start[mine]
            if (begun[1:] < begun[:-1]).any():
                mine = mine[np.argsort(begun, kind="stable")]
            del begun
            # Block by block: a span of a large trace holds many times its own size in records.
            for block in np.split(mine, np.arange(SPANS_AT_ONCE, len(mine), SPANS_AT_ONCE)):
                span = Intervals(spans.start[block], spans.end[block])
                met = overlaps(span, segments.span)
                silent = remainder(span, met)
                silence = silent.end - silent.start
                ns = np.concatenate([met.end - met.start, silence])
                cause = np.concatenate([causes[met.right], silent_cause(silence, python)])
                edge = spans.edge[block[np.concatenate([met.left, silent.left])]]
                found.append(_summed(edge, cause, ns))
    columns: list[Any] = list(zip(*found, strict=True))
    del found
    for i, column in enumerate(columns):
        columns[i] = np.concatenate(column)
        del column
    edge, cause, ns = columns
    return edge, cause, ns


def _summed(edge: Int64, cause: Int8, ns: Int64) -> tuple[Int64, Int8, Int64]:
    """One entry for each edge and cause."""
    key = edge.astype(np.int64) * len(IDLE) + cause
    order = np.argsort(key, kind="stable")
    key, ns = key[order], ns[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.empty(0, np.int64)
    total = np.add.reduceat(ns, first) if len(first) else ns
    kept = narrowed(key[first] // len(IDLE), np.int32)
    return np.asarray(kept), (key[first] % len(IDLE)).astype(np.int8), narrowed(total)
