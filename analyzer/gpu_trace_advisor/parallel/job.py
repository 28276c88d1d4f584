"""What is done with one recording, in whatever process: analysed, then replayed with changes, then advised about.

Between these a process keeps what it has analysed, so that a recording is read once; where it was given up, or another
process is asked, it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from gpu_trace_advisor.advice.across_ranks import DETAILED, Changed, SharedRank, changed_ranks, ranks_of
from gpu_trace_advisor.advice.build import Analysed, advise_one, analyse, other_rank, trace_info
from gpu_trace_advisor.advice.model import Advice, TraceInfo
from gpu_trace_advisor.analysis.joint_replay import RankChange
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError, BadUsage, NothingToAnalyse
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.ingest.locations import bytes_of, local, name_of, shown
from gpu_trace_advisor.ranks.model import RankSet
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Trace

Tell = Callable[[str, float | None], None]

KEPT_BYTES = 512 << 20  # of text, unpacked, that a process keeps analysed
PACKED = 12  # a compressed trace is about so many times smaller


@dataclass(frozen=True)
class Job:
    """What is to be done with a recording."""

    place: str
    request: Request
    recordings: int
    """How many there are."""
    name: str | None = None
    """What it is called where others have its file name."""
    changes: Mapping[int, tuple[RankChange, ...]] = field(default_factory=dict)
    """By the index of the device: networks to replay it with."""
    run: RankSet | None = field(default=None, repr=False)
    """What is known of all ranks."""
    advise: bool = False
    """Ask the rules."""


@dataclass(frozen=True)
class Result:
    """What came of a recording; of what is wrong with it, one line."""

    place: str
    info: TraceInfo | None = None
    ranks: tuple[SharedRank, ...] = ()
    changed: Changed = field(default_factory=dict)
    advice: Advice | None = None
    error: str = ""
    nothing: str = ""
    """Why it holds nothing for what was asked."""
    unusable: str = ""
    """Why the request cannot be met, with any recording."""
    other_rank: int | None = None
    """Its rank, where another one was asked for."""


_kept: dict[str, tuple[Job, Analysed]] = {}


def work(job: Job, tell: Tell | None = None) -> Result:
    """Do what the job says; what is wrong with the recording is part of the result."""
    try:
        found = analysed(job, tell)
        if found is None or isinstance(found, int):
            return Result(job.place, other_rank=found)
        if job.changes:
            return Result(job.place, changed=changed_ranks(found.views, job.recordings, job.place, job.changes))
        if job.advise:
            return Result(job.place, advice=advise_one(found, job.request, job.run))
        alone = job.recordings == 1 and len(found.views) <= 1
        several = not alone and job.request.rank is None
        ranks = ranks_of(found.views, job.recordings, job.place) if several else ()
        return Result(job.place, trace_info(found.trace), ranks)
    except NothingToAnalyse as error:
        return Result(job.place, nothing=str(error))
    except BadUsage as error:
        return Result(job.place, unusable=str(error))
    except AdviseError as error:
        return Result(job.place, error=_clean(str(error), job.place))
    except MemoryError:
        return Result(job.place, error=f"{shown(job.place)}: not enough memory to read it")


def analysed(job: Job, tell: Tell | None) -> Analysed | int | None:
    """The recording, analysed before or now; its rank (None not known) where another one was asked for."""
    before = _kept.get(job.place)
    if before is not None and before[0].request == job.request and before[0].name == job.name:
        return before[1]
    with local(job.place) as path:
        trace = _called(read(path, tell, job.request.limit), job.name)
        if other_rank(trace, job.request):
            return trace.rank
        if tell:
            tell("analysing", None)
        found = analyse(trace, job.request)
    room = not _kept or sum(map(text_bytes, (*_kept, job.place))) <= KEPT_BYTES
    if room and job.recordings <= DETAILED:
        _kept[job.place] = job, found
    return found


def forget() -> None:
    """Keep nothing any longer."""
    _kept.clear()


def text_bytes(place: str) -> int:
    """About how much text a recording holds, unpacked; 0 where it would have to be fetched to know."""
    return (bytes_of(place) or 0) * (PACKED if place.endswith(".gz") else 1)


def _called(trace: Trace, name: str | None) -> Trace:
    return trace if name is None else replace(trace, name=name)


def _clean(message: str, place: str) -> str:
    """A message about a copy names the place instead."""
    head, colon, tail = message.partition(": ")
    return f"{shown(place)}: {tail}" if colon and head.endswith(name_of(place)) else message
