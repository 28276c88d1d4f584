"""What the graph of a process is made of: its operations, its calls that launch or wait, its edges as they are found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpu_trace_advisor.attribution import Attribution
from gpu_trace_advisor.columns.codes import are_first, present
from gpu_trace_advisor.columns.compact import blocks, constant, index_type, places, where
from gpu_trace_advisor.columns.durations import Nanoseconds
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.graph import MODELLED, PASSES, Edge
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.classes import dataclass, forget
from gpu_trace_advisor.timelines.device import Blocking, Timeline, several
from gpu_trace_advisor.timelines.host import Host, HostActivity
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int64, Kind, Trace

QUEUE_IN_FLIGHT = 500  # launches in flight from which a long launch call is taken for a full queue (depth: about 1,022)
QUEUE_CALL_RATIO = 2  # … and longer than this many times the tenth percentile
FREE_RETURN_NS = 100_000  # a call that frees memory and returns this soon after an operation's end had waited for it
WAITING_FREE = re.compile(r"(?:cuda|hip)Free|cuMemFree(?:_v2)?")  # waits for the device, whatever it finds


@dataclass
class Operations:
    """The device operations of all devices of the process, in the order of their rows: m of them.

    The graph is built of it, and takes what it needs piece by piece: what is not needed any more is given up.
    """

    trace: Trace
    row: Index
    device: Index
    start: Int64
    end: Int64

    def without_edges(self) -> None:
        """Give up what was needed to find the edges."""
        forget(self, "by_lane", "previous", "graph", "same_graph")

    def used_up(self) -> tuple[Index, Index]:
        """Row and device of each; nothing else is left."""
        row, device = self.row, self.device
        self.__dict__.clear()
        return row, device

    @cached_property
    def launch(self) -> Index:
        return self.trace.launch[self.row]

    @cached_property
    def linked(self) -> Bool:
        return np.asarray(self.launch != NONE, np.bool_)

    def launch_start(self, at: Any = slice(None)) -> Int64:
        """When the calls of these operations started; of those without one, when the operation did."""
        launch = self.launch[at]
        found: Int64 = self.trace.start_ns[launch]
        if len(loose := np.flatnonzero(launch == NONE)):
            found[loose] = self.start[at][loose]
        return found

    @cached_property
    def lane(self) -> Index:
        """[m] device and stream as one number."""
        streams = ascending(self.trace.stream[self.row])
        key = np.searchsorted(streams, self.trace.stream[self.row]).astype(np.int32)
        key += self.device * np.int32(max(len(streams), 1))
        lanes = present(key)
        place = np.zeros(int(lanes.max(initial=0)) + 1, np.int32)
        place[lanes] = np.arange(len(lanes))
        found: Index = place[key]
        return found

    @cached_property
    def by_lane(self) -> Index:
        """[m] the operations lane by lane."""
        return np.argsort(self.lane, kind="stable").astype(index_type(len(self.row)))

    @cached_property
    def previous(self) -> Index:
        """[m] the operation before on the same lane, -1 for the first."""
        previous = np.full(len(self.row), NONE, index_type(len(self.row)))
        lane = self.lane[self.by_lane]
        same = np.flatnonzero(lane[1:] == lane[:-1])
        previous[self.by_lane[same + 1]] = self.by_lane[same]
        return previous

    @property
    def outlasting(self) -> tuple[Int64, Int64]:
        """(earlier, later) of a lane: the later one waited for an operation that outlasted the one just before it."""
        order = self.by_lane
        end, lane = self.end[order], self.lane[order]
        same = lane[1:] == lane[:-1]
        if not ((end[1:] < end[:-1]) & same).any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        low = int(end.min())
        reach = lane.astype(np.int64) * (int(end.max()) - low + 1) + end - low
        most = np.maximum.accumulate(reach)
        longest = np.maximum.accumulate(np.where(reach == most, np.arange(len(reach)), 0))
        at = np.flatnonzero(same & (most[:-1] > reach[:-1]))
        source, later = order[longest[at]], order[at + 1]
        waited = self.linked[later] & (self.end[source] <= self.start[later])
        return source[waited], later[waited]

    @cached_property
    def graph(self) -> Bool:
        """[m] one of several operations of a launch."""
        return several(self.launch, self.linked, len(self.trace))

    @cached_property
    def same_graph(self) -> Bool:
        """[m] of the same graph replay as the operation before on the same lane."""
        found: Bool = self.graph & (self.previous != NONE)
        at = np.flatnonzero(found)
        found[at] = self.launch[at] == self.launch[self.previous[at]]
        return found

    @cached_property
    def first(self) -> Bool:
        """[m] the first operation of its launch by start: the only one the host submits."""
        found = self.linked.copy()
        found[found] = are_first(self.launch[found], len(self.trace))
        return found


def merge_operations(timelines: Sequence[Timeline]) -> Operations:
    """The operations of these devices of a process."""
    trace = timelines[0].trace
    if len(timelines) == 1:
        row, device = timelines[0].row, constant(0, len(timelines[0].row), np.int16)
    else:
        row = np.concatenate([t.row for t in timelines])
        device = np.repeat(np.arange(len(timelines), dtype=np.int16), [len(t.row) for t in timelines])
        order = np.argsort(row, kind="stable")
        device = device[order]
        row = trace.operations if len(row) == len(trace.operations) else row[order]
        del order
    return Operations(trace, row, device, trace.start_ns[row], trace.end_ns[row])


@dataclass
class HostCalls:
    """Calls that launch or wait, and step marks, by (thread, start): c of them. The graph is built of it, as of `Operations`."""

    trace: Trace
    row: Index
    thread: Index
    start: Int64
    waits: Bool
    """[c] the call's return depends on the device, so it is a point of its own."""
    mark: Bool

    def used_up(self) -> Index:
        """The row of each; nothing else is left."""
        row = self.row
        self.__dict__.clear()
        return row

    def end(self, at: Index) -> Int64:
        """[k] when these are over: a mark at once."""
        return np.where(self.mark[at], self.start[at], self.trace.end_ns[self.row[at]])


@dataclass
class Edges:
    """Edges being collected, in terms of provisional points."""

    kind_of_point: Any
    """Type of the numbers of points."""
    parts: list[tuple[Any, ...]] = field(default_factory=list)
    """(source, target, weight, flags) of some edges each."""
    count: int = 0
    """How many there are so far."""

    def add(
        self, source: Index, target: Index, weight: Int64 | Nanoseconds, kind: Edge, *, passes: bool = False,
        modelled: bool = True,
    ) -> None:  # fmt: skip
        n = len(source)
        self.count += n
        if not n:
            return
        self.parts.append(
            (
                source.astype(self.kind_of_point, copy=False), target.astype(self.kind_of_point, copy=False),
                weight if isinstance(weight, Nanoseconds) else Nanoseconds.of(weight),
                constant(kind | PASSES * passes | MODELLED * modelled, n, np.int8),
            )
        )  # fmt: skip

    def placed(self, place: Index) -> tuple[Any, ...]:
        """The columns of those edges that go forward when the points are put in their places, sorted by target: source,
        target, weight, flags. At last the new number of each edge as collected, -1 for those left out.

        The edges are used up.
        """
        columns: list[Any] = [[part[i] for part in self.parts] for i in range(4)]
        self.parts.clear()
        for i in (0, 1):
            columns[i] = [place[column] for column in columns[i]]
        new = self._numbers(columns[0], columns[1])
        kept = int((new != NONE).sum())
        types: tuple[Any, ...] = (place.dtype, place.dtype, None, np.int8)
        for i, kind in enumerate(types):
            parts, columns[i] = columns[i], np.empty(kept, kind) if kind else Nanoseconds.empty(kept)
            first = 0
            for part in parts:
                for some in blocks(len(part)):
                    to = new[first + some.start : first + some.stop]
                    if kept == len(new):
                        columns[i][to] = part[some]
                    else:
                        columns[i][to[to != NONE]] = part[some][to != NONE]
                first += len(part)
            del parts
        return (*columns, new)

    def _numbers(self, sources: list[Index], targets: list[Index]) -> Index:
        target = np.concatenate([np.empty(0, self.kind_of_point), *targets])
        forward = np.concatenate([np.empty(0, np.bool_), *(a < b for a, b in zip(sources, targets, strict=True))])
        new = np.full(len(target), NONE, index_type(len(target)))
        first = np.zeros(int(target.max(initial=0)) + 1, new.dtype)
        if compiled.is_compiled(loops.number_by_target):
            compiled.call(loops.number_by_target, (target, forward), (first, new))
            return new
        if forward.all():
            order = np.argsort(target, kind="stable")
        else:
            number = np.flatnonzero(forward)
            order = number[np.argsort(target[number], kind="stable")]
        new[order] = places(len(order))
        return new


def all_blocking(attributions: Sequence[Attribution], operations: Operations) -> Blocking:
    """Blocking calls of all devices of the process, each once; and frees that wait for the device."""
    frees = _waiting_frees(attributions[0].timeline, operations)
    row = ascending(np.concatenate([*(a.blocking.row for a in attributions), frees]))
    is_copy, reads, busy = np.zeros(len(row), np.bool_), np.zeros(len(row), np.bool_), np.zeros(len(row), np.int64)
    for a in attributions:
        at = np.searchsorted(row, a.blocking.row)
        is_copy[at] |= a.blocking.is_copy
        reads[at] |= a.blocking.reads
        busy[at] = np.maximum(busy[at], a.blocking.busy_ns)
    return Blocking(row, is_copy, busy, reads)


def _waiting_frees(timeline: Timeline, operations: Operations) -> Int64:
    """Rows of calls that free memory and wait by their name, or returned just after an operation that was running when they
    began (inferred)."""
    trace, host = timeline.trace, timeline.host
    named = np.array(["free" in name.lower() for name in trace.names], np.bool_)
    always = np.array([WAITING_FREE.fullmatch(name) is not None for name in trace.names], np.bool_)
    rows = where(host.doing == HostActivity.ALLOCATOR)
    rows = rows[named[trace.name_code[rows]] & np.isin(trace.thread[rows], host.launching)]
    begin, end = trace.start_ns[rows], trace.end_ns[rows]
    target = waited_for(operations, awaited(operations, rows, begin), begin, end)
    waits = (target != NONE) & (end - operations.end[target] <= FREE_RETURN_NS)
    return np.asarray(rows[waits | always[trace.name_code[rows]]], np.int64)


def queue_full(operations: Operations, trace: Trace) -> Int64:
    """Rows of launch calls that waited for room in the queue."""
    linked = where(operations.first & (trace.kind[operations.row] == Kind.KERNEL))
    if len(linked) < QUEUE_IN_FLIGHT:
        return np.empty(0, np.int64)
    calls, started = operations.launch[linked], operations.start[linked]
    del linked
    begun = trace.start_ns[calls]
    length = trace.end_ns[calls] - begun
    long = np.flatnonzero(length > QUEUE_CALL_RATIO * np.percentile(length, 10))
    del length
    at = begun[long]
    begun.sort()
    started.sort()
    in_flight = np.searchsorted(begun, at) - np.searchsorted(started, at)
    return np.asarray(calls[long[in_flight >= QUEUE_IN_FLIGHT]], np.int64)


def collect_calls(
    trace: Trace, host: Host, operations: Operations, blocking: Blocking, queue: Int64, marks: Int64
) -> HostCalls:  # fmt: skip
    rows = ascending(np.concatenate([operations.launch[operations.linked], blocking.row]))
    rows = rows.astype(index_type(len(trace)), copy=False)
    every = ascending(np.concatenate([np.array(host.launching, np.int64), present(trace.thread[rows])]))
    threads = every[every != NONE]
    marks = marks[np.isin(trace.thread[marks], threads)].astype(rows.dtype)
    waits = np.zeros(len(rows), np.bool_)
    waits[np.searchsorted(rows, blocking.row)] = True
    waits[np.searchsorted(rows, queue)] = True
    if not len(marks) and len(every) == 1:  # in order as they are
        mark = np.zeros(len(rows), np.bool_)
        return HostCalls(trace, rows, trace.thread[rows], trace.start_ns[rows], waits, mark)
    row = np.concatenate([rows, marks, marks])
    start = np.concatenate([trace.start_ns[rows], trace.start_ns[marks], trace.end_ns[marks]])
    waits = np.concatenate([waits, np.zeros(2 * len(marks), np.bool_)])
    mark = np.arange(len(row)) >= len(rows)
    thread = trace.thread[row]
    order = np.lexsort((~mark, start, thread))
    return HostCalls(trace, row[order], thread[order], start[order], waits[order], mark[order])


def own_operation(operations: Operations, calls: Int64) -> Int64:
    """[k] of the operations that a call submitted the one that ends last."""
    if not len(calls):
        return np.empty(0, np.int64)
    linked = np.flatnonzero(operations.linked)
    order = linked[np.lexsort((operations.end[linked], operations.launch[linked]))]
    return np.asarray(order[np.searchsorted(operations.launch[order], calls, side="right") - 1], np.int64)


def calls_of(trace: Trace, process: int, correlation: Int64) -> Int64:
    """[k] the call of the process with this correlation, -1 for none."""
    wanted = np.unique(correlation[correlation != NONE])
    if not len(wanted):
        return np.full(len(correlation), NONE)
    found = []
    for part in blocks(len(trace)):
        ids = trace.correlation[part]
        known = wanted[np.minimum(np.searchsorted(wanted, ids), len(wanted) - 1)] == ids
        known &= (trace.kind[part] == Kind.CALL) & (trace.process[part] == process)
        found.append(np.flatnonzero(known) + part.start)
    rows = np.concatenate(found)
    rows = rows[np.argsort(trace.correlation[rows], kind="stable")]
    if not len(rows):
        return np.full(len(correlation), NONE)
    ids = trace.correlation[rows]
    at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    return np.where(ids[at] == correlation, rows[at], NONE)


class Awaited(NamedTuple):
    """What synchronisations wait for."""

    stream: Int64
    """[k] number of the one stream whose work each waits for, -1 for the work of all, or of one that is not recorded."""
    launched: Int64
    """[k] when the last of it was launched, at the latest: before the call began, or before its event was recorded."""


def awaited(operations: Operations, calls: Int64, begin: Int64) -> Awaited:
    """What these synchronisations wait for, as far as the recording says."""
    trace, found = operations.trace, Awaited(np.full(len(calls), NONE), begin.copy())
    rows = np.flatnonzero(trace.kind == Kind.SYNC)
    if not len(rows) or not len(calls):
        return found
    process = int(trace.process[calls[0]])
    rows = rows[trace.process[rows] == process]
    call = calls_of(trace, process, trace.correlation[rows])
    order = np.argsort(calls, kind="stable")
    at = order[np.minimum(np.searchsorted(calls, call, sorter=order), len(calls) - 1)]
    mine = np.flatnonzero(calls[at] == call)
    rows, at = rows[mine], at[mine]
    one_stream = np.array(["streamsynchronize" in name.lower() for name in trace.names], np.bool_)
    found.stream[at] = np.where(one_stream[trace.name_code[calls[at]]], trace.stream[rows], NONE)
    if "wait_on_stream" in trace.integers:
        event = trace.integers["wait_on_stream"].at(rows)
        found.stream[at] = np.where(event != NONE, event, found.stream[at])
    if "wait_on_cuda_event_record_corr_id" in trace.integers:
        record = calls_of(trace, process, trace.integers["wait_on_cuda_event_record_corr_id"].at(rows))
        recorded = np.where(record != NONE, trace.start_ns[record], begin[at])
        found.launched[at] = np.minimum(recorded, begin[at])
    found.stream[~np.isin(found.stream, trace.stream[operations.row])] = NONE
    return found


def waited_for(operations: Operations, what: Awaited, begin: Int64, end: Int64) -> Int64:
    """[k] the operation a synchronisation waited for: of those that it waits for the last to end before it returned. -1
    when all of them had ended before it began."""
    found = np.full(len(begin), NONE, np.int64)
    if not len(begin):
        return found
    ends, by_end = _by_end(operations)
    last = np.searchsorted(ends, end, side="right") - 1
    wanted, stream = np.full(len(begin), NONE, np.int32), np.empty(0, np.int32)
    if (what.stream != NONE).any():  # streams by their places among all of them
        streams = ascending(operations.trace.stream[operations.row])
        stream = np.searchsorted(streams, operations.trace.stream[operations.row[by_end]]).astype(np.int32)
        wanted = np.where(what.stream != NONE, np.searchsorted(streams, what.stream), NONE).astype(np.int32)
    compiled.call(
        loops.sweep_waited,
        (begin, last, wanted, what.launched, ends, operations.launch_start(by_end), stream, by_end),
        (found,),
    )
    return found


def would_wait_for(operations: Operations, what: Awaited, begin: Int64) -> Int64:
    """[k] the operation that a synchronisation would have waited for had it come sooner: of those that it waits for the last
    to end before it began, -1 where none had."""
    found = np.full(len(begin), NONE, np.int64)
    if not len(begin):
        return found
    ends, by_end = _by_end(operations)
    launch = operations.launch_start(by_end)
    for stream in ascending(what.stream).tolist():
        mine = np.flatnonzero(what.stream == stream)
        those: Any = slice(None)
        if stream != NONE:
            those = np.flatnonzero(operations.trace.stream[operations.row[by_end]] == stream)
        ended = np.searchsorted(ends[those], begin[mine], side="right")
        launched = np.searchsorted(np.maximum.accumulate(launch[those]), what.launched[mine], side="left")
        at = np.minimum(ended, launched) - 1
        found[mine[at >= 0]] = by_end[those][at[at >= 0]]
    return found


def last_of_other_streams(operations: Operations, target: Int64, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """(wait, operation) for waits for a whole device: besides its target each waits for the last operation of every other
    stream of that device, launched before it began and over when it returned. Once is enough for each operation."""
    order = operations.by_lane
    runs = np.split(order, np.flatnonzero(np.diff(operations.lane[order])) + 1) if len(target) else []
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for mine in runs if len(runs) > 1 else ():
        ended = np.searchsorted(np.maximum.accumulate(operations.end[mine]), end, side="right")
        launched = np.searchsorted(np.maximum.accumulate(operations.launch_start(mine)), begin, side="left")
        at = np.minimum(ended, launched) - 1
        last = mine[at]
        other = operations.lane[target] != operations.lane[last]
        other &= (at >= 0) & (operations.device[target] == operations.device[last])
        wait = np.flatnonzero(other)
        wait = wait[np.diff(last[wait], prepend=NONE) != 0]
        found.append((wait, last[wait]))
    wait, operation = (np.concatenate(column) for column in zip(*found, strict=True))
    return wait, operation


def _by_end(operations: Operations) -> tuple[Int64, Index]:
    """The ends of the operations in order, and whose they are."""
    ends, by_end = operations.end, places(len(operations.end))
    if (ends[1:] < ends[:-1]).any():
        by_end = np.argsort(ends, kind="stable").astype(by_end.dtype)
        ends = ends[by_end]
    return ends, by_end
