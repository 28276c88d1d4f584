"""Idle time before the closing operation was submitted: what the launching thread did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gpu_trace_advisor.attribution import HOST, STAGING_NS, Attribution, Pieces
from gpu_trace_advisor.attribution.calls import LongCalls
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.attribution.pieces import with_cause
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.compact import blocks, constant, index_type, places, where
from gpu_trace_advisor.columns.intervals import Intervals, Overlaps, ascending, overlaps, remainder
from gpu_trace_advisor.timelines.device import Blocking, Gaps, Timeline
from gpu_trace_advisor.timelines.host import Host, HostActivity, Segments
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int8, Int64, Kind

CREATED_NS = 10_000  # an event created faster than this loads nothing
GAPS_AT_ONCE = 4_096
HOLE_NS = 1_000_000  # a longer hole in a thread without frames is not taken for Python


def host_side(timeline: Timeline, gaps: Gaps, blocking: Blocking, calls: LongCalls) -> Iterable[Pieces]:
    """What the launching thread did before the closing operation was submitted (rules 2 to 4)."""
    parts = Intervals(gaps.start, gaps.submitted)
    keep = where((parts.end > parts.start) & ~gaps.unlinked)
    if not len(keep):
        return
    host = timeline.host
    passes = list(_candidates(gaps, host))
    returned = np.sort(timeline.trace.end_ns[blocking.row])

    def by_record(found: Overlaps, segments: Segments) -> Pieces:
        return _merged(_record_pieces(timeline, found, segments, blocking, calls), returned)

    def by_hole(found: Overlaps, segments: Segments) -> Pieces:
        return with_cause(found, CODE["python"], HOST, segments.row[found.right], modelled=True)

    def by_capture(found: Overlaps, segments: Segments) -> Pieces:
        return with_cause(found, CODE["graph-capture"], HOST, segments.row[found.right])

    def by_system_call(found: Overlaps, segments: Segments) -> Pieces:
        return with_cause(found, CODE["host-unknown"], HOST, segments.row[found.right])

    calls_of_system = host.system_calls
    active = {t: _active(s) for t, s in host.segments.items()}
    holes = {} if timeline.trace.has_frames else {t: _holes(timeline, s) for t, s in host.segments.items()}
    for block in blocks(len(keep)):
        some = keep[block]
        left = Overlaps(parts.start[some], parts.end[some], some, constant(NONE, len(some), np.int32))
        for thread in calls.captures:  # whatever the thread does meanwhile
            left, pieces = _claim(left, np.where(gaps.thread == thread, thread, NONE), calls.captures, by_capture)
            yield from pieces
        for segments, give, asked in (
            (active, by_record, passes),
            (calls_of_system, by_system_call, passes[:1]),
            (holes, by_hole, passes),
        ):
            for threads in asked if segments else ():
                left, pieces = _claim(left, threads, segments, give)
                yield from pieces
        yield with_cause(left, CODE["host-unknown"], HOST, _waiting_rows(left, gaps, host))


def _candidates(gaps: Gaps, host: Host) -> Iterable[Index]:
    """[g] threads to ask, best first: the closing launch's, the previous gap's, then the others by launches."""
    yield gaps.thread
    number = places(len(gaps))
    known = np.maximum.accumulate(np.where(gaps.thread != NONE, number, number.dtype.type(NONE)))
    previous = np.full_like(known, NONE)
    previous[1:] = known[:-1]
    yield np.where(previous >= 0, gaps.thread[previous], np.int32(NONE))
    for thread in host.launching:
        yield constant(thread, len(gaps), np.int32)


def _claim(
    left: Overlaps, threads: Index, segments: dict[int, Segments], give: Callable[[Overlaps, Segments], Pieces]
) -> tuple[Overlaps, list[Pieces]]:
    """Give the parts that are left (`left.left` is their gap) to their gap's thread where it has a segment.

    Block by block: what a gap of a large trace holds in records is many times its own size.
    """
    claimed: list[Pieces] = []
    if not len(left.start):
        return left, claimed
    wanted = threads[left.left]
    known = np.isin(wanted, np.array(list(segments), np.int64))
    rest = [Overlaps(*(column[~known] for column in left))]
    by_thread = where(known)
    by_thread = by_thread[np.argsort(wanted[by_thread], kind="stable")]
    present = ascending(wanted[by_thread])
    bounds = np.searchsorted(wanted[by_thread], present)
    for thread, everything in zip(present.tolist(), np.split(by_thread, bounds[1:]), strict=False):
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
    return segments.where(segments.doing != HostActivity.WAITING)


def _holes(timeline: Timeline, segments: Segments) -> Segments:
    """Short holes between the records of a thread that records operators; the row is the record before."""
    start, end = segments.end[:-1], segments.start[1:]
    short = (end > start) & (end - start <= HOLE_NS) & python_holes(timeline, segments)
    return Segments(
        start[short], end[short], segments.row[:-1][short], np.full(int(short.sum()), HostActivity.PYTHON, np.int8)
    )


def python_holes(timeline: Timeline, segments: Segments) -> bool:
    """Holes of this thread are Python: it records operators, and nothing records frames."""
    return not timeline.trace.has_frames and bool((timeline.trace.kind[segments.row] == Kind.OPERATOR).any())


def _waiting_rows(left: Overlaps, gaps: Gaps, host: Host) -> Index:
    """[k] for unexplained parts the waiting frame of the closing thread, where it shows one."""
    rows = np.full(len(left.start), NONE, index_type(len(host.trace)))
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


_BY_DOING = np.full(len(HostActivity), CODE["host-unknown"], np.int8)
for _doing, _cause in {
    HostActivity.PROFILER: "profiler", HostActivity.GARBAGE: "garbage-collection", HostActivity.DATALOADER: "dataloader",
    HostActivity.COMPILE: "compile", HostActivity.SYNC: "host-sync", HostActivity.COPY_CALL: "launch-call",
    HostActivity.ALLOCATOR: "allocator", HostActivity.MODULE: "module-load", HostActivity.CALL: "launch-call",
    HostActivity.OPERATOR: "framework", HostActivity.PYTHON: "python", HostActivity.RANGE: "python",
}.items():  # fmt: skip
    _BY_DOING[_doing] = CODE[_cause]


def _record_pieces(
    timeline: Timeline, found: Overlaps, segments: Segments, blocking: Blocking, calls: LongCalls
) -> Pieces:  # fmt: skip
    cause, modelled = _record_causes(
        timeline, segments.row[found.right], segments.doing[found.right], found.end - found.start, blocking, calls
    )
    side = np.full(len(cause), HOST, np.int8)
    return Pieces(found.start, found.end, found.left, cause, side, segments.row[found.right], modelled)


def _record_causes(
    timeline: Timeline, row: Index, doing: Int8, ns: Int64, blocking: Blocking, calls: LongCalls
) -> tuple[Int8, Bool]:
    """Cause of stretches of host time by their deciding record, and whether it rests on more than the record."""
    cause = _BY_DOING[doing]
    copy_calls, other_calls = (
        np.flatnonzero(doing == HostActivity.COPY_CALL),
        np.flatnonzero(doing == HostActivity.CALL),
    )
    cause[copy_calls[among(row[copy_calls], blocking.row)]] = CODE["host-sync"]
    staging = copy_calls[(cause[copy_calls] == CODE["launch-call"]) & (ns[copy_calls] > STAGING_NS)]
    staging = staging[~among(row[staging], calls.to_host)]
    cause[staging] = CODE["copy-staging"]
    first = other_calls[among(row[other_calls], np.fromiter(calls.slow_first, np.int64))]
    cause[first] = CODE["module-load"]
    operators = np.flatnonzero(doing == HostActivity.OPERATOR)
    cause[operators[calls.on_cpu[row[operators]]]] = CODE["cpu-compute"]
    names = timeline.trace.name_code[row]
    cause[calls.creates_events[names] & (ns < CREATED_NS)] = CODE["launch-call"]
    cause[(doing == HostActivity.CALL) & calls.polls[names]] = CODE["host-poll"]
    cause[calls.instantiates[names]] = CODE["graph-capture"]
    if len(calls.failed):
        cause[among(row, calls.failed)] = CODE["failed-call"]
    soft = doing == HostActivity.RANGE
    modelled = soft.copy()
    modelled[staging] = modelled[first] = True
    if timeline.trace.format == "nsight":  # an NVTX range says what the program was about, not that Python ran
        cause[soft] = CODE["host-unknown"]
    return cause, modelled


def causes_of_segments(attribution: Attribution) -> Iterable[tuple[int, Segments, Int8]]:
    """For each launching thread the cause that each stretch of its time is, should the device wait for it."""
    timeline, blocking, calls = attribution.timeline, attribution.blocking, attribution.calls
    for thread, segments in timeline.host.segments.items():
        cause = np.empty(len(segments.row), np.int8)
        for part in blocks(len(cause)):
            row, doing, ns = segments.row[part], segments.doing[part], segments.end[part] - segments.start[part]
            cause[part] = _record_causes(timeline, row, doing, ns, blocking, calls)[0]
        if thread in calls.captures:
            within = overlaps(segments.span, calls.captures[thread].span)
            cause[within.left] = CODE["graph-capture"]
        yield thread, segments, cause


def silent_cause(ns: Int64, python: bool) -> Int8:
    """[k] the cause of holes of these lengths between a thread's records; `python` says whether short ones are Python."""
    return np.where(python & (ns <= HOLE_NS), np.int8(CODE["python"]), np.int8(CODE["host-unknown"]))
