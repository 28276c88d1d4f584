"""From the summaries of several ranks to a Run: matched, aligned, compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.ranks.clocks import Alignment, align
from gpu_trace_advisor.ranks.collective_kinds import PHASE_OF, POINT_TO_POINT, SYMMETRIC, bus_factor
from gpu_trace_advisor.ranks.cycles import one_cycle
from gpu_trace_advisor.ranks.matching import Matched, match
from gpu_trace_advisor.ranks.model import (
    PHASES,
    GroupRow,
    Meeting,
    OneOff,
    Overlap,
    Pipeline,
    RankRow,
    RankSet,
    RankSummary,
    Straggler,
)
from gpu_trace_advisor.ranks.stragglers import WORTH, Arrivals, Late, LateRanks, late_ones, late_ranks
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Note
from gpu_trace_advisor.units import duration

MEETINGS_KEPT = 256
ARRIVALS_KEPT = 64  # ranks up to which every arrival is kept
RANKS_NAMED = 64
LATE_NAMED = 8
ONE_OFFS = 3  # shown
UNUSUAL = 10  # times as late as the middle of all collectives waits
SELDOM = 0.25  # of the steps: what happens in more of them is no one-off
EXPLAINS = 0.6  # share of the lateness from which on a phase is its cause
BUSY_PHASES = ("compute", "communication")
SKEW_SHOWN = 0.01  # of the wall
SLOW_STAGE = 0.05  # of the wall that a stage of a pipeline works longer than the others
SLOW_LINK = 1.5  # times as long as the same collective takes in sibling groups
FEWEST_OF_A_GROUP = 3  # collectives that a link is judged by
DRIFT_OF_ANOTHER = 2e-3  # no clock runs that much faster than another
APART_NS = 100_000  # what nobody leaves before all have come ends for all within this
APART = 0.5  # … or this part of what it takes


@dataclass(frozen=True)
class Numbered:
    """The summaries that belong together, each with its rank, and what is wrong with the others."""

    summaries: tuple[RankSummary, ...]
    ranks: tuple[int, ...]
    world: int | None
    missing: tuple[int, ...]
    """The first of those without a recording."""
    absent: int
    """How many these are."""
    notes: tuple[Note, ...]


def number(summaries: Sequence[RankSummary]) -> Numbered:
    """Give every summary its rank: as recorded, else by the file's name, else in order. Strangers are left out.

    Of several cycles one is taken. Those of another world size than most, or with a rank that another one has already, are
    named in the notes.
    """
    summaries, notes = one_cycle(summaries)
    sizes = Counter(s.world for s in summaries if s.world is not None)
    world = max(sizes, key=lambda size: (sizes[size], size)) if sizes else None
    strangers = [s for s in summaries if s.world not in (None, world)]
    if strangers:
        text = ", ".join(f"{s.file} ({s.world} ranks)" for s in strangers[:8])
        notes.append(
            Note(
                "mixed-ranks",
                f"of another job than the {world} ranks of the others, and not compared with them: {text}",
                len(strangers),
            )
        )
    taken: dict[int, RankSummary] = {}
    nameless, doubled, beside = [], [], []
    alike: dict[tuple[str, int | None], list[RankSummary]] = defaultdict(list)
    for summary in summaries:
        alike[summary.local, summary.rank].append(summary)
    for summary in summaries:
        if summary.world not in (None, world):
            continue
        same = alike[summary.local, summary.rank] if summary.rank is not None else []
        meeting = [s for s in same if len(s.collectives)]
        if summary.rank is not None and len(same) > 1 and len(meeting) == 1 and summary is not meeting[0]:
            beside.append(summary)
        elif summary.rank is None or (len(same) > 1 and len(meeting) != 1):
            nameless.append(summary)
        elif summary.rank in taken:
            doubled.append(summary)
        else:
            taken[summary.rank] = summary
    if beside:
        text = ", ".join(f"device {s.device} of rank {s.rank}" for s in beside[:8]) + (" …" if len(beside) > 8 else "")
        notes.append(
            Note(
                "devices-beside",
                f"used beside the device that takes part in the rank's collectives, and not compared: {text}",
                len(beside),
            )
        )
    free = [n for n in range(len(summaries)) if n not in taken]
    taken.update(zip(free, nameless, strict=False))
    if doubled:
        text = ", ".join(f"{s.file} (rank {s.rank})" for s in doubled[:8])
        notes.append(
            Note("duplicate-ranks", f"a rank that another recording is already: {text}; not compared", len(doubled))
        )
    if nameless and len({s.local for s in nameless}) > 1:
        notes.append(
            Note(
                "rank-by-order",
                "neither these recordings nor their names say which rank they are: numbered in order",
                len(nameless),
            )
        )
    ranks = tuple(sorted(taken))
    # The number that a recording gives for them may be any: they are counted, not listed.
    missing = tuple(islice((r for r in range(world or 0) if r not in taken), RANKS_NAMED + 1))
    absent = (world or 0) - sum(0 <= r < (world or 0) for r in taken)
    if missing and len(ranks) > 1:
        text = ", ".join(map(str, missing[:RANKS_NAMED])) + (" …" if len(missing) > RANKS_NAMED else "")
        notes.append(
            Note(
                "missing-ranks",
                f"{absent} of the job's {world} ranks have no recording: {text}; who waits for them cannot be told",
                absent,
            )
        )
    return Numbered(tuple(taken[r] for r in ranks), ranks, world, missing, absent, tuple(notes))


@dataclass(frozen=True)
class Comparison:
    """A run, and what was compared for it."""

    run: RankSet
    summaries: tuple[RankSummary, ...]
    """Of the run's rows."""
    matched: Matched
    alignment: Alignment


def compare(summaries: Sequence[RankSummary], foreign: Sequence[RankSummary] = ()) -> Comparison | None:
    """What comes of looking at all ranks together; None where there are not two of one run. `foreign` were found to be of
    another one."""
    numbered = number(summaries)
    if len(numbered.summaries) < 2:
        return None
    matched = match(numbered.summaries)
    alignment = align_ranks(numbered.summaries, matched)
    strange = np.flatnonzero(np.abs(alignment.drift) > DRIFT_OF_ANOTHER)
    if len(strange) and 2 * len(strange) < len(numbered.summaries):
        others = [numbered.summaries[row] for row in strange.tolist()]
        left = set(map(id, others))
        return compare([s for s in summaries if id(s) not in left], (*foreign, *others))
    if foreign:
        files = ", ".join(s.file for s in foreign[:8]) + (" …" if len(foreign) > 8 else "")
        text = f"of another run than the others, whose collectives come at other times, and not compared with them: {files}"
        numbered = replace(numbered, notes=(*numbered.notes, Note("mixed-ranks", text, len(foreign))))
    run = _Comparison(numbered, matched, alignment).run()
    return Comparison(run, numbered.summaries, matched, alignment)


def align_ranks(summaries: Sequence[RankSummary], matched: Matched) -> Alignment:
    """One clock for all ranks, from the ends of what was matched."""
    symmetric = np.array([kind in SYMMETRIC for _, kind, _ in matched.keys], np.bool_)
    clocked = all(s.clock_ns is not None for s in summaries)
    if (
        not clocked and not symmetric[matched.key].any()
    ):  # exchanges between two end together as well, only less sharply, where it is known who they are
        symmetric[:] = [kind not in POINT_TO_POINT or kind == "p2p" or size == 2 for _, kind, size in matched.keys]
    at = np.flatnonzero(symmetric[matched.key])
    files = {name: i for i, name in enumerate(dict.fromkeys(s.local for s in summaries))}
    return align(
        matched.rank[at], matched.instance[at], matched.end_ns[at],
        np.array([s.clock_ns is not None for s in summaries], np.bool_),
        np.array([files[s.local] for s in summaries], np.int64),
    )  # fmt: skip


def clocks_of(summaries: Sequence[RankSummary]) -> Int64:
    """[r] what the recordings themselves say that their times count from; 0 where they do not."""
    return np.array([s.clock_ns or 0 for s in summaries], np.int64)


class _Comparison:
    """One run being looked at."""

    def __init__(self, numbered: Numbered, matched: Matched, alignment: Alignment) -> None:
        self.summaries, self.numbers, self.numbered = numbered.summaries, numbered.ranks, numbered
        self.alignment = alignment
        usable = alignment.possible[matched.rank]
        at = np.flatnonzero(usable)
        members = np.bincount(matched.instance[at], minlength=int(matched.instance.max()) + 1 if len(at) else 0)
        at = at[members[matched.instance[at]] > 1]
        _, instance = np.unique(matched.instance[at], return_inverse=True)
        self.matched = replace(
            matched, rank=matched.rank[at], at=matched.at[at], instance=instance.reshape(-1).astype(np.int64),
            start_ns=matched.start_ns[at], end_ns=matched.end_ns[at], key=matched.key[at], number=matched.number[at],
        )  # fmt: skip
        m = self.matched
        ranks = np.arange(len(self.summaries))
        spans = np.array([(s.start_ns, s.end_ns) for s in self.summaries], np.int64).T + clocks_of(self.summaries)
        self.origin = int(alignment.aligned(ranks, spans[0])[alignment.possible].min())
        self.windows = [alignment.aligned(ranks, side) - self.origin for side in spans]
        first = m.first
        inside = m.column(self.summaries, "inside").astype(np.bool_)
        begins = m.column(self.summaries, "first").astype(np.bool_)
        all_inside = np.logical_and.reduceat(inside, first) if len(first) else first.astype(np.bool_)
        self.opens: Bool = np.logical_or.reduceat(begins, first) if len(first) else first.astype(np.bool_)
        self.inside: Bool = all_inside
        start = alignment.aligned(m.rank, m.start_ns) - self.origin
        kinds = [kind for _, kind, _ in m.keys]
        between_two = np.array([kind in POINT_TO_POINT for kind in kinds], np.bool_)[m.key[first]]
        self.arrivals = Arrivals(
            m.rank, m.instance, start, alignment.aligned(m.rank, m.end_ns) - self.origin, start,
            m.column(self.summaries, "step"), all_inside & ~self.opens & ~between_two, first,
            np.array([kind in SYMMETRIC for kind in kinds], np.bool_)[m.key[first]],
        )  # fmt: skip
        self.apart: Bool = _ends_apart(self.arrivals)
        self.exposed = m.column(self.summaries, "exposed_ns")
        begun = self._begun(begins)
        since = start - m.column(self.summaries, "phases_ns").reshape(-1, len(PHASES)).sum(axis=1)
        own = self._own(np.where(begins & (begun != NONE), begun, since), begun)
        charged = all_inside & ~between_two & ~self.apart & ~self.opens
        self.arrivals = replace(self.arrivals, charged=charged, own_ns=own)
        self.late: Late = late_ones(self.arrivals)
        self.bytes = m.column(self.summaries, "bytes")
        self.inside_each = inside
        self.stride = max(s.stride for s in self.summaries)

    def _begun(self, begins: Bool) -> Int64:
        """[n] where the step of a group's first collective begins on its rank; -1 for all others, and where no step tells."""
        m, found = self.matched, np.full(len(begins), NONE, np.int64)
        of_step = [{number: start for number, start, _ in s.steps} for s in self.summaries]
        at = np.flatnonzero(begins)
        step, rank = m.column(self.summaries, "step")[at].tolist(), m.rank[at].tolist()
        for i, r, number in zip(at.tolist(), rank, step, strict=True):
            found[i] = of_step[r].get(number, NONE)
        known = found != NONE
        of_rank = m.rank[known]
        found[known] = self.alignment.aligned(of_rank, found[known] + clocks_of(self.summaries)[of_rank]) - self.origin
        return found

    def _own(self, since: Int64, begun: Int64) -> Int64:
        """[n] the arrivals without what their ranks spent in other collectives since then, waiting or on a slow link, and
        without how far apart the ranks began the step of a group's first collective: that comes from before."""
        a = self.arrivals
        own = a.start_ns.copy()
        waits = self.exposed
        for r in range(len(self.summaries)):
            mine = np.flatnonzero(a.rank == r)
            mine = mine[np.argsort(a.start_ns[mine], kind="stable")]
            start = a.start_ns[mine]
            so_far = np.concatenate([[0], np.cumsum(waits[mine])])
            own[mine] -= so_far[np.searchsorted(start, start)] - so_far[np.searchsorted(start, since[mine])]
        for i in np.flatnonzero(self.opens).tolist():
            of = slice(int(a.first[i]), int(a.first[i] + a.members[i]))
            if (begun[of] != NONE).all():
                own[of] -= begun[of] - int(np.median(begun[of]))
                self.opens[i] = np.ptp(begun[of]) > np.ptp(own[of])  # what comes from before drowns the rest
        return own

    def _waits(self) -> Int64:
        """[n] what of a collective is waiting for others with nothing else running.

        What is hidden lies at its beginning: the compute that was submitted before it goes on beside it.
        """
        a = self.arrivals
        hidden = (a.end_ns - a.start_ns) - self.exposed
        return np.asarray(np.clip(a.wait_ns - hidden, 0, self.exposed), np.int64)

    def run(self) -> RankSet:
        alignment, summaries = self.alignment, self.summaries
        waiting, moving = self._split()
        rows = tuple(self._row(r, int(waiting[r]), int(moving[r])) for r in range(len(summaries)))
        wall = int(np.median([s.end_ns - s.start_ns for s in summaries]))
        steps = max((s.step_count for s in summaries), default=0)
        found = late_ranks(self.arrivals, self.late, len(summaries), wall)
        named = [self._straggler(one, steps) for one in found]
        before = self.arrivals.last_ns - self.arrivals.earliest_ns
        skew_before = int(before[self.opens].max()) if self.opens.any() else 0
        periods = [s.step_ns for s in summaries if s.step_ns is not None]
        errors = [e for e, ok in zip(alignment.error_ns.tolist(), alignment.possible.tolist(), strict=True) if ok]
        return RankSet(
            world=self.numbered.world,
            rows=rows,
            missing=self.numbered.missing[:RANKS_NAMED],
            missing_count=self.numbered.absent,
            origin_ns=self.origin - int((summaries[0].clock_ns or 0) + alignment.offset_ns[0]),
            aligned=alignment.how,
            offset_error_ns=max(errors) if errors and NONE not in errors else None,
            matched=len(self.arrivals.first),
            unmatched=self.matched.unmatched,
            stride=self.stride,
            meetings=self._meetings(),
            groups=self._groups(),
            stragglers=tuple(named),
            skew_before_ns=skew_before,
            waiting_ns=int(np.mean(waiting)),
            moving_ns=int(np.mean(moving)),
            step_range_ns=(min(periods), max(periods)) if periods else None,
            pipeline=self._pipeline(waiting),
            overlap=Overlap(None, int(np.median(moving)), "needs a replay of all ranks"),
            notes=(*self.numbered.notes, *self._notes(skew_before)),
            one_offs=self._one_offs({r for one in found for r in one.ranks}, wall),
        )

    def _split(self) -> tuple[Int64, Int64]:
        """[r] exposed communication in the window: waiting for others, and moving bytes."""
        a, waits = self.arrivals, self._waits()
        charged = self.inside_each & ~self.apart[a.instance]
        ranks = len(self.summaries)
        waiting = np.zeros(ranks, np.int64)
        np.add.at(waiting, a.rank[charged], waits[charged])
        whole = np.array([s.phases_ns[PHASES.index("communication")] for s in self.summaries], np.int64)
        waiting = np.minimum(waiting * self.stride, whole)
        return waiting, whole - waiting

    def _row(self, r: int, waiting: int, moving: int) -> RankRow:
        summary, a = self.summaries[r], self.arrivals
        mine = (a.rank == r) & a.charged[a.instance]
        last = (a.start_ns == a.last_ns[a.instance]) & mine & (self.late.cost_ns[a.instance] > 0)
        error = int(self.alignment.error_ns[r])
        return RankRow(
            rank=self.numbers[r],
            file=summary.file,
            process=summary.process,
            device=summary.device,
            name=summary.name,
            start_ns=int(self.windows[0][r]),
            end_ns=int(self.windows[1][r]),
            wall_ns=summary.end_ns - summary.start_ns,
            step_ns=summary.step_ns,
            compute_ns=summary.phases_ns[PHASES.index("compute")],
            communication_ns=summary.phases_ns[PHASES.index("communication")],
            waiting_ns=waiting,
            moving_ns=moving,
            late_ns=int(self.late.behind_ns[mine].sum()) * self.stride,
            last=int(last.sum()) * self.stride,
            offset_ns=int(self.alignment.offset_ns[r]),
            offset_error_ns=None if error == NONE else error,
            causes=summary.causes,
            phases_ns=summary.phases_ns,
        )

    def _straggler(self, late: LateRanks, of_steps: int) -> Straggler:
        """With the phase that the late ranks spend more time in than the others, where that explains most of what they are
        late by, and the cause of the attribution in which they do."""
        slow = list(late.ranks)
        others = [r for r in range(len(self.summaries)) if r not in late.ranks]
        phases = np.array([s.phases_ns for s in self.summaries])
        excess = phases[slow].mean(axis=0) - np.median(phases[others], axis=0)
        excess[PHASES.index("communication")] = 0
        at = int(excess.argmax())
        late_ns = late.late_ns * self.stride
        phase = PHASES[at] if excess[at] >= EXPLAINS * late_ns > 0 else ""
        cost = late.cost_ns * self.stride
        return Straggler(
            ranks=tuple(self.numbers[r] for r in slow),
            cost_ns=cost,
            waited_ns=late.waited_ns * self.stride,
            times=late.times * self.stride,
            of=late.of * self.stride,
            steps=len(late.steps) if of_steps else 0,
            of_steps=of_steps,
            phase=phase,
            phase_ns=int(excess[at]) if phase else 0,
            cause=self._cause(phase, slow, others) if phase and phase not in BUSY_PHASES else "",
            saving_ns=(0, cost),
            how="arrivals",
            p=late.evidence.p,
            test=late.evidence.test,
        )

    def _one_offs(self, stragglers: set[int], wall: int) -> tuple[OneOff, ...]:
        """What kept the others waiting once, or in few steps: far longer than is usual, and for 1 % of the wall or more."""
        a, late = self.arrivals, self.late
        charged = np.flatnonzero(a.charged)
        if not len(charged):
            return ()
        least = max(WORTH * wall, UNUSUAL * float(np.median(late.cost_ns[charged])))
        occasion = a.occasion
        dearest: dict[int, int] = {}  # of collectives that overlap the one that waits longest
        for i in charged[late.cost_ns[charged] >= least].tolist():
            before = dearest.setdefault(int(occasion[i]), i)
            if late.cost_ns[i] > late.cost_ns[before]:
                dearest[int(occasion[i])] = i
        of_ranks: dict[tuple[int, ...], list[int]] = {}
        for i in dearest.values():
            if not stragglers & set(late.ranks[i]):
                of_ranks.setdefault(late.ranks[i], []).append(i)
        steps = a.step[a.first]
        count = len(np.unique(steps[charged]))
        found = []
        for slow, at in of_ranks.items():
            mine = sorted({int(steps[i]) for i in at} - {NONE})
            if len(mine) <= max(1, SELDOM * count):
                cost = int(late.cost_ns[at].sum())
                phase, more = self._before(slow, at, cost)
                numbers = tuple(self.numbers[r] for r in slow)
                found.append(OneOff(numbers, tuple(mine), len(at), cost, phase, more))
        return tuple(sorted(found, key=lambda one: (-one.cost_ns, one.ranks))[:ONE_OFFS])

    def _before(self, slow: Sequence[int], at: Sequence[int], cost: int) -> tuple[str, int]:
        """The phase before these collectives that took the late ranks longer than the others, and how much longer."""
        a = self.arrivals
        phases = self.matched.column(self.summaries, "phases_ns").reshape(-1, len(PHASES))
        excess = np.zeros(len(PHASES))
        for i in at:
            of = slice(int(a.first[i]), int(a.first[i] + a.members[i]))
            theirs = np.isin(a.rank[of], slow)
            excess += phases[of][theirs].mean(axis=0) - np.median(phases[of][~theirs], axis=0)
        excess[PHASES.index("communication")] = 0
        best = int(excess.argmax())
        return (PHASES[best], int(excess[best])) if excess[best] >= EXPLAINS * cost > 0 else ("", 0)

    def _cause(self, phase: str, slow: Sequence[int], others: Sequence[int]) -> str:
        """The cause of the attribution in which these ranks exceed the others most; empty where there is none."""
        causes = [dict(s.causes) for s in self.summaries]
        names = {name for of_rank in causes for name in of_rank if PHASE_OF.get(name, "host") == phase}
        more = {
            name: float(np.mean([causes[r].get(name, 0) for r in slow]))
            - float(np.median([causes[r].get(name, 0) for r in others]))
            for name in sorted(names - {"unmodelled", "exposed-copy", "memset", "exposed-communication"})
        }
        best = max(more, key=lambda name: more[name], default="")
        return best if best and more[best] > 0 else ""

    def _meetings(self) -> tuple[Meeting, ...]:
        a, m = self.arrivals, self.matched
        if not len(a.first):
            return ()
        skew = a.last_ns - a.earliest_ns
        order = np.argsort(-np.where(self.inside, skew + 1, 0), kind="stable")[:MEETINGS_KEPT]
        transfer, members, ranks = a.transfer_ns, a.members, len(self.summaries)
        found = []
        for i in sorted(order.tolist(), key=lambda i: int(a.earliest_ns[i])):
            low, count = int(a.first[i]), int(members[i])
            mine = slice(low, low + count)
            group, kind, size = m.keys[int(m.key[low])]
            known = self.bytes[mine]
            known = known[known > 0]
            moved = int(np.median(known)) if len(known) else None
            arrivals = np.full(ranks, NONE, np.int64)
            arrivals[a.rank[mine]] = a.start_ns[mine] - a.earliest_ns[i]
            flag = "" if a.charged[i] else "first" if self.opens[i] else "apart" if self.apart[i] else "outside"
            found.append(
                Meeting(
                    group=group,
                    kind=kind,
                    number=int(m.number[low]),
                    ranks=count,
                    start_ns=int(a.earliest_ns[i]),
                    end_ns=int(a.end_ns[mine].max()),
                    skew_ns=int(skew[i]),
                    transfer_ns=int(transfer[i]),
                    bytes=moved,
                    bus_bandwidth=_bandwidth(moved, int(transfer[i]), kind, size or count),
                    late=tuple(self.numbers[r] for r in self.late.ranks[i][:LATE_NAMED]),
                    cost_ns=int(self.late.cost_ns[i]) if a.charged[i] else 0,
                    flag=flag,
                    arrivals_ns=tuple(arrivals.tolist()) if ranks <= ARRIVALS_KEPT else (),
                )
            )
        return tuple(found)

    def _groups(self) -> tuple[GroupRow, ...]:
        a, m = self.arrivals, self.matched
        key = m.key[a.first] if len(a.first) else a.first
        skew, transfer, members = a.last_ns - a.earliest_ns, a.transfer_ns, a.members
        rows = []
        for k in ascending(key).tolist():
            mine = np.flatnonzero((key == k) & self.inside)
            if not len(mine):
                continue
            group, kind, size = m.keys[k]
            ranks = ascending(a.rank[np.isin(a.instance, mine)])
            sizes = self.bytes[np.isin(a.instance, mine)]
            sizes = sizes[sizes > 0]
            moved = int(np.median(sizes)) if len(sizes) else None
            speeds = [
                speed
                for i in mine.tolist()
                if (speed := _bandwidth(_own(self.bytes, a, i), int(transfer[i]), kind, size or int(members[i])))
            ]
            first = self.summaries[int(ranks[0])]
            rows.append(
                GroupRow(
                    group=group,
                    kind=kind,
                    ranks=len(ranks),
                    count=len(mine) * self.stride,
                    bytes=moved,
                    transfer_ns=int(transfer[mine].sum()) * self.stride,
                    skew_ns=int(np.median(skew[mine])),
                    bus_bandwidth=float(np.median(speeds)) if speeds else None,
                    link=first.link,
                    link_name=first.link_name,
                    matched_by="sequence" if m.by_sequence[k] else "order",
                )
            )
        return tuple(sorted(rows, key=lambda row: -row.transfer_ns)[:RANKS_NAMED])

    def _slow_links(self) -> list[str]:
        """Groups whose collectives move far fewer bytes a second than those of as many ranks, kind and size elsewhere."""
        a, m = self.arrivals, self.matched
        key = m.key[a.first] if len(a.first) else a.first
        alike: dict[tuple[str, int, int], list[tuple[float, int]]] = {}
        for k in ascending(key).tolist():
            at = np.flatnonzero((key == k) & self.inside & ~self.apart)
            sizes = [_own(self.bytes, a, i) for i in at.tolist()]
            moved = [size for size in sizes if size]
            if len(at) >= FEWEST_OF_A_GROUP and len(moved) == len(at):
                _, kind, _ = m.keys[k]
                usual = float(np.median(a.transfer_ns[at]))
                alike.setdefault((kind, int(a.members[at[0]]), int(np.median(moved))), []).append((usual, k))
        found = []
        for (kind, ranks, size), siblings in alike.items():
            for ns, k in siblings:
                others = [other for other, j in siblings if j != k]
                if others and ns > SLOW_LINK * float(np.median(others)):
                    mine, theirs = (
                        _bandwidth(size, round(t), kind, ranks) or 0.0 for t in (ns, float(np.median(others)))
                    )
                    who = ", ".join(str(self.numbers[r]) for r in ascending(a.rank[m.key == k]).tolist()[:RANKS_NAMED])
                    found.append(
                        f"slow link in group {m.keys[k][0]} (ranks {who}): its {kind} moves {mine / 1e9:,.1f} GB/s over each "
                        f"link, its siblings' {theirs / 1e9:,.1f} GB/s"
                    )
        return found

    def _pipeline(self, waiting: Int64) -> Pipeline | None:
        """Stages that hand work on: exchanges between neighbours, one pair a group of two."""
        a, m = self.arrivals, self.matched
        pairs = {
            k: tuple(ascending(a.rank[m.key == k]).tolist())
            for k, (_, kind, _) in enumerate(m.keys)
            if kind in POINT_TO_POINT and (m.key == k).any()
        }
        neighbours: set[tuple[int, ...]] = {ranks for ranks in pairs.values() if len(ranks) == 2}
        stages = _chain(neighbours)
        if stages < 2 or len(neighbours) < 2:
            return None
        at = np.isin(m.key[a.first], [k for k, ranks in pairs.items() if ranks in neighbours]) & self.inside
        hops = int(at.sum()) * self.stride
        steps = max(max((s.step_count for s in self.summaries), default=0), 1)
        micro = round(hops / (2 * (stages - 1) * steps)) or 1
        walls = np.array([s.end_ns - s.start_ns for s in self.summaries], np.float64)
        share = float(np.mean(waiting / walls))
        expected = (stages - 1) / (micro + stages - 1)
        return Pipeline(stages, micro, share, expected, int(np.mean(waiting) / steps), *self._slow_stage(steps))

    def _slow_stage(self, steps: int) -> tuple[int | None, str, int]:
        """The rank that does most beside communication, the phase in which it exceeds the others, and by how much a step."""
        phases = np.array([s.phases_ns for s in self.summaries], np.int64)
        for phase in ("communication", "unknown", "host"):  # what waits for others shows there, too
            phases[:, PHASES.index(phase)] = 0
        own = phases.sum(axis=1)
        most = int(own.argmax())
        others = np.arange(len(own)) != most
        excess = phases[most] - np.median(phases[others], axis=0)
        wall = float(np.median([s.end_ns - s.start_ns for s in self.summaries]))
        if own[most] - float(np.median(own[others])) < SLOW_STAGE * wall:
            return None, "", 0
        at = int(excess.argmax())
        return self.numbers[most], PHASES[at], int(excess[at] / steps)

    def _notes(self, skew_before: int) -> list[Note]:
        """What limits the comparison."""
        alignment, names = self.alignment, self.numbers
        notes: list[tuple[str, int, str]] = []
        lost = np.flatnonzero(~alignment.possible).tolist()
        if lost:
            who = ", ".join(str(names[r]) for r in lost[:RANKS_NAMED])
            notes.append(
                ("not-aligned", len(lost), f"ranks {who} cannot be put on one clock with the others: the recordings have no "
                 "common clock and no collective in common; their arrivals are not compared")
            )  # fmt: skip
        moved = (alignment.offset_ns != 0) & ~alignment.by_clock & alignment.possible
        clocked = [r for r in np.flatnonzero(moved).tolist() if self.summaries[r].clock_ns is not None]
        if clocked:
            most = max(clocked, key=lambda r: abs(int(alignment.offset_ns[r])))
            by, error = int(alignment.offset_ns[most]) / 1e6, int(alignment.error_ns[most]) / 1e3
            notes.append(
                ("rank-clocks", len(clocked), f"the clocks of {len(clocked)} ranks were corrected by the ends of their "
                 f"collectives, rank {names[most]} by {by:+,.3f} ms (error {error:,.1f} µs)")
            )  # fmt: skip
        drifting = np.flatnonzero(alignment.drift)
        if len(drifting):
            apart = [
                alignment.drift[r] * (self.summaries[r].end_ns - self.summaries[r].start_ns) / 1e3 for r in drifting
            ]
            most = int(np.argmax(np.abs(apart)))
            notes.append(
                ("rank-drift", len(drifting), f"the clocks of {len(drifting)} ranks run at another speed, that of rank "
                 f"{names[drifting[most]]} by {apart[most]:+,.1f} µs over its window; corrected by the ends of their collectives")
            )  # fmt: skip
        if not len(self.arrivals.first):
            notes.append(
                ("no-collectives", 1, "no collective of two ranks could be matched: the ranks are shown side by side, who "
                 "waits for whom is unknown")
            )  # fmt: skip
        elif not all(self.matched.by_sequence):
            notes.append(
                ("matched-by-order", len(self.arrivals.first), "collectives without sequence numbers were matched by group or "
                 "stream, kind and order")
            )  # fmt: skip
        if self.matched.unmatched:
            text = "collectives that some ranks of their group do not have"
            notes.append(("unmatched-collectives", self.matched.unmatched, text))
        if self.apart.any():
            notes.append(
                ("apart-collectives", int(self.apart.sum()), f"{int(self.apart.sum())} of {len(self.apart)} collectives do not "
                 "end together on their ranks: groups that the recordings do not name, or clocks that jump; who waits for whom "
                 "in them is unknown")
            )  # fmt: skip
        wall = float(np.median([s.end_ns - s.start_ns for s in self.summaries]))
        if skew_before > SKEW_SHOWN * wall:
            notes.append(
                ("skew-before", 1, f"the ranks come up to {duration(skew_before)} apart to the first collective of a group: "
                 "that comes from before the recording and is charged to nobody")
            )  # fmt: skip
        notes += [("slow-link", 1, text) for text in self._slow_links()]
        if self.stride > 1:
            text = f"one collective in {self.stride} of each kind was looked at; sums are scaled up"
            notes.append(("sampled-collectives", self.stride, text))
        return [Note(code, message, count) for code, count, message in notes]


def _ends_apart(a: Arrivals) -> Bool:
    """[i] what should end for all ranks at once and does not: it is not one collective, or not on one clock."""
    if not len(a.first):
        return np.zeros(0, np.bool_)
    spread = np.maximum.reduceat(a.end_ns, a.first) - np.minimum.reduceat(a.end_ns, a.first)
    return np.asarray(a.together & (spread > np.maximum(APART_NS, APART * a.transfer_ns)))


def _own(sizes: Int64, a: Arrivals, instance: int) -> int | None:
    low = int(a.first[instance])
    known = sizes[low : low + int(a.members[instance])]
    known = known[known > 0]
    return int(np.median(known)) if len(known) else None


def _bandwidth(moved: int | None, ns: int, kind: str, ranks: int) -> float | None:
    if moved is None or ns <= 0 or ranks < 2:
        return None
    return moved * bus_factor(kind, ranks) / ns * 1e9


def _chain(pairs: set[tuple[int, ...]]) -> int:
    """Ranks in the longest chain of neighbours."""
    neighbours: dict[int, set[int]] = {}
    for a, b in pairs:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    seen: set[int] = set()
    longest = 0
    for start in sorted(neighbours):
        stack, size = [start], 0
        while stack:
            rank = stack.pop()
            if rank in seen:
                continue
            seen.add(rank)
            size += 1
            stack += neighbours[rank] - seen
        longest = max(longest, size)
    return longest
