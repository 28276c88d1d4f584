"""Time in which several kernels run is divided between them, the same however many there are."""

import random
from itertools import pairwise

import numpy as np
import pytest
from gpu_trace_advisor.roofline import concurrency
from gpu_trace_advisor.roofline.concurrency import shares


def by_hand(start: list[int], end: list[int]) -> list[int]:
    """Stretch by stretch: equal parts, and what is left of the division to the longest, of equal ones the first."""
    found = [0] * len(start)
    bounds = sorted({*start, *end})
    for a, b in pairwise(bounds):
        on = [i for i in range(len(start)) if start[i] <= a and end[i] >= b]
        for i in on:
            found[i] += (b - a) // len(on)
        if on:
            found[max(on, key=lambda i: (end[i] - start[i], -i))] += (b - a) % len(on)
    return found


@pytest.mark.parametrize("crowded", [0, 64])
@pytest.mark.parametrize("seed", range(20))
def test_shares_are_those_found_stretch_by_stretch(seed: int, crowded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "CROWDED", crowded)
    rng = random.Random(seed)
    start = sorted(rng.randrange(300) for _ in range(rng.randint(1, 40)))
    end = [s + rng.choice((1, 5, 40, 200)) for s in start]
    assert shares(np.array(start, np.int64), np.array(end, np.int64)).tolist() == by_hand(start, end)
