"""Allocating costs a loop what it costs in each turn; a recording of one turn does not tell whether it comes again."""

from __future__ import annotations

import pytest

from tests.build import Event, advice, call, kernel, op, step


@pytest.mark.parametrize(("steps", "priced"), [(1, False), (4, True)])
def test_memory_that_is_allocated_once_has_no_price(steps: int, priced: bool) -> None:
    """Each step of 1,000 µs allocates for 100, then launches one kernel of 800."""
    events: list[Event] = []
    for i in range(steps):
        at = 1_000 * i
        events += [
            step(i, at, at + 1_000), op("aten::empty", at, at + 110), call(at + 5, at + 105, 0, "cudaMalloc"),
            op("aten::mm", at + 110, at + 130), call(at + 115, at + 120, i + 1), kernel(at + 125, at + 925, i + 1),
            op("aten::mul", at + 130, at + 999),
        ]  # fmt: skip
    (finding,) = [finding for finding in advice(*events).findings if finding.rule == "allocator"]
    assert (finding.saving_ns is not None) is priced
    assert ("inside the loop" in finding.title) is priced
    assert ("Record several steps" in finding.how) is not priced
