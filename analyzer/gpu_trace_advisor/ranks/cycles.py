"""Several cycles of a profiler's schedule in one folder: a file for each rank and cycle, of which one cycle is compared."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpu_trace_advisor.ranks.model import RankSummary
from gpu_trace_advisor.trace.model import Note

FILES_NAMED = 8
TIME_IN_NAME = re.compile(r"[._-]\d{10,}(?=[._-])")  # seconds since the epoch, or finer

Worker = int | str
"""A rank; where it is not known, the file's name without its time."""
Span = tuple[int, int]


@dataclass
class _File:
    """What one recording covers."""

    name: str
    workers: set[Worker] = field(default_factory=set)
    steps: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def add(self, summary: RankSummary) -> None:
        self.workers.add(TIME_IN_NAME.sub("", summary.file) if summary.rank is None else summary.rank)
        self.steps += [step for step, _, _ in summary.steps]
        clock = summary.clock_ns or 0
        self.spans.append((summary.start_ns + clock, summary.end_ns + clock))

    @property
    def time(self) -> Span:
        return min(start for start, _ in self.spans), max(end for _, end in self.spans)


def one_cycle(summaries: Sequence[RankSummary]) -> tuple[list[RankSummary], list[Note]]:
    """The summaries of the cycle that most ranks have, the last of these; a note names the others' files.

    Cycles are told by the numbers of their steps; without numbers by time, where no rank has two recordings at once.
    Where ranks do not come more than once, or cycles cannot be told, all summaries are returned.
    """
    files: dict[str, _File] = {}
    for summary in summaries:
        files.setdefault(summary.local, _File(summary.file)).add(summary)
    cycles = _cycles(list(files.values()))
    if len(cycles) < 2:
        return list(summaries), []
    workers = [set[Worker]().union(*(file.workers for file in cycle)) for cycle in cycles]
    chosen = max(range(len(cycles)), key=lambda i: (len(workers[i]), i))
    kept = {id(file) for file in cycles[chosen]}
    steps = sorted(step for file in cycles[chosen] for step in file.steps)
    which = f"steps {steps[0]} to {steps[-1]}" if steps and _numbered(files.values()) else f"cycle {chosen + 1}"
    why = "the last" if chosen == len(cycles) - 1 else "the last of those that most ranks have"
    others = [file.name for i, cycle in enumerate(cycles) if i != chosen for file in cycle]
    named = ", ".join(others[:FILES_NAMED]) + (" …" if len(others) > FILES_NAMED else "")
    text = f"{len(cycles)} cycles of recording: the ranks are compared in {which}, {why}; not in {named}"
    return [s for s in summaries if id(files[s.local]) in kept], [Note("cycles", text, len(cycles))]


def _cycles(files: Sequence[_File]) -> list[list[_File]]:
    """The files of each cycle, in order; one list where these are no cycles."""
    of_worker: dict[Worker, list[_File]] = defaultdict(list)
    for file in files:
        for worker in file.workers:
            of_worker[worker].append(file)
    if all(len(mine) == 1 for mine in of_worker.values()):
        return [list(files)]
    if _numbered(files):
        return _overlapping([((min(file.steps), max(file.steps)), file) for file in files])
    for mine in of_worker.values():
        mine.sort(key=lambda file: file.time)
        if any(before.time[1] > after.time[0] for before, after in pairwise(mine)):
            return [list(files)]
    counts = {len(mine) for mine in of_worker.values()}
    if len(counts) == 1 and all(len(file.workers) == 1 for file in files):  # clocks may be far apart
        return [list(cycle) for cycle in zip(*of_worker.values(), strict=True)]
    cycles = _overlapping([(file.time, file) for file in files])
    return cycles if not any(_doubled(cycle) for cycle in cycles) else [list(files)]


def _numbered(files: Collection[_File]) -> bool:
    """Whether steps have numbers of their own: without, they are counted from 0 in every recording."""
    return all(file.steps for file in files) and any(min(file.steps) > 0 for file in files)


def _doubled(files: Sequence[_File]) -> bool:
    return len(set[Worker]().union(*(file.workers for file in files))) < sum(len(file.workers) for file in files)


def _overlapping(spans: Sequence[tuple[Span, _File]]) -> list[list[_File]]:
    """Sets of files whose spans overlap, in the order of the spans."""
    found: list[list[_File]] = []
    end: int | None = None
    for (low, high), file in sorted(spans, key=lambda pair: (pair[0], pair[1].name)):
        if end is None or low > end:
            found.append([])
        found[-1].append(file)
        end = high if end is None else max(end, high)
    return found
