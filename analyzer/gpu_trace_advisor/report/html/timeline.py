"""A drawing's lanes as the page's script reads them: short integer columns, and no more boxes than a page can hold.

Times are nanoseconds from the window's start. Where a device has more boxes than its limit, what the findings point at, the
first and the longest step and the largest gaps are kept whole; the rest is summed up on a grid as fine as the limit allows.
A summed-up box stands for boxes of one colour and carries how many they are and how long they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu_trace_advisor.columns.intervals import NOTHING, Intervals, merge, subtract
from gpu_trace_advisor.drawing.model import Detail, Drawing, Lane, Path
from gpu_trace_advisor.report.html.palette import SLOTS, slot_of
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

BOXES = 56_000  # of a page: about 2 MB, and drawn in a few milliseconds
MARGIN = 0.02  # of the window, shown before and after it
PATH_SHARE = 12  # stretches of the critical path: one for so many boxes
GRID_SHARE = 4  # one box of so many is kept for what is summed up
STEPS = 2_000  # marked one by one
TEXTS = 250_000  # characters of all texts; where there are more, each is cut shorter
LONGEST = (300, 120, 60, 30)  # characters of a text, as far as they fit


class Focus(NamedTuple):
    """A stretch to be shown in full, most important first."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class PackedLane:
    """One lane's boxes as they are sent; ns from the window's start."""

    start: Int64
    end: Int64
    detail: Int64
    count: Int64
    busy: Int64
    delay: Int64 | None
    """From launch to start, NONE where the launch is not known; `thread` is the launch's."""
    thread: Int64 | None


def device_data(
    drawing: Drawing, marks: Sequence[int] = (), limit: int = BOXES, findings: dict[int, int] | None = None
) -> dict[str, Any]:
    """One device's timeline. `marks` are instants that the page points at; `findings` the number of a detail's finding."""
    base, wall = drawing.start_ns, drawing.wall_ns
    low, high = base - int(MARGIN * wall), drawing.end_ns + int(MARGIN * wall)
    colour_of = np.array([SLOTS.index(slot_of(one.colour)) for one in drawing.details] or [0])
    whole = kept_whole(drawing.lanes, focuses(drawing, marks), limit)
    grid = 1 if whole is None else finest_grid(drawing.lanes, colour_of, whole, base, wall, limit)
    packed = [pack(lane, colour_of, base, whole, grid) for lane in drawing.lanes]
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(one.detail for one in packed)]))
    number = np.zeros(len(drawing.details) + 1, np.int64)
    number[used] = np.arange(len(used))
    texts = Texts(_longest(drawing.details[i] for i in used.tolist()))
    told = findings or {}
    stacks: dict[tuple[str, ...], int] = {}
    return {
        "wall": wall,
        "origin": base - drawing.origin_ns,
        "start": low - base,
        "end": high - base,
        "lanes": [_columns(lane, one, number) for lane, one in zip(drawing.lanes, packed, strict=True)],
        "details": [[*_detail(drawing.details[i], texts, stacks), told.get(i, 0)] for i in used.tolist()],
        "stacks": [[texts.code(text) for text in stack] for stack in stacks],
        "texts": texts.found,
        "steps": _steps(drawing, whole, texts.longest),
        "path": _path(drawing.path, base, low, high, limit // PATH_SHARE),
        "whole": None if whole is None else [[int(a) - base, int(b) - base] for a, b in zip(*whole, strict=True)],
        "boxes": sum(len(one.start) for one in packed),
    }


class Texts:
    """Distinct texts by the order in which they were first asked for; 0 is the empty one."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.found: list[str] = [""]
        self.place = {"": 0}

    def code(self, text: str) -> int:
        text = shareable(text)
        text = text if len(text) <= self.longest else text[: self.longest - 1] + "…"
        if text not in self.place:
            self.place[text] = len(self.found)
            self.found.append(text)
        return self.place[text]


def _longest(details: Iterable[Detail]) -> int:
    """How long a text may be so that all of them together stay small."""
    distinct = {
        text
        for one in details
        for text in (one.name, one.full_name, one.operator, one.shapes, one.grid, one.block, *one.stack)
    }
    return next((n for n in LONGEST if sum(min(len(text), n) for text in distinct) <= TEXTS), LONGEST[-1])


def _detail(one: Detail, texts: Texts, stacks: dict[tuple[str, ...], int]) -> list[Any]:
    stack = stacks.setdefault(one.stack, len(stacks))
    return [
        texts.code(one.name), SLOTS.index(slot_of(one.colour)), texts.code(one.full_name), texts.code(one.operator), stack,
        texts.code(one.shapes), texts.code(one.grid), texts.code(one.block),
        None if one.reachable is None else round(one.reachable, 3), texts.code(one.cause), texts.code(one.side),
        texts.code(one.grade),
    ]  # fmt: skip


def focuses(drawing: Drawing, marks: Sequence[int]) -> list[Focus]:
    """What is kept whole, most important first."""
    around = max(drawing.wall_ns // 400, 1)
    found = [Focus(mark - around, mark + 2 * around) for mark in marks]
    kept = [step for step in drawing.steps if step.left_out is None]
    if kept:
        ends = [*(after.start_ns for after in kept[1:]), kept[-1].end_ns]
        worst = max(zip(kept, ends, strict=True), key=lambda pair: pair[1] - pair[0].start_ns)[0]
        found += [Focus(step.start_ns, step.end_ns) for step in (kept[0], worst)]
    idle = next((lane for lane in drawing.lanes if lane.kind == "idle"), None)
    if idle is not None:
        length = idle.end - idle.start
        for i in np.argsort(-length, kind="stable")[:10].tolist():
            spare = int(length[i]) // 4
            found.append(Focus(int(idle.start[i]) - spare, int(idle.end[i]) + spare))
    return found or [Focus(drawing.start_ns, drawing.start_ns + around)]


def kept_whole(lanes: Sequence[Lane], wanted: Sequence[Focus], limit: int) -> Intervals | None:
    """The stretches in which every box is kept, all of `wanted` that fit; None where everything fits."""
    if sum(map(len, lanes)) <= limit:
        return None
    whole, left = NOTHING, limit - limit // GRID_SHARE
    for focus in wanted:
        new = subtract(Intervals(np.array([focus.start_ns]), np.array([max(focus.end_ns, focus.start_ns + 1)])), whole)
        for start, end in zip(new.start.tolist(), new.end.tolist(), strict=True):
            spans = [np.searchsorted(lane.start, (start, end)) for lane in lanes]
            count = int(sum(last - first for first, last in spans))
            if count > left:
                inside = [lane.start[first:last] for lane, (first, last) in zip(lanes, spans, strict=True)]
                end = int(np.sort(np.concatenate(inside))[left])
                count = left
            left -= count
            if end > start:
                whole = merge(whole, Intervals(np.array([start]), np.array([end])))
        if left <= 0:
            break
    return whole


def finest_grid(lanes: Sequence[Lane], colour_of: Int64, whole: Intervals, base: int, wall: int, limit: int) -> int:
    """The finest grid with which all boxes fit, in ns."""
    low, high = 0, max(wall, 1).bit_length()
    keys = [(inside(whole, lane.start), lane.start - base, colour_of[lane.detail]) for lane in lanes]
    while low < high:  # powers of two: the grid is at most twice as coarse as it might be
        middle = (low + high) // 2
        count = sum(_boxes(full, start, colour, 1 << middle) for full, start, colour in keys)
        low, high = (low, middle) if count <= limit else (middle + 1, high)
    return 1 << low


def _boxes(full: Bool, start: Int64, colour: Int64, grid: int) -> int:
    """How many boxes a lane has with this grid."""
    rest = ~full
    key = (start[rest] // grid) * len(SLOTS) + colour[rest]
    return int(full.sum()) + len(np.unique(key))


def inside(whole: Intervals, start: Int64) -> Bool:
    """[k] in one of the disjoint stretches."""
    if not len(whole.start):
        return np.zeros(len(start), np.bool_)
    at = np.searchsorted(whole.start, start, side="right") - 1
    found: Bool = (at >= 0) & (start < whole.end[np.maximum(at, 0)])
    return found


def pack(lane: Lane, colour_of: Int64, base: int, whole: Intervals | None, grid: int) -> PackedLane:
    """The boxes of a lane that are sent, by start: single ones, and one for each colour of each part of the grid."""
    start, end, detail = lane.start - base, lane.end - base, lane.detail.astype(np.int64)
    launch, thread = lane.launch, None if lane.thread is None else lane.thread.astype(np.int64)
    delay = None if launch is None else np.where(launch == NONE, NONE, np.maximum(lane.start - launch, 0))
    if whole is None or not len(start):
        ones = np.ones(len(start), np.int64)
        return PackedLane(start, end, detail, ones, end - start, delay, thread)
    full = inside(whole, lane.start)
    key = np.where(full, 2 * np.arange(len(start)), (start // grid) * len(SLOTS) + colour_of[detail])
    order = np.lexsort((start - end, key, full))
    same = (key[order][1:] == key[order][:-1]) & ~full[order][1:] & ~full[order][:-1]
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    count = np.diff(np.concatenate([first, [len(start)]]))
    begins = np.minimum.reduceat(start[order], first)
    ends = np.maximum.reduceat(end[order], first)
    busy = np.add.reduceat((end - start)[order], first)
    longest = order[first]  # of a group the longest comes first
    by_start = np.lexsort((begins - ends, begins))
    single = (count == 1)[by_start]
    delay, thread = (
        None if column is None else np.where(single, column[longest][by_start], NONE) for column in (delay, thread)
    )
    return PackedLane(
        begins[by_start], ends[by_start], detail[longest][by_start], count[by_start], busy[by_start], delay, thread
    )  # fmt: skip


def _columns(lane: Lane, packed: PackedLane, number: Int64) -> dict[str, Any]:
    """A lane as it is written: start as the difference to the box before, duration, detail; launches where they are."""
    columns: dict[str, Any] = {
        "kind": lane.kind,
        "label": shareable(lane.label)[:120],
        "depth": lane.depth,
        "t": np.diff(packed.start, prepend=0).tolist(),
        "d": (packed.end - packed.start).tolist(),
        "n": number[packed.detail].tolist(),
    }
    several = np.flatnonzero(packed.count > 1)
    if len(several):
        ahead = np.diff(several, prepend=0)  # short numbers
        columns["sum"] = np.stack([ahead, packed.count[several], packed.busy[several]], axis=1).tolist()
    if packed.delay is not None and packed.thread is not None:
        columns["l"] = packed.delay.tolist()
        threads = np.unique(packed.thread[packed.delay != NONE]).tolist()
        columns["h"] = threads[0] if len(threads) == 1 else packed.thread.tolist() if threads else NONE
    return columns


def _steps(drawing: Drawing, whole: Intervals | None, longest: int) -> list[list[Any]]:
    """Name, start, end and whether it is left out. Of very many only those that are kept whole: others cannot be seen."""
    base, steps = drawing.start_ns, drawing.steps
    if len(steps) > STEPS and whole is not None:
        starts = np.array([step.start_ns for step in steps])
        steps = tuple(steps[i] for i in np.flatnonzero(inside(whole, starts)).tolist())
    return [
        [shareable(step.name)[:longest], step.start_ns - base, step.end_ns - base, int(step.left_out is not None)]
        for step in steps[:STEPS]
    ]


def _path(path: Path | None, base: int, low: int, high: int, limit: int) -> list[list[int]]:
    """The critical path as [lane, start, end]; of very many stretches the longest."""
    if path is None:
        return []
    keep = (path.end > path.start) & (path.lane != NONE) & (path.end > low) & (path.start < high)
    start, end, lane = path.start[keep], path.end[keep], path.lane[keep]
    if not len(start):
        return []
    first = np.flatnonzero(np.concatenate([[True], (lane[1:] != lane[:-1]) | (start[1:] > end[:-1])]))
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    found = np.stack([lane[first], start[first] - base, end[last] - base], axis=1)
    if len(found) > limit:
        found = found[np.sort(np.argsort(found[:, 1] - found[:, 2], kind="stable")[:limit])]
    columns: list[list[int]] = found.tolist()
    return columns
