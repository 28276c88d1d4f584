"""Whether two sets of measurements differ: a rank test, the shift between them and its interval.

No distribution is assumed: step times have a floor, outliers and often several modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Int64

ALPHA = 0.02  # the chance of calling equal samples different; shifts too small to matter are left out besides
CONFIDENCE_Z = 1.959964  # of a 95 % interval
EXACT_SIDE, EXACT_TOTAL = 20, 200  # values of the smaller side and of both, up to which p is exact: some ms of work


@dataclass(frozen=True)
class Shift:
    """How much later samples lie above earlier ones, in their unit."""

    by: float
    """Hodges-Lehmann estimate: the median of all differences."""
    low: float
    high: float
    """95 % interval of `by`."""
    p: float
    """Two-sided Mann-Whitney probability of ranks as unequal as these in equal samples."""
    significant: bool

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def shift(before: Sequence[float], after: Sequence[float]) -> Shift:
    """The shift from `before` to `after`; both hold at least one value.

    Where even samples without overlap cannot reach ALPHA (four values a side), no overlap is what counts.
    """
    differences = np.sort(np.subtract.outer(np.asarray(after, float), np.asarray(before, float)).ravel())
    n, m = len(before), len(after)
    spread = CONFIDENCE_Z * math.sqrt(n * m * (n + m + 1) / 12)
    cut = min(max(int(n * m / 2 - spread), 0), (n * m - 1) // 2)
    p = rank_test(before, after)
    reachable = 2 / math.comb(n + m, n)
    return Shift(
        by=float(np.median(differences)),
        low=float(differences[cut]),
        high=float(differences[-1 - cut]),
        p=p,
        significant=p <= max(ALPHA, reachable * (1 + 1e-9)),
    )


def rank_test(before: Sequence[float], after: Sequence[float]) -> float:
    """The two-sided p of the Mann-Whitney U test, ties as their mean rank.

    Of small samples exact: the share of all ways to deal out the ranks in which the sum of one side's lies as far from its
    mean. Of large ones by the normal distribution, with corrections for ties and for continuity.
    Mann and Whitney (1947), On a test of whether one of two random variables is stochastically larger than the other.
    """
    values = np.concatenate([np.asarray(before, float), np.asarray(after, float)])
    _, which, ties = np.unique(values, return_inverse=True, return_counts=True)
    if len(ties) == 1:
        return 1.0
    doubled = (2 * np.cumsum(ties) - ties + 1)[which]  # twice the mean rank is whole
    few, total = min(len(before), len(after)), len(values)
    side = doubled[: len(before)] if few == len(before) else doubled[len(before) :]
    off = abs(int(side.sum()) - few * (total + 1))
    if few <= EXACT_SIDE and total <= EXACT_TOTAL:
        return _as_far(doubled, few, off)
    variance = few * (total - few) / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    return math.erfc(max(off / 2 - 0.5, 0) / math.sqrt(2 * variance))


def _as_far(ranks: Int64, few: int, off: int) -> float:
    """The share of the ways to choose `few` of the ranks whose sum lies at least `off` from the mean of all."""
    largest = int(np.sort(ranks)[-few:].sum())
    ways = np.zeros((few + 1, largest + 1))
    ways[0, 0] = 1
    for rank in ranks.tolist():
        ways[1:, rank:] += ways[:-1, : largest + 1 - rank]
    away = np.abs(np.arange(largest + 1) - few * (len(ranks) + 1))
    return float(ways[few, away >= off].sum() / ways[few].sum())
