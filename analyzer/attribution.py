"""GPU wall time split into causes that add up to it exactly.

Every nanosecond of a device's window gets one cause. While an operation runs it is the operation's (compute before
communication before copies); an idle one belongs to what the gap's closing operation was waiting for:

    gap start ───── host's side ───── launch starts ── submitted side ── gap end, the closing operation starts
                    what the launching thread did       call running, then returned

The causes are worked out once for the whole trace as *pieces* of idle time; a window or a step is a clip of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from analyzer import compiled
from analyzer.device_timeline import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    FIRST_COPY,
    SET,
    Blocking,
    Gaps,
    Timeline,
    blocking_calls,
    exposed,
)
from analyzer.host import Doing, Host, Segments
from analyzer.intervals import Intervals, Overlaps, ascending, overlaps, remainder, union
from analyzer.trace import NONE, Bool, Int8, Int64, Kind

CATEGORIES = {
    "ideal": "useful",
    "tail": "implicit-barriers",
    "ramp": "memory-bubbles",
    "activation-traffic": "activation-round-trips",
    "inefficiency": "kernel-inefficiency",
    "unmodelled": "kernel-time",
    "exposed-communication": "communication",
    "exposed-copy": "copies",
    "memset": "copies",
    "dataloader": "dataloader-gaps",
    "host-sync": "implicit-barriers",
    "dependency-wait": "implicit-barriers",
    "framework": "launch-overhead",
    "python": "launch-overhead",
    "launch-call": "launch-overhead",
    "launch-latency": "launch-overhead",
    "queued-gap": "launch-overhead",
    "copy-staging": "copies",
    "allocator": "host-stalls",
    "module-load": "host-stalls",
    "compile": "host-stalls",
    "garbage-collection": "host-stalls",
    "profiler": "profiler",
    "host-unknown": "unattributed",
    "device-unknown": "unattributed",
}
BUSY = (
    "ideal", "tail", "ramp", "activation-traffic", "inefficiency", "unmodelled", "exposed-communication", "exposed-copy",
    "memset",
)  # fmt: skip
IDLE = tuple(cause for cause in CATEGORIES if cause not in BUSY)
CODE = {cause: code for code, cause in enumerate(IDLE)}
SIDES = ("host", "submitted", "unlinked")
HOST, SUBMITTED, UNLINKED = range(3)
START_UP = ("module-load", "allocator", "compile")

# Causes that a draining synchronisation may stand behind: what the host does to refill the queue.
GENERIC = tuple(CODE[cause] for cause in ("framework", "python", "launch-call", "host-unknown"))

CREDIT_LAUNCHES = 1_000  # a queue this deep has refilled, whatever a synchronisation before it cost
LONG_CALL_NS = 200_000  # beyond the median launch call, at a kernel's first launch: code is being loaded
STAGING_NS = 50_000  # a copy call that runs longer before its copy starts is filling a staging buffer
GAPS_AT_ONCE = 4_096
HOLE_NS = 1_000_000  # a longer hole in a thread without frames is not taken for Python
UNEXPLAINED_NS = (50_000, 200_000)  # bounds of what a submitted operation may wait and still be explained
UNEXPLAINED_GAPS = 20  # … in median queued gaps


@dataclass(frozen=True)
class Pieces:
    """Idle time cut by cause; k disjoint pieces in time order that cover every gap exactly."""

    start: Int64
    end: Int64
    gap: Int64
    """[k] index into the timeline's gaps."""
    cause: Int8
    """[k] index into IDLE."""
    side: Int8
    """[k] index into SIDES."""
    row: Int64
    """[k] the record that decided (for a refill: the blocking call), -1 when nothing was recorded."""
    modelled: Bool
    """[k] rests on a threshold or an inference, not on a record alone."""

    def __len__(self) -> int:
        return len(self.start)


class Item(NamedTuple):
    """A part of the wall time."""

    when: str
    cause: str
    grade: str
    side: str | None
    detail: str
    ns: int

    @property
    def category(self) -> str:
        return CATEGORIES[self.cause]


@dataclass(frozen=True)
class Attribution:
    """The causes of one device's idle time, for the whole trace."""

    timeline: Timeline
    pieces: Pieces
    blocking: Blocking
    launch_latency_ns: int
    """Median from call start to operation start of launches into an idle device; 0 when there is none."""
    queued_gap_ns: int | None
    """Median gap between operations of a stream when the next one was already queued; None when there is none."""
    explained_ns: int
    """The longest wait of a submitted operation that counts as explained."""

    def partition(self, start: int, end: int) -> list[Item]:
        """The wall time of [start, end) by cause; the parts add up to it exactly."""
        sums: dict[Item, int] = defaultdict(int)
        for what, busy_ns in exposed(self.timeline, start, end):
            sums[_busy_item(what)] += busy_ns
        pieces = self.pieces
        ns = np.minimum(pieces.end, end) - np.maximum(pieces.start, start)
        inside = np.flatnonzero(ns > 0)
        is_copy = np.isin(pieces.row, self.blocking.row[self.blocking.is_copy])
        refill = (pieces.cause == CODE["host-sync"]).astype(np.int64) * (1 + is_copy)
        key = ((pieces.cause.astype(np.int64) * 3 + pieces.side) * 2 + pieces.modelled) * 3 + refill
        totals = np.zeros(int(key[inside].max()) + 1 if len(inside) else 0, np.int64)
        np.add.at(totals, key[inside], ns[inside])
        for number in np.flatnonzero(totals).tolist():
            rest, detail = divmod(number, 3)
            rest, modelled = divmod(rest, 2)
            cause, side = divmod(rest, 3)
            item = Item(
                "idle", IDLE[cause], "modelled" if modelled else "measured", SIDES[side],
                ("", "sync", "blocking copy")[detail], 0,
            )  # fmt: skip
            sums[item] += int(totals[number])
        items = [item._replace(ns=ns) for item, ns in sums.items() if ns]
        return sorted(items, key=lambda item: -item.ns)

    def by_cause(self, start: int, end: int) -> dict[str, int]:
        """ns of each cause in [start, end)."""
        sums: dict[str, int] = defaultdict(int)
        for item in self.partition(start, end):
            sums[item.cause] += item.ns
        return dict(sums)

    @cached_property
    def pieces_of_gap(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for piece, gap in enumerate(self.pieces.gap.tolist()):
            found[gap].append(piece)
        return found


def _busy_item(what: int) -> Item:
    if what == COMPUTE:
        return Item("compute", "unmodelled", "measured", None, "", 0)
    if what == COMMUNICATION:
        return Item("communication", "exposed-communication", "measured", None, "", 0)
    if what == SET:
        return Item("copy", "memset", "measured", None, "", 0)
    direction, memory = COPIES[what - FIRST_COPY]
    return Item("copy", "exposed-copy", "measured", None, f"{direction} {memory}".strip(), 0)


def attribute(timeline: Timeline) -> Attribution:
    """The cause of every idle nanosecond of the device."""
    gaps = timeline.gaps
    blocking = blocking_calls(timeline)
    latency = _launch_latency(timeline, gaps)
    queued = _queued_gap(gaps)
    low, high = UNEXPLAINED_NS
    explained = int(min(max(low, UNEXPLAINED_GAPS * (queued or 0)), high))
    calls = _Calls(timeline)
    pieces = _sorted(
        [
            *_host_side(timeline, gaps, blocking, calls),
            *_submitted_side(timeline, gaps, calls, latency, explained),
            *_unlinked(gaps),
        ]
    )
    pieces = _refills(timeline, pieces, blocking)
    return Attribution(timeline, pieces, blocking, latency, queued, explained)


def _launch_latency(timeline: Timeline, gaps: Gaps) -> int:
    """Median call start to operation start of launches into an idle device; else the shortest of any launch, unless
    even that one waited in a queue."""
    into_idle = gaps.interior & ~gaps.unlinked & (timeline.launch_start[gaps.closing] >= gaps.start)
    into_idle &= gaps.submitted < gaps.end
    if into_idle.any():
        return int(np.median((gaps.end - gaps.submitted)[into_idle]))
    delays = (timeline.start - timeline.launch_start)[timeline.linked]
    return min(int(delays[delays >= 0].min()), UNEXPLAINED_NS[0]) if (delays >= 0).any() else 0


def _queued_gap(gaps: Gaps) -> int | None:
    queued = gaps.interior & ~gaps.unlinked & gaps.after & (gaps.returned == gaps.start)
    return int(np.median((gaps.end - gaps.start)[queued])) if queued.any() else None


@dataclass
class _Calls:
    """What long runtime calls were about."""

    timeline: Timeline

    @cached_property
    def slow_first(self) -> set[int]:
        """Launch calls that exceed the median by 200 µs and are the first launch of their kernel, or load a module."""
        timeline, trace = self.timeline, self.timeline.trace
        linked = np.flatnonzero(timeline.linked & timeline.is_kernel)
        if not len(linked):
            return set()
        _, first = np.unique(trace.name_code[timeline.row[linked]], return_index=True)
        launches, firsts = ascending(timeline.launch[linked]), timeline.launch[linked[first]]
        usual = np.median(trace.end_ns[launches] - trace.start_ns[launches])
        slow = firsts[trace.end_ns[firsts] - trace.start_ns[firsts] > usual + LONG_CALL_NS]
        return set(slow.tolist()) | self._enclosing(Doing.MODULE) | self._around_module_loading()

    @cached_property
    def with_allocation(self) -> set[int]:
        return self._enclosing(Doing.ALLOCATOR)

    def _enclosing(self, doing: Doing) -> set[int]:
        """Calls that contain a record of this class."""
        host = self.timeline.host
        inner = np.flatnonzero((host.doing == doing) & (host.parent != NONE))
        parents = host.parent[inner]
        return set(parents[host.trace.kind[parents] == Kind.CALL].tolist())

    def _around_module_loading(self) -> set[int]:
        """Calls during which the profiler saw lazy loading, where it does not say on which thread."""
        trace, host = self.timeline.trace, self.timeline.host
        loading = np.flatnonzero((trace.kind == Kind.OVERHEAD) & (host.doing == Doing.MODULE) & (trace.thread == NONE))
        if not len(loading):
            return set()
        launches = ascending(self.timeline.launch[self.timeline.linked])
        span = union(trace.start_ns[loading], trace.end_ns[loading])
        first = np.searchsorted(span.start, trace.start_ns[launches], side="left")
        within = first < len(span.start)
        within[within] &= span.end[first[within]] <= trace.end_ns[launches[within]]
        return set(launches[within].tolist())


def _host_side(timeline: Timeline, gaps: Gaps, blocking: Blocking, calls: _Calls) -> Iterable[Pieces]:
    """What the launching thread did before the closing operation was submitted (rules 2 to 4)."""
    parts = Intervals(gaps.start, gaps.submitted)
    keep = np.flatnonzero((parts.end > parts.start) & ~gaps.unlinked)
    left = Overlaps(parts.start[keep], parts.end[keep], keep, np.full(len(keep), NONE))
    host = timeline.host
    passes = list(_candidates(gaps, host))
    returned = np.sort(timeline.trace.end_ns[blocking.row])

    def by_record(found: Overlaps, segments: Segments) -> Pieces:
        return _merged(_record_pieces(timeline, found, segments, blocking, calls), returned)

    def by_hole(found: Overlaps, segments: Segments) -> Pieces:
        return _pieces(found, CODE["python"], HOST, segments.row[found.right], modelled=True)

    active = {t: _active(s) for t, s in host.segments.items()}
    for threads in passes:
        left, pieces = _claim(left, threads, active, by_record)
        yield from pieces
    if not timeline.trace.has_frames:
        holes = {t: _holes(timeline, s) for t, s in host.segments.items()}
        for threads in passes:
            left, pieces = _claim(left, threads, holes, by_hole)
            yield from pieces
    yield _pieces(left, CODE["host-unknown"], HOST, _waiting_rows(left, gaps, host))


def _candidates(gaps: Gaps, host: Host) -> Iterable[Int64]:
    """[g] threads to ask, best first: the closing launch's, the previous gap's, then the others by launches."""
    yield gaps.thread
    known = np.maximum.accumulate(np.where(gaps.thread != NONE, np.arange(len(gaps)), -1))
    previous = np.concatenate([[-1], known[:-1]]) if len(gaps) else known
    yield np.where(previous >= 0, gaps.thread[previous], NONE)
    for thread in host.launching:
        yield np.full(len(gaps), thread, np.int64)


def _claim(
    left: Overlaps, threads: Int64, segments: dict[int, Segments], give: Callable[[Overlaps, Segments], Pieces]
) -> tuple[Overlaps, list[Pieces]]:
    """Give the parts that are left (`left.left` is their gap) to their gap's thread where it has a segment.

    Block by block: what a gap of a large trace holds in records is many times its own size.
    """
    claimed: list[Pieces] = []
    if not len(left.start):
        return left, claimed
    wanted = threads[left.left]
    rest = []
    for thread in ascending(wanted).tolist():
        everything = np.flatnonzero(wanted == thread)
        if thread not in segments:
            rest.append(Overlaps(*(column[everything] for column in left)))
            continue
        for first in range(0, len(everything), GAPS_AT_ONCE):
            mine = everything[first : first + GAPS_AT_ONCE]
            parts = Intervals(left.start[mine], left.end[mine])
            found = overlaps(parts, segments[thread].span)
            free = remainder(parts, found)
            rest.append(free._replace(left=left.left[mine[free.left]]))
            if len(found.start):
                claimed.append(give(found._replace(left=left.left[mine[found.left]]), segments[thread]))
    merged = Overlaps(*(np.concatenate(columns) for columns in zip(*rest, strict=True)))
    order = np.argsort(merged.start, kind="stable")
    return Overlaps(*(column[order] for column in merged)), claimed


def _merged(pieces: Pieces, returned: Int64) -> Pieces:
    """Neighbours that touch in the same gap for the same cause as one, with the record of the longest.

    A piece still begins where one began after a blocking call returned: from there on the call's credit counts.
    """
    if len(pieces) < 2:
        return pieces
    begins = np.ones(len(pieces), np.bool_)
    begins[1:] = pieces.start[1:] != pieces.end[:-1]
    for column in (pieces.gap, pieces.cause, pieces.modelled):
        begins[1:] |= column[1:] != column[:-1]
    after = np.searchsorted(pieces.start, returned, side="left")
    begins[after[after < len(pieces)]] = True
    first = np.flatnonzero(begins)
    last = np.concatenate([first[1:] - 1, [len(pieces) - 1]])
    length = pieces.end - pieces.start
    longest = np.flatnonzero(length == np.maximum.reduceat(length, first)[np.cumsum(begins) - 1])
    of = longest[np.searchsorted(longest, first, side="left")]
    return Pieces(
        pieces.start[first], pieces.end[last], pieces.gap[first], pieces.cause[first], pieces.side[first],
        pieces.row[of], pieces.modelled[first],
    )  # fmt: skip


def _active(segments: Segments) -> Segments:
    return segments.where(segments.doing != Doing.WAITING)


def _holes(timeline: Timeline, segments: Segments) -> Segments:
    """Short holes between the records of a thread that records operators; the row is the record before."""
    start, end = segments.end[:-1], segments.start[1:]
    short = (end > start) & (end - start <= HOLE_NS) & _python_holes(timeline, segments)
    return Segments(
        start[short], end[short], segments.row[:-1][short], np.full(int(short.sum()), Doing.PYTHON, np.int8)
    )


def _python_holes(timeline: Timeline, segments: Segments) -> bool:
    """Holes of this thread are Python: it records operators, and nothing records frames."""
    return not timeline.trace.has_frames and bool((timeline.trace.kind[segments.row] == Kind.OPERATOR).any())


def _waiting_rows(left: Overlaps, gaps: Gaps, host: Host) -> Int64:
    """[k] for unexplained parts the waiting frame of the closing thread, where it shows one."""
    rows = np.full(len(left.start), NONE, np.int64)
    for thread, segments in host.segments.items():
        at = np.searchsorted(segments.start, left.start, side="right") - 1
        inside = (
            (at >= 0) & (left.start < segments.end[np.maximum(at, 0)])
            if len(segments.start)
            else np.zeros(len(rows), np.bool_)
        )
        mine = inside & ((gaps.thread[left.left] == thread) | (rows == NONE))
        rows[mine] = segments.row[at[mine]]
    return rows


_BY_DOING = np.full(len(Doing), CODE["host-unknown"], np.int8)
for _doing, _cause in {
    Doing.PROFILER: "profiler", Doing.GARBAGE: "garbage-collection", Doing.DATALOADER: "dataloader",
    Doing.COMPILE: "compile", Doing.SYNC: "host-sync", Doing.COPY_CALL: "launch-call", Doing.ALLOCATOR: "allocator",
    Doing.MODULE: "module-load", Doing.CALL: "launch-call", Doing.OPERATOR: "framework", Doing.PYTHON: "python",
    Doing.RANGE: "python",
}.items():  # fmt: skip
    _BY_DOING[_doing] = CODE[_cause]


def _record_pieces(
    timeline: Timeline, found: Overlaps, segments: Segments, blocking: Blocking, calls: _Calls
) -> Pieces:  # fmt: skip
    cause, modelled = _record_causes(
        timeline, segments.row[found.right], segments.doing[found.right], found.end - found.start, blocking, calls
    )
    side = np.full(len(cause), HOST, np.int8)
    return Pieces(found.start, found.end, found.left, cause, side, segments.row[found.right], modelled)


def _record_causes(
    timeline: Timeline, row: Int64, doing: Int8, ns: Int64, blocking: Blocking, calls: _Calls
) -> tuple[Int8, Bool]:
    """Cause of stretches of host time by their deciding record, and whether it rests on more than the record."""
    cause = _BY_DOING[doing]
    copy_call = doing == Doing.COPY_CALL
    cause[copy_call & np.isin(row, blocking.row)] = CODE["host-sync"]
    staging = copy_call & (cause == CODE["launch-call"]) & (ns > STAGING_NS)
    cause[staging] = CODE["copy-staging"]
    first = (doing == Doing.CALL) & np.isin(row, np.fromiter(calls.slow_first, np.int64))
    cause[first] = CODE["module-load"]
    soft = doing == Doing.RANGE
    if timeline.trace.format == "nsight":  # an NVTX range says what the program was about, not that Python ran
        cause[soft] = CODE["host-unknown"]
    return cause, staging | first | soft


def causes_of_segments(timeline: Timeline, blocking: Blocking) -> Iterable[tuple[int, Segments, Int8]]:
    """For each launching thread the cause that each stretch of its time is, should the device wait for it."""
    calls = _Calls(timeline)
    for thread, segments in timeline.host.segments.items():
        ns = segments.end - segments.start
        yield thread, segments, _record_causes(timeline, segments.row, segments.doing, ns, blocking, calls)[0]


def silent_cause(timeline: Timeline, segments: Segments, ns: Int64) -> Int8:
    """[k] the cause of holes of these lengths between a thread's records."""
    python = _python_holes(timeline, segments) & (ns <= HOLE_NS)
    return np.where(python, CODE["python"], CODE["host-unknown"]).astype(np.int8)


def _submitted_side(timeline: Timeline, gaps: Gaps, calls: _Calls, latency: int, explained: int) -> Iterable[Pieces]:
    """From the launch call's start to the operation's (rules 6 and 7)."""
    launch = np.where(gaps.closing == NONE, NONE, timeline.launch[gaps.closing])
    every = np.flatnonzero(~gaps.unlinked & (gaps.submitted < gaps.end))
    begin, running, end = gaps.submitted[every], gaps.returned[every], gaps.end[every]
    row = launch[every]
    into_idle = timeline.launch_start[gaps.closing[every]] >= gaps.start[every]
    late = np.minimum(begin + latency, running)
    yield _stretch(begin, late, every, "launch-latency", row)
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
    yield _stretch(wait, end, every, "device-unknown", row)


def _call_causes(timeline: Timeline, row: Int64, stretch: Int64, calls: _Calls) -> Int8:
    cause = np.full(len(row), CODE["launch-call"], np.int8)
    copy_call = timeline.host.doing[row] == Doing.COPY_CALL
    cause[copy_call & (stretch > STAGING_NS)] = CODE["copy-staging"]
    cause[np.isin(row, np.fromiter(calls.slow_first, np.int64))] = CODE["module-load"]
    cause[np.isin(row, np.fromiter(calls.with_allocation, np.int64))] = CODE["allocator"]
    return cause


def _stretch(start: Int64, end: Int64, gap: Int64, cause: str, row: Int64) -> Pieces:
    keep = np.flatnonzero(end > start)
    n = len(keep)
    return Pieces(
        start[keep], end[keep], gap[keep], np.full(n, CODE[cause], np.int8), np.full(n, SUBMITTED, np.int8), row[keep],
        np.zeros(n, np.bool_),
    )  # fmt: skip


def _pieces(found: Overlaps, cause: int, side: int, row: Int64, *, modelled: bool = False) -> Pieces:
    n = len(found.start)
    return Pieces(
        found.start, found.end, found.left, np.full(n, cause, np.int8), np.full(n, side, np.int8), row,
        np.full(n, modelled, np.bool_),
    )  # fmt: skip


def _unlinked(gaps: Gaps) -> Iterable[Pieces]:
    at = np.flatnonzero(gaps.unlinked)
    none = np.full(len(at), NONE)
    yield _pieces(Overlaps(gaps.start[at], gaps.end[at], at, none), CODE["device-unknown"], UNLINKED, none)


def _sorted(parts: list[Pieces]) -> Pieces:
    order = np.argsort(np.concatenate([part.start for part in parts]), kind="stable")
    return Pieces(
        *(np.concatenate([getattr(part, name) for part in parts])[order] for name in Pieces.__dataclass_fields__)
    )


def _refills(timeline: Timeline, pieces: Pieces, blocking: Blocking) -> Pieces:
    """Rule 5: generic host time after a blocking call is the call's, as far as the call had waited on running work."""
    generic = np.flatnonzero((pieces.side == HOST) & np.isin(pieces.cause, GENERIC))
    calls = np.flatnonzero(blocking.busy_ns > 0)
    if not len(generic) or not len(calls):
        return pieces
    trace = timeline.trace
    calls = calls[np.argsort(trace.end_ns[blocking.row[calls]], kind="stable")]
    returned = trace.end_ns[blocking.row[calls]]
    launches = np.sort(trace.start_ns[ascending(timeline.launch[timeline.linked])])
    taken = {kind: np.zeros(len(generic), np.int64) for kind in ("sync", "copy")}
    source = {kind: np.full(len(generic), NONE, np.int64) for kind in ("sync", "copy")}
    compiled.call(
        spend_credit,
        len(generic) + len(calls),
        (
            pieces.start[generic], pieces.end[generic] - pieces.start[generic],
            np.searchsorted(launches, pieces.start[generic]), returned, blocking.busy_ns[calls],
            np.searchsorted(launches, returned), blocking.is_copy[calls], blocking.row[calls], CREDIT_LAUNCHES,
        ),
        (taken["sync"], taken["copy"], source["sync"], source["copy"]),
    )  # fmt: skip
    return _relabel(pieces, generic, taken, source)


def spend_credit(
    start: Any, length: Any, launched: Any, returned: Any, credit: Any, launched_at: Any, is_copy: Any, row: Any, lapse: int,
    by_sync: Any, by_copy: Any, sync_row: Any, copy_row: Any,
) -> None:  # fmt: skip
    """For each piece how much of it the blocking calls before it pay, oldest first. Both sides in time order."""
    oldest = 0
    spent = 0
    for i in range(len(start)):
        need = length[i]
        while oldest < len(returned) and need > 0 and returned[oldest] <= start[i]:
            if launched[i] - launched_at[oldest] > lapse or spent >= credit[oldest]:
                oldest += 1
                spent = 0
                continue
            pays = min(need, credit[oldest] - spent)
            spent += pays
            need -= pays
            if is_copy[oldest]:
                by_copy[i] += pays
                if copy_row[i] < 0:
                    copy_row[i] = row[oldest]
            else:
                by_sync[i] += pays
                if sync_row[i] < 0:
                    sync_row[i] = row[oldest]


def _relabel(pieces: Pieces, generic: Int64, taken: dict[str, Int64], source: dict[str, Int64]) -> Pieces:
    """Cut each generic piece into what syncs pay, what blocking copies pay, and what stays."""
    start, end = pieces.start[generic], pieces.end[generic]
    first, second = start + taken["sync"], start + taken["sync"] + taken["copy"]
    others = np.ones(len(pieces), np.bool_)
    others[generic] = False
    parts = [_take(pieces, np.flatnonzero(others))]
    for kind, low, high in (("sync", start, first), ("copy", first, second)):
        keep = np.flatnonzero(high > low)
        part = _take(pieces, generic[keep])
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
    part = _take(pieces, generic[keep])
    parts.append(Pieces(second[keep], end[keep], part.gap, part.cause, part.side, part.row, part.modelled))
    return _sorted(parts)


def _take(pieces: Pieces, at: Int64) -> Pieces:
    return Pieces(*(getattr(pieces, name)[at] for name in Pieces.__dataclass_fields__))
