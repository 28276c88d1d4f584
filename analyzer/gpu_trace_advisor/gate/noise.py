"""How far two runs of one program may lie apart by chance: what a shift has to exceed besides the noise between steps.

The steps of a run are no independent samples: a run is slow as a whole because of where its memory lies, which algorithm
was chosen, or who else uses the machine. The unit of chance is the run, and of runs there are few. So the variance
between runs is estimated from the middles of the earlier runs, and, as they are few, from the scatter of the steps inside
all runs too, as so many degrees of freedom more: a program whose steps scatter has runs that do.
`tests/benchmarks/bench_repeats.py` measures what comes of it on repeats of real programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev

STEPS_AS_RUNS = 2  # degrees of freedom that the scatter of steps counts for
FEW = 3  # values: of more, one odd one does not count
QUANTILES = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169)
"""99.5 % quantiles of Student's t for 1 to 10 degrees of freedom: both sides together err once in a hundred times."""
NORMAL = 2.576  # of infinitely many


def between_runs(
    before: Sequence[Sequence[float]], after: Sequence[float], middle: Callable[[Sequence[float]], float] = median
) -> float:
    """How far the middle of a later run lies from that of earlier ones at most, 99 times in 100; in the unit of the values.

    Worked out as a share of each run's middle: a program that got slower scatters more, by as much.
    """
    runs = [run for run in before if run]
    middles = [middle(run) for run in runs]
    usual = fmean(middles)
    if not usual:
        return 0.0
    scatter = fmean((_scatter(run, middle(run)) / (middle(run) or usual)) ** 2 for run in (*runs, after))
    others = len(runs) - 1
    between = (stdev(middles) / usual) ** 2 if others else 0.0
    freedom = STEPS_AS_RUNS + others
    deviation = math.sqrt((STEPS_AS_RUNS * scatter + others * between) / freedom)
    return usual * quantile(freedom) * deviation * math.sqrt(1 + 1 / len(runs))


def _scatter(values: Sequence[float], centre: float) -> float:
    """The standard deviation, one odd value of several left out."""
    kept = sorted(values, key=lambda value: abs(value - centre))[: -1 if len(values) > FEW else None]
    return stdev(kept) if len(kept) > 1 else 0.0


def quantile(freedom: int) -> float:
    """The 99.5 % quantile of Student's t; beyond the table by the first terms of Cornish and Fisher's expansion."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
