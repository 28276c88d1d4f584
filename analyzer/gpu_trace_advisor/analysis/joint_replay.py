"""All ranks replayed together: each on its own graph, joined where they meet in a collective.

A collective ends for everybody when the last rank has come and its bytes have moved. What one rank adds is a Network: its
graph with the collectives' ends left open. It can be sent from where the recording was read to where all are joined, and
`reduced` to what matters between collectives without changing a nanosecond of any replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.collectives import communications
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.ranks.collective_kinds import PHASE_OF
from gpu_trace_advisor.ranks.compare_ranks import Comparison
from gpu_trace_advisor.ranks.model import PHASES, Overlap, RankSet, RankSummary, Straggler
from gpu_trace_advisor.replay.changes import Change, scaled, without_host
from gpu_trace_advisor.replay.fixes import FIXES, operations_of
from gpu_trace_advisor.replay.sweep import TRUSTED
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMPUTE, FIRST_COPY, MIGRATION
from gpu_trace_advisor.trace.model import NONE, Int32, Int64
from gpu_trace_advisor.units import percent

MOST_ARRIVALS = 400_000  # collectives times their ranks; beyond it the arrivals alone tell
NEVER = np.iinfo(np.int64).max
OVERLAP = "communication-overlap"
ROOT = -1  # the recording's start among the sources of a reduced point


@dataclass(frozen=True)
class Network:
    """When one rank comes to its c collectives and to the ends of its window, given when the collectives end.

    p points in topological order, the last two the window's begin and end; e edges sorted by target.
    """

    process: int
    """Index of the process in its recording: its devices share a graph, and cannot be joined as ranks."""
    origin_ns: int
    """When point 0 comes to pass, on the recording's clock."""
    first_edge: Int32
    """[p + 1]"""
    source: Int32
    weight: Int64
    """[e] ns, without the duration of a collective that the edge comes after."""
    after: Int64
    """[e] the collective whose end the edge starts at; -1 none."""
    start: Int64
    """[c] point of each collective's start."""
    duration_ns: Int64
    """[c] in this graph."""
    measured_ns: Int64
    """[c] as recorded."""


class RankChange(NamedTuple):
    """A change of one rank's graph: a share of a phase is gone, or the fix that hides communication in either form."""

    change: str
    """One of PHASES, `overlap-low` or `overlap-high`."""
    share: float = 1.0


UNCHANGED = RankChange("")


def network(view: DeviceWindow, summary: RankSummary, variant: RankChange = UNCHANGED) -> Network | str:
    """What a rank adds to the replay of all, changed or as it was; or why it cannot be changed like that."""
    graph = view.graph
    if variant.change.startswith("overlap"):
        fix = FIXES[OVERLAP]
        if why := fix.refuses(graph):
            return why
        graph = fix.low(graph) if variant.change == "overlap-low" else fix.high(graph)
    elif variant.change:
        graph = _less(variant.change, variant.share, graph)(graph)
    timeline = view.timeline
    at = communications(timeline)[summary.collectives.place]
    return _network(graph, view.graph, view, np.searchsorted(graph.row, timeline.row[at]))


def _network(graph: Graph, measured: Graph, view: DeviceWindow, operation: Int64) -> Network:
    place = np.full(len(graph.row), NONE, np.int64)
    place[operation] = np.arange(len(operation))
    before = graph.after()
    after = np.where(before == NONE, NONE, place[before])
    weight = graph.total_ns.astype(np.int64)
    open_ = after != NONE
    weight[open_] -= graph.duration_ns[before[open_]]
    sources, weights, afters = [graph.source], [weight], [after]
    first = [graph.first_edge]
    edges = len(weight)
    for source, ns, behind in (_begin(measured, view), _end(graph, measured, view, place)):
        sources.append(source)
        weights.append(ns)
        afters.append(behind)
        edges += len(source)
        first.append(np.array([edges]))
    return Network(
        process=view.timeline.process,
        origin_ns=graph.trace.origin_ns,
        first_edge=np.concatenate(first).astype(np.int32),
        source=np.concatenate(sources).astype(np.int32),
        weight=np.concatenate(weights).astype(np.int64),
        after=np.concatenate(afters).astype(np.int64),
        start=graph.operation_point[operation].astype(np.int64),
        duration_ns=graph.duration_ns[operation].astype(np.int64),
        measured_ns=measured.duration_ns[operation].astype(np.int64),
    )


Edges = tuple[Int64, Int64, Int64]


def _begin(graph: Graph, view: DeviceWindow) -> Edges:
    """The window begins with its mark, with the first operation, or as long after the last point before it as it did."""
    window = view.window
    if window.kind == "gpu":
        mine = np.flatnonzero(graph.device == view.index)
        points = graph.operation_point[mine[graph.trace.start_ns[graph.row[mine]].argmin()]][None]
        return points, np.zeros(1, np.int64), np.full(1, NONE)
    points = graph.marks[graph.mark_ns == window.start_ns]
    if not len(points):
        last = graph.last_before(window.start_ns) or 0
        return np.array([last]), np.array([window.start_ns - graph.time(last)]), np.full(1, NONE)
    return points, np.zeros(len(points), np.int64), np.full(len(points), NONE)


def _end(graph: Graph, measured: Graph, view: DeviceWindow, place: Int64) -> Edges:
    """The window ends when its operations have, and not before its mark."""
    window, trace = view.window, measured.trace
    mine = measured.device == view.index
    if window.kind != "gpu":
        begun, ended = trace.start_ns[measured.row], trace.end_ns[measured.row]
        mine &= (ended <= window.end_ns) & (begun >= window.start_ns)
    at = np.flatnonzero(mine)
    behind = place[at]
    weight = np.where(behind == NONE, graph.duration_ns[at], 0)
    marks = measured.marks[measured.mark_ns == window.end_ns] if window.kind != "gpu" else at[:0]
    none = np.full(len(marks), NONE)
    return (
        np.concatenate([graph.operation_point[at], marks]),
        np.concatenate([weight, np.zeros(len(marks), np.int64)]),
        np.concatenate([behind, none]),
    )


def _less(phase: str, share: float, graph: Graph) -> Change:
    """This share of a phase is gone."""
    if phase == "compute":
        return scaled(operations_of(graph, COMPUTE), 1 - share)
    if phase == "copies":
        copies = operations_of(graph, *range(FIRST_COPY, MIGRATION + 1))
        return scaled(copies, 1 - share)
    if phase == "communication":
        return lambda same: same
    causes = [cause for cause in IDLE if PHASE_OF.get(cause, "host") == phase]
    # What a synchronisation's refill is charged with is any host work in the graph.
    return without_host([*causes, "host-unknown"] if phase == "host" else causes, share)


def reduced(given: Network) -> Network:
    """The same network with no points but the collectives' starts and the window's ends, for every replay the same.

    Each point is the latest of the paths from the start and from the collectives' ends. A path is left out where another
    one through a later collective is never shorter, since no collective ends before it has begun.
    """
    first, source, weight, after = (
        column.tolist() for column in (given.first_edge, given.source, given.weight, given.after)
    )
    of_point: dict[int, list[int]] = {}
    for c, point in enumerate(given.start.tolist()):
        of_point.setdefault(point, []).append(c)
    rows: dict[int, dict[int, int]] = {}
    paths: list[tuple[dict[int, int], int]] = []  # of each point: by source, all so much longer
    for point in range(len(first) - 1):
        low, high = first[point], first[point + 1]
        if high - low == 1:
            one = ({after[low]: 0}, 0) if after[low] != NONE else paths[source[low]]
            found = one[0], one[1] + weight[low]
        elif high == low:
            found = {ROOT: 0}, 0
        else:
            found = _longest(low, high, source, weight, after, paths, rows), 0
        paths.append(found)
        for c in of_point.get(point, ()):
            rows[c] = {key: ns + found[1] for key, ns in found[0].items()}
    order = sorted(rows, key=lambda c: int(given.start[c]))
    start = np.zeros(len(order), np.int64)
    start[order] = 1 + np.arange(len(order))
    last = [{key: ns + found[1] for key, ns in found[0].items()} for found in paths[-2:]]
    lists = [rows[c] for c in order] + last
    keys = np.array([key for row in lists for key in row], np.int64)
    sizes = np.array([0, 0, *(len(row) for row in lists)], np.int64)  # the root has no edge
    return replace(
        given,
        first_edge=np.cumsum(sizes).astype(np.int32),
        source=np.where(keys == ROOT, 0, start[keys] if len(start) else 0).astype(np.int32),
        weight=np.array([ns for row in lists for ns in row.values()], np.int64),
        after=np.where(keys == ROOT, NONE, keys),
        start=start,
    )


def _longest(
    low: int, high: int, source: list[int], weight: list[int], after: list[int],
    paths: list[tuple[dict[int, int], int]], rows: Mapping[int, Mapping[int, int]],
) -> dict[int, int]:  # fmt: skip
    """The longest path from each source over a point's edges, without those that another one covers."""
    best: dict[int, int] = {}
    for edge in range(low, high):
        if after[edge] != NONE:
            pairs, more = {after[edge]: 0}, weight[edge]
        else:
            pairs, more = paths[source[edge]]
            more += weight[edge]
        for key, ns in pairs.items():
            if best.get(key, -NEVER) < ns + more:
                best[key] = ns + more
    if len(best) > 1:
        for key in list(best):
            for other, ns in best.items():
                if other not in (key, ROOT) and best[key] <= ns + rows[other].get(key, -NEVER):
                    del best[key]
                    break
    return best


@dataclass(frozen=True)
class JoinedNetworks:
    """The networks of r ranks and what joins them."""

    networks: tuple[Network, ...]
    shift_ns: tuple[int, ...]
    """[r] from the recording's clock to the run's."""
    meeting: tuple[Int64, ...]
    """[r] index of the job's collective for each of the rank's; -1 where nobody else has it."""
    transfer_ns: Int64
    """[i] what each takes with all there."""
    members: Int64
    """[i] how many ranks come."""


@dataclass(frozen=True)
class Played:
    """When the windows of all ranks begin and end."""

    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    forced: int
    """Collectives that had to end as measured, since their ranks would wait for each other for ever."""

    @property
    def wall_ns(self) -> int:
        """From where the windows begin (median over the ranks) to where the last of them ends."""
        return max(self.end_ns) - int(np.median(self.begin_ns))


def join(comparison: Comparison, networks: Sequence[Network | None]) -> JoinedNetworks | str:
    """The networks of the compared ranks, joined at their collectives; or why they cannot be."""
    run, matched = comparison.run, comparison.matched
    if run.stride > 1 or len(matched.rank) > MOST_ARRIVALS:
        return "there are too many collectives to replay all ranks together"
    if run.missing_count or not run.matched:
        return "some ranks of the job are missing" if run.missing_count else "no collective could be matched"
    mine = [one for one in networks if one is not None]
    if len(mine) < len(networks):
        return "a rank's graph is not known"
    if len({(s.local, n.process) for s, n in zip(comparison.summaries, mine, strict=True)}) < len(mine):
        return "several ranks run in one process"
    meeting = []
    for r, one in enumerate(mine):
        of_rank = np.full(len(one.start), NONE, np.int64)
        here = matched.rank == r
        of_rank[matched.at[here]] = matched.instance[here]
        meeting.append(of_rank)
    alignment = comparison.alignment
    start, end = (alignment.aligned(matched.rank, ns) for ns in (matched.start_ns, matched.end_ns))
    first = matched.first
    members = np.diff(np.concatenate([first, [len(start)]]))
    ends = np.array([int(np.median(end[a : a + n])) for a, n in zip(first.tolist(), members.tolist(), strict=True)])
    shortest = np.minimum.reduceat(end - start, first)
    transfer = np.clip(ends - np.maximum.reduceat(start, first), 0, shortest)
    shift = tuple(row.start_ns - s.start_ns for row, s in zip(run.rows, comparison.summaries, strict=True))
    return JoinedNetworks(tuple(mine), shift, tuple(meeting), transfer, members)


class _Walk:
    """One rank on its way through its network."""

    def __init__(self, network: Network, shift: int) -> None:
        self.network, self.origin = network, network.origin_ns + shift
        count = len(network.start)
        edges = np.flatnonzero(network.after != NONE)
        order = edges[np.argsort(network.after[edges], kind="stable")]
        bounds = np.searchsorted(network.after[order], np.arange(count + 1))
        self.edges_of = [order[a:b].tolist() for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
        self.points = len(network.first_edge) - 1
        target = np.repeat(np.arange(self.points), np.diff(network.first_edge))
        self.needed = np.full(count, NEVER)
        np.minimum.at(self.needed, network.after[edges], target[edges])
        self.by_need = np.argsort(self.needed, kind="stable").tolist()
        self.next = 0
        self.by_start = np.argsort(network.start, kind="stable").tolist()
        self.reached = 0
        self.starts = network.start.tolist()
        self.slower = (network.duration_ns / np.maximum(network.measured_ns, 1)).tolist()
        time = np.zeros(self.points, np.int64)
        time[0] = self.origin
        self.at = 1
        columns: list[Any] = [network.first_edge, network.source, network.weight.copy(), time]
        if not compiled.is_compiled(loops.sweep_part):  # lists are faster for Python
            columns = [column.tolist() for column in columns]
        self.first_edge, self.source, self.weight, self.time = columns
        self.open = [True] * count

    @property
    def done(self) -> bool:
        return bool(self.at >= self.points)

    def advance(self) -> list[int]:
        """As far as it goes; which collectives that were not reached before are."""
        while self.next < len(self.by_need) and not self.open[self.by_need[self.next]]:
            self.next += 1
        stop = self.points
        if self.next < len(self.by_need):
            stop = min(int(self.needed[self.by_need[self.next]]), stop)
        if stop <= self.at:
            return []
        loops.sweep_part(self.first_edge, self.source, self.weight, self.origin, self.at, stop, self.time)
        self.at = stop
        before = self.reached
        while self.reached < len(self.by_start) and self.starts[self.by_start[self.reached]] < stop:
            self.reached += 1
        found: list[int] = self.by_start[before : self.reached]
        return found

    def arrival(self, i: int) -> int:
        return int(self.time[self.starts[i]])

    def end(self, i: int, ns: int) -> None:
        """The collective ends so long after its start on this rank."""
        self.open[i] = False
        for edge in self.edges_of[i]:
            self.weight[edge] += max(ns, 0)


def play(
    joint: JoinedNetworks, networks: Sequence[Network] | None = None, early: frozenset[int] = frozenset()
) -> Played:
    """Replay all ranks with these networks (the measured ones by default). Who is in `early` keeps nobody waiting."""
    walks = [_Walk(*pair) for pair in zip(networks or joint.networks, joint.shift_ns, strict=True)]
    meeting = [column.tolist() for column in joint.meeting]
    waiting: dict[int, list[tuple[int, int]]] = {}
    done: set[int] = set()
    forced = 0
    active = list(range(len(walks)))
    while active:
        ready: list[int] = []
        moved_on: set[int] = set()
        for r in active:
            walk = walks[r]
            before = walk.at
            for i in walk.advance():
                which = meeting[r][i]
                if which == NONE:
                    walk.end(i, int(walk.network.duration_ns[i]))
                    moved_on.add(r)
                    continue
                here = waiting.setdefault(which, [])
                here.append((r, i))
                if len(here) == joint.members[which]:
                    ready.append(which)
            if walk.at != before:
                moved_on.add(r)
        if not ready and not moved_on:
            stuck = [m for m in waiting if m not in done]
            if all(walk.done for walk in walks) or not stuck:
                break
            ready = [min(stuck)]
            forced += 1
        for which in ready:
            if which not in done:
                done.add(which)
                _meet(joint, walks, which, waiting[which], early)
                moved_on |= {r for r, _ in waiting[which]}
        active = sorted(r for r in moved_on if not walks[r].done)
        if not active:
            active = [r for r, walk in enumerate(walks) if not walk.done]
    begin, end = (tuple(int(walk.time[-at]) for walk in walks) for at in (2, 1))
    return Played(begin, end, forced)


def _meet(
    joint: JoinedNetworks, walks: Sequence[_Walk], meeting: int, here: Sequence[tuple[int, int]], early: frozenset[int]
) -> None:
    """Everybody leaves when the last one has come and the bytes have moved."""
    counted = [pair for pair in here if pair[0] not in early] or list(here)
    last = max(walks[r].arrival(i) for r, i in counted)
    for r, i in here:
        transfer = round(int(joint.transfer_ns[meeting]) * walks[r].slower[i])
        walks[r].end(i, last + transfer - walks[r].arrival(i))


@dataclass(frozen=True)
class Pricing:
    """A run whose unchanged replay can be believed, and what else has to be replayed to price it."""

    joint: JoinedNetworks
    wall_ns: int
    wanted: Mapping[int, tuple[RankChange, ...]] = field(default_factory=dict)
    """By the index of the rank's summary in the comparison."""


def pricing(comparison: Comparison, networks: Sequence[Network | None], overlap: bool) -> Pricing | str:
    """What is to be replayed for the run's stragglers, and for hiding its communication where that is asked for; or why
    nothing is priced."""
    run = comparison.run
    joint = join(comparison, networks)
    if isinstance(joint, str):
        return joint
    wall = play(joint).wall_ns
    measured = max(row.end_ns for row in run.rows) - int(np.median([row.start_ns for row in run.rows]))
    error = (wall - measured) / max(measured, 1)
    if abs(error) > TRUSTED:
        return f"the unchanged replay of all ranks is off by {percent(error, 1, '+')}"
    wanted: dict[int, list[RankChange]] = {}
    for straggler in run.stragglers:
        for r, variant in _faster(run, straggler):
            wanted.setdefault(r, []).append(variant)
    if overlap:
        for r in range(len(run.rows)):
            wanted.setdefault(r, []).extend((RankChange("overlap-low"), RankChange("overlap-high")))
    return Pricing(joint, wall, {r: tuple(dict.fromkeys(variants)) for r, variants in wanted.items()})


def _faster(run: RankSet, straggler: Straggler) -> list[tuple[int, RankChange]]:
    """What is changed for the stragglers' phase to be as long as the others'; nothing where no phase is known."""
    if not straggler.phase:
        return []
    at = PHASES.index(straggler.phase)
    rows = [(r, row) for r, row in enumerate(run.rows) if row.rank in straggler.ranks]
    return [
        (r, RankChange(straggler.phase, min(straggler.phase_ns / max(row.phases_ns[at], 1), 1.0))) for r, row in rows
    ]


def priced(run: RankSet, known: Pricing | str, changed: Mapping[tuple[int, RankChange], Network | str]) -> RankSet:
    """The run with what faster stragglers and a better overlap would give, from the replay of all ranks together."""
    if isinstance(known, str):
        return replace(run, overlap=replace(run.overlap, why=known) if run.overlap else None)
    joint, wall = known.joint, known.wall_ns

    def saves(variants: Sequence[tuple[int, RankChange]], early: frozenset[int] = frozenset()) -> int | str:
        networks = list(joint.networks)
        for r, variant in variants:
            one = changed.get((r, variant), "a rank's graph is not known")
            if isinstance(one, str):
                return one
            networks[r] = one
        return min(max(wall - play(joint, networks, early).wall_ns, 0), wall)

    found = []
    for straggler in run.stragglers:
        variants = _faster(run, straggler)
        # Without a known phase nothing can be made faster; then nobody waits for them.
        slow = frozenset(r for r, row in enumerate(run.rows) if row.rank in straggler.ranks)
        gain = saves(variants, frozenset() if variants else slow)
        if not isinstance(gain, str):
            straggler = replace(straggler, saving_ns=(gain, gain), cost_ns=gain, how="replay")
        found.append(straggler)
    return replace(run, stragglers=tuple(found), overlap=_overlap(run, known, saves))


def _overlap(
    run: RankSet, known: Pricing, saves: Callable[[Sequence[tuple[int, RankChange]]], int | str]
) -> Overlap | None:
    """All collectives beside compute, in the pessimistic and the optimistic form of the fix."""
    if run.overlap is None or not any(variant.change == "overlap-low" for v in known.wanted.values() for variant in v):
        return run.overlap
    ranks = range(len(run.rows))
    low, high = (saves([(r, RankChange(name)) for r in ranks]) for name in ("overlap-low", "overlap-high"))
    if isinstance(low, str) or isinstance(high, str):
        return replace(run.overlap, why=low if isinstance(low, str) else str(high))
    return Overlap((int(min(low * FIXES[OVERLAP].low_share, high)), high), run.overlap.exposed_ns, "")
