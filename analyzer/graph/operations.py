"""What the graph of a process is made of: its operations, its calls that launch or wait, its edges as they are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analyzer import compiled
from analyzer.attribution import Attribution
from analyzer.device_timeline import Blocking, Timeline
from analyzer.distinct import present
from analyzer.graph import Edge
from analyzer.host import Doing, Host
from analyzer.intervals import ascending
from analyzer.trace import NONE, Bool, Int8, Int64, Kind, Trace

QUEUE_IN_FLIGHT = 500  # launches in flight from which a long launch call is taken for a full queue (depth: about 1,022)
QUEUE_CALL_RATIO = 2  # … and longer than this many times the tenth percentile
FREE_RETURN_NS = 100_000  # a call that frees memory and returns this soon after an operation's end had waited for it


@dataclass(frozen=True)
class Operations:
    """The device operations of all devices of the process, in the order of their rows: m of them."""

    trace: Trace
    row: Int64
    device: Int64
    start: Int64
    end: Int64

    @cached_property
    def launch(self) -> Int64:
        return self.trace.launch[self.row]

    @cached_property
    def linked(self) -> Bool:
        return np.asarray(self.launch != NONE, np.bool_)

    @cached_property
    def launch_start(self) -> Int64:
        return np.where(self.linked, self.trace.start_ns[self.launch], self.start)

    @cached_property
    def lane(self) -> Int64:
        """[m] device and stream as one number."""
        streams = ascending(self.trace.stream[self.row])
        key = self.device * max(len(streams), 1) + np.searchsorted(streams, self.trace.stream[self.row])
        return np.asarray(np.searchsorted(np.flatnonzero(np.bincount(key)), key), np.int64)

    @cached_property
    def previous(self) -> Int64:
        """[m] the operation before on the same lane, -1 for the first."""
        order = np.argsort(self.lane, kind="stable")
        previous = np.full(len(self.row), NONE, np.int64)
        same = self.lane[order][1:] == self.lane[order][:-1]
        previous[order[1:][same]] = order[:-1][same]
        return previous

    @cached_property
    def graph(self) -> Bool:
        """[m] one of several operations of a launch."""
        count = np.bincount(self.launch[self.linked], minlength=len(self.trace))
        return np.asarray(self.linked & (count[self.launch] > 1), np.bool_)

    @cached_property
    def first(self) -> Bool:
        """[m] the first operation of its launch by start: the only one the host submits."""
        number = np.arange(len(self.row))
        earliest = np.full(len(self.trace), NONE, np.int64)
        earliest[self.launch[self.linked][::-1]] = number[self.linked][::-1]
        return np.asarray(self.linked & (earliest[self.launch] == number), np.bool_)


@dataclass(frozen=True)
class Calls:
    """Calls that launch or wait, and step marks, by (thread, start): c of them."""

    row: Int64
    thread: Int64
    start: Int64
    end: Int64
    waits: Bool
    """[c] the call's return depends on the device, so it is a point of its own."""
    mark: Bool


@dataclass
class Edges:
    """Edges being collected, in terms of provisional points."""

    source: list[Int64]
    target: list[Int64]
    weight: list[Int64]
    after: list[Int64]
    kind: list[Int8]
    modelled: list[Bool]

    @property
    def count(self) -> int:
        """How many there are so far."""
        return sum(map(len, self.source))

    def add(
        self, source: Int64, target: Int64, weight: Int64 | int, kind: Edge, *, after: Int64 | None = None,
        modelled: bool = True,
    ) -> None:  # fmt: skip
        n = len(source)
        self.source.append(np.asarray(source, np.int64))
        self.target.append(np.asarray(target, np.int64))
        self.weight.append(np.broadcast_to(np.asarray(weight, np.int64), n))
        self.after.append(np.full(n, NONE, np.int64) if after is None else np.asarray(after, np.int64))
        self.kind.append(np.full(n, kind, np.int8))
        self.modelled.append(np.full(n, modelled, np.bool_))


def all_blocking(attributions: Sequence[Attribution], operations: Operations) -> Blocking:
    """Blocking calls of all devices of the process, each once; and frees that waited for the device (inferred)."""
    frees = _waiting_frees(attributions[0].timeline, operations)
    row = ascending(np.concatenate([*(a.blocking.row for a in attributions), frees]))
    is_copy, busy = np.zeros(len(row), np.bool_), np.zeros(len(row), np.int64)
    for a in attributions:
        at = np.searchsorted(row, a.blocking.row)
        is_copy[at] |= a.blocking.is_copy
        busy[at] = np.maximum(busy[at], a.blocking.busy_ns)
    return Blocking(row, is_copy, busy)


def _waiting_frees(timeline: Timeline, operations: Operations) -> Int64:
    """Rows of calls that free memory and returned just after an operation that was running when they began."""
    trace, host = timeline.trace, timeline.host
    named = np.array(["free" in name.lower() for name in trace.names], np.bool_)
    rows = np.flatnonzero(host.doing == Doing.ALLOCATOR)
    rows = rows[named[trace.name_code[rows]] & np.isin(trace.thread[rows], host.launching)]
    target = waited_for(operations, trace.start_ns[rows], trace.end_ns[rows])
    waited = (target != NONE) & (trace.end_ns[rows] - operations.end[target] <= FREE_RETURN_NS)
    return np.asarray(rows[waited], np.int64)


def queue_full(operations: Operations, trace: Trace) -> Int64:
    """Rows of launch calls that waited for room in the queue."""
    linked = np.flatnonzero(operations.first & (trace.kind[operations.row] == Kind.KERNEL))
    if len(linked) < QUEUE_IN_FLIGHT:
        return np.empty(0, np.int64)
    calls = operations.launch[linked]
    begun = np.sort(trace.start_ns[calls])
    started = np.sort(operations.start[linked])
    in_flight = np.searchsorted(begun, trace.start_ns[calls]) - np.searchsorted(started, trace.start_ns[calls])
    length = trace.end_ns[calls] - trace.start_ns[calls]
    long = length > QUEUE_CALL_RATIO * np.percentile(length, 10)
    return np.asarray(calls[long & (in_flight >= QUEUE_IN_FLIGHT)], np.int64)


def collect_calls(
    trace: Trace, host: Host, operations: Operations, blocking: Blocking, queue: Int64, marks: Int64
) -> Calls:  # fmt: skip
    rows = ascending(np.concatenate([operations.launch[operations.linked], blocking.row]))
    threads = ascending(np.concatenate([np.array(host.launching, np.int64), present(trace.thread[rows])]))
    threads = threads[threads != NONE]
    marks = marks[np.isin(trace.thread[marks], threads)]
    waits = np.isin(rows, blocking.row) | np.isin(rows, queue)
    row = np.concatenate([rows, marks, marks])
    start = np.concatenate([trace.start_ns[rows], trace.start_ns[marks], trace.end_ns[marks]])
    end = np.concatenate([trace.end_ns[rows], trace.start_ns[marks], trace.end_ns[marks]])
    waits = np.concatenate([waits, np.zeros(2 * len(marks), np.bool_)])
    mark = np.arange(len(row)) >= len(rows)
    thread = trace.thread[row].astype(np.int64)
    order = np.lexsort((np.arange(len(row)), ~mark, start, thread))
    return Calls(row[order], thread[order], start[order], end[order], waits[order], mark[order])


def own_operation(operations: Operations, calls: Int64) -> Int64:
    """[k] of the operations that a call submitted the one that ends last."""
    linked = np.flatnonzero(operations.linked)
    order = linked[np.lexsort((operations.end[linked], operations.launch[linked]))]
    return np.asarray(order[np.searchsorted(operations.launch[order], calls, side="right") - 1], np.int64)


def waited_for(operations: Operations, begin: Int64, end: Int64) -> Int64:
    """[k] the operation a synchronisation waited for: launched before it, and of those the last to end before it
    returned. -1 when all of them had ended before it began."""
    by_end = np.argsort(operations.end, kind="stable")
    ends = operations.end[by_end]
    found = np.full(len(begin), NONE, np.int64)
    last = np.searchsorted(ends, end, side="right") - 1
    compiled.call(
        sweep_waited,
        len(begin) + len(ends),
        (begin, last, ends, operations.launch_start[by_end], by_end),
        (found,),
    )
    return found


def sweep_waited(begin: Any, last: Any, ends: Any, launched: Any, operation: Any, found: Any) -> None:
    """For each wait the operation that ended last, from `last` back, of those launched before it began."""
    for i in range(len(begin)):
        k = last[i]
        while k >= 0 and ends[k] > begin[i]:
            if launched[k] < begin[i]:
                found[i] = operation[k]
                break
            k -= 1
