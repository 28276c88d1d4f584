"""Who is late by more than chance: equal ranks with every kind of noise, slow ones, events that happen once."""

import numpy as np
from gpu_trace_advisor.ranks.evidence import late_over_steps, late_within_a_step
from numpy.typing import NDArray

Late = NDArray[np.float64]


def ranks_of(late: Late) -> tuple[int, ...]:
    found = late_over_steps(late)
    return found[0] if found else ()


def drawn(steps: int, ranks: int) -> Late:
    """Lateness of equal ranks, 100 µs around 1 ms."""
    return np.random.default_rng(5).normal(1_000_000, 100_000, (steps, ranks))


def test_what_happens_once_accuses_nobody() -> None:
    late = drawn(8, 8)
    late[3, 5] += 50_000_000
    assert ranks_of(late) == ()


def test_a_rank_that_is_late_in_every_other_step_is_found() -> None:
    late = drawn(12, 8)
    late[::2, 6] += 3_000_000
    assert ranks_of(late) == (6,)


def test_two_classes_of_ranks_are_told_apart_whichever_is_larger() -> None:
    late = drawn(8, 8)
    late[:, 3:] += 3_000_000
    assert ranks_of(late) == (3, 4, 5, 6, 7)


def test_a_late_node_is_found_among_nodes_whose_ranks_vary_together() -> None:
    """16 ranks on four nodes, all noise a node's; the third one is always 5 ms later."""
    late = np.repeat(drawn(10, 4), 4, axis=1)
    assert ranks_of(late) == ()
    late[:, 8:12] += 5_000_000
    assert ranks_of(late) == (8, 9, 10, 11)


def test_two_ranks_are_told_apart_by_how_steadily_one_is_behind() -> None:
    """1 ms behind in each of eight steps, by 100 µs more or less: ten times what it varies by. In two steps nothing is steady."""
    late = drawn(8, 2)
    late[:, 1] += 1_500_000
    assert ranks_of(late) == (1,)
    assert ranks_of(late[:2]) == ()


def once(gaps_us: list[int], apart_us: int) -> bool:
    """Whether rank 3 of four, behind by these gaps in collectives of one step, is late; the others are so far apart."""
    n = len(gaps_us)
    gap, apart = np.array(gaps_us, np.int64) * 1000, np.full(n, apart_us * 1000, np.int64)
    return bool(late_within_a_step({(3,): list(range(n))}, gap, apart, np.arange(n), 4))


def test_in_one_step_a_rank_has_to_be_far_behind() -> None:
    """Once: 4 ms are 200 times 20 µs, which comes once in 201 times; 40 ms once in 2,001. Again and again: twice as far as the
    others are apart may be its load, however often; 2,000 times as far is none."""
    assert not once([4_000], 20) and once([40_000], 20)
    assert not once([40] * 14, 20) and once([40_000] * 14, 20)
