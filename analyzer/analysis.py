"""From Traces to an Advice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.advice import Advice, DeviceAdvice, HostAdvice, StepAdvice, TraceInfo
from analyzer.attribution import START_UP, SUBMITTED, Attribution, attribute
from analyzer.errors import BadUsage, NothingToAnalyse
from analyzer.health import CUT_NS, check_device, check_trace, unexplained
from analyzer.host import read_host
from analyzer.intervals import clip, total
from analyzer.summary import (
    allocation_calls,
    clipped_ns,
    communication_ns,
    copies_by_kind,
    host_ranges,
    inside,
    kernels_by_name,
    largest_gaps,
    launches,
    launches_without_operation,
    memory_use,
    modules,
    operators,
    sync_calls,
)
from analyzer.timeline import Timeline, timelines
from analyzer.trace import Int64, Kind, Note, Trace
from analyzer.verdict import verdict
from analyzer.window import (
    WARM_UP_RATIO,
    Step,
    Window,
    choose_window,
    find_steps,
    marker_rows,
    parse_span,
    period_ns,
    pick_steps,
)

NAMES_SHOWN = 200  # operators and modules kept in the result; kernels are all kept


@dataclass(frozen=True)
class Request:
    """What was asked for; None is the default of each."""

    window: str | None = None
    steps: str | None = None
    step_marker: str | None = None
    device: int | None = None
    rank: int | None = None

    def marker(self) -> re.Pattern[str] | None:
        """`--step-marker` as a pattern: a regular expression matched from the name's start.

        Raises:
            BadUsage: not a regular expression.
        """
        if self.step_marker is None:
            return None
        try:
            return re.compile(self.step_marker)
        except re.error as error:
            raise BadUsage(f"--step-marker {self.step_marker}: not a regular expression ({error})") from None


DEFAULT = Request()


def advise_traces(traces: Sequence[Trace], request: Request = DEFAULT, errors: Sequence[str] = ()) -> Advice:
    """The Advice for these recordings. `errors` are what went wrong before, kept beside the findings.

    Raises:
        NothingToAnalyse: nothing in them for what was asked.
        BadUsage: the request cannot be met.
    """
    if request.window not in (None, "steps", "gpu", "all"):
        parse_span(request.window or "")
    chosen = [t for t in traces if request.rank is None or t.rank in (None, request.rank) or len(t.processes) > 1]
    devices: list[DeviceAdvice] = []
    notes: list[Note] = []
    for trace in chosen:
        found, health = _devices(trace, request)
        devices += found
        notes += [*trace.health, *check_trace(trace), *health]
    host = None
    if not devices:
        host = _host_only(chosen, request)
    memory = tuple(use for trace in chosen for use in memory_use(trace.memory))
    window = devices[0].window if devices else (request.window or "all")
    health = tuple(merge_notes(notes))
    return Advice(
        traces=tuple(_info(trace) for trace in chosen),
        window=window,
        devices=tuple(devices),
        host=host,
        memory=memory,
        verdict=verdict(devices, host, health),
        health=health,
        errors=tuple(errors),
    )


def merge_notes(notes: Sequence[Note]) -> list[Note]:
    """The same finding on several devices once, by order of first appearance, counts added up."""
    merged: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = (note.code, note.message)
        merged[key] = replace(note, count=merged[key].count + note.count) if key in merged else note
    return list(merged.values())


def _info(trace: Trace) -> TraceInfo:
    operations = trace.operations
    return TraceInfo(
        trace.name, trace.format, trace.rank, len(operations), int((trace.kind[operations] == Kind.KERNEL).sum()),
        len(trace), trace.producer, trace.base_ns,
    )  # fmt: skip


def _devices(trace: Trace, request: Request) -> tuple[list[DeviceAdvice], list[Note]]:
    marker = request.marker()
    hosts = {p: read_host(trace, p, marker) for p in np.unique(trace.process[trace.operations]).tolist()}
    found, notes = [], []
    for timeline in timelines(trace, hosts):
        if request.device not in (None, timeline.device):
            continue
        process = trace.processes[timeline.process]
        if request.rank is not None and process.rank not in (None, request.rank):
            continue
        advice, health = _device(timeline, request, marker)
        if advice is not None:
            found.append(advice)
        notes += health
    if not found and request.device is not None and len(trace.operations):
        known = sorted(set(trace.device[trace.operations].tolist()))
        raise NothingToAnalyse(f"{trace.name}: no operations on device {request.device}; it has devices {known}")
    return found, notes


def _device(
    timeline: Timeline, request: Request, marker: re.Pattern[str] | None
) -> tuple[DeviceAdvice | None, list[Note]]:
    trace = timeline.trace
    attribution = attribute(timeline)
    steps, of_step = find_steps(timeline, marker)
    if marker is not None and not steps:
        raise NothingToAnalyse(
            f"{trace.name}: no range matching --step-marker {marker.pattern} launched work on device {timeline.device}"
        )
    steps = pick_steps(steps, request.steps, trace.name) if request.steps else leave_out(attribution, steps)
    window = choose_window(timeline, steps, "steps" if request.steps else request.window)
    operations = inside(timeline, window.start_ns, window.end_ns)
    if not len(operations):
        return None, [Note("empty-window", f"device {timeline.device} ran nothing in the window and is left out", 1)]
    health = check_device(attribution, window, steps, operations)
    return _device_advice(attribution, window, steps, of_step, operations), health


def leave_out(attribution: Attribution, steps: list[Step]) -> list[Step]:
    """Mark a first step that is warm-up, and one whose front was cut away; a last step is kept whatever its length."""
    if not steps:
        return steps
    first = steps[0]
    if reason := _cut_front(attribution, first) or _warm_up(attribution, steps):
        return [replace(first, left_out=reason), *steps[1:]]
    return steps


def _cut_front(attribution: Attribution, step: Step) -> str | None:
    """The step begins with an operation that was submitted and waited for work the trace does not hold."""
    timeline, pieces = attribution.timeline, attribution.pieces
    if step.start_ns > timeline.span_ns[0]:
        return None
    ns, _ = unexplained(attribution, Window("", step.start_ns, timeline.span_ns[0], ""))
    cut = int(ns[pieces.side == SUBMITTED].sum())
    if cut < CUT_NS:
        return None
    return f"its first operation waited {cut / 1e6:,.1f} ms for work that was cut away"


def _warm_up(attribution: Attribution, steps: list[Step]) -> str | None:
    """Longer than 1.5 times the median of the others, and start-up causes fill the excess."""
    if len(steps) < 2:
        return None
    starts = [step.start_ns for step in steps]
    length = starts[1] - starts[0]
    others = [*np.diff(starts[1:]).tolist(), steps[-1].end_ns - steps[-1].start_ns]
    usual = float(np.median(others))
    if length <= WARM_UP_RATIO * usual:
        return None
    causes = attribution.by_cause(starts[0], starts[1])
    start_up = sum(causes.get(cause, 0) for cause in START_UP)
    if start_up < (length - usual) / 2:
        return None
    return (
        f"warm-up: {length / 1e6:,.1f} ms against a median of {usual / 1e6:,.1f} ms, "
        f"{start_up / 1e6:,.1f} ms of it module loading, allocation or compiling"
    )


def _device_advice(
    attribution: Attribution, window: Window, steps: list[Step], of_step: Int64, operations: Int64
) -> DeviceAdvice:
    timeline = attribution.timeline
    trace, start, end = timeline.trace, window.start_ns, window.end_ns
    ns = clipped_ns(timeline, operations, start, end)
    items = tuple(attribution.partition(start, end))
    of = lambda **match: sum(i.ns for i in items if all(getattr(i, k) == v for k, v in match.items()))  # noqa: E731
    process = trace.processes[timeline.process]
    info = next(
        (d for d in trace.devices if d.ordinal == timeline.device and d.process in (None, timeline.process)), None
    )
    busy = total(clip(timeline.busy, start, end))
    syncs, blocking_copies = sync_calls(attribution, start, end)
    launch_window = (trace.origin_ns, int(trace.end_ns.max()) + 1) if window.kind in ("gpu", "all") else (start, end)
    return DeviceAdvice(
        file=trace.name,
        rank=process.rank if process.rank is not None else trace.rank,
        process=process.pid,
        device=timeline.device,
        gpu=info.gpu if info else None,
        name=info.name if info else "",
        window=window.kind,
        window_why=window.why,
        start_ns=start,
        end_ns=end,
        operations=len(operations),
        kernels=int(timeline.is_kernel[operations].sum()),
        busy_ns=busy,
        idle_ns=end - start - busy,
        compute_ns=of(when="compute"),
        communication_ns=of(when="communication"),
        copy_ns=of(when="copy"),
        idle_host_ns=of(when="idle", side="host"),
        idle_submitted_ns=of(when="idle", side="submitted"),
        idle_unlinked_ns=of(when="idle", side="unlinked"),
        communication_total_ns=communication_ns(timeline, start, end),
        attribution=items,
        steps=tuple(_step_advice(timeline, step, np.flatnonzero(of_step == i)) for i, step in enumerate(steps)),
        step_ns=period_ns(steps),
        kernels_by_name=tuple(kernels_by_name(timeline, operations, ns)),
        copies=tuple(copies_by_kind(timeline, operations, ns)),
        launches=launches(timeline, operations, *launch_window),
        syncs=syncs,
        blocking_copies=blocking_copies,
        allocations=allocation_calls(timeline, start, end),
        launch_latency_ns=attribution.launch_latency_ns,
        queued_gap_ns=attribution.queued_gap_ns,
        operators=tuple(operators(timeline, operations, ns)[:NAMES_SHOWN]),
        modules=tuple(modules(timeline, operations, ns)[:NAMES_SHOWN]),
        gaps=tuple(largest_gaps(attribution, start, end)),
        memory=next((use for use in memory_use(trace.memory) if use.device == timeline.device), None),
    )


def _step_advice(timeline: Timeline, step: Step, operations: Int64) -> StepAdvice:
    mask = np.zeros(len(timeline.row), np.bool_)
    mask[operations] = True
    gpu = total(timeline.union_of(mask))
    return StepAdvice(step.name, step.start_ns, step.end_ns, gpu, len(operations), step.left_out)


def _host_only(traces: Sequence[Trace], request: Request) -> HostAdvice:
    """The useful view of a recording without GPU work.

    Raises:
        NothingToAnalyse: not even that, or GPU work was asked for, or should be there and is not.
    """
    if not traces:
        raise NothingToAnalyse(f"no trace of rank {request.rank}")
    trace = traces[0]
    if busy := next((t for t in traces if len(t.operations)), None):
        raise NothingToAnalyse(_outside(busy, request))
    if (trace.kind == Kind.ACCELERATOR).any():
        raise NothingToAnalyse(
            f"{trace.name}: recorded on an accelerator that is not read (MTIA, XPU, HPU …); only CUDA and ROCm GPUs are"
        )
    lost = sum(len(launches_without_operation(trace, p)) for p in range(len(trace.processes)))
    quarantined = sum(note.count for note in trace.health if note.code == "quarantined-time")
    if lost:
        raise NothingToAnalyse(
            f"{trace.name}: {lost} launches but no GPU operation: GPU activity records are missing{_diagnostics(trace)}; "
            f"{_how_to_record(trace)}"
        )
    if request.window == "gpu" or request.device is not None or not len(trace) or not (trace.kind < Kind.KERNEL).any():
        what = (
            "no event with a usable time"
            if not len(trace) and quarantined
            else "no events"
            if not len(trace)
            else "no GPU operation"
        )
        raise NothingToAnalyse(f"{trace.name}: {what} in it{_diagnostics(trace)}; {_how_to_record(trace)}")
    return HostAdvice(
        file=trace.name,
        start_ns=trace.origin_ns,
        end_ns=int(trace.end_ns.max()),
        ranges=tuple(host_ranges(trace, (Kind.RANGE, Kind.SPAN))),
        operators=tuple(host_ranges(trace, (Kind.OPERATOR,))),
        calls=tuple(host_ranges(trace, (Kind.CALL, Kind.OS))),
        **_host_steps(trace, request),
    )


def _outside(trace: Trace, request: Request) -> str:
    """Why nothing of a trace with GPU work is left."""
    if request.rank is not None and all(p.rank not in (None, request.rank) for p in trace.processes):
        return f"{trace.name}: no GPU work of rank {request.rank}; it has ranks {[p.rank for p in trace.processes]}"
    start, end = trace.start_ns[trace.operations].min(), trace.end_ns[trace.operations].max()
    first, last = (int(t - trace.origin_ns) / 1e6 for t in (start, end))
    return f"{trace.name}: no GPU operation in the window; there are some from {first:,.3f} to {last:,.3f} ms"


def _host_steps(trace: Trace, request: Request) -> dict[str, object]:
    families = [rows for p in range(len(trace.processes)) for rows in marker_rows(trace, p, request.marker())]
    if not families:
        return {"steps": (), "step_ns": None}
    rows = families[0]
    steps = [
        Step(trace.label(r), int(trace.start_ns[r]), int(trace.end_ns[r]), int(trace.end_ns[r])) for r in rows.tolist()
    ]
    return {
        "steps": tuple(StepAdvice(s.name, s.start_ns, s.end_ns, 0, 0, None) for s in steps),
        "step_ns": period_ns(steps),
    }


def _diagnostics(trace: Trace) -> str:
    texts = trace.metadata.get("diagnostics") or []
    told = [text for text in texts if re.search(r"cuda|cupti|gpu|kernel", text, re.IGNORECASE)] or list(texts)
    return f" (the profiler said: {' '.join(told[0].split())[:200]})" if told else ""


def _how_to_record(trace: Trace) -> str:
    if trace.format == "nsight":
        return "record with nsys profile --trace=cuda,nvtx, with the privileges it asks for, and let the capture finish"
    return (
        "record with torch.profiler and ProfilerActivity.CUDA on a machine where CUPTI may collect, and let the profiler stop "
        "after the GPU is done"
    )
