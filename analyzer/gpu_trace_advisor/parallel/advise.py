"""From the places of recordings to an Advice, one way for one recording or ten thousand.

Locate, read and analyse each, compare the ranks, price what they cost each other, ask the rules about each. Where a
recording is read (this process, another one, a worker of a cluster) and in which order decides nothing but the time it
takes. What crosses between recordings is bounded, so memory hardly grows with their size. One that cannot be read, a worker
that dies and an interruption cost what they had, not the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpu_trace_advisor.advice.across_ranks import DETAILED, Changed, SharedRank, compared
from gpu_trace_advisor.advice.build import Analysed, combined, no_such_rank
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.joint_replay import Network, RankChange
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.drawing.model import Drawing
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse, UnreadableTrace
from gpu_trace_advisor.ingest import natural
from gpu_trace_advisor.ingest.locations import find_places, is_remote, labels, name_of, once, shown
from gpu_trace_advisor.parallel.job import Job, Result, Tell, analysed, text_bytes
from gpu_trace_advisor.parallel.pool import Here, Processes, Workers
from gpu_trace_advisor.ranks.model import RankSet
from gpu_trace_advisor.trace.model import Note, Trace

CHOSEN = 4  # of more than DETAILED only so many are shown in full: who is late, who is slow, and a usual one
SMALL_BYTES = 64 << 20  # of all recordings together, unpacked: starting processes takes longer than reading them


class RunResult(NamedTuple):
    """What was found in all recordings."""

    advice: Advice
    drawings: list[Drawing]
    """Of the advice's devices, where they were asked for."""
    interrupted: bool
    """What is missing for it stands in the advice's errors."""


def look_at(
    given: Sequence[str], request: Request, *, jobs: int | None = None, scheduler: str | None = None, drawn: bool = False,
    tell: Tell | None = None,
) -> RunResult:  # fmt: skip
    """The Advice for all recordings that the arguments stand for; with their drawings when they are to be `drawn`.

    One that cannot be read is an error beside the others; alone it is the end.

    Raises:
        UnreadableTrace: none can be read.
        NothingToAnalyse: nothing in them for what was asked.
        BadUsage: the request cannot be met.
    """
    places = located(given)
    tell = tell or (lambda what, share: None)
    workers = _workers(places, jobs, scheduler, tell)
    try:
        pipeline = _Pipeline(places, request, workers, tell)
        advice, shown_places = pipeline.advice()
        drawings = pipeline.drawings(advice, shown_places) if drawn and not pipeline.interrupted else []
    finally:
        workers.close()
    if recorded := _flight_recorded(given):
        advice = replace(advice, health=(*recorded, *advice.health))
    return RunResult(advice, drawings, pipeline.interrupted)


def _flight_recorded(given: Sequence[str]) -> list[Note]:
    """What flight recorders left in the folders that were given."""
    from gpu_trace_advisor.ranks.flight_recorder import dumps_in, notes_of

    folders = sorted({os.path.realpath(one) for one in given if not is_remote(one) and Path(one).is_dir()})
    return [note for folder in folders for note in notes_of(dumps_in(Path(folder)))]


def located(given: Sequence[str]) -> list[str]:
    """All recordings that the arguments stand for, in an order that theirs does not change."""
    places = once(place for one in given for place in find_places(one))
    return sorted(places, key=lambda place: (is_remote(place), natural(Path(place)), place))


def _workers(places: Sequence[str], jobs: int | None, scheduler: str | None, tell: Tell) -> Workers:
    if scheduler is not None:
        from gpu_trace_advisor.parallel.dask import Cluster

        return Cluster(scheduler)
    if jobs is None and _small(places):
        jobs = 1
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if any(place.startswith("memory://") or Path(place).is_fifo() for place in places):
        jobs = 1  # lies in this process, or is a pipe of it
    count = max(min(jobs, len(places)), 1)
    return Here(tell) if count == 1 else Processes(count)


def _small(places: Sequence[str]) -> bool:
    """Few and small enough that this process alone is done first."""
    return len(places) <= DETAILED and sum(map(text_bytes, places)) <= SMALL_BYTES


@dataclass
class _Pipeline:
    """All recordings on their way to an Advice."""

    places: Sequence[str]
    request: Request
    workers: Workers
    tell: Tell
    names: Mapping[str, str] = field(init=False)
    """What recordings are called that have the file name of others."""
    errors: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.names = {place: label for place, label in labels(self.places).items() if label != name_of(place)}

    def advice(self) -> tuple[Advice, list[str]]:
        """The Advice, and the recordings whose devices it shows, in their order."""
        found = self._run(self.places, "")
        known = [found[place] for place in self.places if place in found and found[place].info]
        if not known:
            self._nothing(found)
        run = self._compared([(result.place, rank) for result in known for rank in result.ranks])
        chosen = [result.place for result in known]
        if len(self.places) > DETAILED:
            chosen = self._chosen(run, known)
        if self.interrupted:  # one of them, so that there is something to show
            chosen = chosen[:1]
        told = self._run(chosen, "asking the rules about ", run=run, advise=True)
        advices = [advice for place in chosen if place in told and (advice := told[place].advice)]
        if not advices:
            self._nothing(told)
        errors = [self.errors[place] for place in self.places if place in self.errors]
        errors += [message for place, message in self.errors.items() if place not in self.places]
        infos = [result.info for result in known if result.info]
        return combined(infos, advices, run, errors), [p for p in chosen if p in told and told[p].advice]

    def _job(self, place: str, run: RankSet | None = None, advise: bool = False) -> Job:
        return Job(place, self.request, len(self.places), self.names.get(place), run=run, advise=advise)

    def _run(
        self, places: Sequence[str], what: str, run: RankSet | None = None, advise: bool = False
    ) -> dict[str, Result]:
        return self._do([self._job(place, run, advise) for place in places], what)

    def _do(self, jobs: Sequence[Job], what: str) -> dict[str, Result]:
        """What came of these jobs, by place; what went wrong is kept."""
        found: dict[str, Result] = {}
        many = len(self.places) > 1
        if many:
            self.tell(f"{what}0 of {len(jobs):,} recordings", 0.0)
        try:
            for result in self.workers.run(jobs):
                found[result.place] = result
                if message := result.error or result.nothing:
                    self.errors[result.place] = message
                if result.unusable:
                    raise BadUsage(result.unusable)
                if many:
                    self.tell(f"{what}{len(found):,} of {len(jobs):,} recordings", len(found) / len(jobs))
        except KeyboardInterrupt:
            if not any(result.info or result.advice for result in found.values()):
                raise
            self.interrupted = True
            self.errors[""] = _missing([job.place for job in jobs], found)
        return found

    def _compared(self, ranks: Sequence[tuple[str, SharedRank]]) -> RankSet | None:
        if len(ranks) < 2:
            return None
        self.tell("comparing ranks", None)
        first: dict[str, int] = {}
        for i, (place, _) in enumerate(ranks):
            first.setdefault(place, i)

        def fetch(wanted: Mapping[int, tuple[RankChange, ...]]) -> Changed:
            changes: dict[str, dict[int, tuple[RankChange, ...]]] = {}
            for index, variants in wanted.items():
                place = ranks[index][0]
                changes.setdefault(place, {})[index - first[place]] = variants
            jobs = [replace(self._job(place), changes=asked) for place, asked in changes.items()]
            changed: dict[tuple[int, RankChange], Network | str] = {}
            for place, result in self._do(jobs, "replaying ").items():
                for (index, variant), one in result.changed.items():
                    changed[first[place] + index, variant] = one
            return changed

        try:
            return compared([rank for _, rank in ranks], len(self.places), fetch if not self.interrupted else _none)
        except KeyboardInterrupt:
            self.interrupted = True
            self.errors[""] = "interrupted while the ranks were compared"
            return None

    def _chosen(self, run: RankSet | None, known: Sequence[Result]) -> list[str]:
        """The recordings that are shown in full."""
        if run is None:
            return [result.place for result in known][:CHOSEN]
        rows = run.rows
        late = [rank for straggler in run.stragglers[:2] for rank in straggler.ranks[:1]]
        slow = max(rows, key=lambda row: row.wall_ns).rank
        usual = sorted(rows, key=lambda row: row.late_ns)[len(rows) // 2].rank
        files = {row.rank: row.file for row in rows}
        of_file = {rank.summary.file: result.place for result in known for rank in result.ranks}
        chosen = dict.fromkeys(of_file[files[rank]] for rank in (*late, slow, usual))
        return sorted(list(chosen)[:CHOSEN], key=self.places.index)

    def drawings(self, advice: Advice, places: Sequence[str]) -> list[Drawing]:
        """Of these recordings' devices; they are read again where another process has them."""
        from gpu_trace_advisor.drawing.build import draw

        windows: list[DeviceWindow] = []
        traces: list[Trace] = []
        for place in places:
            found = analysed(self._job(place), self.tell)
            if isinstance(found, Analysed):
                windows += found.views
                traces.append(found.trace)
        return draw(advice, windows, traces)

    def _nothing(self, found: Mapping[str, Result]) -> NoReturn:
        """There is nothing to show: why."""
        if self.interrupted:
            raise KeyboardInterrupt
        results = [found[place] for place in self.places if place in found]
        if wrong := [result.error for result in results if result.error]:
            count = len(self.places)
            raise UnreadableTrace(
                wrong[0] if count == 1 else f"none of the {count} files can be read; the first: {wrong[0]}"
            )
        if empty := [result.nothing for result in results if result.nothing]:
            raise NothingToAnalyse(empty[0])
        if self.request.rank is not None:
            raise no_such_rank((result.other_rank for result in results), self.request)
        raise NothingToAnalyse("no recording given")


def _none(wanted: Mapping[int, tuple[RankChange, ...]]) -> Changed:
    return {}


def _missing(places: Sequence[str], seen: Iterable[str]) -> str:
    have = set(seen)
    left = [shown(place) for place in places if place not in have]
    text = ", ".join(left[:8]) + (" …" if len(left) > 8 else "")
    return f"interrupted: {len(left)} of {len(places)} recordings are missing: {text}"
