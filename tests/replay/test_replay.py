"""The replay: what holds of every program, and how a window and its trust follow from it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.unrecorded import unrecorded
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.graph import Edge, Graph, Point
from gpu_trace_advisor.replay.changes import Change, scaled, together, without_host, without_waits
from gpu_trace_advisor.replay.sweep import TRUSTED, Trust, replay, wall_ns
from gpu_trace_advisor.timelines.steps import Window

from tests.build import annotation, call, frame, kernel, op, step, trace
from tests.plain_loops import plain_loops
from tests.programs import program, random_view, span_ns

SEEDS = range(60)
GENERIC = ("framework", "python", "launch-call", "host-unknown")
DEVICE = ("launch-latency", "queued-gap", "dependency-wait", "device-unknown", "profiler")


def studies_of(*windows: str) -> list[DeviceWindow]:
    return [random_view(seed, window) for seed in SEEDS for window in windows]


def saved(view: DeviceWindow, change: Change) -> int:
    before = wall_ns(view.program.unchanged, view.window, view.index)
    return before - wall_ns(replay(change(view.graph)), view.window, view.index)


def blocking_calls_of(graph: Graph) -> list[int]:
    return [int(row) for row in np.unique(graph.ref[graph.point == Point.RETURN])]


def removals(graph: Graph) -> dict[str, tuple[tuple[str, ...], Change]]:
    """For each cause of idle time that the host could do without: causes and change. Host work of all kinds at once:
    which of them a hole between records is cannot be told in the same way on two threads."""
    found: dict[str, tuple[tuple[str, ...], Change]] = {"host work": (GENERIC, without_host(GENERIC))}
    for cause in IDLE:
        if cause not in (*GENERIC, *DEVICE, "host-sync"):
            found[cause] = ((cause,), without_host([cause]))
    found["host-sync"] = (("host-sync",), without_waits(blocking_calls_of(graph)))
    return found


def test_unchanged_it_is_what_was_measured() -> None:
    for seed in SEEDS:
        view = random_view(seed)
        assert abs(view.trust.error) < 0.005, seed
        assert view.window.wall_ns == span_ns(program(seed))


def test_without_a_cause_it_saves_at_least_the_causes_share() -> None:
    wrong = []
    for view in studies_of("gpu", "all"):
        for name, (causes, change) in removals(view.graph).items():
            share = sum(view.causes.get(cause, 0) for cause in causes)
            less = saved(view, change)
            # Half a point; 10 µs where a program is so short that one launch is more than that.
            if less < share - 0.005 * view.window.wall_ns - 10_000:
                wrong.append((view.trace.name, view.window.kind, name, share, less))
    assert not wrong


def test_it_is_never_faster_than_the_busiest_stream() -> None:
    for view in studies_of("gpu"):
        graph = view.graph
        busiest = max(int(graph.duration_ns[graph.stream == stream].sum()) for stream in np.unique(graph.stream))
        everything = together(without_host(IDLE), without_waits(blocking_calls_of(graph)))
        assert wall_ns(replay(everything(graph)), view.window, 0) >= busiest


def test_taking_time_away_makes_nothing_later() -> None:
    for view in studies_of("gpu"):
        before = view.program.unchanged.time_ns
        for _, change in removals(view.graph).values():
            assert (replay(change(view.graph)).time_ns <= before).all()


def test_the_order_of_changes_does_not_matter() -> None:
    for view in studies_of("gpu"):
        graph = view.graph
        one, other = without_host(["framework"], 0.5), without_host(["python", "dataloader"])
        third, fourth = without_waits(), scaled(np.arange(len(graph.row)), 0.5)
        forth = replay(together(one, other, third, fourth)(graph)).time_ns
        back = replay(together(fourth, third, other, one)(graph)).time_ns
        assert (forth == back).all()


def test_two_changes_save_no_more_than_the_wall_and_no_less_than_one() -> None:
    for view in studies_of("all"):
        one, other = without_host(GENERIC), without_waits(blocking_calls_of(view.graph))
        both = saved(view, together(one, other))
        # The window may begin with work that one of them takes away: then it is in the other's saving too.
        assert max(saved(view, one), saved(view, other)) <= both <= view.window.wall_ns


def test_the_compiled_sweep_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        graph = random_view(seed).graph
        fast = replay(graph)
        monkeypatch.setattr("gpu_trace_advisor.replay.sweep.loops", plain_loops())
        plain = replay(graph)
        monkeypatch.undo()
        assert (fast.time_ns == plain.time_ns).all()


def test_each_point_is_as_early_as_its_edges_allow() -> None:
    for seed in range(10):
        graph = random_view(seed).graph
        done = replay(graph)
        arrives = done.time_ns[graph.source] + graph.total_ns
        for point in range(len(graph.point)):
            incoming = arrives[graph.target == point]
            assert done.time_ns[point] == (incoming.max() if len(incoming) else graph.trace.origin_ns)


def one_launch_a_step(count: int = 4, *late: int) -> DeviceWindow:
    """Steps of 1 ms with a kernel each; the kernels of `late` ones start 400 µs later than anything explains."""
    from gpu_trace_advisor.analysis.device_window import views
    from gpu_trace_advisor.analysis.request import Request

    events = [op("aten::start", 0, 2), frame("train.py(1): main", 0, 10 + 1000 * count)]
    for i in range(count):
        t = 10 + 1000 * i
        wait = 400 if i in late else 0
        events += [
            step(i, t, t + 1000), op("aten::mm", t + 10, t + 30), call(t + 20, t + 25, i + 1),
            kernel(t + 26 + wait, t + 76 + wait, i + 1),
        ]  # fmt: skip
    return views(trace(*events), Request())[0][0]


def test_windows_of_a_replay() -> None:
    view = one_launch_a_step()
    graph, without = view.graph, replay(without_host(["framework"])(view.graph))
    origin = view.trace.origin_ns
    assert wall_ns(without, view.window, 0) == 4 * 985_000
    gpu = Window("gpu", *view.timeline.span_ns, "")
    assert wall_ns(without, gpu, 0) == gpu.wall_ns - 3 * 15_000
    cut = Window("0.5:2.5", origin + 500_000, origin + 2_500_000, "")
    assert wall_ns(view.program.unchanged, cut, 0) == cut.wall_ns
    assert wall_ns(without, cut, 0) == cut.wall_ns - 2 * 15_000
    assert (graph.kind != Edge.HANDOVER).all()


def test_a_window_that_cuts_a_wait_has_its_part_of_what_is_left_of_it() -> None:
    from gpu_trace_advisor.analysis.device_window import views
    from gpu_trace_advisor.analysis.request import Request

    events = [
        call(0, 5, 1), kernel(6, 16, 1), annotation("enumerate(DataLoader)#x", 20, 520), call(1010, 1015, 2),
        kernel(1016, 1026, 2),
    ]  # fmt: skip
    view = views(trace(*events), Request())[0][0]
    origin, without = view.trace.origin_ns, replay(without_host(["dataloader"])(view.graph))
    # The gap from 16 to 1016 becomes one from 16 to 516, and half of either is in the window.
    for start, end in ((16, 516), (516, 1016), (266, 766)):
        cut = Window("", origin + start * 1000, origin + end * 1000, "")
        assert wall_ns(view.program.unchanged, cut, 0) == 500_000
        assert wall_ns(without, cut, 0) == 250_000


def test_no_window_saves_more_than_its_wall() -> None:
    for view in studies_of("all"):
        start, wall = view.window.start_ns, view.window.wall_ns
        cuts = [start + wall * i // 7 for i in range(8)]
        for _, change in removals(view.graph).values():
            done = replay(change(view.graph))
            for begin, end in pairwise(cuts):
                assert wall_ns(done, Window("", begin, end, ""), 0) >= 0, view.trace.name


def test_trust_counts_what_no_edge_explains() -> None:
    assert one_launch_a_step().trust == Trust(0.0, 0.0)
    view = one_launch_a_step(4, 2)
    assert view.trust.error == 0
    assert view.trust.unexplained == pytest.approx(400 / 4000)
    assert not view.trust.enough
    first = Window("first", view.window.start_ns, view.window.start_ns + 10**6, "")
    assert unrecorded(view.attribution, view.graph, first, 0) == 0


@pytest.mark.parametrize(
    ("error", "unexplained", "enough"), [(0.04, 0.0, True), (-0.03, 0.03, False), (0, 0.06, False)]
)
def test_error_and_unexplained_share_together_decide(error: float, unexplained: float, enough: bool) -> None:
    assert TRUSTED == 0.05
    assert Trust(error, unexplained).enough is enough
