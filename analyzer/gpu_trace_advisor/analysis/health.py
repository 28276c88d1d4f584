"""What makes the numbers of a trace doubtful, beyond what reading it already showed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.proven_empty import proven_empty
from gpu_trace_advisor.analysis.summary import lost_launches
from gpu_trace_advisor.attribution import HOST, START_UP, SUBMITTED, Attribution
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import counted, present
from gpu_trace_advisor.columns.intervals import ascending, clip, total, union
from gpu_trace_advisor.timelines.device import COMMUNICATION, MIGRATION, Timeline
from gpu_trace_advisor.timelines.steps import Step, Window, marker_rows
from gpu_trace_advisor.trace.call_errors import error_of, failed_calls
from gpu_trace_advisor.trace.kernel_names import is_communication
from gpu_trace_advisor.trace.model import NONE, Bool, Int8, Int64, Kind, Note, Trace
from gpu_trace_advisor.units import duration, share

UNRECORDED_SHARE = 0.01  # of the wall; less is not worth the first word
WARM_STEPS = 2  # so many warm steps are enough to speak of
NEVER_WARM = 5  # cold steps: after so many a program would be warm
COLD_SHARE = 0.20  # start-up causes above this share of the wall: the trace shows a cold start
CUT_NS = 1_000_000  # a submitted operation that waits this long for nothing recorded
THINNED = 100  # ids for each recorded call; whole recordings have up to 40
WHOLE = 100  # calls: of fewer the ids tell nothing
FAILED = "failed-calls"
RECORDER_ERROR = re.compile(r"CUPTI_ERROR_\w+|not collected due to", re.IGNORECASE)
# Nsight says this of every process that it saw and that used no CUDA: of launchers too, beside the one that was recorded.
NOT_STARTED = re.compile(r"CUDA profiling (?:might|may) have not", re.IGNORECASE)
COLLECTIVE = re.compile(r"(?:nccl|rccl|hccl|xccl):|record_param_comms$")  # on the host's side
OUTSIDE, OUTSIDE_NS = 0.2, 1_000_000  # of the recording, and ns: what lies outside the window is told from both on
MOSTLY = 0.3  # of it in calls of one name: they are told
OUTLIER = 10  # a first collective this many times the median of the others waits for ranks that began later


def check_trace(trace: Trace) -> list[Note]:
    """Notes that need no window."""
    notes = []
    if trace.has_frames:  # metadata told of with_stack later than stacks were recorded
        notes.append(
            Note(
                "profiler-stacks",
                "recorded with Python stacks: host times are inflated, idle time on the host's side is an upper bound; "
                "record once without with_stack to get the true share",
                int((trace.kind == Kind.PYTHON).sum()),
            )
        )
    if (missing := _no_collectives(trace)) is not None:
        notes.append(missing)
    return [*filter(None, (failures(trace), _recorder_errors(trace), thinned(trace))), *notes]


def calls_made(trace: Trace) -> tuple[int, int]:
    """How many calls with a correlation the recording holds, and how many ids there are from the first to the last of them,
    but for one in a hundred at either end."""
    ids = trace.correlation[trace.kind == Kind.CALL]
    ids = ascending(ids[ids > 0])
    few = len(ids) // 100
    return len(ids), int(ids[-1 - few] - ids[few]) + 1 if len(ids) else 0


def thinned(trace: Trace) -> Note | None:
    """Next to nothing of the calls was kept. Ids count calls that no recorder tells of too, a few for each that it does."""
    count, ids = calls_made(trace)
    if ids < THINNED * max(count, 1) or count < WHOLE:
        return None
    return Note(
        "thinned",
        f"{count:,} calls are recorded of about {ids:,} by their ids: the recording was thinned, and nothing is counted in it",
        ids - count,
    )


def failures(trace: Trace) -> Note | None:
    """Runtime calls that returned an error."""
    rows = failed_calls(trace)
    if not len(rows):
        return None
    first = int(rows[0])
    at = (int(trace.start_ns[first]) - trace.origin_ns) / 1e6
    return Note(
        FAILED,
        f"{len(rows):,} CUDA {'call' if len(rows) == 1 else 'calls'} failed, first {trace.label(first)} with error "
        f"{error_of(trace, first)} at {at:,.3f} ms of the trace: numbers after it are "
        "doubtful; fix the error, then record again",
        len(rows),
    )


def _recorder_errors(trace: Trace) -> Note | None:
    """What the recorder says of its own failures to trace the device."""
    texts = trace.metadata.get("diagnostics") or ()
    errors = [text for text in texts if RECORDER_ERROR.search(text)]
    if not len(trace.operations):
        errors += [text for text in texts if NOT_STARTED.search(text)]
    if not errors:
        return None
    return Note(
        "recorder-errors",
        f"the recorder could not trace the GPU as asked: {errors[0][:200].rstrip(' .')}; GPU work may be missing",
        len(errors),
    )


def _no_collectives(trace: Trace) -> Note | None:
    """The host asked for collectives, and no kernel is one by its name."""
    kernels = present(trace.name_code[trace.kind == Kind.KERNEL])
    host = trace.name_code[(trace.kind == Kind.OPERATOR) | (trace.kind == Kind.RANGE)]
    codes, _, calls = counted(host)
    asked = [COLLECTIVE.match(trace.names[code]) is not None for code in codes.tolist()]
    if not len(kernels) or not any(asked) or any(is_communication(trace.names[code]) for code in kernels.tolist()):
        return None
    count = int(calls[asked].sum())
    return Note(
        "no-collectives",
        f"the host asked for {count} collectives, but no kernel is one by its name: their time is not known, not zero; "
        "they ran outside the recording, or are counted as other kernels",
        count,
    )


def check_device(attribution: Attribution, window: Window, steps: Sequence[Step], operations: Int64) -> list[Note]:
    """Notes on one device's window."""
    timeline, waits = attribution.timeline, unexplained(attribution, window)
    return [
        note
        for note in (
            _unrecorded_graph_nodes(waits, window),
            _cut(waits),
            _late(waits, window),
            cold(attribution, window, steps),
            _lost_kernels(timeline),
            _orphans(timeline, operations),
            _clock_skew(timeline, operations),
            _single_step(steps, window),
            _outside(timeline, window),
            _empty_steps(timeline, steps),
            _collective_outlier(timeline),
        )
        if note is not None
    ]


class Unexplained(NamedTuple):
    """Waits on the device's side that nothing explains, k of them."""

    start: Int64
    ns: Int64
    """[k] inside the window."""
    side: Int8
    in_graph: Bool
    """[k] a graph replay was under way, see `in_graph_replay`."""
    empty: Bool
    """[k] of long waits: the device is known to have been empty when the operation was submitted, see `proven_empty`."""

    @property
    def long(self) -> Bool:
        """[k] a submitted operation waited so long that it was no usual delay."""
        return np.asarray((self.ns >= CUT_NS) & ~self.in_graph & (self.side == SUBMITTED), np.bool_)

    @property
    def cut(self) -> Bool:
        """[k] the device waited for work that the recording does not hold."""
        return self.long & ~self.empty

    @property
    def late(self) -> Bool:
        """[k] the device had nothing to do, and began late all the same."""
        return self.long & self.empty


def unexplained(attribution: Attribution, window: Window) -> Unexplained:
    """The device-unknown pieces that lie in the window, if only in part."""
    found: list[tuple[Any, ...]] = []
    for part, ns in attribution.pieces.clipped(window.start_ns, window.end_ns):
        at = np.flatnonzero((part.cause == CODE["device-unknown"]) & (part.side != HOST) & (ns > 0))
        found.append((part.start[at], ns[at], part.side[at], part.gap[at]))
    columns = zip(*found, strict=True) if found else [[np.empty(0, np.int64)]] * 4
    start, ns, side, gap = (np.concatenate(column) for column in columns)
    waits = Unexplained(
        start, ns, side.astype(np.int8), in_graph_replay(attribution.timeline, start), np.zeros(len(start), np.bool_)
    )
    long = np.flatnonzero(waits.long)
    waits.empty[long] = proven_empty(attribution, attribution.timeline.gaps.closing[gap[long]])
    return waits


def in_graph_replay(timeline: Timeline, start: Int64) -> Bool:
    """[k] a graph replay is under way at these instants: launched before, with an operation that ends after.

    Inside a replay the host has nothing to do with what runs when, so a hole there is nodes that were not recorded.
    """
    nodes = np.flatnonzero(timeline.by_graph)
    if not len(nodes):
        return np.zeros(len(start), np.bool_)
    rows, inverse = np.unique(timeline.launch[nodes], return_inverse=True)
    done = np.full(len(rows), np.iinfo(np.int64).min)
    np.maximum.at(done, inverse, timeline.end[nodes])
    begun = timeline.trace.start_ns[rows]
    order = np.argsort(begun, kind="stable")
    begun, reach = begun[order], np.maximum.accumulate(done[order])
    before = np.searchsorted(begun, start, side="right") - 1
    return (before >= 0) & (reach[np.maximum(before, 0)] > start)


def _unrecorded_graph_nodes(found: Unexplained, window: Window) -> Note | None:
    total, count = int(found.ns[found.in_graph].sum()), int(found.in_graph.sum())
    if not count or total < UNRECORDED_SHARE * window.wall_ns:
        return None
    return Note(
        "unrecorded-graph-nodes",
        f"{duration(total)} ({share(total, window.wall_ns)} of the wall) are holes inside submitted graph replays: work "
        "that ran and was not recorded, not idle time; record with a newer CUPTI, or trace the graphs' nodes "
        "(nsys --cuda-graph-trace=node)",
        count,
    )


def _cut(found: Unexplained) -> Note | None:
    ns, long = found.ns, found.cut
    if not long.any():
        return None
    return Note(
        "cut",
        f"{duration(int(ns[long].sum()))} in which a submitted operation waited for work that the trace does not hold: "
        "the recording was cut or started while the device was busy; do not call this time idle",
        int(long.sum()),
    )


def _late(found: Unexplained, window: Window) -> Note | None:
    ns = int(found.ns[found.late].sum())
    if ns < UNRECORDED_SHARE * window.wall_ns or not ns:
        return None
    return Note(
        "late-start",
        f"{duration(ns)} in which a submitted operation waited although the device had nothing else to do: a launch that was "
        "held back by the system (WSL2), a first launch, memory being set up, or another process on the device",
        int(found.late.sum()),
    )


def cold(attribution: Attribution, window: Window, steps: Sequence[Step]) -> Note | None:
    """A cold start: start-up causes take much of the window, and no two of its steps are warm. Where each of several steps
    has them, or one after the other, that is no start but what is wrong with the program."""
    start_up = _start_up(attribution, window.start_ns, window.end_ns)
    if not start_up or start_up < COLD_SHARE * window.wall_ns:
        return None
    kept = [step for step in steps if step.left_out is None] if window.kind == "steps" else []
    warm = [
        _start_up(attribution, step.start_ns, step.end_ns) < COLD_SHARE * (step.end_ns - step.start_ns) for step in kept
    ]
    each = len(kept) > WARM_STEPS and not any(warm)
    if sum(warm) >= WARM_STEPS or each or len(kept) - sum(warm) >= NEVER_WARM:
        return None
    return Note(
        "cold",
        f"{duration(start_up)} ({share(start_up, window.wall_ns)} of the wall) load modules, allocate memory or compile: "
        "a cold start, not the steady state; record after a few warm-up steps",
        1,
    )


def _start_up(attribution: Attribution, start: int, end: int) -> int:
    causes = attribution.by_cause(start, end)
    return sum(causes.get(cause, 0) for cause in START_UP)


def _lost_kernels(timeline: Timeline) -> Note | None:
    """Told once for a process: with its first device."""
    trace = timeline.trace
    operations = trace.operations[trace.process[trace.operations] == timeline.process]
    if timeline.device != trace.device[operations].min() or any(note.code == "clock-skew" for note in trace.health):
        return None
    lost = lost_launches(timeline)
    launched = ascending(trace.launch[operations[trace.launch[operations] != NONE]])
    # The last launches of a recording outlive it: only those before the last linked one were lost.
    if len(launched):
        lost = lost[trace.start_ns[lost] < trace.start_ns[launched].max()]
    if len(lost) <= 0.01 * max(len(launched), 1):
        return None
    return Note(
        "lost-kernels",
        f"{len(lost)} launches have no operation although later ones do: records were lost; busy time is a lower bound",
        len(lost),
    )


def _orphans(timeline: Timeline, operations: Int64) -> Note | None:
    # Migrations of managed memory are launched by nobody.
    count = int((~timeline.linked & (timeline.op_class != MIGRATION))[operations].sum())
    if not count:
        return None
    return Note(
        "orphan-operations",
        f"{count} of {len(operations)} operations in the window were launched before the recording or by nothing it holds; "
        "they count as device time, and a gap that one of them closes is device-unknown",
        count,
    )


def _clock_skew(timeline: Timeline, operations: Int64) -> Note | None:
    linked = operations[timeline.linked[operations]]
    early = timeline.launch_start[linked] - timeline.start[linked]
    count = int((early > 0).sum())
    if not count:
        return None
    return Note(
        "clock-skew",
        f"{count} operations start before their launch call, by up to {int(early.max()) / 1e3:,.3f} µs: host and device "
        "clocks disagree; nothing was shifted, and the split of short gaps into host and submitted side is doubtful",
        count,
    )


def _single_step(steps: Sequence[Step], window: Window) -> Note | None:
    kept = [step for step in steps if step.left_out is None]
    if window.kind != "steps" or len(kept) != 1:
        return None
    return Note("single-step", "one step only: nothing can be said about how steps vary; record at least five", 1)


def _outside(timeline: Timeline, window: Window) -> Note | None:
    """Much of the recording lies before or after the window: context creation, loading, saving."""
    trace = timeline.trace
    if window.kind not in ("gpu", "steps") or any(note.code == "clock-skew" for note in trace.health):
        return None
    mine = (trace.process == timeline.process) & (trace.kind != Kind.OVERHEAD)
    first, last = int(trace.start_ns[mine].min()), int(trace.end_ns[mine].max())
    parts = []
    for start, end, where in ((first, window.start_ns, "before"), (window.end_ns, last, "after")):
        if end - start >= max(OUTSIDE * (last - first), OUTSIDE_NS):
            parts.append(
                f"{duration(end - start)} ({share(end - start, last - first)} of the recording) {where} the window"
                + _mostly(timeline, start, end)
            )
    return Note("outside-window", f"{'; '.join(parts)}: not in these numbers (--window all)", 1) if parts else None


def _mostly(timeline: Timeline, start: int, end: int) -> str:
    """The call or else the operator that takes most of a span, where that is much of it."""
    trace = timeline.trace
    for kind in (Kind.CALL, Kind.OPERATOR):
        rows = np.flatnonzero((trace.kind == kind) & (trace.process == timeline.process))
        rows = rows[(trace.start_ns[rows] < end) & (trace.end_ns[rows] > start)]
        if not len(rows):
            continue
        ns = np.minimum(trace.end_ns[rows], end) - np.maximum(trace.start_ns[rows], start)
        sums = np.bincount(trace.name_code[rows], weights=ns)
        most = rows[trace.name_code[rows] == sums.argmax()]
        inside = clip(union(trace.start_ns[most], trace.end_ns[most]), start, end)
        if total(inside) >= MOSTLY * (end - start):
            return f", {duration(total(inside))} of it in {trace.label(int(most[0]))} × {len(most):,}"
    return ""


def _empty_steps(timeline: Timeline, steps: Sequence[Step]) -> Note | None:
    """Markers of the steps' family that launched nothing here: no steps, and maybe records that were lost."""
    if not steps:
        return None
    starts = np.array([step.marker_ns[0] for step in steps], np.int64)
    for rows in marker_rows(timeline.trace, timeline.process):
        begun = timeline.trace.start_ns[rows]
        if not np.isin(starts, begun).all() or len(rows) == len(starts):
            continue
        count = len(rows) - len(starts)
        return Note(
            "empty-steps",
            f"{count} of {len(rows)} step markers launched no work that device {timeline.device} ran: they are not counted as "
            "steps; where they should have, records were lost",
            count,
        )
    return None


def _collective_outlier(timeline: Timeline) -> Note | None:
    at = np.flatnonzero(timeline.op_class == COMMUNICATION)
    if len(at) < 4:
        return None
    length = timeline.length[at]
    rest = float(np.median(length[1:]))
    if not rest or length[0] <= OUTLIER * rest or length[0] < length[1:].max():
        return None
    return Note(
        "collective-outlier",
        f"the first collective lasts {duration(int(length[0]))} against a median of {duration(int(rest))}: it waits for "
        "ranks that began recording later; its length says nothing about communication",
        1,
    )
