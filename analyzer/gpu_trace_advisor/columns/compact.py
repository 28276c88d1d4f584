"""Columns no wider than they need to be: what a large trace takes in memory is the sum of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BLOCK = 1 << 18
"""Rows worked on at once, so that what lies between input and output is never as long as they are."""

_WIDEST_SMALL = 1 << 31


def index_type(count: int) -> DTypeLike:
    """The type of numbers from -1 to `count`: rows of a table of so many, places in it, and how many there are."""
    return np.int32 if count < _WIDEST_SMALL else np.int64


def places(count: int) -> Any:
    """[count] 0, 1, 2 …"""
    return np.arange(count, dtype=index_type(count))


def where(mask: NDArray[np.bool_]) -> NDArray[np.signedinteger[Any]]:
    """Where the mask is true, ascending."""
    found = np.flatnonzero(mask)
    return found.astype(index_type(len(mask)))


def constant(value: int, count: int, kind: DTypeLike = np.int64) -> NDArray[Any]:
    """[count] the same value everywhere, in the room of one; cannot be written to."""
    return np.broadcast_to(np.array(value, kind), count)


def narrowed(column: NDArray[Any], *narrowest: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """The column of whole numbers as int32 where they fit, or as the first of these types in which they do; in the room of
    one where they are all alike."""
    if not len(column):
        return column
    low, high = int(column.min()), int(column.max())
    fits = (k for k in (*narrowest, np.int32) if np.iinfo(k).min < low and high < np.iinfo(k).max)
    kind: Any = next((k for k in fits if np.dtype(k).itemsize < column.itemsize), column.dtype)
    return constant(low, len(column), kind) if low == high else column.astype(kind, copy=False)


def taken(column: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """The column at these rows; in the room of one where the whole column is."""
    return np.broadcast_to(column[:1], len(rows)) if column.strides == (0,) and len(column) else column[rows]


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """`count` rows cut into slices of `size`."""
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
