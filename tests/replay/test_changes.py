"""Changes of a graph, each on a trace small enough to work out by hand. Times are µs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.columns.durations import Nanoseconds
from gpu_trace_advisor.graph import Edge, Graph
from gpu_trace_advisor.replay.changes import (
    captured,
    fused,
    overlapped,
    regions,
    scaled,
    synchronisations,
    together,
    unnamed_wait_decides,
    without_gaps,
    without_host,
    without_waits,
)
from gpu_trace_advisor.replay.sweep import replay

from tests.build import Event, Time, call, copy, kernel, op, step, sync
from tests.graph.test_graph import graph, half, measured, named, replayed
from tests.programs import random_view

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def launches(count: int, every: Time = 30, kernel_us: Time = 10) -> list[Event]:
    """Launch-bound: an operator of 20 with a launch of 5 in it, every so often."""
    events: list[Event] = []
    for i in range(count):
        t = every * i
        events += [
            op("aten::mm", t, t + 20), call(t + 10, t + 15, i + 1), kernel(t + 16, t + 16 + kernel_us, i + 1),
        ]  # fmt: skip
    return events


def test_host_time_is_taken_off_once() -> None:
    of = graph(*launches(3))
    half_twice = together(without_host(["framework"], 0.5), without_host(["framework"], 0.5))
    assert replayed(of, half_twice)[-1] == replayed(of, without_host(["framework"], 0.75))[-1]
    gone = without_host(["framework"])
    assert replayed(of, gone, gone) == replayed(of, gone)


def test_what_overlaps_its_predecessor_never_starts_before_it() -> None:
    of = graph(call(0, 5, 1, "cudaGraphLaunch"), kernel(6, 106, 1), kernel(56, 156, 1), kernel(156, 166, 1))
    assert replayed(of) == measured(of)
    assert replayed(of, scaled(np.array([0]), 0.8)) == [86, 136, 146]
    assert replayed(of, scaled(np.array([0]), 0.1)) == [16, 106, 116]
    assert replayed(of, scaled(np.array([0, 1, 2]), 0.1)) == [16, 16, 17]


def test_host_time_of_one_cause_leaves_the_others() -> None:
    of = graph(*launches(2))
    # Between the launches: 5 launch call, 5 + 10 framework, 10 Python.
    assert replayed(of) == [26, 56]
    assert replayed(of, without_host(["framework"])) == [16, 31]
    assert replayed(of, without_host(["python"])) == [26, 46]
    assert replayed(of, without_host(["launch-call"])) == [26, 51]
    assert replayed(of, without_host(["dataloader"])) == [26, 56]
    assert replayed(of, without_host(["framework", "python", "launch-call"])) == [16, 27]  # 1 after each other


@pytest.mark.parametrize("ns", [2_000_000_000, 3_000_000_000])
def test_host_time_may_add_up_to_more_than_narrow_weights_hold(ns: int) -> None:
    """Entries of 2 s fit into 32 bits, two of them or one of 3 s do not."""
    of = random_view(1).graph
    assert len(of.host_edge)
    edges = np.repeat(of.host_edge, 2)
    many = replace(
        of,
        host_edge=edges,
        host_cause=np.repeat(of.host_cause, 2),
        host_ns=Nanoseconds.of(np.full(len(edges), ns)),
    )
    after = without_host(IDLE)(many)
    emptied = np.isin(np.arange(len(of.weight_ns)), of.host_edge)
    weight = of.weight_ns[:]
    assert (after.weight_ns[:] == np.where(emptied, np.minimum(weight, 0), weight)).all()


def test_a_change_leaves_the_graph_it_is_given_alone() -> None:
    for seed in range(10):
        of = random_view(seed).graph
        before = {
            name: getattr(of, name)[:].copy() for name in ("weight_ns", "duration_ns", "host_ns", "delay_ns", "source")
        }
        everything = np.arange(len(of.row))
        for change in (
            without_host(["framework"]), without_waits(), scaled(everything, 0.5), without_gaps(everything),
            overlapped(everything[::3]), captured(regions(of), launch_ns=5000, gap_ns=1000), fused(everything[:2], [2], [1]),
        ):  # fmt: skip
            change(of)
        assert all((getattr(of, name)[:] == column).all() for name, column in before.items())


def test_only_the_waits_that_are_named_go() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), sync(10, 109), call(120, 125, 2), kernel(126, 226, 2), sync(130, 229),
        call(240, 245, 3), kernel(246, 256, 3),
    )  # fmt: skip
    first, second = synchronisations(of).tolist()
    assert replayed(of, without_waits([first])) == [106, 207, 237]
    assert replayed(of, without_waits([second])) == [106, 226, 237]
    assert replayed(of, without_waits([first, second])) == replayed(of, without_waits()) == [106, 207, 218]


def test_scaling_some_operations() -> None:
    of = graph(call(0, 5, 1), call(5, 10, 2), kernel(6, 56, 1), kernel(57, 107, 2))
    assert replayed(of, scaled(np.array([0, 1]), np.array([0.5, 2.0]))) == [31, 132]


def test_a_fused_run_is_one_operation_and_one_launch() -> None:
    of = graph(*launches(4))
    run = np.array([1, 2, 3])
    # Its second and third launch are gone with their host work, launch calls included; it lasts 15.
    assert replayed(of, fused(run, [len(run)], [15_000]))[1] == 61
    assert replayed(of, fused(run, [len(run)], [15_000]))[-1] == 61
    assert replayed(of, fused(run, [len(run)], [15_000], host=False)) == [26, 61, 76, 106]
    assert replayed(of, fused(run, [len(run)], [10**9]))[1] == 46 + 30  # never longer than its parts


def test_regions_end_at_waits_and_steps() -> None:
    of = graph(
        step(1, 0, 190), *launches(3), sync(90, 99), *[
            e for i in range(3) for e in (call(100 + 30 * i, 105 + 30 * i, 10 + i), kernel(106 + 30 * i, 116 + 30 * i, 10 + i))
        ],
        step(2, 190, 300), call(200, 205, 20), kernel(206, 216, 20), marks=True,
    )  # fmt: skip
    found = regions(of)  # two of three launches each; one of a single launch is none
    calls = [of.call_point[row] for row in of.trace.launch[of.row].tolist()]
    assert found.first.tolist() == [calls[0], calls[3]]
    assert np.flatnonzero(found.later).tolist() == [calls[1], calls[2], calls[4], calls[5]]
    assert found.inside.tolist() == [False, True, True, False, True, True, False]


def test_a_captured_region_costs_one_launch() -> None:
    of = graph(*launches(4))
    # The host work before the first launch stays; the rest follows after the gap of a replay.
    assert replayed(of, captured(regions(of), launch_ns=8_000, gap_ns=500))[0] == 26
    later = replay(captured(regions(of), launch_ns=8_000, gap_ns=500)(of)).operation_start - of.trace.origin_ns
    assert later.tolist() == [16_000, 26_500, 37_000, 47_500]
    assert len(regions(graph(*launches(1)))) == 0
    alone = graph(*launches(1))
    assert replayed(alone, captured(regions(alone), launch_ns=8_000, gap_ns=500)) == measured(alone)


def communicating(*more: Event) -> Graph:
    """A reduction on a stream of its own between two kernels."""
    return graph(
        call(0, 5, 1), kernel(6, 56, 1), call(6, 8, 31, "cudaEventRecord"), call(8, 10, 32, "cudaStreamWaitEvent"),
        call(10, 15, 2), kernel(57, 157, 2, NCCL, stream=20), call(16, 18, 33, "cudaEventRecord"),
        call(18, 20, 34, "cudaStreamWaitEvent"), call(20, 25, 3), kernel(158, 208, 3), *more,
    )  # fmt: skip


def test_an_unnamed_wait_for_communication_decides() -> None:
    assert unnamed_wait_decides(communicating())
    assert not unnamed_wait_decides(graph(*launches(3)))


def test_named_waits_do_not() -> None:
    def wait(correlation: int, stream: int, source: int) -> Event:
        at = 8 if correlation == 32 else 18
        return {
            **named(), "ts": at, "tid": stream,
            "args": {
                "stream": stream, "device": 0, "correlation": correlation, "wait_on_stream": source,
                "wait_on_cuda_event_record_corr_id": correlation - 1, "wait_on_cuda_event_id": 1,
            },
        }  # fmt: skip

    of = communicating(wait(32, 20, 7), wait(34, 7, 20))
    assert len(of.edges(Edge.EVENT)) == 2
    assert not unnamed_wait_decides(of)


def test_overlapped_operations_hold_nobody_up() -> None:
    of = communicating()
    assert replayed(of) == measured(of) == [56, 157, 208]
    assert replayed(of, overlapped(np.array([1]))) == [56, 157, 107]
    assert replayed(of, overlapped(np.array([1]), slowdown=1.3)) == [56, 187, 107]
    assert replayed(of, overlapped(np.array([1]), independent=True)) == [56, 116, 107]


def test_copies_in_both_directions_at_once() -> None:
    """On one stream, one after the other; the copies back on a stream of their own keep their order."""
    events: list[Event] = []
    for i in range(3):
        t, ids = 100 * i, 10 * i
        events += [
            call(2 * i, 2 * i + 1, ids + 1, "cudaMemcpyAsync"), call(2 * i + 1, 2 * i + 2, ids + 2, "cudaMemcpyAsync"),
            copy(10 + t, 59 + t, ids + 1, "HtoD (Pinned -> Device)"), copy(60 + t, 109 + t, ids + 2, "DtoH (Device -> Pinned)"),
        ]  # fmt: skip
    of = graph(*events)
    assert replayed(of) == measured(of)
    back = np.flatnonzero([of.trace.label(row).startswith("Memcpy DtoH") for row in of.row])
    # Each direction runs through: a copy to the device every 50, one back 50 after it began.
    assert replayed(of, overlapped(back)) == [59, 109, 109, 159, 159, 209]


def test_without_gaps() -> None:
    of = graph(
        call(0, 5, 1), call(5, 10, 2), call(10, 15, 3), kernel(6, 56, 1), kernel(60, 110, 2), kernel(114, 164, 3)
    )
    assert replayed(of) == measured(of)
    assert replayed(of, without_gaps(np.array([1, 2]))) == [56, 106, 156]
    assert replayed(of, without_gaps(np.array([2]))) == [56, 110, 160]


@pytest.mark.parametrize("seed", range(12))
def test_points_and_edges_stay_in_order(seed: int) -> None:
    of = random_view(seed).graph
    everything = np.arange(len(of.row))
    for change in (
        overlapped(everything[::3]),
        overlapped(everything[::2], independent=True),
        half(*everything.tolist()),
    ):
        changed = change(of)
        assert (changed.source < changed.target).all()
        assert (np.diff(changed.target) >= 0).all()
        # Host time stays with the edge it was of.
        pairs = [set(zip(g.source[g.host_edge].tolist(), g.target[g.host_edge].tolist(), g.host_ns[:].tolist(), strict=True))
                 for g in (of, changed)]  # fmt: skip
        assert pairs[0] == pairs[1]
