"""Distinct values of columns of codes (small whole numbers from -1 on), by counting: sorting or hashing takes longer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.compact import BLOCK, blocks, index_type, places

DENSE = 8  # a table of this many entries a row is cheaper than sorting the rows

Codes = NDArray[Any]
Index = NDArray[np.signedinteger[Any]]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]


def present(codes: Codes) -> Int64:
    """The codes that occur, ascending; ids, which may be any number, cost a sort."""
    return np.flatnonzero(_counts(codes)) - 1 if _dense(codes) else np.unique(codes).astype(np.int64)


def _dense(codes: Codes) -> bool:
    """Whether a table of the codes is about as long as they are many."""
    return not len(codes) or (int(codes.min()) >= -1 and int(codes.max()) < DENSE * len(codes) + BLOCK)


def _counts(codes: Codes) -> Int64:
    """How often -1, 0, 1 … occur."""
    if not len(codes):
        return np.empty(0, np.int64)
    counts = np.zeros(int(codes.max()) + 2, np.int64)
    for part in blocks(len(codes), max(BLOCK, len(counts))):
        found = np.bincount(codes[part].astype(np.intp) + 1)
        counts[: len(found)] += found
    return counts


def among(codes: Codes, wanted: Codes) -> Bool:
    """[k] whether each of the codes is one of those wanted. `np.isin` sorts both where they are many and far apart."""
    if not _dense(codes) or not _dense(wanted):
        return np.isin(codes, wanted)
    there = np.zeros(max(int(codes.max(initial=-1)), int(wanted.max(initial=-1))) + 2, np.bool_)
    there[wanted] = True  # -1 is the last one
    return np.asarray(there[codes], np.bool_)


def first_places(codes: Codes) -> tuple[Int64, Int64]:
    """The codes that occur, ascending, and where each of them stands first."""
    if not _dense(codes):
        found, first = np.unique(codes, return_index=True)
        return found.astype(np.int64), first.astype(np.int64)
    found = present(codes)
    if not len(found):
        return found, found
    first = np.empty(int(found[-1]) + 2, np.int64)
    first[codes[::-1] + 1] = np.arange(len(codes) - 1, -1, -1)  # of several the last one that is written stays
    return found, first[found + 1]


def are_first(codes: Codes, limit: int) -> Bool:
    """[k] nothing before it has the same code; codes are from 0 to below `limit`."""
    if (codes[1:] > codes[:-1]).all():
        return np.ones(len(codes), np.bool_)
    number = places(len(codes))
    first = np.empty(limit, number.dtype)
    first[codes[::-1]] = number[::-1]  # of several the last one that is written stays
    return np.asarray(first[codes] == number, np.bool_)


def are_repeated(codes: Codes, limit: int) -> Bool:
    """[k] another one has the same code; codes are from 0 to below `limit`."""
    again = ~are_first(codes, limit)
    if not again.any():
        return again
    repeated = np.zeros(limit, np.bool_)
    repeated[codes[again]] = True
    return repeated[codes]


def counted(codes: Codes) -> tuple[Int64, Index, Int64]:
    """The codes that occur, ascending; for each element which of them it is; and how often each occurs."""
    if not len(codes):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    if not _dense(codes):
        found, which, often = np.unique(codes, return_inverse=True, return_counts=True)
        return found.astype(np.int64), which.astype(np.int64), often.astype(np.int64)
    counts = _counts(codes)
    found = np.flatnonzero(counts)
    place = np.empty(len(counts), index_type(len(found)))
    place[found] = np.arange(len(found))
    which = np.empty(len(codes), place.dtype)
    for part in blocks(len(codes)):
        which[part] = place[codes[part] + 1]
    return found - 1, which, counts[found]


def numbered(codes: Codes) -> tuple[Int64, Index]:
    """The distinct codes in order, and for each row which of them it has; usual are codes from -1 on."""
    kind = index_type(len(codes))
    size = int(codes.max(initial=-1)) + 2
    if size > DENSE * len(codes) or codes.min(initial=-1) < -1:
        codes = codes.astype(np.int64)
        order = np.argsort(codes, kind="stable")  # most come nearly in order, which it likes
        new = np.diff(codes[order], prepend=codes[order[:1]] - 1) != 0
        which = np.empty(len(codes), kind)
        which[order] = np.cumsum(new) - 1
        return codes[order[new]], which
    there = np.zeros(size, np.bool_)
    for part in blocks(len(codes)):
        there[codes[part].astype(np.intp) + 1] = True
    place = np.cumsum(there, dtype=kind)
    which = np.empty(len(codes), kind)
    for part in blocks(len(codes)):
        which[part] = place[codes[part].astype(np.intp) + 1] - 1
    return np.flatnonzero(there) - 1, which
