"""Tracks to lay beside the original in Perfetto or chrome://tracing: what each device did or waited for, and the findings.

The times are the recording's own, to the nanosecond, and a Chrome trace's time base is kept, so that both files opened
together line up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.advice.verdict import device_label
from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.drawing.model import Drawing, Path, drawing_of
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.units import duration

FIRST_PID = 1_000_000_000  # above what processes and device rows are numbered
TRACKS = ("causes", "steps", "findings", "critical path")
COLOURS = {
    "kernel-time": "good", "communication": "rail_animation", "copies": "rail_response", "dataloader-gaps": "bad",
    "implicit-barriers": "terrible", "launch-overhead": "yellow", "host-stalls": "rail_load", "profiler": "grey",
    "unattributed": "generic_work",
}  # fmt: skip
"""Chrome's reserved names."""


def render(advice: Advice, drawings: Sequence[Drawing]) -> Iterator[str]:
    """The overlay as a Chrome trace, in pieces."""
    bases = {drawing.base_ns for drawing in drawings}
    base = bases.pop() if len(bases) == 1 else None
    head = "" if base is None else f'"baseTimeNanoseconds":{base},'
    yield f'{{"displayTimeUnit":"ns","otherData":{{"writer":"gpu-trace-advisor"}},{head}"traceEvents":[\n'
    first = True
    for number, device in enumerate(advice.devices):
        drawing = drawing_of(device, drawings)
        for event in _device(FIRST_PID + number, device, drawing, advice.findings_of(device)) if drawing else ():
            yield event if first else ",\n" + event
            first = False
    yield "\n]}\n"


def _device(pid: int, device: DeviceAdvice, drawing: Drawing, findings: Sequence[Finding]) -> Iterator[str]:
    name = f"advise: {device_label(device)}" + (
        "" if drawing.ranked or device.rank is not None else f" ({device.file})"
    )
    yield _meta(pid, 0, "process_name", {"name": shareable(name)})
    yield _meta(pid, 0, "process_sort_index", {"sort_index": -1})
    for tid, track in enumerate(TRACKS):
        yield _meta(pid, tid, "thread_name", {"name": track})
        yield _meta(pid, tid, "thread_sort_index", {"sort_index": tid})
    yield from _causes(pid, drawing)
    for step in drawing.steps:
        kept = "kept" if step.left_out is None else f"left out: {step.left_out}"
        yield _event(pid, 1, step.name, step.start_ns, step.end_ns, "step", {"step": kept})
    yield from _findings(pid, drawing, findings)
    if drawing.path is not None:
        yield from _critical(pid, drawing.path)


def _causes(pid: int, drawing: Drawing) -> Iterator[str]:
    for lane in drawing.lanes:
        if lane.kind != "idle":
            continue
        for start, end, code in zip(lane.start.tolist(), lane.end.tolist(), lane.detail.tolist(), strict=True):
            detail = drawing.details[code]
            told = {
                "cause": detail.cause, "category": CAUSES[detail.cause].category, "side": detail.side, "grade": detail.grade,
                "evidence": shareable(detail.name) or "nothing recorded",
            }  # fmt: skip
            label = CAUSES[detail.cause].label
            yield _event(pid, 0, label, start, end, "idle", told, COLOURS.get(CAUSES[detail.cause].category))


def _findings(pid: int, drawing: Drawing, findings: Sequence[Finding]) -> Iterator[str]:
    """Each finding over the window, nested in the order of rank, with its places as instants."""
    for number, finding in enumerate(findings, start=1):
        told = {"message": finding.message, "do": finding.how, "grade": finding.grade, "rule": finding.rule}
        if finding.saving_ns:
            told["saves"] = " to ".join(map(duration, finding.saving_ns))
        title = f"{number}. {finding.title}"
        shown = {key: shareable(text) for key, text in told.items()}
        yield _event(pid, 2, title, drawing.start_ns, drawing.end_ns, "finding", shown)
        for item in finding.evidence:
            for at in item.at_ms:
                when = drawing.origin_ns + round(at * 1e6)
                yield _instant(pid, 2, f"{title}: {shareable(item.what)}", when)


def _critical(pid: int, path: Path) -> Iterator[str]:
    for start, end, name in zip(path.start.tolist(), path.end.tolist(), path.name.tolist(), strict=True):
        yield _event(pid, 3, path.names[name], start, end, "critical", {})


def _event(
    pid: int, tid: int, name: str, start: int, end: int, category: str, told: dict[str, Any], colour: str | None = None
) -> str:  # fmt: skip
    rest = json.dumps({"name": shareable(name), "cat": category, "args": told, **({"cname": colour} if colour else {})})
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{micro(start)},"dur":{micro(end - start)},{rest[1:]}'


def _instant(pid: int, tid: int, name: str, at: int) -> str:
    return f'{{"ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{micro(at)},"name":{json.dumps(name)}}}'


def _meta(pid: int, tid: int, name: str, told: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": told}, separators=(",", ":"))


def micro(ns: int) -> str:
    """Nanoseconds as decimal microseconds, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
