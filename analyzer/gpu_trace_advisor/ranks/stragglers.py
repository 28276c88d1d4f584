"""Who comes late to the collectives, what that costs the others, and what the late ones do longer.

At each collective the arrivals are cut where the widest gap among their later half is: who lies behind it is late, and the
gap is what the collective would have begun earlier without them. The same ranks late again and again are a straggler, unless
the others cost about as much: ranks whose work varies take turns. A cause is named only when one explains most of what they
come later by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpu_trace_advisor.ranks.model import PHASES, Straggler
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

WORTH = 0.01  # of the wall: what costs less is no straggler
OUTSTANDING = 4  # times what a usual one of the others costs: who costs more stands out, however seldom it is late
MORE = 1.5  # … who costs less than this does not
OFTEN = 2.5  # … and between the two it has to come after the others by this many standard errors, over all collectives
EXPLAINS = 0.6  # share of the lateness from which on a phase is its cause
SAME = 0.5  # a set of late ranks is part of another one when so much of it lies in it


@dataclass(frozen=True)
class Arrivals:
    """n arrivals at collectives on one clock, sorted by instance and rank; i instances, r ranks."""

    rank: Int64
    instance: Int64
    """[n] 0 to i - 1, ascending."""
    start_ns: Int64
    end_ns: Int64
    phases_ns: Int64
    """[n, phases] since the group's collective before."""
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
    order = np.lexsort((arrivals.start_ns, arrivals.instance))
    ranks, cost = [], np.zeros(len(arrivals.first), np.int64)
    behind = np.zeros(len(arrivals.rank), np.int64)
    for i, (low, count) in enumerate(zip(arrivals.first.tolist(), arrivals.members.tolist(), strict=True)):
        mine = order[low : low + count]
        if not arrivals.together[i]:
            mine = mine[: _awaited(arrivals.start_ns[mine], arrivals.end_ns[mine])]
            count = len(mine)
        if count < 2:
            ranks.append(())
            continue
        start = arrivals.start_ns[mine]
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


def stragglers(arrivals: Arrivals, late: Late, numbers: Sequence[int], wall_ns: int, steps: int) -> list[Straggler]:
    """The sets of ranks that cost the others more than 1 % of the wall, the dearest first.

    `numbers` are the ranks' own numbers, `steps` how many steps the window has (0: none are marked).
    """
    charged = np.flatnonzero(arrivals.charged & (late.cost_ns > 0))
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i in charged.tolist():
        sets[late.ranks[i]].append(i)
    found = []
    of = int(arrivals.charged.sum())
    of_rank = np.zeros(len(numbers), np.int64)
    for ranks, instances in sets.items():
        of_rank[list(ranks)] += int(late.cost_ns[instances].sum())
    for ranks, instances in _merged(sets, late.cost_ns):
        at = np.array(instances)
        cost = int(late.cost_ns[at].sum())
        usual = _usual(np.delete(of_rank, ranks))
        if cost < max(WORTH * wall_ns, MORE * usual):
            continue
        if cost < OUTSTANDING * usual and _behind(arrivals, ranks) < OFTEN:
            continue
        found.append(_straggler(arrivals, late, ranks, at, numbers, of, steps))
    return sorted(found, key=lambda s: -s.cost_ns)


def _usual(costs: Int64) -> int:
    """The lower median, which another straggler among few ranks does not raise."""
    return int(np.sort(costs)[(len(costs) - 1) // 2]) if len(costs) else 0


def _behind(arrivals: Arrivals, ranks: tuple[int, ...]) -> float:
    """By how many standard errors these ranks come after the middle of the others, over all charged collectives."""
    late = []
    for i in np.flatnonzero(arrivals.charged).tolist():
        mine = slice(int(arrivals.first[i]), int(arrivals.first[i] + arrivals.members[i]))
        slow = np.isin(arrivals.rank[mine], ranks)
        if slow.any() and not slow.all():
            start = arrivals.start_ns[mine]
            late.append(float(start[slow].mean() - np.median(start[~slow])))
    squares = float(np.sqrt(np.sum(np.square(late))))
    return float(np.sum(late)) / squares if squares else 0.0


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


def _straggler(
    arrivals: Arrivals, late: Late, ranks: tuple[int, ...], instances: Int64, numbers: Sequence[int], of: int, steps: int
) -> Straggler:  # fmt: skip
    waited, excess, lateness = 0, np.zeros(len(PHASES)), 0.0
    in_steps: set[int] = set()
    by_step: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = defaultdict(lambda: np.zeros(len(PHASES)))
    wait = arrivals.wait_ns
    for i in instances.tolist():
        mine = slice(int(arrivals.first[i]), int(arrivals.first[i] + arrivals.members[i]))
        slow = np.isin(arrivals.rank[mine], ranks)
        if slow.all() or not slow.any():
            continue
        waited += int(np.minimum(wait[mine][~slow], late.cost_ns[i]).sum())
        phases = arrivals.phases_ns[mine]
        more = phases[slow].mean(axis=0) - np.median(phases[~slow], axis=0)
        excess += more
        start = arrivals.start_ns[mine]
        lateness += float(start[slow].mean() - np.median(start[~slow]))
        step = int(arrivals.step[mine][slow][0])
        by_step[step] += more
        if step != NONE:
            in_steps.add(step)
    phase = int(excess.argmax())
    often = sum(more[phase] > 0 for more in by_step.values()) > len(by_step) / 2
    named = lateness > 0 and excess[phase] >= EXPLAINS * lateness and often
    return Straggler(
        ranks=tuple(numbers[r] for r in ranks),
        cost_ns=int(late.cost_ns[instances].sum()),
        waited_ns=waited,
        times=len(instances),
        of=of,
        steps=len(in_steps) if steps else 0,
        of_steps=steps,
        phase=PHASES[phase] if named else "",
        phase_ns=int(excess[phase]) if named else 0,
        cause="",
        saving_ns=None,
        how="arrivals",
    )
