"""Nanoseconds in 32 bits against a plain column of 64."""

import numpy as np
import pytest
from gpu_trace_advisor.columns.durations import NEVER, Nanoseconds

VALUES = np.array(
    [0, -5, 7, 2**31 - 1, 2**31, -(2**31) + 1, -(2**31), -(2**31) - 1, 3 << 40, -(3 << 40), NEVER], np.int64
)


def test_what_is_written_is_read_whatever_it_is() -> None:
    assert Nanoseconds.of(VALUES)[:].tolist() == VALUES.tolist()
    assert Nanoseconds.of(np.broadcast_to(np.int64(3 << 40), 5))[:].tolist() == [3 << 40] * 5
    assert Nanoseconds.of(np.empty(0, np.int64))[:].tolist() == []


def test_only_what_is_long_takes_more_room() -> None:
    made = Nanoseconds.of(VALUES)
    assert made.short.dtype == np.int32
    assert repr(made) == "<ns, 11>"
    assert (np.minimum(made, 3) == np.minimum(VALUES, 3)).all()
    assert made.far_ns.tolist() == [2**31, -(2**31), -(2**31) - 1, 3 << 40, -(3 << 40)]


@pytest.mark.parametrize("seed", range(20))
def test_written_like_a_column(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 60))
    plain = random.choice(VALUES, n)
    made = Nanoseconds.of(plain)
    for _ in range(30):
        mask = random.random(n) < 0.4
        low, high = sorted(random.integers(0, n + 1, 2).tolist())
        for at in (mask, np.flatnonzero(mask), random.permutation(n)[: n // 2], slice(low, high)):
            count = len(plain[at])
            ns = random.choice(VALUES) if random.random() < 0.5 else random.choice(VALUES, count)
            kept = made.copy()
            made[at] = ns
            assert (kept[:] == plain).all()
            plain[at] = ns
            assert (made[:] == plain).all()
            assert (made[at] == plain[at]).all()
            assert (np.diff(made.far) > 0).all()
        made.change(mask, lambda ns: np.minimum(ns, 3))
        plain[mask] = np.minimum(plain[mask], 3)
        at = np.sort(random.integers(0, n + 1, 3))
        assert (made.with_inserted(at, 4 << 40)[:] == np.insert(plain, at, 4 << 40)).all()
