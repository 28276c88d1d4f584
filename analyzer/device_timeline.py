"""One device's timeline: its operations in time order, the gaps between them, and what closed each gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzer.distinct import counted, first_places, present
from analyzer.host import Doing, Host
from analyzer.intervals import Intervals, ascending, intersect, total, union
from analyzer.kernels import DIRECTIONS, copy_direction, copy_memory, is_communication
from analyzer.trace import NONE, Bool, Int8, Int64, Kind, Trace

# What a device operation does, in the order in which an instant with several of them is given away.
COMPUTE, COMMUNICATION, FIRST_COPY = 0, 1, 2
COPIES = tuple((direction, memory) for direction in DIRECTIONS for memory in ("pageable", "pinned", ""))
SET = FIRST_COPY + len(COPIES)


@dataclass(frozen=True)
class Timeline:
    """The operations of one device of one process; m of them, in row order (by start)."""

    trace: Trace
    host: Host
    process: int
    """Index into `trace.processes`."""
    device: int
    row: Int64
    """[m] row in the trace."""
    does: Int8
    """[m] COMPUTE, COMMUNICATION, FIRST_COPY + index into COPIES, or SET."""

    @cached_property
    def start(self) -> Int64:
        return self.trace.start_ns[self.row]

    @cached_property
    def end(self) -> Int64:
        return self.trace.end_ns[self.row]

    @cached_property
    def length(self) -> Int64:
        """[m] ns."""
        return self.end - self.start

    @cached_property
    def stream(self) -> Int64:
        return self.trace.stream[self.row]

    @cached_property
    def launch(self) -> Int64:
        """[m] row of the call that submitted the operation, -1 when the trace holds none."""
        return self.trace.launch[self.row]

    @cached_property
    def linked(self) -> Bool:
        return np.asarray(self.launch != NONE, np.bool_)

    @cached_property
    def launch_start(self) -> Int64:
        """[m] ns; meaningless where not `linked`. Likewise `launch_end`."""
        return self.trace.start_ns[self.launch]

    @cached_property
    def launch_end(self) -> Int64:
        return self.trace.end_ns[self.launch]

    @cached_property
    def node(self) -> Bool:
        """[m] one of several operations of the same launch: a node of a graph replay."""
        count = np.bincount(self.launch[self.linked], minlength=len(self.trace))
        return np.asarray(self.linked & (count[self.launch] > 1), np.bool_)

    @cached_property
    def by_graph(self) -> Bool:
        """[m] submitted by a call that launches a CUDA or HIP graph."""
        named = np.array([is_graph_launch(name) for name in self.trace.names], np.bool_)
        return self.linked & named[self.trace.name_code[self.launch]]

    @cached_property
    def later_node(self) -> Bool:
        """[m] a node of a graph replay after its first: started by the device, whenever its launch call returns."""
        result = self.node.copy()
        linked = np.flatnonzero(self.linked)
        first = first_places(self.launch[linked])[1]
        result[linked[first]] = False
        return result

    @cached_property
    def is_kernel(self) -> Bool:
        return np.asarray(self.trace.kind[self.row] == Kind.KERNEL, np.bool_)

    @cached_property
    def busy(self) -> Intervals:
        """Union of all operations."""
        return union(self.start, self.end)

    def union_of(self, mask: Bool) -> Intervals:
        return union(self.start[mask], self.end[mask])

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """Start of the first operation, end of the last one."""
        return int(self.start.min()), int(self.end.max())

    @cached_property
    def gaps(self) -> Gaps:
        """All gaps between operations."""
        return find_gaps(self)

    def label(self, operation: int) -> str:
        return self.trace.label(int(self.row[operation]))


@dataclass(frozen=True)
class Gaps:
    """Maximal idle gaps [start, end), from the trace's first event to its last; g of them, in time order."""

    start: Int64
    end: Int64
    closing: Int64
    """[g] operation (index into the timeline) that starts at the gap's end: of several the one submitted first.
    -1 for the gap after the last operation, and for those beside operations without length."""
    after: Bool
    """[g] an operation of the closing operation's stream ended at the gap's start."""
    thread: Int64
    """[g] the thread of the closing launch, -1 when there is none."""
    submitted: Int64
    """[g] the closing launch's start clamped into the gap: the host's side ends here. The gap's end after the last
    operation, its start where the closing operation has no launch."""
    returned: Int64
    """[g] the closing launch's end clamped into [submitted, end]; a later node of a replay does not wait for it."""
    unlinked: Bool
    """[g] the closing operation has no launch in the trace."""
    interior: Bool
    """[g] between two operations."""

    def __len__(self) -> int:
        return len(self.start)


def is_graph_launch(call: str) -> bool:
    """A call that replays a graph, by its name."""
    return "graphlaunch" in call.lower()


def timelines(trace: Trace, hosts: dict[int, Host]) -> list[Timeline]:
    """One for each device with operations, by (process, device)."""
    operations = trace.operations
    does = operation_classes(trace, operations)
    key = trace.process[operations].astype(np.int64) * (1 << 32) + trace.device[operations]
    result = []
    for value in ascending(key).tolist():
        mine = key == value
        process = int(trace.process[operations[np.flatnonzero(mine)[0]]])
        device = int(trace.device[operations[np.flatnonzero(mine)[0]]])
        result.append(Timeline(trace, hosts[process], process, device, operations[mine], does[mine]))
    return result


def operation_classes(trace: Trace, operations: Int64) -> Int8:
    """What each operation does, worked out once per distinct name."""
    kind, name = trace.kind[operations], trace.name_code[operations]
    does = np.full(len(operations), COMPUTE, np.int8)
    does[kind == Kind.SET] = SET
    by_name = np.full(len(trace.names), COMPUTE, np.int8)
    for code in present(name[kind == Kind.KERNEL]).tolist():
        if is_communication(trace.names[code]):
            by_name[code] = COMMUNICATION
    does = np.where(kind == Kind.KERNEL, by_name[name], does)
    for code in present(name[kind == Kind.COPY]).tolist():
        text = trace.names[code]
        by_name[code] = FIRST_COPY + COPIES.index((copy_direction(text), copy_memory(text)))
    return np.where(kind == Kind.COPY, by_name[name], does)


def find_gaps(timeline: Timeline) -> Gaps:
    """The gaps and their closing operations (rule 1): zero-duration operations close none."""
    trace, busy = timeline.trace, timeline.busy
    # An operation without length before the first covered instant, or after the last one, cuts the time there in two:
    # what lies between it and the busy time belongs to no launch.
    first, last = timeline.span_ns
    opens, done = (int(busy.start[0]), int(busy.end[-1])) if len(busy.start) else (last, last)
    start = np.concatenate([[min(trace.origin_ns, first), first], busy.end[:-1], [done, last]])
    end = np.concatenate([[first, opens], busy.start[1:], [last, max(int(trace.end_ns.max()), last)]])
    number = np.arange(len(start))
    real = end > start
    start, end, number = start[real], end[real], number[real]
    trailing = number == len(real) - 1
    outside = (number == 1) | (number == len(real) - 2)
    interior = ~trailing & ~outside & (number > 0)
    covering = np.flatnonzero(timeline.end > timeline.start)
    begun = timeline.start[covering]
    at = covering[end[np.minimum(np.searchsorted(end, begun), len(end) - 1)] == begun] if len(end) else covering[:0]
    # Of those that start at a gap's end the one submitted first; unlinked ones last.
    submitted = np.where(timeline.linked[at], timeline.launch_start[at], np.iinfo(np.int64).max)
    order = at[np.lexsort((submitted, timeline.start[at]))]
    closing = np.full(len(start), NONE, np.int64)
    closes = interior | ((number == 0) & (opens == first) & (len(busy.start) > 0))
    closing[closes] = order[np.searchsorted(timeline.start[order], end[closes], side="left")]
    linked = closes & timeline.linked[closing]
    unlinked = (closes & ~linked) | outside
    open_ended = ~closes & ~outside
    launch = timeline.launch[closing]
    p = np.where(linked, np.clip(trace.start_ns[launch], start, end), np.where(open_ended, end, start))
    returned = np.where(linked & ~timeline.later_node[closing], np.clip(trace.end_ns[launch], p, end), p)
    thread = np.where(linked, trace.thread[launch], NONE).astype(np.int64)
    after = interior & _ended_on_stream(timeline, covering, start, closing)
    return Gaps(start, end, closing, after, thread, p, returned, unlinked, interior)


def _ended_on_stream(timeline: Timeline, covering: Int64, start: Int64, closing: Int64) -> Bool:
    """[g] an operation of the closing stream ended at the gap's start."""
    if not len(start):
        return np.empty(0, np.bool_)
    streams = ascending(timeline.stream)
    stream = np.searchsorted(streams, timeline.stream)
    gap = np.minimum(np.searchsorted(start, timeline.end[covering]), len(start) - 1)
    ends = start[gap] == timeline.end[covering]
    keys = ascending(gap[ends] * len(streams) + stream[covering[ends]])
    wanted = np.arange(len(start)) * len(streams) + stream[closing]
    return np.searchsorted(keys, wanted, side="right") > np.searchsorted(keys, wanted)


@dataclass(frozen=True)
class Blocking:
    """Host calls that wait for the device, on launching threads, in time order (rule 4); q of them."""

    row: Int64
    is_copy: Bool
    busy_ns: Int64
    """[q] how long the device was busy while the call ran: the time it truly waited."""


BLOCKING_COPY_NS = 20_000  # a shorter asynchronous copy call that outlasted its copy did so by chance


def blocking_calls(timeline: Timeline) -> Blocking:
    """Synchronisations by name, and copy calls that returned after their copy had ended."""
    trace, doing = timeline.trace, timeline.host.doing
    threads = np.array(timeline.host.launching, np.int64)
    syncs = np.flatnonzero((doing == Doing.SYNC) & (trace.process == timeline.process))
    syncs = syncs[np.isin(trace.thread[syncs], threads)]
    copies = np.flatnonzero(timeline.linked & (timeline.does >= FIRST_COPY) & (timeline.does < SET))
    calls = timeline.launch[copies]
    long = trace.end_ns[calls] - trace.start_ns[calls] >= BLOCKING_COPY_NS
    waits = (doing[calls] == Doing.COPY_CALL) & (trace.end_ns[calls] >= timeline.end[copies])
    waits &= np.isin(trace.thread[calls], threads)
    names, which, _ = counted(trace.name_code[calls])
    named = np.array([synchronous_copy(trace.names[code]) for code in names.tolist()], np.bool_)[which]
    copies_row = ascending(calls[waits & (long | named)])
    row = _outermost(ascending(np.concatenate([syncs, copies_row])), timeline.host)
    span = Intervals(trace.start_ns[row], trace.end_ns[row])
    return Blocking(row, np.isin(row, copies_row), covered(span, timeline.busy))


def _outermost(rows: Int64, host: Host) -> Int64:
    """Without the rows inside another one of them: a driver call within its runtime call is the same wait."""
    known, kept = set(rows.tolist()), []
    for row in rows.tolist():
        above = int(host.parent[row])
        while above != NONE and above not in known:
            above = int(host.parent[above])
        if above == NONE:
            kept.append(row)
    return np.array(kept, np.int64)


def synchronous_copy(call: str) -> bool:
    """A copy call that is synchronous by its name: `cudaMemcpy`, `hipMemcpyWithStream`, `cuMemcpyDtoH_v2` …"""
    return "memcpy" in call.lower() and "async" not in call.lower()


def covered(spans: Intervals, by: Intervals) -> Int64:
    """[k] how much of each span (they may overlap each other) the disjoint set covers."""
    sums = np.concatenate([[0], np.cumsum(by.end - by.start)])

    def before(t: Int64) -> Int64:
        i = np.searchsorted(by.start, t, side="right")
        inside = np.where(i > 0, np.maximum(by.end[np.maximum(i - 1, 0)] - t, 0), 0) if len(by.start) else 0
        return np.asarray(sums[i] - inside, np.int64)

    return before(spans.end) - before(spans.start)


def exposed(timeline: Timeline, start: int, end: int) -> list[tuple[int, int]]:
    """(what, ns) for each class of operation: the time in [start, end) in which no earlier class runs. Measured."""
    window = Intervals(np.array([start]), np.array([end]))
    result, taken, taken_ns = [], Intervals(np.empty(0, np.int64), np.empty(0, np.int64)), 0
    for what in np.flatnonzero(np.bincount(timeline.does)).tolist():
        mine = intersect(timeline.union_of(timeline.does == what), window)
        taken = union(np.concatenate([taken.start, mine.start]), np.concatenate([taken.end, mine.end]))
        ns = total(taken)
        result.append((int(what), ns - taken_ns))
        taken_ns = ns
    return result
