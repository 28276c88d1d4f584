"""Making and sorting pieces of idle time."""

from __future__ import annotations

import numpy as np

from analyzer.attribution import CODE, SUBMITTED, Pieces
from analyzer.intervals import Overlaps
from analyzer.trace import Int64


def stretch(start: Int64, end: Int64, gap: Int64, cause: str, row: Int64) -> Pieces:
    """Time after the submission that a record explains; stretches without length are left out."""
    keep = np.flatnonzero(end > start)
    n = len(keep)
    return Pieces(
        start[keep], end[keep], gap[keep], np.full(n, CODE[cause], np.int8), np.full(n, SUBMITTED, np.int8), row[keep],
        np.zeros(n, np.bool_),
    )  # fmt: skip


def with_cause(found: Overlaps, cause: int, side: int, row: Int64, *, modelled: bool = False) -> Pieces:
    """What was found in the gaps, all of one cause."""
    n = len(found.start)
    return Pieces(
        found.start, found.end, found.left, np.full(n, cause, np.int8), np.full(n, side, np.int8), row,
        np.full(n, modelled, np.bool_),
    )  # fmt: skip


def in_time_order(parts: list[Pieces]) -> Pieces:
    """All parts as one."""
    order = np.argsort(np.concatenate([part.start for part in parts]), kind="stable")
    return Pieces(
        *(np.concatenate([getattr(part, name) for part in parts])[order] for name in Pieces.__dataclass_fields__)
    )


def take(pieces: Pieces, at: Int64) -> Pieces:
    """Those at these places."""
    return Pieces(*(getattr(pieces, name)[at] for name in Pieces.__dataclass_fields__))
