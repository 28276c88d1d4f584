"""Whether ranks are late more than chance would let any of them be.

Who comes late is compared with what equal ranks would show, in two ways, either of which is enough:

- *steady*: step after step the late ranks' first comes after the last of the others, and that distance varies little beside
  its size: less than it would for any of so many ranks whose load wanders at random from step to step.
- *apart*: the ranks' sums fall into two classes with a gap that shuffling each step's lateness among the ranks seldom makes
  (a single event, however long, may then have been any rank's). That takes the steps for independent. Where they may not be,
  as load that lasts makes a rank's steps alike, the gap also has to be wider, beside the spread on its two sides, than the
  widest among as many draws from a normal distribution: the other ranks then say how far equal ones come apart.

A single step has nothing that could be steady, and a load of its own makes a rank late to all of its collectives. There the
late ones have to come after the others by far more than those are apart: in several collectives, or by very much.
"""

from __future__ import annotations

from functools import cache
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Int64

Float64 = NDArray[np.float64]

STEADY, APART, INDEPENDENT, SINGLE, OWN_LOAD = 0.003, 0.003, 0.001, 0.002, 0.009
"""How often chance may come to the same, test by test; over steps they add up to less than 1 %."""
DRAWS = 4000
FLOOR_NS = 1_000.0  # what clocks resolve and collectives differ by
SCALE_NS = 1e9  # of draws, so that the floor is none for them
RATIO = 5.0  # a distance that varies by more than a fifth is not called steady, whatever chance would do
CLIPPED = 10.0  # times the usual lateness: more of it in one step counts as so much, so that no single step decides
DEPENDENT = 0.3  # correlation of neighbouring steps from which on they are not independent
LOADS = 0.15  # what ranks' loads in a step are taken to be spread by, as with sequences of their own lengths
FEWEST = 4  # steps that can be shuffled
MOST_ROWS, MOST_CELLS = 24, 16_000  # of more steps neighbours are added up
MOST_RANKS = 256  # gaps among more draws are narrower still
MOST_DRAWN = 4_000_000  # numbers for one distribution
TOGETHER = 0.3  # correlation from which on neighbours are one, such as the ranks of a node
NODES = (2, 4, 8, 16)
SEED = 18


@dataclass(frozen=True)
class LateEvidence:
    """What tells that these ranks are late."""

    p: float
    """How often equal ranks would look like that, or worse."""
    test: str
    """`steady` or `apart` over steps, `far` within one."""


Accused = tuple[tuple[int, ...], LateEvidence]
"""Indices of ranks, and why."""


def late_over_steps(late_ns: Float64) -> Accused | None:
    """The ranks that are late, from [steps, ranks] how much later than the others each came; None where chance would do.

    Of ranks that vary together and are neighbours by their numbers, as those of a node, it is asked what each differs by from
    its node, then about the nodes.
    """
    rows, ranks = late_ns.shape
    if ranks < 2 or rows < 2:
        return None
    late = late_ns - np.median(late_ns, axis=1, keepdims=True)
    size = _node(late)
    if size == 1:
        return _late(late)
    nodes = late.reshape(rows, -1, size)
    middle = np.median(nodes, axis=2)
    if found := _late((nodes - middle[:, :, None]).reshape(rows, ranks)):
        return found
    found = late_over_steps(middle)
    return (tuple(size * node + i for node in found[0] for i in range(size)), found[1]) if found else None


def _node(late: Float64) -> int:
    """How many neighbours vary together most; 1 where none do. Groups of them may vary together in turn."""
    rows, ranks = late.shape
    rest = late - late.mean(axis=0)
    rest -= rest.mean(axis=1, keepdims=True)
    each = float((rest**2).sum())
    alike = {}
    for size in NODES:
        if each and ranks % size == 0 and ranks > size:
            sums = rest.reshape(rows, -1, size).sum(axis=2)
            found = (float((sums**2).sum()) / each - 1) / (size - 1)
            if found > max(TOGETHER, 3 * sqrt(2 / (rows * ranks * (size - 1)))):
                alike[size] = found
    return max(alike, key=alike.__getitem__, default=1)


def _late(late: Float64) -> Accused | None:
    clipped = _clipped(late)
    slow = _behind(clipped.sum(axis=0))
    for ranks in (slow, _behind(late.sum(axis=0))):
        if (p := _steady(late, ranks)) <= STEADY:
            return ranks, LateEvidence(p, "steady")
    if len(late) < FEWEST:
        return None
    p, level = _shuffled(clipped), INDEPENDENT
    if p > INDEPENDENT or not _independent(clipped):
        p, level = max(p, _apart(clipped.sum(axis=0))), APART
    return (slow, LateEvidence(p, "apart")) if p <= level else None


def _clipped(late: Float64) -> Float64:
    usual = np.abs(late[late != 0])
    limit = CLIPPED * float(np.quantile(usual, 0.75)) if len(usual) else 0.0
    return np.clip(late, -limit, limit)


def _behind(sums: Float64) -> tuple[int, ...]:
    """The ranks behind the widest gap."""
    order = np.argsort(sums, kind="stable")
    at = int(np.diff(sums[order]).argmax()) + 1
    return tuple(sorted(order[at:].tolist()))


def _steady(late: Float64, slow: tuple[int, ...]) -> float:
    """How often wandering load would keep any ranks as steadily behind the others."""
    steps, ranks = late.shape
    mask = np.zeros(ranks, np.bool_)
    mask[list(slow)] = True
    behind = late[:, mask].min(axis=1) - late[:, ~mask].max(axis=1)
    ratio = float(behind.mean()) / max(float(behind.std(ddof=1)), FLOOR_NS)
    if ratio < RATIO:
        return 1.0
    by_chance = _wandering(min(steps, MOST_ROWS), min(ranks, MOST_RANKS))
    return (int((by_chance >= ratio).sum()) + 1) / (len(by_chance) + 1)


@cache
def _wandering(steps: int, ranks: int) -> Float64:
    """[draws] mean over deviation of how far the latest of so many random walks is behind the others."""
    draws = min(DRAWS, MOST_DRAWN // (steps * ranks))
    walks = np.cumsum(np.random.default_rng(SEED).standard_normal((draws, steps, ranks)), axis=1)
    latest = walks.mean(axis=1).argmax(axis=1)[:, None, None]
    slow = np.take_along_axis(walks, latest, axis=2)[:, :, 0]
    np.put_along_axis(walks, latest, -np.inf, axis=2)
    behind = slow - walks.max(axis=2)
    return np.asarray(behind.mean(axis=1) / behind.std(axis=1, ddof=1))


def _independent(late: Float64) -> bool:
    """Whether a step tells nothing of the next one: the correlation of neighbours is small, with some certainty."""
    steps, ranks = late.shape
    rest = late - late.mean(axis=0)
    total = float((rest**2).sum())
    alike = float((rest[1:] * rest[:-1]).sum()) / total if total else 0.0
    # Taking away the mean lowers it by 1 / steps.
    return bool(alike + 1 / steps + 1.5 / sqrt((steps - 1) * (ranks - 1)) < DEPENDENT)


def _apart(sums: Float64) -> float:
    """How often as many draws from a normal distribution have as wide a gap beside the spread on its two sides."""
    by_chance = _gaps_of_normal(min(len(sums), MOST_RANKS))
    return (int((by_chance >= float(_widest(sums[None])[0])).sum()) + 1) / (len(by_chance) + 1)


@cache
def _gaps_of_normal(ranks: int) -> Float64:
    return _widest(np.random.default_rng(SEED).standard_normal((DRAWS, ranks)) * SCALE_NS)


def _widest(sums: Float64) -> Float64:
    """[draws] the widest gap of each row of [draws, ranks], in standard deviations within its two sides."""
    ranks = sums.shape[1]
    if ranks <= 2:
        return np.zeros(len(sums))
    ordered = np.sort(sums, axis=1)
    gaps = np.diff(ordered, axis=1)
    upper = np.arange(ranks) > gaps.argmax(axis=1)[:, None]
    within = np.zeros(len(sums))
    for side in (upper, ~upper):
        mean = (ordered * side).sum(axis=1) / side.sum(axis=1)
        within += (((ordered - mean[:, None]) * side) ** 2).sum(axis=1)
    spread = np.sqrt(within / (ranks - 2))
    return np.asarray(gaps.max(axis=1) / np.maximum(spread, FLOOR_NS))


def _shuffled(late: Float64) -> float:
    """How often lateness shuffled among the ranks, row by row, leaves as wide a gap between their sums."""
    rows, ranks = late.shape
    most = min(max(MOST_CELLS // ranks, FEWEST), MOST_ROWS)
    if rows > most:
        late = np.add.reduceat(late, np.linspace(0, rows, most + 1).astype(np.int64)[:-1], axis=0)
    gap = float(np.diff(np.sort(late.sum(axis=0))).max())
    random = np.random.default_rng(SEED)
    share = max(1, MOST_CELLS * 16 // late.size)
    reached = drawn = 0
    while drawn < DRAWS and reached <= APART * DRAWS:  # of more it is clear that chance would do
        mixed = random.permuted(np.broadcast_to(late, (share, *late.shape)), axis=2).sum(axis=1)
        reached += int((np.diff(np.sort(mixed, axis=1), axis=1).max(axis=1) >= gap * (1 - 1e-9)).sum())
        drawn += share
    return (reached + 1) / (drawn + 1)


def late_within_a_step(
    sets: dict[tuple[int, ...], list[int]], gap_ns: Int64, apart_ns: Int64, units: Int64, ranks: int
) -> dict[tuple[int, ...], LateEvidence]:
    """Which sets of ranks are late by more than chance in a single step.

    `gap_ns` is [i] how far the late ones of a collective come after the others, `apart_ns` how far those are apart, `units`
    which collectives overlap, so that what makes a rank late to one makes it late to the others. Chance is given a heavy
    tail: a gap c times as wide as the others are apart comes about once in 1 + c; the same ranks again once in as many as
    there are such sets. That takes collectives for independent; a load of its own would make the same ranks late to all, so
    their gaps also have to be wider than loads that are spread by 15 % would have them.
    """
    count = len(np.unique(units))
    found = {}
    for late, instances in sets.items():
        widest: dict[int, float] = {}
        for i in instances:
            wide = float(gap_ns[i]) / max(float(apart_ns[i]), FLOOR_NS)
            widest[int(units[i])] = max(widest.get(int(units[i]), 0.0), wide)
        wide_ones = sorted(widest.values(), reverse=True)
        best = 1.0
        p = 1.0
        for n, wide in enumerate(wide_ones, 1):
            p *= 1 / (1 + wide) / (comb(ranks, len(late)) if n > 1 else 1)
            best = min(best, p * comb(count, n))
        if ranks - len(late) >= 2 and best <= SINGLE and (own := _own_load(wide_ones, ranks)) <= OWN_LOAD:
            found[late] = LateEvidence(max(best, own), "far")
    return found


def _own_load(wide: list[float], ranks: int) -> float:
    """How often the latest of as many loads are so many times as far behind the others as those are apart."""
    by_chance = _gaps_over_range(min(ranks, MOST_RANKS))
    return (int((by_chance >= float(np.median(wide))).sum()) + 1) / (len(by_chance) + 1)


@cache
def _gaps_over_range(ranks: int) -> Float64:
    """[draws] the widest gap of the later half of so many loads, over the range of those before it."""
    draws = min(10 * DRAWS, MOST_DRAWN // ranks)
    ordered = np.sort(np.random.default_rng(SEED).lognormal(0, LOADS, (draws, ranks)), axis=1)
    half = ranks - ranks // 2
    gaps = np.diff(ordered, axis=1)[:, half - 1 :]
    before = np.take_along_axis(ordered, gaps.argmax(axis=1)[:, None] + half - 1, axis=1)[:, 0]
    return np.asarray(gaps.max(axis=1) / (before - ordered[:, 0]))
