"""Blocks of Python are named by what can be changed: the user's line, a range to look into, never an operator before a hole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from gpu_trace_advisor.rulekit.rule import Finding

from tests.build import Event, advice, annotation, call, frame, kernel, op, step

PERIOD = 10_000


def found(*inside: Event, steps: int = 4) -> list[Finding]:
    """What is said of steps of 10 ms with these events at their start, then a launch 1 ms in and 8 ms of GPU work."""
    events: list[Event] = []
    for i in range(steps):
        at = PERIOD * i
        events += [step(i, at, at + PERIOD), *({**event, "ts": event["ts"] + at} for event in inside)]
        events += [call(at + 1_000, at + 1_005, i + 1), kernel(at + 1_010, at + 9_010, i + 1)]
    return [finding for finding in advice(*events).findings if finding.rule == "python-block"]


def test_a_builtin_is_told_without_its_address_and_the_users_line_is_what_to_change() -> None:
    (finding,) = found(
        frame("serve.py(88): detokenize", 10, 990),
        frame("<built-in method decode of type object at 0x7f00267db8a0>", 20, 980),
    )
    assert finding.evidence[0].what == "<built-in method decode of type>"
    assert finding.how.startswith("Make serve.py(88): detokenize faster")


@pytest.mark.parametrize(
    ("holes", "told"),
    [
        ([(10, 990)], True),
        # The same range between operators of 20 µs, 40 µs apart: what dispatches them.
        ([(t, t + 20) for t in range(10, 990, 40)], False),
    ],
)
def test_a_range_is_told_where_nothing_else_is_for_a_while(holes: Sequence[tuple[int, int]], told: bool) -> None:
    operators = [op("aten::view", a[1], b[0]) for a, b in pairwise(holes)]
    findings = found(annotation("## postprocess ##", 5, 995), *operators)
    assert bool(findings) is told
    if told:
        assert findings[0].evidence[0].what == "the range ## postprocess ##"
        assert "with_stack=True" in findings[0].how


def test_the_operator_before_a_hole_is_no_function() -> None:
    """900 µs without a record after an operator of 50 µs: Python, but nobody knows of which function."""
    assert not found(op("aten::embedding", 10, 60), op("aten::mul", 960, 1_008))
