"""Time in which several things run, divided between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime import compiled, loops

CROWDED = 64  # more things than that at once, on average, are divided by sorting instead of one after the other

Int64 = NDArray[np.int64]


def shares(start: Int64, end: Int64) -> Int64:
    """[k] ns of each interval (sorted by start, not empty): time in which n run is divided by n, the rest of the division
    goes to the longest of them. They add up to the length of the union."""
    if not len(start):
        return np.empty(0, np.int64)
    if (start[1:] >= end[:-1]).all():
        return end - start
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] >= reach[:-1]])
    alone = opens & np.concatenate([opens[1:], [True]])
    result = np.where(alone, end - start, 0)
    crowd = np.flatnonzero(~alone)
    if len(crowd):
        result[crowd] = _divided(start[crowd], end[crowd])
    return result


def _divided(start: Int64, end: Int64) -> Int64:
    """The shares of intervals of which each meets another one."""
    at = np.sort(np.concatenate([start, end]))
    at = at[np.concatenate([[True], at[1:] != at[:-1]])]
    first, last = np.searchsorted(at, start), np.searchsorted(at, end)
    change = np.bincount(first, minlength=len(at)) - np.bincount(last, minlength=len(at))
    together = np.cumsum(change)[:-1]
    if together.sum() <= CROWDED * len(at):
        part, running = np.zeros(len(start), np.int64), np.empty(len(start), np.int64)
        compiled.call(loops.divide, (start, end), (running, part))
        return part
    length = np.diff(at)
    each = length // np.maximum(together, 1)
    rest = np.where(together > 0, length - each * together, 0)
    sums = np.concatenate([[0], np.cumsum(np.where(together > 0, each, 0))])
    shared: Int64 = sums[last] - sums[first]
    return shared + _rests(first, last, rest, np.argsort(start - end, kind="stable"))


def _rests(first: Int64, last: Int64, rest: Int64, longest: Int64) -> Int64:
    """What is left of stretches after dividing them, for each of the intervals, which cover the stretches from `first` to
    before `last`: it goes to the longest there, so the longest takes it first."""
    found = np.zeros(len(first), np.int64)
    amounts, untaken = rest.tolist(), list(range(len(rest) + 1))  # the next stretch that nobody has taken from

    def next_of(i: int) -> int:
        root = i
        while untaken[root] != root:
            root = untaken[root]
        while untaken[i] != root:
            untaken[i], i = root, untaken[i]
        return root

    for k, begin, end in zip(longest.tolist(), first[longest].tolist(), last[longest].tolist(), strict=True):
        i = next_of(begin)
        while i < end:
            found[k] += amounts[i]
            untaken[i] = i + 1
            i = next_of(i + 1)
    return found
