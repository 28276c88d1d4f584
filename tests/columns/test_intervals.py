"""Interval arithmetic against sets of instants."""

import numpy as np
import pytest
from gpu_trace_advisor.columns.intervals import (
    Intervals,
    clip,
    gaps,
    intersect,
    merge,
    overlaps,
    remainder,
    subtract,
    total,
    union,
)
from gpu_trace_advisor.timelines.device import covered
from hypothesis import given, settings
from hypothesis import strategies as st

LAST = 40
pairs = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def as_intervals(spans: list[tuple[int, int]]) -> Intervals:
    return union(*columns(spans))


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(spans, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def instants(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def instants_of(a: Intervals) -> set[int]:
    assert (a.end > a.start).all()
    assert (a.start[1:] >= a.end[:-1]).all()
    return instants(list(zip(a.start.tolist(), a.end.tolist(), strict=True)))


@given(pairs)
def test_union(spans: list[tuple[int, int]]) -> None:
    found = as_intervals(spans)
    assert instants_of(found) == instants(spans)
    assert (found.start[1:] > found.end[:-1]).all(), "touching intervals are joined"
    assert total(found) == len(instants(spans))


@given(pairs, pairs)
def test_set_operations(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = as_intervals(a), as_intervals(b)
    assert instants_of(merge(x, y)) == instants(a) | instants(b)
    assert instants_of(intersect(x, y)) == instants(a) & instants(b)
    assert instants_of(subtract(x, y)) == instants(a) - instants(b)


@given(pairs, st.integers(0, LAST), st.integers(0, LAST))
def test_window(spans: list[tuple[int, int]], start: int, end: int) -> None:
    inside = instants([(start, end)])
    found = as_intervals(spans)
    assert instants_of(clip(found, start, max(start, end))) == instants(spans) & inside
    assert instants_of(gaps(found, start, end)) == inside - instants(spans)


@given(pairs, pairs)
def test_overlaps_name_both_sides(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = as_intervals(a), as_intervals(b)
    found = overlaps(x, y)
    expected = [
        (max(s, p), min(e, q), i, j)
        for i, (s, e) in enumerate(zip(x.start.tolist(), x.end.tolist(), strict=True))
        for j, (p, q) in enumerate(zip(y.start.tolist(), y.end.tolist(), strict=True))
        if max(s, p) < min(e, q)
    ]
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@given(pairs, pairs)
def test_remainder_names_its_owner(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x = as_intervals(a)
    left = remainder(x, overlaps(x, as_intervals(b)))
    assert instants(list(zip(left.start.tolist(), left.end.tolist(), strict=True))) == instants(a) - instants(b)
    for start, end, owner in zip(left.start.tolist(), left.end.tolist(), left.left.tolist(), strict=True):
        assert x.start[owner] <= start < end <= x.end[owner]
    assert set(left.right.tolist()) <= {-1}


@settings(max_examples=60)
@given(pairs, pairs)
def test_covered(spans: list[tuple[int, int]], by: list[tuple[int, int]]) -> None:
    start, end = columns(spans)
    expected = [len(instants([span]) & instants(by)) for span in spans]
    assert covered(Intervals(start, end), as_intervals(by)).tolist() == expected


@pytest.mark.parametrize(("start", "end"), [([5], [5]), ([], []), ([5, 6], [3, 6])])
def test_empty_intervals_cover_nothing(start: list[int], end: list[int]) -> None:
    found = union(np.array(start, np.int64), np.array(end, np.int64))
    assert total(found) == len(found.start) == 0


def test_nothing_left_of_an_empty_window() -> None:
    assert total(gaps(as_intervals([(1, 2)]), 5, 5)) == 0
