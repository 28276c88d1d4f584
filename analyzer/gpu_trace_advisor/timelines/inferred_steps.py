"""Steps that nobody marked: told by the optimizer, else the data loader, else ranges around iterations, else by the work
itself, where the sequence of launches repeats.

They serve windows and medians. Whoever shows them says that they are inferred, and from what.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.compact import constant
from gpu_trace_advisor.timelines.device import Timeline
from gpu_trace_advisor.timelines.repetition import ENOUGH, first_period, period, signatures
from gpu_trace_advisor.timelines.steps import FAR, MOST_STEPS, Step, cut, marker_rows, outermost, step_of_operation
from gpu_trace_advisor.trace.model import NONE, Index, Int64, Kind

OPTIMIZER = re.compile(r"Optimizer\.step#")
LOADER = re.compile(r"enumerate\(DataLoader\)#")
ITERATION = re.compile(
    r"(?:^|[^a-z])(?:iter|step|batch|train|forward|fwd|backward|bwd|infer|predict|generat|decode|token|request|execut|enqueue|"
    r"run|sample)",
    re.IGNORECASE,
)
"""Ranges around iterations or their parts; not those of layers."""
ALIKE = 0.1  # steps whose numbers of operations differ by no more of it are alike
MOST_ALIKE = 0.9  # share of the steps that have to be
COVERED = 0.5  # share of the operations that ranges around iterations have to launch
LONGEST_CYCLE = 64  # optimizers, or batches of gradient accumulation, of one step
SEQUENCE = "the launch sequence"


class Inferred(NamedTuple):
    """Steps that nobody marked."""

    steps: list[Step]
    of_step: Index
    """[m] the step of each operation, -1 for none."""
    source: str
    """What tells them; empty where nothing does."""


class _Bounds(NamedTuple):
    """On the host, k spans in order."""

    begun: Int64
    done: Int64
    source: str
    first_open: bool = False
    """Where the first one begins is not known, else where the last one ends is not."""


def infer_steps(timeline: Timeline) -> Inferred:
    """The steps of a device where none is marked: at least three; none where nothing tells them."""
    if timeline.linked.any():
        for find in (_by_optimizer, _by_loader, _by_ranges):
            bounds = find(timeline)
            if bounds is not None and (found := _cut_at(timeline, bounds)) is not None:
                return found
    return _by_sequence(timeline) or Inferred([], constant(NONE, len(timeline.row), np.int32), "")


def _by_optimizer(timeline: Timeline) -> _Bounds | None:
    """A step ends with its optimizer's."""
    rows = _marks(timeline, OPTIMIZER)
    if len(rows) < ENOUGH:
        return None
    ends = timeline.trace.end_ns[rows]
    first = min(
        int(timeline.trace.start_ns[timeline.launch[timeline.linked]].min()), int(timeline.trace.start_ns[rows[0]])
    )
    return _Bounds(np.concatenate([[first], ends[:-1]]), ends, timeline.trace.label(int(rows[0])), first_open=True)


def _by_loader(timeline: Timeline) -> _Bounds | None:
    """A step begins when its batch is asked for."""
    rows = _marks(timeline, LOADER)
    return _from_starts(timeline, rows) if len(rows) >= ENOUGH else None


def _by_ranges(timeline: Timeline) -> _Bounds | None:
    """Ranges around iterations: those of one name, or whose names count; where there are several, the first of each round."""
    trace = timeline.trace
    rows = np.flatnonzero(
        np.isin(trace.kind, (Kind.RANGE, Kind.SPAN))
        & (trace.process == timeline.process)
        & np.isin(trace.thread, timeline.host.launching)
    )
    codes = trace.name_code[rows]
    fits = {code: trace.names[code] for code in present(codes).tolist() if ITERATION.search(trace.names[code])}
    rows = rows[np.isin(codes, list(fits))]
    often = Counter(trace.name_code[rows].tolist())
    # Layers are numbered too, but each number comes again with each step.
    families = {
        code: fits[code] if count >= ENOUGH else re.sub(r"\d+", "#", fits[code]) for code, count in often.items()
    }
    sizes = Counter(families[code] for code in trace.name_code[rows].tolist())
    rows = np.array([r for r in rows.tolist() if sizes[families[int(trace.name_code[r])]] >= ENOUGH], np.int64)
    if not len(rows):
        return None
    rows = outermost(trace, rows)
    inside = step_of_operation(timeline, trace.start_ns[rows], trace.end_ns[rows]) != NONE
    family = [families[code] for code in trace.name_code[rows].tolist()]
    rounds = Counter(family)
    if np.mean(inside) < COVERED or rounds[family[0]] < max(ENOUGH, max(rounds.values())):
        return None
    return _from_starts(timeline, rows[[name == family[0] for name in family]])


def _marks(timeline: Timeline, pattern: re.Pattern[str]) -> Int64:
    families = marker_rows(timeline.trace, timeline.process, pattern)
    return families[0] if families else np.empty(0, np.int64)


def _from_starts(timeline: Timeline, rows: Int64) -> _Bounds:
    trace = timeline.trace
    starts = trace.start_ns[rows]
    last = max(int(trace.end_ns[timeline.launch[timeline.linked]].max()), int(trace.end_ns[rows].max()))
    return _Bounds(starts, np.append(starts[1:], last), trace.label(int(rows[0])))


def _cut_at(timeline: Timeline, bounds: _Bounds) -> Inferred | None:
    """The steps between these bounds that launched something here; None where those are too few."""
    begun, done = bounds.begun, bounds.done
    counts = np.bincount(step_of_operation(timeline, begun, done) + 1, minlength=len(begun) + 1)[1:]
    begun, done, counts = begun[counts > 0], done[counts > 0], counts[counts > 0]
    together = _cycle(counts)
    whole = len(counts) // together * together
    rest = len(counts) - whole if bounds.first_open else 0
    begun = begun[rest : rest + whole : together]
    done = done[rest + together - 1 : rest + whole : together]
    if not ENOUGH <= len(begun) <= MOST_STEPS:
        return None
    of_step = step_of_operation(timeline, begun, done)
    counts = np.bincount(of_step + 1, minlength=len(begun) + 1)[1:]
    odd = 0 if bounds.first_open else len(begun) - 1
    steps = cut(timeline, [f"step {i}" for i in range(len(begun))], begun, done, of_step)
    others = np.delete(counts, odd)
    if not (1 - ALIKE) * others.min() <= counts[odd] <= (1 + ALIKE) * others.max():
        where = "begins" if bounds.first_open else "ends"
        steps[odd] = steps[odd].without(
            f"{counts[odd]:,} operations against {np.median(others):,.0f} in the others: where it {where} is not known"
        )
    return Inferred(steps, of_step, bounds.source)


def _cycle(counts: Int64) -> int:
    """How many neighbours make one step: two optimizers, or some batches whose gradients are added up."""
    for length in range(1, min(LONGEST_CYCLE, len(counts) // ENOUGH) + 1):
        before, after = counts[:-length], counts[length:]
        if np.mean(np.abs(after - before) <= ALIKE * np.maximum(before, after)) >= MOST_ALIKE:
            return length
    return 1


def _by_sequence(timeline: Timeline) -> Inferred | None:
    """The periods of the launch sequence."""
    operations = np.arange(len(timeline.row))
    sequence = signatures(timeline, [operations])[0]
    length = period(sequence)
    if not length:
        return None
    trace = timeline.trace
    first = first_period(sequence, length)
    count = (len(sequence) - first) // length
    launched = np.where(timeline.linked, trace.start_ns[timeline.launch], timeline.start)
    order = np.lexsort((timeline.start, launched))
    heads = order[first : first + count * length : length]
    ahead = order[first + length - 1 : first + count * length : length]
    replays = timeline.linked[heads[1:]] & (timeline.launch[heads[1:]] == timeline.launch[ahead[:-1]])
    # What repeats inside one launch of a graph is a layer, and what repeats so often is a loop inside one.
    if not ENOUGH <= count <= MOST_STEPS or replays.any():
        return None
    of_step = np.full(len(timeline.row), NONE, np.int32)
    of_step[order[first : first + count * length]] = np.repeat(np.arange(count), length)
    begun = launched[heads]
    after = order[first + count * length :]
    last = np.where(timeline.linked, trace.end_ns[timeline.launch], timeline.start)[
        order[: first + count * length]
    ].max()
    done = np.append(begun[1:], min(int(last), int(launched[after[0]]) if len(after) else FAR))
    steps = cut(timeline, [f"step {i}" for i in range(count)], begun, done, of_step)
    # Nothing tells that the time before the first operation belongs to it.
    steps[0] = replace(steps[0], start_ns=int(timeline.start[order[first : first + length]].min()))
    return Inferred(steps, of_step, SEQUENCE)
