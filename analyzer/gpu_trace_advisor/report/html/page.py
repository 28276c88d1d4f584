"""One self-contained page: the verdict, what to change, the timeline it rests on, and why it can be believed.

Everything is in the one file, and nothing leaves it: the policy in its head allows only the style and the script whose
hashes stand there. Charts are SVG from here, readable without a script and in print; only the timeline needs one. It is a
canvas driven by a script of our own: the libraries that ship their JavaScript in a wheel (Plotly 4.8 MB, Bokeh 1.3 MB) are
larger than a usual page may be, and none draws a hundred thousand boxes on lanes with arrows between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, said_of
from gpu_trace_advisor.advice.verdict import device_label, focus, limits
from gpu_trace_advisor.drawing.model import Drawing, drawing_of
from gpu_trace_advisor.gate.budget import Check
from gpu_trace_advisor.gate.compare import Comparison
from gpu_trace_advisor.ranks.model import RankSet
from gpu_trace_advisor.report.html import charts, figures
from gpu_trace_advisor.report.html.environment import digest, environment, escaped_json, script, style
from gpu_trace_advisor.report.html.findings import Shown, answer, findings_of_details, shown_findings, skipped_rules
from gpu_trace_advisor.report.html.palette import SLOTS, legend
from gpu_trace_advisor.report.html.timeline import BOXES, device_data
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.report.text.gate import most_changed
from gpu_trace_advisor.report.text.ranks import lines as rank_lines

ROWS = 200  # of a table; what is beyond it is counted
DEVICES = 16  # whose timelines are drawn: the one to look at first, and those beside it
BYTES = 2_500_000  # of a page
FEWEST = 2_000  # boxes of a page that has no room
ALSO_LIMITS = frozenset({"profiler-stacks", "single-step", "clock-skew"})
"""Codes of notes that limit what can be said; they stand on the first screen after those that make it doubtful."""


def render(
    advice: Advice, drawings: Sequence[Drawing] = (), comparison: Comparison | None = None, checks: Sequence[Check] = ()
) -> str:
    """The page. `drawings` are of the advice's devices, of the host where it has none; without them it has no timeline.
    Where it would be larger than `BYTES`, timelines are summed up more."""
    boxes = BOXES
    while len((page := _page(advice, drawings, comparison, checks, boxes)).encode()) > BYTES and boxes > FEWEST:
        boxes //= 2
    return page


def _page(
    advice: Advice, drawings: Sequence[Drawing], comparison: Comparison | None, checks: Sequence[Check], boxes: int
) -> str:
    device = focus(advice.devices, advice.ranks) if advice.devices else None
    drawn = _drawn(advice, drawings, device)
    host = next((one for one in drawings if one.place is None), None)
    first = drawn[0][1] if drawn and drawn[0][0] is device else None
    timeline = first or host
    lane = most_changed(comparison) if comparison else None
    findings = shown_findings(advice, drawn, device)
    skipped = skipped_rules(advice)
    data = _data(drawn, host, findings, boxes)
    run = advice.ranks if advice.ranks and advice.ranks.matched else None
    axis = figures.rank_axis(run, [one for _, one in drawn]) if run else None
    return environment().get_template("report.html").render(
        advice=advice,
        device=device,
        bar=charts.bar(device) if device else [],
        steps=charts.step_bars(device.steps, device.step_ns) if device else [],
        first=first,
        timeline=timeline,
        findings=findings,
        answer=answer(findings, device, lane.step.after_ns if lane and lane.step else None),
        joints=_of(device, advice.joint),
        ladders=_of(device, advice.ladders),
        serving=_of(device, advice.serving),
        limits=[*limits(advice.health), *(note for note in advice.health if note.code in ALSO_LIMITS)],
        how_to_record=advice.host.to_record if advice.host else "",
        roof=charts.roof(first.roofline, device.wall_ns) if first and device else None,
        run=run,
        job=_job(run) if run else [],
        axis=axis,
        views=[device_label(of, advice.devices) for of, _ in drawn],
        summed=any(one["whole"] is not None for one in data["devices"]),
        legend=legend(_colours(data) | (figures.slots(timeline.overview) if timeline else set())),
        axis_legend=legend(slot for lane in axis.lanes for slot, _ in lane.paths) if axis else [],
        fixes_legend=legend(figures.slots(first.fixes.before, *(one.strip for one in first.fixes.variants)))
        if first and first.fixes
        else [],
        origin_ns=timeline.origin_ns if timeline else 0,
        skipped=skipped,
        unasked=[one for one in skipped if "nothing of the kind" not in one[1]],
        comparison=comparison,
        lane=lane,
        checks=checks,
        data=escaped_json(data) if data["devices"] else None,
        style=style(),
        script=script(),
        style_hash=digest(style()),
        script_hash=digest(script()),
        rows=ROWS,
    )  # fmt: skip


def _drawn(
    advice: Advice, drawings: Sequence[Drawing], first: DeviceAdvice | None
) -> list[tuple[DeviceAdvice, Drawing]]:
    """The devices whose timelines are drawn, the one to look at first before the others."""
    pairs = [(device, drawing) for device in advice.devices if (drawing := drawing_of(device, drawings)) is not None]
    return sorted(pairs, key=lambda pair: pair[0] is not first)[:DEVICES]


def _data(
    drawn: Sequence[tuple[DeviceAdvice, Drawing]], host: Drawing | None, findings: Sequence[Shown], boxes: int
) -> dict[str, Any]:
    """What the script draws: the device to look at first gets half of the page's boxes."""
    devices = []
    for i, (of, its) in enumerate(drawn):
        marks = [mark + its.start_ns for one in findings if one.view == i for mark in one.marks]
        limit = boxes if len(drawn) == 1 else boxes // 2 if i == 0 else boxes // 2 // (len(drawn) - 1)
        data = device_data(its, marks, limit, findings_of_details(its, findings, i))
        devices.append({"label": shareable(device_label(of)), **data})
    if not drawn and host is not None and host.lanes:
        devices.append({"label": "host", **device_data(host, limit=boxes)})
    first = drawn[0][1] if drawn else None
    fixes = first.fixes if first else None
    return {
        "slots": SLOTS,
        "labels": [label for _, label in legend(SLOTS)],
        "devices": devices,
        "fixes": figures.strips(fixes) if fixes else [],
        "heat": figures.heat_cells(first.heat, first.steps) if first else None,
    }


def _colours(data: dict[str, Any]) -> set[str]:
    """The colours that the timelines draw."""
    return {SLOTS[detail[1]] for device in data["devices"] for detail in device["details"]}


def _job(run: RankSet) -> list[str]:
    """What is to be said of all ranks, most important first; of the first straggler in two sentences."""
    first, *rest = rank_lines(run)
    head, semicolon, tail = first.partition("; ")
    if not run.stragglers or not semicolon:
        return [first, *rest]
    return [head + ".", tail[:1].upper() + tail[1:], *rest]


def _of(device: DeviceAdvice | None, values: Sequence[Any]) -> list[Any]:
    """What is said of this device: none or one."""
    return said_of(device, values)[:1] if device else []
