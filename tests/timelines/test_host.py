"""What host records are by their names, and which one decides on each thread."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.timelines.host import Host, HostActivity, doing_by_name, read_host
from gpu_trace_advisor.trace.model import NONE, Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build import Event, annotation, call, event, frame, idle, kernel, op, overhead, step, sync, timeline, trace
from tests.plain_loops import plain_loops


@pytest.mark.parametrize(
    ("name", "doing"),
    [
        ("cudaLaunchKernel", HostActivity.CALL),
        ("cudaGraphLaunch", HostActivity.CALL),
        ("cudaEventRecord", HostActivity.CALL),
        ("cudaStreamWaitEvent", HostActivity.CALL),
        ("cudaMemsetAsync", HostActivity.CALL),
        ("cudaDeviceSynchronize", HostActivity.SYNC),
        ("hipStreamSynchronize", HostActivity.SYNC),
        ("cuEventSynchronize", HostActivity.SYNC),
        ("cudaMemcpyAsync", HostActivity.COPY_CALL),
        ("cuMemcpyHtoDAsync_v2", HostActivity.COPY_CALL),
        ("hipMemcpyWithStream", HostActivity.COPY_CALL),
        ("cudaMalloc", HostActivity.ALLOCATOR),
        ("cudaFree_v3020", HostActivity.ALLOCATOR),
        ("cudaHostAlloc", HostActivity.ALLOCATOR),
        ("cudaHostRegister", HostActivity.ALLOCATOR),
        ("cudaFreeAsync", HostActivity.ALLOCATOR),
        ("cuMemCreate", HostActivity.ALLOCATOR),
        ("hipMalloc", HostActivity.ALLOCATOR),
        ("cuModuleLoadData", HostActivity.MODULE),
        ("cuLibraryLoadData", HostActivity.MODULE),
        ("cudaStreamCreateWithFlags", HostActivity.MODULE),
        ("cudaEventCreateWithFlags", HostActivity.MODULE),
        ("cuDevicePrimaryCtxRetain", HostActivity.MODULE),
        ("cuInit", HostActivity.MODULE),
        ("cudaGraphInstantiate", HostActivity.MODULE),
    ],
)
def test_runtime_calls(name: str, doing: HostActivity) -> None:
    assert doing_by_name(name, Kind.CALL) == doing


@pytest.mark.parametrize(
    ("name", "doing"),
    [
        ("train.py(12): step", HostActivity.PYTHON),
        ("nn.Module: Linear_3", HostActivity.PYTHON),
        ("torch/utils/data/dataloader.py(630): __next__", HostActivity.DATALOADER),
        ("torch/_dynamo/convert_frame.py(100): compile", HostActivity.COMPILE),
        ("triton/compiler/compiler.py(226): compile", HostActivity.COMPILE),
        ("torch/profiler/profiler.py(700): step", HostActivity.PROFILER),
        ("<built-in method collect of module gc>", HostActivity.GARBAGE),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f>", HostActivity.WAITING),
        ("threading.py(323): wait", HostActivity.WAITING),
        ("<built-in method acquire of _thread.lock object at 0x7f>", HostActivity.WAITING),
        ("queue.py(154): get", HostActivity.WAITING),
        ("<built-in method poll of select.epoll object>", HostActivity.WAITING),
        ("selectors.py(403): select", HostActivity.WAITING),
        ("multiprocessing/connection.py(246): recv", HostActivity.WAITING),
        ("threading.py(1115): join", HostActivity.WAITING),
        ("<built-in function sleep>", HostActivity.WAITING),
        ("posixpath.py(71): join", HostActivity.PYTHON),
        ("model.py(3): get", HostActivity.PYTHON),
        ("beam.py(8): select", HostActivity.PYTHON),
        ("cache.py(9): await_all", HostActivity.PYTHON),
        ("ProfilerStep.py(1): run", HostActivity.PYTHON),
    ],
)
def test_frames(name: str, doing: HostActivity) -> None:
    assert doing_by_name(name, Kind.PYTHON) == doing


@pytest.mark.parametrize(
    ("name", "kind", "doing"),
    [
        ("aten::mm", Kind.OPERATOR, HostActivity.OPERATOR),
        ("aten::select", Kind.OPERATOR, HostActivity.OPERATOR),
        ("c10d::barrier_wait", Kind.OPERATOR, HostActivity.OPERATOR),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Kind.OPERATOR, HostActivity.DATALOADER),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Kind.RANGE, HostActivity.DATALOADER),
        ("data_loading", Kind.RANGE, HostActivity.DATALOADER),
        ("next_batch", Kind.RANGE, HostActivity.DATALOADER),
        ("Python GC", Kind.RANGE, HostActivity.GARBAGE),
        ("forward", Kind.RANGE, HostActivity.RANGE),
        ("Optimizer.step#Adam.step", Kind.RANGE, HostActivity.RANGE),
        ("ProfilerStep#3", Kind.RANGE, HostActivity.STEP),
        ("ProfilerStep#3", Kind.OPERATOR, HostActivity.STEP),
        ("execute_context_0(0)_generation_4(4)", Kind.RANGE, HostActivity.STEP),
        ("step[DECODE bs=4]", Kind.RANGE, HostActivity.STEP),
        ("execute_model", Kind.RANGE, HostActivity.RANGE),
        # Up to torch 1.8 ranges are recorded as operators.
        ("Optimizer.step#SGD.step", Kind.OPERATOR, HostActivity.RANGE),
        ("Optimizer.zero_grad#AdamW.zero_grad", Kind.OPERATOR, HostActivity.RANGE),
        ("## forward ##", Kind.OPERATOR, HostActivity.RANGE),
        ("DistributedDataParallel.forward", Kind.OPERATOR, HostActivity.RANGE),
        ("OptimizerStep", Kind.OPERATOR, HostActivity.OPERATOR),
        ("Command Buffer Full", Kind.OVERHEAD, HostActivity.NOTHING),
        ("Lazy Function Loading", Kind.OVERHEAD, HostActivity.MODULE),
        ("Driver Compiler", Kind.OVERHEAD, HostActivity.COMPILE),
        ("Buffer Flush", Kind.OVERHEAD, HostActivity.PROFILER),
        ("poll", Kind.OS, HostActivity.NOTHING),
        ("gemm", Kind.KERNEL, HostActivity.NOTHING),
    ],
)
def test_records_of_other_kinds(name: str, kind: Kind, doing: HostActivity) -> None:
    assert doing_by_name(name, kind) == doing


def test_chosen_marker_is_matched_from_the_start() -> None:
    recording = trace(annotation("iter 3", 0, 10), annotation("an iter", 20, 30))
    assert read_host(recording, 0, re.compile("iter")).doing.tolist() == [HostActivity.STEP, HostActivity.RANGE]


# Which record decides


def host(*events: Event) -> Host:
    return read_host(trace(*events), 0)


def decided(*events: Event, launcher: int = 1) -> list[tuple[float, float, str]]:
    """(start, end, name) of the launching thread's segments."""
    found = host(*events, call(500, 501, 1, tid=launcher), kernel(510, 520, 1))
    thread = found.launching[0]
    segments = found.segments[thread]
    names = [found.trace.label(row) for row in segments.row.tolist()]
    return [
        (a / 1000, b / 1000, n)
        for a, b, n in zip(segments.start.tolist(), segments.end.tolist(), names, strict=True)
        if n != "cudaLaunchKernel"
    ]


def test_nesting() -> None:
    assert decided(op("a", 0, 100), op("b", 20, 60), op("c", 30, 40), op("d", 60, 70)) == [
        (0, 20, "a"), (20, 30, "b"), (30, 40, "c"), (40, 60, "b"), (60, 70, "d"), (70, 100, "a"),
    ]  # fmt: skip


def test_child_that_outlasts_its_parent() -> None:
    """Rounding: the child runs on for 1 µs, and the sibling that starts there decides from its start."""
    assert decided(op("a", 0, 50), op("b", 20, 51), op("c", 51, 60)) == [(0, 20, "a"), (20, 51, "b"), (51, 60, "c")]


def test_records_at_the_same_time() -> None:
    """The longer is the outer one; of two equal ones the later in the file is the inner one."""
    assert decided(op("in", 0, 10), op("out", 0, 20)) == [(0, 10, "in"), (10, 20, "out")]
    assert decided(op("first", 0, 10), op("second", 0, 10)) == [(0, 10, "second")]


def test_records_without_length_decide_nothing() -> None:
    assert decided(op("a", 0, 10), op("b", 5, 5)) == [(0, 10, "a")]


def test_ranges_fill_what_is_left() -> None:
    assert decided(annotation("r", 0, 50), annotation("s", 10, 40), op("a", 20, 30), step(1, 0, 60)) == [
        (0, 10, "r"), (10, 20, "s"), (20, 30, "a"), (30, 40, "s"), (40, 50, "r"),
    ]  # fmt: skip


def test_enclosing_record_ends_inside_its_child() -> None:
    loader = "enumerate(DataLoader)#x"
    assert decided(annotation(loader, 0, 30), op("a", 20, 50)) == [(0, 30, loader), (30, 50, "a")]


def test_owners_of_a_call() -> None:
    found = host(
        frame("train.py(1): main", 0, 100), frame("nn.Module: Linear_0", 10, 90), op("aten::linear", 20, 80),
        op("aten::addmm", 30, 70), call(40, 50, 1), step(0, 0, 200), annotation("forward", 5, 95), kernel(60, 70, 1),
    )  # fmt: skip
    row = int(found.trace.rows(Kind.CALL)[0])
    owner = {key: found.trace.label(int(getattr(found, key)[row])) for key in ("parent", "operator", "frame", "module")}
    assert owner == {
        "parent": "aten::addmm", "operator": "aten::addmm", "frame": "nn.Module: Linear_0", "module": "nn.Module: Linear_0",
    }  # fmt: skip
    main = int(found.trace.rows(Kind.PYTHON)[0])
    assert found.parent[main] == NONE


def test_threads_by_number_of_launches() -> None:
    events = [call(i, i + 0.5, i + 1, tid=2 if i else 1) for i in range(3)]
    events += [kernel(10 + i, 11 + i, i + 1) for i in range(3)] + [op("a", 0, 5, tid=3)]
    found = host(*events)
    assert [found.trace.threads[t].tid for t in found.launching] == ["2", "1"]
    assert set(found.segments) == set(found.launching)


@pytest.mark.parametrize("how", ["name", "frame"])
def test_workers_are_left_out(how: str) -> None:
    naming: Event = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 2, "args": {"name": "pt_data_pin"}}
    loop = frame("torch/utils/data/_utils/pin_memory.py(18): _pin_memory_loop", 0, 50, tid=2)
    other = naming if how == "name" else loop
    found = host(call(1, 2, 1), kernel(5, 6, 1), call(3, 4, 2, tid=2), kernel(7, 8, 2), other)
    assert [found.trace.threads[t].tid for t in found.launching] == ["1"]


def test_first_use_is_per_process() -> None:
    """The slow first call of each process is start-up, the slow second one is not, and neither is a launch or a sync."""
    slow = [call(10, 300, 0, "cudaFuncGetAttributes", pid=pid) for pid in ("[TP00] 1", "[TP01] 2")]
    again = [call(400, 700, 0, "cudaFuncGetAttributes", pid="[TP00] 1"), sync(800, 1100), call(1200, 1500, 9)]
    recording = trace(*slow, *again)
    found = [read_host(recording, process).doing for process in range(2)]
    calls = recording.rows(Kind.CALL)
    assert [HostActivity(d) for d in found[0][calls[recording.process[calls] == 0]]] == [
        HostActivity.MODULE, HostActivity.CALL, HostActivity.SYNC, HostActivity.CALL,
    ]  # fmt: skip
    assert [HostActivity(d) for d in found[1][calls[recording.process[calls] == 1]]] == [HostActivity.MODULE]


def test_overhead_with_a_thread_is_a_record_of_it() -> None:
    own = event("overhead", "Unrecognized", 10, 20)
    assert decided(op("a", 0, 30), own) == [(0, 10, "a"), (10, 20, "Unrecognized"), (20, 30, "a")]
    assert decided(op("a", 0, 30), overhead("Unrecognized", 10, 20)) == [(0, 30, "a")]


# Against a walk over every instant

records = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 15), st.sampled_from(list(range(4)) + [HostActivity.OPERATOR] * 4)),
    max_size=8,
)


def at_instant(rows: list[tuple[int, int, int]], t: int) -> int | None:
    """Index of the deciding record: the first enclosing class among those running, else the one that started last."""
    running = [i for i, (start, end, _) in enumerate(rows) if start <= t < end]
    strong = [i for i in running if rows[i][2] <= HostActivity.COMPILE]
    if strong:
        best = min(rows[i][2] for i in strong)
        return next(i for i in strong if rows[i][2] == best)
    return running[-1] if running else None


@settings(max_examples=200, deadline=None)
@given(records)
def test_sweep_decides_every_instant(drawn: list[tuple[int, int, int]]) -> None:
    rows = sorted(((s, s + n, int(d)) for s, n, d in drawn), key=lambda r: (r[0], -r[1]))
    found = swept(rows)
    expected = {t: i for t in range(60) if (i := at_instant(rows, t)) is not None}
    classes = {t: rows[i][2] for t, i in found.items()}
    assert classes == {t: rows[i][2] for t, i in expected.items()}
    soft = {t: i for t, i in expected.items() if rows[i][2] > HostActivity.COMPILE}
    assert {t: found[t] for t in soft} == soft


def swept(rows: list[tuple[int, int, int]]) -> dict[int, int]:
    n = len(rows)
    start, end, doing = (np.array([r[i] for r in rows], kind) for i, kind in enumerate((np.int64, np.int64, np.int8)))
    out = [np.zeros(3 * n + 1, kind) for kind in (np.int64, np.int64, np.int32, np.int8)]
    around = [np.full(n, NONE, np.int32) for _ in range(4)]
    stacks = [np.zeros(n + 1, np.int32) for _ in range(2)]
    flags = [np.zeros(n, np.bool_) for _ in range(3)]
    given = (start, end, doing, *flags, int(HostActivity.COMPILE))
    count = compiled.call(loops.sweep_nested, given, (*out, *around, *stacks))
    plain = [np.zeros_like(column) for column in (*out, *around, *stacks)]
    assert count == compiled.call(plain_loops().sweep_nested, given, plain)
    assert all((a[:count] == b[:count]).all() for a, b in zip(out, plain, strict=False))
    found: dict[int, int] = {}
    pieces: defaultdict[int, int] = defaultdict(int)
    for a, b, row, what in zip(*(column[:count].tolist() for column in out), strict=True):
        assert what == rows[row][2]
        for t in range(a, b):
            pieces[t] += 1
            found[t] = row
    assert set(pieces.values()) <= {1}
    return found


@pytest.mark.parametrize(
    ("start", "end", "later", "doing"),
    [
        (60, 800, [], HostActivity.PROFILER),
        (40, 800, [], HostActivity.SYNC),  # it waits for the kernel
        (40, 2_000, [], HostActivity.PROFILER),  # and goes on for 2 ms
        (60, 800, [op("aten::item", 900, 910)], HostActivity.SYNC),  # the program goes on
    ],
)
def test_the_profilers_own_synchronisation_when_it_stops(
    start: float, end: float, later: list[Event], doing: HostActivity
) -> None:
    """It collects its records."""
    events = [call(0, 4, 1), kernel(10, 50, 1), sync(start, end), *later]
    one = timeline(*events)
    (row,) = (row for row in range(len(one.trace)) if one.trace.label(row) == "cudaDeviceSynchronize")
    assert one.host.doing[row] == doing


def test_what_the_profiler_takes_inside_the_last_step_is_its_own() -> None:
    events = [step(0, 0, 900), call(0, 4, 1), kernel(10, 50, 1), sync(60, 890)]
    found = idle(*events, window="steps")
    assert found["host profiler"] == 830 and "host host-sync" not in found
