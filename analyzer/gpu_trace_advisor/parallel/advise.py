"""Many recordings: each is read where a worker is, reduced to a summary, and the summaries are merged as a tree.

Workers are this process, other processes of this machine, or those of a Dask cluster; the map and the reduction are the
same. What a worker returns of a rank is bounded, so memory does not grow with the size of the recordings, and hardly with
their number. A recording that cannot be read, a worker that dies and an interruption cost what they had, not the rest.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpu_trace_advisor.advice.build import combined, examine, trace_info
from gpu_trace_advisor.advice.model import Advice, TraceInfo
from gpu_trace_advisor.analysis.device_window import DeviceWindow, Request, views
from gpu_trace_advisor.analysis.rank_summary import MOST, budget, summarise
from gpu_trace_advisor.drawing.model import Drawing
from gpu_trace_advisor.errors import AdviseError, BadUsage, NothingToAnalyse, UnreadableTrace
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.ingest.locations import bytes_of, find_places, labels, local, name_of, once, shown
from gpu_trace_advisor.ranks.model import PHASES, RankSummary, Run
from gpu_trace_advisor.runtime import heap
from gpu_trace_advisor.runtime import start_up as lean
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Trace

Tell = Callable[[str, float | None], None]

DETAILED = 16  # recordings up to which every one is shown in full
CHOSEN = 4  # of more than that only so many: who is late, who is slow, and a usual one
SMALL_BYTES = 64 << 20  # of all recordings together, unpacked: starting processes takes longer than reading them
PACKED = 12  # a compressed trace is about so many times smaller
COMMUNICATING = 0.01  # of the wall: with less of it no rule asks what other ranks did
FAN_IN = 16
ATTEMPTS = 3  # a recording whose worker dies is tried so many times


@dataclass(frozen=True)
class Part:
    """What is known of some recordings."""

    infos: tuple[tuple[str, TraceInfo], ...] = ()
    """With the place of each, since several may have one name; likewise `advices`."""
    summaries: tuple[RankSummary, ...] = ()
    advices: tuple[tuple[str, Advice], ...] = ()
    places: tuple[str, ...] = ()
    """Where each summary comes from."""
    errors: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    """Why recordings hold nothing for what was asked."""


@dataclass(frozen=True)
class Job:
    """What a worker does with a recording."""

    request: Request
    most: int = MOST
    """Collectives to keep."""
    summary: bool = True
    detail: bool = False
    """The whole advice too."""
    first: bool = False
    """Other recordings come beside it, and with them `run`: what rules say of communication waits for that."""
    run: Run | None = field(default=None, repr=False)
    """What is known of all ranks."""
    single: bool = False
    """There is no other recording: a device alone in it needs no summary."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What recordings are called that have the file name of others."""

    def of(self, place: str) -> Job:
        """The same for one recording: a worker needs no names but its own."""
        return replace(self, names={place: self.names[place]} if place in self.names else {}) if self.names else self


def look(place: str, job: Job, tell: Tell | None = None) -> Part:
    """One recording; what is wrong with it is part of the result."""
    try:
        with local(place) as path:
            trace = _called(read(path, tell), job.names.get(place))
            if tell:
                tell("analysing", None)
            found, notes = views(trace, job.request)
            summaries: tuple[RankSummary, ...] = ()
            if job.summary and not (job.single and len(found) == 1):
                summaries = tuple(summarise(view, job.most, place) for view in found)
            advices: tuple[tuple[str, Advice], ...] = ()
            if job.detail and not (job.first and communicates(summaries)):
                advices = ((place, examine([trace], job.request, run=job.run, viewed=[(found, notes)])[0]),)
            return Part(((place, trace_info(trace)),), summaries, advices, (place,) * len(summaries))
    except NothingToAnalyse as error:
        return Part(empty=(str(error),))
    except AdviseError as error:
        return Part(errors=(_clean(str(error), place),))
    except MemoryError:
        return Part(errors=(f"{shown(place)}: not enough memory to read it",))


def _names(places: Sequence[str]) -> dict[str, str]:
    """What those recordings are called that have the file name of others."""
    return {place: label for place, label in labels(places).items() if label != name_of(place)}


def _called(trace: Trace, name: str | None) -> Trace:
    return trace if name is None else replace(trace, name=name)


def _clean(message: str, place: str) -> str:
    """A message about a copy names the place instead."""
    head, colon, tail = message.partition(": ")
    return f"{shown(place)}: {tail}" if colon and head.endswith(name_of(place)) else message


def merge(parts: Sequence[Part]) -> Part:
    """Several parts as one."""
    columns = ("infos", "summaries", "advices", "places", "errors", "empty")
    return Part(*(tuple(item for part in parts for item in getattr(part, name)) for name in columns))


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
    tell = tell or (lambda what, share: None)
    places = once(place for one in given for place in find_places(one))
    alone = jobs in (None, 1) and small(places)
    if scheduler is None and (alone or (drawn and len(places) <= DETAILED)):
        traces, errors, interrupted = read_all(places, tell)
        tell("analysing", None)
        advice, windows = examine(traces, request, errors)
        return RunResult(advice, _drawings(advice, windows, traces) if drawn else [], interrupted)
    advice, chosen, interrupted = advise_places(places, request, jobs=jobs, scheduler=scheduler, tell=tell)
    if not drawn or interrupted:
        return RunResult(advice, [], interrupted)
    traces, errors, interrupted = read_all(chosen, tell)
    shown_ones, windows = examine(traces, request, errors, advice.ranks)
    all_ranks = combined(advice.traces, [shown_ones], advice.ranks, advice.errors)
    return RunResult(all_ranks, _drawings(all_ranks, windows, traces), interrupted)


def _drawings(advice: Advice, windows: Sequence[DeviceWindow], traces: Sequence[Trace]) -> list[Drawing]:
    from gpu_trace_advisor.drawing.build import draw

    return draw(advice, windows, traces)


def read_all(places: Sequence[str], tell: Tell) -> tuple[list[Trace], list[str], bool]:
    """All recordings that can be read, what is wrong with the others, and whether it was interrupted.

    Raises:
        UnreadableTrace: none can be read.
    """
    traces: list[Trace] = []
    errors: list[str] = []
    seen: set[str] = set()
    names = _names(places)
    try:
        for place in places:
            try:
                with local(place) as path:
                    traces.append(_called(read(path, tell), names.get(place)))
            except UnreadableTrace as error:
                message = _clean(str(error), place)
                if len(places) == 1:
                    raise UnreadableTrace(message) from None
                errors.append(message)
            seen.add(place)
    except KeyboardInterrupt:
        if not traces:
            raise
        return traces, [*errors, _missing(places, seen)], True
    if not traces:
        raise UnreadableTrace(f"none of the {len(places)} files can be read; the first: {errors[0]}")
    return traces, errors, False


def advise_places(
    places: Sequence[str],
    request: Request,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    tell: Tell | None = None,
) -> tuple[Advice, list[str], bool]:
    """The Advice for these recordings, those that it shows in full, and whether it was interrupted.

    Raises:
        UnreadableTrace: none can be read.
        NothingToAnalyse: nothing in them for what was asked.
        BadUsage: the request cannot be met.
    """
    tell = tell or (lambda what, share: None)
    detail = len(places) <= DETAILED
    names = _names(places)
    single = len(places) == 1
    first = not single and request.rank is None
    job = Job(request, budget(len(places)), detail=detail, first=first, single=single, names=names)
    workers = _workers(places, jobs, scheduler)
    part, interrupted = spread(places, job, workers, scheduler, tell)
    if not part.infos:
        _nothing(part, places, interrupted)
    summaries = _in_order(part, places)
    run = None
    if len(summaries) > 1 and request.rank is None:
        from gpu_trace_advisor.ranks.compare_ranks import find_run

        tell("comparing ranks", None)
        run = find_run(summaries)
    advices = dict(part.advices)
    chosen = list(places) if detail else _choose(run, part, summaries)
    have = {place for place, _ in part.infos}
    left = [place for place in chosen if place in have and place not in advices]
    if interrupted:  # one of them, so that there is something to show
        left, workers = [] if advices else left[:1], 1
    if left:
        known, stopped = _detailed(left, request, run, names, workers, scheduler, tell)
        advices |= known
        interrupted = interrupted or stopped
    errors = sorted([*part.errors, *part.empty], key=lambda message: _about(message, places, names))
    in_order = [advices[place] for place in places if place in advices]
    return combined([info for _, info in _by_place(part.infos, places)], in_order, run, errors), chosen, interrupted


def _detailed(
    chosen: Sequence[str],
    request: Request,
    run: Run | None,
    names: Mapping[str, str],
    workers: int,
    scheduler: str | None,
    tell: Tell,
) -> tuple[dict[str, Advice], bool]:
    job = Job(request, summary=False, detail=True, run=run, names=names)
    part, interrupted = spread(chosen, job, min(workers, len(chosen)), scheduler, tell)
    return dict(part.advices), interrupted


def _in_order(part: Part, places: Sequence[str]) -> list[RankSummary]:
    """The summaries in the order in which the recordings were given, whoever was done first."""
    return [summary for _, summary in _by_place(zip(part.places, part.summaries, strict=True), places)]


def _by_place(pairs: Iterable[tuple[str, Any]], places: Sequence[str]) -> list[tuple[str, Any]]:
    """What belongs to recordings in the order in which these were given."""
    order = {place: i for i, place in enumerate(places)}
    return sorted(pairs, key=lambda pair: order[pair[0]])


def communicates(summaries: Sequence[RankSummary]) -> bool:
    """One of the ranks spends time in communication that nothing hides."""
    at = PHASES.index("communication")
    return any(s.phases_ns[at] > COMMUNICATING * (s.end_ns - s.start_ns) for s in summaries)


def _about(message: str, places: Sequence[str], names: Mapping[str, str]) -> int:
    """Where in the order the recording was given that a message is about."""
    told = [(f"{shown(place)}: ", f"{names.get(place, name_of(place))}: ") for place in places]
    named = (i for i, starts in enumerate(told) if message.startswith(starts))
    return next(named, len(places))


def _choose(run: Run | None, part: Part, summaries: Sequence[RankSummary]) -> list[str]:
    """The recordings that are shown in full; the summaries are those of the part, in the order of the recordings."""
    place = {id(summary): where for summary, where in zip(part.summaries, part.places, strict=True)}
    if run is None:
        return list(dict.fromkeys(place[id(summary)] for summary in summaries))[:CHOSEN]
    rows = run.rows
    late = [rank for straggler in run.stragglers[:2] for rank in straggler.ranks[:1]]
    slow = max(rows, key=lambda row: row.wall_ns).rank
    usual = sorted(rows, key=lambda row: row.late_ns)[len(rows) // 2].rank
    from gpu_trace_advisor.ranks.compare_ranks import number

    numbered = number(summaries)
    of_rank = {rank: place[id(s)] for rank, s in zip(numbered.ranks, numbered.summaries, strict=True)}
    return list(dict.fromkeys(of_rank[rank] for rank in (*late, slow, usual)))[:CHOSEN]


def _nothing(part: Part, places: Sequence[str], interrupted: bool) -> None:
    if interrupted:
        raise KeyboardInterrupt
    if part.errors:
        raise UnreadableTrace(
            part.errors[0]
            if len(places) == 1
            else f"none of the {len(places)} files can be read; the first: {part.errors[0]}"
        )
    raise NothingToAnalyse(part.empty[0] if part.empty else "no recording given")


def small(places: Sequence[str]) -> bool:
    """Few and small enough that this process alone is done first."""
    size = text_bytes(places)
    return len(places) <= DETAILED and (size is None or size <= SMALL_BYTES)


def text_bytes(places: Sequence[str]) -> int | None:
    """About how much text all recordings hold, unpacked; None where one has to be fetched to know."""
    total = 0
    for place in places:
        size = bytes_of(place)
        if size is None:
            return None
        total += size * (PACKED if place.endswith(".gz") else 1)
    return total


def _workers(places: Sequence[str], jobs: int | None, scheduler: str | None) -> int:
    """Processes to use; 1 is this one."""
    if scheduler is not None:
        return 1
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if any(place.startswith("memory://") or Path(place).is_fifo() for place in places):
        return 1  # lies in this process, or is a pipe of it
    return max(min(jobs, len(places)), 1)


def spread(places: Sequence[str], job: Job, workers: int, scheduler: str | None, tell: Tell) -> tuple[Part, bool]:
    """All recordings, and whether it was interrupted."""
    if scheduler is not None:
        return _on_cluster(places, job, scheduler, tell)
    results = _here(places, job, tell) if workers == 1 else _in_processes(places, job, workers)
    return _gather(results, places, tell)


class _Tree:
    """Merges parts as they come, so that never more than a few of each size are held apart."""

    def __init__(self) -> None:
        self.levels: list[list[Part]] = []

    def add(self, part: Part) -> None:
        level = 0
        while True:
            if level == len(self.levels):
                self.levels.append([])
            self.levels[level].append(part)
            if len(self.levels[level]) < FAN_IN:
                return
            part, self.levels[level] = merge(self.levels[level]), []
            level += 1

    def whole(self) -> Part:
        return merge([part for level in reversed(self.levels) for part in level])


def _gather(results: Iterator[tuple[str, Part]], places: Sequence[str], tell: Tell) -> tuple[Part, bool]:
    tree, seen = _Tree(), set[str]()
    interrupted = False
    if len(places) > 1:
        tell(f"0 of {len(places):,} recordings", 0.0)
    try:
        for place, part in results:
            tree.add(part)
            seen.add(place)
            if len(places) > 1:
                tell(f"{len(seen):,} of {len(places):,} recordings", len(seen) / len(places))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()
    if interrupted:
        tree.add(Part(errors=(_missing(places, seen),)))
    return tree.whole(), interrupted


def _missing(places: Sequence[str], seen: set[str]) -> str:
    left = [shown(place) for place in places if place not in seen]
    told = ", ".join(left[:8]) + (" …" if len(left) > 8 else "")
    return f"interrupted: {len(left)} of {len(places)} recordings are missing: {told}"


def _here(places: Sequence[str], job: Job, tell: Tell) -> Iterator[tuple[str, Part]]:
    for place in places:
        yield place, look(place, job, tell)


def _in_processes(places: Sequence[str], job: Job, workers: int) -> Iterator[tuple[str, Part]]:
    """The largest first; when a worker dies, what it and its pool had not finished is tried again."""
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    left = sorted(places, key=lambda place: -(bytes_of(place) or 0))
    tried = dict.fromkeys(left, 0)
    while left:
        # After a death one after the other, so that only the recording that kills its worker is given up.
        alone = any(tried.values())
        pool = ProcessPoolExecutor(1 if alone else workers, mp_context=get_context("spawn"), initializer=_begin)
        with _held_interrupts():  # a worker takes over that they are held, until it ignores them
            futures: dict[Future[Part], str] = {pool.submit(look, place, job.of(place)): place for place in left}
        done: set[str] = set()
        killer: str | None = None
        try:
            pending = set(futures)
            while pending:
                ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in ready:
                    place = futures[future]
                    try:
                        part = future.result()
                    except BrokenProcessPool:
                        if alone:  # a single worker had not begun those after the first that it did not finish
                            killer = killer or next(other for other in left if other not in done)
                            if place != killer:
                                continue
                        tried[place] += 1
                        if tried[place] < ATTEMPTS:
                            continue
                        part = Part(errors=(f"{shown(place)}: its worker died {ATTEMPTS} times; out of memory?",))
                    done.add(place)
                    yield place, part
        finally:
            running = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            if len(done) < len(futures):
                for process in running:
                    process.terminate()
        left = [place for place in left if place not in done]


def _begin() -> None:
    """What a worker does first."""
    heap.own_process()
    lean.rarely_collect()
    ignore_interrupts()


@contextmanager
def _held_interrupts() -> Iterator[None]:
    """Ctrl-C takes effect after the block, where the system can hold it back."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; only the first one is to react."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_cluster(places: Sequence[str], job: Job, scheduler: str, tell: Tell) -> tuple[Part, bool]:
    """The same on the workers of a Dask cluster: what is read there is merged there."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise BadUsage("--scheduler needs Dask: pip install 'gpu-trace-advisor[cluster]'") from None
    try:
        client: Any = Client(scheduler, timeout=TIMEOUT, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise BadUsage(f"--scheduler {shown(scheduler)}: cannot be reached ({type(error).__name__})") from None
    errors: list[str] = []
    interrupted = False
    with client:
        futures = client.map(look, list(places), [job.of(place) for place in places], pure=False, retries=ATTEMPTS - 1)
        where = dict(zip((future.key for future in futures), places, strict=True))
        finished: dict[str, Any] = {}
        try:
            for future in as_completed(futures, loop=client.loop):  # type: ignore[no-untyped-call]
                place = where[future.key]
                if future.status == "finished":
                    finished[place] = future
                else:
                    errors.append(f"{shown(place)}: its worker was lost or failed ({_why(future)})")
                tell(f"{len(finished):,} of {len(places):,} recordings", len(finished) / len(places))
        except KeyboardInterrupt:
            interrupted = True
            errors.append(_missing(places, set(finished)))
        level = [finished[place] for place in places if place in finished]
        futures = []
        while len(level) > 1:
            level = [client.submit(merge, level[i : i + FAN_IN], pure=False) for i in range(0, len(level), FAN_IN)]
        part = level[0].result() if level else Part()
    return merge([part, Part(errors=tuple(errors))]), interrupted


TIMEOUT = 30  # seconds to reach a scheduler


def _why(future: Any) -> str:
    """What went wrong on a worker: the kind of it only, since its words may hold anything."""
    try:
        return type(future.exception()).__name__
    except Exception as error:  # cancelled, or the cluster is gone
        return type(error).__name__
