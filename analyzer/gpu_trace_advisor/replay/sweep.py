"""The same work again: when everything would happen if a graph's edges were all that held it back."""

from __future__ import annotations

import numpy as np

from gpu_trace_advisor.columns.compact import blocks
from gpu_trace_advisor.graph import PASSES, Graph, Point
from gpu_trace_advisor.runtime import compiled, loops
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.steps import Window
from gpu_trace_advisor.trace.model import Bool, Int64

TRUSTED = 0.05  # error and share of unexplained delays together; above it no saving is shown


@dataclass(frozen=True)
class Replay:
    """When each point of a graph comes to pass."""

    graph: Graph
    time_ns: Int64
    """[p]"""

    @property
    def operation_start(self) -> Int64:
        """[m] ns."""
        return self.time_ns[self.graph.operation_point]

    @property
    def operation_end(self) -> Int64:
        return self.operation_start + self.graph.duration_ns


def replay(graph: Graph) -> Replay:
    """Each point as early as its edges allow."""
    time = np.zeros(len(graph.point), np.int64)
    compiled.call(
        loops.sweep_longest,
        (
            graph.source, graph.target, *graph.weight_ns.columns, graph.flags, PASSES, graph.duration_ns,
            graph.point == Point.OPERATION, graph.ref, graph.delay_ns, graph.trace.origin_ns,
        ),
        (time,),
    )  # fmt: skip
    return Replay(graph, time)


def wall_ns(done: Replay, window: Window, device: int) -> int:
    """How long the window of one device (index into the graph's timelines) lasts in a replay.

    `gpu`: from its first operation to the end of its last. Any other window: from where its start has moved to where its
    end has, and not before the operations that ran in it are done. It begins behind the operations that ended before it,
    however far ahead of them the host has come: what is queued before a window is none of its time.
    """
    first, last = _spanned(done, window, device)
    if window.kind == "gpu":
        return last - first
    start, end = moved(done, window.start_ns, device), moved(done, window.end_ns, device)
    start = max(start, _queued(done, window, device))
    return max(end, last, start) - start


def _queued(done: Replay, window: Window, device: int) -> int:
    """Last end in a replay of the operations of this device that ended by the window's start; the recording's start where
    there are none."""
    graph, last = done.graph, [done.graph.trace.origin_ns]
    for part in blocks(len(graph.row)):
        mine = (graph.device[part] == device) & (graph.trace.end_ns[graph.row[part]] <= window.start_ns)
        at = np.flatnonzero(mine) + part.start
        if len(at):
            last.append(int((done.time_ns[graph.operation_point[at]] + graph.duration_ns[at]).max()))
    return max(last)


def _spanned(done: Replay, window: Window, device: int) -> tuple[int, int]:
    """First start and last end in a replay of the operations that ran in a window of this device, all of it for `gpu`; the
    recording's start where there are none."""
    graph, first, last = done.graph, [], []
    for part in blocks(len(graph.row)):
        mine = graph.device[part] == device
        if window.kind != "gpu":
            row = graph.row[part]
            mine &= graph.trace.end_ns[row] <= window.end_ns
            mine &= graph.trace.start_ns[row] >= window.start_ns
        at = np.flatnonzero(mine) + part.start
        if len(at):
            start = done.time_ns[graph.operation_point[at]]
            first.append(int(start.min()))
            last.append(int((start + graph.duration_ns[at]).max()))
    return min(first, default=graph.trace.origin_ns), max(last, default=graph.trace.origin_ns)


def moved(done: Replay, instant: int, device: int) -> int:
    """When an instant of the measured timeline comes to pass in a replay."""
    graph = done.graph
    marks = graph.marks[graph.mark_ns == instant]
    if len(marks):
        return int(done.time_ns[marks].max())
    ends = np.concatenate(
        [np.flatnonzero(_end_at(graph, device, instant, p)) + p.start for p in blocks(len(graph.row))]
    )
    if len(ends):
        return int((done.time_ns[graph.operation_point[ends]] + graph.duration_ns[ends]).max())
    before, after = _around(done, device, instant)
    if after is None:
        last = graph.last_before(instant)
        return instant if last is None else int(done.time_ns[last] + instant) - graph.time(last)
    # As far between them as it was: a wait that the window cuts is cut where it was, however short it has become.
    share = (instant - before[0]) / (after[0] - before[0])
    return before[1] + round(max(after[1] - before[1], 0) * share)


def _around(done: Replay, device: int, instant: int) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """Measured and in a replay: the last start or end of an operation of this device by then, and the first one after.

    Before them all lies the recording's start; None after all of them.
    """
    graph, trace = done.graph, done.graph.trace
    before, after = (trace.origin_ns, trace.origin_ns), None
    for part in blocks(len(graph.row)):
        mine = np.flatnonzero(graph.device[part] == device) + part.start
        start, row = done.time_ns[graph.operation_point[mine]], graph.row[mine]
        for measured, replayed in (
            (trace.start_ns[row], start), (trace.end_ns[row], start + graph.duration_ns[mine])
        ):  # fmt: skip
            past = measured <= instant
            if past.any():
                last = int(measured[past].max())
                before = max(before, (last, int(replayed[measured == last].max())))
            if not past.all():
                first = int(measured[~past].min())
                found = (first, int(replayed[measured == first].min()))
                after = found if after is None else min(after, found)
    return before, after


def _end_at(graph: Graph, device: int, instant: int, part: slice) -> Bool:
    """[k] of a part of the operations those of a device that ended at an instant as measured."""
    found: Bool = (graph.device[part] == device) & (graph.trace.end_ns[graph.row[part]] == instant)
    return found


@dataclass(frozen=True)
class Trust:
    """How far a replay can be believed."""

    error: float
    """(replayed − measured) / measured wall time of the unchanged window."""
    unexplained: float
    """Share of the wall time that rests on what was not recorded."""

    @property
    def enough(self) -> bool:
        """Savings may be shown."""
        return abs(self.error) + self.unexplained <= TRUSTED


def error(done: Replay, window: Window, device: int) -> float:
    """(replayed − measured) / measured wall time of a window, nothing changed."""
    wall = max(window.wall_ns, 1)
    return (wall_ns(done, window, device) - wall) / wall
