"""What repeats in a sequence of launches, without marks."""

import numpy as np
import pytest
from gpu_trace_advisor.timelines.repetition import first_period, period


def periods(length: int, count: int, every: int = 0) -> np.ndarray:
    """`count` periods of `length` different launches, of all of them each `every`-th one unlike any other."""
    sequence = np.tile(np.arange(length), count)
    if every:
        odd = np.arange(every - 1, len(sequence), every)
        sequence[odd] = 10_000 + np.arange(len(odd))
    return sequence


@pytest.mark.parametrize(
    ("sequence", "found"),
    [
        (periods(36, 20), 36),
        (periods(36, 20, every=25), 36),  # 28 of 720 differ: 56 of 684 pairs at most, 91.8 % are alike
        (periods(150, 4, every=50), 150),
        (periods(36, 20, every=10), None),  # 72 of 720: about 80 % are alike
        (periods(1, 5), 1),  # five identical products
        (periods(1, 4), None),
        (periods(2, 5), 2),
        (np.arange(40), None),
        (np.concatenate([np.arange(100, 130), periods(12, 4)]), 12),  # after loading
        (np.concatenate([np.arange(100, 200), periods(12, 4)]), None),  # what repeats is less than half
        (
            np.tile(np.concatenate([np.tile(np.arange(12), 32), np.arange(100, 105)]), 4),
            389,
        ),  # steps, not their 32 layers
    ],
)
def test_the_period_of_launches(sequence: np.ndarray, found: int | None) -> None:
    assert period(sequence) == found


def test_a_period_begins_behind_the_load() -> None:
    """60 equal copies, then four times twenty launches."""
    assert first_period(np.concatenate([np.full(60, 99), periods(20, 4)]), 20) == 60
