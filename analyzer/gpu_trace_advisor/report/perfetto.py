"""Tracks to lay beside the original in Perfetto or chrome://tracing: what each device did or waited for, and the findings.

The times are the recording's own, to the nanosecond, and a Chrome trace's time base is kept, so that both files opened
together line up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.advice.verdict import where
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import readable_host
from gpu_trace_advisor.attribution import SIDES
from gpu_trace_advisor.attribution.causes import CAUSES, IDLE
from gpu_trace_advisor.graph import Edge
from gpu_trace_advisor.replay.critical_path import CriticalPath
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.trace.model import NONE
from gpu_trace_advisor.units import duration

FIRST_PID = 1_000_000_000  # above what processes and device rows are numbered
TRACKS = ("causes", "steps", "findings", "critical path")
COLOURS = {
    "kernel-time": "good", "communication": "rail_animation", "copies": "rail_response", "dataloader-gaps": "bad",
    "implicit-barriers": "terrible", "launch-overhead": "yellow", "host-stalls": "rail_load", "profiler": "grey",
    "unattributed": "generic_work",
}  # fmt: skip
"""Chrome's reserved names."""


def render(advice: Advice, views: Sequence[DeviceWindow]) -> Iterator[str]:
    """The overlay as a Chrome trace, in pieces."""
    bases = {view.trace.base_ns for view in views}
    base = bases.pop() if len(bases) == 1 else None
    head = "" if base is None else f'"baseTimeNanoseconds":{base},'
    yield f'{{"displayTimeUnit":"ns","otherData":{{"writer":"gpu-trace-advisor"}},{head}"traceEvents":[\n'
    first = True
    for number, (device, view) in enumerate(zip(advice.devices, views, strict=False)):
        for event in _device(FIRST_PID + number, device, view, advice.findings_of(device)):
            yield event if first else ",\n" + event
            first = False
    yield "\n]}\n"


def _device(pid: int, device: DeviceAdvice, view: DeviceWindow, findings: Sequence[Finding]) -> Iterator[str]:
    name = f"advise: {where(device)}" + (f" ({device.file})" if view.trace.rank is None and device.rank is None else "")
    yield _meta(pid, 0, "process_name", {"name": shareable(name)})
    yield _meta(pid, 0, "process_sort_index", {"sort_index": -1})
    for tid, track in enumerate(TRACKS):
        yield _meta(pid, tid, "thread_name", {"name": track})
        yield _meta(pid, tid, "thread_sort_index", {"sort_index": tid})
    yield from _causes(pid, view)
    for step in view.steps:
        kept = "kept" if step.left_out is None else f"left out: {step.left_out}"
        yield _event(pid, 1, step.name, step.start_ns, step.end_ns, "step", {"step": kept})
    yield from _findings(pid, view, findings)
    yield from _critical(pid, view.critical_path, view)


def _causes(pid: int, view: DeviceWindow) -> Iterator[str]:
    pieces, trace, window = view.attribution.pieces, view.trace, view.window
    inside = np.flatnonzero((pieces.end > window.start_ns) & (pieces.start < window.end_ns))
    start = np.maximum(pieces.start[inside], window.start_ns).tolist()
    end = np.minimum(pieces.end[inside], window.end_ns).tolist()
    columns = (start, end, *(c[inside].tolist() for c in (pieces.cause, pieces.side, pieces.row, pieces.modelled)))
    for begun, ended, code, side, row, modelled in zip(*columns, strict=True):
        cause = IDLE[code]
        told = {
            "cause": cause, "category": CAUSES[cause].category, "side": SIDES[side],
            "grade": "modelled" if modelled else "measured",
            "evidence": shareable(readable_host(trace, row)) if row != NONE else "nothing recorded",
        }  # fmt: skip
        yield _event(pid, 0, CAUSES[cause].label, begun, ended, "idle", told, COLOURS.get(CAUSES[cause].category))


def _findings(pid: int, view: DeviceWindow, findings: Sequence[Finding]) -> Iterator[str]:
    """Each finding over the window, nested in the order of rank, with its places as instants."""
    window = view.window
    for number, finding in enumerate(findings, start=1):
        told = {"message": finding.message, "do": finding.how, "grade": finding.grade, "rule": finding.rule}
        if finding.saving_ns:
            told["saves"] = " to ".join(map(duration, finding.saving_ns))
        title = f"{number}. {finding.title}"
        yield _event(
            pid, 2, title, window.start_ns, window.end_ns, "finding", {k: shareable(v) for k, v in told.items()}
        )
        for item in finding.evidence:
            for at in item.at_ms:
                when = view.trace.origin_ns + round(at * 1e6)
                yield _instant(pid, 2, f"{title}: {shareable(item.what)}", when)


def _critical(pid: int, path: CriticalPath, view: DeviceWindow) -> Iterator[str]:
    graph = view.graph
    order = range(len(path.edges) - 1, -1, -1)
    columns = (graph.after(path.edges), graph.kind[path.edges], path.since, path.done, path.until)
    after, kind, since, done, until = (column.tolist() for column in columns)
    for i in order:
        if done[i] > since[i]:
            yield _event(pid, 3, view.trace.label(int(graph.row[after[i]])), since[i], done[i], "critical", {})
        if until[i] > done[i]:
            yield _event(pid, 3, f"waits: {Edge(kind[i]).name.lower()}", done[i], until[i], "critical", {})


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
