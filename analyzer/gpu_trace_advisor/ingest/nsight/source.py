"""Tables as numpy columns: what every kind of Nsight Systems export can be asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from gpu_trace_advisor.columns.compact import blocks, constant, index_type
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.ingest.raw_events import Int64
from gpu_trace_advisor.trace.model import Index


class PackedColumns(NamedTuple):
    """Small columns as one, which is quicker to read: the first in the highest bits.

    MISSING where one is NULL, negative or too large; all MISSING without the first column.
    """

    names: tuple[str, ...]
    bits: tuple[int, ...]
    absent: int
    """Value of the other columns where the table lacks them."""


Column = str | PackedColumns
Batch = tuple[list[Int64], list[list[bytes]]]
"""Some rows: an array for each integer column and a list for each text column, in the order they were asked for."""


class Source(Protocol):
    """Tables of one export. Rows come in the same order whatever columns are asked for."""

    file: str
    """Name for messages."""
    tables: dict[str, frozenset[str]]
    """Table -> its columns."""

    def batches(self, table: str, integers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[Batch]:
        """The rows of a table in bounded batches. An integer that is NULL is MISSING, a text b""."""
        ...

    def integers(self, table: str, columns: Sequence[Column]) -> list[Int64]:
        """Whole integer columns, MISSING where NULL or where the table lacks the column; empty without the table."""
        ...

    def strings(self, ids: Int64) -> dict[int, bytes]:
        """The texts of these ids of the table `StringIds`; ids it lacks are left out."""
        ...


def first_name(column: Column) -> str:
    """The column that the others are worth nothing without."""
    return column if isinstance(column, str) else column.names[0]


def distinct(values: Int64) -> tuple[Int64, Index]:
    """The distinct values, ascending, and the index among them of every row's value. Quick where values repeat."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low, high = int(values.min()), int(values.max())
    kind = index_type(len(values))
    if low == high:
        return values[:1].copy(), constant(0, len(values), kind)
    codes = np.empty(len(values), kind)
    if high - low < 4 * len(values) + 65536:
        present = np.zeros(high - low + 1, np.bool_)
        for part in blocks(len(values)):
            present[values[part] - low] = True
        place = np.cumsum(present, dtype=kind)
        for part in blocks(len(values)):
            codes[part] = place[values[part] - low] - 1
        return np.flatnonzero(present) + low, codes
    if (known := _few(values)) is not None:
        for part in blocks(len(values)):
            codes[part] = np.searchsorted(known, values[part])
        return known, codes
    heads = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    keys, of_head = np.unique(values[heads], return_inverse=True)
    return keys, np.repeat(of_head.astype(kind), np.diff(heads, append=len(values)))


FEW = 1 << 14  # distinct values: to find one among them is quicker than to sort all rows


def _few(values: Int64) -> Int64 | None:
    """The distinct values, ascending, where they are few and come again and again; else None."""
    known = np.empty(0, np.int64)
    for part in blocks(len(values)):
        some = values[part]
        if len(known):
            some = some[known[np.minimum(np.searchsorted(known, some), len(known) - 1)] != some]
        if len(some):
            known = ascending(np.concatenate([known, some]))
        if len(known) > FEW:
            return None
    return known
