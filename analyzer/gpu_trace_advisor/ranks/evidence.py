"""Whether ranks are late more than chance would let any of them be.

Who comes late is compared with what would have been seen had every rank been like every other. Over steps: within a step any
rank could have had any of the lateness, so shuffling it among the ranks, step by step, tells how large the largest sum gets
by chance; that the largest of all ranks is asked for takes their number into account. Load that drifts makes steps alike:
such steps are shuffled together. Where there are too few steps for that, a rank has to be later than the last of the others
by far more than that varies; in a single step, by far more than the others are apart, in several collectives or by very much.
"""

from __future__ import annotations

from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Int64

Float64 = NDArray[np.float64]

LEVEL = 0.01
"""How often at most equal ranks are accused; the parts below are shares of it."""
ONE, SEVERAL, PAIR, STEADY, SINGLE = 0.004, 0.001, 0.008, 0.0005, 0.002
"""… by shuffling (one rank, several ranks, one of two), by how steady a few steps are, and within a single step."""
TOGETHER = 0.3  # correlation from which on ranks that are late together are one, such as those of a node
NODES = (16, 8, 4, 2)  # ranks that may share a machine
SAME_NODE = 0.8  # of the strongest correlation: of larger groups with nearly as much that one
FEWEST = 4  # steps, from which on they are shuffled
SHUFFLES = 4000
MOST_STEPS = 24  # of more, neighbours are added up
MOST_RANKS = 256  # of more, the sums' distribution is taken for normal
CLIPPED = 4.0  # times the usual lateness: more of it in one step counts as so much
FLOOR_NS = 1_000  # what clocks resolve and collectives differ by
SEED = 18


@dataclass(frozen=True)
class LateEvidence:
    """What tells that these ranks are late."""

    p: float
    """How often equal ranks would look like that, or worse."""
    test: str
    """`steps`, `steadiness` or `collectives`."""


def late_over_steps(late_ns: Float64) -> tuple[tuple[int, ...], LateEvidence] | None:
    """The ranks that are late, from [steps, ranks] how much later than the others each came; None where chance would do.

    Of ranks that vary together and are neighbours by their numbers, as those of a node, it is asked what each differs by from
    its node, then about the nodes.
    """
    steps, ranks = late_ns.shape
    if ranks < 2 or steps < 2:
        return None
    late = late_ns - np.median(late_ns, axis=1, keepdims=True)
    size = _node(late)
    if size == 1:
        return _late(late)
    nodes = late.reshape(steps, -1, size)
    middle = np.median(nodes, axis=2)
    if found := _late((nodes - middle[:, :, None]).reshape(steps, ranks)):
        return found
    found = _late(middle - np.median(middle, axis=1, keepdims=True))
    return (tuple(size * node + i for node in found[0] for i in range(size)), found[1]) if found else None


def _node(late: Float64) -> int:
    """How many neighbours vary together; 1 where none do."""
    steps, ranks = late.shape
    rest = late - late.mean(axis=0)
    rest -= rest.mean(axis=1, keepdims=True)
    each = float((rest**2).sum())
    alike = {}
    for size in NODES:
        if each and ranks % size == 0 and ranks > size:
            sums = rest.reshape(steps, -1, size).sum(axis=2)
            found = (float((sums**2).sum()) / each - 1) / (size - 1)
            if found > max(TOGETHER, 3 * sqrt(2 / (steps * ranks * (size - 1)))):
                alike[size] = found
    most = max(alike.values(), default=1.0)
    return next((size for size in NODES if alike.get(size, 0.0) >= SAME_NODE * most), 1)


def _late(centred: Float64) -> tuple[tuple[int, ...], LateEvidence] | None:
    blocks = _blocks(centred)
    if len(blocks) < 2:
        return None
    slow = _split(_clipped(blocks).sum(axis=0))
    if not slow:
        return None
    if len(blocks) >= FEWEST:
        p, level = _shuffled(_clipped(blocks), len(slow))
        if p <= level:
            return slow, LateEvidence(p, "steps")
    p = _steady(blocks, slow)
    return (slow, LateEvidence(p, "steadiness")) if p <= STEADY else None


def _clipped(late: Float64) -> Float64:
    """Within each step around the middle of the ranks, none of it so large that one step decides."""
    around = late - np.median(late, axis=1, keepdims=True)
    apart = np.abs(around[around != 0])
    limit = CLIPPED * 1.4826 * float(np.median(apart)) if len(apart) else 0.0
    return np.clip(around, -limit, limit)


def _blocks(late: Float64) -> Float64:
    """Neighbouring steps added up until what is left of them varies as if by chance."""
    steps, ranks = late.shape
    size = -(-steps // MOST_STEPS)
    rest = late - np.median(late, axis=0)
    limit = CLIPPED * 1.4826 * float(np.median(np.abs(rest)))
    rest = np.clip(rest, -limit, limit)
    rest -= rest.mean(axis=0)
    total = float((rest**2).sum())
    if steps >= FEWEST and total > 0:
        alike = float((rest[1:] * rest[:-1]).sum()) / total + 1 / steps
        chance = 1 / sqrt(steps * (ranks - 1))
        if alike > 1.8 * chance:
            # Of few steps that have their mean taken away it comes out too small.
            alike = (alike - 0.5 * chance) / max(1 - 4 / steps, 0.3)
            size = max(size, int(np.ceil((1 + alike) / max(1 - alike, 1e-3))))
    if size <= 1:
        return late
    whole = steps // size
    if not whole:
        return late[:0]
    bounds = np.linspace(0, steps, whole + 1).astype(np.int64)[:-1]
    return np.asarray(np.add.reduceat(late, bounds, axis=0), np.float64)


def _split(total: Float64) -> tuple[int, ...]:
    """Those behind the widest gap; nobody where there is none."""
    order = np.argsort(total, kind="stable")
    gaps = np.diff(total[order])
    if not len(gaps) or gaps.max() <= 0:
        return ()
    # A gap in front of the few says more than one behind them.
    at = int(gaps.argmax()) + 1
    if (
        at < len(order) - at and len(gaps) > at
    ):  # most are behind it: unless it is much wider, a few early ones are no reason
        later = gaps[len(order) // 2 :] if len(order) > 2 else gaps
        if later.max() * 2 > gaps.max():
            at = len(gaps) - len(later) + int(later.argmax()) + 1
    return tuple(sorted(order[at:].tolist()))


def _shuffled(late: Float64, several: int) -> tuple[float, float]:
    """How often the latest rank, or so many of them, would be as late by chance, and how seldom that has to be."""
    steps, ranks = late.shape
    total = np.sort(late.sum(axis=0))[::-1]
    tops = [(1, PAIR if ranks == 2 else ONE)]
    if several > 1:
        tops.append((several, SEVERAL))
    if ranks == 2 and steps <= 14:
        signs = 1 - 2 * ((np.arange(1 << steps)[:, None] >> np.arange(steps)) & 1)
        apart = late[:, 0] - late[:, 1]
        most = abs(float(apart.sum()))
        return float((np.abs(signs @ apart) >= most * (1 - 1e-9)).mean()), PAIR
    if ranks > MOST_RANKS:
        spread = sqrt(float((late.var(axis=1)).sum()))
        middle = float(late.mean(axis=1).sum())
        z = (float(total[several - 1]) - middle) / spread if spread else 0.0
        return min(1.0, ranks * _beyond(z / 1.1)), ONE
    random = np.random.default_rng(SEED)
    reached = np.zeros(len(tops), np.int64)
    share = max(1, 4_000_000 // late.size)
    done = 0
    while done < SHUFFLES:
        count = min(share, SHUFFLES - done)
        mixed = random.permuted(np.broadcast_to(late, (count, steps, ranks)), axis=2).sum(axis=1)
        mixed = -np.sort(-mixed, axis=1)
        for i, (top, _) in enumerate(tops):
            mine = float(total[:top].sum())
            reached[i] += int((mixed[:, :top].sum(axis=1) >= mine - 1e-9 * abs(mine)).sum())
        done += count
    p = (reached + 1) / (SHUFFLES + 1)
    best = int(np.argmin(p / [level for _, level in tops]))
    return float(p[best]), tops[best][1]


def _beyond(z: float) -> float:
    """Share of a normal distribution beyond so many standard deviations."""
    from math import erfc

    return erfc(z / sqrt(2)) / 2


def _steady(late: Float64, slow: tuple[int, ...]) -> float:
    """From how far the slow ranks' first comes after the last of the others in each step: Student's t, for any such ranks."""
    steps, ranks = late.shape
    mask = np.zeros(ranks, np.bool_)
    mask[list(slow)] = True
    apart = late[:, mask].min(axis=1) - late[:, ~mask].max(axis=1)
    spread = max(float(apart.std(ddof=1)), FLOOR_NS)
    t = float(apart.mean()) * sqrt(steps) / spread
    return min(1.0, comb(ranks, min(len(slow), ranks - len(slow))) * _student(t, steps - 1))


def _student(t: float, free: int) -> float:
    """Share of Student's distribution beyond t, by integrating its density."""
    if t <= 0:
        return 1.0
    angle = np.linspace(np.arctan(t / sqrt(free)), np.pi / 2, 2001)
    whole = np.linspace(-np.pi / 2, np.pi / 2, 2001)
    beyond, all_ = (float(np.trapezoid(np.cos(x) ** (free - 1), x)) for x in (angle, whole))
    return max(beyond, 0.0) / all_


def late_within_a_step(
    sets: dict[tuple[int, ...], list[int]], gap_ns: Int64, apart_ns: Int64, units: Int64, ranks: int
) -> dict[tuple[int, ...], LateEvidence]:
    """Which sets of ranks are late by more than chance in a single step.

    `gap_ns` is [i] how far the late ones of a collective come after the others, `apart_ns` how far those are apart, `units`
    which collectives overlap, so that what makes a rank late to one makes it late to the others. Chance is given a heavy
    tail: a gap c times as wide as the others are apart comes about once in 1 + c; the same ranks again once in as many as
    there are such sets.
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
        if ranks - len(late) >= 2 and best <= SINGLE:
            found[late] = LateEvidence(best, "collectives")
    return found
