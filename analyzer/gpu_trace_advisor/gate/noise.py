"""How far two runs of one program may lie apart by chance: what a shift has to exceed besides the noise between steps.

The steps of a run are no independent samples: a run is slow as a whole because of where its memory lies, which algorithm
was chosen, or who else uses the machine. The unit of chance is the run, and of runs there are few. So what the middles of
the earlier runs say of the variance between runs is taken together with what is usual, as if three runs more had been
made: about 3 % in repeats of real programs, less where the steps hardly scatter, more where they scatter much.
`tests/benchmarks/bench_repeats.py` measures what comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev, variance

from gpu_trace_advisor.runtime.classes import dataclass

USUAL_AS = 3  # degrees of freedom that the usual variance between runs counts for beside the measured one
USUAL = 0.03  # standard deviation of the logarithm of a run's middle, where steps scatter by 1.5 to 5 %
OF_LITTLE, OF_MUCH = 2.0, 0.6  # the same as a share of the scatter of steps, where that is smaller or larger
FEW = 3  # values: of more, one odd one does not count
QUANTILES = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169)
"""99.5 % quantiles of Student's t for 1 to 10 degrees of freedom: both sides together err once in a hundred times."""
NORMAL = 2.576  # of infinitely many


@dataclass(frozen=True)
class Apart:
    """How far the middle of a later run lies from those of earlier ones, and how far it may by chance; logarithms of ratios,
    since runs are slow by factors, and a slow program scatters more."""

    by: float
    chance: float
    """Exceeded by runs of one program about once in a hundred times, in either direction."""

    @property
    def beyond(self) -> bool:
        return abs(self.by) > self.chance

    @property
    def share(self) -> float:
        """`chance` as a share of the earlier middle, upwards."""
        return math.expm1(min(self.chance, LARGEST))


LARGEST = 20.0  # logarithm of a ratio beyond all sense


def apart(
    before: Sequence[Sequence[float]], after: Sequence[float], middle: Callable[[Sequence[float]], float] = median
) -> Apart:
    """A later run against earlier ones, all of positive values."""
    runs = [[math.log(value) for value in run] for run in (*before, after) if run]
    *middles, last = [math.log(middle([math.exp(value) for value in run])) for run in runs]
    others = len(middles) - 1
    usual = _usual(math.sqrt(fmean(_scatter(run) ** 2 for run in runs)))
    between = variance(middles) if others else 0.0
    deviation = math.sqrt((USUAL_AS * usual**2 + others * between) / (USUAL_AS + others))
    return Apart(last - fmean(middles), quantile(USUAL_AS + others) * deviation * math.sqrt(1 + 1 / len(middles)))


def _usual(scatter: float) -> float:
    """How far runs usually lie apart whose steps scatter like that; both are standard deviations of logarithms."""
    return max(OF_MUCH * scatter, min(OF_LITTLE * scatter, USUAL))


def _scatter(values: Sequence[float]) -> float:
    """The standard deviation, one odd value of several left out."""
    centre = median(values)
    kept = sorted(values, key=lambda value: abs(value - centre))[: -1 if len(values) > FEW else None]
    return stdev(kept) if len(kept) > 1 else 0.0


def quantile(freedom: int) -> float:
    """The 99.5 % quantile of Student's t; beyond the table by the first terms of Cornish and Fisher's expansion."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
