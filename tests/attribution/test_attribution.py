"""Each rule for idle time on timelines small enough to work out by hand. Times are µs."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_trace_advisor.attribution import SIDES
from gpu_trace_advisor.attribution.causes import IDLE

from tests.build import (
    Event,
    annotation,
    attribution,
    call,
    causes,
    copy,
    device,
    event,
    frame,
    idle,
    idle_of,
    kernel,
    memset,
    op,
    overhead,
    step,
    sync,
)

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
BACKWARD = "<built-in method run_backward of torch._C._EngineBase object at 0x7f01>"

# Three launches into an idle device that take 5 µs each: the trace's usual launch latency. The last kernel ends at 50.
WARM = (call(0, 3, 1), kernel(5, 10, 1), call(20, 23, 2), kernel(25, 30, 2), call(40, 43, 3), kernel(45, 50, 3))


def gap(until: float, *events: Event) -> dict[str, float]:
    """Idle µs from the end of WARM on."""
    return idle(*WARM, *events, window=f"0.05:{until / 1000}")


def test_parts_of_a_plain_gap() -> None:
    """Host until the launch at 60, then 5 µs to the kernel at 65."""
    found = device(*WARM, op("aten::mm", 52, 62), call(60, 62, 4), kernel(65, 70, 4), window="0.05:0.07")
    assert idle_of(found) == {"host python": 2, "host framework": 8, "submitted launch-latency": 5}
    assert (found.idle_host_ns, found.idle_submitted_ns, found.idle_unlinked_ns) == (10_000, 5_000, 0)
    assert (found.compute_ns, found.wall_ns) == (5_000, 20_000)
    assert found.launch_latency_ns == 5_000


# 1. The operation that closes a gap


def test_first_submitted_of_several_closes() -> None:
    found = idle(
        kernel(10, 20), call(30, 32, 1), call(24, 26, 2), kernel(40, 50, 1), kernel(40, 45, 2, stream=8)
    )  # fmt: skip
    assert found == {"host host-unknown": 4, "submitted launch-latency": 16}


def test_operation_without_launch_closes_only_alone() -> None:
    shared = (kernel(10, 20), kernel(40, 45, stream=8))
    assert idle(*shared) == {"unlinked device-unknown": 20}
    assert idle(*shared, call(24, 26, 2), kernel(40, 50, 2)) == {"host host-unknown": 4, "submitted launch-latency": 16}


def test_operation_without_length_closes_none() -> None:
    found = gap(90, call(55, 56, 4), kernel(60, 60, 4), call(80, 82, 5), kernel(85, 90, 5))
    assert found == {"host host-unknown": 29, "host launch-call": 1, "submitted launch-latency": 5}


def test_nodes_of_a_replay_share_one_launch() -> None:
    nodes = [kernel(70, 75, 4), kernel(77, 80, 4), kernel(84, 90, 4, stream=8)]
    found = gap(90, call(60, 63, 4, "cudaGraphLaunch"), *nodes)
    assert found == {
        "host host-unknown": 10,
        "submitted launch-latency": 10,
        "submitted queued-gap": 2,
        "submitted dependency-wait": 4,
    }


def test_later_node_does_not_wait_for_the_launch_call() -> None:
    """Only the first node is launched by the host, however long the call runs on."""
    found = gap(90, call(60, 100, 4, "cudaGraphLaunch"), kernel(65, 75, 4), kernel(80, 90, 4))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5, "submitted queued-gap": 5}


def test_launch_before_the_gap_leaves_no_host_side() -> None:
    assert gap(70, call(44, 45, 4), kernel(52, 70, 4)) == {"submitted queued-gap": 2}


def test_skewed_clocks_shift_nothing() -> None:
    """The kernel starts 5 µs before its launch call: its gap is the host's, up to its end."""
    assert gap(70, call(65, 67, 4), kernel(60, 70, 4)) == {"host host-unknown": 10}


# 2. The thread that is asked


def test_thread_of_the_previous_launch_is_asked_next() -> None:
    found = gap(75, op("optimizer", 50, 60), op("aten::add", 60, 62, tid=2), call(60, 62, 4, tid=2), kernel(65, 75, 4))
    assert found == {"host framework": 10, "submitted launch-latency": 5}


@pytest.mark.parametrize("waits", [BACKWARD, "threading.py(300): wait", "<built-in method acquire of _thread.lock>"])
def test_waiting_frame_hands_over(waits: str) -> None:
    main = [frame("train.py(7): main", 0, 100), frame(waits, 48, 60)]
    backward = [call(1, 2, 9, tid=2), kernel(50, 51, 9), op("MulBackward0", 52, 58, tid=2)]
    found = gap(75, *main, *backward, call(60, 62, 4), kernel(65, 75, 4))
    assert found == {"host host-unknown": 3, "host framework": 6, "submitted launch-latency": 5}


def test_frame_inside_a_waiting_one_counts() -> None:
    frames = [frame("threading.py(300): wait", 48, 60), frame("train.py(9): hook", 52, 55)]
    assert gap(75, *frames, call(60, 62, 4), kernel(65, 75, 4)) == {
        "host host-unknown": 7, "host python": 3, "submitted launch-latency": 5,
    }  # fmt: skip


def test_busier_launching_thread_is_asked_first() -> None:
    queue = [
        call(1, 2, 1, tid=3), kernel(10, 20, 1), call(2, 3, 2, tid=3), kernel(20, 30, 2),
        call(3, 4, 3, tid=4), kernel(30, 40, 3),
        call(45, 46, 4, tid=5), kernel(50, 60, 4), call(75, 76, 5, tid=5), kernel(80, 90, 5),
    ]  # fmt: skip
    found = idle(*queue, op("aten::a", 60, 70, tid=3), annotation("gc.collect", 60, 72, tid=4))
    assert found == {
        "host python": 5,  # a hole between records of thread 3, which is no launch of thread 5
        "host host-unknown": 3,
        "host framework": 10,
        "host garbage-collection": 2,
        "submitted launch-latency": 10,
    }


@pytest.mark.parametrize(
    "worker", ["torch/utils/data/_utils/pin_memory.py(18): _pin_memory_loop", "worker.py(1): _worker_loop"]
)
def test_workers_are_never_asked(worker: str) -> None:
    events = [frame(worker, 0, 100, tid=2), call(1, 2, 9, tid=2), kernel(50, 51, 9), op("aten::a", 51, 60, tid=2)]
    assert gap(75, *events, call(60, 62, 4), kernel(65, 75, 4)) == {
        "host host-unknown": 9, "submitted launch-latency": 5,
    }  # fmt: skip


def test_thread_that_launches_nothing_is_never_asked() -> None:
    found = gap(75, op("aten::a", 50, 60, tid=9), call(60, 62, 4), kernel(65, 75, 4))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5}


# 3. Records inside each other


def test_innermost_record_decides() -> None:
    records = [op("aten::mm", 50, 60), call(52, 55, 0, "cudaMalloc"), op("aten::empty", 56, 58)]
    assert gap(75, *records, call(60, 62, 4), kernel(65, 75, 4)) == {
        "host framework": 7, "host allocator": 3, "submitted launch-latency": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        (LOADER, "dataloader"),
        ("gc.collect", "garbage-collection"),
        ("compile_fx_inner", "compile"),
        ("load_batch", "dataloader"),
    ],
)
def test_enclosing_record_wins_over_what_it_does(name: str, cause: str) -> None:
    inside = [op("aten::stack", 52, 58), call(53, 54, 0, "cudaHostAlloc"), sync(55, 56)]
    assert gap(75, annotation(name, 50, 60), *inside, call(60, 62, 4), kernel(65, 75, 4)) == {
        f"host {cause}": 10, "submitted launch-latency": 5,
    }  # fmt: skip


def test_order_of_enclosing_records() -> None:
    """The profiler over garbage collection over the loader over the compiler, whichever lies inside."""
    nested = [
        annotation("compile_fx_inner", 50, 60), annotation(LOADER, 51, 59), annotation("gc.collect", 52, 58),
        frame("torch/profiler/profiler.py(700): step", 53, 57),
    ]  # fmt: skip
    expected = {
        "host compile": 2, "host dataloader": 2, "host garbage-collection": 2, "host profiler": 4,
        "submitted launch-latency": 5,
    }  # fmt: skip
    assert gap(75, *nested, call(60, 62, 4), kernel(65, 75, 4)) == expected
    turned = [annotation("gc.collect", 50, 60), annotation(LOADER, 51, 59), annotation("compile_fx_inner", 52, 58)]
    assert gap(75, *turned, call(60, 62, 4), kernel(65, 75, 4)) == {
        "host garbage-collection": 10, "submitted launch-latency": 5,
    }  # fmt: skip


@pytest.mark.parametrize("marker", ["ProfilerStep#3", "execute_context_0(0)_generation_4(4)", "step[DECODE bs=4]"])
def test_step_marker_is_no_record(marker: str) -> None:
    found = gap(75, annotation(marker, 0, 80), call(60, 62, 4), kernel(65, 75, 4))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5}


def test_user_range_counts_only_where_nothing_else_is() -> None:
    found = device(
        *WARM, annotation("forward", 50, 60), op("aten::mm", 53, 56), call(60, 62, 4), kernel(65, 75, 4),
        window="0.05:0.075",
    )  # fmt: skip
    assert idle_of(found) == {"host python": 7, "host framework": 3, "submitted launch-latency": 5}
    assert {i.cause: i.grade for i in found.attribution if i.when == "idle"} == {
        "python": "modelled", "framework": "measured", "launch-latency": "measured",
    }  # fmt: skip


@pytest.mark.parametrize(("hole", "cause"), [(1_000, "python"), (1_001, "host-unknown")])
def test_short_hole_between_operators_is_python(hole: int, cause: str) -> None:
    at = 50 + hole
    found = gap(
        at + 20, op("aten::a", 40, 50), op("aten::b", at, at + 2), call(at, at + 2, 4), kernel(at + 5, at + 20, 4)
    )
    assert found == {f"host {cause}": hole, "submitted launch-latency": 5}


def test_hole_in_a_trace_with_frames_is_unknown() -> None:
    events = [op("aten::a", 40, 50), op("aten::b", 60, 62), call(60, 62, 4), kernel(65, 75, 4)]
    assert gap(75, *events) == {"host python": 10, "submitted launch-latency": 5}
    assert gap(75, *events, frame("train.py(1): main", 1, 2, tid=9)) == {
        "host host-unknown": 10, "submitted launch-latency": 5,
    }  # fmt: skip


def test_hole_of_a_thread_without_operators_is_unknown() -> None:
    events = [call(49, 50), call(60, 62, 4), kernel(65, 75, 4), op("aten::a", 50, 60, tid=9)]
    assert gap(75, *events)["host host-unknown"] == 10


# 4. Calls that block


def test_sync_on_an_idle_device_costs_its_call() -> None:
    found = gap(75, sync(52, 57), call(60, 62, 4), kernel(65, 75, 4))
    assert found == {"host host-unknown": 5, "host host-sync": 5, "submitted launch-latency": 5}


@pytest.mark.parametrize(
    ("name", "end", "blocks"),
    [
        ("cudaMemcpyAsync", 80, True),  # 20 µs, and the copy ended at 79
        ("cudaMemcpyAsync", 79.9, False),  # shorter: it outlasted its copy by chance
        ("cudaMemcpy", 79.9, True),  # synchronous by its name
        ("hipMemcpyWithStream", 79.5, True),
        ("cudaMemcpy", 78.5, False),  # returned before the copy had ended
        ("cudaMemcpyAsync", 78.5, False),
    ],
)
def test_blocking_copies(name: str, end: float, blocks: bool) -> None:
    events = [call(60, end, 4, name), copy(65, 79, 4, "DtoH (Device -> Pageable)"), call(90, 92, 5), kernel(95, 99, 5)]
    found = device(*WARM, *events)
    assert (found.syncs, found.blocking_copies) == (0, int(blocks))
    assert causes(found).get("host-sync", 0) == (round(1_000 * (end + 5 - 79)) if blocks else 0)


def test_small_copy_to_the_device_blocks_nothing() -> None:
    """It returns before its copy runs; the 10 µs after it are the framework's."""
    events = [call(60, 63, 4, "cudaMemcpy"), copy(65, 67, 4), op("aten::a", 67, 77), call(77, 79, 5), kernel(82, 90, 5)]
    found = device(*WARM, *events, window="0.067:0.09")
    assert idle_of(found) == {"host framework": 10, "submitted launch-latency": 5}
    assert found.blocking_copies == 0


# 5. Drains


def drained(*after: Event, waits_from: float = 48) -> dict[str, float]:
    """A sync that drains the device at 50 and returns at 51, and what comes after it."""
    return gap(100, sync(waits_from, 51), *after)


def test_drain_and_refill() -> None:
    after = [op("aten::a", 51, 56), call(54, 56, 4), kernel(59, 100, 4)]
    found = device(*WARM, sync(44, 51), *after, window="0.05:0.1")
    assert idle_of(found) == {"host host-sync": 1 + 3, "submitted launch-latency": 5}
    grades = {(i.grade, i.detail): i.ns for i in found.attribution if i.cause == "host-sync"}
    assert grades == {("measured", "sync"): 1_000, ("modelled", "sync"): 3_000}


def test_a_drain_ends_one_launch_latency_after_the_call() -> None:
    """Latency 5 µs: from the return at 51 until 56 nothing could have run; what the host does then is its own."""
    found = drained(op("aten::a", 51, 60), call(60, 62, 4), kernel(65, 100, 4))
    assert found == {"host host-sync": 1 + 5, "host framework": 4, "submitted launch-latency": 5}


def test_nested_call_waits_once() -> None:
    """The driver's call inside the runtime's is the same wait."""
    driver = event("cuda_driver", "cuStreamSynchronize", 48.5, 50.5, correlation=77)
    after = (op("aten::a", 51, 60), call(60, 62, 4), kernel(65, 100, 4))
    found = device(*WARM, sync(48, 51, "cudaStreamSynchronize"), driver, *after, window="0.05:0.1")
    assert idle_of(found) == {"host host-sync": 1 + 5, "host framework": 4, "submitted launch-latency": 5}
    assert device(*WARM, sync(48, 51, "cudaStreamSynchronize"), driver, *after, window="all").syncs == 1


def test_the_gap_after_the_next_one_is_not_the_drain() -> None:
    events = [
        op("aten::a", 51, 54), call(54, 56, 4), kernel(59, 70, 4), op("aten::b", 70, 80), call(80, 82, 5),
        kernel(85, 100, 5),
    ]  # fmt: skip
    assert gap(100, sync(44, 51), *events) == {
        "host host-sync": 1 + 3, "host framework": 10, "submitted launch-latency": 10,
    }  # fmt: skip


def test_the_call_that_returned_last_drained_the_device() -> None:
    """A sync returned at 50, a blocking copy at 72: what follows within 5 µs is the copy's."""
    events = [
        sync(48, 50), call(50, 72, 8, "cudaMemcpyAsync"), copy(52, 71, 8, "DtoH (Device -> Pageable)"),
        op("aten::a", 72, 80), call(80, 82, 4), kernel(85, 100, 4),
    ]  # fmt: skip
    found = device(*WARM, *events, window="0.072:0.1")
    split = {i.detail: i.ns for i in found.attribution if i.cause == "host-sync"}
    assert split == {"blocking copy": 5_000}
    assert idle_of(found)["host framework"] == 3


def test_loader_after_a_sync_is_the_loader() -> None:
    found = drained(annotation(LOADER, 51, 60), call(60, 62, 4), kernel(65, 100, 4), waits_from=20)
    assert found == {"host host-sync": 1, "host dataloader": 9, "submitted launch-latency": 5}


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaStreamCreate"])
def test_specific_causes_are_never_relabelled(name: str) -> None:
    found = drained(call(51, 60, 0, name), call(60, 62, 4), kernel(65, 100, 4), waits_from=20)
    assert found.pop("host allocator", 0) + found.pop("host module-load", 0) == 9
    assert found == {"host host-sync": 1, "submitted launch-latency": 5}


def test_sync_with_a_full_queue_behind_it_costs_nothing() -> None:
    queue = [call(41, 42, 4), kernel(50, 60, 4), sync(44, 51), call(52, 54, 5), kernel(60, 70, 5)]
    assert gap(70, *queue) == {}


def test_a_sync_that_ended_long_ago_has_nothing_to_do_with_a_gap() -> None:
    """It returned at 900 µs, and one kernel of 5 ms was queued; then the host takes 2 ms for something else."""
    events = [
        call(0, 1, 1), kernel(5, 890, 1), sync(2, 900), call(901, 903, 2), kernel(906, 5_906, 2),
        op("aten::a", 5_906, 7_906), call(7_800, 7_806, 3), kernel(7_811, 7_820, 3),
    ]  # fmt: skip
    assert idle(*events)["host framework"] == 7_800 - 5_906


# 6. The launch call is still running


def test_long_launch_call() -> None:
    assert gap(130, call(60, 120, 4), kernel(120, 130, 4)) == {
        "host host-unknown": 10, "submitted launch-latency": 5, "submitted launch-call": 55,
    }  # fmt: skip


def test_launch_call_that_began_before_the_gap() -> None:
    assert gap(80, call(45, 70, 4), kernel(70, 80, 4)) == {
        "submitted launch-latency": 5, "submitted launch-call": 15,
    }  # fmt: skip


def test_allocation_inside_a_launch() -> None:
    found = gap(130, call(60, 120, 4), call(70, 110, 0, "cudaMalloc"), kernel(120, 130, 4))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5, "submitted allocator": 55}


@pytest.mark.parametrize(
    ("name", "length", "cause"),
    [
        ("new", 204, "module-load"),  # its first launch, over 200 µs longer than the median call of 3 µs
        ("new", 203, "launch-call"),
        ("kernel", 400, "launch-call"),  # launched before
    ],
)
def test_first_launch_loads_code(name: str, length: int, cause: str) -> None:
    found = gap(70 + length, call(60, 60 + length, 4), kernel(60 + length, 70 + length, 4, name))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5, f"submitted {cause}": length - 5}


def test_median_call_counts_each_call_once() -> None:
    """Twenty nodes of one slow replay do not make a slow call usual."""
    replay = [call(44, 360, 4, "cudaGraphLaunch"), *(kernel(360 + i, 361 + i, 4, "node") for i in range(20))]
    found = gap(700, *replay, call(380, 690, 5), kernel(690, 700, 5, "new"))
    assert found == {"submitted launch-latency": 10, "submitted module-load": 305 + 305}


def test_module_event_inside_a_launch() -> None:
    inner = call(70, 80, 0, "cuModuleLoadData")
    assert gap(130, call(60, 120, 4), inner, kernel(120, 130, 4)) == {
        "host host-unknown": 10, "submitted launch-latency": 5, "submitted module-load": 55,
    }  # fmt: skip


@pytest.mark.parametrize(("length", "cause"), [(56, "copy-staging"), (55, "launch-call")])
def test_staging_of_a_copy(length: int, cause: str) -> None:
    """Beyond the launch latency the call runs 51 or 50 µs before its copy starts."""
    end = 60 + length
    found = gap(end + 9, call(60, end + 1, 4, "cudaMemcpyAsync"), copy(end, end + 9, 4))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5, f"submitted {cause}": length - 5}


@pytest.mark.parametrize(
    "name", ["cuModuleLoadDataEx", "cudaStreamCreateWithPriority", "cudaEventCreate", "cuCtxCreate"]
)
def test_start_up_calls(name: str) -> None:
    found = gap(75, call(50, 60, 0, name), call(60, 62, 4), kernel(65, 75, 4))
    assert found == {"host module-load": 10, "submitted launch-latency": 5}


def test_first_use_of_an_api() -> None:
    """Over 200 µs at its first use is start-up; the same later is a slow call, and so is 200 µs."""
    slow = [call(50, 251, 0, "cudaFuncGetAttributes"), call(251, 500, 0, "cudaFuncGetAttributes")]
    assert gap(515, *slow, call(500, 502, 4), kernel(505, 515, 4)) == {
        "host module-load": 201, "host launch-call": 249, "submitted launch-latency": 5,
    }  # fmt: skip
    assert gap(265, call(50, 250, 0, "cudaFuncGetAttributes"), call(250, 252, 4), kernel(255, 265, 4)) == {
        "host launch-call": 200, "submitted launch-latency": 5,
    }  # fmt: skip


# 7. The call has returned


@pytest.mark.parametrize(("stream", "cause"), [(7, "queued-gap"), (8, "dependency-wait")])
def test_wait_of_a_submitted_operation(stream: int, cause: str) -> None:
    assert gap(90, call(44, 46, 4), kernel(80, 90, 4, stream=stream)) == {f"submitted {cause}": 30}


@pytest.mark.parametrize(
    ("usual", "explained"),
    [(2, 50), (4, 80), (10, 200), (50, 200)],  # 20 × the median, at least 50 µs, at most 200 µs
)
def test_long_wait_is_unexplained(usual: int, explained: int) -> None:
    events = [call(41, 42, 9), call(42, 43, 8), call(43, 44, 7), call(44, 46, 4)]
    at = 50
    for correlation in (9, 8, 7):
        events.append(kernel(at + usual, at + usual + 10, correlation))
        at += usual + 10
    found = gap(at + 310, *events, kernel(at + 300, at + 310, 4))
    assert found == {"submitted queued-gap": 3 * usual + explained, "submitted device-unknown": 300 - explained}


def test_wait_that_no_launch_explains_is_unlinked() -> None:
    assert gap(80, kernel(70, 80)) == {"unlinked device-unknown": 20}


# 8. Back-pressure and the profiler


def test_full_queue_costs_nothing() -> None:
    events = [call(44, 46, 4), kernel(50, 9_000, 4), call(50, 8_000, 5), kernel(9_000, 9_100, 5)]
    assert gap(9_100, *events) == {}


def test_overhead_counts_only_inside_a_call() -> None:
    events = [call(60, 65, 0, "cudaEventRecord"), call(70, 72, 4), kernel(75, 90, 4)]
    assert gap(90, *events) == {"host host-unknown": 15, "host launch-call": 5, "submitted launch-latency": 5}
    assert gap(90, *events, overhead("Buffer Flush", 50, 62)) == {
        "host host-unknown": 15, "host launch-call": 3, "host profiler": 2, "submitted launch-latency": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Command Buffer Full", "launch-call"),
        ("Lazy Function Loading", "module-load"),
        ("Runtime Triggered Module Loading", "module-load"),
        ("Driver Compiler", "compile"),
        ("Activity Buffer Request", "profiler"),
    ],
)
def test_what_overhead_records_are(name: str, cause: str) -> None:
    events = [call(60, 65, 0, "cudaEventRecord"), call(70, 72, 4), kernel(75, 90, 4)]
    found = gap(90, *events, overhead(name, 60, 65))
    assert found == {"host host-unknown": 15, f"host {cause}": 5, "submitted launch-latency": 5}


def test_overhead_inside_overhead() -> None:
    """The innermost record decides, but an enclosing profiler wins over what happens in it."""
    events = [call(60, 70, 0, "cudaEventRecord"), call(72, 74, 4), kernel(77, 90, 4)]
    loading, profiler = "Lazy Function Loading", "Buffer Flush"
    assert gap(90, *events, overhead(loading, 50, 80), overhead(profiler, 62, 66)) == {
        "host host-unknown": 12, "host profiler": 4, "host module-load": 6, "submitted launch-latency": 5,
    }  # fmt: skip
    assert gap(90, *events, overhead(profiler, 50, 80), overhead(loading, 62, 66)) == {
        "host host-unknown": 12, "host profiler": 10, "submitted launch-latency": 5,
    }  # fmt: skip


def test_launch_latency_of_a_queue_is_that_of_the_one_launch_that_met_an_idle_device() -> None:
    """The other one waits in the queue. What is taken for usual is a bound, and never shown as measured."""
    found = device(call(0, 5, 1), call(5, 900, 2), kernel(300, 400, 1), kernel(500, 600, 2))
    assert found.launch_latency_ns == 300_000
    assert idle_of(found) == {"submitted launch-latency": 50, "submitted launch-call": 50}


def test_lazy_loading_during_the_launch() -> None:
    found = gap(130, call(60, 120, 4), overhead("Lazy Function Loading", 65, 110), kernel(120, 130, 4))
    assert found == {"host host-unknown": 10, "submitted launch-latency": 5, "submitted module-load": 55}


# 9. Damage, and what runs at the same time


def test_corrupt_end_is_cut() -> None:
    events = [kernel(0, 50), kernel(50, 3_400_050), kernel(100, 140), kernel(140, 200)]
    found = device(*events)
    assert (found.busy_ns, found.wall_ns) == (200_000, 200_000)


def test_dependent_launch_may_overlap_its_predecessor() -> None:
    """It outlasts one successor, not two: nothing is cut, and the overlap counts once."""
    found = device(kernel(0, 60), kernel(50, 58), kernel(58, 100))
    assert (found.busy_ns, sum(k.ns for k in found.kernels_by_name)) == (100_000, 110_000)


def test_order_of_what_runs_at_the_same_time() -> None:
    """Compute, then communication, then copies to the host's device first, then sets."""
    found = device(
        kernel(0, 10), kernel(5, 20, name="ncclDevKernel_AllReduce", stream=8),
        copy(15, 30, what="HtoD (Pinned -> Device)", stream=9),
        copy(25, 40, what="DtoH (Device -> Pageable)", stream=10),
        copy(35, 50, what="PtoP", stream=11), copy(45, 60, what="DtoD", stream=12), memset(55, 70, stream=13),
    )  # fmt: skip
    parts = [(i.when, i.cause, i.detail, i.ns) for i in found.attribution]
    assert sorted(parts) == sorted(
        [
            ("compute", "unmodelled", "", 10_000),
            ("communication", "exposed-communication", "", 10_000),
            ("copy", "exposed-copy", "HtoD pinned", 10_000),
            ("copy", "exposed-copy", "DtoH pageable", 10_000),
            ("copy", "exposed-copy", "PtoP", 10_000),
            ("copy", "exposed-copy", "DtoD", 10_000),
            ("copy", "memset", "", 10_000),
        ]
    )
    assert found.communication_total_ns == 15_000


# The result as a whole


def test_pieces_cover_every_gap_in_order() -> None:
    found = attribution(*WARM, step(0, 1, 90), sync(48, 52), op("aten::a", 52, 60), call(60, 62, 4), kernel(65, 75, 4))
    pieces, gaps = found.pieces, found.timeline.gaps
    assert (pieces.start[1:] >= pieces.end[:-1]).all()
    for i in range(len(gaps)):
        mine = np.flatnonzero(pieces.gap == i)
        assert pieces.start[mine[0]] == gaps.start[i]
        assert pieces.end[mine[-1]] == gaps.end[i]
        assert (pieces.start[mine[1:]] == pieces.end[mine[:-1]]).all()
    assert set(pieces.cause.tolist()) <= set(range(len(IDLE)))
    assert set(pieces.side.tolist()) <= set(range(len(SIDES)))
