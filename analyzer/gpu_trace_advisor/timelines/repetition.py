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
REPEATING = 0.5  # share of the launches that repeat, after those of loading
SAMPLED, HOPELESS = 50_000, 0.8 * SAME * REPEATING  # launches that tell whether a length is worth a closer look
AS_WELL = 1.25  # a period with so many times the differences of the best one fits as well
SHORTEST = 4  # launches of a period; shorter ones are loops inside a model, not steps, unless they are all there is
MOST = 0.5  # share of the launches that lie in periods
ALL_ALIKE = 5  # … so many of them


@dataclass(frozen=True)
class Repetition:
    """The same work several times."""

    count: int
    """Steps, or periods of the launch sequence; 1 where nothing repeats."""
    identical: int
    """How many of them launch the same kernels with the same grids in the same order."""
    operations: float
    """Operations of one of them, on average."""
    inferred: bool
    """Nobody marked steps."""
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


def repetition(
    timeline: Timeline, operations: Int64, steps: Sequence[Int64], *, inferred: bool = False, alike: bool = False
) -> Repetition:
    """The repetition of steps (the operations of each), else what the sequence of these operations shows. `inferred` says
    that nobody marked the steps, `alike` that they were found by the sequence."""
    if steps:
        sequences = Counter(part.tobytes() for part in signatures(timeline, steps))
        identical = len(steps) if alike else max(sequences.values())
        return Repetition(len(steps), identical, sum(map(len, steps)) / len(steps), inferred)
    sequence = signatures(timeline, [operations])[0]
    found = period(sequence)
    if not found:
        return Repetition(1, 1, len(operations), inferred=True)
    before = first_period(sequence, found)
    count = (len(sequence) - before) // found
    return Repetition(count, count, found, inferred=True, before=before)


def first_period(sequence: Int64, length: int) -> int:
    """Where the first period begins: the first place from which one is like the one after it and as varied as they are. The
    many equal copies of a load are like one another too; the sequence's end where none is."""
    same = sequence[length:] == sequence[:-length]
    alike = np.concatenate([[0], np.cumsum(same)])
    turns = np.concatenate([[0], np.cumsum(sequence[1:] != sequence[:-1])])
    varied = turns[length - 1 :] - turns[: len(turns) - length + 1]
    fits = (alike[length:] - alike[:-length] >= SAME * length) & same[: len(alike) - length]
    fits &= 2 * varied[: len(fits)] >= varied[::length].max()
    at = np.flatnonzero(fits)
    return int(at[0]) if len(at) else len(sequence)


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
    """The length after which the sequence repeats at least three times, once it has begun to; None when it does not. Of
    those that fit about as well as the best the shortest: a step, not the layers inside it."""
    values, counts = np.unique(sequence, return_counts=True)
    fits: dict[int, float] = {}
    every = max(len(sequence) // SAMPLED, 1)
    # A period holds each value a whole number of times; the distances of values that occur often come first.
    for count in ascending(counts[counts >= ENOUGH])[::-1].tolist():
        places = np.flatnonzero(sequence == values[np.flatnonzero(counts == count)[0]])
        length = int(np.median(np.diff(places)))
        if length in fits or not 1 <= length <= len(sequence) // ENOUGH:
            continue
        if np.mean(sequence[length::every] == sequence[:-length:every]) < HOPELESS:
            continue
        rest = sequence[first_period(sequence, length) :]
        if len(rest) < max(ENOUGH * length, REPEATING * len(sequence)):
            continue
        differ = float(np.mean(rest[length:] != rest[:-length]))
        if length < SHORTEST and (differ or len(sequence) < ALL_ALIKE * length):
            continue
        fits[length] = differ
        if not differ:
            break
    best = min(fits.values(), default=1.0)
    if best > 1 - SAME:
        return None
    return min(length for length, differ in fits.items() if differ <= min(AS_WELL * best, 1 - SAME))
