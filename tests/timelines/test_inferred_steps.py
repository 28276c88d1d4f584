"""Steps that nobody marked. Times are µs."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_trace_advisor.advice.model import DeviceAdvice
from gpu_trace_advisor.gate.metrics import steps_of
from gpu_trace_advisor.gate.run_record import run_of

from tests.build import Event, advice, annotation, call, device, kernel


def work(at: float, correlation: int, name: str, length: float = 8) -> list[Event]:
    """A launch at `at` and its kernel 5 µs later."""
    return [call(at, at + 2, correlation), kernel(at + 5, at + 5 + length, correlation, name=name)]


def iteration(at: float, number: int, names: str, *, every: float = 10) -> list[Event]:
    """A kernel for each letter, 10 µs apart."""
    return [e for i, name in enumerate(names) for e in work(at + every * i, 1000 * number + i + 1, name)]


def bounds(found: DeviceAdvice) -> list[tuple[float, float, bool]]:
    return [(s.start_ns / 1000, s.end_ns / 1000, s.left_out is None) for s in found.steps]


def training(*extra: Event, count: int = 4, names: str = "abcdef") -> list[Event]:
    """Iterations of 100 µs, the optimizer in the last 20 µs of each."""
    events = list(extra)
    for i in range(count):
        events += [*iteration(100 * i, i, names), annotation("Optimizer.step#SGD.step", 100 * i + 60, 100 * i + 80)]
        events += work(100 * i + 62, 1000 * i + 900, "update")
    return events


def test_a_step_ends_with_its_optimizer() -> None:
    """Its update ends at 75, the optimizer on the host at 80; the first step begins with the first launch."""
    found = device(*training())
    assert found.window == "steps"
    assert found.window_why == "all 4 steps inferred from Optimizer.step#SGD.step"
    assert found.steps_from == "Optimizer.step#SGD.step"
    assert bounds(found) == [(0, 80, True), (80, 180, True), (180, 280, True), (280, 380, True)]
    assert found.step_ns == 100_000  # of 80, 100, 100 and 100


def test_what_a_first_step_launches_more_is_no_part_of_it() -> None:
    """Four weights are copied before: 11 operations against 7."""
    weights = [e for i in range(4) for e in work(10 * i - 100, 90_000 + i, f"copy {i}")]
    found = device(*training(*weights))
    assert [s.left_out is None for s in found.steps] == [False, True, True, True]
    assert "11 operations against 7" in (found.steps[0].left_out or "")
    assert found.window_why == "3 of 4 steps inferred from Optimizer.step#SGD.step"


def test_two_optimizers_of_one_step() -> None:
    """A discriminator of 2 kernels and a generator of 6, each with its update."""
    events = []
    for i in range(4):
        for at, names in ((200 * i, "ab"), (200 * i + 100, "cdefgh")):
            number = 2 * i + (at % 200 > 0)
            events += [*iteration(at, number, names), annotation("Optimizer.step#Adam.step", at + 70, at + 80)]
            events += work(at + 72, 1000 * number + 900, "update")
    assert bounds(device(*events)) == [(0, 185, True), (185, 385, True), (385, 585, True), (585, 785, True)]


def test_a_step_begins_when_its_batch_is_asked_for() -> None:
    """The last time nothing follows: the loader is exhausted."""
    events = [annotation("enumerate(DataLoader)#_Iter.__next__", 100 * i, 100 * i + 10) for i in range(5)]
    events += [e for i in range(4) for e in iteration(100 * i + 20, i, "abcdefg"[: 6 + i % 2])]
    found = device(*events)
    assert bounds(found) == [(0, 100, True), (100, 200, True), (200, 300, True), (300, 400, True)]
    assert found.steps_from == "enumerate(DataLoader)#_Iter.__next__"


@pytest.mark.parametrize(
    ("parts", "starts"),
    [
        ([("iteration {}", 0, 90)], [0, 100, 200, 300]),  # numbered
        ([("train_step", 0, 90)], [0, 100, 200, 300]),
        (
            [("forward", 5, 45), ("backward", 45, 90)],
            [13, 113, 213, 313],
        ),  # the first of each round
        ([("train_step", 0, 90), ("layer 1 forward", 10, 40), ("layer 2 forward", 40, 80)], [0, 100, 200, 300]),
        ([("attention", 0, 45), ("mlp", 45, 90)], None),  # layers
        ([("run {}", 50, 59)], None),  # launches one of six only
    ],
)
def test_ranges_around_iterations(parts: list[tuple[str, float, float]], starts: list[float] | None) -> None:
    """The work of an iteration differs from the others': nothing else tells them."""
    events = []
    for i in range(4):
        events += [annotation(name.format(i), 100 * i + start, 100 * i + end) for name, start, end in parts]
        events += iteration(100 * i, i, "abcdef", every=12)
        events += work(100 * i + 85, 1000 * i + 99, f"other {i}")
        events += [e for k in range(3) for e in work(100 * i + 74 + k, 1000 * i + 500 + k, f"odd {i} {k}", 1)]
    found = device(*events)
    assert ([s.start_ns // 1000 for s in found.steps] or None) == starts


def test_the_sequence_repeats() -> None:
    """Something is loaded before. The first step begins with its first kernel at 205, the others where it is launched: the
    kernels before are done by then."""
    events = [e for i in range(3) for e in work(10 * i, 50_000 + i, f"load {i}")]
    events += [e for i in range(4) for e in iteration(200 + 100 * i, i, "abcdefgh")]
    found = device(*events)
    assert bounds(found) == [(205, 300, True), (300, 400, True), (400, 500, True), (500, 583, True)]
    assert found.steps_from == "the launch sequence"


def test_a_first_repeat_that_is_five_times_as_long_is_left_out() -> None:
    """What it did is not recorded; the others take 100 µs each."""
    events = iteration(0, 0, "abcdefgh", every=60)
    events += [e for i in range(1, 5) for e in iteration(400 + 100 * i, i, "abcdefgh")]
    found = device(*events)
    assert [s.left_out for s in found.steps] == ["warm-up: 500.0 µs against a median of 100.0 µs", *[None] * 4]
    assert found.wall_ns == 383_000  # from the fifth launch's iteration at 500 to its last kernel's end at 883


def test_layers_inside_one_graph_are_no_steps() -> None:
    events = [call(0, 5, 1, "cudaGraphLaunch")]
    events += [kernel(10 + 10 * i, 18 + 10 * i, 1, name="abcd"[i % 4]) for i in range(24)]
    assert device(*events).steps == ()


def test_marked_steps_are_inferred_from_nothing() -> None:
    events = training(*[annotation(f"ProfilerStep#{i}", 100 * i, 100 * i + 99) for i in range(4)])
    assert (device(*events).steps_from, device(*events).window_why) == ("", "all 4 marked steps")


def test_no_verdict_rests_on_inferred_steps() -> None:
    """The gate takes the window as one, as it does where nothing is marked."""
    run: Any = run_of(advice(*training(count=8)).to_json())
    assert [(lane.window, lane.steps, lane.periods_ns, lane.units) for lane in run.lanes] == [("inferred", 0, (), 1)]


def test_a_number_of_a_step_is_none_where_steps_are_inferred() -> None:
    assert [steps_of(found) for found in advice(*training()).to_json()["devices"]] == [0]
