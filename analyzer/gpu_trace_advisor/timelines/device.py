"""One device's timeline: its operations in time order, the gaps between them, and what closed each gap."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np

from gpu_trace_advisor.columns.codes import among, are_first, are_repeated, counted, present
from gpu_trace_advisor.columns.compact import blocks, index_type, taken, where
from gpu_trace_advisor.columns.intervals import NOTHING, Intervals, ascending, clip, merge, total, union
from gpu_trace_advisor.runtime.classes import dataclass, forget, keep
from gpu_trace_advisor.timelines.host import Host, HostActivity
from gpu_trace_advisor.trace.kernel_names import DIRECTIONS, copy_direction, copy_memory, is_communication, is_migration
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int8, Int64, Kind, Trace

# What a device operation does, in the order in which an instant with several of them is given away.
COMPUTE, COMMUNICATION, FIRST_COPY = 0, 1, 2
COPIES = tuple((direction, memory) for direction in DIRECTIONS for memory in ("pageable", "pinned", ""))
SET = FIRST_COPY + len(COPIES)
MIGRATION = SET + 1


@dataclass(frozen=True)
class Timeline:
    """The operations of one device of one process; m of them, in row order (by start)."""

    trace: Trace = field(repr=False)
    host: Host = field(repr=False)
    process: int
    """Index into `trace.processes`."""
    device: int
    row: Index
    """[m] row in the trace."""
    op_class: Int8
    """[m] COMPUTE, COMMUNICATION, FIRST_COPY + index into COPIES, SET, or MIGRATION."""

    @cached_property
    def start(self) -> Int64:
        """[m] ns, ascending; likewise `end`."""
        return self.trace.start_ns[self.row]

    @cached_property
    def end(self) -> Int64:
        return self.trace.end_ns[self.row]

    @cached_property
    def length(self) -> Int64:
        """[m] ns."""
        return self.end - self.start

    @cached_property
    def stream(self) -> Index:
        """[m] the recorder's number of the stream, -1 where it has none."""
        return taken(self.trace.stream, self.row)

    @cached_property
    def launch(self) -> Index:
        """[m] row of the call that submitted the operation, -1 when the trace holds none."""
        return taken(self.trace.launch, self.row)

    @cached_property
    def linked(self) -> Bool:
        """[m] the trace holds the call that submitted the operation."""
        return np.asarray(self.launch != NONE, np.bool_)

    @property
    def launch_start(self) -> Int64:
        """[m] ns; meaningless where not `linked`. Likewise `launch_end`. Worked out anew each time."""
        return self.trace.start_ns[self.launch]

    @property
    def launch_end(self) -> Int64:
        return self.trace.end_ns[self.launch]

    @cached_property
    def node(self) -> Bool:
        """[m] one of several operations of the same launch: a node of a graph replay."""
        return several(self.launch, self.linked, len(self.trace))

    @cached_property
    def by_graph(self) -> Bool:
        """[m] submitted by a call that launches a CUDA or HIP graph."""
        named = np.array([is_graph_launch(name) for name in self.trace.names], np.bool_)
        return self.linked & named[self.trace.name_code[self.launch]]

    @cached_property
    def later_node(self) -> Bool:
        """[m] a node of a graph replay after its first: started by the device, whenever its launch call returns."""
        result = self.node.copy()
        result[result] = ~are_first(self.launch[result], len(self.trace))
        return result

    @cached_property
    def is_kernel(self) -> Bool:
        """[m] a kernel, of communication too; not a copy, a set or a graph replay recorded as one."""
        return np.asarray(self.trace.kind[self.row] == Kind.KERNEL, np.bool_)

    @property
    def busy(self) -> Intervals:
        """Union of all operations."""
        return self._cut[0]

    def union_of(self, mask: Bool) -> Intervals:
        """Where one of these operations runs, in ns."""
        if mask.all():
            return self.busy
        return union(self.start[mask], self.end[mask])

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """Start of the first operation, end of the last one."""
        return int(self.start.min()), int(self.end.max())

    @property
    def gaps(self) -> Gaps:
        """All gaps between operations."""
        return self._cut[1]

    @cached_property
    def _cut(self) -> tuple[Intervals, Gaps]:
        busy, gaps = find_gaps(self)
        if len(busy.start) == len(self.row):  # apart from each other, so these are the operations themselves
            keep(self, "start", busy.start)
            keep(self, "end", busy.end)
        return busy, gaps

    def forget(self) -> None:
        """Give up columns that are quickly worked out again, where they are asked for again."""
        forget(self, "length", "stream", "launch", "linked", "node", "by_graph", "later_node")
        forget(self.gaps, "after", "thread", "submitted", "returned")

    def label(self, operation: int) -> str:
        return self.trace.label(int(self.row[operation]))


@dataclass(frozen=True)
class Gaps:
    """Maximal idle gaps [start, end), from the trace's first event to its last; g of them, in time order."""

    timeline: Timeline = field(repr=False)
    start: Int64
    end: Int64
    closing: Index
    """[g] operation (index into the timeline) that starts at the gap's end: of several the one submitted first.
    -1 for the gap after the last operation, and for those beside operations without length."""
    unlinked: Bool
    """[g] the closing operation has no launch in the trace."""
    interior: Bool
    """[g] between two operations."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def launch(self) -> Index:
        """[g] row of the closing launch, -1 when there is none."""
        launch = self.timeline.launch[self.closing]  # a copy
        launch[self.unlinked | (self.closing == NONE)] = NONE
        return launch

    @cached_property
    def after(self) -> Bool:
        """[g] an operation of the closing operation's stream ended at the gap's start."""
        timeline, found = self.timeline, np.zeros(len(self), np.bool_)
        for part in blocks(len(timeline.row) if len(self) else 0):
            end = timeline.end[part]
            gap = np.minimum(np.searchsorted(self.start, end), len(self) - 1)
            ends = (self.start[gap] == end) & (end > timeline.start[part])
            ends &= timeline.stream[part] == timeline.stream[self.closing[gap]]
            found[gap[ends]] = True
        return found & self.interior

    @cached_property
    def thread(self) -> Index:
        """[g] the thread of the closing launch, -1 when there is none."""
        launch = self.launch
        return np.where(launch != NONE, self.timeline.trace.thread[launch], np.int32(NONE))

    @cached_property
    def submitted(self) -> Int64:
        """[g] the closing launch's start clamped into the gap: the host's side ends here. The gap's end after the last
        operation, its start where the closing operation has no launch."""
        launch = self.launch
        linked = np.flatnonzero(launch != NONE)
        found = np.where(self.unlinked, self.start, self.end)
        begun = self.timeline.trace.start_ns[launch[linked]]
        found[linked] = np.clip(begun, self.start[linked], self.end[linked])
        return found

    @cached_property
    def returned(self) -> Int64:
        """[g] the closing launch's end clamped into [submitted, end]; a later node of a replay does not wait for it."""
        launch = self.launch
        waits = np.flatnonzero(launch != NONE)
        waits = waits[~self.timeline.later_node[self.closing[waits]]]
        found = self.submitted.copy()
        done = self.timeline.trace.end_ns[launch[waits]]
        found[waits] = np.clip(done, found[waits], self.end[waits])
        return found


def several(launch: Index, linked: Bool, rows: int) -> Bool:
    """[m] one of several operations of a launch; `rows` are those of the trace."""
    found = linked.copy()
    found[found] = are_repeated(launch[found], rows)
    return found


def copy_classes(direction: str | None = None, memory: str | None = None) -> list[int]:
    """What copies in this direction and with this memory of the host's do, as `Timeline.op_class` has it; None is any."""
    return [FIRST_COPY + i for i, (d, m) in enumerate(COPIES) if direction in (None, d) and memory in (None, m)]


def directions(op_class: Int8) -> str:
    """Copies among these by direction, the most first: `12 HtoD and 3 DtoH copies`, `1 HtoD copy`."""
    names = [COPIES[kind - FIRST_COPY][0] for kind in op_class.tolist() if FIRST_COPY <= kind < SET]
    counts = sorted(((names.count(name), name) for name in dict.fromkeys(names)), key=lambda pair: -pair[0])
    return " and ".join(f"{count:,} {name}" for count, name in counts) + (" copy" if len(names) == 1 else " copies")


MOST_DEVICES = 64  # of a process: each is a timeline of its own; no server has as many


def is_graph_launch(call: str) -> bool:
    """A call that replays a graph, by its name."""
    return "graphlaunch" in call.lower()


def timelines(trace: Trace, hosts: dict[int, Host]) -> list[Timeline]:
    """One for each device with operations, by (process, device); of very many those with the most operations."""
    operations = trace.operations
    op_class = operation_classes(trace, operations)
    process, device = trace.process[operations], trace.device[operations]
    result = []
    for one in present(process).tolist():
        ordinals, count = np.unique(device[process == one], return_counts=True)
        for ordinal in np.sort(ordinals[np.argsort(-count, kind="stable")[:MOST_DEVICES]]).tolist():
            mine = where((process == one) & (device == ordinal))
            if len(mine) == len(operations):
                return [Timeline(trace, hosts[one], one, ordinal, operations, op_class)]
            result.append(Timeline(trace, hosts[one], one, ordinal, operations[mine], op_class[mine]))
    return result


def operation_classes(trace: Trace, operations: Index) -> Int8:
    """What each operation does, worked out once per distinct name."""
    kind = trace.kind[operations]
    op_class = np.full(len(operations), COMPUTE, np.int8)
    op_class[kind == Kind.SET] = SET
    by_name = np.full(len(trace.names), COMPUTE, np.int8)
    kernels, copies = where(kind == Kind.KERNEL), where(kind == Kind.COPY)
    name = trace.name_code[operations[kernels]]
    for code in present(name).tolist():
        if is_communication(trace.names[code]):
            by_name[code] = COMMUNICATION
    op_class[kernels] = by_name[name]
    name = trace.name_code[operations[copies]]
    for code in present(name).tolist():
        text = trace.names[code]
        by_name[code] = (
            MIGRATION if is_migration(text) else FIRST_COPY + COPIES.index((copy_direction(text), copy_memory(text)))
        )
    op_class[copies] = by_name[name]
    return op_class


def find_gaps(timeline: Timeline) -> tuple[Intervals, Gaps]:
    """The busy time, and the gaps with their closing operations: rule 1 of `gpu_trace_advisor.attribution`."""
    trace, busy = timeline.trace, union(timeline.start, timeline.end)
    # An operation without length before the first covered instant, or after the last one, cuts the time there in two:
    # what lies between it and the busy time belongs to no launch.
    first, last = timeline.span_ns
    none = not len(busy.start)
    head, tail = min(trace.origin_ns, first), max(int(trace.end_ns.max()), last)
    start = np.concatenate([[head, first], [last] if none else busy.end, [last]])
    end = np.concatenate([[first], [last] if none else busy.start, [last, tail]])
    if not none:  # the same numbers, in the same room
        busy = Intervals(end[1:-2], start[2:-1])
    n = len(start)
    low, high, numbers = 0, n, [0, 1, n - 2, n - 1]
    if end[1] == start[1]:  # put the one before in its place, so that those that are left lie one behind the other
        start[1], end[1], numbers[1], low = start[0], end[0], 0, 1
    if end[low] == start[low]:
        low += 1
    if end[n - 2] == start[n - 2]:
        start[n - 2], end[n - 2], numbers[2], high = start[n - 1], end[n - 1], n - 1, n - 1
    if end[high - 1] == start[high - 1]:
        high -= 1
    number = np.arange(n)
    number[[0, 1, n - 2, n - 1]] = numbers
    start, end, number = start[low:high], end[low:high], number[low:high]
    outside = (number == 1) | (number == n - 2)
    interior = (number > 1) & (number < n - 2)
    closes = interior | ((number == 0) & (int(busy.start[0] if len(busy.start) else last) == first) & (not none))
    del number
    closing = np.full(len(start), NONE, index_type(len(timeline.row)))
    closing[closes] = _closing(timeline, end[closes])
    linked = closes & timeline.linked[closing]
    return busy, Gaps(timeline, start, end, closing, (closes & ~linked) | outside, interior)


def _closing(timeline: Timeline, instant: Int64) -> Index:
    """[k] of the operations with length that start at these instants the one submitted first; unlinked ones last."""
    count = len(timeline.row)
    found = np.empty(len(instant), index_type(count))
    for part in blocks(len(instant)):  # of those that start together the longest comes first
        found[part] = np.searchsorted(timeline.start, instant[part])
    tied = np.flatnonzero(timeline.start[np.minimum(found + 1, count - 1)] == instant)
    tied = tied[found[tied] + 1 < count]
    if not len(tied):
        return found
    many = np.searchsorted(timeline.start, instant[tied], side="right") - found[tied]
    gap = np.repeat(tied, many)
    operation = np.arange(len(gap)) - np.repeat(np.cumsum(many) - many, many) + found[gap]
    lasts = timeline.end[operation] > timeline.start[operation]
    gap, operation = gap[lasts], operation[lasts]
    launch = timeline.launch[operation]
    submitted = np.where(launch != NONE, timeline.trace.start_ns[launch], np.iinfo(np.int64).max)
    order = np.lexsort((submitted, gap))[::-1]
    found[gap[order]] = operation[order]  # of several the one that is written last stays
    return found


@dataclass(frozen=True)
class Blocking:
    """Host calls that wait for the device (rule 4 of `gpu_trace_advisor.attribution`), on launching threads,
    in time order; q of them."""

    row: Int64
    is_copy: Bool
    busy_ns: Int64
    """[q] how long the device was busy while the call ran: the time it truly waited."""
    reads: Bool
    """[q] a copy to the host that waited for running work longer than it took itself: `.item()`, `.cpu()`. It is a
    synchronization, whatever the call is named."""


SKEW_NS = (
    50_000  # host and device clocks may disagree by so much (ROCm): a call may seem to return before its copy's end
)
BEGAN_LATER_NS = 50_000  # a copy that begins so long after its call waited for something
BLOCKING_COPY_NS = 20_000  # a shorter asynchronous copy call that outlasted its copy did so by chance


def blocking_calls(timeline: Timeline) -> Blocking:
    """Synchronisations by name, and copy calls that returned after their copy had ended."""
    trace, doing = timeline.trace, timeline.host.doing
    threads = np.array(timeline.host.launching, np.int64)
    syncs = where((doing == HostActivity.SYNC) & (trace.process == timeline.process))
    syncs = syncs[np.isin(trace.thread[syncs], threads)]
    copies = np.flatnonzero(timeline.linked & (timeline.op_class >= FIRST_COPY) & (timeline.op_class < SET))
    calls = timeline.launch[copies]
    long = trace.end_ns[calls] - trace.start_ns[calls] >= BLOCKING_COPY_NS
    returned, begun, waited = (
        trace.end_ns[calls],
        timeline.start[copies],
        timeline.start[copies] - trace.start_ns[calls],
    )
    to_host = np.isin(timeline.op_class[copies], copy_classes("DtoH"))
    skewed = to_host & (timeline.end[copies] <= returned + SKEW_NS) & (waited >= BEGAN_LATER_NS) & (begun < returned)
    skewed &= _busy_before(timeline.busy, begun)
    waits = (doing[calls] == HostActivity.COPY_CALL) & ((returned >= timeline.end[copies]) | skewed)
    waits &= np.isin(trace.thread[calls], threads)
    names, which, _ = counted(trace.name_code[calls])
    named = np.array([synchronous_copy(trace.names[code]) for code in names.tolist()], np.bool_)[which]
    copies_row = ascending(calls[waits & (long | named)])
    reads = ascending(calls[waits & to_host & long & (waited >= timeline.length[copies])])
    row = _outermost(ascending(np.concatenate([syncs, copies_row])), timeline.host)
    span = Intervals(trace.start_ns[row], trace.end_ns[row])
    return Blocking(row, among(row, copies_row), covered(span, timeline.busy), among(row, reads))


def _busy_before(busy: Intervals, instant: Int64) -> Bool:
    """[k] the device was at work until this instant, but for a launch's latency."""
    if not len(busy.start):
        return np.zeros(len(instant), np.bool_)
    at = np.searchsorted(busy.start, instant, side="left") - 1  # the last stretch that began before it
    return np.asarray((at >= 0) & (busy.end[np.maximum(at, 0)] >= instant - BLOCKING_COPY_NS), np.bool_)


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
    result, covered_so_far, before = [], NOTHING, 0
    for what in present(timeline.op_class).tolist():
        mine = clip(timeline.union_of(timeline.op_class == what), start, end)
        covered_so_far = merge(covered_so_far, mine) if len(covered_so_far.start) else mine
        ns = total(covered_so_far)
        result.append((int(what), ns - before))
        before = ns
    return result
