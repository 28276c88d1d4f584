"""The cause of every idle nanosecond of a device: the host's side, the submitted side, and what synchronisations left behind."""

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
from gpu_trace_advisor.attribution.calls import Calls
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.attribution.host_side import host_side
from gpu_trace_advisor.attribution.pieces import Cut, cut, in_time_order, joined, stretch, with_cause
from gpu_trace_advisor.columns.compact import blocks, constant, index_type, where
from gpu_trace_advisor.columns.intervals import Overlaps, ascending
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.heap import give_back_small
from gpu_trace_advisor.timelines.device import Blocking, Gaps, Timeline, blocking_calls
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import NONE, Index, Int8, Int64

CREDIT_LAUNCHES = 1_000  # a queue this deep has refilled, whatever a synchronisation before it cost
UNEXPLAINED_NS = (50_000, 200_000)  # bounds of what a submitted operation may wait and still be explained
UNEXPLAINED_GAPS = 20  # … in median queued gaps


def attribute(timeline: Timeline) -> Attribution:
    """The cause of every idle nanosecond of the device."""
    gaps = timeline.gaps
    blocking = blocking_calls(timeline)
    latency = _launch_latency(timeline, gaps)
    queued = _queued_gap(gaps)
    low, high = UNEXPLAINED_NS
    explained = int(min(max(low, UNEXPLAINED_GAPS * (queued or 0)), high))
    calls = Calls(timeline)
    found = chain(
        host_side(timeline, gaps, blocking, calls),
        _submitted_side(timeline, gaps, calls, latency, explained),
        _unlinked(gaps),
    )
    idle = _refills(timeline, joined([cut(pieces, gaps) for pieces in found], gaps), blocking)
    timeline.forget()
    give_back_small()
    return Attribution(timeline, idle, blocking, latency, queued, explained, calls)


def _launch_latency(timeline: Timeline, gaps: Gaps) -> int:
    """Median call start to operation start of launches into an idle device; else the shortest of any launch, unless
    even that one waited in a queue."""
    at = where(gaps.interior & ~gaps.unlinked & (gaps.submitted < gaps.end))
    at = at[timeline.trace.start_ns[gaps.launch[at]] >= gaps.start[at]]
    if len(at):
        return int(np.median(gaps.end[at] - gaps.submitted[at]))
    linked = where(timeline.linked)
    delays = timeline.start[linked] - timeline.trace.start_ns[timeline.launch[linked]]
    return min(int(delays[delays >= 0].min()), UNEXPLAINED_NS[0]) if (delays >= 0).any() else 0


def _queued_gap(gaps: Gaps) -> int | None:
    queued = where(gaps.interior & ~gaps.unlinked & gaps.after & (gaps.returned == gaps.start))
    return int(np.median(gaps.end[queued] - gaps.start[queued])) if len(queued) else None


def _submitted_side(timeline: Timeline, gaps: Gaps, calls: Calls, latency: int, explained: int) -> Iterable[Pieces]:
    """From the launch call's start to the operation's (rules 6 and 7)."""
    submitted = where(~gaps.unlinked & (gaps.submitted < gaps.end))
    for part in blocks(len(submitted)):
        yield from _submitted(timeline, gaps, submitted[part], calls, latency, explained)


def _submitted(
    timeline: Timeline, gaps: Gaps, every: Index, calls: Calls, latency: int, explained: int
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


def _call_causes(timeline: Timeline, row: Index, stretch: Int64, calls: Calls) -> Int8:
    cause = np.full(len(row), CODE["launch-call"], np.int8)
    copy_call = timeline.host.doing[row] == HostActivity.COPY_CALL
    cause[copy_call & (stretch > STAGING_NS)] = CODE["copy-staging"]
    cause[np.isin(row, np.fromiter(calls.loading, np.int64))] = CODE["module-load"]
    cause[np.isin(row, np.fromiter(calls.with_allocation, np.int64))] = CODE["allocator"]
    return cause


def _unlinked(gaps: Gaps) -> Iterable[Pieces]:
    at = where(gaps.unlinked)
    start, end = (gaps.start, gaps.end) if gaps.unlinked.all() else (gaps.start[at], gaps.end[at])
    none = constant(NONE, len(at), np.int32)
    yield with_cause(Overlaps(start, end, at, none), CODE["device-unknown"], UNLINKED, none)


def _refills(timeline: Timeline, idle: Idle, blocking: Blocking) -> Idle:
    """Rule 5: generic host time after a blocking call is the call's, as far as the call had waited on running work."""
    calls = np.flatnonzero(blocking.busy_ns > 0)
    if not len(calls) or not len(idle):
        return idle
    trace, cuts = timeline.trace, list[Cut]()
    calls = calls[np.argsort(trace.end_ns[blocking.row[calls]], kind="stable")]
    returned = trace.end_ns[blocking.row[calls]]
    launches = np.sort(trace.start_ns[ascending(timeline.launch[timeline.linked])])
    credit = (
        returned, blocking.busy_ns[calls], np.searchsorted(launches, returned), blocking.is_copy[calls], blocking.row[calls],
    )  # fmt: skip
    gaps, so_far = idle.gaps, np.zeros(2, np.int64)
    for part in idle.parts():
        generic = where((part.side == HOST) & np.isin(part.cause, GENERIC))
        start = part.start[generic]
        taken = {kind: np.zeros(len(generic), np.int64) for kind in ("sync", "copy")}
        source = {kind: np.full(len(generic), NONE, index_type(len(trace))) for kind in ("sync", "copy")}
        compiled.call(
            loops.spend_credit,
            (start, part.end[generic] - start, np.searchsorted(launches, start), *credit, CREDIT_LAUNCHES),
            (so_far, taken["sync"], taken["copy"], source["sync"], source["copy"]),
        )
        cuts.append(cut(_relabel(part, generic, taken, source), gaps))
    del idle, part
    return joined(cuts, gaps)


def _relabel(pieces: Pieces, generic: Index, taken: dict[str, Int64], source: dict[str, Int64]) -> Pieces:
    """Cut each generic piece into what syncs pay, what blocking copies pay, and what stays."""
    start, end = pieces.start[generic], pieces.end[generic]
    first, second = start + taken["sync"], start + taken["sync"] + taken["copy"]
    others = np.ones(len(pieces), np.bool_)
    others[generic] = False
    parts = [take(pieces, np.flatnonzero(others))]
    for kind, low, high in (("sync", start, first), ("copy", first, second)):
        keep = np.flatnonzero(high > low)
        part = take(pieces, generic[keep])
        n = len(keep)
        parts.append(
            Pieces(
                low[keep],
                high[keep],
                part.gap,
                np.full(n, CODE["host-sync"], np.int8),
                part.side,
                source[kind][keep],
                np.ones(n, np.bool_),
            )
        )
    keep = np.flatnonzero(end > second)
    part = take(pieces, generic[keep])
    parts.append(Pieces(second[keep], end[keep], part.gap, part.cause, part.side, part.row, part.modelled))
    return in_time_order(parts)
