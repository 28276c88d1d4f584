"""Columns of whole traces looked up at many rows, and their distinct combinations, in time linear in the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.codes import numbered, present
from gpu_trace_advisor.columns.compact import blocks, constant, index_type, places
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int64, Sparse, Trace


def values_at(column: Sparse | None, rows: Index) -> Int64:
    """[k] the column's value at each row, -1 where it has none."""
    return values_of([column], rows)[0].astype(np.int64, copy=False)


def values_of(columns: Sequence[Sparse | None], rows: Index) -> list[Index]:
    """`values_at` of each column, of the columns' own types.

    The rows are looked up once for neighbours that have values in the same ones.
    """
    found: list[Index] = []
    last, at, there = np.empty(0, np.int64), rows, np.empty(0, np.bool_)
    for column in columns:
        if column is None or not len(column.rows):
            found.append(constant(NONE, len(rows), np.int8))
            continue
        if not np.array_equal(column.rows, last):
            last = column.rows
            if np.array_equal(last, rows):
                at, there = places(len(rows)), np.ones(len(rows), np.bool_)
            else:
                at = np.empty(len(rows), index_type(len(last)))
                for part in blocks(len(rows)):
                    at[part] = np.minimum(np.searchsorted(last, rows[part]), len(last) - 1)
                there = last[at] == rows
        values = column.values[at]
        values[~there] = NONE
        found.append(values)
    return found


def named(trace: Trace, codes: NDArray[Any], fits: Callable[[str], bool]) -> Bool:
    """[k] whether the name with this code fits, asked once for each name that occurs."""
    table = np.zeros(len(trace.names), np.bool_)
    for code in present(codes).tolist():
        table[code] = fits(trace.names[code])
    return np.asarray(table[codes], np.bool_)


def distinct_rows(columns: Sequence[NDArray[Any]]) -> tuple[list[tuple[int, ...]], Index]:
    """The distinct rows of these columns of codes, and for each row which of them it is."""
    _, which = numbered(columns[0])
    for column in columns[1:]:
        values, codes = numbered(column)
        if len(values) > 1:
            key = which.astype(np.int64)
            key *= len(values)
            key += codes
            which = numbered(key)[1]
    first = np.full(int(which.max(initial=-1)) + 1, NONE, np.int64)
    first[which[::-1]] = places(len(which))[::-1]
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), which
