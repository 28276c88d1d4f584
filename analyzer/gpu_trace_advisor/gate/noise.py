"""How far two runs of one program may lie apart by chance: what a shift has to exceed besides the noise between steps.

The steps of a run are no independent samples: a run is slow as a whole because of where its memory lies, which algorithm
was chosen, or who else uses the machine. The unit of chance is the run, and of runs there are few. So what the middles of
the earlier runs say of the variance between runs is taken together with what is usual, as if four runs more had been
made. `tests/benchmarks/bench_repeats.py` and `bench_gate.py` measure what comes of it, on recordings and on drawn times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev, variance

from gpu_trace_advisor.runtime.classes import dataclass

USUAL_AS = 4  # degrees of freedom that the usual variance between runs counts for beside the measured one
QUIET, USUAL = 0.025, 0.045  # standard deviation of the logarithm of a run's middle, of quiet steps and of others …
OF_QUIET, OF_LITTLE, OF_MUCH = 6.0, 2.0, 0.9  # … at most, for much scatter at least, so many times that of steps
FEW = 3  # values: of more, one odd one does not count
QUANTILES = (4.604, 4.032, 3.707)
"""99.5 % quantiles of Student's t for 4, 5 and 6 degrees of freedom: both sides together err once in a hundred times. More
than 6 are never taken: a few of many runs lie far out, however many there are."""


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
    usual = _usual(median(_scatter(run) for run in runs))
    between = variance(middles) if others else 0.0
    deviation = math.sqrt((USUAL_AS * usual**2 + others * between) / (USUAL_AS + others))
    quantile = QUANTILES[min(others, len(QUANTILES) - 1)]
    return Apart(last - fmean(middles), quantile * deviation * math.sqrt(1 + 1 / len(middles)))


def _usual(scatter: float) -> float:
    """How far runs usually lie apart whose steps scatter like that; both are standard deviations of logarithms."""
    return max(min(OF_QUIET * scatter, QUIET), min(OF_LITTLE * scatter, USUAL), OF_MUCH * scatter)


def _scatter(values: Sequence[float]) -> float:
    """The standard deviation, one odd value of several left out."""
    centre = median(values)
    kept = sorted(values, key=lambda value: abs(value - centre))[: -1 if len(values) > FEW else None]
    return stdev(kept) if len(kept) > 1 else 0.0
