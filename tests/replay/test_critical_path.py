"""The critical path: it adds up to its window, and says what made the window last as long as it did."""

from __future__ import annotations

import random

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.replay.critical_path import CriticalPath, critical_path
from gpu_trace_advisor.timelines.steps import Window

from tests.build import Event, annotation, call, kernel, op, step, sync, trace
from tests.plain_loops import plain_loops
from tests.programs import random_view


def view(*events: Event, window: str = "gpu") -> DeviceWindow:
    return views(trace(*events), Request(window=window))[0][0]


def check(path: CriticalPath, span: int) -> None:
    assert path.span_ns == span
    assert sum(path.by_cause.values()) == span
    assert all(ns > 0 for ns in path.by_cause.values())
    assert set(path.by_cause) <= set(CAUSES)


@pytest.mark.parametrize("window", ["gpu", "steps", "all"])
def test_it_adds_up_to_the_window(window: str) -> None:
    for seed in range(60):
        one = random_view(seed, window)
        check(one.critical_path, one.window.wall_ns)


def test_it_adds_up_to_windows_that_cut_through_anything() -> None:
    for seed in range(40):
        one, chance = random_view(seed), random.Random(seed)
        last = int(one.trace.end_ns.max())
        instants = np.unique(np.concatenate([one.trace.start_ns, one.trace.end_ns]))
        for _ in range(8):
            start, end = sorted(chance.sample(range(one.trace.origin_ns, last + 1), 2))
            check(critical_path(one.graph, Window("cut", start, end, ""), 0), end - start)
            start, end = sorted(chance.sample(instants.tolist(), 2))
            check(critical_path(one.graph, Window("cut", start, end, ""), 0), end - start)


def test_its_operations_are_in_time_order_and_do_not_overlap_on_a_stream() -> None:
    for seed in range(40):
        one = random_view(seed)
        operations = one.critical_path.operations
        assert (np.diff(one.trace.start_ns[one.graph.row[operations]]) >= 0).all()
        assert len(np.unique(operations)) == len(operations)


def test_a_window_before_anything_happened() -> None:
    one = view(op("aten::a", 0, 10), call(500, 505, 1), kernel(506, 516, 1))
    start = one.trace.origin_ns
    assert critical_path(one.graph, Window("cut", start, start + 1000, ""), 0).by_cause == {"host-unknown": 1000}


def test_a_loader_a_launch_a_kernel() -> None:
    one = view(
        annotation("enumerate(DataLoader)#next", 0, 100), op("aten::mm", 100, 120), call(110, 115, 1), kernel(116, 216, 1),
        sync(120, 219), window="all",
    )  # fmt: skip
    assert one.critical_path.by_cause == {
        "dataloader": 100_000, "framework": 10_000, "launch-latency": 6_000, "unmodelled": 100_000, "host-sync": 3_000,
    }  # fmt: skip
    assert one.critical_path.operations.tolist() == [0]


def test_what_runs_beside_it_is_not_on_it() -> None:
    one = view(
        call(0, 5, 1), kernel(6, 106, 1), call(10, 15, 2), kernel(16, 36, 2, stream=8), sync(20, 109), window="all"
    )
    assert one.critical_path.operations.tolist() == [0]
    assert one.critical_path.by_cause["unmodelled"] == 100_000


def test_it_goes_through_the_thread_that_handed_over() -> None:
    one = view(
        op("aten::conv", 0, 20), call(10, 15, 1), kernel(16, 26, 1), op("Backward", 80, 630, tid=2),
        call(620, 625, 2, tid=2), kernel(626, 636, 2), op("aten::add", 640, 660), call(650, 655, 3), kernel(656, 666, 3),
        window="all",
    )  # fmt: skip
    path = one.critical_path
    assert path.by_cause["framework"] == 10_000 + 5_000 + 540_000 + 5_000 + 10_000
    assert path.operations.tolist() == [2]


def test_it_follows_the_edges_that_come_last() -> None:
    for seed in range(10):
        one = random_view(seed)
        graph, path = one.graph, one.critical_path
        arrives = graph.time_ns[graph.source] + graph.total_ns
        for edge, before in zip(path.edges[1:].tolist(), path.edges.tolist(), strict=False):
            incoming = np.flatnonzero(graph.target == graph.source[before])
            assert edge == incoming[np.argmax(arrives[incoming])]


def test_the_compiled_walk_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        one = random_view(seed)
        fast = critical_path(one.graph, one.window, 0)
        monkeypatch.setattr("gpu_trace_advisor.replay.critical_path.loops", plain_loops())
        plain = critical_path(one.graph, one.window, 0)
        monkeypatch.undo()
        assert plain.edges.tolist() == fast.edges.tolist()
        assert plain.by_cause == fast.by_cause


def test_a_window_that_ends_with_a_step() -> None:
    one = view(
        step(1, 0, 100), op("aten::mm", 5, 30), call(10, 15, 1), kernel(16, 26, 1), op("aten::end", 40, 100),
        step(2, 100, 200), op("aten::mm", 105, 130), call(110, 115, 2), kernel(116, 126, 2), op("aten::end", 140, 200),
        window="steps",
    )  # fmt: skip
    path = one.critical_path
    check(path, 200_000)
    assert path.by_cause["framework"] > 150_000
