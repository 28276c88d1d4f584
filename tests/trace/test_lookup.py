"""Looking up many rows of sparse columns, against the plain way."""

import numpy as np
from gpu_trace_advisor.columns.codes import numbered
from gpu_trace_advisor.trace.lookup import distinct_rows, values_at, values_of
from gpu_trace_advisor.trace.model import Sparse
from hypothesis import given
from hypothesis import strategies as st


def column(**values: int) -> Sparse:
    rows = sorted(int(row[1:]) for row in values)
    return Sparse(np.array(rows, np.int64), np.array([values[f"r{row}"] for row in rows], np.int64))


def test_values_at() -> None:
    rows = np.array([0, 2, 5, 9], np.int64)
    assert values_at(column(r2=7, r9=8), rows).tolist() == [-1, 7, -1, 8]
    assert values_at(None, rows).tolist() == [-1] * 4
    both = values_of([column(r2=7, r9=8), None, column(r2=1, r9=2), column(r0=1, r2=2, r5=3, r9=4)], rows)
    assert [found.tolist() for found in both] == [[-1, 7, -1, 8], [-1] * 4, [-1, 1, -1, 2], [1, 2, 3, 4]]


NUMBERS = st.integers(-1, 30_000_000) | st.integers(-(2**63), 2**63 - 1)  # sizes of launches may be damaged


@given(st.lists(st.tuples(st.integers(-1, 5), NUMBERS), max_size=30))
def test_distinct_rows_and_numbers(rows: list[tuple[int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(2)]
    distinct, which = distinct_rows(columns)
    assert [distinct[i] for i in which.tolist()] == rows and len(set(distinct)) == len(distinct)
    values, places = numbered(columns[1])
    assert values[places].tolist() == columns[1].tolist() and values.tolist() == sorted(set(values.tolist()))
