"""Computing on the CPU, graph capture, polling, page faults of managed memory and failed calls, told as what they are."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import NothingToAnalyse
from gpu_trace_advisor.ingest import read

from tests import nsight_export as nsys
from tests.build import Event, advice, call, causes, copy, device, event, frame, idle, kernel, op, step, sync
from tests.nsight_export import CUPTI

FIRST = (call(0, 4, 1), kernel(5, 10, 1))  # an idle device: launch latency 5 µs


# Computing on the CPU


def test_a_long_operator_that_launches_nothing_computes_on_the_cpu() -> None:
    """Inside `randn` 3 µs of its own, 4 ms of `normal_`, and `empty` that is a call of no length worth the name."""
    events = [
        op("aten::randn", 10, 4_015), op("aten::empty", 11, 12), op("aten::normal_", 12, 4_013),
        op("aten::mm", 4_015, 4_025), call(4_020, 4_024, 2), kernel(4_025, 4_100, 2),
    ]  # fmt: skip
    found = idle(*FIRST, *events)
    # The operator `empty` is short, and so are the 5 µs of `mm` before its launch: preparing operators.
    assert found == {"host cpu-compute": 4_004, "host framework": 1 + 5, "submitted launch-latency": 5}


@pytest.mark.parametrize(
    ("name", "cause"),
    [("aten::max", "cpu-compute"), ("c10d::allreduce_", "framework"), ("Optimizer.step#Adam.step", None)],
)
def test_what_only_waits_or_stands_around_computes_nothing(name: str, cause: str | None) -> None:
    events = [op(name, 10, 1_010), call(1_010, 1_014, 2), kernel(1_015, 1_100, 2)]
    found = idle(*FIRST, *events)
    if cause:
        assert found[f"host {cause}"] == 1_000
    else:
        assert "host cpu-compute" not in found


@pytest.mark.parametrize("inside", ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMalloc"])
def test_an_operator_that_submits_something_is_preparing_it(inside: str) -> None:
    events = [
        op("aten::outer", 10, 1_010), op("aten::inner", 20, 1_000), call(990, 995, 2, inside),
        call(1_010, 1_014, 3), kernel(1_015, 1_100, 3),
    ]  # fmt: skip
    assert "host cpu-compute" not in idle(*FIRST, *events)


def test_a_question_to_the_runtime_submits_nothing() -> None:
    events = [
        op("aten::sort", 10, 1_010), call(20, 21, 0, "cudaGetDevice"), call(1_010, 1_014, 2), kernel(1_015, 1_100, 2),
    ]  # fmt: skip
    assert idle(*FIRST, *events)["host cpu-compute"] == 999


def test_a_short_operator_is_overhead() -> None:
    events = [op("aten::view", 10, 209), call(209, 213, 2), kernel(214, 300, 2)]
    assert idle(*FIRST, *events)["host framework"] == 199


@pytest.mark.parametrize(
    ("name", "us", "cause"),
    [
        ("aten::div", 99, "framework"),
        ("aten::div", 150, "cpu-compute"),  # one of many of an image's normalisation
        ("aten::as_strided", 150, "framework"),
        ("aten::empty_strided", 150, "framework"),
        ("aten::as_strided", 250, "cpu-compute"),
    ],
)
def test_operators_of_some_hundred_microseconds_compute_where_they_can(name: str, us: int, cause: str) -> None:
    events = [op(name, 10, 10 + us), call(10 + us, 14 + us, 2), kernel(15 + us, 300 + us, 2)]
    assert idle(*FIRST, *events)[f"host {cause}"] == us


def test_a_block_of_python_is_not_launching() -> None:
    """Each step of 10 ms runs Python for 2.6 ms, then launches one kernel: nothing to compile."""
    events: list[Event] = []
    for i in range(5):
        at = 10_000 * i
        events += [
            step(i, at, at + 10_000), frame("sample.py(10): sample", at, at + 2_600), op("aten::max", at + 900, at + 930),
            op("aten::mm", at + 2_700, at + 2_730), call(at + 2_710, at + 2_720, i + 1), kernel(at + 2_725, at + 9_990, i + 1),
        ]  # fmt: skip
    rules = {finding.rule for finding in advice(*events).findings}
    assert "torch-compile" not in rules
    assert rules & {"python-block", "cpu-bound-python"}


# Capturing graphs


def captured(launches: int = 3) -> list[dict[str, object]]:
    """A capture from 100 to 150 µs with launches that run nothing, made ready in 40 µs, and replayed."""
    events = [call(100, 101, 0, "cudaStreamBeginCapture"), call(149, 150, 0, "cudaStreamEndCapture")]
    for i in range(launches):
        events += [op("aten::mm", 110 + 10 * i, 118 + 10 * i), call(112 + 10 * i, 114 + 10 * i, 100 + i)]
    return [*events, call(160, 200, 0, "cudaGraphInstantiateWithFlags"), call(210, 214, 2, "cudaGraphLaunch")]


def test_what_is_captured_runs_nothing_and_is_not_lost() -> None:
    found = device(*FIRST, *captured(), kernel(215, 300, 2), window="gpu")
    assert causes(found)["graph-capture"] == 50_000 + 40_000
    assert found.launches.without_operation == 0
    assert not [note for note in found.health if note.code == "lost-kernels"]


def test_only_the_captured_stretch_is_set_apart() -> None:
    """A launch of another thread meanwhile has lost its kernel all the same."""
    found = device(*FIRST, *captured(), call(120, 122, 900, tid=2), kernel(215, 300, 2), window="gpu")
    assert found.launches.without_operation == 1


def test_graphs_are_not_advised_for_a_capture() -> None:
    """5 ms of capture, 40 launches; beside it 22 µs of anything else."""
    events = [call(12, 13, 0, "cudaStreamBeginCapture"), call(5_012, 5_013, 0, "cudaStreamEndCapture")]
    for i in range(40):
        events += [op("aten::mm", 20 + 100 * i, 100 + 100 * i), call(30 + 100 * i, 40 + 100 * i, 100 + i)]
    events += [call(5_020, 5_024, 2, "cudaGraphLaunch"), kernel(5_025, 5_040, 2)]
    assert not [
        finding for finding in advice(*FIRST, *events).findings if finding.rule in ("cuda-graphs", "torch-compile")
    ]


# Polling


def test_asking_over_and_over_whether_the_device_is_done() -> None:
    events = [call(12 + 10 * i, 20 + 10 * i, 0, "cudaEventQuery") for i in range(5)]
    found = idle(*FIRST, *events, call(70, 74, 2), kernel(75, 80, 2))
    assert found["host host-poll"] == 40


LENGTHS = (100, 300, 150, 500, 200, 400)


def polled(*between: Event, lengths: Sequence[int] = LENGTHS, reaction: float = 8) -> list[Event]:
    """For each length: a kernel of it, launched 5 µs before; `reaction` µs after its end a second launch, of 30 µs; 22 µs
    after that one's end the next. `between` happens once in each, counted from the first launch."""
    events, at = list[Event](), 0.0
    for i, length in enumerate(lengths):
        done = at + 5 + length
        events += [call(at, at + 4, 2 * i + 1), kernel(at + 5, done, 2 * i + 1, "notify_dispatch")]
        events += [{**event, "ts": event["ts"] + at} for event in between]
        second = done + reaction
        events += [call(second, second + 4, 2 * i + 2), kernel(second + 5, second + 35, 2 * i + 2, "gemm")]
        events.append(op("aten::empty", second + 5, second + 52))
        at = second + 52
    return events


def test_the_next_launch_follows_the_end_of_the_same_kernel_over_and_over() -> None:
    found = idle(*polled())
    # After the last kernel nothing is launched: of six gaps of 17 µs between two turns five are left.
    assert found == {"host host-poll": 6 * 8, "submitted launch-latency": (6 + 5) * 5, "host framework": 5 * 17}


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (polled(lengths=LENGTHS[:4]), "four times may be chance"),
        (polled(sync(10, 60)), "a synchronisation in between that ends early"),
        (polled(op("aten::sort", 20, 100), op("aten::copy_", 99, 104)), "the host is at work until then"),
        (polled(lengths=(100,) * 6), "a kernel that always takes as long: so may the host"),
        (polled(reaction=60), "60 µs later the host has done something else"),
    ],
)
def test_what_is_no_polling(events: list[Event], why: str) -> None:
    assert "host host-poll" not in idle(*events), why


def test_a_long_kernel_of_the_same_length_each_time_is_no_chance() -> None:
    """2 ms ten times, and 8 µs later the next launch: no other work of the host ends so exactly."""
    assert idle(*polled(lengths=(2_000,) * 10))["host host-poll"] == 10 * 8


def test_looking_is_no_work() -> None:
    looks = [frame("torch/cuda/streams.py(230): query", 10 * i, 10 * i + 9) for i in range(1, 9)]
    assert idle(*polled(*looks))["host host-poll"] == 6 * 8


def test_the_wait_of_a_recorded_synchronisation_is_its_own() -> None:
    events, at = [], 0
    for i, length in enumerate(LENGTHS):
        done = at + 5 + length
        events += [call(at, at + 4, i + 1), kernel(at + 5, done, i + 1), sync(at + 6, done + 3)]
        at = done + 11
    found = idle(*events)
    assert "host host-poll" not in found
    assert found["host host-sync"] == 5 * (3 + 5)  # until the call returned, then one launch latency


# Managed memory


def export(path: Path, *, calls: list[dict[str, object]], kernels: list[dict[str, object]], copies=()) -> Advice:  # type: ignore[no-untyped-def]
    strings = {1: "vectorAdd", 2: "cudaLaunchKernel_v7000", 3: "cudaDeviceSynchronize_v3020", 4: "cudaEventQuery_v3020"}
    tables = {CUPTI + "RUNTIME": calls, CUPTI + "KERNEL": kernels, CUPTI + "MEMCPY": copies}
    nsys.write(path, strings, **{name: rows for name, rows in tables.items() if rows})
    return advise_traces([read(path)], Request(window="gpu"))


def migration(start: int, end: int, kind: int) -> dict[str, object]:
    row = {"start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": 0, "globalPid": nsys.process(500)}
    return {**row, "bytes": 65_536, "copyKind": kind, "srcKind": 4, "dstKind": 4}


def test_page_faults_between_migrations(tmp_path: Path) -> None:
    """Kernel 30 to 1,030 µs with a migration under it; then four to the host, 4 µs each, 21 µs apart, the first one 521 µs
    after the kernel; the host's own 400 µs until the next launch."""
    at = 1_551_000
    faults = [migration(at + 25_000 * i, at + 25_000 * i + 4_000, 12) for i in range(4)]
    last = faults[-1]["end"]
    assert isinstance(last, int)
    found = export(
        tmp_path / "uvm.sqlite",
        calls=[
            nsys.call(0, 20_000, 1, 2),
            nsys.call(25_000, 1_035_000, 2, 3),
            nsys.call(last + 400_000, last + 420_000, 3, 2),
        ],
        kernels=[nsys.kernel(30_000, 1_030_000, 1), nsys.kernel(last + 430_000, last + 530_000, 3)],
        copies=[migration(40_000, 44_000, 11), *faults],
    )
    (one,) = found.devices
    assert causes(one)["migration"] == 4 * 4_000  # the one under the kernel is hidden
    # Three gaps of 21 µs, and of the first one the 50 µs before the fault; the rest of it is the host's own.
    assert causes(one)["page-fault"] == 3 * 21_000 + 50_000
    # 471 before the first fault, 400 before the launch.
    assert causes(one)["host-unknown"] == 471_000 + 400_000
    assert one.idle_unlinked_ns == 521_000 + 3 * 21_000
    assert one.launches.operations_without_launch == 0
    assert not [note for note in one.health if note.code == "orphan-operations"]
    assert [(copy.kind, copy.calls, copy.bytes) for copy in one.copies] == [("page migration", 5, 5 * 65_536)]


# System calls


def test_system_calls_say_where_the_host_was(tmp_path: Path) -> None:
    """A kernel until 1,030 µs, waited for until 1,035; the next launch at 5,035. In between 3 ms in a lock, 200 µs in four
    calls that print, and a lock of another thread, which says nothing of this one."""
    strings = {
        1: "step",
        2: "cudaLaunchKernel_v7000",
        3: "cudaDeviceSynchronize_v3020",
        5: "pthread_mutex_lock",
        6: "putc",
    }

    def system(start: int, end: int, name: int, tid: int = 501) -> dict[str, object]:
        return {"start": start, "end": end, "eventClass": 27, "globalTid": nsys.thread(500, tid), "nameId": name}

    nsys.write(
        tmp_path / "os.sqlite", strings,
        **{
            CUPTI + "RUNTIME": [
                nsys.call(0, 20_000, 1, 2), nsys.call(25_000, 1_035_000, 2, 3), nsys.call(5_035_000, 5_055_000, 3, 2)
            ],
            CUPTI + "KERNEL": [nsys.kernel(30_000, 1_030_000, 1), nsys.kernel(5_060_000, 5_160_000, 3)],
            "OSRT_API": [
                system(1_100_000, 4_100_000, 5), *(system(t, t + 50_000, 6) for t in range(4_200_000, 4_600_000, 100_000)),
                system(1_000_000, 5_000_000, 5, tid=777),
            ],
        },
    )  # fmt: skip
    found = advise_traces([read(tmp_path / "os.sqlite")], Request(window="gpu"))
    unknown = {item.detail: item.ns for item in found.devices[0].attribution if item.cause == "host-unknown"}
    # 4,000 µs less the launch latency of 25 µs after the synchronisation, which is its own.
    assert unknown == {"system call": 3_200_000, "": 4_000_000 - 25_000 - 3_200_000}
    assert "inside system calls" in found.verdict
    (finding,) = [finding for finding in found.findings if finding.rule == "largest-loss"]
    assert "pthread_mutex_lock × 1" in finding.message
    assert "system calls" in finding.how


# Failed calls


def test_failed_calls_are_said_first(tmp_path: Path) -> None:
    found = export(
        tmp_path / "failed.sqlite",
        calls=[
            nsys.call(0, 20_000, 1, 2, returnValue=0),
            nsys.call(25_000, 1_035_000, 2, 3, returnValue=0),
            nsys.call(1_100_000, 1_300_000, 3, 3, returnValue=700),
            nsys.call(1_400_000, 1_410_000, 4, 2, returnValue=0),
        ],
        kernels=[nsys.kernel(30_000, 1_030_000, 1), nsys.kernel(1_420_000, 1_500_000, 4)],
    )
    assert found.verdict.startswith(
        "1 CUDA call failed, first cudaDeviceSynchronize with error 700 (cudaErrorIllegalAddress) at 1.100 ms of the trace"
    )
    assert causes(found.devices[0])["failed-call"] == 200_000


def test_a_failed_program_without_gpu_work_is_refused_for_that(tmp_path: Path) -> None:
    calls = [nsys.call(0, 20_000, 1, 2, returnValue=0), nsys.call(25_000, 99_000, 2, 3, returnValue=719)]
    with pytest.raises(NothingToAnalyse, match=r"1 CUDA call failed.*719 \(cudaErrorLaunchFailure\) at 0\.025 ms"):
        export(tmp_path / "failed.sqlite", calls=calls, kernels=[])


@pytest.mark.parametrize(
    ("text", "work", "told"),
    [
        (
            "CUDA profiling might have not been started correctly.",
            True,
            False,
        ),  # of a launcher, beside what was recorded
        ("CUDA profiling might have not been started correctly.", False, True),
        ("CUPTI_ERROR_INVALID_DEVICE: device not supported.", True, True),
    ],
)
def test_what_the_recorder_failed_at_is_said_where_it_matters(
    tmp_path: Path, text: str, work: bool, told: bool
) -> None:
    event = {"timestamp": 0, "timestampType": 0, "source": 0, "severity": 2, "text": text, "globalPid": 0}
    tables = {CUPTI + "RUNTIME": [nsys.call(0, 20_000, 1, 2)], "DIAGNOSTIC_EVENT": [event]}
    if work:
        tables[CUPTI + "KERNEL"] = [nsys.kernel(30_000, 90_000, 1)]
    nsys.write(tmp_path / "told.sqlite", {1: "gemm", 2: "cudaLaunchKernel_v7000"}, **tables)
    try:
        said = advise_traces([read(tmp_path / "told.sqlite")], Request()).verdict
    except NothingToAnalyse as error:
        said = str(error)
    assert (text.rstrip(".") in said) is told
    assert ".. " not in said


def test_not_ready_is_an_answer(tmp_path: Path) -> None:
    found = export(
        tmp_path / "polls.sqlite",
        calls=[
            nsys.call(0, 20_000, 1, 2),
            nsys.call(40_000, 50_000, 2, 4, returnValue=600),
            nsys.call(60_000, 65_000, 3, 2),
        ],
        kernels=[nsys.kernel(30_000, 35_000, 1), nsys.kernel(95_000, 99_000, 3)],
    )
    assert "failed" not in found.verdict
    assert causes(found.devices[0])["host-poll"] == 10_000


def test_where_frames_are_recorded_the_loader_still_wins() -> None:
    events = [
        frame("train.py(1): main", 0, 2_000), event("cpu_op", "enumerate(DataLoader)#_SingleProcess.__next__", 10, 1_000),
        op("aten::stack", 20, 900), call(1_000, 1_004, 2), kernel(1_005, 1_100, 2),
    ]  # fmt: skip
    assert idle(*FIRST, *events)["host dataloader"] == 990


# Values read by the host


@pytest.mark.parametrize(("end", "waits"), [(402, True), (449, True), (451, False)])
def test_a_value_read_behind_running_work_is_a_synchronization(end: float, waits: bool) -> None:
    """`.item()` on ROCm: the call returned at 400, its copy ends some µs later by the skew of the clocks; the device was busy
    until 397, and the copy began 297 µs after the call."""
    events = [
        call(20, 24, 2), kernel(25, 397, 2), call(100, 400, 3, "hipMemcpyWithStream"),
        copy(398, end, 3, "DtoH (Device -> Pageable)"), op("aten::a", 460, 470), call(470, 474, 4), kernel(475, 500, 4),
    ]  # fmt: skip
    found = device(*FIRST, *events)
    assert found.blocking_copies == int(waits)
    assert "copy-staging" not in causes(found)
    drained = [item for item in found.attribution if item.cause == "host-sync"]
    assert all(item.detail == "sync" for item in drained)


def test_a_copy_that_takes_longer_than_it_waited_is_a_copy() -> None:
    events = [
        call(20, 24, 2), kernel(25, 50, 2), call(30, 400, 3, "cudaMemcpyAsync"), copy(60, 399, 3, "DtoH (Device -> Pageable)"),
        op("aten::a", 400, 410), call(410, 414, 4), kernel(415, 500, 4),
    ]  # fmt: skip
    details = {item.detail for item in device(*FIRST, *events).attribution if item.cause == "host-sync"}
    assert details == {"blocking copy"}


def test_a_drain_is_no_longer_where_launches_take_milliseconds() -> None:
    """Under WSL2: each launch takes 3 ms to the device. After a synchronisation the host is silent for 2 ms."""
    events: list[Event] = []
    for i in range(4):
        at = 10_000 * i
        events += [call(at, at + 5, i + 1), kernel(at + 3_000, at + 7_000, i + 1), sync(at + 10, at + 7_995)]
    found = idle(*events)
    # Each of three gaps: until the call returned, 200 µs, and the rest of 2,005 µs until the next launch.
    assert found["host host-sync"] == 3 * (995 + 200)
    assert found["host host-unknown"] == 3 * (2_005 - 200)


# Start-up by size


@pytest.mark.parametrize(("end", "cause"), [(15, "launch-call"), (40, "module-load")])
def test_an_event_that_is_created_at_once_loads_nothing(end: float, cause: str) -> None:
    events = [call(12, end, 0, "cudaEventCreateWithFlags"), call(50, 54, 2), kernel(55, 60, 2)]
    assert idle(*FIRST, *events)[f"host {cause}"] == end - 12


@pytest.mark.parametrize(("ms", "cause"), [(300, "module-load"), (50, "allocator")])
def test_a_first_free_of_seconds_creates_the_context(ms: int, cause: str) -> None:
    end = 12 + 1_000 * ms
    events = [op("aten::cudnn_convolution", 11, end + 1), call(12, end, 0, "cudaFree"), call(end + 10, end + 14, 2)]
    assert idle(*FIRST, *events, kernel(end + 15, end + 20, 2))[f"host {cause}"] == 1_000 * ms


def test_the_usual_latency_is_not_that_of_cold_launches() -> None:
    """Two first launches load code for 5 ms each; a third one, of a kernel seen before, takes 5 µs."""
    events = [
        call(0, 4, 1), kernel(5, 10, 1, "a"), call(20, 5_020, 2), kernel(5_030, 5_040, 2, "b"),
        call(5_050, 10_050, 3), kernel(10_060, 10_070, 3, "c"), call(10_080, 10_084, 4), kernel(10_085, 10_090, 4, "a"),
        call(10_100, 10_104, 5), kernel(10_105, 10_110, 5, "a"),
    ]  # fmt: skip
    found = device(*events, window="gpu")
    assert found.launch_latency_ns == 5_000
    assert causes(found)["module-load"] == 2 * (5_000 - 5) * 1_000


# Cold starts


def stepped(*loads: float) -> list[dict[str, object]]:
    """Steps of 1,000 µs plus what each of them loads."""
    events, at = [], 0.0
    for i, load in enumerate(loads):
        events += [
            step(i, at, at + 1_000 + load), call(at + 1, at + 1 + load, 0, "cudaLibraryLoadData") if load else None,
            call(at + load + 5, at + load + 9, 10 + i), kernel(at + load + 10, at + load + 900, 10 + i),
        ]  # fmt: skip
        at += 1_000 + load
    return [one for one in events if one]


@pytest.mark.parametrize(
    ("loads", "left_out", "cold"),
    [
        ((30_000, 0, 0, 0, 0), 1, False),  # the first step alone: left out, the others analysed
        ((30_000, 9_000, 0, 0, 0), 2, False),
        ((3_000, 3_000, 3_000, 3_000, 3_000), 0, False),  # each of them: that is no start
        ((0, 0, 30_000, 0), 0, False),  # a late one among warm steps
        ((30_000,), 0, True),
    ],
)
def test_cold_is_judged_step_by_step(loads: tuple[float, ...], left_out: int, cold: bool) -> None:
    found = device(*stepped(*loads))
    assert sum(one.left_out is not None for one in found.steps) == left_out
    assert any(note.code == "cold" for note in found.health) is cold
