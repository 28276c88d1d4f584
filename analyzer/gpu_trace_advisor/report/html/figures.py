"""Drawings as SVG: overviews, steps before and after, flame graphs, heat strips, memory, all ranks on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpu_trace_advisor.drawing.model import Coverage, Drawing, Fixes, Flame, HeatRow, MemoryCurve
from gpu_trace_advisor.ranks.model import PHASES, RankRow, RankSet
from gpu_trace_advisor.report.html.palette import SLOTS, labels, slot_of
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.steps import Step
from gpu_trace_advisor.units import duration, share

LEVELS = 8  # shades of a heat strip
HEAT_ROWS = 8
LONGEST_NAME = 120  # characters of a step's name
DEEPEST = 24  # rows of a flame graph
RANKS = 64  # drawn on one axis
FINE = 4  # of them in full width; of more, half as fine
LINKS = 40  # collectives drawn between ranks, those that cost most
PHASE_COLOURS = dict(
    zip(
        PHASES,
        ("dataloader", "kernels", "communication", "copies", "framework", "host-sync", "profiler", "device-unknown"),
        strict=True,
    )
)


def paths(coverage: Coverage) -> list[tuple[str, str]]:
    """One SVG path a colour, stacked from below, in a box as wide as it has parts and 100 high; to one in a hundred."""
    names = sorted(coverage.shares, key=lambda name: SLOTS.index(slot_of(name)))
    below = np.zeros(bins(coverage))
    found = []
    for name in names:
        above = below + 100 * np.asarray(coverage.shares[name])
        low, high = np.rint(below).astype(int), np.rint(above).astype(int)
        edges = [0, *(np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1).tolist(), len(low)]
        path = [
            f"M{i} {100 - low[i]}h{j - i}v{low[i] - high[i]}h{i - j}z" for i, j in pairwise(edges) if high[i] > low[i]
        ]
        found.append((slot_of(name), "".join(path)))
        below = above
    return found


def halved(coverage: Coverage) -> Coverage:
    """With half as many parts, which has to be a whole number of them."""
    shares = {name: np.reshape(share, (-1, 2)).mean(axis=1).tolist() for name, share in coverage.shares.items()}
    return replace(coverage, shares=shares)


def slots(*coverages: Coverage) -> set[str]:
    """The colours of what they draw."""
    return {slot_of(name) for coverage in coverages for name in coverage.shares}


def bins(coverage: Coverage) -> int:
    """Parts of a coverage."""
    return len(next(iter(coverage.shares.values()), [0]))


def strips(fixes: Fixes) -> list[dict[str, Any]]:
    """What the script shows for each subset of the fixes: which, what it saves, and its strip, as wide as its time.

    `expects` is how long what is drawn will take with the savings that are promised, `ends` where that is on the strip.
    """
    before = max(fixes.before.end_ns - fixes.before.start_ns, 1)
    found = []
    for variant in fixes.variants:
        ns = variant.strip.end_ns - variant.strip.start_ns
        left = [1 - saved / max(fixes.wall_ns, 1) for saved in reversed(variant.saving_ns)]
        found.append(
            {
                "fixes": list(variant.fixes),
                "saves": list(variant.saving_ns),
                "speedup": [round(end, 4) for end in variant.speedup],
                "expects": [round(before * part) for part in left],
                "ends": [round(100 * part, 3) for part in left],
                "ns": ns,
                "width": round(100 * ns / before, 3),
                "bins": bins(variant.strip),
                "paths": paths(variant.strip),
            }
        )
    return found


@dataclass(frozen=True)
class FlameBox:
    """A node of a flame graph; `x` and `width` are percentages, `row` counts from the top."""

    x: float
    width: float
    row: int
    name: str
    colour: str
    tip: str


def flame_boxes(nodes: Sequence[Flame]) -> list[FlameBox]:
    """The boxes of a flame graph, the outermost row first."""
    whole = max(sum(node.ns for node in nodes if node.depth == 0), 1)
    found = []
    for node in nodes:
        if node.depth >= DEEPEST:
            continue
        name = labels.get(node.name, node.name) if node.kind == "cause" else node.name
        tip = f"{name}: {duration(node.ns)}, {share(node.ns, whole)}"
        found.append(
            FlameBox(
                round(100 * node.start_ns / whole, 4),
                round(100 * node.ns / whole, 4),
                node.depth,
                name,
                slot_of(node.colour),
                tip,
            )
        )
    return found


@dataclass(frozen=True)
class HeatStrip:
    """A row of the heat strip: one path for each shade."""

    label: str
    colour: str
    shades: list[tuple[int, str]]
    """(1 to LEVELS, path in a box as wide as there are steps and 1 high)."""
    tip: str
    usual_ns: int
    """In the median step."""


def waits(rows: Sequence[HeatRow]) -> list[HeatRow]:
    """The causes with most time besides kernels, as many as are drawn."""
    return [row for row in rows if row.cause != "kernels"][:HEAT_ROWS]


def heat_strips(rows: Sequence[HeatRow], names: Sequence[str]) -> list[HeatStrip]:
    """One for each cause; the darker, the more of the step that has most of it."""
    found = []
    for row in waits(rows):
        top = max(row.ns)
        shades: dict[int, list[str]] = {}
        for i, ns in enumerate(row.ns):
            level = round(LEVELS * ns / top)
            if level:
                shades.setdefault(level, []).append(f"M{i} 0h1v1h-1z")
        label = labels.get(row.cause, row.cause)
        usual = sorted(row.ns)[len(row.ns) // 2]
        tip = f"{label}: {duration(usual)} in the median step, most in {names[row.ns.index(top)]} with {duration(top)}"
        each = [(level, "".join(path)) for level, path in sorted(shades.items())]
        found.append(HeatStrip(label, slot_of(row.cause), each, tip, usual))
    return found


def heat_cells(rows: Sequence[HeatRow], steps: Sequence[Step]) -> dict[str, Any]:
    """What the script says of each cell: the steps' names and lengths, and each cause's time in them."""
    shown = waits(rows)
    if not shown:
        return {"steps": [], "ns": [], "causes": []}
    drawn = steps[: len(shown[0].ns)]
    ends = [*(step.start_ns for step in steps[1 : len(drawn)]), drawn[-1].end_ns]
    return {
        "steps": [shareable(step.name)[:LONGEST_NAME] for step in drawn],
        "ns": [end - step.start_ns for step, end in zip(drawn, ends, strict=True)],
        "causes": [[labels.get(row.cause, row.cause), *row.ns] for row in shown],
    }


@dataclass(frozen=True)
class Curve:
    """Memory over time in a box 1000 wide and 100 high."""

    allocated: str
    reserved: str
    top: int
    peak_at_ns: int
    """From the recording's first event."""


def memory(curve: MemoryCurve, origin_ns: int) -> Curve:
    """The curve from its first event to its last."""
    start, length = curve.time_ns[0], max(curve.time_ns[-1] - curve.time_ns[0], 1)
    top = max(*curve.allocated, *curve.reserved, 1)

    def path(values: Sequence[int]) -> str:
        steps = [f"M0 {100 - 100 * max(values[0], 0) / top:.4g}"]
        for at, value in zip(curve.time_ns[1:], values[1:], strict=True):
            steps.append(f"H{1000 * (at - start) / length:.5g}V{100 - 100 * max(value, 0) / top:.4g}")
        return "".join(steps)

    peak = curve.allocated.index(max(curve.allocated))
    reserved = path(curve.reserved) if max(curve.reserved) > 0 else ""
    return Curve(path(curve.allocated), reserved, top, curve.time_ns[peak] - origin_ns)


@dataclass(frozen=True)
class RankLane:
    """One rank on the axis of all; `x` and `width` are percentages."""

    row: RankRow
    x: float
    width: float
    bins: int
    paths: list[tuple[str, str]]
    exact: bool
    """Drawn as it was; else only how much of each there was."""


@dataclass(frozen=True)
class RankAxis:
    """All ranks on one axis."""

    lanes: list[RankLane]
    links: list[tuple[str, str]]
    """(points of a line through the arrivals at one collective, what it is); 1000 wide, one a lane high."""
    start_ns: int
    end_ns: int
    left_out: int


def rank_axis(run: RankSet, drawings: Sequence[Drawing]) -> RankAxis:
    """The ranks on their common clock, those that are drawn as they were, with the dearest collectives as links."""
    rows = run.rows[:RANKS]
    spans = {}
    for drawing in drawings:
        if drawing.place and (
            row := run.row_of(drawing.place.file, drawing.place.process, drawing.place.device, drawing.place.rank)
        ):
            shift = row.start_ns - drawing.start_ns
            spans[row.rank] = (drawing.overview, drawing.overview.start_ns + shift, drawing.overview.end_ns + shift)
    start = min([row.start_ns for row in rows] + [span[1] for span in spans.values()])
    end = max([row.end_ns for row in rows] + [span[2] for span in spans.values()])
    whole = max(end - start, 1)
    lanes = []
    for row in rows:
        if row.rank in spans:
            coverage, begins, ends = spans[row.rank]
            coverage = halved(coverage) if len(spans) > FINE else coverage
            drawn, parts, exact = paths(coverage), bins(coverage), True
        else:
            begins, ends, parts, exact = row.start_ns, row.end_ns, 1000, False
            drawn, at = [], 0.0
            for phase, ns in zip(PHASES, row.phases_ns, strict=True):
                width = 1000 * ns / max(row.wall_ns, 1)
                if ns:
                    drawn.append((slot_of(PHASE_COLOURS[phase]), f"M{at:.4g} 100h{width:.4g}v-100h{-width:.4g}z"))
                at += width
        lanes.append(
            RankLane(
                row,
                round(100 * (begins - start) / whole, 3),
                round(100 * (ends - begins) / whole, 3),
                parts,
                drawn,
                exact,
            )
        )
    place = {row.rank: i for i, row in enumerate(rows)}
    links = []
    dearest = sorted((m for m in run.meetings if not m.flag and m.arrivals_ns), key=lambda m: -m.cost_ns)[:LINKS]
    for meeting in dearest:
        points = [
            f"{1000 * (meeting.start_ns + arrival - start) / whole:.5g},{place[row.rank] + 0.5:g}"
            for row, arrival in zip(run.rows, meeting.arrivals_ns, strict=False)
            if arrival >= 0 and row.rank in place
        ]
        late = ", ".join(map(str, meeting.late))
        tip = f"{meeting.kind} {meeting.number} of {meeting.group}: {duration(meeting.skew_ns)} from the first to the last"
        if len(points) > 1:
            links.append((" ".join(points), f"{tip}{', late: rank ' + late if late else ''}"))
    return RankAxis(lanes, links, start, end, len(run.rows) - len(rows))
