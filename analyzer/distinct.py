"""Distinct values of columns of codes (small whole numbers from -1 on), by counting: sorting or hashing takes longer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE = 8  # a table of this many entries a row is cheaper than sorting the rows

Codes = NDArray[Any]
Int64 = NDArray[np.int64]


def present(codes: Codes) -> Int64:
    """The codes that occur, ascending."""
    return np.flatnonzero(np.bincount(codes + 1)) - 1 if len(codes) else np.empty(0, np.int64)


def first_places(codes: Codes) -> tuple[Int64, Int64]:
    """The codes that occur, ascending, and where each of them stands first."""
    found = present(codes)
    if not len(found):
        return found, found
    first = np.empty(int(found[-1]) + 2, np.int64)
    first[codes[::-1] + 1] = np.arange(len(codes) - 1, -1, -1)  # of several the last one that is written stays
    return found, first[found + 1]


def counted(codes: Codes) -> tuple[Int64, Int64, Int64]:
    """The codes that occur, ascending; for each element which of them it is; and how often each occurs."""
    if not len(codes):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    counts = np.bincount(codes + 1)
    found = np.flatnonzero(counts)
    place = np.empty(len(counts), np.int64)
    place[found] = np.arange(len(found))
    return found - 1, place[codes + 1], counts[found]


def numbered(codes: Codes) -> tuple[Int64, Int64]:
    """The distinct codes in order, and for each row which of them it has; usual are codes from -1 on."""
    codes = codes.astype(np.int64)
    size = int(codes.max(initial=-1)) + 2
    if size > DENSE * len(codes) or codes.min(initial=-1) < -1:
        order = np.argsort(codes, kind="stable")  # most come nearly in order, which it likes
        new = np.diff(codes[order], prepend=codes[order[:1]] - 1) != 0
        which = np.empty(len(codes), np.int64)
        which[order] = np.cumsum(new) - 1
        return codes[order[new]], which
    shifted = codes + 1
    there = np.zeros(size, np.bool_)
    there[shifted] = True
    place = np.cumsum(there) - 1
    return np.flatnonzero(there) - 1, place[shifted]
