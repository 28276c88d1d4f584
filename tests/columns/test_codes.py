"""Distinct codes by counting: what sorting them gives."""

import numpy as np
from gpu_trace_advisor.columns.codes import among, counted, first_places, present
from gpu_trace_advisor.columns.intervals import ascending, grouped
from hypothesis import given
from hypothesis import strategies as st

CODES = st.lists(st.integers(-1, 20), max_size=40).map(lambda codes: np.array(codes, np.int32))


@given(CODES)
def test_as_sorting_gives(codes: np.ndarray) -> None:
    values, first, inverse, counts = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    assert present(codes).tolist() == values.tolist()
    assert [part.tolist() for part in first_places(codes)] == [values.tolist(), first.tolist()]
    assert [part.tolist() for part in counted(codes)] == [values.tolist(), inverse.tolist(), counts.tolist()]


@given(CODES, CODES)
def test_among_others(codes: np.ndarray, wanted: np.ndarray) -> None:
    assert among(codes, wanted).tolist() == np.isin(codes, wanted).tolist()


@given(st.lists(st.integers(0, 40) | st.integers(-(2**40), 2**40), max_size=40))
def test_ascending(values: list[int]) -> None:
    assert ascending(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(CODES, st.integers(0, 20))
def test_groups_hold_the_places_of_each_key(codes: np.ndarray, count: int) -> None:
    places = [part.tolist() for part in grouped(codes, count)]
    assert places == [np.flatnonzero(codes == key).tolist() for key in range(count)]
