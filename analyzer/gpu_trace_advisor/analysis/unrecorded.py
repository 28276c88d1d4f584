"""What of the wall rests on what was not recorded: a replay of it proves nothing, however small its error.

A recording that lacks launches, a thread, waits, kernels or operators replays as exactly as a whole one, because what is
missing holds nothing back there. So its traces are looked for:

    waits that no edge of the graph explains    an operation started late, and nothing recorded says what it waited for
    operations whose launch is missing          and the idle time before them; at the front the launch lay before the
                                                recording, there it is only the idle time
    host time of unknown cause                  before launches of a PyTorch program that no operator was recorded around;
                                                where operators are, a hole between them is the program's own time
    reading a value without a recorded wait     `aten::item` copies it from the device, and cannot return before that
    launches whose operation is missing         as a share of all launches: how long they ran is not known
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpu_trace_advisor.analysis.summary import lost_launches
from gpu_trace_advisor.attribution import UNLINKED, Attribution
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.intervals import ascending, clip, total, union
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.timelines.steps import Window
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind
from gpu_trace_advisor.trace.software import is_pytorch

READS = ("aten::_local_scalar_dense", "aten::nonzero")  # operators that wait for what they read from the device
CAPTURE = re.compile(r"StreamBeginCapture|StreamEndCapture")

Spans = tuple[Int64, Int64]


def unrecorded(attribution: Attribution, graph: Graph, window: Window, device: int) -> float:
    """The share of the window's wall time that rests on what was not recorded, 0 to 1."""
    starts, ends = zip(*_spans(attribution, graph, device), strict=True)
    spans = clip(union(np.concatenate(starts), np.concatenate(ends)), window.start_ns, window.end_ns)
    share = total(spans) / max(window.wall_ns, 1)
    return min(share + _lost_share(attribution, window), 1.0)


def _spans(attribution: Attribution, graph: Graph, device: int) -> Iterator[Spans]:
    yield _late(graph, device)
    yield _unlinked(attribution)
    yield _reads(attribution)
    bare = _bare(attribution)
    for part in attribution.pieces.parts():
        mine = (part.cause == CODE["device-unknown"]) & (part.side == UNLINKED)
        mine |= (part.cause == CODE["host-unknown"]) & bare[part.gap]
        yield part.start[mine], part.end[mine]


def _bare(attribution: Attribution) -> Bool:
    """[g] of a PyTorch program, the gap is closed by a launch that no operator was recorded around. One that no launch
    closes is like the others: they have operators around them, or none has."""
    timeline = attribution.timeline
    closing = timeline.gaps.closing
    if not is_pytorch(timeline.trace):
        return np.zeros(len(closing), np.bool_)
    inside = timeline.linked.copy()
    inside[inside] = timeline.host.operator[timeline.launch[inside]] != NONE
    found: Bool = ~np.where(closing == NONE, inside.any(), inside[closing])
    return found


def _late(graph: Graph, device: int) -> Spans:
    """From when an operation could have started, as far as edges say, to when it did."""
    late = np.flatnonzero((graph.delay_ns > 0) & (graph.device == device))
    start = graph.trace.start_ns[graph.row[late]]
    return start - graph.delay_ns[late], start


def _unlinked(attribution: Attribution) -> Spans:
    """Operations without a launch, but for those at the front of what has launches."""
    timeline = attribution.timeline
    trace, linked = timeline.trace, timeline.linked
    front = int(timeline.start[linked].min()) if linked.any() else trace.origin_ns
    mine = np.flatnonzero(~linked & (timeline.start >= front))
    return timeline.start[mine], timeline.end[mine]


def _reads(attribution: Attribution) -> Spans:
    """Operators that wait for what they copy from the device, and inside which no wait was recorded."""
    timeline = attribution.timeline
    trace, host = timeline.trace, timeline.host
    linked = np.flatnonzero(timeline.linked & (timeline.trace.kind[timeline.row] == Kind.COPY))
    operator = host.operator[timeline.launch[linked]]
    operator = ascending(operator[operator != NONE])
    operator = operator[named(trace, trace.name_code[operator], lambda name: name in READS)]
    waiting = host.operator[attribution.blocking.row]
    operator = operator[~among(operator, waiting)]
    return trace.start_ns[operator], trace.end_ns[operator]


def _lost_share(attribution: Attribution, window: Window) -> float:
    """Share of the window's launches whose operation was not recorded; those after the last one that was do not count:
    the recording ended before their operations did."""
    timeline = attribution.timeline
    trace = timeline.trace
    launches = ascending(timeline.launch[timeline.linked])
    begun = np.sort(trace.start_ns[launches])
    lost = lost_launches(timeline)
    lost = trace.start_ns[lost[~_captured(attribution, lost)]]
    inside = (lost >= window.start_ns) & (lost < min(window.end_ns, int(begun[-1]) if len(begun) else window.start_ns))
    count = int(inside.sum())
    kept = int(((begun >= window.start_ns) & (begun < window.end_ns)).sum())
    return count / max(count + kept, 1)


def _captured(attribution: Attribution, calls: Int64) -> Bool:
    """[k] the call is inside a capture: what it launches becomes a node of a graph, and does not run."""
    trace = attribution.timeline.trace
    bounds = np.flatnonzero(trace.kind == Kind.CALL)
    bounds = bounds[named(trace, trace.name_code[bounds], lambda name: CAPTURE.search(name) is not None)]
    if not len(bounds):
        return np.zeros(len(calls), np.bool_)
    begins = named(trace, trace.name_code[bounds], lambda name: "Begin" in name)
    at = np.searchsorted(trace.start_ns[bounds], trace.start_ns[calls], side="right") - 1
    found: Bool = (at >= 0) & begins[np.maximum(at, 0)]
    return found
