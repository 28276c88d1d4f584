"""What a graph gives: the launch-scale gaps of what repeats, and nothing else.

The program of these tests launches ten kernels of 6 µs, each 20 µs after the one before: an operator of 12 µs whose last
6 µs are the launch call, 2 µs on the way, the kernel. So one repeat is 200 µs from GPU end to GPU end, 140 µs of it idle.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_trace_advisor.rulekit.rule import Finding

from tests.build import Event, advice, call, frame, kernel, op, step

REPEAT = 200
IDLE = 140


def repeat(at: float, first: int) -> Iterator[Event]:
    for i in range(10):
        begun = at + 20 * i
        yield op("aten::mul", begun, begun + 12)
        yield call(begun + 6, begun + 12, first + i)
        yield kernel(begun + 14, begun + 20, first + i, name=f"kernel_{i}")


def found(*events: Event) -> list[Finding]:
    return [finding for finding in advice(*events).findings if finding.rule == "cuda-graphs"]


def test_a_gap_that_comes_once_is_no_gap_of_a_repeat() -> None:
    events = [event for i in range(5) for event in repeat(REPEAT * i + (2_600 if i > 2 else 0), 1 + 10 * i)]
    events.append(frame("compile.py(1): once", 3 * REPEAT, 3 * REPEAT + 2_600))
    (finding,) = found(*events)
    # The first repeat lacks the 14 µs before its first kernel; those before the first one after the gap are the gap's.
    assert finding.saving_ns is not None
    assert finding.saving_ns[1] <= 5 * IDLE * 1000
    assert finding.ns == (5 * IDLE - 14 - 14) * 1000


def test_what_runs_once_gains_nothing() -> None:
    (finding,) = found(*repeat(0, 1))
    assert finding.saving_ns is None
    assert "repeats" in finding.unpriced


def test_loading_before_the_first_repeat_is_not_named() -> None:
    events = [event for i in range(4) for event in repeat(500 + REPEAT * i, 2 + 10 * i)]
    events += [op("aten::empty", 30, 500), call(0, 6, 1), kernel(8, 20, 1, name="load")]
    (finding,) = found(*events)
    assert finding.ns <= 4 * IDLE * 1000


def test_operators_of_another_thread_say_nothing_of_the_launching_one() -> None:
    events = []
    for i in range(5):
        events.append(step(i, 400 * i, 400 * i + 400))
        for event in repeat(400 * i + 20, 1 + 10 * i):
            if event["cat"] == "cpu_op":
                event["tid"] = 99
            events.append(event)
    for finding in found(*events):
        assert {part.cause for part in finding.named} <= {"launch-call", "launch-latency", "queued-gap"}
        assert finding.confidence == "low"
        assert any("launching threads" in doubt for doubt in finding.doubts)
