"""Making and sorting pieces of idle time."""

from __future__ import annotations

import numpy as np

from analyzer.attribution import CODE, SUBMITTED, Pieces
from analyzer.intervals import Overlaps
from analyzer.trace import Index, Int64


def stretch(start: Int64, end: Int64, gap: Index, cause: str, row: Index) -> Pieces:
    """Time after the submission that a record explains; stretches without length are left out."""
    keep = np.flatnonzero(end > start)
    n = len(keep)
    return Pieces(
        start[keep], end[keep], gap[keep], np.full(n, CODE[cause], np.int8), np.full(n, SUBMITTED, np.int8), row[keep],
        np.zeros(n, np.bool_),
    )  # fmt: skip


def with_cause(found: Overlaps, cause: int, side: int, row: Index, *, modelled: bool = False) -> Pieces:
    """What was found in the gaps, all of one cause."""
    n = len(found.start)
    return Pieces(
        found.start, found.end, found.left, np.full(n, cause, np.int8), np.full(n, side, np.int8), row,
        np.full(n, modelled, np.bool_),
    )  # fmt: skip


def in_time_order(parts: list[Pieces]) -> Pieces:
    """All parts as one. They are used up."""
    parts = [part for part in parts if len(part)] or parts[:1]
    start = np.concatenate([part.start for part in parts]) if len(parts) > 1 else parts[0].start
    order = None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable")
    del start
    if order is None and len(parts) == 1:
        return parts[0]
    columns = []
    for name in Pieces.__dataclass_fields__:
        column = np.concatenate([vars(part).pop(name) for part in parts])
        columns.append(column if order is None else column[order])
    return Pieces(*columns)
