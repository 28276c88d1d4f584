"""Making and sorting pieces of idle time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpu_trace_advisor.attribution import SUBMITTED, Idle, Pieces
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.compact import blocks, index_type
from gpu_trace_advisor.columns.durations import Nanoseconds, concatenated, rearranged
from gpu_trace_advisor.columns.intervals import Overlaps
from gpu_trace_advisor.timelines.device import Gaps
from gpu_trace_advisor.trace.model import Index, Int8, Int64


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
    """All parts as one. Consumes `parts`, one column after the other: there may be many of them."""
    parts[:] = [part for part in parts if len(part)] or parts[:1]
    start = np.concatenate([part.start for part in parts]) if len(parts) > 1 else parts[0].start
    order = None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable")
    del start
    if order is None and len(parts) == 1:
        return parts[0]
    left = [[getattr(part, name) for part in parts] for name in reversed(Pieces.__dataclass_fields__)]
    parts.clear()
    columns = []
    while left:
        column = np.concatenate(left.pop())
        columns.append(column if order is None else column[order])
    return Pieces(*columns)


class Cut(NamedTuple):
    """Pieces as an attribution keeps them: each ends where the next one of its gap begins."""

    gap: Index
    offset: Nanoseconds
    """[k] ns from the gap's start."""
    row: Index
    code: Int8
    """[k] cause, side and whether it is modelled, as one number."""


def cut(pieces: Pieces, gaps: Gaps) -> Cut:
    """Pieces of these gaps in half the room."""
    offset, code = Nanoseconds.empty(len(pieces)), np.empty(len(pieces), np.int8)
    for part in blocks(len(pieces)):
        offset[part] = pieces.start[part] - gaps.start[pieces.gap[part]]
        code[part] = (pieces.cause[part] * 3 + pieces.side[part]) * 2 + pieces.modelled[part]
    return Cut(pieces.gap.astype(index_type(len(gaps)), copy=False), offset, pieces.row, code)


def joined(cuts: list[Cut], gaps: Gaps) -> Idle:
    """All of them, which are used up, in time order."""
    gaps_of, offsets, rows, codes = (list[Any](column) for column in zip(*cuts, strict=True))
    cuts.clear()
    gap, offset = np.concatenate(gaps_of), concatenated(offsets)
    gaps_of.clear()
    start = gaps.start[gap]
    for part in blocks(len(start)):
        start[part] += offset[part]
    order = None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable").astype(index_type(len(start)))
    del start
    first = np.zeros(len(gaps) + 1, index_type(len(gap)))
    np.cumsum(np.bincount(gap, minlength=len(gaps)), out=first[1:])
    del gap
    row = np.concatenate(rows)
    rows.clear()
    code = np.concatenate(codes)
    if order is not None:
        offset, row, code = rearranged(offset, order), row[order], code[order]
    return Idle(gaps, first, offset, row, code)
