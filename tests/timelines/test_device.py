"""One device's operations, gaps and blocking calls. Times are µs."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE, COPIES, FIRST_COPY, SET, blocking_calls, exposed

from tests.build import Event, call, copy, kernel, memset, op, sync, timeline, timeline_of, trace


def gaps(*events: Event) -> list[tuple[float, ...]]:
    """(start, submitted, returned, end) of every gap."""
    found = timeline(*events).gaps
    columns = (found.start, found.submitted, found.returned, found.end)
    return [tuple(t / 1000 for t in row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def test_each_device_of_each_process_has_one() -> None:
    recording = trace(
        call(1, 2, 1, pid="[TP00] 10"), call(1, 2, 1, pid="[TP01] 11"), {**kernel(5, 6, 1), "pid": "[TP00] 0"},
        {**kernel(5, 6, 1), "pid": "[TP01] 0"}, {**kernel(7, 8, 0, device=1), "pid": "[TP01] 1"},
    )  # fmt: skip
    lines = [timeline_of(recording, at) for at in range(3)]
    assert [(line.process, line.device, len(line.row)) for line in lines] == [(0, 0, 1), (1, 0, 1), (1, 1, 1)]
    assert [int(recording.process[line.launch[0]]) for line in lines[:2]] == [0, 1]


@pytest.mark.parametrize(
    ("one", "op_class"),
    [
        (kernel(0, 1, 0, "gemm"), COMPUTE),
        (kernel(0, 1, 0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), COMMUNICATION),
        (kernel(0, 1, 0, "NCCL_AllReduce"), COMMUNICATION),
        (kernel(0, 1, 0, "multimem_all_reduce_kernel"), COMMUNICATION),
        (kernel(0, 1, 0, "void vllm::cross_device_reduce_2stage<bf16, 8>"), COMMUNICATION),
        (kernel(0, 1, 0, "deep_ep::intranode::dispatch"), COMMUNICATION),
        (kernel(0, 1, 0, "deep_epsilon"), COMPUTE),
        (copy(0, 1, 0, "HtoD (Pageable -> Device)"), FIRST_COPY + COPIES.index(("HtoD", "pageable"))),
        (copy(0, 1, 0, "DtoH (Device -> Pinned)"), FIRST_COPY + COPIES.index(("DtoH", "pinned"))),
        (copy(0, 1, 0, "PtoP (Device -> Device)"), FIRST_COPY + COPIES.index(("PtoP", ""))),
        (copy(0, 1, 0, "DtoD (Device -> Device)"), FIRST_COPY + COPIES.index(("DtoD", ""))),
        ({**copy(0, 1), "name": "CopyDeviceToHost"}, FIRST_COPY + COPIES.index(("DtoH", ""))),
        (
            {**copy(0, 1), "name": "ncclCopy"},
            FIRST_COPY + COPIES.index(("unknown direction", "")),
        ),  # a copy, whatever its name
        (memset(0, 1), SET),
    ],
)
def test_what_an_operation_does(one: Event, op_class: int) -> None:
    assert timeline(one).op_class.tolist() == [op_class]


def test_nodes_and_later_nodes() -> None:
    line = timeline(call(0, 1, 1), kernel(5, 6, 1), call(2, 3, 2), kernel(7, 8, 2), memset(9, 10, 2), kernel(11, 12))
    assert line.node.tolist() == [False, True, True, False]
    assert line.later_node.tolist() == [False, False, True, False]
    assert line.linked.tolist() == [True, True, True, False]
    assert line.span_ns == (5_000, 12_000)


def test_gap_geometry() -> None:
    """Before the first operation, between two, and after the last one: where it was submitted and its call returned."""
    events = [op("a", 0, 60), call(2, 4, 1), kernel(10, 20, 1), call(25, 28, 2), kernel(30, 40, 2)]
    assert gaps(*events) == [(0, 2, 4, 10), (20, 25, 28, 30), (40, 60, 60, 60)]
    found = timeline(*events).gaps
    assert found.interior.tolist() == [False, True, False]
    assert found.unlinked.tolist() == [False, False, False]
    assert found.closing.tolist() == [0, 1, -1]
    assert found.after.tolist() == [False, True, False]
    assert len(found) == 3


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ((15, 18), (20, 20, 20, 30)),  # submitted and returned before the gap
        ((15, 24), (20, 20, 24, 30)),  # submitted before, still running
        ((22, 35), (20, 22, 30, 30)),  # returned after the operation had started
        ((31, 33), (20, 30, 30, 30)),  # clocks disagree: launched after it started
    ],
)
def test_launch_is_clamped_into_the_gap(launch: tuple[int, int], expected: tuple[int, ...]) -> None:
    assert gaps(kernel(10, 20), call(*launch, 2), kernel(30, 40, 2))[0] == expected


def test_later_node_waits_for_no_call() -> None:
    events = [call(0, 50, 1, "cudaGraphLaunch"), kernel(10, 20, 1), kernel(30, 40, 1)]
    assert gaps(*events)[:2] == [(0, 0, 10, 10), (20, 20, 20, 30)]


def test_time_beside_operations_without_length() -> None:
    found = timeline(op("a", 0, 50), kernel(5, 5), kernel(10, 20), kernel(30, 30)).gaps
    assert list(zip((found.start // 1000).tolist(), (found.end // 1000).tolist(), found.unlinked.tolist(), strict=True)) == [
        (0, 5, False), (5, 10, True), (20, 30, True), (30, 50, False),
    ]  # fmt: skip


def test_predecessor_on_the_closing_stream() -> None:
    """Two kernels end together; the gap's closing operation runs on the second one's stream."""
    found = timeline(
        kernel(0, 20, stream=7), kernel(0, 20, stream=8), kernel(30, 40, stream=8), kernel(50, 60, stream=7)
    )
    assert found.gaps.after.tolist() == [True, False]


def test_exposed_time_by_order_of_classes() -> None:
    line = timeline(
        kernel(0, 10), kernel(5, 15, 0, "nccl", stream=8), copy(12, 30, stream=9), memset(25, 40, stream=10)
    )
    assert [ns for _, ns in exposed(line, 0, 40_000)] == [10_000, 5_000, 15_000, 10_000]
    assert [ns for _, ns in exposed(line, 8_000, 26_000)] == [2_000, 5_000, 11_000, 0]


# Calls that block


def blocking(*events: Event) -> list[tuple[float, bool, float]]:
    """(start, is a copy, µs that the device was busy meanwhile) of each blocking call."""
    line = timeline(*events)
    found = blocking_calls(line)
    start = line.trace.start_ns[found.row] / 1000
    return list(zip(start.tolist(), found.is_copy.tolist(), (found.busy_ns / 1000).tolist(), strict=True))


BUSY = (call(0, 1, 1), kernel(10, 40, 1))


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "hipStreamSynchronize",
        "cuCtxSynchronize",
    ],
)
def test_synchronisation_by_name(name: str) -> None:
    assert blocking(*BUSY, sync(5, 42, name)) == [(5, False, 30)]
    assert blocking(*BUSY, sync(35, 42, name)) == [(35, False, 5)]
    assert blocking(*BUSY, sync(50, 60, name), op("aten::mm", 70, 80)) == [(50, False, 0)]


@pytest.mark.parametrize("name", ["cudaStreamWaitEvent", "cudaEventRecord", "cudaEventQuery", "cudaLaunchKernel"])
def test_what_does_not_block(name: str) -> None:
    assert blocking(*BUSY, call(5, 60, 0, name)) == []


def test_blocking_copy_waits_for_all_that_runs() -> None:
    assert blocking(*BUSY, call(20, 61, 2, "cudaMemcpyAsync"), copy(45, 60, 2)) == [(20, True, 20 + 15)]


def test_nested_call_is_the_same_wait() -> None:
    assert blocking(*BUSY, sync(5, 42), sync(6, 41, "cuCtxSynchronize")) == [(5, False, 30)]
    copied = [call(20, 61, 2, "cudaMemcpy"), copy(45, 60, 2), sync(50, 60, "cuStreamSynchronize")]
    assert blocking(*BUSY, *copied) == [(20, True, 35)]


def test_thread_that_launches_nothing_blocks_nobody() -> None:
    assert blocking(*BUSY, sync(5, 42, tid=9)) == []


def test_busy_is_the_union() -> None:
    line = timeline(kernel(0, 10), kernel(5, 20, stream=8), kernel(20, 30), kernel(31, 31))
    assert line.busy.start.tolist() == [0]
    assert line.busy.end.tolist() == [30_000]
    assert line.union_of(np.array([True, False, True, True])).end.tolist() == [10_000, 30_000]
