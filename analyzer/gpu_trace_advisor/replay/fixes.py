"""Named fixes: what a recommendation changes in the graph, in a pessimistic and an optimistic form, and what it saves.

A saving is the difference of two replays. Fixes are applied one after the other, each to the graph that the ones before
left, so that together they never save the same time twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from gpu_trace_advisor.columns.codes import among, counted
from gpu_trace_advisor.columns.compact import where
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.replay.changes import (
    Change,
    captured,
    overlapped,
    regions,
    scaled,
    synchronisations,
    together,
    unnamed_wait_decides,
    waiting_frees,
    without_host,
    without_waits,
)
from gpu_trace_advisor.replay.sweep import replay, wall_ns
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, FIRST_COPY, SET, copy_classes, is_graph_launch
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.timelines.steps import Window
from gpu_trace_advisor.trace.model import NONE, Int64, Kind

# Assumptions, each used only where the trace itself has no figure.
GRAPH_LAUNCH_NS = 10_000  # one graph launch, when the trace has none to measure
GRAPH_GAP_NS = 1_300  # between operations of a replay on H100 (document training-vs-inference, launch figures)
LOADER_KEEPS = 0.4  # whole windows of real pairs took 5 to 14 % longer than with 0.8 and more of its time gone
PINNED_SPEEDUP = (1.1, 2.0)  # pessimistic and optimistic; measured pairs gave 1.1 to 1.8
CONTENTION = (1.3, 1.1)  # slowdown of communication that runs beside compute, pessimistic and optimistic
OVERLAP_SHARE = 0.5  # pessimistic share of what perfect overlap gives


def unchanged(graph: Graph) -> Graph:
    """No change."""
    return graph


def never_refuses(graph: Graph) -> str | None:
    """Always possible."""
    return None


@dataclass(frozen=True)
class Fix:
    """A change of the program, as changes of its graph."""

    name: str
    title: str
    low: Change
    """Pessimistic form."""
    high: Change
    """Optimistic form."""
    low_share: float = 1.0
    """Of what the pessimistic replay gives only this share is promised."""
    refuses: Callable[[Graph], str | None] = never_refuses
    """Why it cannot be priced on this graph, None where it can."""
    assumes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Saving:
    """Wall time that a fix takes away, ns: pessimistic and optimistic."""

    low_ns: int
    high_ns: int
    wall_ns: int
    """The unchanged replay's wall time."""

    @property
    def speedup(self) -> tuple[float, float]:
        """Wall time before over after."""
        return speedup(self.wall_ns, (self.low_ns, self.high_ns))


def speedup(wall_ns: int, saving_ns: tuple[int, int]) -> tuple[float, float]:
    """Wall time before over after, of a pessimistic and an optimistic saving."""
    low, high = (wall_ns / max(wall_ns - ns, 1) for ns in saving_ns)
    return low, high


def saving(graph: Graph, fixes: Sequence[Fix], window: Window, device: int) -> Saving:
    """What these fixes save together; marginal savings of later ones on top of earlier ones.

    Never more than the wall time, and the pessimistic form never more than the optimistic one.
    """

    def wall(changed: Graph) -> int:
        return wall_ns(replay(changed), window, device)

    before = wall(graph)
    low_graph = high_graph = graph
    low_wall, low, promised = before, 0.0, 1.0
    for fix in fixes:
        low_graph, high_graph = fix.low(low_graph), fix.high(high_graph)
        left = wall(low_graph)
        gains: float = max(low_wall - left, 0)
        if promised < 1.0:
            gains = behind(gains, max(before - wall(fix.low(graph)), 0), promised)
        low += gains * fix.low_share
        low_wall, promised = min(low_wall, left), promised * fix.low_share
    high = max(before - wall(high_graph), 0)
    return Saving(int(min(low, high)), int(high), before)


def behind(gains: float, alone: float, promised: float) -> float:
    """What a pessimistic form gains behind fixes of which only this share is promised.

    What it gains only behind them, such as faster kernels once the host keeps up, it gains as far as they hold.
    """
    return gains if gains <= alone else alone + (gains - alone) * promised


def host_fix(name: str, title: str, *causes: str, low_share: float = 1.0, assumes: tuple[str, ...] = ()) -> Fix:
    """Host time of these causes goes away."""
    return Fix(name, title, without_host(causes), without_host(causes), low_share, assumes=assumes)


def plain_synchronisations(graph: Graph) -> Int64:
    """Synchronisations that do not directly follow a copy on their thread: the host reads no value behind them."""
    syncs = synchronisations(graph)
    return np.asarray(syncs[_copy_before(graph)[syncs] == NONE], np.int64)


def _copy_before(graph: Graph) -> Int64:
    """[n] the copy call that is the last call of its thread before a call, -1 for none."""
    trace = graph.trace
    host = graph.timelines[0].host
    calls = where((trace.kind == Kind.CALL) & (host.doing != HostActivity.NOTHING))
    thread = trace.thread[calls]
    if (thread[1:] < thread[:-1]).any():
        calls = calls[np.argsort(thread, kind="stable")]
    found = np.full(len(trace), NONE)
    copies = (trace.thread[calls[1:]] == trace.thread[calls[:-1]]) & (host.doing[calls[:-1]] == HostActivity.COPY_CALL)
    found[calls[1:][copies]] = calls[:-1][copies]
    return found


def graph_launch_ns(graph: Graph) -> int:
    """The trace's own median graph launch call, else the assumption."""
    trace = graph.trace
    rows = ascending(trace.launch[graph.row])
    rows = rows[rows != NONE]
    codes, which, _ = counted(trace.name_code[rows])
    replays = np.array([is_graph_launch(trace.names[code]) for code in codes.tolist()], np.bool_)
    own = rows[replays[which]] if len(rows) else rows
    return int(np.median(trace.end_ns[own] - trace.start_ns[own])) if len(own) else GRAPH_LAUNCH_NS


def _graphs(gap: bool) -> Change:
    def change(graph: Graph) -> Graph:
        gap_ns = min(GRAPH_GAP_NS, graph.queued_gap_ns, graph.graph_gap_ns) if gap else None
        return captured(regions(graph), launch_ns=graph_launch_ns(graph), gap_ns=gap_ns)(graph)

    return change


def _refuses_graphs(graph: Graph) -> str | None:
    if unnamed_wait_decides(graph):
        return (
            "communication runs on its own stream behind waits that the trace does not name, so what a graph would change "
            "about them is unknown"
        )
    return None if len(regions(graph)) else "no two launches follow each other without a synchronisation between them"


def operations_of(graph: Graph, *classes: int) -> Int64:
    """Operations (index into the graph's) of these classes of `gpu_trace_advisor.timelines.device`."""
    rows = np.concatenate([t.row[np.isin(t.op_class, classes)] for t in graph.timelines])
    return np.flatnonzero(among(graph.row, rows))


def copies_of(graph: Graph, direction: str | None = None, memory: str | None = None) -> Int64:
    """Copies by direction and memory of the host's side."""
    return operations_of(graph, *copy_classes(direction, memory))


def _pinned(speedup: float, *, both: bool) -> Change:
    """Pageable copies return at once and need no staging, and nothing waits for those to the device. `both`: nor for those
    from it, and both directions run at the same time."""

    def change(graph: Graph) -> Graph:
        pageable, back = copies_of(graph, memory="pageable"), copies_of(graph, "DtoH", "pageable")
        calls, awaited = (ascending(graph.trace.launch[graph.row[some]]) for some in (pageable, back))
        of_stream = np.array(["streamsynchronize" in name.lower() for name in graph.trace.names], np.bool_)
        syncs = synchronisations(graph)
        syncs = syncs[of_stream[graph.trace.name_code[syncs]]]
        behind = _copy_before(graph)[syncs]
        syncs = syncs[among(behind, calls) & (both | ~among(behind, awaited))]
        # What comes back is waited for all the same, by the call where no synchronisation follows it.
        returns = calls if both else calls[~among(calls, awaited) | among(calls, behind)]
        graph = together(without_waits([*returns.tolist(), *syncs.tolist()]), without_host(["copy-staging"]))(graph)
        graph = scaled(pageable, 1 / speedup)(graph)
        return overlapped(back)(graph) if both and len(back) else graph

    return change


def _overlap(classes: Sequence[int], slowdown: float, *, independent: bool = False) -> Change:
    def change(graph: Graph) -> Graph:
        return overlapped(operations_of(graph, *classes), slowdown=slowdown, independent=independent)(graph)

    return change


def _refuses_without(classes: Sequence[int], what: str) -> Callable[[Graph], str | None]:
    def refuses(graph: Graph) -> str | None:
        return None if len(operations_of(graph, *classes)) else f"the trace has no {what}"

    return refuses


_COPIES = tuple(range(FIRST_COPY, SET))
_FIXES = (
    host_fix(
        "dataloader", "the data loader keeps ahead of the GPU", "dataloader", low_share=LOADER_KEEPS,
        assumes=("pessimistic: a faster loader still costs 60 % of what it cost (assumed from real pairs, first steps counted)",),
    ),
    Fix(
        "host-sync", "no blocking synchronisation",
        lambda graph: without_waits(plain_synchronisations(graph).tolist())(graph), without_waits(),
        assumes=("pessimistic: synchronisations right after a copy stay, the host needs its value at once",
                 "optimistic: it can wait"),
    ),
    Fix(
        "cuda-graphs", "launches captured as CUDA Graphs", _graphs(gap=False), _graphs(gap=True),
        refuses=_refuses_graphs,
        assumes=(
            f"a graph launch costs {GRAPH_LAUNCH_NS / 1000:g} µs where the trace has none",
            f"optimistic: operations of a replay follow after at most {GRAPH_GAP_NS / 1000:g} µs",
        ),
    ),
    Fix(
        "pinned-memory", "host buffers of copies are pinned", _pinned(PINNED_SPEEDUP[0], both=False),
        _pinned(PINNED_SPEEDUP[1], both=True),
        refuses=lambda graph: None if len(copies_of(graph, memory="pageable")) else "the trace has no pageable copies",
        assumes=(
            "pinned copies return at once",
            f"they run {PINNED_SPEEDUP[0]:g} to {PINNED_SPEEDUP[1]:g} times as fast",
            "optimistic: both directions overlap, and nothing waits for what comes back",
        ),
    ),
    Fix(
        "communication-overlap", "collectives run beside compute",
        _overlap([COMMUNICATION], CONTENTION[0]), _overlap([COMMUNICATION], CONTENTION[1]), OVERLAP_SHARE,
        refuses=_refuses_without([COMMUNICATION], "communication"),
        assumes=(f"contention slows collectives by {CONTENTION[1]:g} to {CONTENTION[0]:g}", "half of perfect overlap at least"),
    ),
    Fix(
        "copy-overlap", "copies run on a stream of their own", _overlap(_COPIES, 1.0),
        _overlap(_COPIES, 1.0, independent=True), OVERLAP_SHARE,
        refuses=_refuses_without(_COPIES, "copies"),
        assumes=("optimistic: nothing on the compute stream needs the copied data at once",),
    ),
    Fix(
        "allocator", "no device allocation in the loop", without_host(["allocator"]),
        lambda graph: together(without_host(["allocator"]), without_waits(waiting_frees(graph).tolist()))(graph),
        assumes=("optimistic: nothing else waits for the device in place of a call that frees memory",),
    ),
    host_fix("module-load", "modules loaded before the loop", "module-load"),
    host_fix("compile", "compiled before the loop", "compile"),
    host_fix("garbage-collection", "garbage collected outside the loop", "garbage-collection"),
    host_fix(
        "host-work", "the host launches at once what it launches now", "framework", "python", "launch-call", "host-unknown",
        low_share=0.5, assumes=("pessimistic: half of the framework and Python time stays",),
    ),
)  # fmt: skip
FIXES = {fix.name: fix for fix in _FIXES}
