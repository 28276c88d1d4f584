"""All ranks replayed together: each on its own graph, joined where they meet in a collective.

A collective ends for everybody when the last rank has come and its bytes have moved. Each graph is walked as far as it
depends on no collective that somebody has yet to reach; then those that all have reached get their end, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.ranks.collective_kinds import PHASE_OF
from gpu_trace_advisor.ranks.compare_ranks import Numbered, align_ranks, number
from gpu_trace_advisor.ranks.matching import match
from gpu_trace_advisor.ranks.model import PHASES, Overlap, RankSummary, Run, Straggler
from gpu_trace_advisor.replay.changes import Change, scaled, without_host
from gpu_trace_advisor.replay.fixes import FIXES, operations_of
from gpu_trace_advisor.replay.sweep import TRUSTED, Replay, moved
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE, COPIES, FIRST_COPY, SET
from gpu_trace_advisor.trace.model import NONE, Int64
from gpu_trace_advisor.units import percent

MOST_MEETINGS = 20_000  # ranks times collectives; beyond it the arrivals alone tell
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Joint:
    """The graphs of r ranks and what joins them."""

    views: tuple[DeviceWindow, ...]
    shift_ns: tuple[int, ...]
    """[r] from the recording's clock to the run's."""
    operation: tuple[Int64, ...]
    """[r] operations (of the graph) that are collectives with others, in the order of `meeting`."""
    meeting: tuple[Int64, ...]
    """[r] index of the collective of each."""
    transfer_ns: Int64
    """[i] what each takes with all there."""
    members: Int64
    """[i] how many ranks come."""


@dataclass
class JointReplay:
    """When everything happens on all ranks."""

    replays: list[Replay]
    forced: int
    """Collectives that had to end as measured, since their ranks would wait for each other for ever."""
    early: frozenset[int] = field(default=frozenset())


def join(run: Run, summaries: Sequence[RankSummary], views: Sequence[DeviceWindow]) -> Joint | str:
    """The graphs of a run's ranks joined at their collectives; or why they cannot be."""
    numbered: Numbered = number(summaries)
    place = {id(summary): i for i, summary in enumerate(summaries)}
    mine = [views[place[id(summary)]] for summary in numbered.summaries]
    if len({id(view.program) for view in mine}) < len(mine):
        return "several ranks run in one process"
    if run.stride > 1 or run.matched * len(mine) > MOST_MEETINGS:
        return "there are too many collectives to replay all ranks together"
    if run.missing_count or not run.matched:
        return "some ranks of the job are missing" if run.missing_count else "no collective could be matched"
    rows = {row.rank: row for row in run.rows}
    shift = tuple(
        rows[rank].start_ns - summary.start_ns for rank, summary in zip(numbered.ranks, numbered.summaries, strict=True)
    )
    matched = match(numbered.summaries)
    operation, meeting = [], []
    for r, view in enumerate(mine):
        timeline, graph = view.timeline, view.graph
        at = np.flatnonzero((timeline.does == COMMUNICATION) & (timeline.end > timeline.start))
        at = at[np.argsort(timeline.start[at], kind="stable")]
        here = matched.rank == r
        operation.append(np.searchsorted(graph.row, timeline.row[at[matched.at[here]]]))
        meeting.append(matched.instance[here])
    alignment = align_ranks(numbered.summaries, matched)
    start, end = (alignment.aligned(matched.rank, ns) for ns in (matched.start_ns, matched.end_ns))
    first = matched.first
    members = np.diff(np.concatenate([first, [len(start)]]))
    ends = np.array([int(np.median(end[a : a + n])) for a, n in zip(first.tolist(), members.tolist(), strict=True)])
    shortest = np.minimum.reduceat(end - start, first)
    transfer = np.clip(ends - np.maximum.reduceat(start, first), 0, shortest)
    return Joint(tuple(mine), shift, tuple(operation), tuple(meeting), transfer, members)


class _Walk:
    """One rank on its way through its graph."""

    def __init__(self, graph: Graph, origin: int, operation: Int64, original: Graph) -> None:
        self.graph, self.origin, self.operation = graph, origin, operation
        weight = graph.total_ns
        place = np.full(len(graph.row), NONE, np.int64)
        place[operation] = np.arange(len(operation))
        after = graph.after()
        after = np.where(after == NONE, NONE, place[after])
        edges = np.flatnonzero(after != NONE)
        weight[edges] -= graph.duration_ns[graph.after(edges)]  # known when all have come
        order = edges[np.argsort(after[edges], kind="stable")]
        bounds = np.searchsorted(after[order], np.arange(len(operation) + 1))
        self.edges_of = [order[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
        self.starts = graph.operation_point[operation]
        self.needed = np.array([int(graph.target[e].min()) if len(e) else NEVER for e in self.edges_of], np.int64)
        self.duration = graph.duration_ns.astype(np.int64)
        before = np.maximum(original.duration_ns[operation], 1)
        self.slower = graph.duration_ns[operation] / before
        time = np.zeros(len(graph.point), np.int64)
        time[0] = origin
        self.at = 1
        columns: list[Any] = [graph.first_edge, graph.source, weight, time]
        if not compiled.is_compiled(loops.sweep_part):  # lists are faster for Python
            columns = [column.tolist() for column in columns]
        self.first_edge, self.source, self.weight, self.time = columns
        self.open = np.ones(len(operation), np.bool_)

    def advance(self) -> list[int]:
        """As far as it goes; which collectives that were not reached before are."""
        stop = int(self.needed[self.open].min(initial=len(self.graph.point)))
        if stop <= self.at:
            return []
        loops.sweep_part(self.first_edge, self.source, self.weight, self.origin, self.at, stop, self.time)
        reached = np.flatnonzero((self.starts >= self.at) & (self.starts < stop))
        self.at = stop
        return [int(i) for i in reached]

    def arrival(self, i: int) -> int:
        return int(self.time[int(self.starts[i])])

    def end(self, i: int, ns: int) -> None:
        """The collective ends so long after its start on this rank."""
        self.open[i] = False
        self.duration[self.operation[i]] = max(ns, 0)
        for edge in self.edges_of[i].tolist():
            self.weight[edge] += ns

    def replay(self) -> Replay:
        graph = replace(self.graph, duration_ns=self.duration)
        return Replay(graph, np.asarray(self.time, np.int64))


def play(joint: Joint, graphs: Sequence[Graph] | None = None, early: frozenset[int] = frozenset()) -> JointReplay:
    """Replay all ranks with these graphs (the measured ones by default). Who is in `early` keeps nobody waiting."""
    graphs = graphs or [view.graph for view in joint.views]
    walks = [
        _Walk(graph, view.graph.trace.origin_ns + shift, operation, view.graph)
        for graph, view, shift, operation in zip(graphs, joint.views, joint.shift_ns, joint.operation, strict=True)
    ]
    waiting: dict[int, list[tuple[int, int]]] = {}
    done: set[int] = set()
    forced = 0
    while True:
        ready = []
        moved_on = False
        for r, walk in enumerate(walks):
            before = walk.at
            for i in walk.advance():
                meeting = int(joint.meeting[r][i])
                here = waiting.setdefault(meeting, [])
                here.append((r, i))
                if len(here) == joint.members[meeting]:
                    ready.append(meeting)
            moved_on |= walk.at != before
        if not ready and not moved_on:
            stuck = [m for m in waiting if m not in done]
            if all(walk.at >= len(walk.graph.point) for walk in walks) or not stuck:
                break
            ready = [min(stuck)]
            forced += 1
        for meeting in ready:
            if meeting in done:
                continue
            done.add(meeting)
            _meet(joint, walks, meeting, waiting[meeting], early)
    return JointReplay([walk.replay() for walk in walks], forced, early)


def _meet(
    joint: Joint, walks: Sequence[_Walk], meeting: int, here: Sequence[tuple[int, int]], early: frozenset[int]
) -> None:
    """Everybody leaves when the last one has come and the bytes have moved."""
    counted = [pair for pair in here if pair[0] not in early] or list(here)
    last = max(walks[r].arrival(i) for r, i in counted)
    for r, i in here:
        transfer = round(int(joint.transfer_ns[meeting]) * float(walks[r].slower[i]))
        walks[r].end(i, last + transfer - walks[r].arrival(i))


def span_ns(joint: Joint, played: JointReplay) -> tuple[int, int]:
    """When the run's windows begin (median over the ranks) and when the last of them ends."""
    starts, ends = [], []
    for view, done in zip(joint.views, played.replays, strict=True):
        window, graph, device = view.window, done.graph, view.index
        mine = graph.device == device
        if window.kind == "gpu":
            starts.append(int(done.operation_start[mine].min()))
            ends.append(int(done.operation_end[mine].max()))
            continue
        begun, ended = graph.trace.start_ns[graph.row], graph.trace.end_ns[graph.row]
        ran = mine & (ended <= window.end_ns) & (begun >= window.start_ns)
        starts.append(moved(done, window.start_ns, device))
        last = int(done.operation_end[ran].max()) if ran.any() else starts[-1]
        ends.append(max(last, moved(done, window.end_ns, device) if _marked(graph, window.end_ns) else last))
    return int(np.median(starts)), max(ends)


def _marked(graph: Graph, instant: int) -> bool:
    return bool((graph.mark_ns == instant).any())


def priced(run: Run, summaries: Sequence[RankSummary], views: Sequence[DeviceWindow]) -> Run:
    """The run with what faster stragglers and a better overlap would give, from the replay of all ranks together."""
    joint = join(run, summaries, views)
    if isinstance(joint, str):
        return _unpriced(run, joint)
    base = play(joint)
    begin, end = span_ns(joint, base)
    wall = end - begin
    measured = max(row.end_ns for row in run.rows) - int(np.median([row.start_ns for row in run.rows]))
    error = (wall - measured) / max(measured, 1)
    if abs(error) > TRUSTED:
        return _unpriced(run, f"the unchanged replay of all ranks is off by {percent(error, 1, '+')}")
    numbers = [row.rank for row in run.rows]
    found = []
    for straggler in run.stragglers:
        slow = [numbers.index(rank) for rank in straggler.ranks]
        saves = wall - _wall(joint, play(joint, _faster(joint, run, straggler, slow), _early(straggler, slow)))
        saves = min(max(saves, 0), wall)
        low, high = sorted((saves, straggler.cost_ns))
        found.append(replace(straggler, saving_ns=(low, high), how="replay"))
    return replace(run, stragglers=tuple(found), overlap=_overlap(run, joint, wall))


def _early(straggler: Straggler, slow: Sequence[int]) -> frozenset[int]:
    """Without a known phase nothing can be made faster; then nobody waits for them."""
    return frozenset() if straggler.phase else frozenset(slow)


def _unpriced(run: Run, why: str) -> Run:
    return replace(run, overlap=replace(run.overlap, why=why) if run.overlap else None)


def _wall(joint: Joint, played: JointReplay) -> int:
    begin, end = span_ns(joint, played)
    return end - begin


def _faster(joint: Joint, run: Run, straggler: Straggler, slow: Sequence[int]) -> list[Graph]:
    """The graphs with the stragglers' phase as long as the others'."""
    graphs = [view.graph for view in joint.views]
    if not straggler.phase:
        return graphs
    for r in slow:
        whole = run.rows[r].phases_ns[PHASES.index(straggler.phase)]
        share = min(straggler.phase_ns / max(whole, 1), 1.0)
        graphs[r] = _less(straggler.phase, share, graphs[r])(graphs[r])
    return graphs


def _less(phase: str, share: float, graph: Graph) -> Change:
    """This share of a phase is gone."""
    if phase == "compute":
        return scaled(operations_of(graph, COMPUTE), 1 - share)
    if phase == "copies":
        copies = operations_of(graph, *range(FIRST_COPY, FIRST_COPY + len(COPIES)), SET)
        return scaled(copies, 1 - share)
    if phase == "communication":
        return lambda same: same
    causes = [cause for cause in IDLE if PHASE_OF.get(cause, "host") == phase]
    # What a synchronisation's refill is charged with is any host work in the graph.
    return without_host([*causes, "host-unknown"] if phase == "host" else causes, share)


def _overlap(run: Run, joint: Joint, wall: int) -> Overlap | None:
    """All collectives beside compute, in the pessimistic and the optimistic form of the fix."""
    fix = FIXES["communication-overlap"]
    exposed = run.overlap.exposed_ns if run.overlap else 0
    if why := next(filter(None, (fix.refuses(view.graph) for view in joint.views)), None):
        return Overlap(None, exposed, why)
    low = wall - _wall(joint, play(joint, [fix.low(view.graph) for view in joint.views]))
    high = wall - _wall(joint, play(joint, [fix.high(view.graph) for view in joint.views]))
    high = min(max(high, 0), wall)
    return Overlap((int(min(max(low, 0) * fix.low_share, high)), high), exposed, "")
