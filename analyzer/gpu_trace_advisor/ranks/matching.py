"""The same collective on all its ranks: by group, kind and number; where numbers are missing by order of occurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.ranks.collective_kinds import POINT_TO_POINT
from gpu_trace_advisor.ranks.model import RankSummary
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

SAME_STEPS = 0.05  # steps of a few collectives at the recording's ends may differ
SHIFTS = 8  # so many collectives earlier or later are tried whatever steps and clocks say
LIKELIEST = 4  # shifts by which most collectives would agree in time, tried too


@dataclass(frozen=True)
class Matched:
    """n collectives of all ranks, sorted by instance and rank; an instance is one collective of the job."""

    rank: Int64
    """[n] index of the summary."""
    at: Int64
    """[n] index into that summary's collectives."""
    instance: Int64
    """[n] ascending."""
    start_ns: Int64
    """[n] with the recording's clock added, where it has one. Likewise `end_ns`."""
    end_ns: Int64
    key: Int64
    """[n] index into `keys`."""
    number: Int64
    """[n] sequence number or order."""
    keys: tuple[tuple[str, str, int], ...]
    by_sequence: tuple[bool, ...]
    """For each key."""
    unmatched: int
    """Instances that a rank of their group lacks, although it was recording then."""

    @property
    def first(self) -> Int64:
        """Where each instance begins."""
        return np.flatnonzero(np.concatenate([[True], np.diff(self.instance) != 0])) if len(self.rank) else _EMPTY

    def column(self, summaries: Sequence[RankSummary], name: str) -> Int64:
        """[n] a column of the summaries' collectives."""
        columns = [getattr(s.collectives, name) for s in summaries]
        starts = np.cumsum([0] + [len(c) for c in columns])
        whole = np.concatenate(columns) if columns else _EMPTY
        return np.asarray(whole[starts[self.rank] + self.at])


_EMPTY = np.empty(0, np.int64)


def match(summaries: Sequence[RankSummary]) -> Matched:
    """Match the collectives of all ranks; those of one rank only are left out."""
    table: dict[tuple[str, str, int], int] = {}
    stride = max((s.stride for s in summaries), default=1)
    by_step = all(s.collectives.by_step for s in summaries)
    parts: list[tuple[Any, ...]] = []
    for r, summary in enumerate(summaries):
        c = summary.collectives
        mine = np.array([table.setdefault(key, len(table)) for key in c.keys], np.int64)[c.key] if len(c) else _EMPTY
        clock = summary.clock_ns or 0
        chosen = c.step if by_step else np.where(c.sequence == NONE, c.order, c.sequence)
        keep = np.flatnonzero(chosen % stride == 0) if stride > 1 else np.arange(len(c))
        parts.append(
            (np.full(len(keep), r), c.step[keep].astype(np.int64), keep, mine[keep], c.sequence[keep], c.order[keep],
             c.start_ns[keep] + clock, c.end_ns[keep] + clock)
        )  # fmt: skip
    rank, step, at, key, sequence, order, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    by_sequence = np.ones(len(table), np.bool_)
    np.logical_and.at(by_sequence, key, sequence != NONE)
    # The number of an exchange between two counts the calls of one rank; the same exchange has another one on its peer.
    by_sequence &= np.array([kind not in POINT_TO_POINT for _, kind, _ in table], np.bool_)
    repeats = _repeated(rank, key, sequence)
    np.logical_and.at(by_sequence, key[repeats], False)
    number = np.where(by_sequence[key], sequence, order)
    clocked = np.array([s.clock_ns is not None for s in summaries], np.bool_)
    for k in np.flatnonzero(~by_sequence).tolist():
        mine = np.flatnonzero(key == k)
        number[mine] += _shifts(rank[mine], number[mine], end[mine], step[mine], clocked, stride)
    pairs = np.stack([key, number])
    _, instance, members = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    instance = instance.reshape(-1)
    shared = members[instance] > 1
    of_key = [len(ascending(rank[key == k])) for k in range(len(table))]
    whole = np.array(of_key, np.int64)[key] if len(key) else _EMPTY
    inside = _while_all_recorded(key, number, rank)
    lacking = len(ascending(instance[(members[instance] < whole) & inside]))
    kept = np.flatnonzero(shared)
    kept = kept[np.lexsort((rank[kept], instance[kept]))]
    _, instance = np.unique(instance[kept], return_inverse=True)
    return Matched(
        rank[kept], at[kept], instance.reshape(-1).astype(np.int64), start[kept], end[kept], key[kept], number[kept],
        tuple(table), tuple(by_sequence.tolist()), lacking,
    )  # fmt: skip


def _repeated(rank: Int64, key: Int64, sequence: Int64) -> Int64:
    """Those whose number another collective of the same key and rank has too."""
    order = np.lexsort((sequence, key, rank))
    same = np.flatnonzero((np.diff(rank[order]) == 0) & (np.diff(key[order]) == 0) & (np.diff(sequence[order]) == 0))
    return order[same]


def _while_all_recorded(key: Int64, number: Int64, rank: Int64) -> Bool:
    """[n] its number lies between the last rank's first one and the first rank's last one of that key."""
    inside = np.zeros(len(key), np.bool_)
    for k in ascending(key).tolist():
        mine = np.flatnonzero(key == k)
        ranks, place = np.unique(rank[mine], return_inverse=True)
        low = np.full(len(ranks), np.iinfo(np.int64).max)
        high = np.full(len(ranks), np.iinfo(np.int64).min)
        np.minimum.at(low, place, number[mine])
        np.maximum.at(high, place, number[mine])
        inside[mine] = (number[mine] >= low.max()) & (number[mine] <= high.min())
    return inside


def _shifts(rank: Int64, number: Int64, end: Int64, step: Int64, clocked: Bool, stride: int) -> Int64:
    """[n] what to add to orders of occurrence, where a recording began some collectives earlier or later.

    First of all the steps have to have the same numbers. Then, with clocks, the shift at which the ends lie closest;
    without, the one at which their distances vary least.
    """
    ranks, counts = np.unique(rank, return_counts=True)
    reference = int(ranks[counts.argmax()])
    theirs = np.flatnonzero(rank == reference)
    theirs = theirs[np.argsort(number[theirs], kind="stable")]
    added = np.zeros(len(rank), np.int64)
    for r in ranks.tolist():
        mine = np.flatnonzero(rank == r)
        if r == reference or len(mine) < 3:
            continue
        by_clock = bool(clocked[r] and clocked[reference])
        best, least = 0, (np.inf, np.inf)
        tried = {*range(-SHIFTS * stride, SHIFTS * stride + 1, stride), *_by_steps(number, step, mine, theirs)}
        tried |= _by_time(number, end, mine, theirs, by_clock)
        for shift in sorted(tried, key=lambda n: (abs(n), n)):
            at = np.minimum(np.searchsorted(number[theirs], number[mine] + shift), len(theirs) - 1)
            there = number[theirs[at]] == number[mine] + shift
            own, other = mine[there], theirs[at[there]]
            if len(own) < max(3, len(mine) // 2):
                continue
            apart = (end[other] - end[own]).astype(np.float64)
            if not by_clock:
                apart -= np.median(apart)
            cost = float(np.mean(step[own] != step[other])), float(np.median(np.abs(apart)))
            if cost[0] < least[0] - SAME_STEPS or (cost[0] <= least[0] + SAME_STEPS and cost[1] < 0.5 * least[1]):
                best, least = shift, cost
        added[mine] = best
    return added


def _by_steps(number: Int64, step: Int64, mine: Int64, theirs: Int64) -> set[int]:
    """Shifts that bring together the last collectives of steps of one number: a first step may be recorded in part."""
    (own, last), (other, their_last) = (_last_of_steps(number[at], step[at]) for at in (mine, theirs))
    _, here, there = np.intersect1d(own, other, assume_unique=True, return_indices=True)
    return _commonest(their_last[there] - last[here])


def _last_of_steps(number: Int64, step: Int64) -> tuple[Int64, Int64]:
    """The steps that have numbers, and the last collective of each."""
    steps = np.unique(step[step != NONE])
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(last, np.searchsorted(steps, step[step != NONE]), number[step != NONE])
    return steps, last


def _by_time(number: Int64, end: Int64, mine: Int64, theirs: Int64, by_clock: bool) -> set[int]:
    """Shifts that bring together what ends at about one time; without clocks, what ends as long after the one before."""
    own, other = (end[at][np.argsort(number[at], kind="stable")] for at in (mine, theirs))
    numbers = np.sort(number[mine]), number[theirs]
    if not by_clock:
        own, other = np.diff(own), np.diff(other)
        numbers = numbers[0][1:], numbers[1][1:]
    order = np.argsort(other, kind="stable")
    at = np.searchsorted(other[order], own).clip(1, len(order) - 1)
    at -= own - other[order[at - 1]] < other[order[at]] - own
    return _commonest(numbers[1][order[at]] - numbers[0])


def _commonest(shifts: Int64) -> set[int]:
    values, counts = np.unique(shifts, return_counts=True)
    return set(values[np.argsort(-counts, kind="stable")[:LIKELIEST]].tolist())
