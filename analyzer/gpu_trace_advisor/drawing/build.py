"""From the windows that an Advice sums up to what is drawn of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np

from gpu_trace_advisor.advice.model import Advice, StepAdvice, place_of
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.advice.verdict import focus
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.drawing.calling import callers
from gpu_trace_advisor.drawing.coverage import BINS, heat, memory_curve, overview, shares
from gpu_trace_advisor.drawing.details import Details
from gpu_trace_advisor.drawing.fixes import subsets
from gpu_trace_advisor.drawing.flame import by_idle, by_time
from gpu_trace_advisor.drawing.lanes import THREADS, critical_lanes, device_lanes, host_thread_lanes
from gpu_trace_advisor.drawing.model import Drawing, Roofline
from gpu_trace_advisor.roofline.points import roofline
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.timelines.steps import Step
from gpu_trace_advisor.trace.model import Trace


def draw(advice: Advice, views: Sequence[DeviceWindow], traces: Sequence[Trace] = ()) -> list[Drawing]:
    """A drawing of each device, in the advice's order: the one to look at first with charts of its own. Where there is no
    GPU work, of the first recording's threads."""
    if not views:
        return [draw_host(trace, advice.host.steps) for trace in traces[:1]] if advice.host else []
    first = focus(advice.devices, advice.ranks)
    devices = {place_of(device): device for device in advice.devices}
    pairs = [(asked(view, views, advice), devices[view.place]) for view in views if view.place in devices]
    return [draw_device(view, advice.findings_of(device), whole=device is first) for view, device in pairs]


def asked(view: DeviceWindow, views: Sequence[DeviceWindow], advice: Advice) -> DeviceWindow:
    """The view as rules were asked about it: with those beside it, and what is known of all ranks."""
    peers = tuple(other for other in views if other.trace is view.trace)
    if len(peers) == 1 and advice.ranks is None:
        return view
    return replace(view, peers=peers, run=advice.ranks)


def draw_device(view: DeviceWindow, findings: Sequence[Finding] = (), *, whole: bool = True) -> Drawing:
    """What is drawn of one device; with its charts where `whole`."""
    trace, host, window = view.trace, view.timeline.host, view.window
    threads, details = list(host.launching)[:THREADS], Details()
    tree = callers(host, np.array(host.launching, np.int64))
    lanes = device_lanes(view, threads, tree, details)
    rules = find_rules(FilePath(view.request.rules) if view.request.rules else None)[0] if whole and findings else []
    return Drawing(
        place=view.place,
        ranked=trace.rank is not None,
        base_ns=trace.base_ns,
        origin_ns=trace.origin_ns,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        lanes=lanes,
        details=tuple(details.found),
        threads=tuple(trace.threads[thread].name for thread in threads),
        steps=view.steps,
        path=critical_lanes(view, lanes, threads),
        overview=overview(view),
        heat=heat(view) if whole else (),
        by_time=by_time(view, tree) if whole else (),
        by_idle=by_idle(view, tree) if whole else (),
        fixes=subsets(view, findings, rules) if rules else None,
        memory=memory_curve(trace.memory, view.timeline.device) if whole else None,
        roofline=_roofline(view) if whole else None,
    )


def draw_host(trace: Trace, steps: Sequence[StepAdvice] = ()) -> Drawing:
    """A recording without GPU work: what its threads did."""
    details = Details()
    threads, lanes = host_thread_lanes(trace, details)
    start = trace.origin_ns
    end = int(trace.end_ns.max()) if len(trace) else start
    memory = next(
        (curve for d in sorted(set(trace.memory.device.tolist())) if (curve := memory_curve(trace.memory, d))), None
    )
    return Drawing(
        place=None, ranked=trace.rank is not None, base_ns=trace.base_ns, origin_ns=start, start_ns=start, end_ns=end,
        lanes=lanes, details=tuple(details.found), threads=threads,
        steps=tuple(Step(one.name, one.start_ns, one.end_ns, (one.start_ns, one.end_ns)) for one in steps), path=None,
        overview=shares({}, start, end, BINS), memory=memory,
    )  # fmt: skip


def _roofline(view: DeviceWindow) -> Roofline | None:
    if view.hardware is None:
        return None
    start, end = view.window.start_ns, view.window.end_ns
    work = roofline(view.inkernel, start, end)
    kernel_ns = int(view.inkernel.shares(start, end)[1].sum())
    return Roofline(tuple(work), view.hardware, kernel_ns) if work else None
