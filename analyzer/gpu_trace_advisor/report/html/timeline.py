"""What the page's timeline draws of one device: boxes on lanes, as short integer columns.

Times are nanoseconds from the window's start. A page holds a limited number of boxes: where a trace has more, the first
and the longest step, the largest gaps and what the findings point at are kept whole, and the rest is summed up on a grid;
such a box carries how many events it stands for and how long they ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import largest_gaps, readable_host
from gpu_trace_advisor.attribution.causes import CAUSES, IDLE
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.intervals import NOTHING, Intervals, ascending, merge, subtract, union
from gpu_trace_advisor.graph import Edge, Point
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.kernel_names import readable
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

BOXES = 100_000  # of a page: about 2 MB, and drawn in a few milliseconds
GRID_SHARE = 4  # one box of so many may be a summed-up one
STREAMS, THREADS = 16, 6  # lanes shown, those with the most work
MARGIN = 0.02  # of the window, shown before and after it
PATH_SHARE = 5  # stretches of the critical path: one for so many boxes
BINS = 240  # of the overview
STEPS = 5_000  # marked one by one

COLOURS = (
    "kernel-time", "communication", "copies", "dataloader-gaps", "implicit-barriers", "launch-overhead", "host-stalls",
    "profiler", "unattributed", "operator", "python", "waiting",
)  # fmt: skip
"""What a box can be coloured as: categories, and what a host thread does that is no loss by itself."""
CODE = {name: code for code, name in enumerate(COLOURS)}
OF_CAUSE = np.array([CODE[CAUSES[cause].category] for cause in IDLE])
OF_DOING = np.full(len(HostActivity), CODE["waiting"])
for _doing, _colour in {
    HostActivity.PROFILER: "profiler", HostActivity.GARBAGE: "host-stalls", HostActivity.DATALOADER: "dataloader-gaps",
    HostActivity.COMPILE: "host-stalls", HostActivity.SYNC: "implicit-barriers", HostActivity.COPY_CALL: "copies",
    HostActivity.ALLOCATOR: "host-stalls", HostActivity.MODULE: "host-stalls", HostActivity.CALL: "launch-overhead",
    HostActivity.OPERATOR: "operator", HostActivity.PYTHON: "python",
}.items():  # fmt: skip
    OF_DOING[_doing] = CODE[_colour]


@dataclass
class _Names:
    """Distinct texts by the order in which they were first asked for."""

    texts: list[str] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)

    def code(self, text: str) -> int:
        if text not in self.place:
            self.place[text] = len(self.texts)
            self.texts.append(text)
        return self.place[text]

    def codes(self, texts: Sequence[str]) -> Int64:
        return np.array([self.code(text) for text in texts], np.int64)


@dataclass(frozen=True)
class _Lane:
    """Boxes of one row, in time order; `colour` and `name` are codes."""

    kind: str
    label: str
    start: Int64
    end: Int64
    name: Int64
    colour: Int64
    launched: Int64 | None = None
    """For operations ns from launch to start, -1 none; `thread` the lane of the launch."""
    thread: Int64 | None = None

    def keep(self, mask: Bool) -> _Lane:
        columns = (None if c is None else c[mask] for c in (self.launched, self.thread))
        return _Lane(
            self.kind, self.label, self.start[mask], self.end[mask], self.name[mask], self.colour[mask], *columns
        )


@dataclass(frozen=True)
class Focus:
    """A stretch to be shown in full, most important first."""

    start_ns: int
    end_ns: int


def device_data(view: DeviceWindow, marks: Sequence[int] = (), limit: int = BOXES) -> dict[str, Any]:
    """One device's timeline for the page's script; `marks` are instants that the page points at."""
    window, names = view.window, _Names()
    base, wall = window.start_ns, window.wall_ns
    low, high = base - int(MARGIN * wall), window.end_ns + int(MARGIN * wall)
    threads = list(view.timeline.host.launching)[:THREADS]
    lanes = [_idle_lane(view, names), *_stream_lanes(view, names, threads), *_host_lanes(view, names, threads)]
    lanes = [lane.keep((lane.end > low) & (lane.start < high)) for lane in lanes]
    whole = focus_whole(lanes, _focuses(view, marks), limit)
    grid = max(wall * len(lanes) * GRID_SHARE // max(limit, 1), 1)
    packed = [_pack(lane, base, whole, grid) for lane in lanes]
    return {
        "wall": wall,
        "start": low - base,
        "end": high - base,
        "lanes": packed,
        "names": _used(packed, names.texts),
        "steps": _steps(view, whole),
        "path": _path(view, lanes, threads, low, high, limit // PATH_SHARE),
        "whole": None if whole is None else [[int(a) - base, int(b) - base] for a, b in zip(*whole, strict=True)],
        "boxes": sum(len(lane["d"]) for lane in packed),
    }


def _steps(view: DeviceWindow, whole: Intervals | None) -> list[list[Any]]:
    """Name, start, end and whether it is left out. Of very many only those that are kept whole: others cannot be seen."""
    base, steps = view.window.start_ns, view.steps
    if len(steps) > STEPS and whole is not None:
        starts = np.array([step.start_ns for step in steps])
        steps = tuple(steps[i] for i in np.flatnonzero(_inside(whole, starts)).tolist())
    return [
        [step.name, step.start_ns - base, step.end_ns - base, int(step.left_out is not None)] for step in steps[:BOXES]
    ]


def _idle_lane(view: DeviceWindow, names: _Names) -> _Lane:
    pieces, trace = view.attribution.pieces, view.trace
    low, high = np.searchsorted(pieces.start, (view.window.start_ns - 1, view.window.end_ns))
    at = slice(max(int(low) - 1, 0), int(high))
    cause, row = pieces.cause[at].astype(np.int64), pieces.row[at]
    key = cause * (len(trace.names) + 1) + np.where(row == NONE, len(trace.names), trace.name_code[row])
    distinct, first, which = np.unique(key, return_index=True, return_inverse=True)
    texts = []
    for i in first.tolist():
        label = CAUSES[IDLE[cause[i]]].label
        texts.append(f"{label}: {readable_host(trace, int(row[i]))}" if row[i] != NONE else label)
    codes = names.codes(texts)[which] if len(distinct) else np.empty(0, np.int64)
    return _Lane("idle", "idle, by cause", pieces.start[at], pieces.end[at], codes, OF_CAUSE[cause])


def _stream_lanes(view: DeviceWindow, names: _Names, threads: list[int]) -> list[_Lane]:
    timeline, trace = view.timeline, view.trace
    length = timeline.length
    streams, which = np.unique(timeline.stream, return_inverse=True)
    work = np.bincount(which, length, len(streams))
    shown = sorted(np.argsort(-work, kind="stable")[:STREAMS].tolist())
    colour = np.where(timeline.does == COMPUTE, 0, np.where(timeline.does == COMMUNICATION, 1, 2))
    used = present(trace.name_code[timeline.row])
    table = np.zeros(len(trace.names), np.int64)
    table[used] = names.codes([readable(trace.names[code]) for code in used.tolist()])
    lane_of_thread = np.full(len(trace.threads) + 1, NONE, np.int64)
    lane_of_thread[threads] = 1 + len(shown) + np.arange(len(threads))
    launched = np.where(timeline.linked, timeline.start - timeline.launch_start, NONE)
    thread = np.where(timeline.linked, lane_of_thread[trace.thread[timeline.launch]], NONE)
    launched = np.where(thread == NONE, NONE, launched)
    found = []
    for i in shown:
        at = np.flatnonzero(which == i)
        number = int(streams[i])
        label = f"stream {number}" if number != NONE else "no stream"
        rows = table[trace.name_code[timeline.row[at]]]
        found.append(
            _Lane("stream", label, timeline.start[at], timeline.end[at], rows, colour[at], launched[at], thread[at])
        )
    return found


def _host_lanes(view: DeviceWindow, names: _Names, threads: list[int]) -> list[_Lane]:
    trace = view.trace
    found = []
    for thread in threads:
        segments = view.timeline.host.segments[thread]
        used, which = np.unique(trace.name_code[segments.row], return_inverse=True)
        first = np.zeros(len(used), np.int64)
        first[which] = segments.row
        codes = names.codes([readable_host(trace, row) for row in first.tolist()])
        who = trace.threads[thread]
        label = who.name if who.name.startswith("thread ") else f"thread {who.name or who.tid}"
        found.append(
            _Lane(
                "host",
                label,
                segments.start,
                segments.end,
                codes[which] if len(used) else which,
                OF_DOING[segments.doing],
            )
        )
    return found


def _focuses(view: DeviceWindow, marks: Sequence[int]) -> list[Focus]:
    """What is kept whole, most important first."""
    window = view.window
    around = max(window.wall_ns // 400, 1)
    found = [Focus(mark - around, mark + 2 * around) for mark in marks]
    kept = view.kept_steps
    if kept:
        ends = [*(after.start_ns for after in kept[1:]), kept[-1].end_ns]
        worst = max(zip(kept, ends, strict=True), key=lambda pair: pair[1] - pair[0].start_ns)[0]
        found += [Focus(step.start_ns, step.end_ns) for step in (kept[0], worst)]
    gaps = largest_gaps(view.attribution, window.start_ns, window.end_ns)
    found += [Focus(gap.start_ns - gap.ns // 4, gap.end_ns + gap.ns // 4) for gap in gaps]
    return found or [Focus(window.start_ns, window.start_ns + around)]


def focus_whole(lanes: Sequence[_Lane], focuses: Sequence[Focus], limit: int) -> Intervals | None:
    """The stretches in which every box is kept; None where all of them fit. Lanes are sorted by start."""
    if sum(len(lane.start) for lane in lanes) <= limit:
        return None
    whole = NOTHING
    left = limit - limit // GRID_SHARE
    for focus in focuses:
        spans = [np.searchsorted(lane.start, (focus.start_ns, focus.end_ns)) for lane in lanes]
        count = int(sum(last - first for first, last in spans))
        if not count or left <= 0:
            continue
        end = focus.end_ns
        if count > left:
            inside = [lane.start[first:last] for lane, (first, last) in zip(lanes, spans, strict=True)]
            end = int(np.sort(np.concatenate(inside))[left])
        left -= min(count, left)
        whole = merge(whole, Intervals(np.array([focus.start_ns]), np.array([end])))
    return whole


def _inside(whole: Intervals, start: Int64) -> Bool:
    if not len(whole.start):
        return np.zeros(len(start), np.bool_)
    at = np.searchsorted(whole.start, start, side="right") - 1
    found: Bool = (at >= 0) & (start < whole.end[np.maximum(at, 0)])
    return found


def _pack(lane: _Lane, base: int, whole: Intervals | None, grid: int) -> dict[str, Any]:
    """A lane's columns: start as the difference to the box before, duration, name and colour; launches where they are."""
    start, end, name, colour = lane.start, lane.end, lane.name, lane.colour
    group = np.arange(len(start))
    if whole is not None and len(start):
        full = _inside(whole, start)
        cell = (start - base) // grid
        group = np.cumsum(np.concatenate([[True], (cell[1:] != cell[:-1]) | full[1:] | full[:-1]])) - 1
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])) if len(start) else group
    count = np.diff(np.concatenate([first, [len(start)]]))
    longest = np.lexsort((start - end, group))[first] if len(start) else group
    begins = start[first] - base
    ends = (np.maximum.reduceat(end, first) if len(start) else end) - base
    packed: dict[str, Any] = {
        "kind": lane.kind,
        "label": lane.label,
        "t": np.diff(begins, prepend=0).tolist(),
        "d": (ends - begins).tolist(),
        "n": name[longest].tolist(),
        "c": "".join(map(_LETTERS.__getitem__, colour[longest].tolist())),
    }
    several = np.flatnonzero(count > 1)
    if len(several):
        busy = np.add.reduceat(end - start, first)
        packed["sum"] = np.stack([several, count[several], busy[several]], axis=1).tolist()
    if lane.launched is not None and lane.thread is not None:
        launched, thread = lane.launched[first], lane.thread[first]
        packed["l"] = np.where(count == 1, launched, NONE).tolist()
        lanes = present(thread[thread != NONE]).tolist()
        packed["h"] = lanes[0] if len(lanes) == 1 else thread.tolist() if lanes else NONE
    return packed


def _used(lanes: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """The names that the boxes have; their columns are renumbered."""
    used: dict[int, int] = {}
    for lane in lanes:
        lane["n"] = [used.setdefault(code, len(used)) for code in lane["n"]]
    return [names[code] for code in used]


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _path(
    view: DeviceWindow, lanes: Sequence[_Lane], threads: list[int], low: int, high: int, limit: int
) -> list[list[int]]:
    """The critical path as [lane, start, end]: where it runs at each time."""
    graph, path, trace = view.graph, view.critical_path, view.trace
    streams = {lane.label: i for i, lane in enumerate(lanes) if lane.kind == "stream"}
    number = ascending(trace.stream[graph.row])
    of_stream = np.array([streams.get(f"stream {s}", NONE) if s != NONE else NONE for s in number.tolist()], np.int64)
    of_operation = np.where(
        graph.device == view.index, of_stream[np.searchsorted(number, trace.stream[graph.row])], NONE
    )
    of_thread = np.full(len(trace.threads) + 1, NONE, np.int64)
    of_thread[threads] = len(lanes) - len(threads) + np.arange(len(threads))
    target = graph.target[path.edges]
    on_device = (graph.point[target] == Point.OPERATION) & (graph.kind[path.edges] != Edge.LAUNCH)
    ref = graph.ref[target]
    waits = np.full(len(target), NONE, np.int64)
    waits[on_device] = of_operation[ref[on_device]]
    host = np.isin(graph.point[target], (Point.CALL, Point.RETURN, Point.MARK))
    waits[host] = of_thread[trace.thread[ref[host]]]
    launches = ~on_device & ~host
    waits[launches] = of_operation[ref[launches]]
    after = graph.after(path.edges)
    runs = np.where(after != NONE, of_operation[after], NONE) if len(graph.row) else waits
    start = np.concatenate([path.since, path.done])
    end = np.concatenate([path.done, path.until])
    lane = np.concatenate([runs, waits])
    keep = (end > start) & (lane != NONE) & (end > low) & (start < high)
    start, end, lane = start[keep], end[keep], lane[keep]
    order = np.argsort(start, kind="stable")
    start, end, lane = start[order], end[order], lane[order]
    new = (
        np.concatenate([[True], (lane[1:] != lane[:-1]) | (start[1:] > end[:-1])])
        if len(start)
        else np.zeros(0, np.bool_)
    )
    first = np.flatnonzero(new)
    if not len(first):
        return []
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    found = np.stack([lane[first], start[first], end[last]], axis=1)
    if len(found) > limit:  # the longest stretches say where it runs
        found = found[np.sort(np.argsort(found[:, 1] - found[:, 2], kind="stable")[:limit])]
    found[:, 1:] -= view.window.start_ns
    path_on_lanes: list[list[int]] = found.tolist()
    return path_on_lanes


def overview(view: DeviceWindow, bins: int = BINS) -> dict[str, list[float]]:
    """For each category its share of each of the equal parts of the window."""
    timeline, window = view.timeline, view.window
    edges = np.linspace(window.start_ns, window.end_ns, bins + 1)
    compute = timeline.union_of(timeline.does == COMPUTE)
    communication = timeline.union_of(timeline.does == COMMUNICATION)
    copies = timeline.union_of(timeline.does > COMMUNICATION)
    parts = {
        "kernel-time": compute,
        "communication": subtract(communication, compute),
        "copies": subtract(copies, merge(compute, communication)),
    }
    pieces = view.attribution.pieces
    for code, category in enumerate(COLOURS):
        mine = OF_CAUSE[pieces.cause] == code
        if mine.any():
            idle = union(pieces.start[mine], pieces.end[mine])
            parts[category] = merge(parts[category], idle) if category in parts else idle
    shares = {name: _covered(part, edges) / (window.wall_ns / bins) for name, part in parts.items()}
    return {name: np.clip(share, 0, 1).round(4).tolist() for name, share in shares.items() if share.any()}


def _covered(part: Intervals, edges: Any) -> Any:
    """Time of each stretch between two edges that disjoint intervals cover."""
    if not len(part.start):
        return np.zeros(len(edges) - 1)
    times = np.stack([part.start, part.end], axis=1).ravel()
    done = np.cumsum(part.end - part.start)
    reached = np.stack([done - (part.end - part.start), done], axis=1).ravel()
    return np.diff(np.interp(edges, times, reached))
