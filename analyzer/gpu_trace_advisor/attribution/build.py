"""The cause of every idle nanosecond of a device: the host's side, the submitted side, and what synchronizations leave behind."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from gpu_trace_advisor.attribution import (
    GENERIC,
    HOST,
    STAGING_NS,
    SUBMITTED,
    UNLINKED,
    Attribution,
    Idle,
    Pieces,
    take,
)
from gpu_trace_advisor.attribution.calls import LongCalls
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.attribution.host_side import host_side
from gpu_trace_advisor.attribution.pieces import Cut, cut, in_time_order, joined, stretch, with_cause
from gpu_trace_advisor.attribution.polling import Polls, polls
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.compact import blocks, constant, where
from gpu_trace_advisor.columns.intervals import Intervals, Overlaps, overlaps, remainder
from gpu_trace_advisor.runtime.heap import give_back_small
from gpu_trace_advisor.timelines.device import MIGRATION, Blocking, Gaps, Timeline, blocking_calls
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import NONE, Index, Int8, Int64

UNEXPLAINED_NS = (50_000, 200_000)  # bounds of what a submitted operation may wait and still be explained
UNEXPLAINED_GAPS = 20  # … in median queued gaps


def attribute(timeline: Timeline) -> Attribution:
    """The cause of every idle nanosecond of the device."""
    gaps = timeline.gaps
    blocking = blocking_calls(timeline)
    calls = LongCalls(timeline)
    latency = _launch_latency(timeline, gaps, calls)
    queued = _queued_gap(gaps)
    low, high = UNEXPLAINED_NS
    explained = int(min(max(low, UNEXPLAINED_GAPS * (queued or 0)), high))
    found = chain(
        host_side(timeline, gaps, blocking, calls),
        _submitted_side(timeline, gaps, calls, latency, explained),
        _unlinked(timeline, gaps, explained),
    )
    idle = _drained(timeline, joined([cut(pieces, gaps) for pieces in found], gaps), blocking, latency)
    polled = polls(timeline, blocking)
    idle = _polled(timeline, idle, polled)
    measured = measured_latency_ns(timeline, gaps, calls)
    timeline.forget()
    give_back_small()
    return Attribution(timeline, idle, blocking, latency, measured, queued, explained, calls, polled)


def _met_idle(timeline: Timeline, gaps: Gaps, calls: LongCalls) -> Index:
    """Gaps that a launch ended which found the device idle; cold launches are not the usual ones."""
    at: Index = where(~gaps.unlinked & (gaps.submitted < gaps.end))
    at = at[timeline.trace.start_ns[gaps.launch[at]] >= gaps.start[at]]
    if calls.slow_first:
        at = at[~among(gaps.launch[at], np.fromiter(calls.slow_first, np.int64))]
    return at


def measured_latency_ns(timeline: Timeline, gaps: Gaps, calls: LongCalls) -> int:
    """Median from call to start of launches that met an idle device, of the first operation's alone where there is no other;
    0 where there is none. What is assumed elsewhere where there is none is no median."""
    at = _met_idle(timeline, gaps, calls)
    inside = at[gaps.interior[at]]
    at = inside if len(inside) else at
    return int(np.median(gaps.end[at] - gaps.submitted[at])) if len(at) else 0


def _launch_latency(timeline: Timeline, gaps: Gaps, calls: LongCalls) -> int:
    """Median call start to operation start of launches into an idle device; else the shortest of any launch, unless
    even that one waited in a queue."""
    at = _met_idle(timeline, gaps, calls)
    at = at[gaps.interior[at]]
    if len(at):
        return int(np.median(gaps.end[at] - gaps.submitted[at]))
    linked = where(timeline.linked)
    delays = timeline.start[linked] - timeline.trace.start_ns[timeline.launch[linked]]
    return min(int(delays[delays >= 0].min()), UNEXPLAINED_NS[0]) if (delays >= 0).any() else 0


def _queued_gap(gaps: Gaps) -> int | None:
    queued = where(gaps.interior & ~gaps.unlinked & gaps.after & (gaps.returned == gaps.start))
    return int(np.median(gaps.end[queued] - gaps.start[queued])) if len(queued) else None


def _submitted_side(timeline: Timeline, gaps: Gaps, calls: LongCalls, latency: int, explained: int) -> Iterable[Pieces]:
    """From the launch call's start to the operation's (rules 6 and 7)."""
    submitted = where(~gaps.unlinked & (gaps.submitted < gaps.end))
    for part in blocks(len(submitted)):
        yield from _submitted(timeline, gaps, submitted[part], calls, latency, explained)


def _submitted(
    timeline: Timeline, gaps: Gaps, every: Index, calls: LongCalls, latency: int, explained: int
) -> Iterable[Pieces]:  # fmt: skip
    """The same in these gaps."""
    begin, running, end = gaps.submitted[every], gaps.returned[every], gaps.end[every]
    row = timeline.launch[gaps.closing[every]]
    into_idle = timeline.trace.start_ns[row] >= gaps.start[every]
    late = np.minimum(begin + latency, running)
    yield stretch(begin, late, every, "launch-latency", row)
    call_from = late
    call_to = np.maximum(late, running)
    long_cause = _call_causes(timeline, row, call_to - call_from, calls)
    found = np.flatnonzero(call_to > call_from)
    yield Pieces(
        call_from[found], call_to[found], every[found], long_cause[found], np.full(len(found), SUBMITTED, np.int8),
        row[found], long_cause[found] != CODE["launch-call"],
    )  # fmt: skip
    wait = np.minimum(call_to + explained, end)
    cause = np.where(gaps.after[every], CODE["queued-gap"], CODE["dependency-wait"]).astype(np.int8)
    cause[into_idle] = CODE["launch-latency"]  # by definition it lasts from the call's start to the operation's
    found = np.flatnonzero(wait > call_to)
    yield Pieces(
        call_to[found], wait[found], every[found], cause[found], np.full(len(found), SUBMITTED, np.int8), row[found],
        cause[found] == CODE["dependency-wait"],
    )  # fmt: skip
    yield stretch(wait, end, every, "device-unknown", row)


def _call_causes(timeline: Timeline, row: Index, stretch: Int64, calls: LongCalls) -> Int8:
    cause = np.full(len(row), CODE["launch-call"], np.int8)
    copy_call = (timeline.host.doing[row] == HostActivity.COPY_CALL) & ~among(row, calls.to_host)
    cause[copy_call & (stretch > STAGING_NS)] = CODE["copy-staging"]
    cause[np.isin(row, np.fromiter(calls.loading, np.int64))] = CODE["module-load"]
    cause[np.isin(row, np.fromiter(calls.with_allocation, np.int64))] = CODE["allocator"]
    return cause


def _unlinked(timeline: Timeline, gaps: Gaps, explained: int) -> Iterable[Pieces]:
    """Gaps before operations that no call launched. Migrations of managed memory have none by nature: what is short before
    them is a page fault, before that the host did what it did before it touched the page."""
    at = where(gaps.unlinked)
    start, end = (gaps.start, gaps.end) if gaps.unlinked.all() else (gaps.start[at], gaps.end[at])
    closing = gaps.closing[at]
    migrates = (closing != NONE) & (timeline.op_class[closing] == MIGRATION)
    if migrates.any():
        faults, mine = np.maximum(start[migrates], end[migrates] - explained), at[migrates]
        none = constant(NONE, len(mine), np.int32)
        for cause, begin, stop in (("host-unknown", start[migrates], faults), ("page-fault", faults, end[migrates])):
            lasts = stop > begin
            found = Overlaps(begin[lasts], stop[lasts], mine[lasts], none[lasts])
            yield with_cause(found, CODE[cause], UNLINKED, none[lasts], modelled=True)
        start, end, at = start[~migrates], end[~migrates], at[~migrates]
    none = constant(NONE, len(at), np.int32)
    yield with_cause(Overlaps(start, end, at, none), CODE["device-unknown"], UNLINKED, none)


def _drained(timeline: Timeline, idle: Idle, blocking: Blocking, latency: int) -> Idle:
    """Rule 5: after a blocking call that had waited for running work the device stays empty for one launch latency at
    least, where that is no unusual one; generic host time of that length is the call's, what the host does after it is the
    host's own."""
    calls = np.flatnonzero(blocking.busy_ns > 0)
    if not latency:
        return idle
    returned = timeline.trace.end_ns[blocking.row[calls]]
    order = np.argsort(returned, kind="stable")
    row, returned = blocking.row[calls[order]], returned[order]
    until = returned + min(latency, UNEXPLAINED_NS[1])
    until[:-1] = np.minimum(until[:-1], returned[1:])
    return _renamed(idle, Intervals(returned, until), "host-sync", row)


def _polled(timeline: Timeline, idle: Idle, found: Polls) -> Idle:
    """Rule 4: generic host time between the end of what the host polls for and the launch that follows, as long as usual."""
    since = timeline.end[found.operation]
    order = np.argsort(since, kind="stable")
    begun = timeline.trace.start_ns[found.call]
    until = np.minimum(begun, since + found.usual_ns)[order]
    since = since[order]
    until[:-1] = np.minimum(until[:-1], since[1:])
    return _renamed(idle, Intervals(since, until), "host-poll")


def _renamed(idle: Idle, spans: Intervals, cause: str, row: Index | None = None) -> Idle:
    """Generic host time inside these spans (disjoint, in order) is of this cause, and rests on these records, where told."""
    if not len(spans.start) or not len(idle):
        return idle
    cuts = list[Cut]()
    for part in idle.parts():
        generic = where((part.side == HOST) & np.isin(part.cause, GENERIC))
        pieces = Intervals(part.start[generic], part.end[generic])
        hit = overlaps(pieces, spans)
        if not len(hit.start):
            cuts.append(cut(part, idle.gaps))
            continue
        free = remainder(pieces, hit)
        others = np.ones(len(part), np.bool_)
        others[generic] = False
        rest, mine = take(part, generic[free.left]), take(part, generic[hit.left])
        renamed = np.full(len(hit.start), CODE[cause], np.int8)
        record = mine.row if row is None else row[hit.right]
        merged = in_time_order([
            take(part, np.flatnonzero(others)),
            Pieces(free.start, free.end, rest.gap, rest.cause, rest.side, rest.row, rest.modelled),
            Pieces(hit.start, hit.end, mine.gap, renamed, mine.side, record, np.ones(len(renamed), np.bool_)),
        ])  # fmt: skip
        cuts.append(cut(merged, idle.gaps))
    return joined(cuts, idle.gaps)
