"""Whether two sets of measurements differ: a rank test, the shift between them and its interval.

No distribution is assumed: step times have a floor, outliers and often several modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.runtime.classes import dataclass

ALPHA = 0.02  # the chance of calling equal samples different; shifts too small to matter are left out besides
CONFIDENCE_Z = 1.959964  # of a 95 % interval


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

    Raises:
        BadUsage: SciPy is not installed.
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
    """The two-sided p of the Mann-Whitney U test, exact for small samples without ties.

    Raises:
        BadUsage: SciPy is not installed.
    """
    if len(set(before) | set(after)) == 1:
        return 1.0
    try:
        from scipy.stats import mannwhitneyu
    except ImportError:
        raise BadUsage("comparing step times needs SciPy: pip install 'gpu-trace-advisor[gate]'") from None
    return float(mannwhitneyu(before, after, alternative="two-sided").pvalue)


def spread_of_runs(medians: Sequence[float]) -> float | None:
    """How far the medians of runs lie apart; None with a single run."""
    return max(medians) - min(medians) if len(medians) > 1 else None
