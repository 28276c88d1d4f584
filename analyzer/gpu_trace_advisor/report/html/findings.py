"""The findings as the page shows them: numbered, placed on a timeline, and what the first one would give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, place_of
from gpu_trace_advisor.drawing.model import Drawing
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.kernel_names import readable

OTHERS = 200  # findings shown of devices without a timeline


@dataclass(frozen=True)
class Shown:
    """A finding with where it is drawn."""

    finding: Finding
    number: int
    low: float
    high: float
    """Saving as percentages of the wall."""
    after_ns: tuple[int, int] | None
    """What a step, or the window without steps, takes with it alone: optimistic and pessimistic."""
    view: int
    """Which timeline shows it, -1 none."""
    marks: tuple[int, ...]
    """Instants of its evidence, ns from that timeline's window."""
    spread: int
    """ns of one piece of its evidence, about: how far to zoom in."""


@dataclass(frozen=True)
class Answer:
    """What the first finding says, in one line."""

    shown: Shown
    unit: str
    """`a step` or `the window`."""
    now_ns: int


def shown_findings(
    advice: Advice, drawn: Sequence[tuple[DeviceAdvice, Drawing]], first: DeviceAdvice | None
) -> list[Shown]:
    """All findings: those of the device to look at first before the others', each numbered on its device."""
    places = {place_of(of): i for i, (of, _) in enumerate(drawn)}
    devices = {place_of(of): of for of in advice.devices}
    order = {place: i for i, place in enumerate(places)}
    if first is not None:
        order.setdefault(place_of(first), -1)
    found: list[Shown] = []
    numbers: dict[object, int] = defaultdict(int)
    for finding in sorted(advice.findings, key=lambda f: order.get(place_of(f), len(order))):
        place = place_of(finding)
        view, device = places.get(place, -1), devices.get(place)
        if view < 0 and len(found) >= OTHERS:
            break
        numbers[place] += 1
        found.append(_shown(finding, numbers[place], device, view, drawn[view][1] if view >= 0 else None))
    return found


def _shown(finding: Finding, number: int, device: DeviceAdvice | None, view: int, drawing: Drawing | None) -> Shown:
    wall = max(device.wall_ns, 1) if device else 1
    marks: tuple[int, ...] = ()
    if drawing is not None:
        base = drawing.origin_ns - drawing.start_ns
        marks = tuple(sorted({base + round(at * 1e6) for item in finding.evidence for at in item.at_ms}))
    each = [item.ns // max(item.count, 1) for item in finding.evidence if item.ns]
    low, high = finding.saving_ns or (0, 0)
    after = None
    if finding.alone_ns and finding.alone_ns[1] and device:
        whole = device.step_ns or device.wall_ns
        fast, slow = (round(whole * (1 - ns / wall)) for ns in reversed(finding.alone_ns))
        after = fast, slow
    return Shown(
        finding, number, 100 * low / wall, 100 * high / wall, after, view, marks, max(each, default=wall // 200)
    )


def answer(findings: Sequence[Shown], device: DeviceAdvice | None, step_ns: float | None = None) -> Answer | None:
    """What to do first on this device; None where there is nothing to do. `step_ns` is what a comparison says a step takes."""
    mine = [one for one in findings if device and place_of(one.finding) == place_of(device)]
    best = next((one for one in mine if one.after_ns), mine[0] if mine else None)
    if best is None or device is None:
        return None
    now = device.step_ns or device.wall_ns
    if step_ns and device.step_ns and best.after_ns:
        fast, slow = (round(ns * step_ns / now) for ns in best.after_ns)
        best, now = replace(best, after_ns=(fast, slow)), round(step_ns)
    return Answer(best, "a step" if device.step_ns else "the window", now)


def findings_of_details(drawing: Drawing, findings: Sequence[Shown], view: int) -> dict[int, int]:
    """The number of the first finding that each of the drawing's details belongs to: by the records and lines it names, else
    by the cause of the idle time."""
    mine = [one for one in findings if one.view == view]
    by_text: dict[str, int] = {}
    by_cause: dict[str, int] = {}
    for one in mine:
        for part in one.finding.named:
            by_cause.setdefault(part.cause, one.number)
        for item in one.finding.evidence:
            for text in (item.what, readable(item.what)):
                by_text.setdefault(text, one.number)
    found = {}
    for i, detail in enumerate(drawing.details):
        number = by_cause.get(detail.cause)
        texts = (detail.full_name, detail.name, *(() if detail.cause else (detail.operator,)))
        number = number or next((by_text[text] for text in texts if text in by_text), None)
        if number:
            found[i] = number
    return found


def skipped_rules(advice: Advice) -> list[tuple[str, str, int]]:
    """(rule, why, on how many devices) of the rules that say nothing."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    for one in advice.skipped:
        count[one.rule, one.why] += 1
    return [(rule, why, n) for (rule, why), n in count.items()]
