"""The category of wall time that is lost most: what the first sentence names, and what the first finding has to answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.attribution.causes import CAUSES

BUSY_ENOUGH = 0.95  # kernels above this share of the wall: the rest is not worth the first sentence
LITTLE = 0.05  # … nor is a loss below this share, where kernels are most of the busy time
ANSWERS = 0.5  # of the loss: who names so much of it speaks of it
KERNELS = "kernel-time"


def largest_loss(items: Sequence[TimeSlice], busy_ns: int) -> tuple[str, int] | None:
    """The category with the most time besides kernels; kernels where they fill the wall, or no category takes much of it."""
    sums = Counter[str]()
    for item in items:
        if item.when != "compute":
            sums[item.category] += item.ns
    wall = sum(item.ns for item in items)
    kernels = wall - sums.total()
    if kernels >= BUSY_ENOUGH * wall:
        return KERNELS, kernels
    unknown = sums.pop("unattributed", 0)
    best = max(sums.items(), key=lambda pair: pair[1], default=None)
    largest = ("unattributed", unknown) if best is None or unknown > 2 * best[1] else best
    if largest[1] < LITTLE * wall and 2 * kernels > busy_ns:
        return (KERNELS, kernels) if largest[1] else None
    return largest if largest[1] else None


def speaks_of(loss: tuple[str, int], named: Mapping[str, int]) -> bool:
    """Whether time named by cause is most of the loss."""
    category, ns = loss
    if category == KERNELS:
        return any(CAUSES[cause].when == "compute" for cause in named)
    of_it = sum(part for cause, part in named.items() if CAUSES[cause].category == category)
    return of_it >= ANSWERS * ns
