"""What the host was doing: each host record's class by its name, and on each thread the record that decides an instant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from gpu_trace_advisor.columns.codes import first_places, present
from gpu_trace_advisor.columns.compact import constant, where
from gpu_trace_advisor.columns.intervals import Intervals, ascending, overlaps, remainder, union
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.classes import dataclass, forget, keep
from gpu_trace_advisor.runtime.guarded import TookTooLong, time_limit
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int8, Int32, Int64, Kind, Trace


class HostActivity(IntEnum):
    """What a host record says its thread is doing. The first four win over whatever they enclose, in this order."""

    PROFILER = 0
    GARBAGE = 1
    DATALOADER = 2
    COMPILE = 3
    SYNC = 4  # blocking by name
    COPY_CALL = 5
    ALLOCATOR = 6
    MODULE = 7  # loading code, creating streams, events and contexts
    CALL = 8  # any other runtime call
    OPERATOR = 9
    PYTHON = 10
    RANGE = 11  # a user's annotation: counts only where nothing else is
    WAITING = 12  # a frame that waits for another thread
    STEP = 13  # a step marker: never a record
    NOTHING = 14


NAMES_A_GAP = (Kind.OPERATOR, Kind.PYTHON)
ENCLOSING = HostActivity.COMPILE  # this one and those before it win over what is inside them


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_LARGE = 500_000
"""Rows of a trace whose segments are worth giving up."""


@dataclass(frozen=True)
class _NamePattern:
    """Names that a pattern finds. Each of them holds one of the words (in lower case), which is faster to see."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]

    def holds(self, name: str, lower: str) -> bool:
        return any(word in lower for word in self.words) and self.pattern.search(name) is not None


DATALOADER = _NamePattern(("data", "batch", "iterator_ops"), _any(
    r"enumerate\(DataLoader\)", r"DataLoaderIter", r"torch/utils/data/", r"_next_data\b", r"DataPipe",
    r"\bdata[ _-]?load(?:er|ing)?\b", r"\bload[ _-]?(?:batch|data)\b", r"\bnext[ _-]?batch\b", r"wait_for_(?:training_)?batch",
    r"\bfetch[ _-]?(?:batch|data)\b", r"tensorflow/python/data/", r"iterator_ops\.py",
))  # fmt: skip
GARBAGE = _NamePattern(("gc", "collect"), _any(
    r"\bgc\.collect\b", r"built-in (?:function|method) collect\b", r"garbage[ _]collect", r"\bgc\.py\b", r"^python gc$"
))  # fmt: skip
COMPILE = _NamePattern(("torch/", "triton/", "compile", "dynamo_timed"), _any(
    r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_transformation|repro)",
    r"torch/_inductor/(?:compile_worker|graph|scheduler|lowering|codegen/|async_compile|codecache|fx_passes)",
    r"torch/_functorch/(?:partitioners|_aot_autograd/(?:graph_compile|dispatch_and_compile))",
    r"torch/fx/(?:interpreter|experimental/proxy_tensor)", r"triton/(?:compiler|backends)/", r"triton/runtime/build",
    r"\bfx_codegen_and_compile\b", r"\bcompile_fx_inner\b", r"^dynamo_timed", r"\bnvrtcCompile", r"_compile\.compile_inner",
))  # fmt: skip
PROFILER = _NamePattern(("profiler",), _any(
    r"torch/profiler/", r"torch/autograd/profiler\.py.*(?:_prepare_trace|_start_trace|_stop|__exit__.*profile)"
))  # fmt: skip
WAITING = _NamePattern(("run_backward", "acquire", "wait", "poll", "recv", "sleep", "get", "join", "select"), _any(
    r"\brun_backward\b", r"\bacquire\b", r"\bwait(?:_for_tstate_lock)?\b", r"\bpoll\b", r"\brecv(?:_bytes|_into|_multipart)?\b",
    r"\bsleep\b", r"queues?\.py\(\d+\): get\b", r"SimpleQueue.*\bget\b|\bget\b.*SimpleQueue",
    r"(?:threading|process|popen\w*|queues?|context)\.py\(\d+\): _?join\b", r"selectors?\.py\(\d+\): select\b",
    r"'select' of 'select|built-in (?:function|method) select of module|built-in function select\b",
))  # fmt: skip
WORKER = _any(r"_worker_loop\b", r"_pin_memory_loop\b", r"pt_data_worker", r"pt_data_pin", r"pin_memory")
STEP = re.compile(r"ProfilerStep[#*]")
# Ranges that programs and torch mark: up to torch 1.8 they are recorded as operators.
USER_RANGE = re.compile(r"^Optimizer\.\w+#|^##.*##$|^(?:Distributed)?DataParallel\.forward$")
ENGINE_STEP = re.compile(  # what vLLM, SGLang and TensorRT-LLM print
    r"execute_\w*\d|step\[|(?:\[\w+\] )?_forward_step \d+:"
)
COLLECTS_NS = 1_000_000  # a synchronisation returns within microseconds, unless it collects the profiler's records too
DEVICE_SYNCHRONISE = re.compile(r"(?:cuda|hip)DeviceSynchronize")
ALLOCATOR = _any(
    r"^(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))", r"^cuMem(?:Host)?(?:Alloc|Free)",
    r"^cuMem(?:Create|Map|Unmap|Release|SetAccess|Address|HostRegister|HostUnregister)", r"^(?:cuda|hip)MemPool",
)  # fmt: skip
MODULE = _any(
    r"Module(?:Load|Unload|Get)", r"Library(?:Load|Unload|Get)", r"^cuLink", r"StreamCreate", r"StreamDestroy", r"EventCreate",
    r"Ctx(?:Create|Destroy)", r"PrimaryCtx", r"^(?:cu|hip)Init", r"GraphInstantiate", r"KernelGetFunction", r"GetFuncBySymbol",
)  # fmt: skip
LAUNCH = re.compile(r"launch(?!hostfunc)", re.IGNORECASE)
MODULE_OVERHEAD = _any(r"Lazy Function Loading", r"Module Loading")
COMPILE_OVERHEAD = re.compile(r"Driver Compiler", re.IGNORECASE)
BACK_PRESSURE = re.compile(r"Command Buffer Full", re.IGNORECASE)


def doing_by_name(name: str, kind: int, marked: bool = False) -> HostActivity:
    """The class of a host record. A record whose name says nothing special is what its kind is. marked: as a step, if a range."""
    if kind == Kind.CALL:
        return _doing_call(name)
    if kind == Kind.OVERHEAD:
        return _doing_overhead(name)
    if kind not in (Kind.OPERATOR, Kind.PYTHON, Kind.RANGE):
        return HostActivity.NOTHING
    if STEP.match(name) or (kind == Kind.RANGE and (marked or ENGINE_STEP.match(name))):
        return HostActivity.STEP
    lower = name.lower()
    if kind == Kind.PYTHON and PROFILER.holds(name, lower):
        return HostActivity.PROFILER
    if kind != Kind.OPERATOR and GARBAGE.holds(name, lower):
        return HostActivity.GARBAGE
    if DATALOADER.holds(name, lower):
        return HostActivity.DATALOADER
    if COMPILE.holds(name, lower):
        return HostActivity.COMPILE
    if kind == Kind.OPERATOR and USER_RANGE.search(name):
        return HostActivity.RANGE
    if kind == Kind.PYTHON:
        return HostActivity.WAITING if WAITING.holds(name, lower) else HostActivity.PYTHON
    return HostActivity.OPERATOR if kind == Kind.OPERATOR else HostActivity.RANGE


def _doing_call(name: str) -> HostActivity:
    if "synchronize" in name.lower():
        return HostActivity.SYNC
    if ALLOCATOR.search(name):
        return HostActivity.ALLOCATOR
    if "memcpy" in name.lower():
        return HostActivity.COPY_CALL
    return HostActivity.MODULE if MODULE.search(name) else HostActivity.CALL


def _doing_overhead(name: str) -> HostActivity:
    if BACK_PRESSURE.search(name):
        return HostActivity.NOTHING
    if MODULE_OVERHEAD.search(name):
        return HostActivity.MODULE
    return HostActivity.COMPILE if COMPILE_OVERHEAD.search(name) else HostActivity.PROFILER


@dataclass(frozen=True)
class Segments:
    """One thread's time cut where the deciding record changes; k disjoint pieces in time order, holes where none is."""

    start: Int64
    end: Int64
    row: Index
    """[k] the deciding record."""
    doing: Int8

    @cached_property
    def span(self) -> Intervals:
        return Intervals(self.start, self.end)

    def where(self, mask: Bool) -> Segments:
        if mask.all():
            return self
        return Segments(self.start[mask], self.end[mask], self.row[mask], self.doing[mask])


@dataclass(frozen=True)
class Host:
    """The host side of one process."""

    trace: Trace
    doing: Int8
    """[n] class of every row of the trace; NOTHING for device rows."""
    parent: Int32
    """[n] the innermost record of its thread around a host row, -1 for none. Step markers are parents of none."""
    operator: Int32
    """[n] the innermost operator around a call (or the operator itself), -1 for none; likewise `frame`, `module`."""
    frame: Int32
    module: Int32
    launching: tuple[int, ...]
    """Threads by number of launches, most first; workers left out."""
    process: int

    @cached_property
    def segments(self) -> dict[int, Segments]:
        """Thread -> its segments, of each launching thread."""
        rows = _rows_by_thread(self.trace, _host_rows(self.trace, self.process), self.launching)
        return {thread: _flatten(self.trace, self.doing, mine) for thread, mine in rows.items()}

    def around(self, threads: Sequence[int]) -> Int32:
        """[n] the innermost record around each row, as `parent`, on these threads annotations among them."""
        here = np.isin(self.trace.thread, threads)
        if not (here & (self.doing == HostActivity.RANGE)).any():
            return self.parent
        found = self.parent.copy()
        nests = (self.doing != HostActivity.STEP) & (self.doing != HostActivity.NOTHING)
        for rows in _rows_by_thread(self.trace, here & nests, threads).values():
            found[rows] = NONE
            _sweep(self.trace, self.doing, rows, (found,))
        return found

    @cached_property
    def system_calls(self) -> dict[int, Segments]:
        """Thread -> its calls of the operating system, of each launching thread that has some."""
        rows = np.flatnonzero((self.trace.kind == Kind.OS) & (self.trace.process == self.process))
        if not len(rows):
            return {}
        plain = constant(HostActivity.CALL, len(self.trace), np.int8)
        by_thread = _rows_by_thread(self.trace, self.trace.kind == Kind.OS, self.launching)
        return {thread: _sweep(self.trace, plain, mine) for thread, mine in by_thread.items() if len(mine)}

    def covering(self, thread: int, start: int, end: int) -> int:
        """The deepest operator or frame of a thread that covers at least half of [start, end), -1 for none.

        What covers half of it covers its middle, so it is among those around the record there.
        """
        segments, middle = self.segments.get(thread), (start + end) // 2
        if segments is None or not len(segments.start):
            return NONE
        at = int(np.searchsorted(segments.start, middle, side="right")) - 1
        # Between two records of one block there may be a hole: the block is around either of them.
        row = int(segments.row[max(at, 0)])
        while row != NONE:
            first, last = int(self.trace.start_ns[row]), int(self.trace.end_ns[row])
            if 2 * (min(last, end) - max(first, start)) >= end - start and self.trace.kind[row] in NAMES_A_GAP:
                return row
            row = int(self.parent[row])
        return NONE

    def forget(self) -> None:
        """Give up the segments of a large trace, which few look at after its graph is built."""
        if len(self.trace) >= _LARGE:
            forget(self, "segments")


def read_host(trace: Trace, process: int, step_marker: re.Pattern[str] | None = None, also: Sequence[int] = ()) -> Host:
    """Classify the host rows of a process and flatten its launching threads, and the threads `also`."""
    doing = _doing(trace, step_marker)
    doing = _with_profiler_stop(trace, _with_first_uses(trace, doing, process), process)
    host = _host_rows(trace, process)
    held = (host.any(), *((host & (trace.kind == kind)).any() for kind in (Kind.OPERATOR, Kind.PYTHON, Kind.PYTHON)))
    parent, operator, frame, module = (
        np.full(len(trace), NONE, np.int32) if any_ else constant(NONE, len(trace), np.int32) for any_ in held
    )
    threads = list(dict.fromkeys([*_launching_threads(trace, process), *also]))
    segments = {}
    by_thread = _rows_by_thread(trace, host, threads)
    for thread, rows in by_thread.items():
        segments[thread] = _flatten(trace, doing, rows, (parent, operator, frame, module))
    segments = {t: s for t, s in segments.items() if not _is_worker(trace, t, by_thread[t])}
    launching = tuple(t for t in threads if t in segments)
    del by_thread, host
    parent = parent if (parent != NONE).any() else constant(NONE, len(trace), np.int32)
    classified = Host(trace, doing, parent, operator, frame, module, launching, process)
    keep(classified, "segments", segments)
    return classified


def captures(trace: Trace, process: int) -> dict[int, Segments]:
    """Thread -> the stretches from the begin to the end of a stream capture: launches in them run nothing, by nature.

    One that does not end in the recording lasts until the thread's last call.
    """
    begins, ends = (
        np.array([f"Stream{word}Capture" in name for name in trace.names], np.bool_) for word in ("Begin", "End")
    )
    found: dict[int, Segments] = {}
    if not begins.any():
        return found
    calls = np.flatnonzero((trace.kind == Kind.CALL) & (trace.process == process))
    for thread in present(trace.thread[calls[begins[trace.name_code[calls]]]]).tolist():
        mine = calls[trace.thread[calls] == thread]
        begun, done = mine[begins[trace.name_code[mine]]], trace.end_ns[mine[ends[trace.name_code[mine]]]]
        start = trace.start_ns[begun]
        last = np.append(np.sort(done), trace.end_ns[mine].max())
        end = last[np.searchsorted(last[:-1], start, side="right")]
        end[:-1] = np.minimum(end[:-1], start[1:])  # a capture inside a capture of another stream
        found[thread] = Segments(start, end, begun, np.full(len(begun), HostActivity.MODULE, np.int8))
    return found


def _host_rows(trace: Trace, process: int) -> Bool:
    """[n] on a thread of the process."""
    found: Bool = (trace.process == process) & (trace.thread != NONE) & (trace.kind < Kind.KERNEL)
    return found


def _doing(trace: Trace, step_marker: re.Pattern[str] | None) -> Int8:
    """Class of every row, worked out once per distinct (name, kind)."""
    doing = np.full(len(trace), HostActivity.NOTHING, np.int8)
    host = np.flatnonzero(trace.kind < Kind.OS)
    key = trace.name_code[host].astype(np.int64) * 8 + trace.kind[host]
    found = present(key)
    table = np.zeros(int(found[-1]) + 1 if len(found) else 1, np.int8)
    marked = matching(trace, step_marker) if step_marker else np.zeros(len(trace.names), np.bool_)
    for code in found.tolist():
        table[code] = doing_by_name(trace.names[code // 8], code % 8, bool(marked[code // 8]))
    doing[host] = table[key]
    return doing


def matching(trace: Trace, marker: re.Pattern[str]) -> Bool:
    """[names] those of ranges and operators that a pattern of step markers matches from their start.

    Raises:
        BadUsage: that takes longer than any good pattern would.
    """
    names = present(trace.name_code[np.isin(trace.kind, MARKING)]).tolist()
    matches = np.zeros(len(trace.names), np.bool_)
    try:
        with time_limit(MATCHING_S):
            matches[[code for code in names if marker.match(trace.names[code])]] = True
    except TookTooLong:
        raise BadUsage(
            f"--step-marker {marker.pattern}: matching it with {len(names):,} names takes longer than {MATCHING_S:g} s; "
            "repeat nothing inside a repeat, as in (a+)+"
        ) from None
    return matches


MATCHING_S = 10.0  # a million names take one second
MARKING = (Kind.RANGE, Kind.OPERATOR, Kind.SPAN)  # kinds of records that can mark steps
MOST_THREADS = 256  # of the threads that launch: what each one did is asked for each gap; no program known has as many
FEW_THREADS = 8  # a look at all rows for each of so few takes less than sorting them
CONTEXT_NS = 100_000_000
FIRST_USE_NS = 200_000  # a call this much longer at its first use loads something


def _with_first_uses(trace: Trace, doing: Int8, process: int) -> Int8:
    """A process's first use of an API, when it takes over 200 µs and is neither a launch nor blocking, is start-up."""
    calls = np.flatnonzero((doing == HostActivity.CALL) & (trace.process == process))
    if not len(calls):
        return doing
    first = calls[first_places(trace.name_code[calls])[1]]
    slow = first[(trace.end_ns[first] - trace.start_ns[first] > FIRST_USE_NS)]
    slow = np.array([row for row in slow.tolist() if not LAUNCH.search(trace.label(row))], np.int64)
    # A first cudaFree or cudaMalloc of so long creates the context; it allocates or frees nothing worth the time.
    memory = np.flatnonzero((doing == HostActivity.ALLOCATOR) & (trace.process == process))[:1]
    slow = np.concatenate([slow, memory[trace.end_ns[memory] - trace.start_ns[memory] > CONTEXT_NS]])
    if len(slow):
        doing = doing.copy()
        doing[slow] = HostActivity.MODULE
    return doing


def _with_profiler_stop(trace: Trace, doing: Int8, process: int) -> Int8:
    """torch.profiler synchronises the device when it stops: the last call of a recording, where it waits for nothing,
    or goes on long after the device is done."""
    host = np.flatnonzero((trace.process == process) & np.isin(trace.kind, (Kind.OPERATOR, Kind.CALL)))
    operations = trace.operations[trace.process[trace.operations] == process]
    if trace.format != "kineto" or not len(host) or not len(operations):
        return doing
    last = int(host[-1])
    done = int(trace.end_ns[operations].max())
    idle = trace.start_ns[last] >= done or trace.end_ns[last] - done >= COLLECTS_NS
    if idle and trace.kind[last] == Kind.CALL and DEVICE_SYNCHRONISE.match(trace.label(last)):
        doing = doing.copy()
        doing[last] = HostActivity.PROFILER
    return doing


def _launching_threads(trace: Trace, process: int) -> list[int]:
    operations = trace.operations
    launches = trace.launch[operations[trace.process[operations] == process]]
    count = np.bincount(trace.thread[ascending(launches[launches != NONE])] + 1)[1:]
    return [t for t in np.argsort(-count, kind="stable")[:MOST_THREADS].tolist() if count[t]]


def _rows_by_thread(trace: Trace, host: Bool, threads: Sequence[int]) -> dict[int, Index]:
    if len(threads) <= FEW_THREADS:
        return {thread: where(host & (trace.thread == thread)) for thread in threads}
    rows = where(host & np.isin(trace.thread, threads))
    rows = rows[np.argsort(trace.thread[rows], kind="stable")]
    ends = np.searchsorted(trace.thread[rows], threads, side="right")
    begins = np.searchsorted(trace.thread[rows], threads, side="left")
    return {thread: rows[a:b] for thread, a, b in zip(threads, begins.tolist(), ends.tolist(), strict=True)}


def _is_worker(trace: Trace, thread: int, rows: Index) -> bool:
    if WORKER.search(trace.threads[thread].name):
        return True
    frames = present(trace.name_code[rows[trace.kind[rows] == Kind.PYTHON]])
    return any(WORKER.search(trace.names[code]) for code in frames.tolist())


def _flatten(trace: Trace, doing: Int8, rows: Index, around: Sequence[Int32] = ()) -> Segments:
    """Segments of one thread; writes the enclosing rows of each of its rows to `around`: parent, operator, frame, module."""
    firm = rows[
        (doing[rows] != HostActivity.STEP) & (doing[rows] != HostActivity.NOTHING) & (doing[rows] != HostActivity.RANGE)
    ]
    main = _with_loose_overhead(trace, doing, firm, _sweep(trace, doing, firm, around))
    ranges = rows[doing[rows] == HostActivity.RANGE]
    if not len(ranges):
        return main
    soft = _sweep(trace, doing, ranges)
    free = remainder(soft.span, overlaps(soft.span, union(main.start, main.end)))
    return _join(main, Segments(free.start, free.end, soft.row[free.left], soft.doing[free.left]))


def _join(a: Segments, b: Segments, kept: Bool | None = None) -> Segments:
    """Two disjoint sets of segments as one; of `a` those that are `kept`.

    The columns of `a` are used up one by one, where nobody else holds them.
    """
    if not len(b.start) and kept is None:
        return a
    before: list[Any] = [a.start, a.end, a.row, a.doing]
    # Where each piece comes to stand, worked out once for all columns.
    at = np.searchsorted(a.start if kept is None else a.start[kept], b.start) + np.arange(len(b.start))
    rest = np.ones((len(a.start) if kept is None else int(kept.sum())) + len(b.start), np.bool_)
    rest[at] = False
    del a
    for i, new in enumerate((b.start, b.end, b.row, b.doing)):
        column = np.empty(len(rest), before[i].dtype)
        column[rest] = before[i] if kept is None else before[i][kept]
        column[at] = new
        before[i] = column
    return Segments(*before)


def _with_loose_overhead(trace: Trace, doing: Int8, rows: Index, main: Segments) -> Segments:
    """Profiler overhead that names no thread counts only inside a runtime call of this one."""
    loose = np.flatnonzero((trace.kind == Kind.OVERHEAD) & (trace.thread == NONE) & (doing != HostActivity.NOTHING))
    calls = rows[trace.kind[rows] == Kind.CALL]
    if not len(loose) or not len(calls):
        return main
    flat = _sweep(trace, doing, loose)
    inside = overlaps(flat.span, union(trace.start_ns[calls], trace.end_ns[calls]))
    if not len(inside.start):
        return main
    owner = flat.row[inside.left]
    # Only the segments that an overhead record touches are cut anew.
    touched = ascending(overlaps(Intervals(inside.start, inside.end), main.span).right)
    touched = touched[trace.kind[main.row[touched]] == Kind.CALL]
    mine = np.zeros(len(main.start), np.bool_)
    mine[touched] = True
    cut = main.where(mine)
    hit = overlaps(cut.span, Intervals(inside.start, inside.end))
    free = remainder(cut.span, hit)
    row = owner[hit.right]
    pieces = _join(
        Segments(free.start, free.end, cut.row[free.left], cut.doing[free.left]),
        Segments(hit.start, hit.end, row, doing[row]),
    )
    return _join(main, pieces, ~mine)


def _sweep(trace: Trace, doing: Int8, rows: Index, into: Sequence[Int32] = ()) -> Segments:
    n = len(rows)
    is_module = np.zeros(len(trace.names), np.bool_)
    frames = present(trace.name_code[rows[trace.kind[rows] == Kind.PYTHON]]).tolist()
    is_module[[code for code in frames if trace.names[code].startswith("nn.Module: ")]] = True
    # Each piece begins where a record starts or ends.
    start, end = np.zeros(2 * n + 1, np.int64), np.zeros(2 * n + 1, np.int64)
    row, what = np.zeros(2 * n + 1, np.int32), np.zeros(2 * n + 1, np.int8)
    around = [np.full(n, NONE, np.int32) for _ in range(4)]
    stacks = [np.empty(n + 1, np.int32) for _ in range(2)]
    kinds, names = trace.kind[rows], trace.name_code[rows]
    count = compiled.call(
        loops.sweep_nested,
        (
            trace.start_ns[rows], trace.end_ns[rows], doing[rows], kinds == Kind.OPERATOR,
            kinds == Kind.PYTHON, (kinds == Kind.PYTHON) & is_module[names], int(ENCLOSING),
        ),
        (start, end, row, what, *around, *stacks),
    )  # fmt: skip
    for column, found in zip(into, around, strict=False):
        known = np.flatnonzero(found != NONE)
        if len(known):
            column[rows[known]] = rows[found[known]]
    pieces: list[Any] = [start, end, row, what]
    del start, end, row, what, around, stacks
    for i, column in enumerate(pieces):  # one at a time, so that the room for what could have been is given back
        pieces[i] = column[:count].copy() if i != 2 else rows[column[:count]]
    return Segments(*pieces)
