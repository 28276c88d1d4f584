"""What people ask of one device's window: kernels, copies, launches, operators, modules, the largest gaps, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpu_trace_advisor.attribution import HOST, SIDES, Attribution, Pieces, take
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.columns.codes import counted, present
from gpu_trace_advisor.columns.compact import where
from gpu_trace_advisor.columns.intervals import ascending, clip, total
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, COPIES, FIRST_COPY, MIGRATION, SET, Timeline
from gpu_trace_advisor.timelines.host import LAUNCH, HostActivity, captures
from gpu_trace_advisor.trace.kernel_names import kernel_class, readable
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Index, Int32, Int64, Kind, Memory, Trace

FRAMEWORK_PATH = re.compile(
    r"^<built-in|^nn\.Module: |site-packages|dist-packages|^torch/|^triton/|/lib/python|importlib|^threading\.py|^contextlib\.py"
)
PREPARING = ("framework", "python")  # causes whose records are many and small: what is around them says more
MIGRATIONS = "page migration"
PYTHON_LINE = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)$")

MATRIX_CLASSES = ("gemm", "attention", "convolution")
"""Classes of kernels that do nearly all the FLOPs."""


@dataclass(frozen=True)
class KernelTime:
    """The operations of one name; ns summed over streams, clipped to the window."""

    name: str
    kernel_class: str
    calls: int
    ns: int

    @property
    def short(self) -> str:
        return readable(self.name)


@dataclass(frozen=True)
class CopyTime:
    """Copies of one kind, or sets; ns summed over streams, clipped to the window."""

    kind: str
    """Direction and memory of the host's side, such as `HtoD pinned`; `memset`; `page migration` of managed memory."""
    calls: int
    ns: int
    bytes: int | None
    """None where the trace does not say."""


@dataclass(frozen=True)
class Launches:
    """Calls that submit device work."""

    calls: int
    linked: int
    without_operation: int
    operations_without_launch: int
    graph_launches: int
    graph_operations: int
    queue_delay_ns: tuple[int, int] | None
    """Median and longest time between a call's return and its operation's start, 0 where the operation started before;
    None when nothing is linked. It is queueing, not overhead, and attributed to nothing."""


@dataclass(frozen=True)
class OwnerTime:
    """GPU time by the operator or module that launched it; ns summed over streams."""

    name: str
    calls: int
    kernels: int
    ns: int


@dataclass(frozen=True)
class GapPart:
    """What a gap was idle for on one side, in ns."""

    cause: str
    side: str
    ns: int
    evidence: str
    """The record that decided, empty when nothing was recorded."""


@dataclass(frozen=True)
class Gap:
    """An idle gap of the device inside the window."""

    start_ns: int
    end_ns: int
    closed_by: str
    """The operation that ended it, empty at the window's end."""
    parts: tuple[GapPart, ...]
    python: str
    """The user's Python line that led to it, empty where no stacks were recorded."""
    at_ms: float
    """Start, in milliseconds from the trace's first event, as findings count."""

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class MemoryUse:
    """Bytes; None where no event tells."""

    device: int
    peak_allocated: int | None
    peak_reserved: int | None
    baseline: int | None
    """Allocated before the first event."""


def inside(timeline: Timeline, start: int, end: int) -> Index:
    """Operations that run in [start, end), and instantaneous ones at its edges."""
    runs = (timeline.start < end) & (timeline.end > start)
    instant = (timeline.start == timeline.end) & (timeline.start >= start) & (timeline.start <= end)
    return where(runs | instant)


def clipped_ns(timeline: Timeline, operations: Index, start: int, end: int) -> Int64:
    """[k] ns of each of these operations inside [start, end)."""
    return np.minimum(timeline.end[operations], end) - np.maximum(timeline.start[operations], start)


def kernels_by_name(timeline: Timeline, operations: Index, ns: Int64) -> list[KernelTime]:
    """Kernels and whole-graph replays, longest first."""
    trace = timeline.trace
    at = np.isin(trace.kind[timeline.row[operations]], (Kind.KERNEL, Kind.GRAPH))
    codes, inverse, calls = counted(trace.name_code[timeline.row[operations[at]]])
    total = np.zeros(len(codes), np.int64)
    np.add.at(total, inverse, ns[at])
    found = [
        KernelTime(trace.names[code], kernel_class(trace.names[code]), int(n), int(t))
        for code, n, t in zip(codes.tolist(), calls.tolist(), total.tolist(), strict=True)
    ]
    return sorted(found, key=lambda kernel: (-kernel.ns, kernel.name))


def ns_by_class(timeline: Timeline, operations: Index) -> Counter[str]:
    """Time of the kernels among these operations by class, summed over streams; whole, not cut at a window."""
    on = operations[timeline.is_kernel[operations]]
    codes, which, _ = counted(timeline.trace.name_code[timeline.row[on]])
    total = np.zeros(len(codes), np.int64)
    np.add.at(total, which, timeline.length[on])
    sums: Counter[str] = Counter()
    for code, ns in zip(codes.tolist(), total.tolist(), strict=True):
        sums[kernel_class(timeline.trace.names[code])] += ns
    return sums


def copies_by_kind(timeline: Timeline, operations: Index, ns: Int64) -> list[CopyTime]:
    """Copies by direction and host memory, and sets."""
    op_class = timeline.op_class[operations]
    size = timeline.trace.bytes[timeline.row[operations]]
    found = []
    for what in present(op_class[op_class >= FIRST_COPY]).tolist():
        mine = op_class == what
        known = size[mine][size[mine] != NONE]
        kind = {SET: "memset", MIGRATION: MIGRATIONS}.get(what) or " ".join(COPIES[what - FIRST_COPY]).strip()
        total = int(known.sum()) if len(known) == int(mine.sum()) else None
        found.append(CopyTime(kind, int(mine.sum()), int(ns[mine].sum()), total))
    return sorted(found, key=lambda copy: -copy.ns)


def launches(timeline: Timeline, operations: Index, start: int, end: int) -> Launches:
    """Launch calls of these operations, and calls in [start, end) that launch by name and have none."""
    trace = timeline.trace
    linked = operations[timeline.linked[operations]]
    rows = ascending(timeline.launch[linked])
    replayed = timeline.by_graph[linked]
    delay = np.maximum(timeline.start[linked] - timeline.launch_end[linked], 0)[~timeline.later_node[linked]]
    lost = lost_launches(timeline)
    lost = lost[(trace.start_ns[lost] >= start) & (trace.start_ns[lost] < end)]
    return Launches(
        calls=len(rows) + len(lost),
        linked=len(rows),
        without_operation=len(lost),
        operations_without_launch=int((~timeline.linked & (timeline.op_class != MIGRATION))[operations].sum()),
        graph_launches=len(ascending(timeline.launch[linked[replayed]])),
        graph_operations=int(replayed.sum()),
        queue_delay_ns=(int(np.median(delay)), int(delay.max())) if len(delay) else None,
    )


def launches_without_operation(trace: Trace, process: int) -> Int64:
    """Calls that launch a kernel or graph by name and have no operation in the trace; those that were captured into a graph
    have none by nature."""
    calls = np.flatnonzero((trace.kind == Kind.CALL) & (trace.process == process))
    calls = calls[named(trace, trace.name_code[calls], lambda name: LAUNCH.search(name) is not None)]
    launched = np.zeros(len(trace) + 1, np.bool_)  # the last one for operations without a launch
    launched[trace.launch[trace.operations]] = True
    lost = calls[~launched[calls]]
    for thread, spans in captures(trace, process).items():
        within = np.searchsorted(spans.start, trace.start_ns[lost], side="right") - 1
        captured = (within >= 0) & (trace.start_ns[lost] < spans.end[np.maximum(within, 0)])
        lost = lost[~captured | (trace.thread[lost] != thread)]
    return lost


def lost_launches(timeline: Timeline) -> Int64:
    """Those of the timeline's process; a driver call inside the runtime call that makes it is the same launch."""
    lost = launches_without_operation(timeline.trace, timeline.process)
    parent = timeline.host.parent[lost]
    apart: Int64 = lost[(parent == NONE) | (timeline.trace.kind[parent] != Kind.CALL)]
    return apart


def operators(timeline: Timeline, operations: Index, ns: Int64) -> list[OwnerTime]:
    """GPU time by the innermost operator around the launch."""
    return _owners(timeline, timeline.host.operator, operations, ns)


def modules(timeline: Timeline, operations: Index, ns: Int64) -> list[OwnerTime]:
    """GPU time by the innermost `nn.Module` around the launch, where stacks were recorded."""
    found = _owners(timeline, timeline.host.module, operations, ns)
    return [OwnerTime(o.name.removeprefix("nn.Module: "), o.calls, o.kernels, o.ns) for o in found]


def _owners(timeline: Timeline, owner: Int32, operations: Index, ns: Int64) -> list[OwnerTime]:
    trace = timeline.trace
    linked = timeline.linked[operations]
    rows = owner[timeline.launch[operations[linked]]]
    times = ns[linked]
    known = rows != NONE
    rows, times = rows[known], times[known]
    codes, inverse, count = counted(trace.name_code[rows])
    total = np.zeros(len(codes), np.int64)
    np.add.at(total, inverse, times)
    _, _, instances = counted(trace.name_code[ascending(rows)])
    found = [
        OwnerTime(trace.names[code], n, k, t)
        for code, n, k, t in zip(codes.tolist(), instances.tolist(), count.tolist(), total.tolist(), strict=True)
    ]
    return sorted(found, key=lambda item: (-item.ns, item.name))


def largest_gaps(attribution: Attribution, start: int, end: int, count: int = 10) -> list[Gap]:
    """The longest gaps of [start, end), each with what the host did in it."""
    timeline, gaps, pieces = attribution.timeline, attribution.timeline.gaps, attribution.pieces
    length = np.minimum(gaps.end, end)
    length -= np.maximum(gaps.start, start)
    most = np.sort(np.partition(length, -count)[-count:])[:1] if len(length) > count else length[:0]
    longest = np.flatnonzero(length >= max(int(most.max(initial=1)), 1))
    longest = longest[np.argsort(-length[longest], kind="stable")][:count]
    low, high = (np.clip(times, start, end) for times in (gaps.start[longest], gaps.end[longest]))
    parts_of = [pieces.part(slice(int(pieces.first[gap]), int(pieces.first[gap + 1]))) for gap in longest.tolist()]
    found = []
    for gap, mine, low_ns, high_ns in zip(longest.tolist(), parts_of, low.tolist(), high.tolist(), strict=True):
        mine = take(mine, np.flatnonzero((mine.end > low_ns) & (mine.start < high_ns)))
        closing = int(gaps.closing[gap])
        around = around_gap(timeline, closing, low_ns, high_ns)
        parts = _gap_parts(timeline.trace, mine, low_ns, high_ns, around)
        closed = readable(timeline.label(closing)) if closing != NONE and gaps.end[gap] <= end else ""
        at_ms = round((low_ns - timeline.trace.origin_ns) / 1e6, 6)
        found.append(Gap(low_ns, high_ns, closed, parts, _python_line(timeline, mine, closing), at_ms))
    return found


def around_gap(timeline: Timeline, closing: int, low: int, high: int) -> int:
    """The deepest operator or frame that covers at least half of a gap, of the thread that ended it; -1 for none."""
    if closing == NONE or not timeline.linked[closing]:
        return NONE
    return timeline.host.covering(int(timeline.trace.thread[timeline.launch[closing]]), low, high)


def _gap_parts(trace: Trace, pieces: Pieces, low: int, high: int, around: int) -> tuple[GapPart, ...]:
    """By cause and side. What prepares launches is named by what covers half of the gap, where there is such a record."""
    sums: Counter[tuple[int, int]] = Counter()
    longest: dict[tuple[int, int], tuple[int, int]] = {}
    for piece in range(len(pieces)):
        key = (int(pieces.cause[piece]), int(pieces.side[piece]))
        ns = min(int(pieces.end[piece]), high) - max(int(pieces.start[piece]), low)
        sums[key] += ns
        longest[key] = max(longest.get(key, (0, NONE)), (ns, int(pieces.row[piece])))
    named = {key: row for key, (_, row) in longest.items()}
    prepares = [key for key, _ in sums.most_common() if IDLE[key[0]] in PREPARING and key[1] == HOST][:1]
    for key in prepares if around != NONE else ():
        if 2 * longest[key][0] < high - low:  # no single record is half of the gap
            named[key] = around
    return tuple(
        GapPart(
            IDLE[cause], SIDES[side], ns, readable_host(trace, named[cause, side]) if named[cause, side] != NONE else ""
        )
        for (cause, side), ns in sums.most_common()
    )


def readable_host(trace: Trace, row: int) -> str:
    """A host record's name without addresses."""
    return re.sub(r" (?:object )?at 0x[0-9a-fA-F]+", "", trace.label(row))


def _python_line(timeline: Timeline, pieces: Pieces, closing: int) -> str:
    """The innermost line of the user's own code around the gap's longest host record, else around its launch."""
    host, mine = timeline.host, np.flatnonzero(pieces.side == HOST)
    length = pieces.end[mine] - pieces.start[mine]
    rows = sorted(zip(length.tolist(), pieces.row[mine].tolist(), strict=True), reverse=True)
    if closing != NONE and timeline.linked[closing]:
        rows.append((0, int(timeline.launch[closing])))
    for _, row in rows:
        if row != NONE and (line := user_line(timeline, int(host.frame[row]))):
            return line
    return ""


def user_line(timeline: Timeline, frame: int) -> str:
    """The innermost frame from here outwards that is no library's, as `file.py(12): function`; else nothing."""
    trace, host = timeline.trace, timeline.host
    while frame != NONE:
        name = trace.label(frame)
        if PYTHON_LINE.match(name) and not FRAMEWORK_PATH.search(name):
            return name
        above = int(host.parent[frame])
        frame = int(host.frame[above]) if above != NONE else NONE
    return ""


def memory_use(memory: Memory) -> list[MemoryUse]:
    """Peaks for each device that has allocator events; device -1 is the CPU. Never merged."""
    found = []
    for device in present(memory.device).tolist():
        mine = memory.device == device
        allocated, reserved = memory.allocated[mine], memory.reserved[mine]
        known = allocated != NONE
        first = int(np.flatnonzero(known)[0]) if known.any() else None
        found.append(
            MemoryUse(
                device=int(device),
                peak_allocated=int(allocated.max()) if known.any() else None,
                peak_reserved=int(reserved.max()) if (reserved != NONE).any() else None,
                baseline=None if first is None else int(allocated[first] - memory.bytes[mine][first]),
            )
        )
    return found


@dataclass(frozen=True)
class HostTime:
    """Host records of one name: their time summed over threads, in ns."""

    name: str
    calls: int
    ns: int
    share: float
    median_ns: int


def host_ranges(trace: Trace, kinds: Sequence[Kind], limit: int = 15) -> list[HostTime]:
    """For a trace without GPU work: its ranges or operators by total time. Share is of the trace's span.

    Calls of one name that run inside each other count once.
    """
    rows = np.flatnonzero(np.isin(trace.kind, kinds))
    span = int(trace.end_ns.max() - trace.origin_ns) if len(trace) else 0
    found = []
    order = np.lexsort((trace.start_ns[rows], trace.thread[rows], trace.name_code[rows]))
    rows = rows[order]
    codes, firsts, counts = np.unique(trace.name_code[rows], return_index=True, return_counts=True)
    for code, first, n in zip(codes.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        mine = rows[first : first + n]
        # Each thread shifted past the one before, so that one running maximum serves all.
        shift = (trace.thread[mine].astype(np.int64) + 1) * (span + 1) - trace.origin_ns
        start, end = trace.start_ns[mine] + shift, trace.end_ns[mine] + shift
        outer = np.ones(n, np.bool_)
        outer[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
        total = int((end - start)[outer].sum())
        found.append(
            HostTime(trace.names[code], int(n), total, total / span if span else 0.0, int(np.median(end - start)))
        )
    return sorted(found, key=lambda item: (-item.ns, item.name))[:limit]


def sync_calls(attribution: Attribution, start: int, end: int) -> tuple[int, int]:
    """How many blocking synchronisations and blocking copies returned inside [start, end)."""
    trace, blocking = attribution.timeline.trace, attribution.blocking
    returned = trace.end_ns[blocking.row]
    inside_ = (returned >= start) & (returned < end)
    return int((inside_ & ~blocking.is_copy).sum()), int((inside_ & blocking.is_copy).sum())


def communication_ns(timeline: Timeline, start: int, end: int) -> int:
    """Time in [start, end) with a communication kernel running, hidden or not."""
    return total(clip(timeline.union_of(timeline.op_class == COMMUNICATION), start, end))


def allocation_calls(timeline: Timeline, start: int, end: int) -> int:
    """Calls in [start, end) that allocate or free device or pinned memory."""
    trace, doing = timeline.trace, timeline.host.doing
    rows = np.flatnonzero((doing == HostActivity.ALLOCATOR) & (trace.process == timeline.process))
    return int(((trace.start_ns[rows] >= start) & (trace.start_ns[rows] < end)).sum())


def counts_by_step(
    attribution: Attribution, operations: Sequence[Int64], spans: Sequence[tuple[int, int]]
) -> list[dict[str, int]]:
    """For each step what happened how often: of its operations, and of the host's calls in its span [start, end)."""
    timeline, blocking = attribution.timeline, attribution.blocking
    trace = timeline.trace
    returned = trace.end_ns[blocking.row]
    allocating = (timeline.host.doing == HostActivity.ALLOCATOR) & (trace.process == timeline.process)
    lost = trace.start_ns[lost_launches(timeline)]
    calls = {
        "launches": np.sort(lost),
        "syncs": np.sort(returned[~blocking.is_copy]),
        "blocking-copies": np.sort(returned[blocking.is_copy]),
        "allocations": np.sort(trace.start_ns[np.flatnonzero(allocating)]),
    }
    found = []
    for mine, (start, end) in zip(operations, spans, strict=True):
        op_class = timeline.op_class[mine]
        counts = {
            "kernels": int(timeline.is_kernel[mine].sum()),
            "operations": len(mine),
            "launches": len(ascending(timeline.launch[mine[timeline.linked[mine]]])),
            "copies": int(((op_class >= FIRST_COPY) & (op_class != SET)).sum()),
        }
        for name, at in calls.items():
            low, high = np.searchsorted(at, (start, end))
            counts[name] = counts.get(name, 0) + int(high - low)
        found.append(counts)
    return found
