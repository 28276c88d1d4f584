"""From Traces to an Advice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpu_trace_advisor.advice.across_ranks import Changed, changed_ranks, compared, ranks_of
from gpu_trace_advisor.advice.how_to_record import how_to_record
from gpu_trace_advisor.advice.model import (
    Advice,
    DeviceAdvice,
    HostAdvice,
    InsideKernels,
    ReplayAdvice,
    StepAdvice,
    TraceInfo,
    WhatIf,
)
from gpu_trace_advisor.advice.ranking import alone, claims_by, distrust, judge, price_lacks, together, unfit, withheld
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.advice.verdict import verdict
from gpu_trace_advisor.analysis.captures import read_captures
from gpu_trace_advisor.analysis.device_window import DeviceWindow, only_a_set, views
from gpu_trace_advisor.analysis.health import check_device, check_trace, failures
from gpu_trace_advisor.analysis.joint_replay import Network, RankChange
from gpu_trace_advisor.analysis.rank_summary import world
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.analysis.summary import (
    MATRIX_CLASSES,
    allocation_calls,
    clipped_ns,
    communication_ns,
    copies_by_kind,
    counts_by_step,
    host_ranges,
    kernels_by_name,
    largest_gaps,
    launches,
    launches_without_operation,
    memory_use,
    modules,
    operators,
    sync_calls,
)
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.columns.intervals import clip, grouped, total, union
from gpu_trace_advisor.decode.ladder import ladder
from gpu_trace_advisor.decode.serving_cost import not_served, serving
from gpu_trace_advisor.decode.utilization import efficiency
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from gpu_trace_advisor.ranks.model import RankSet
from gpu_trace_advisor.reference.hardware import built_for, hardware
from gpu_trace_advisor.replay.fixes import FIXES, Fix
from gpu_trace_advisor.rulekit.rule import WORTH, Claim, Rule
from gpu_trace_advisor.rulekit.wall_time import whole
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.runtime.guarded import Failed
from gpu_trace_advisor.timelines.steps import Step, marker_rows, parse_span, period_ns, pick_steps
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Kind, Note, Trace

COSTLY_OPTIONS = ("with_stack", "record_shapes", "profile_memory", "with_flops", "with_modules")
NAMES_SHOWN = 200  # operators and modules kept in the result; kernels are all kept

DEFAULT = Request()


@dataclass(frozen=True)
class Analysed:
    """One recording, looked at by itself."""

    trace: Trace
    views: list[DeviceWindow]
    notes: list[Note]


def analyse(trace: Trace, request: Request) -> Analysed:
    """The windows of a recording's devices, and what limits them.

    Raises:
        NothingToAnalyse: it lacks the device or steps that are asked for.
        BadUsage: the request cannot be met.
    """
    if request.window not in (None, "steps", "gpu", "all"):
        parse_span(request.window or "")
    read_captures(request)  # what cannot be read is said first
    found, notes = views(trace, request)
    return Analysed(trace, found, [*trace.health, *check_trace(trace), *notes])


def other_rank(trace: Trace, request: Request) -> bool:
    """Another rank was asked for."""
    return request.rank is not None and trace.rank != request.rank and len(trace.processes) <= 1


def no_such_rank(ranks: Iterable[int | None], request: Request) -> NothingToAnalyse:
    """None of the recordings, of these ranks, is of the one that was asked for."""
    known = sorted({rank for rank in ranks if rank is not None})
    have = f"there are ranks {', '.join(map(str, known))}" if known else "no file says its rank"
    return NothingToAnalyse(f"no trace of rank {request.rank}; {have}")


def advise_traces(traces: Sequence[Trace], request: Request = DEFAULT, errors: Sequence[str] = ()) -> Advice:
    """The Advice for these recordings. `errors` are what went wrong before, kept beside the findings.

    Raises:
        NothingToAnalyse: nothing in them for what was asked.
        BadUsage: the request cannot be met.
    """
    return examine(traces, request, errors)[0]


def examine(
    traces: Sequence[Trace], request: Request = DEFAULT, errors: Sequence[str] = ()
) -> tuple[Advice, list[DeviceWindow]]:
    """The Advice, and the views that it sums up, in the order of its devices: for reports that draw the timeline.

    Raises:
        NothingToAnalyse: nothing in them for what was asked.
        BadUsage: the request cannot be met.
    """
    chosen = [trace for trace in traces if not other_rank(trace, request)]
    if not chosen:
        raise no_such_rank((trace.rank for trace in traces), request)
    found: list[Analysed] = []
    lacking: list[NothingToAnalyse] = []
    for trace in chosen:
        try:
            found.append(analyse(trace, request))
        except NothingToAnalyse as error:  # this one lacks the device or steps that another one may have
            lacking.append(error)
    if not found:
        raise lacking[0]
    run = _run_of(found, request, len(chosen))
    advices: list[Advice] = []
    for one in found:
        try:
            advices.append(advise_one(one, request, run))
        except NothingToAnalyse as error:
            lacking.append(error)
    if not advices:
        raise lacking[0]
    infos = [trace_info(one.trace) for one in found]
    return combined(infos, advices, run, [*errors, *map(str, lacking)]), [v for one in found for v in one.views]


def _run_of(found: Sequence[Analysed], request: Request, recordings: int) -> RankSet | None:
    if request.rank is not None:
        return None
    views_of = {f"{one.trace.name} {i}": one.views for i, one in enumerate(found)}  # several may have one name
    at = [(local, i) for local, mine in views_of.items() for i in range(len(mine))]
    if len(at) < 2:
        return None
    ranks = [rank for local, mine in views_of.items() for rank in ranks_of(mine, recordings, local)]

    def fetch(wanted: Mapping[int, tuple[RankChange, ...]]) -> Changed:
        changed: dict[tuple[int, RankChange], Network | str] = {}
        for index, variants in wanted.items():
            local, place = at[index]
            for (_, variant), one in changed_ranks(views_of[local], recordings, local, {place: variants}).items():
                changed[index, variant] = one
        return changed

    return compared(ranks, recordings, fetch)


def advise_one(found: Analysed, request: Request = DEFAULT, run: RankSet | None = None) -> Advice:
    """The Advice for one recording; `run` is what is known of all ranks, of which it is one.

    Raises:
        NothingToAnalyse: nothing in it for what was asked.
        BadUsage: the request cannot be met.
    """
    trace, notes = found.trace, list(found.notes)
    if only_a_set(trace, request):
        notes.append(Note("lone-memset", "all GPU work is one memset: --window gpu lists the device", 1))
    devices: list[DeviceAdvice] = []
    rules, broken = find_rules(Path(request.rules) if request.rules else None)
    wanted = chosen_fixes(request.what_if, rules)
    looked_at = [replace(view, peers=tuple(found.views), run=run) for view in found.views]
    for view in looked_at:
        own = check_device(view.attribution, view.window, view.steps, view.operations)
        notes += [*own, *_unused_captures(view)]
        devices.append(_device_advice(view, own))
    verdicts = [judge(view, rules) for view in looked_at]
    host = None if devices else _host_only(trace, request)
    served = tuple(filter(None, map(serving, looked_at)))
    if not served:
        notes += not_served(request, looked_at)
    return Advice(
        traces=(trace_info(trace),),
        window=devices[0].window if devices else (request.window or "all"),
        devices=tuple(devices),
        host=host,
        memory=tuple(memory_use(trace.memory)),
        verdict=verdict(devices, host, run, 1, notes),
        health=tuple(merge_notes(notes)),
        what_if=tuple(_what_if(view, wanted) for view in looked_at) if wanted else (),
        phase=looked_at[0].phase[:2] if looked_at else ("unknown", "there is no GPU work"),
        findings=tuple(finding for found in verdicts for finding in found.findings),
        joint=tuple(found.joint for found in verdicts if found.joint),
        ladders=tuple(filter(None, map(ladder, looked_at, (found.findings for found in verdicts)))),
        serving=served,
        skipped=tuple(skipped for found in verdicts for skipped in found.skipped),
        errors=(*broken, *(error for found in verdicts for error in found.errors)),
        ranks=run,
    )


def combined(
    infos: Sequence[TraceInfo], advices: Sequence[Advice], run: RankSet | None, errors: Sequence[str]
) -> Advice:
    """The advices of single recordings as one, with what comes of looking at all their ranks together.

    Raises:
        NothingToAnalyse: there are none.
    """
    if not advices:
        raise NothingToAnalyse("no recording could be looked at")
    devices = tuple(device for advice in advices for device in advice.devices)
    host = None if devices else advices[0].host
    notes = [note for advice in advices for note in advice.health]
    merged = tuple(merge_notes([*notes, *(run.notes if run else ())]))
    first = next((advice for advice in advices if advice.devices), advices[0])
    return replace(
        first,
        traces=tuple(infos),
        devices=devices,
        host=host,
        memory=tuple(use for advice in advices for use in advice.memory),
        verdict=verdict(devices, host, run, len(infos), merged),
        health=merged,
        what_if=tuple(what for advice in advices for what in advice.what_if),
        findings=tuple(finding for advice in advices for finding in advice.findings),
        joint=tuple(joint for advice in advices for joint in advice.joint),
        ladders=tuple(ladder for advice in advices for ladder in advice.ladders),
        serving=tuple(panel for advice in advices for panel in advice.serving),
        skipped=tuple(skipped for advice in advices for skipped in advice.skipped),
        errors=(*errors, *dict.fromkeys(error for advice in advices for error in advice.errors)),
        ranks=run,
    )


def chosen_fixes(names: str | None, rules: Sequence[Rule] = ()) -> list[Fix | Rule]:
    """The fixes, or rules whose fixes are meant, of a comma-separated list of names.

    Raises:
        BadUsage: a name that is neither.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()] if names else []
    known: dict[str, Fix | Rule] = {**FIXES, **{rule.id: rule for rule in rules}}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BadUsage(f"--what-if {','.join(unknown)}: no such fix or rule; there are {', '.join(sorted(known))}")
    return [known[name] for name in dict.fromkeys(wanted)]


def _what_if(view: DeviceWindow, wanted: Sequence[Fix | Rule]) -> WhatIf:
    """The fixes together, those that cannot be priced named with the reason."""
    claims: dict[str, list[Claim]] = {}
    refused: dict[str, str] = {}
    for one in wanted:
        name = one.name if isinstance(one, Fix) else one.id
        found, why = ([any_of(view, one)], None) if isinstance(one, Fix) else claims_of(view, one)
        why = (
            distrust(view)
            or withheld(view)
            or why
            or next(filter(None, (claim.fix.refuses(view.graph) for claim in found if claim.fix)), None)
        )
        if why:
            refused[name] = why
        else:
            claims[name] = found
    priced = [claim for found in claims.values() for claim in found]
    saves = together(view, alone(view, priced)) if priced else None
    return WhatIf(
        **view.place._asdict(),
        fixes=tuple(claims),
        saving_ns=(saves.low_ns, saves.high_ns) if saves else None,
        speedup=saves.speedup if saves else None,
        assumes=tuple(text for claim in priced if claim.fix for text in claim.fix.assumes),
        refused=tuple(refused.items()),
    )


def any_of(view: DeviceWindow, fix: Fix) -> Claim:
    """A plain fix as a claim: it may save whatever the replay says, but no time of unknown cause."""
    return Claim(fix.title, "", named=whole(view), ns=view.window.wall_ns, fix=fix)


def claims_of(view: DeviceWindow, rule: Rule) -> tuple[list[Claim], str | None]:
    """What a rule would change on a device, else the plain fix of its name; or why there is nothing to change, or no price."""
    _, why = unfit(rule, view) or ("", "")
    try:
        said = [] if why else claims_by(rule, view)
        found = [claim for claim in said if claim.fix]
        if rule.own:  # its fixes are tried before they are priced with the others
            for claim in found:
                price_lacks(rule, claim, view)
    except Failed as error:
        return [], f"the rule failed: {error}"
    if found and all(claim.unpriced for claim in found):
        return [], found[0].unpriced
    found = [claim for claim in found if not claim.unpriced]
    if not found and rule.id in FIXES:
        return [any_of(view, FIXES[rule.id])], None
    found = [claim for claim in found if claim.ns >= WORTH * view.window.wall_ns] or found
    return found, None if found else why or "the rule has nothing to change here"


def merge_notes(notes: Sequence[Note]) -> list[Note]:
    """The same note of several devices once, by order of first appearance, counts added up."""
    merged: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = (note.code, note.message)
        merged[key] = replace(note, count=merged[key].count + note.count) if key in merged else note
    return list(merged.values())


def trace_info(trace: Trace) -> TraceInfo:
    """What is said of a recording itself."""
    operations = trace.operations
    return TraceInfo(
        trace.name, trace.format, trace.rank, len(operations), int((trace.kind[operations] == Kind.KERNEL).sum()),
        len(trace), trace.producer, trace.base_ns, profiler_options(trace), world(trace),
    )  # fmt: skip


def profiler_options(trace: Trace) -> tuple[str, ...]:
    """What was recorded besides events; older recordings tell of stacks by having them."""
    told = {option for option in COSTLY_OPTIONS if trace.metadata.get(option)}
    return tuple(sorted(told | {"with_stack"} if trace.has_frames else told))


def _device_advice(view: DeviceWindow, health: Sequence[Note]) -> DeviceAdvice:
    attribution, window, operations, timeline = view.attribution, view.window, view.operations, view.timeline
    trace, start, end = timeline.trace, window.start_ns, window.end_ns
    trust, path = view.trust, view.critical_path  # what takes most memory first
    ns = clipped_ns(timeline, operations, start, end)
    items = view.items
    info = next(
        (d for d in trace.devices if d.ordinal == timeline.device and d.process in (None, timeline.process)), None
    )
    busy = total(clip(timeline.busy, start, end))
    flops, flops_kernels = _flops(view)
    syncs, blocking_copies = sync_calls(attribution, start, end)
    launch_window = (trace.origin_ns, int(trace.end_ns.max()) + 1) if window.kind in ("gpu", "all") else (start, end)
    return DeviceAdvice(
        **view.place._asdict(),
        gpu=info.gpu if info else None,
        name=view.device.name,
        window=window.kind,
        window_why=window.why,
        start_ns=start,
        end_ns=end,
        operations=len(operations),
        kernels=int(timeline.is_kernel[operations].sum()),
        busy_ns=busy,
        idle_ns=end - start - busy,
        compute_ns=_ns(items, "compute"),
        communication_ns=_ns(items, "communication"),
        copy_ns=_ns(items, "copy"),
        idle_host_ns=_ns(items, "idle", "host"),
        idle_submitted_ns=_ns(items, "idle", "submitted"),
        idle_unlinked_ns=_ns(items, "idle", "unlinked"),
        communication_total_ns=communication_ns(timeline, start, end),
        attribution=items,
        steps=_steps_advice(view),
        step_ns=view.step_ns,
        kernels_by_name=tuple(kernels_by_name(timeline, operations, ns)),
        copies=tuple(copies_by_kind(timeline, operations, ns)),
        launches=launches(timeline, operations, *launch_window),
        syncs=syncs,
        blocking_copies=blocking_copies,
        allocations=allocation_calls(timeline, start, end),
        launch_latency_ns=view.attribution.measured_latency_ns,
        queued_gap_ns=attribution.queued_gap_ns,
        operators=tuple(operators(timeline, operations, ns)[:NAMES_SHOWN]),
        modules=tuple(modules(timeline, operations, ns)[:NAMES_SHOWN]),
        gaps=tuple(largest_gaps(attribution, start, end)),
        memory=next((use for use in memory_use(trace.memory) if use.device == timeline.device), None),
        replay=ReplayAdvice(trust.error, trust.unexplained, trust.enough),
        critical_path=tuple(path.by_cause.items()),
        peaks=_peaks(view),
        health=tuple(health),
        flops=flops,
        flops_kernels=flops_kernels,
        inside_kernels=_inside_kernels(view),
        steps_from=view.steps_from,
    )


def _unused_captures(view: DeviceWindow) -> list[Note]:
    """Recordings of captures were given, and tell nothing of this device."""
    if not view.request.captures or view.inkernel.costs.captured is not None:
        return []
    replays = bool(view.timeline.by_graph.any())
    why = "no replayed graph has the kernels that they hold" if replays else "it replays no graph"
    return [Note("unused-capture", f"--capture tells nothing of device {view.timeline.device}: {why}", 1)]


def _inside_kernels(view: DeviceWindow) -> InsideKernels | None:
    """The table of the window's kernels; None where none ran."""
    table, window = view.kernel_table, view.window
    if not table.kernel_ns:
        return None
    mfu = efficiency(view.inkernel, window.start_ns, window.end_ns, view.phase).mfu
    return InsideKernels(
        table.kernel_ns, table.covered_ns, table.captured_ns, mfu.value, mfu.why, table.bandwidth or None,
        tuple(table.rows[i] for i in table.ranked), tuple(table.missing[:NAMES_SHOWN]),
    )  # fmt: skip


def _peaks(view: DeviceWindow) -> str:
    """Whose peaks modelled numbers rest on, where the name alone does not tell."""
    known = view.hardware
    if known is None:
        likely = built_for(view.trace.names)
        return f"its peaks are not known (--hardware {' or '.join(likely) or 'NAME'})"
    if known.found == f"by its name, {view.device.name}":
        return ""
    return f"peaks of {hardware()[known.key].name}, {known.found}"


def _ns(items: Sequence[TimeSlice], when: str, side: str | None = None) -> int:
    return sum(item.ns for item in items if (item.when, item.side) == (when, side))


def _flops(view: DeviceWindow) -> tuple[float | None, int | None]:
    """What the window's kernels compute, as far as recorded shapes tell, and how many of the matrix kernels that is."""
    costs = view.inkernel.costs
    known = view.operations[costs.kind[view.operations] != NONE]
    if not len(known):
        return None, None
    each = np.array([kind.flops for kind in costs.kinds])
    codes = view.trace.name_code[view.timeline.row[known]]
    matrix = named(view.trace, codes, lambda name: kernel_class(name) in MATRIX_CLASSES)
    return float((each[costs.kind[known]] * costs.share[known]).sum()), int(matrix.sum())


def _steps_advice(view: DeviceWindow) -> tuple[StepAdvice, ...]:
    steps, timeline = view.steps, view.timeline
    operations = grouped(view.of_step, len(steps))
    ends = [*(step.start_ns for step in steps[1:]), *(step.end_ns for step in steps[-1:])]
    counts = counts_by_step(
        view.attribution, operations, [(s.start_ns, end) for s, end in zip(steps, ends, strict=True)]
    )
    found = []
    for step, mine, counted in zip(steps, operations, counts, strict=True):
        gpu = total(union(timeline.start[mine], timeline.end[mine]))
        found.append(StepAdvice(step.name, step.start_ns, step.end_ns, gpu, len(mine), step.left_out, counted))
    return tuple(found)


def _host_only(trace: Trace, request: Request) -> HostAdvice:
    """The useful view of a recording without GPU work.

    Raises:
        NothingToAnalyse: not even that, or GPU work was asked for, or should be there and is not.
    """
    if len(trace.operations) and not only_a_set(trace, request):
        raise NothingToAnalyse(_outside(trace, request))
    if (trace.kind == Kind.ACCELERATOR).any():
        raise NothingToAnalyse(
            f"{trace.name}: recorded on an accelerator that is not read (MTIA, XPU, HPU …); only CUDA and ROCm GPUs are"
        )
    lost = sum(len(launches_without_operation(trace, p)) for p in range(len(trace.processes)))
    quarantined = sum(note.count for note in trace.health if note.code == "quarantined-time")
    if lost and (failed := failures(trace)):
        raise NothingToAnalyse(
            f"{trace.name}: {failed.message} ({lost} launches but no GPU operation{_diagnostics(trace)})"
        )
    if lost:
        raise NothingToAnalyse(
            f"{trace.name}: {lost} launches but no GPU operation: GPU activity records are missing{_diagnostics(trace)}; "
            f"{how_to_record(trace)}"
        )
    remembers = len(trace.memory.time_ns) > 0
    tells = (trace.kind < Kind.KERNEL).any() or remembers
    if request.window == "gpu" or request.device is not None or not tells:
        what = (
            "no event with a usable time"
            if not len(trace) and quarantined
            else "no events"
            if not len(trace)
            else "no GPU operation"
        )
        if failed := failures(trace):
            raise NothingToAnalyse(f"{trace.name}: {failed.message} ({what} in it{_diagnostics(trace)})")
        raise NothingToAnalyse(f"{trace.name}: {what} in it{_diagnostics(trace)}; {how_to_record(trace)}")
    steps, step_ns = _host_steps(trace, request)
    times = np.concatenate([trace.start_ns[:1], trace.end_ns, trace.memory.time_ns])
    first, last = int(times.min()), int(times.max())
    return HostAdvice(
        file=trace.name,
        start_ns=first,
        end_ns=last,
        ranges=tuple(host_ranges(trace, (Kind.RANGE, Kind.SPAN))),
        operators=tuple(host_ranges(trace, (Kind.OPERATOR,))),
        calls=tuple(host_ranges(trace, (Kind.CALL, Kind.OS))),
        steps=steps,
        step_ns=step_ns,
        to_record=how_to_record(trace),
    )


def _outside(trace: Trace, request: Request) -> str:
    """Why nothing of a trace with GPU work is left."""
    if request.rank is not None and all(p.rank not in (None, request.rank) for p in trace.processes):
        return f"{trace.name}: no GPU work of rank {request.rank}; it has ranks {[p.rank for p in trace.processes]}"
    start, end = trace.start_ns[trace.operations].min(), trace.end_ns[trace.operations].max()
    first, last = (int(t - trace.origin_ns) / 1e6 for t in (start, end))
    return f"{trace.name}: no GPU operation in the window; there are some from {first:,.3f} to {last:,.3f} ms"


def _host_steps(trace: Trace, request: Request) -> tuple[tuple[StepAdvice, ...], int | None]:
    """Marked steps of the first process that has any, and their median period in ns.

    Raises:
        BadUsage: steps are asked for that it does not have.
    """
    for process in range(len(trace.processes)):
        for rows in marker_rows(trace, process, request.marker())[:1]:
            spans = zip(rows.tolist(), trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist(), strict=True)
            steps = [Step(trace.label(row), start, end, (start, end)) for row, start, end in spans]
            if request.steps:
                steps = [step for step in pick_steps(steps, request.steps, trace.name) if step.left_out is None]
            return tuple(StepAdvice(s.name, s.start_ns, s.end_ns, 0, 0, None) for s in steps), period_ns(steps)
    if request.steps:
        pick_steps((), request.steps, trace.name)
    return (), None


def _diagnostics(trace: Trace) -> str:
    texts = trace.metadata.get("diagnostics") or []
    texts = [text for text in texts if not re.search(r"backtrace|perf event|paranoid|CPU (?:kernel )?IP", text)]
    relevant = [text for text in texts if re.search(r"cuda|cupti|gpu|kernel", text, re.IGNORECASE)] or list(texts)
    return f" (the profiler said: {' '.join(relevant[0].split())[:200]})" if relevant else ""
