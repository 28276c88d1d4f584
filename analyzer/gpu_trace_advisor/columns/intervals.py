"""Half-open intervals [start, end) as pairs of int64 arrays, sorted by start. Empty ones cover nothing."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.signedinteger[Any]]
Int64 = NDArray[np.int64]
Whole = TypeVar("Whole", bound=np.signedinteger[Any])


class Intervals(NamedTuple):
    """k intervals, sorted by start; `disjoint` where a function says so."""

    start: Int64
    end: Int64


class Overlaps(NamedTuple):
    """Where two disjoint sets meet: the piece, and the index on each side."""

    start: Int64
    end: Int64
    left: Index
    right: Index


DENSE = 16  # so many times as large as their number values may be: a table of bits is quicker than sorting them
NOTHING = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Int64, end: Int64) -> Intervals:
    """Disjoint, non-touching intervals that cover the same instants."""
    covering = end > start
    if not covering.all():
        start, end = start[covering], end[covering]
    if not len(start):
        return NOTHING
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if (start[1:] > end[:-1]).all():
        return Intervals(start, end)
    reach = np.maximum.accumulate(end)
    opens = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    closes = np.concatenate([opens[1:] - 1, [len(start) - 1]])
    return Intervals(start[opens], reach[closes])


def merge(a: Intervals, b: Intervals) -> Intervals:
    """Union of two sets."""
    return union(np.concatenate([a.start, b.start]), np.concatenate([a.end, b.end]))


def total(a: Intervals) -> int:
    """Summed length."""
    return int((a.end - a.start).sum())


def overlaps(a: Intervals, b: Intervals) -> Overlaps:
    """All pieces in which an interval of `a` meets one of `b`; each set disjoint. Sorted by `a`, then by `b`."""
    first = np.searchsorted(b.end, a.start, side="right")
    last = np.searchsorted(b.start, a.end, side="left")
    count = np.maximum(last - first, 0)
    left = np.repeat(np.arange(len(a.start)), count)
    right = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    start = np.maximum(a.start[left], b.start[right])
    end = np.minimum(a.end[left], b.end[right])
    keep = end > start
    return Overlaps(start[keep], end[keep], left[keep], right[keep])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Instants in both; each set disjoint."""
    met = overlaps(a, b)
    return Intervals(met.start, met.end)


def holds(a: Intervals, instants: Int64) -> NDArray[np.bool_]:
    """[k] whether one of the intervals holds each instant."""
    if not len(a.start):
        return np.zeros(len(instants), np.bool_)
    at = np.searchsorted(a.start, instants, side="right") - 1
    return np.asarray((at >= 0) & (instants < a.end[np.maximum(at, 0)]), np.bool_)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part inside [start, end)."""
    if not len(a.start) or (int(a.start.min()) >= start and int(a.end.max()) <= end and (a.end > a.start).all()):
        return a
    start_, end_ = np.clip(a.start, start, end), np.clip(a.end, start, end)
    keep = end_ > start_
    return Intervals(start_[keep], end_[keep])


def remainder(a: Intervals, taken: Overlaps) -> Overlaps:
    """What `taken` (pieces of `a`, sorted by `left` then start, disjoint) leaves of `a`; `right` is -1."""
    k, m = len(a.start), len(taken.start)
    # Each interval of `a` is one free stretch more than pieces are taken from it: from its start, then from each piece's
    # end, until the next piece's start, the last one until its own end.
    count = np.bincount(taken.left, minlength=k)
    first = np.arange(k) + np.cumsum(count) - count
    piece = np.arange(m) + taken.left + 1
    frees, until = np.empty(k + m, np.int64), np.empty(k + m, np.int64)
    frees[first], frees[piece] = a.start, taken.end
    until[first + count], until[piece - 1] = a.end, taken.start
    owner = np.repeat(np.arange(k), count + 1)
    keep = until > frees
    return Overlaps(frees[keep], until[keep], owner[keep], np.full(int(keep.sum()), -1))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Instants of `a` that are not in `b`; each set disjoint."""
    left = remainder(a, overlaps(a, b))
    return Intervals(left.start, left.end)


def gaps(a: Intervals, start: int, end: int) -> Intervals:
    """What disjoint `a` leaves of [start, end)."""
    return subtract(Intervals(np.array([start]), np.array([end])), a)


def ascending(values: NDArray[Whole]) -> NDArray[Whole]:
    """Sorted, each value once: by marking where there are enough of them for their size, as of rows of a trace.

    `np.unique` hashes first, which takes many times as long on what is nearly in order.
    """
    if len(values) and values.min() >= 0 and values.max() < DENSE * len(values):
        there = np.zeros(int(values.max()) + 1, np.bool_)
        there[values] = True
        return np.flatnonzero(there).astype(values.dtype)
    found = np.sort(values)
    return found[np.concatenate([[True], found[1:] != found[:-1]])] if len(found) else found


def grouped(keys: Index, count: int) -> list[Int64]:
    """For each key from 0 to `count` where it stands, in order; others, such as -1, are left out."""
    order = np.argsort(keys, kind="stable")
    ends = np.searchsorted(keys, np.arange(count + 1), sorter=order)
    return np.split(order, ends)[1:-1]
