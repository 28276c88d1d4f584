"""Each kind of edge on a trace small enough to work out by hand: the replay as it is, and one that only this edge decides.

Times are µs; `replayed` gives when each operation ends, counted like the trace.
"""

from __future__ import annotations

import numpy as np
import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.attribution.build import attribute
from gpu_trace_advisor.graph import Edge, Graph, Point
from gpu_trace_advisor.graph.build import build_graph
from gpu_trace_advisor.replay.changes import Change, scaled, without_host, without_waits
from gpu_trace_advisor.replay.sweep import replay
from gpu_trace_advisor.timelines.device import timelines
from gpu_trace_advisor.timelines.host import read_host

from tests.build import Event, Time, annotation, call, copy, event, kernel, op, step, sync, trace
from tests.build import frame as python_frame


def graph(*events: Event, marks: bool = False) -> Graph:
    """The graph of one process with all its devices."""
    recording = trace(*events)
    host = read_host(recording, 0)
    steps = np.flatnonzero([recording.label(row).startswith("ProfilerStep") for row in range(len(recording))])
    return build_graph([attribute(lane) for lane in timelines(recording, {0: host})], steps if marks else None)


def replayed(of: Graph, *changes: Change) -> list[float]:
    """End of each operation, in the order in which they start in the trace."""
    for change in changes:
        of = change(of)
    return [round(end / 1000, 3) for end in (replay(of).operation_end - of.trace.origin_ns).tolist()]


def measured(of: Graph) -> list[float]:
    return [round(end / 1000, 3) for end in (of.trace.end_ns[of.row] - of.trace.origin_ns).tolist()]


def half(*operations: int) -> Change:
    return scaled(np.array(operations), 0.5)


def kinds(of: Graph) -> set[Edge]:
    return {Edge(kind) for kind in of.kind.tolist()}


def test_edges_go_forward_and_are_sorted_by_target() -> None:
    of = graph(*LAUNCHES)
    assert (of.source < of.target).all()
    assert (np.diff(of.target) >= 0).all()
    assert of.point[0] == Point.ROOT
    assert (of.first_edge == np.searchsorted(of.target, np.arange(len(of.point) + 1))).all()


LAUNCHES = (
    call(0, 5, 1), kernel(6, 16, 1), op("aten::add", 10, 35), call(30, 35, 2), kernel(36, 46, 2), op("aten::add", 40, 65),
    call(60, 65, 3), kernel(66, 76, 3),
)  # fmt: skip


def test_thread_order_and_launch() -> None:
    of = graph(*LAUNCHES)
    assert kinds(of) == {Edge.THREAD, Edge.LAUNCH, Edge.STREAM}
    assert replayed(of) == measured(of) == [16, 46, 76]
    # 20 of framework before each of the later calls, then kernels queue: 6 after their launch, or 1 after each other.
    assert replayed(of, without_host(["framework"])) == [16, 27, 38]
    assert replayed(of, without_host(["framework"], 0.5)) == [16, 36, 56]


def test_the_first_call_is_host_work_since_the_start() -> None:
    of = graph(op("aten::add", 0, 105), call(100, 105, 1), kernel(106, 116, 1))
    assert replayed(of) == [116]
    assert replayed(of, without_host(["framework"])) == [16]


def test_stream_order() -> None:
    of = graph(
        call(0, 5, 1), call(5, 10, 2), call(10, 15, 3), kernel(6, 56, 1), kernel(57, 107, 2), kernel(108, 158, 3)
    )
    assert replayed(of) == measured(of)
    assert replayed(of, half(0, 1, 2)) == [31, 57, 83]


def test_streams_run_beside_each_other() -> None:
    of = graph(call(0, 5, 1), call(5, 10, 2), kernel(6, 56, 1), kernel(11, 31, 2, stream=8))
    assert replayed(of, scaled(np.array([0]), 3)) == [156, 31]


def two_steps(loader_us: int = 1000) -> list[Event]:
    """A loader and a launch on the main thread, one by autograd's, one on the main thread again; twice."""
    events, period = [], 200 + loader_us
    for number, begin in enumerate((0, period)):
        work, ids = begin + loader_us, 10 * number
        events += [
            annotation("enumerate(DataLoader)#_Iter.__next__", begin, work),
            op("aten::conv", work, work + 20), call(work + 10, work + 15, ids + 1), kernel(work + 16, work + 26, ids + 1),
            op("MmBackward0", work + 30, work + 130, tid=2), call(work + 120, work + 125, ids + 2, tid=2),
            kernel(work + 126, work + 136, ids + 2),
            op("aten::add_", work + 140, work + 160), call(work + 150, work + 155, ids + 3),
            kernel(work + 156, work + 166, ids + 3),
        ]  # fmt: skip
    return events


def test_hand_over_between_threads() -> None:
    of = graph(*two_steps())
    handed = of.edges(Edge.HANDOVER)
    assert len(handed) == 4  # to autograd's thread and back, in each step
    assert replayed(of) == measured(of)
    # Without the loader autograd's thread moves up with the main one.
    assert replayed(of, without_host(["dataloader"])) == [26, 136, 166, 226, 336, 366]


def test_the_time_of_a_hand_over_is_its_threads() -> None:
    # Of the 110 to autograd's call the main thread's launch and its operator's rest are 10; 90 are autograd's operator.
    without = replayed(graph(*two_steps()), without_host(["framework"]))
    assert without == [1016, 1031, 1046, 2091, 2106, 2121]


def test_without_hand_over_edges_the_loader_seems_to_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_trace_advisor.graph.host_edges.HANDOVER_HOLE_NS", 10**12)
    of = graph(*two_steps())
    assert replayed(of) == measured(of)  # which an unchanged replay does not show
    assert replayed(of, without_host(["dataloader"]))[1] == measured(of)[1]


def test_a_step_mark_is_handed_over_to() -> None:
    main = python_frame("train.py(1): step", 0, 4), python_frame("train.py(1): step", 400, 420)
    of = graph(
        step(1, 0, 410), *main, call(0, 4, 1), kernel(6, 16, 1), op("MmBackward0", 60, 380, tid=2), call(370, 375, 2, tid=2),
        kernel(376, 386, 2), call(412, 416, 3), kernel(418, 428, 3), step(2, 410, 430), marks=True,
    )  # fmt: skip
    assert replayed(of) == measured(of)
    assert replayed(of, without_host(["framework"])) == [16, 76, 113]  # 5 of autograd's operator after its launch, too


def test_a_short_hole_is_no_hand_over() -> None:
    of = graph(
        op("aten::a", 0, 10), call(5, 10, 1), kernel(11, 21, 1), op("B", 0, 40, tid=2), call(30, 35, 2, tid=2),
        kernel(36, 46, 2), op("aten::c", 55, 80), call(70, 75, 3), kernel(76, 86, 3),
    )  # fmt: skip
    assert Edge.HANDOVER not in kinds(of)


def test_graph_replay_with_branches() -> None:
    of = graph(
        call(0, 10, 1, "cudaGraphLaunch"), kernel(20, 30, 1), kernel(31, 61, 1, stream=8), kernel(31, 41, 1),
        kernel(62, 72, 1),
    )  # fmt: skip
    assert replayed(of) == measured(of) == [30, 61, 41, 72]
    assert replayed(of, half(1)) == [30, 46, 41, 57]  # the join waits for the branch
    assert replayed(of, scaled(np.array([1]), 0.1)) == [30, 34, 41, 52]  # and then for its own stream
    assert not np.isin(of.edges(Edge.LAUNCH), of.edges(Edge.GRAPH)).any()
    assert len(of.edges(Edge.LAUNCH)) == 1  # the host submits the first node only


def test_two_replays_of_a_graph_keep_their_branches_apart() -> None:
    def one(begin: Time, correlation: int) -> list[Event]:
        return [
            call(begin, begin + 10, correlation, "cudaGraphLaunch"), kernel(begin + 20, begin + 30, correlation),
            kernel(begin + 31, begin + 61, correlation, stream=8), kernel(begin + 62, begin + 72, correlation),
        ]  # fmt: skip

    of = graph(*one(0, 1), *one(200, 2))
    assert replayed(of) == measured(of)
    assert replayed(of, half(1)) == [30, 46, 57, 230, 261, 272]


def test_a_stream_waits_for_what_outlasts_an_operation_without_length() -> None:
    of = graph(call(0, 5, 1), kernel(6, 6, 1), call(5, 8, 2), kernel(6, 106, 2), call(10, 15, 3), kernel(107, 117, 3))
    assert replayed(of)[-1] == 117
    assert replayed(of, scaled(np.array([0, 1]), 2))[-1] == 217


def two_streams(*more: Event) -> Graph:
    """The second stream's kernel waits for the first one's, 2 after its end."""
    return graph(
        call(0, 5, 1), kernel(6, 26, 1, stream=20), call(6, 8, 31, "cudaEventRecord"),
        call(8, 10, 32, "cudaStreamWaitEvent"), call(10, 15, 2), kernel(28, 38, 2), *more,
    )  # fmt: skip


def named(record: int = 31, **more: int) -> Event:
    return event(
        "cuda_sync", "Stream Wait Event", 8, 10, pid=0, tid=7, stream=7, device=0, correlation=32,
        wait_on_stream=20, wait_on_cuda_event_record_corr_id=record, wait_on_cuda_event_id=1, **more,
    )  # fmt: skip


@pytest.mark.parametrize("is_named", [False, True])
def test_event_wait(is_named: bool) -> None:
    of = two_streams(*([named()] if is_named else []))
    edges = of.edges(Edge.EVENT)
    assert of.modelled[edges].tolist() == [not is_named]
    assert replayed(of) == measured(of)
    assert replayed(of, scaled(np.array([0]), 2)) == [46, 58]
    assert replayed(of, scaled(np.array([0]), 0.1)) == [8, 26]  # its own launch decides now


def test_an_unknown_record_names_no_event() -> None:
    of = two_streams(named(-1))
    assert of.modelled[of.edges(Edge.EVENT)].tolist() == [True]


def test_a_named_wait_holds_its_stream_whoever_launches_on_it() -> None:
    events = [
        call(0, 5, 1), kernel(6, 26, 1, stream=20), call(6, 8, 31, "cudaEventRecord"),
        call(8, 10, 32, "cudaStreamWaitEvent"), named(), call(12, 17, 2, tid=2), kernel(28, 38, 2),
    ]  # fmt: skip
    assert replayed(graph(*events), scaled(np.array([0]), 2)) == [46, 58]
    # Without the name it is the next operation of the thread that waits; here there is none.
    assert Edge.EVENT not in kinds(graph(*[e for e in events if e["cat"] != "cuda_sync"]))


def test_a_named_wait_is_for_what_was_launched_before_the_record() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 26, 1, stream=20), call(6, 8, 31, "cudaEventRecord"), call(8, 10, 32, "cudaStreamWaitEvent"),
        named(), call(10, 12, 3), kernel(28, 30, 3, stream=20), call(12, 15, 2), kernel(31, 41, 2),
    )  # fmt: skip
    edge = int(of.edges(Edge.EVENT)[0])
    assert of.after(edge) == 0


def test_a_latency_of_events_is_no_gap_of_a_stream() -> None:
    """Operations that waited 20 for another stream do not make 20 the usual distance of operations on one stream."""
    events: list[Event] = []
    for i in range(5):
        t, ids = 400 * i, 10 * i
        events += [
            call(t, t + 3, ids + 1), kernel(t + 6, t + 56, ids + 1), call(t + 4, t + 6, ids + 2),
            kernel(t + 10, t + 110, ids + 2, stream=20), call(t + 8, t + 9, ids + 3, "cudaEventRecord"),
            call(t + 10, t + 11, ids + 4, "cudaStreamWaitEvent"), call(t + 12, t + 15, ids + 5),
            kernel(t + 130, t + 180, ids + 5), call(t + 16, t + 19, ids + 6), kernel(t + 181, t + 191, ids + 6),
        ]  # fmt: skip
    of = graph(*events)
    assert (of.queued_gap_ns, replayed(of)) == (1000, measured(of))
    assert replayed(of, scaled(np.array([1]), 0.5))[2:4] == [130, 141]  # 60 + 20


def test_blocking_sync() -> None:
    of = graph(call(0, 5, 1), kernel(6, 106, 1), sync(10, 109), call(120, 125, 2), kernel(126, 136, 2))
    assert replayed(of) == measured(of)
    assert replayed(of, half(0)) == [56, 86]  # returns at 59, 11 of host work, 6 of latency
    assert replayed(of, without_waits()) == [106, 117]  # behind the first on its stream
    assert replayed(of, half(0), without_waits()) == [56, 67]


def test_a_sync_with_nothing_to_wait_for_costs_its_own_time() -> None:
    of = graph(call(0, 5, 1), kernel(6, 16, 1), sync(30, 33), call(40, 45, 2), kernel(46, 56, 2))
    assert replayed(of) == measured(of)
    assert replayed(of, without_waits()) == [16, 53]


def test_a_sync_with_nothing_to_wait_for_would_wait_for_a_slower_device() -> None:
    of = graph(call(0, 5, 1), kernel(6, 16, 1), sync(30, 33), call(40, 45, 2), kernel(46, 56, 2))
    assert replayed(of, scaled(np.array([0]), 4)) == [46, 72]  # returns 3 later, 7 of host work, 6 of latency
    assert replayed(of, scaled(np.array([0]), 4), without_waits()) == [46, 57]


def test_a_sync_with_nothing_to_wait_for_would_wait_if_it_came_sooner() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), op("aten::add", 40, 130), sync(130, 133), call(140, 145, 2), kernel(146, 156, 2),
    )  # fmt: skip
    assert replayed(of) == measured(of)
    assert replayed(of, without_host(["framework"])) == [106, 132]  # returns at 109, 7 of host work, 6 of latency


def test_a_free_with_nothing_to_wait_for_would_wait_and_then_free() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 16, 1), call(30, 54, 0, "cudaFree"), call(60, 65, 2), kernel(66, 76, 2),
    )  # fmt: skip
    assert replayed(of) == measured(of)
    # 24 to free behind the kernel, 6 of host work, 6 of latency.
    assert replayed(of, scaled(np.array([0]), 4)) == [46, 92]
    assert replayed(of, scaled(np.array([0]), 4), without_host(["allocator"])) == [46, 68]


def waiting(name: str, **what: object) -> Graph:
    """Short work on stream 7, an event after it, long work on both streams, and a wait for a part of it at 80."""
    return graph(
        call(0, 5, 1), kernel(6, 16, 1), call(6, 7, 2, "cudaEventRecord"), call(8, 13, 3), kernel(17, 57, 3),
        call(14, 19, 4), kernel(20, 70, 4, stream=20), call(80, 83, 5, name),
        event("cuda_sync", "Sync", 80, 83, pid=0, tid=7, correlation=5, device=0, **what), call(90, 95, 6), kernel(96, 106, 6),
    )  # fmt: skip


def test_a_sync_waits_for_the_stream_or_event_that_the_recording_names() -> None:
    any_work = waiting("cudaDeviceSynchronize", cuda_sync_kind="Context Sync", stream=-1)
    stream = waiting("cudaStreamSynchronize", cuda_sync_kind="Stream Sync", stream=7)
    record = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    of_event = waiting("cudaEventSynchronize", cuda_sync_kind="Event Sync", stream=-1, **record)
    for of in (any_work, stream, of_event):
        assert replayed(of) == measured(of)
    # Returns 3 after what it waits for, then 7 of host work, 6 of latency and 10 of work.
    assert replayed(any_work, scaled(np.array([2]), 3))[2:] == [170, 196]
    assert replayed(any_work, scaled(np.array([1]), 3)) == [16, 137, 70, 163]  # for all streams, whichever is last
    assert replayed(stream, scaled(np.array([2]), 3))[2:] == [170, 106]
    assert replayed(stream, scaled(np.array([1]), 3)) == [16, 137, 70, 163]
    assert replayed(of_event, scaled(np.array([1]), 3)) == [16, 137, 70, 148]  # behind it on its stream only
    assert replayed(of_event, scaled(np.array([0]), 10), scaled(np.array([1]), 0)) == [106, 107, 70, 132]


def test_a_sync_waits_for_no_later_launch_of_another_thread() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), sync(10, 109), call(50, 55, 3, tid=2), kernel(56, 108, 3, stream=8),
    )  # fmt: skip
    edge = int(of.edges(Edge.BLOCK)[0])
    assert of.after(edge) == 0


def test_blocking_copy() -> None:
    of = graph(call(0, 60, 1, "cudaMemcpy"), copy(10, 50, 1), call(70, 75, 2), kernel(76, 86, 2))
    assert replayed(of) == measured(of)
    assert replayed(of, half(0)) == [30, 66]  # returns at 40, 10 of host work, 6 of latency
    assert replayed(of, without_waits()) == [50, 86]  # a copy is no synchronisation
    assert replayed(of, without_waits([0])) == [50, 61]


def test_a_free_that_waits() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), call(10, 130, 0, "cudaFree"), call(140, 145, 2), kernel(146, 156, 2),
    )  # fmt: skip
    assert Edge.BLOCK in kinds(of)
    assert replayed(of) == measured(of)
    assert replayed(of, half(0)) == [56, 106]
    assert replayed(of, without_host(["allocator"])) == [106, 132]  # it waits still, and then costs nothing


def full_queue(kernels: int = 1200, depth: int = 520) -> list[Event]:
    """Kernels of 100; a launch call takes 5, or until the kernel `depth` before it starts."""
    events, now = [], 0
    for k in range(kernels):
        room = 6 + 101 * (k - depth) if k >= depth else 0
        end = max(now + 5, room)
        events += [call(now, end, k + 1), kernel(6 + 101 * k, 106 + 101 * k, k + 1)]
        now = end
    return events


def test_queue_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    of = graph(*full_queue())
    assert len(of.edges(Edge.QUEUE)) > 640
    everything = scaled(np.arange(1200), 0.5)
    assert replayed(of)[-1] == measured(of)[-1] == 6 + 101 * 1200 - 1
    assert replayed(of, everything)[-1] == 6 + 51 * 1200 - 1
    monkeypatch.setattr("gpu_trace_advisor.graph.operations.QUEUE_IN_FLIGHT", 5000)
    without = graph(*full_queue())
    assert replayed(without)[-1] == measured(of)[-1]  # which an unchanged replay does not show
    assert replayed(without, everything)[-1] > 101 * 650


def test_an_operation_without_a_launch_keeps_its_distance() -> None:
    of = graph(call(0, 5, 1), kernel(6, 16, 1), kernel(40, 50), call(60, 65, 2), kernel(66, 76, 2))
    assert Edge.DISTANCE in kinds(of)
    assert replayed(of) == measured(of)
    assert replayed(of, half(0)) == [11, 45, 76]


def test_a_first_operation_without_a_launch_keeps_its_distance_from_the_start() -> None:
    of = graph(op("aten::a", 0, 10), kernel(40, 50), kernel(52, 62))
    assert replayed(of, half(0)) == [45, 57]


def test_equal_times_in_whole_microseconds() -> None:
    """An operation that starts when its call does, calls that begin when a sync ends, a sync that ends with its kernel."""
    of = graph(
        call(10, 12, 1), kernel(10, 30, 1), sync(12, 30), call(30, 32, 2), kernel(30, 40, 2), call(32, 34, 3),
        kernel(40, 50, 3), sync(34, 50), call(50, 52, 4), kernel(50, 60, 4), kernel(60, 70, 4), call(52, 60, 5),
        kernel(70, 80, 5), op("aten::first", 0, 10),
    )  # fmt: skip
    assert replayed(of) == measured(of)
    assert (of.source < of.target).all()
    assert replayed(of, half(0))[0] == 20
    assert replayed(of, half(0))[1] == 30 - 10 + 10


def test_clock_skew() -> None:
    """An operation before its launch: the order holds, the rest is replayed as it was."""
    of = graph(call(10, 15, 1), kernel(8, 18, 1), kernel(19, 25, 1), call(20, 25, 2), kernel(26, 36, 2), op("a", 0, 9))
    assert (of.source < of.target).all()
    assert replayed(of) == measured(of) == [18, 25, 36]
    assert replayed(of, half(0, 1, 2)) == [13, 17, 31]


def test_overlap_on_one_stream_stays() -> None:
    """Programmatic dependent launch: the second kernel began 2 before the first one's end."""
    of = graph(call(0, 2, 1), call(2, 4, 2), kernel(6, 20, 1), kernel(18, 30, 2), call(4, 6, 3), kernel(31, 41, 3))
    assert replayed(of) == measured(of)
    assert replayed(of, half(0)) == [13, 23, 34]


def test_a_delay_that_nothing_explains_is_kept_and_counted() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 16, 1), call(20, 25, 2), kernel(900, 910, 2), call(920, 925, 3), kernel(926, 936, 3)
    )
    assert replayed(of) == measured(of)
    assert of.delay_ns.tolist() == [0, 874_000, 0]


def test_the_excess_of_a_call_beside_a_busy_device_is_the_calls() -> None:
    """Loading a module takes 400 while another stream computes for 300 of them: all 400 go with the loading."""
    usual = [
        e
        for i in range(4)
        for e in (call(2000 + 100 * i, 2005 + 100 * i, 10 + i), kernel(2006 + 100 * i, 2016 + 100 * i, 10 + i))
    ]
    of = graph(
        call(0, 5, 1, name="cudaLaunchKernel"), kernel(6, 306, 1, stream=20), call(10, 410, 2),
        kernel(411, 421, 2, "first_of_its_kind"), *usual,
    )  # fmt: skip
    assert replayed(of) == measured(of)
    assert replayed(of, without_host(["module-load"]))[1] == 26


def test_launches_of_graphs_have_a_latency_of_their_own() -> None:
    events: list[Event] = []
    for i in range(6):
        t, ids = 300 * i, 10 * i
        events += [
            call(t, t + 6, ids + 1), kernel(t + 6, t + 16, ids + 1), call(t + 50, t + 64, ids + 2, "cudaGraphLaunch"),
            kernel(t + 63, t + 73, ids + 2), kernel(t + 74, t + 84, ids + 2),
        ]  # fmt: skip
    of = graph(*events)
    assert replayed(of) == measured(of)


def test_devices_of_a_process_share_their_host() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), sync(10, 109), call(120, 125, 2), kernel(126, 136, 2, device=1),
    )  # fmt: skip
    assert of.device.tolist() == [0, 1]
    assert replayed(of, half(0)) == [56, 86]


def test_a_graph_without_host_events() -> None:
    of = graph(kernel(0, 10), kernel(12, 20), kernel(5, 30, stream=8))
    assert replayed(of) == measured(of) == [10, 30, 20]


def test_the_graph_of_advice_is_trusted_when_it_is_exact() -> None:
    of = advise_traces([trace(*LAUNCHES)]).devices[0]
    assert of.wall_ns > 0


def test_a_launch_that_polls_follows_what_it_polls_for() -> None:
    """A kernel of a few hundred µs, 8 µs after its end a launch of one of 30 µs, 52 µs after that launch the next turn."""
    events, at, lengths = [], 0, (100, 300, 150, 500, 200, 400)
    for i, length in enumerate(lengths):
        done = at + 5 + length
        events += [
            call(at, at + 4, 2 * i + 1), kernel(at + 5, done, 2 * i + 1, "notify"),
            call(done + 8, done + 12, 2 * i + 2), kernel(done + 13, done + 43, 2 * i + 2, "gemm"),
            op("aten::empty", done + 12, done + 60),
        ]  # fmt: skip
        at = done + 60
    of = graph(*events)
    assert replayed(of) == measured(of)
    assert len(of.edges(Edge.BLOCK)) == len(lengths)
    halved, at = [], 0
    for length in lengths:
        halved += [at + 5 + length // 2, at + 5 + length // 2 + 43]
        at = halved[-1] + 17
    assert replayed(of, half(*range(0, 12, 2))) == halved
    # What the host does while it polls is no work of its own.
    assert replayed(of, without_host(["host-unknown", "python"])) == measured(of)
    # Without its operators the next kernel starts 1 µs after the gemm, 21 µs sooner than 5 µs after a launch 17 µs later.
    assert replayed(of, without_host(["framework"]))[-1] == measured(of)[-1] - 5 * 21
