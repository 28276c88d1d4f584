"""Steps and windows. Times are µs, windows milliseconds from the first event."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import leave_out
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from gpu_trace_advisor.timelines import host
from gpu_trace_advisor.timelines.steps import Step, find_steps, lacking, parse_span, period_ns, pick_steps

from tests.build import Event, advice, annotation, attribution, call, device, event, frame, kernel, op, step, timeline


def work(
    at: float, correlation: int, length: float = 40, *, lag: float = 10, tid: int = 1, name: str = "kernel"
) -> tuple[Event, Event]:
    """A launch at `at` and its kernel `lag` µs later."""
    return call(at, at + 2, correlation, tid=tid), kernel(at + lag, at + lag + length, correlation, name=name)


def names(*events: Event, marker: str | None = None) -> list[str]:
    return [s.name for s in device(*events, window="steps", step_marker=marker).steps]


def test_work_belongs_to_the_step_that_launched_it() -> None:
    """Kernels lag behind: the first runs into the second step, the second ends after all markers."""
    events = [step(0, 0, 100), step(1, 100, 200), *work(90, 1, 50), *work(190, 2, 80), *work(195, 3, 0, lag=85)]
    found = device(*events)
    assert [(s.start_ns, s.end_ns, s.gpu_ns, s.operations) for s in found.steps] == [
        (0, 150_000, 50_000, 1), (150_000, 280_000, 80_000, 2),
    ]  # fmt: skip
    assert (found.start_ns, found.end_ns, found.window) == (0, 280_000, "steps")
    assert found.step_ns == (150_000 + 130_000) / 2


def test_launch_at_a_markers_end_is_the_next_steps() -> None:
    found = device(step(0, 0, 100), step(1, 100, 200), *work(99.999, 1), *work(100, 2, lag=60))
    assert [s.operations for s in found.steps] == [1, 1]


@pytest.mark.parametrize(("count", "told"), [(1, "the only marked step"), (2, "all 2 marked steps")])
def test_the_window_says_how_many_steps_it_has(count: int, told: str) -> None:
    events = [event for i in range(count) for event in (step(i, 100 * i, 100 * i + 100), *work(100 * i + 10, 1 + i))]
    assert device(*events).window_why == told


def test_operation_without_launch_goes_with_its_predecessor() -> None:
    events = [
        step(0, 0, 100), step(1, 100, 200), *work(10, 1), *work(110, 2), kernel(70, 80), kernel(170, 180),
        kernel(75, 76, stream=8), kernel(1, 2, stream=9),
    ]  # fmt: skip
    line = timeline(*events)
    steps, of_step = find_steps(line)
    assert [s.name for s in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    by_start = dict(zip((line.start // 1000).tolist(), of_step.tolist(), strict=True))
    assert by_start == {20: 0, 70: 0, 120: 1, 170: 1, 75: -1, 1: -1}


def test_predecessor_launched_outside_every_step() -> None:
    line = timeline(step(0, 50, 100), *work(10, 1, 5), kernel(60, 61), *work(70, 2, 5), kernel(90, 91))
    assert find_steps(line)[1].tolist() == [-1, -1, 0, 0]


def test_step_without_device_work_is_none() -> None:
    found = device(step(0, 0, 100), step(1, 100, 200), step(2, 200, 300), *work(10, 1), *work(210, 2))
    assert [s.name for s in found.steps] == ["ProfilerStep#0", "ProfilerStep#2"]


def test_copy_of_a_marker_on_the_device_is_no_step() -> None:
    drawn = event("gpu_user_annotation", "ProfilerStep#0", 20, 60, pid=0, tid=7)
    assert names(step(0, 0, 100), drawn, *work(10, 1)) == ["ProfilerStep#0"]


def test_markers_of_engines() -> None:
    engine = [annotation(f"execute_context_0(0)_generation_{i}({i})", 100 * i, 100 * i + 90) for i in range(2)]
    assert len(names(*engine, *work(10, 1), *work(110, 2))) == 2
    assert names(annotation("step[DECODE bs=4]", 0, 90), *work(10, 1)) == ["step[DECODE bs=4]"]
    assert names(annotation("[Executor] _forward_step 7: 1 ctx reqs, 2 gen reqs", 0, 90), *work(10, 1))
    assert device(annotation("execute_model", 0, 90), *work(10, 1)).window == "gpu"


def test_profiler_steps_before_engine_steps() -> None:
    inside = [annotation("execute_1", 10, 40), annotation("execute_2", 50, 90)]
    assert names(step(0, 0, 100), *inside, *work(20, 1), *work(60, 2)) == ["ProfilerStep#0"]
    assert names(step(0, 200, 300), *inside, *work(20, 1), *work(60, 2)) == ["execute_1", "execute_2"]


def test_old_marker_is_an_operator() -> None:
    assert names(op("ProfilerStep#3", 0, 100), *work(10, 1)) == ["ProfilerStep#3"]
    assert device(frame("ProfilerStep.py(3): run", 0, 100), *work(10, 1)).window == "gpu"


def test_chosen_markers() -> None:
    """Matched from the start of the name; what lies inside another one is a part of it."""
    events = [annotation("iter 1", 0, 90), annotation("iter inner", 10, 50), annotation("an iter", 0, 95), *work(20, 1)]
    assert names(*events, marker="iter") == ["iter 1"]
    with pytest.raises(NothingToAnalyse, match="nowhere"):
        device(*events, step_marker="nowhere")
    with pytest.raises(BadUsage, match="regular expression"):
        device(*events, step_marker="(")


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*b", "(?=(a+)+$)", "(a*)*\\1$", "a*a*a*a*a*a*a*a*$"]
)
def test_a_pattern_that_backtracks_without_end_is_refused(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MATCHING_S", 0.3)
    name = "a" * 5000 + "!"
    with pytest.raises(BadUsage, match=r"with 1 names takes longer than 0\.3 s"):
        device(annotation(name, 0, 90), *work(20, 1), step_marker=pattern)


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 5000 + ")" * 5000, "(?P<1>a)", "a\\"])
def test_what_cannot_be_a_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadUsage, match="not a regular expression"):
        device(annotation("a", 0, 90), *work(20, 1), step_marker=pattern)


def test_a_pattern_that_a_later_python_may_read_otherwise_is_one() -> None:
    assert names(annotation("[a", 0, 90), *work(20, 1), marker="[[a]+") == ["[a"]


def test_what_does_not_repeat_has_no_steps() -> None:
    events = [event for i in range(5) for event in work(100 * i, i + 1, name=f"kernel {i}")]
    assert (device(*events).steps, device(*events).window) == ((), "gpu")
    with pytest.raises(NothingToAnalyse, match="no step"):
        device(*events, window="steps")


def test_clipped_and_labelled() -> None:
    """The first step begins where the work ends that was queued before it."""
    found = device(kernel(10, 130), step(0, 100, 200), *work(110, 1, lag=40))
    assert (found.start_ns, found.wall_ns, found.busy_ns) == (130_000, 70_000, 40_000)
    assert [(k.calls, k.ns) for k in found.kernels_by_name] == [(1, 40_000)]
    assert found.launches.operations_without_launch == 0


# Which steps count


def marked(*bounds: tuple[float, float], left_out: tuple[int, ...] = ()) -> list[Step]:
    return [
        Step(
            f"ProfilerStep#{5 + i}",
            round(a * 1000),
            round(b * 1000),
            (round(a * 1000), round(b * 1000)),
            "why" if i in left_out else None,
        )
        for i, (a, b) in enumerate(bounds)
    ]


@pytest.mark.parametrize(
    ("steps", "length"),
    [
        (marked(), None),
        (marked((0, 70)), 70),
        (marked((0, 100), (100, 210)), 105),
        (marked((0, 100), (100, 180), (180, 290), (290, 900)), 105),  # 100, 80, 110 and the last one's 610
        (marked((0, 500), (500, 600), (600, 720), left_out=(0,)), 110),
        (marked((0, 500), (500, 600), left_out=(0,)), 100),
        (marked((0, 100), (100, 180), (180, 270), left_out=(1,)), 95),
    ],
)
def test_period_is_the_median_with_the_last_step(steps: list[Step], length: int | None) -> None:
    assert period_ns(steps) == (None if length is None else length * 1000)


def test_picked_steps() -> None:
    steps = marked((0, 10), (10, 20), (20, 30), (30, 40))
    for wanted, kept in (("6", [6]), ("5-6,8", [5, 6, 8]), ("0-100", [5, 6, 7, 8])):
        assert [s.number for s in pick_steps(steps, wanted, "f") if s.left_out is None] == kept
    assert [s.left_out for s in pick_steps(steps, "6-7", "f")][0::3] == ["not among --steps 6-7"] * 2
    for wrong in ("", "a", "1-", "-1", "1..2", "1 2"):
        with pytest.raises(BadUsage, match="expected numbers"):
            pick_steps(steps, wrong, "f")
    with pytest.raises(BadUsage, match=r"f: .*it has 5 to 8"):
        pick_steps(steps, "9", "f")
    with pytest.raises(BadUsage, match="no marked steps"):
        pick_steps([], "1", "f")


@pytest.mark.parametrize(
    ("wanted", "beyond"), [("5-8", False), ("6", False), ("0-6", True), ("7-99", True), ("6,9", True)]
)
def test_more_steps_than_there_are_is_said(wanted: str, beyond: bool) -> None:
    said = lacking(marked((0, 10), (10, 20), (20, 30), (30, 40)), wanted)
    assert said == (f"; --steps {wanted} asks for more than the recording's 5 to 8" if beyond else "")


def test_steps_without_numbers_are_counted_from_zero() -> None:
    steps = [Step(name, 0, 1, (0, 1)) for name in ("a", "b", "c")]
    assert [s.left_out is None for s in pick_steps(steps, "1-2", "f")] == [False, True, True]


def first_step(length: float, start_up: float, *, cause: str = "cudaMalloc") -> list[Step]:
    """Three steps of 100 µs after one of `length`, in which a call takes `start_up` µs of idle time."""
    events = [step(0, 0, length), call(40, 40 + start_up, 0, cause), *work(length - 60, 1)]
    for i in range(1, 4):
        at = length + 100 * (i - 1)
        events += [step(i, at, at + 100), *work(at + 30, 1 + i)]
    found = attribution(*events)
    return leave_out(found, find_steps(found.timeline)[0])


@pytest.mark.parametrize(
    ("length", "start_up", "left_out"),
    [
        (300, 190, True),  # 200 µs more than the others, and 190 µs of it allocate
        (300, 40, False),  # longer, but not by what starts up
        (150, 50, False),  # not more than 1.5 times as long
        (160, 60, True),
    ],
)
def test_warm_up(length: float, start_up: float, left_out: bool) -> None:
    steps = first_step(length, start_up)
    assert [s.left_out is not None for s in steps] == [left_out, False, False, False]
    assert ("warm-up" in (steps[0].left_out or "")) == left_out


def test_slow_first_step_of_python_stays() -> None:
    assert first_step(300, 190, cause="cudaEventRecord")[0].left_out is None


def test_last_step_is_never_left_out_for_its_length() -> None:
    events = [step(0, 0, 100), *work(10, 1), step(1, 100, 200), *work(110, 2), step(2, 200, 2000), *work(210, 3)]
    assert [s.left_out for s in device(*events, call(300, 1900, 0, "cudaMalloc")).steps] == [None] * 3


def test_front_that_was_cut_away() -> None:
    """The first operation was submitted at once and starts 5 ms later, with nothing recorded before it."""
    events = [step(0, 0, 6_000), call(10, 12, 1), kernel(5_010, 5_900, 1)]
    (left,) = device(*events).steps
    assert "cut away" in (left.left_out or "")
    assert device(*events).window == "gpu"
    assert device(*events, window="steps").wall_ns == 6_000_000  # asked for by name


# Windows


@pytest.mark.parametrize("text", ["", ":", "1:", ":2", "a:b", "2:1", "1:1", "-1:2", "1:2:3", "1;2", "nan:2", "1e3:2e3"])
def test_no_span(text: str) -> None:
    with pytest.raises(BadUsage, match="START:END"):
        parse_span(text)


def test_span() -> None:
    assert parse_span("0:1.5") == (0, 1.5)
    assert parse_span(" 10 : 20. ") == (10, 20)


def test_window_is_cut_at_the_end_of_the_trace() -> None:
    found = device(op("a", 1000, 1020), kernel(1010, 1060), window="0.02:5")
    assert (found.start_ns, found.end_ns, found.busy_ns) == (1_020_000, 1_060_000, 40_000)
    with pytest.raises(BadUsage, match="starts after the trace"):
        device(op("a", 1000, 1020), kernel(1010, 1060), window="0.06:5")


def test_window_without_work() -> None:
    with pytest.raises(
        NothingToAnalyse, match=r"no GPU operation in the window; there are some from 0\.010 to 0\.020 ms"
    ):
        device(op("a", 0, 100), kernel(10, 20), window="0.05:0.09")


def test_all_counts_from_the_first_event_to_the_last() -> None:
    found = device(op("a", 5, 10), kernel(20, 30), annotation("b", 1, 80), window="all")
    assert (found.start_ns, found.end_ns, found.wall_ns, found.busy_ns) == (1000, 80_000, 79_000, 10_000)


def test_device_without_steps_is_left_out() -> None:
    """Marked work runs on device 0 only; device 1 has a window of its own by default."""
    events = [step(0, 0, 100), *work(10, 1), kernel(20, 90, device=1)]
    assert [(d.device, d.window) for d in advice(*events).devices] == [(0, "steps"), (1, "gpu")]
    found = advice(*events, window="steps")
    assert [d.device for d in found.devices] == [0]
    assert [n.code for n in found.health if "device 1" in n.message] == ["empty-window"]


def test_steps_of_another_process_count_only_there() -> None:
    events = [
        step(0, 0, 100, pid="[TP00] 10"), call(10, 12, 1, pid="[TP00] 10"),
        call(10, 12, 1, pid="[TP01] 11"), {**kernel(20, 60, 1), "pid": "[TP00] 0"}, {**kernel(30, 90, 1), "pid": "[TP01] 0"},
    ]  # fmt: skip
    assert [(d.rank, d.window, d.busy_ns) for d in advice(*events).devices] == [
        (0, "steps", 40_000),
        (1, "gpu", 60_000),
    ]


def test_step_numbers() -> None:
    assert [Step(name, 0, 1, (0, 1)).number for name in ("ProfilerStep#12", "ProfilerStep*3", "iter")] == [
        12,
        None,
        None,
    ]
    assert np.array([s.number for s in marked((0, 1), (1, 2))]).tolist() == [5, 6]
