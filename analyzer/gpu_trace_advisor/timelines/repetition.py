"""How often the work of a window repeats: its marked steps, else the period of its launch sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import Timeline
from gpu_trace_advisor.trace.lookup import values_at
from gpu_trace_advisor.trace.model import Int64

ENOUGH = 3  # steps from which a repetition is one; two alike may be chance
SAME = 0.90  # share of launches that match the ones a period before: data-dependent kernels may differ
SHORTEST = 4  # launches of a period; shorter ones are loops inside a model, not steps, unless they are all there is
MOST = 0.5  # share of the launches that lie in periods
ALL_ALIKE = 5  # … so many of them


@dataclass(frozen=True)
class Repetition:
    """The same work several times."""

    count: int
    """Marked steps, or periods of the launch sequence; 1 where nothing repeats."""
    identical: int
    """How many of them launch the same kernels with the same grids in the same order."""
    operations: float
    """Operations of one of them, on average."""
    inferred: bool
    """From the launch sequence; nobody marked steps."""
    before: int = 0
    """Operations, in order of launch, before the first period: loading, a first iteration unlike the others."""

    @property
    def enough(self) -> bool:
        """So often that a finding need not be doubted for it."""
        return self.count >= ENOUGH

    @property
    def doubt(self) -> str:
        """Why a finding rests on little, empty where it does not."""
        if self.enough:
            return ""
        if self.inferred and self.count == 1:
            return f"no steps are marked and nothing repeats: record at least {ENOUGH} steps after warm-up"
        what = "one step" if self.count == 1 else f"{self.count} steps"
        return f"rests on {what} only: record at least {ENOUGH} after warm-up"


def repetition(timeline: Timeline, operations: Int64, steps: Sequence[Int64]) -> Repetition:
    """The repetition of marked steps (the operations of each), else what the sequence of these operations shows."""
    if steps:
        sequences = Counter(part.tobytes() for part in signatures(timeline, steps))
        return Repetition(len(steps), max(sequences.values()), sum(map(len, steps)) / len(steps), inferred=False)
    sequence = signatures(timeline, [operations])[0]
    found = period(sequence)
    if not found:
        return Repetition(1, 1, len(operations), inferred=True)
    before = _first(sequence, found)
    count = (len(sequence) - before) // found
    return Repetition(count, count, found, inferred=True, before=before)


def _first(sequence: Int64, length: int) -> int:
    """Where the first period begins: the first place from which one is like the one after it."""
    same = sequence[length:] == sequence[:-length]
    alike = np.concatenate([[0], np.cumsum(same)])
    fits = np.flatnonzero((alike[length:] - alike[:-length] >= SAME * length) & same[: len(alike) - length])
    return int(fits[0]) if len(fits) else 0


def signatures(timeline: Timeline, parts: Sequence[Int64]) -> list[Int64]:
    """For each part of the operations a number for each of them, in order of launch: equal for the same kernel with the
    same grid."""
    trace = timeline.trace
    operations = np.concatenate(parts)
    part = np.repeat(np.arange(len(parts)), [len(of_part) for of_part in parts])
    begun = np.where(timeline.linked, trace.start_ns[timeline.launch], timeline.start)[operations]
    ordered = operations[np.lexsort((timeline.start[operations], begun, part))]
    rows = timeline.row[ordered]
    grids = values_at(trace.texts.get("grid"), rows)
    numbers = np.asarray(trace.name_code[rows].astype(np.int64) * (1 << 32) + grids, np.int64)
    return np.split(numbers, np.cumsum([len(of_part) for of_part in parts])[:-1])


def period(sequence: Int64) -> int | None:
    """The shortest length after which the sequence, but for its beginning, repeats at least three times; None when it does
    not."""
    values, counts = np.unique(sequence, return_counts=True)
    # A period holds each value a whole number of times; the distances of values that occur often come first.
    for count in ascending(counts[counts >= ENOUGH])[::-1].tolist():
        places = np.flatnonzero(sequence == values[np.flatnonzero(counts == count)[0]])
        length = int(np.median(np.diff(places)))
        alike = len(sequence) >= ALL_ALIKE * length and bool((sequence[length:] == sequence[:-length]).all())
        if not (length >= SHORTEST or alike) or not 1 <= length <= len(sequence) // ENOUGH:
            continue
        rest = sequence[_first(sequence, length) :]  # without what came before: loading repeats nothing
        if len(rest) < max(ENOUGH * length, MOST * len(sequence)):
            continue
        if np.mean(rest[length:] == rest[:-length]) >= SAME:
            return length
    return None
