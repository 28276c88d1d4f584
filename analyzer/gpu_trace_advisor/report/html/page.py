"""One self-contained page: the verdict, what to change, the timeline it rests on, and why it can be believed.

Everything is in the one file, and nothing leaves it: the policy in its head allows only the style and the script whose
hashes stand there. The charts are SVG from here, readable without a script and in print; only the timeline needs one. It is
a canvas driven by 300 lines of our own: the libraries that ship their JavaScript in a wheel (Plotly 4.8 MB, Bokeh 1.3 MB)
are larger than a usual page may be, and none draws a hundred thousand boxes on lanes with arrows between them.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, place_of, said_of
from gpu_trace_advisor.advice.verdict import focus, where
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.gate.budget import Check
from gpu_trace_advisor.gate.compare import Comparison
from gpu_trace_advisor.report.html import charts
from gpu_trace_advisor.report.html.timeline import BOXES, COLOURS, device_data, overview
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.report.text.gate import most_changed
from gpu_trace_advisor.report.text.ranks import lines as rank_lines
from gpu_trace_advisor.report.text.terminal import UNITS
from gpu_trace_advisor.report.wording import (
    FORMATS,
    bandwidth,
    by_class,
    decimals,
    moved,
    ms,
    on_path,
    share_of,
    sides_of,
    waits_of,
)
from gpu_trace_advisor.roofline.points import roofline
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.units import duration, percent, share, size

ROWS = 200  # of a table; what is beyond it is counted
NAME, MANY_NAMES, SHORT_NAME = 200, 10_000, 60  # characters of a name in the timeline; where there are many, fewer
DEVICES = 16  # whose timelines are drawn: the one to look at first, and those beside it
LIMITS = frozenset(
    {"partial", "lost-kernels", "unrecorded-graph-nodes", "cut", "cold", "profiler-stacks", "single-step", "clock-skew"}
)
"""Health codes that limit what can be said; they stand on the first screen."""


@dataclass(frozen=True)
class Shown:
    """A finding with where it is drawn."""

    finding: Finding
    number: int
    low: float
    high: float
    """Saving as percentages of the wall."""
    view: int
    """Which timeline shows it, -1 none."""
    marks: tuple[int, ...]
    """Instants of its evidence, ns from that timeline's window."""
    spread: int
    """ns of one piece of its evidence, about: how far to zoom in."""


def render(
    advice: Advice, views: Sequence[DeviceWindow], comparison: Comparison | None = None, checks: Sequence[Check] = ()
) -> str:
    """The page. `views` are what the advice sums up, in the order of its devices."""
    device = focus(advice.devices, advice.ranks) if advice.devices else None
    shown = _views(advice, views, device)
    findings = _findings(advice, shown)
    data = _data(shown, findings)
    page = _environment().get_template("report.html").render(
        advice=advice,
        device=device,
        bar=charts.bar(device) if device else [],
        steps=charts.step_bars(device.steps, device.step_ns) if device else [],
        overviews=[charts.paths(overview(its)) for _, its in shown[:1]],
        findings=findings,
        joints=_of(device, advice.joint),
        ladders=_of(device, advice.ladders),
        serving=_of(device, advice.serving),
        limits=[note for note in advice.health if note.code in LIMITS],
        roof=_roof(*shown[0]) if shown else None,
        views=[where(of, advice.devices) for of, _ in shown],
        summed=any(one["whole"] is not None for one in data["devices"]),
        skipped=_skipped(advice),
        unasked=[one for one in _skipped(advice) if "nothing of the kind" not in one[1]],
        comparison=comparison,
        lane=most_changed(comparison) if comparison else None,
        checks=checks,
        data=escaped_json(data) if shown else None,
        style=_text("report.css"),
        script=_text("report.js"),
        style_hash=_hash("report.css"),
        script_hash=_hash("report.js"),
        rows=ROWS,
        charts=charts,
    )  # fmt: skip
    return page


def _data(shown: Sequence[tuple[DeviceAdvice, DeviceWindow]], findings: Sequence[Shown]) -> dict[str, Any]:
    """What the script draws: the device to look at first gets half of the page's boxes."""
    devices = []
    for i, (of, its) in enumerate(shown):
        marks = [mark + its.window.start_ns for one in findings if one.view == i for mark in one.marks]
        limit = BOXES if len(shown) == 1 else BOXES // 2 if i == 0 else BOXES // 2 // (len(shown) - 1)
        drawn = device_data(its, marks, limit)
        longest = NAME if len(drawn["names"]) <= MANY_NAMES else SHORT_NAME
        drawn["names"] = [shareable(name)[:longest] for name in drawn["names"]]
        drawn["steps"] = [[shareable(step[0])[:NAME], *step[1:]] for step in drawn["steps"]]
        for lane in drawn["lanes"]:
            lane["label"] = shareable(lane["label"])[:NAME]
        devices.append({"label": where(of), **drawn})
    return {"colours": COLOURS, "devices": devices}


def _roof(device: DeviceAdvice, view: DeviceWindow) -> charts.Roof | None:
    work = roofline(view.inkernel, view.window.start_ns, view.window.end_ns)
    return charts.roof(work, view.hardware, device.wall_ns)


def escaped_json(data: Any) -> Markup:
    """JSON that means the same inside a script element, whatever the names in it say."""
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _views(
    advice: Advice, views: Sequence[DeviceWindow], first: DeviceAdvice | None
) -> list[tuple[DeviceAdvice, DeviceWindow]]:
    """The devices whose timelines are drawn, the one to look at first before the others."""
    pairs = list(zip(advice.devices, views, strict=False))
    return sorted(pairs, key=lambda pair: pair[0] is not first)[:DEVICES]


def _findings(advice: Advice, shown: Sequence[tuple[DeviceAdvice, DeviceWindow]]) -> list[Shown]:
    """All findings: those of the device to look at first before the others', each numbered on its device."""
    views = {place_of(of): i for i, (of, _) in enumerate(shown)}
    walls = {place_of(of): of.wall_ns for of in advice.devices}
    found: list[Shown] = []
    for finding in sorted(advice.findings, key=lambda f: views.get(place_of(f), len(views))):
        key = place_of(finding)
        view, wall = views.get(key, -1), max(walls.get(key, 0), 1)
        marks: tuple[int, ...] = ()
        if view >= 0:
            its = shown[view][1]
            base = its.trace.origin_ns - its.window.start_ns
            marks = tuple(sorted({base + round(at * 1e6) for item in finding.evidence for at in item.at_ms}))
        each = [item.ns // max(item.count, 1) for item in finding.evidence if item.ns]
        low, high = finding.saving_ns or (0, 0)
        if view < 0 and len(found) >= ROWS:
            break
        number = 1 + sum(other.view == view for other in found)
        found.append(
            Shown(finding, number, 100 * low / wall, 100 * high / wall, view, marks, max(each, default=wall // 200))
        )
    return found


def _of(device: DeviceAdvice | None, values: Sequence[Any]) -> list[Any]:
    """What is said of this device: none or one."""
    return said_of(device, values)[:1] if device else []


def _skipped(advice: Advice) -> list[tuple[str, str, int]]:
    """(rule, why, on how many devices)."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    for one in advice.skipped:
        count[one.rule, one.why] += 1
    return [(rule, why, n) for (rule, why), n in count.items()]


@cache
def _text(name: str) -> Markup:
    """A template file as it is; our own, so it is not escaped."""
    return Markup(resources.files("gpu_trace_advisor.templates").joinpath(name).read_text(encoding="utf-8"))


def _hash(name: str) -> str:
    return b64encode(hashlib.sha256(_text(name).encode()).digest()).decode()


@cache
def _environment() -> jinja2.Environment:
    """Templates of the package. Every text that is put into one is made shareable, then escaped."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: str(_text(name))),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters.update(
        duration=lambda ns: duration(int(ns)), size=size, count=lambda n: f"{n:,}", share_of=share_of, bandwidth=bandwidth,
        moved=moved, interval=_interval, percent=lambda part: percent(part, 1, "+"), n3=lambda x: f"{x:.3g}",
        capitalise=lambda text: text[:1].upper() + text[1:], si=_si,
    )  # fmt: skip
    made.globals.update(
        share=share, ms=ms, decimals=decimals, where=where,
        labels={name: cause.label for name, cause in CAUSES.items()}, formats=FORMATS, by_class=by_class,
        sides_of=sides_of, waits_of=waits_of, made_of=charts.MADE_OF, rank_lines=rank_lines, on_path=on_path,
    )  # fmt: skip
    return made


def _finalize(value: Any) -> Any:
    """A text made shareable; blanks at its ends stay, they are the template's."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    inside = value.strip(" ")
    lead = len(value) - len(value.lstrip(" ")) if inside else len(value)
    text = UNITS.sub("\\1\u00a0\\2", shareable(inside))  # a number stays with its unit
    return " " * lead + text + " " * (len(value) - lead - len(inside))


def _interval(saving: tuple[int, int], form: Any = duration) -> str:
    """`12.3 to 15.5 ms`; one number where both are alike."""
    low, high = form(saving[0]), form(saving[1])
    if low == high:
        return str(high)
    number, _, unit = low.rpartition(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def _si(value: float) -> str:
    for unit, one in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= one:
            return f"{value / one:.3g} {unit}"
    return f"{value:.3g} "
