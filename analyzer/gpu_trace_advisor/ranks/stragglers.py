"""Who comes late to the collectives, and what that costs the others.

What counts is a rank's own lateness: what it waited for other ranks since its group's collective before is taken off its
arrival, so that of those who come late together only the one that nobody kept waiting is left. At each collective the
arrivals are cut where the widest gap among their later half is: who lies behind it is late, and the gap is what the
collective would have begun earlier without them. Whether that is more than chance `evidence` tells. Collectives that overlap
are one occasion to be late: what a rank is late by is not counted once for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.ranks.evidence import FLOOR_NS, LateEvidence, late_over_steps, late_within_a_step
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

WORTH = 0.01  # of the wall: what costs less is no straggler
MOST_SETS = 8  # of late ranks that are told apart
SAME = 0.5  # a set of late ranks is part of another one when so much of it lies in it


@dataclass(frozen=True)
class Arrivals:
    """n arrivals at collectives on one clock, sorted by instance and rank; i instances, r ranks."""

    rank: Int64
    instance: Int64
    """[n] 0 to i - 1, ascending."""
    start_ns: Int64
    end_ns: Int64
    own_ns: Int64
    """[n] when it would have come had it waited for nobody since the group's collective before."""
    step: Int64
    """[n] number of the step, -1 none."""
    charged: Bool
    """[i] in the window, and not the first of its group."""
    first: Int64
    """[i] where each instance begins."""
    together: Bool
    """[i] of a kind that nobody leaves before all have come; a broadcast is none."""

    @property
    def members(self) -> Int64:
        """[i] how many ranks came."""
        return np.diff(np.concatenate([self.first, [len(self.rank)]]))

    @property
    def last_ns(self) -> Int64:
        """[i] last arrival."""
        return np.maximum.reduceat(self.start_ns, self.first) if len(self.first) else self.first

    @property
    def earliest_ns(self) -> Int64:
        return np.minimum.reduceat(self.start_ns, self.first) if len(self.first) else self.first

    @property
    def transfer_ns(self) -> Int64:
        """[i] shortest duration over the ranks: what it takes with all there."""
        return np.minimum.reduceat(self.end_ns - self.start_ns, self.first) if len(self.first) else self.first

    @property
    def awaited_ns(self) -> Int64:
        """[n] the arrival that it stayed for: the last one, of those before its end where some leave before others come."""
        awaited = self.last_ns[self.instance]
        for i in np.flatnonzero(~self.together).tolist():
            mine = slice(int(self.first[i]), int(self.first[i] + self.members[i]))
            start = np.sort(self.start_ns[mine])
            awaited[mine] = start[np.maximum(np.searchsorted(start, self.end_ns[mine]) - 1, 0)]
        return awaited

    @property
    def wait_ns(self) -> Int64:
        """[n] from the own arrival to the last one that it stayed for, never longer than the collective."""
        waited = np.minimum(self.awaited_ns - self.start_ns, self.end_ns - self.start_ns)
        return np.asarray(np.maximum(waited, 0), np.int64)

    @cached_property
    def occasion(self) -> Int64:
        """[i] charged collectives that overlap have one number, in the order of time; -1 for the others."""
        found = np.full(len(self.first), NONE, np.int64)
        at = np.flatnonzero(self.charged)
        begin, end = self.earliest_ns[at], self.last_ns[at] + self.transfer_ns[at]
        order = np.argsort(begin, kind="stable")
        latest = np.maximum.accumulate(end[order]) if len(at) else end
        opens = np.ones(len(at), np.bool_)
        opens[1:] = begin[order][1:] > latest[:-1]
        step = self.step[self.first[at[order]]] if len(at) else at
        opens[1:] |= np.diff(step) != 0
        found[at[order]] = np.cumsum(opens) - 1
        return found


@dataclass(frozen=True)
class Late:
    """Per instance who is late, and by how much; i of them."""

    ranks: tuple[tuple[int, ...], ...]
    cost_ns: Int64
    """[i] the gap before the late ones."""
    behind_ns: Int64
    """[n] arrival after the median of the others, at least 0."""


def late_ones(arrivals: Arrivals) -> Late:
    """Cut each instance's arrivals at the widest gap in their later half."""
    order = np.lexsort((arrivals.own_ns, arrivals.instance))
    ranks, cost = [], np.zeros(len(arrivals.first), np.int64)
    behind = np.zeros(len(arrivals.rank), np.int64)
    for i, (low, count) in enumerate(zip(arrivals.first.tolist(), arrivals.members.tolist(), strict=True)):
        mine = order[low : low + count]
        if not arrivals.together[i]:
            mine = mine[np.argsort(arrivals.start_ns[mine], kind="stable")]
            mine = mine[: _awaited(arrivals.start_ns[mine], arrivals.end_ns[mine])]
            mine = mine[np.argsort(arrivals.own_ns[mine], kind="stable")]
            count = len(mine)
        if count < 2:
            ranks.append(())
            continue
        start = arrivals.own_ns[mine]
        half = count - count // 2  # the earlier half, its middle included, is never late
        gaps = np.diff(start)[half - 1 :]
        at = int(gaps.argmax()) + half
        cost[i] = start[at] - start[at - 1]
        ranks.append(tuple(sorted(arrivals.rank[mine[at:]].tolist())) if cost[i] > 0 else ())
        behind[mine] = np.maximum(start - _median_of_others(start), 0)
    return Late(tuple(ranks), cost, behind)


def _awaited(sorted_start: Int64, end: Int64) -> int:
    """How many came before all others had left: nobody waited for the rest."""
    count = len(sorted_start)
    while count > 1 and sorted_start[count - 1] >= end[: count - 1].max():
        count -= 1
    return count


def _median_of_others(sorted_start: Int64) -> Int64:
    """[m] for each the median of the others."""
    m = len(sorted_start)
    if m == 2:
        return sorted_start[::-1]
    # Without one below the middle the median moves up, without one above it down.
    place = np.arange(m)
    low, high = (m - 2) // 2, (m - 1) // 2
    a = sorted_start[low + (place <= low)]
    b = sorted_start[high + (place <= high)]
    return np.asarray((a + b) // 2, np.int64)


@dataclass(frozen=True)
class LateRanks:
    """Ranks that are late by more than chance."""

    ranks: tuple[int, ...]
    """Indices of summaries."""
    evidence: LateEvidence
    cost_ns: int
    """What the collectives would have begun earlier without them."""
    late_ns: int
    """What they came later than the middle of the others, added up; mean over them."""
    waited_ns: int
    """What the others waited for them, added up."""
    times: int
    """Collectives that began later for them."""
    of: int
    steps: tuple[int, ...]
    """Numbers of the steps in which that was so."""


def lateness(arrivals: Arrivals, occasion: Int64, ranks: int) -> tuple[NDArray[np.float64], Int64]:
    """[occasions, ranks] how much later than the middle of the others each came, ns; and the step of each occasion."""
    count = int(occasion.max(initial=NONE)) + 1
    found = np.zeros((count, ranks))
    step = np.full(count, NONE, np.int64)
    for i in np.flatnonzero(occasion != NONE).tolist():
        mine = np.arange(int(arrivals.first[i]), int(arrivals.first[i] + arrivals.members[i]))
        mine = mine[np.argsort(arrivals.own_ns[mine], kind="stable")]
        who, own = arrivals.rank[mine], arrivals.own_ns[mine]
        # One middle for all, so that distances between ranks stay what they are; of two each is the other's.
        late = own - np.median(own) if len(mine) > 2 else (own - own[::-1]).astype(np.float64)
        if len(mine) == 2 < ranks:  # who is early beside a late partner may be like all the rest
            late = np.maximum(late, 0)
        row = found[occasion[i]]
        row[who] = np.where(np.abs(late) > np.abs(row[who]), late, row[who])
        step[occasion[i]] = arrivals.step[mine[0]]
    return found, step


def late_ranks(arrivals: Arrivals, late: Late, ranks: int, wall_ns: int) -> list[LateRanks]:
    """The sets of ranks that are late by more than chance and cost the others more than 1 % of the wall, the dearest
    first."""
    occasion = arrivals.occasion
    by_occasion, step = lateness(arrivals, occasion, ranks)
    if not len(step):
        return []
    numbers = np.unique(step)
    if len(numbers) > 1:
        found = _over_steps(np.stack([by_occasion[step == number].sum(axis=0) for number in numbers.tolist()]))
    else:
        found = _in_one_step(arrivals, late, occasion, ranks)
    stragglers = [_late(arrivals, occasion, slow, evidence, by_occasion) for slow, evidence in found]
    return sorted((one for one in stragglers if one.cost_ns >= WORTH * wall_ns), key=lambda one: -one.cost_ns)


def _over_steps(rows: NDArray[np.float64]) -> list[tuple[tuple[int, ...], LateEvidence]]:
    """The late ranks, then those that are late beside the rest, and so on."""
    left = np.arange(rows.shape[1])
    found: list[tuple[tuple[int, ...], LateEvidence]] = []
    while len(left) > 1 and len(found) < MOST_SETS and (one := late_over_steps(rows[:, left])):
        slow, evidence = one
        found.append((tuple(left[list(slow)].tolist()), evidence))
        left = np.delete(left, list(slow))
    return found


def _in_one_step(
    arrivals: Arrivals, late: Late, occasion: Int64, ranks: int
) -> list[tuple[tuple[int, ...], LateEvidence]]:
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    apart = np.zeros(len(arrivals.first), np.int64)
    for i in np.flatnonzero(arrivals.charged & (late.cost_ns > 0)).tolist():
        mine = slice(int(arrivals.first[i]), int(arrivals.first[i] + arrivals.members[i]))
        others = arrivals.own_ns[mine][~np.isin(arrivals.rank[mine], late.ranks[i])]
        apart[i] = np.ptp(others) if len(others) else 0
        sets[late.ranks[i]].append(i)
    dearest = dict(_merged({slow: list(instances) for slow, instances in sets.items()}, late.cost_ns))
    exact = {slow: sets[slow] for slow in dearest}
    return list(late_within_a_step(exact, late.cost_ns, apart, occasion, ranks).items())


def _merged(sets: dict[tuple[int, ...], list[int]], cost: Int64) -> list[tuple[tuple[int, ...], list[int]]]:
    """Sets that lie in a dearer one belong to it; so does one that holds it and few others."""
    price = {ranks: int(cost[instances].sum()) for ranks, instances in sets.items()}
    result: list[tuple[tuple[int, ...], list[int]]] = []
    for ranks in sorted(sets, key=lambda r: (-price[r], r)):
        for kept, instances in result:
            common = len(set(ranks) & set(kept))
            if common == len(ranks) or (common == len(kept) and len(kept) >= SAME * len(ranks)):
                instances += sets[ranks]
                break
        else:
            result.append((ranks, list(sets[ranks])))
    return result


def _late(
    arrivals: Arrivals, occasion: Int64, slow: tuple[int, ...], evidence: LateEvidence, by_occasion: NDArray[np.float64]
) -> LateRanks:
    """What these ranks cost; of collectives that overlap the widest gap counts."""
    wait, widest, times, waited = arrivals.wait_ns, np.zeros(len(by_occasion), np.int64), 0, 0
    steps = set()
    for i in np.flatnonzero(occasion != NONE).tolist():
        mine = slice(int(arrivals.first[i]), int(arrivals.first[i] + arrivals.members[i]))
        theirs = np.isin(arrivals.rank[mine], slow)
        if theirs.all() or not theirs.any():
            continue
        own = arrivals.own_ns[mine]
        gap = int(own[theirs].max() - own[~theirs].max())
        if gap <= 0:
            continue
        times += 1
        waited += int(np.minimum(wait[mine][~theirs], gap).sum())
        widest[occasion[i]] = max(widest[occasion[i]], gap)
        if gap > FLOOR_NS:
            steps.add(int(arrivals.step[mine][0]))
    return LateRanks(
        slow, evidence, int(widest.sum()), int(by_occasion[:, list(slow)].mean(axis=1).sum()), waited, times,
        int((occasion != NONE).sum()), tuple(sorted(steps - {NONE})),
    )  # fmt: skip
