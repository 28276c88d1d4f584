"""GPU wall time split into causes that add up to it exactly.

Every nanosecond of a device's window gets one cause. While an operation runs it is the operation's (compute before
communication before copies); an idle one belongs to what the gap's closing operation was waiting for:

    gap start ───── host's side ───── launch starts ── submitted side ── gap end, the closing operation starts
                    what the launching thread did       call running, then returned

1. *The closing operation* starts at the gap's end; of several it is the one submitted first. One without length closes
   none. Where the trace has no launch of it, the gap is `unlinked` and `device-unknown`.
2. *The thread* asked about the host's side is that of the closing launch, where it has no record or waits for another
   thread that of the previous gap's launch, then the other launching threads, those with most launches first; workers of
   loaders never. Else the time is `host-unknown`, with the system call of the closing launch's thread where one is
   recorded. Without frames a hole of up to 1 ms between the records of a thread that records operators is `python`.
3. *The innermost record* of the thread decides: `framework` for an operator, `python` for a frame, `allocator`,
   `module-load` or `launch-call` for a runtime call. Around them `profiler`, `garbage-collection`, `dataloader` and
   `compile`, in this order, win over what is inside. A user's range counts where nothing else is recorded.
4. *A blocking call* is `host-sync`: one that synchronises by its name, or a copy call that returned after its copy had
   ended, and is synchronous by its name or took 20 µs. Where no call blocks, but the next launch follows the end of the
   same kernel over and over, the usual time between them is `host-poll`, of whatever is generic (rule 5).
5. *A drain* ends one launch latency, at most 200 µs, after its blocking call returned: `framework`, `python`,
   `launch-call` and `host-unknown` in that time are `host-sync` too, where the call had waited for running work. What the
   host does after that is the host's own.
6. *While the launch call runs*, the usual latency is `launch-latency`; beyond it the call is `allocator` or `module-load`
   where it allocates or loads, `copy-staging` for a copy call of more than 50 µs, else `launch-call`.
7. *After it has returned*, the wait is `queued-gap` where an operation of the stream ended at the gap's start, else
   `dependency-wait`, into an idle device still `launch-latency`; what is longer than 20 median queued gaps (at least 50,
   at most 200 µs) is `device-unknown`.

The causes are worked out once for the whole trace as *pieces* of idle time; a window or a step is a clip of them.
`gpu_trace_advisor.roofline.kernel_time` splits the time of kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.attribution.calls import LongCalls
from gpu_trace_advisor.attribution.causes import (
    BLOCKING_COPY,
    CAUSES,
    CODE,
    IDLE,
    SYNC,
    SYSTEM_CALL,
    WAITING,
    label,
    phrase,
)
from gpu_trace_advisor.attribution.polling import Polls
from gpu_trace_advisor.columns.compact import blocks, where
from gpu_trace_advisor.columns.durations import Nanoseconds
from gpu_trace_advisor.columns.intervals import Intervals
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    FIRST_COPY,
    MIGRATION,
    SET,
    Blocking,
    Gaps,
    Timeline,
    exposed,
)
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int8, Int64, Kind

SIDES = ("host", "submitted", "unlinked")
HOST, SUBMITTED, UNLINKED = range(3)
DETAILS = ("", SYNC, BLOCKING_COPY, SYSTEM_CALL, WAITING)
START_UP = ("module-load", "allocator", "compile")
# Causes that a draining synchronisation may stand behind: what the host does to refill the queue.
GENERIC = tuple(CODE[cause] for cause in ("framework", "python", "launch-call", "host-unknown"))
STAGING_NS = 50_000  # a copy call that runs longer before its copy starts is filling a staging buffer


@dataclass(frozen=True)
class Pieces:
    """Idle time cut by cause; k disjoint pieces in time order that cover every gap exactly."""

    start: Int64
    end: Int64
    gap: Index
    """[k] index into the timeline's gaps."""
    cause: Int8
    """[k] index into IDLE."""
    side: Int8
    """[k] index into SIDES."""
    row: Index
    """[k] the record that decided (for a refill: the blocking call), -1 when nothing was recorded."""
    modelled: Bool
    """[k] rests on a threshold or an inference, not on a record alone."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Idle:
    """Pieces in half the room, k of them: as those of a gap follow each other, each ends where the next one begins.

    Its properties are columns of `Pieces`, worked out anew each time: what looks at all of them goes by `parts`.
    """

    gaps: Gaps = field(repr=False)
    first: Index
    """[g + 1] where each gap's pieces begin."""
    offset: Nanoseconds
    """[k] ns from the gap's start."""
    row: Index
    code: Int8
    """[k] cause, side and whether it is modelled, as one number."""

    def __len__(self) -> int:
        return len(self.row)

    def part(self, at: slice) -> Pieces:
        """Those from one place to another."""
        first, stop, _ = at.indices(len(self))
        bounds = np.array([first, stop], self.first.dtype)  # of another type the whole column would be converted
        low, high = (np.searchsorted(self.first, bounds, side="right") - 1).tolist()
        here = slice(low, high + 1)  # gaps
        bounds = np.clip(self.first[low : high + 2], first, stop)
        count = np.diff(bounds)
        start = np.repeat(self.gaps.start[here], count[: len(self.gaps) - low])
        start += self.offset[at]
        end = np.empty_like(start)
        end[:-1] = start[1:]
        if stop < len(self):
            end[-1:] = self.gaps.start[high] + self.offset[stop : stop + 1]
        closes = np.flatnonzero((count > 0) & (self.first[low + 1 : high + 2] <= stop))
        end[bounds[closes + 1] - first - 1] = self.gaps.end[low + closes]
        gap = np.repeat(np.arange(low, low + len(count), dtype=self.first.dtype), count)
        code = self.code[at]
        return Pieces(start, end, gap, code // 6, code // 2 % 3, self.row[at], code % 2 > 0)

    def parts(self) -> Iterator[Pieces]:
        """All of them, block by block."""
        return map(self.part, blocks(len(self)))

    def clipped(self, start: int, end: int) -> Iterator[tuple[Pieces, Int64]]:
        """Block by block with the ns of each inside [start, end), which are no more than 0 outside."""
        for part in self.parts():
            yield part, np.minimum(part.end, end) - np.maximum(part.start, start)

    def spans(self, cause: int) -> Intervals:
        """Those of one cause: disjoint."""
        at = where(self.cause == cause)
        gap, after = np.searchsorted(self.first, at, side="right") - 1, at + 1
        start, end = self.gaps.start[gap] + self.offset[at], self.gaps.end[gap]
        goes_on = np.flatnonzero(after < self.first[gap + 1])
        end[goes_on] = self.gaps.start[gap[goes_on]] + self.offset[after[goes_on]]
        return Intervals(start, end)

    @property
    def start(self) -> Int64:
        return self.part(slice(None)).start

    @property
    def end(self) -> Int64:
        return self.part(slice(None)).end

    @property
    def gap(self) -> Index:
        return self.part(slice(None)).gap

    @property
    def cause(self) -> Int8:
        return self.code // 6

    @property
    def side(self) -> Int8:
        return self.code // 2 % 3

    @property
    def modelled(self) -> Bool:
        return np.asarray(self.code % 2 > 0)


def take(pieces: Pieces, at: Index) -> Pieces:
    """Those at these places."""
    return Pieces(*(getattr(pieces, name)[at] for name in Pieces.__dataclass_fields__))


class TimeSlice(NamedTuple):
    """A part of the wall time."""

    when: str
    cause: str
    grade: str
    side: str | None
    detail: str
    ns: int

    @property
    def category(self) -> str:
        return CAUSES[self.cause].category

    @property
    def label(self) -> str:
        """The cause as a row of a table calls it."""
        return label(self.cause, self.detail)

    @property
    def phrase(self) -> str:
        """The cause in a sentence: continues "the largest loss is"."""
        return phrase(self.cause, self.detail)


@dataclass(frozen=True)
class Attribution:
    """The causes of one device's idle time, for the whole trace."""

    timeline: Timeline
    pieces: Idle
    blocking: Blocking
    launch_latency_ns: int
    """What a launch is taken to need: the measured median, else a bound."""
    measured_latency_ns: int
    """Median from call start to operation start of launches into an idle device; 0 when there is none."""
    queued_gap_ns: int | None
    """Median gap between operations of a stream when the next one was already queued; None when there is none."""
    explained_ns: int
    """The longest wait of a submitted operation that counts as explained."""
    calls: LongCalls = field(repr=False)
    polls: Polls = field(repr=False)
    """Launches that followed the end of what the host polled for."""

    @cached_property
    def _partitions(self) -> dict[tuple[int, int], tuple[TimeSlice, ...]]:
        return {}

    def partition(self, start: int, end: int) -> tuple[TimeSlice, ...]:
        """The wall time of [start, end) by cause, most first; the parts add up to it exactly."""
        if (start, end) not in self._partitions:
            self._partitions[start, end] = self._partition(start, end)
        return self._partitions[start, end]

    def _partition(self, start: int, end: int) -> tuple[TimeSlice, ...]:
        sums: dict[TimeSlice, int] = defaultdict(int)
        for what, busy_ns in exposed(self.timeline, start, end):
            sums[_busy_item(what)] += busy_ns
        totals = self._idle_totals(start, end)
        for number in np.flatnonzero(totals).tolist():
            rest, detail = divmod(number, len(DETAILS))
            rest, modelled = divmod(rest, 2)
            cause, side = divmod(rest, 3)
            item = TimeSlice(
                "idle", IDLE[cause], "modelled" if modelled else "measured", SIDES[side],
                DETAILS[detail], 0,
            )  # fmt: skip
            sums[item] += int(totals[number])
        items = [item._replace(ns=ns) for item, ns in sums.items() if ns]
        return tuple(sorted(items, key=lambda item: -item.ns))

    def _idle_totals(self, start: int, end: int) -> Int64:
        """ns of idle time in [start, end) by cause, side, grade and detail, as one number."""
        kind, doing = self.timeline.trace.kind, self.timeline.host.doing
        copies = self.blocking.row[self.blocking.is_copy & ~self.blocking.reads]
        totals = np.zeros(len(IDLE) * 3 * 2 * len(DETAILS), np.int64)
        for part, ns in self.pieces.clipped(start, end):
            at = np.flatnonzero(ns > 0)
            cause = part.cause[at].astype(np.int64)
            waits = cause == CODE["host-sync"]
            detail = (
                np.where(waits, 1 + np.isin(part.row[at], copies), 0) if waits.any() else np.zeros(len(at), np.int64)
            )
            unknown = (cause == CODE["host-unknown"]) & (part.row[at] != NONE)
            detail[unknown & (kind[part.row[at]] == Kind.OS)] = DETAILS.index(SYSTEM_CALL)
            detail[unknown & (doing[part.row[at]] == HostActivity.WAITING)] = DETAILS.index(WAITING)
            key = ((cause * 3 + part.side[at]) * 2 + part.modelled[at]) * len(DETAILS) + detail
            np.add.at(totals, key, ns[at])
        return totals

    def by_cause(self, start: int, end: int) -> dict[str, int]:
        """ns of each cause in [start, end)."""
        sums: dict[str, int] = defaultdict(int)
        for item in self.partition(start, end):
            sums[item.cause] += item.ns
        return dict(sums)


def _busy_item(what: int) -> TimeSlice:
    if what == COMPUTE:
        return TimeSlice("compute", "unmodelled", "measured", None, "", 0)
    if what == COMMUNICATION:
        return TimeSlice("communication", "exposed-communication", "measured", None, "", 0)
    if what == MIGRATION:
        return TimeSlice("copy", "migration", "measured", None, "", 0)
    if what == SET:
        return TimeSlice("copy", "memset", "measured", None, "", 0)
    direction, memory = COPIES[what - FIRST_COPY]
    return TimeSlice("copy", "exposed-copy", "measured", None, f"{direction} {memory}".strip(), 0)
