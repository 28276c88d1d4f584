"""The page's charts as plain numbers; the templates draw them as SVG, so that they are there without a script and in print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpu_trace_advisor.advice.model import DeviceAdvice, StepAdvice
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.attribution.causes import CATEGORIES, label
from gpu_trace_advisor.drawing.model import Roofline
from gpu_trace_advisor.report.html.palette import slot_of
from gpu_trace_advisor.roofline.points import Work
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.units import duration, share

ORDER = (
    "useful", "kernel-time", "kernel-inefficiency", "memory-bubbles", "activation-round-trips", "communication", "copies",
    "dataloader-gaps", "implicit-barriers", "launch-overhead", "host-stalls", "profiler", "unattributed",
)  # fmt: skip
"""Categories from what the GPU is there for to what nobody knows: how a bar is read."""
ODD_STEP = 1.1  # a step this much longer than the median is marked
STEPS_DRAWN = 400
POINTS = 60
MADE_OF = {
    "measured": "read off the timeline",
    "modelled": "worked out from what was recorded",
    "assumed": "rests on a constant",
}


@dataclass(frozen=True)
class BarSegment:
    """A cause's stretch of the bar. `x` and `width` are percentages."""

    x: float
    width: float
    colour: str
    label: str
    group: str
    ns: int
    share: str
    grade: str
    side: str
    when: str

    @property
    def id(self) -> str:
        return "cause-" + "".join(c if c.isalnum() else "-" for c in f"{self.when} {self.label}")

    @property
    def tip(self) -> str:
        parts = (self.label, duration(self.ns), self.share, self.grade, self.side and f"{self.side} side")
        return " · ".join(filter(None, parts))

    @property
    def anchor(self) -> tuple[float, str]:
        """Where the tip stands so that it stays inside: place and text-anchor."""
        middle = self.x + self.width / 2
        if middle < 40:
            return self.x, "start"
        return (self.x + self.width, "end") if middle > 60 else (middle, "middle")


def bar(device: DeviceAdvice) -> list[BarSegment]:
    """The partition of the wall time, one stretch a cause, in the order in which it is read."""
    merged: dict[tuple[str, str, str], list[TimeSlice]] = {}
    for item in device.attribution:
        merged.setdefault((item.category, item.when, label(item.cause, item.detail)), []).append(item)
    place = {category: i for i, category in enumerate(ORDER)}
    ranked = sorted(
        merged.items(), key=lambda pair: (pair[0][1] == "idle", place.get(pair[0][0], 99), -sum(i.ns for i in pair[1]))
    )
    parts: list[BarSegment] = []
    at = 0
    for (category, when, called), items in ranked:
        ns = sum(item.ns for item in items)
        parts.append(
            BarSegment(
                _percent(at, device.wall_ns), _percent(ns, device.wall_ns), slot_of(items[0].cause), called,
                CATEGORIES[category].label, ns, share(ns, device.wall_ns), _grade(items),
                " and ".join(dict.fromkeys(item.side for item in items if item.side)), when,
            )
        )  # fmt: skip
        at += ns
    return parts


def _grade(items: Sequence[TimeSlice]) -> str:
    grades = list(dict.fromkeys(item.grade for item in sorted(items, key=lambda item: -item.ns)))
    return grades[0] if len(grades) == 1 else f"{grades[0]}, part {grades[1]}"


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 4) if whole else 0.0


@dataclass(frozen=True)
class StepBar:
    """One step. Percentages: place and width across, height of the whole and of the GPU's work."""

    x: float
    width: float
    height: float
    gpu: float
    odd: bool
    step: StepAdvice
    ns: int


def step_bars(steps: Sequence[StepAdvice], step_ns: int | None) -> list[StepBar]:
    """Time of each step from its start to the next one's, the last one's by its own length."""
    if not steps or not step_ns:
        return []
    ends = [after.start_ns for _, after in pairwise(steps)] + [steps[-1].end_ns]
    timed = [(step, end - step.start_ns) for step, end in zip(steps, ends, strict=True)][:STEPS_DRAWN]
    kept = [ns for step, ns in timed if step.left_out is None] or [ns for _, ns in timed]
    top = max(max(kept), step_ns) * 1.15  # a warm-up that is left out may stick out
    width = min(100 / len(timed), 100 / 12)
    return [
        StepBar(
            round(i * width, 4), round(width, 4), min(_percent(ns, top), 100), min(_percent(min(step.gpu_ns, ns), top), 100),
            step.left_out is None and ns > ODD_STEP * step_ns, step, ns,
        )
        for i, (step, ns) in enumerate(timed)
    ]  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A kernel on the roofline."""

    x: float
    y: float
    r: float
    work: Work
    share: str
    above: bool
    """Faster than its roof."""


@dataclass(frozen=True)
class Roof:
    """A log-log chart in a box of WIDTH by HEIGHT."""

    dots: list[Dot]
    roofs: list[tuple[str, str, float, float]]
    """(type, path, x and y of its label)."""
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    device: str
    left_out: int
    covered: str
    """Share of the time in kernels whose work is known."""
    above: int
    """Points above their roof: faster than the model allows."""


WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 360, 86, 44, 14, 20


LARGEST, SMALLEST = 22.0, 1.5  # radius of a circle; smaller than its area says is none


def roof(drawn: Roofline | None, wall_ns: int) -> Roof | None:
    """The roofline with the kernels whose work is known; None where nothing can be drawn."""
    known = [w for w in drawn.work if w.flops > 0 and w.bytes > 0 and w.ns > 0] if drawn else []
    if drawn is None or not known:
        return None
    hardware = drawn.hardware
    dots = known[:POINTS]
    types = list(dict.fromkeys(w.dtype for w in dots if w.dtype in hardware.peaks)) or list(hardware.peaks)[:1]
    peaks = {dtype: hardware.peaks[dtype] for dtype in types}
    top = max([*peaks.values(), *(w.flops_per_s for w in dots)], default=1.0)
    x_low = math.floor(math.log10(min(min(w.intensity for w in dots), 1.0)))
    x_high = math.ceil(
        math.log10(max(max(w.intensity for w in dots), 2 * max(peaks.values(), default=1) / hardware.bandwidth))
    )
    y_high = math.ceil(math.log10(top) * 2) / 2
    y_low = math.floor(math.log10(max(min(w.flops_per_s for w in dots), top / 1e7) / 2))

    def x(value: float) -> float:
        part = (math.log10(value) - x_low) / (x_high - x_low)
        return round(LEFT + min(max(part, 0), 1) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        part = (math.log10(value) - y_low) / (y_high - y_low)
        return round(HEIGHT - BOTTOM - min(max(part, 0), 1) * (HEIGHT - TOP - BOTTOM), 1)

    def above(w: Work) -> bool:
        reach = min(hardware.peaks.get(w.dtype, top), w.intensity * hardware.bandwidth)
        return w.violated > 0 or w.flops_per_s > reach

    longest = max(w.ns for w in dots)
    roofs = []
    for dtype, peak in peaks.items():
        ridge = peak / hardware.bandwidth
        start = max(10.0**x_low, 10.0**y_low / hardware.bandwidth)
        path = f"M{x(start)} {y(start * hardware.bandwidth)}L{x(ridge)} {y(peak)}H{x(10.0**x_high)}"
        roofs.append((dtype, path, WIDTH - RIGHT - 4.0, y(peak) - 5))
    return Roof(
        [
            Dot(
                x(w.intensity),
                y(w.flops_per_s),
                round(max(LARGEST * math.sqrt(w.ns / longest), SMALLEST), 2),
                w,
                share(w.ns, wall_ns),
                above(w),
            )
            for w in dots
        ],
        roofs,
        [(x(10.0**e), _power(e)) for e in range(x_low, x_high + 1)],
        [(y(10.0**e), _flops(e)) for e in range(y_low, math.floor(y_high) + 1)],
        hardware.name,
        len(known) - len(dots),
        share(sum(w.ns for w in known), drawn.kernel_ns),
        sum(map(above, dots)),
    )


def _power(exponent: int) -> str:
    return f"{10.0**exponent:,.0f}" if exponent >= 0 else f"{10.0**exponent:.{-exponent}f}"


def _flops(exponent: int) -> str:
    for unit, size in (("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if exponent >= size:
            return f"{10 ** (exponent - size)} {unit}FLOP/s"
    return f"{10 ** max(exponent, 0)} FLOP/s"
