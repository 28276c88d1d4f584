"""Launches that come as soon as a kernel has ended, over and over: the host looked until the device was done.

No call says so: a spin on pinned memory that a kernel writes, a flag, an event asked for its state. It is told by the
pattern. After launching one kernel the thread makes no call and begins nothing until that kernel has ended; then it goes on
within microseconds, each time, whether the kernel was short or long.
"""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.attribution.calls import POLL
from gpu_trace_advisor.columns.codes import counted
from gpu_trace_advisor.columns.intervals import ascending, grouped
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import Blocking, Timeline
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import Bool, Index, Int64, Kind

OFTEN = 5  # times
ALWAYS = 0.9  # of them
NEAR_NS = 50_000  # from the kernel's end to the next launch
SPIN_NS = 20_000  # from the return of the kernel's launch to its end: less is how long any launch takes
STEADIER = 4  # the time after the kernel varies so many times less than the time until its end
FAR_LONGER = 20  # … or is so many times shorter, at least so often:
OFTEN_ALIKE = 10
LOOKS = re.compile(r"query|poll|is_set\b|is_completed|\bsleep\b|\bspin|\btime\b|yield", re.IGNORECASE)


@dataclass(frozen=True)
class Polls:
    """Launch calls that followed the end of what the thread had launched before; k of them."""

    call: Index
    """[k] row of the call."""
    operation: Index
    """[k] index into the timeline: what the host waited for."""
    usual_ns: Int64
    """[k] from its end to the call, usually."""


def polls(timeline: Timeline, blocking: Blocking) -> Polls:
    """Where the host polled."""
    trace = timeline.trace
    linked = np.flatnonzero(timeline.linked)
    linked = linked[np.lexsort((timeline.end[linked], timeline.launch[linked]))]
    launch = timeline.launch[linked]
    last = np.flatnonzero(np.diff(launch, append=-1))  # of each launch what ends last
    call, operation = launch[last], linked[last]
    order = np.lexsort((trace.start_ns[call], trace.thread[call]))
    call, operation = call[order], operation[order]
    done = timeline.end[operation]
    spin, wait = (done - trace.end_ns[call])[:-1], trace.start_ns[call][1:] - done[:-1]
    near = (wait >= 0) & (wait <= NEAR_NS) & (spin >= SPIN_NS) & (trace.thread[call][1:] == trace.thread[call][:-1])
    if np.count_nonzero(near) < OFTEN:
        return Polls(call[:0], operation[:0], done[:0])
    name = trace.name_code[timeline.row[operation]].astype(np.int64)
    pair = name[:-1] * len(trace.names) + name[1:]
    pairs, which, often = counted(pair[near])
    _, at, all_of = counted(pair)
    total = all_of[at][near]
    wanted = np.zeros(len(pairs), np.bool_)
    wanted[which] = (often[which] >= OFTEN) & (often[which] >= ALWAYS * total)
    candidate = np.flatnonzero(near)[wanted[which]]
    if not len(candidate):
        return Polls(call[:0], operation[:0], done[:0])
    silent = _silent(timeline, blocking, call[candidate], done[candidate], call[candidate + 1])
    kept, usual = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    codes, group, _ = counted(pair[candidate])
    for mine in grouped(group, len(codes)):
        found = candidate[mine[silent[mine]]]
        everywhere = int(all_of[at[candidate[mine[0]]]])
        if len(found) >= max(OFTEN, ALWAYS * everywhere) and _follows(spin[found], wait[found]):
            kept.append(found)
            usual.append(np.full(len(found), int(np.median(wait[found]))))
    at = np.concatenate(kept)
    order = np.argsort(call[at + 1], kind="stable")
    return Polls(call[at + 1][order], operation[at][order], np.concatenate(usual)[order])


def _follows(spin: Int64, wait: Int64) -> bool:
    """The launches follow the kernel's end rather than the time that the host takes anyway."""
    spread = [float(np.subtract(*np.percentile(ns, (75, 25)))) for ns in (spin, wait)]
    if spread[0] >= SPIN_NS and spread[1] * STEADIER <= spread[0]:
        return True
    return len(wait) >= OFTEN_ALIKE and bool(np.median(spin) >= FAR_LONGER * wait.max())


def _silent(timeline: Timeline, blocking: Blocking, before: Index, done: Int64, after: Index) -> Bool:
    """[k] between the launch `before` and the end of its work the thread neither waits in a call nor begins anything but
    looks: nothing in the second half of that time, and no blocking call until the launch `after`."""
    trace = timeline.trace
    found = np.zeros(len(before), np.bool_)
    returned, begun = trace.end_ns[before], trace.start_ns[after]
    for thread in ascending(trace.thread[before]).tolist():
        mine = np.flatnonzero(trace.thread[before] == thread)
        waits = blocking.row[trace.thread[blocking.row] == thread]
        ends = np.sort(trace.end_ns[waits])
        blocked = np.searchsorted(ends, begun[mine], side="right") > np.searchsorted(ends, returned[mine], side="right")
        rows = np.flatnonzero((trace.thread == thread) & (trace.kind <= Kind.PYTHON))
        looks = named(trace, trace.name_code[rows], lambda name: bool(POLL.search(name) or LOOKS.search(name)))
        starts = trace.start_ns[rows[~looks]]
        half = (returned[mine] + done[mine]) // 2
        began = np.searchsorted(starts, done[mine], side="left") > np.searchsorted(starts, half, side="right")
        found[mine] = ~blocked & ~began & ~_inside_call(timeline, rows[~looks], done[mine])
    return found


def _inside_call(timeline: Timeline, rows: Index, instant: Int64) -> Bool:
    """[k] one of these records that is a call is running at this instant."""
    trace = timeline.trace
    calls = rows[trace.kind[rows] == Kind.CALL]
    reach = np.maximum.accumulate(trace.end_ns[calls]) if len(calls) else np.empty(0, np.int64)
    at = np.searchsorted(trace.start_ns[calls], instant, side="left") - 1
    return np.asarray((at >= 0) & (reach[np.maximum(at, 0)] >= instant) if len(calls) else at >= 0, np.bool_)
