"""Steps, and the window that the numbers are about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gpu_trace_advisor.columns.compact import blocks, constant, where
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import Timeline
from gpu_trace_advisor.timelines.host import ENGINE_STEP, MARKING, STEP, matching
from gpu_trace_advisor.trace.model import NONE, Index, Int64, Trace

# A family of markers is used alone: the first one that marks device work.
MARKERS = (STEP, ENGINE_STEP)
FAR = np.iinfo(np.int64).max
MOST_STEPS = 100_000
WARM_UP_RATIO = 1.5  # a first step longer than this times the median of the others may be warm-up


@dataclass(frozen=True)
class Step:
    """One marked step on a device: from its marker to the next one's, but never into another's GPU work. It begins where the
    work ends that was queued before it, and ends with its own."""

    name: str
    start_ns: int
    end_ns: int
    marker_ns: tuple[int, int]
    """Its marker on the host, from its start to its end."""
    left_out: str | None = None
    """Why the step is not in the window."""

    @property
    def number(self) -> int | None:
        """The marker's own, from `#N` at the end of its name; None without."""
        found = re.search(r"#(\d+)\s*$", self.name)
        return int(found[1]) if found else None

    def without(self, why: str) -> Step:
        """The step, not in the window."""
        return replace(self, left_out=why)


@dataclass(frozen=True)
class Window:
    """[start, end) of one device, and how it came about."""

    kind: str
    """`steps`, `gpu`, `all`, or `START:END`."""
    start_ns: int
    end_ns: int
    why: str

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns


def marker_rows(trace: Trace, process: int, chosen: re.Pattern[str] | None = None) -> list[Int64]:
    """Rows of step markers on the host's side, for each family that occurs, best first."""
    families = []
    for family in (chosen,) if chosen is not None else MARKERS:
        matches = matching(trace, family)
        rows = np.flatnonzero(trace.name_mask(matches)) if matches.any() else np.empty(0, np.int64)
        rows = rows[(trace.process[rows] == process) & np.isin(trace.kind[rows], MARKING)]
        if len(rows):
            families.append(outermost(trace, rows))
    return families


def outermost(trace: Trace, rows: Int64) -> Int64:
    """Those that start inside no earlier one of these rows: the others are parts of it."""
    reach = np.maximum.accumulate(trace.end_ns[rows])
    return np.asarray(rows[np.concatenate([[True], trace.start_ns[rows][1:] >= reach[:-1]])], np.int64)


def find_steps(timeline: Timeline, chosen: re.Pattern[str] | None = None) -> tuple[list[Step], Index]:
    """The steps that launched work on this device, and for each operation the index of its step (-1: none)."""
    for rows in marker_rows(timeline.trace, timeline.process, chosen):
        of_marker = step_of_operation(timeline, timeline.trace.start_ns[rows], timeline.trace.end_ns[rows])
        used = ascending(of_marker[of_marker != NONE])
        if not len(used):
            continue
        used = used[: MOST_STEPS + 1]
        place = np.full(len(rows) + 1, NONE, np.int32)
        place[used] = np.arange(len(used))
        of_step = place[of_marker]
        markers = rows[used]
        names = [timeline.trace.label(marker) for marker in markers.tolist()]
        begun, done = timeline.trace.start_ns[markers], timeline.trace.end_ns[markers]
        steps = cut(timeline, names, begun, done, of_step)
        if len(steps) > MOST_STEPS:
            steps[-1] = steps[-1].without(f"beyond the first {MOST_STEPS:,} steps, as all that follow")
        return steps, of_step
    return [], constant(NONE, len(timeline.row), np.int32)


def cut(timeline: Timeline, names: Sequence[str], begun: Int64, done: Int64, of_step: Index) -> list[Step]:
    """The steps of spans on the host, where the GPU work of one ends and that of the next begins; each has some."""
    mine = of_step != NONE
    first, last = np.full(len(begun), FAR), np.full(len(begun), -FAR)
    np.minimum.at(first, of_step[mine], timeline.start[mine])
    np.maximum.at(last, of_step[mine], timeline.end[mine])
    before = timeline.end[timeline.start < first[0]]
    queued = min(int(before.max()), int(first[0])) if len(before) else -FAR
    reach = np.maximum.accumulate(np.concatenate([[queued], last]))
    starts, ends = np.maximum(begun, reach[:-1]), np.maximum(done, reach[1:])
    markers = zip(begun.tolist(), done.tolist(), strict=True)
    return [Step(*step) for step in zip(names, starts.tolist(), ends.tolist(), markers, strict=True)]


def step_of_operation(timeline: Timeline, start: Int64, end: Int64) -> Index:
    """[m] the step (disjoint, in order) within which the operation was launched; without a launch its predecessor's."""
    step = np.full(len(timeline.row), NONE, np.int32)
    linked = where(timeline.linked)
    for part in blocks(len(linked)):
        begun = timeline.trace.start_ns[timeline.launch[linked[part]]]
        at = np.searchsorted(start, begun, side="right") - 1
        step[linked[part]] = np.where((at >= 0) & (begun < end[np.maximum(at, 0)]), at, NONE)
    if linked.size == len(step):
        return step
    order = np.lexsort((timeline.start, timeline.stream))
    known = timeline.linked[order]
    last = np.maximum.accumulate(np.where(known, np.arange(len(order)), -1))
    same = (last >= 0) & (timeline.stream[order[np.maximum(last, 0)]] == timeline.stream[order])
    step[order] = np.where(same, step[order[np.maximum(last, 0)]], NONE)
    return step


def period_ns(steps: Sequence[Step]) -> int | None:
    """The time of a step: the median of the kept ones', each until the next one starts, the last one until it ends."""
    kept = [step for step in steps if step.left_out is None]
    until = [b.start_ns if b.left_out is None else a.end_ns for a, b in pairwise(steps)] + [
        steps[-1].end_ns if steps else 0
    ]
    ends = [end for step, end in zip(steps, until, strict=False) if step.left_out is None]
    return int(np.median([end - step.start_ns for step, end in zip(kept, ends, strict=True)])) if kept else None


def pick_steps(steps: Sequence[Step], wanted: str, file: str) -> list[Step]:
    """`3-7` or `2,5,8-9`: the steps of these numbers, the others left out. Numbers are the markers' own (`#N`), else the
    position from 0.

    Raises:
        BadUsage: not such a list, or no step has such a number.
    """
    spans, numbers = _spans(wanted), _numbers(steps)
    picked = [any(first <= number <= last for first, last in spans) for number in numbers]
    if not any(picked):
        have = f"it has {numbers[0]} to {numbers[-1]}" if len(steps) else "it has no marked steps"
        raise BadUsage(f"{file}: --steps {wanted}: no such step; {have}")
    return [
        step if keep else step.without(f"not among --steps {wanted}") for step, keep in zip(steps, picked, strict=True)
    ]


def lacking(steps: Sequence[Step], wanted: str) -> str:
    """What `--steps` asks for beyond the recording, as the end of a sentence; empty where all is there."""
    numbers = _numbers(steps)
    if all(numbers[0] <= first and last <= numbers[-1] for first, last in _spans(wanted)):
        return ""
    return f"; --steps {wanted} asks for more than the recording's {numbers[0]} to {numbers[-1]}"


def _spans(wanted: str) -> list[tuple[int, int]]:
    """First and last number of each part."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", wanted):
        raise BadUsage(f"--steps {wanted}: expected numbers and ranges such as 3-7 or 2,5")
    spans = [(int(first), int(last or first)) for first, _, last in (part.partition("-") for part in wanted.split(","))]
    if back := [f"{first}-{last}" for first, last in spans if last < first]:
        raise BadUsage(f"--steps {wanted}: {back[0]} ends before it starts; expected ranges such as 3-7")
    return spans


def _numbers(steps: Sequence[Step]) -> list[int]:
    """The markers' own, else positions from 0."""
    numbers = [step.number for step in steps]
    return [at if n is None else n for at, n in enumerate(numbers)] if None not in numbers else list(range(len(steps)))


def choose_window(timeline: Timeline, steps: Sequence[Step], request: str | None, inferred_from: str = "") -> Window:
    """The window asked for, or the default: `steps` where a step is kept, else `gpu`. `inferred_from` says what tells the
    steps that nobody marked.

    Raises:
        NothingToAnalyse: steps were asked for and there are none.
        BadUsage: START:END lies after the trace.
    """
    trace = timeline.trace
    kept = [step for step in steps if step.left_out is None]
    kind = request or ("steps" if kept else "gpu")
    if kind == "steps":
        if not steps:
            raise NothingToAnalyse(
                f"{trace.name}: no step with GPU work was marked; call profiler.step() in the loop, choose a marker with "
                "--step-marker, or use --window gpu"
            )
        kept = kept or list(steps)  # asked for by name: all that there is, however incomplete
        what, told = ("step", f" inferred from {inferred_from}") if inferred_from else ("marked step", "")
        if len(kept) < len(steps):
            why = f"{len(kept)} of {len(steps)} {what}s{told}"
        else:
            why = f"all {len(kept)} {what}s{told}" if len(kept) > 1 else f"the only {what}{told}"
        return Window("steps", kept[0].start_ns, max(step.end_ns for step in kept), why)
    if kind == "gpu":
        return Window("gpu", *timeline.span_ns, "first to last GPU operation of the device")
    if kind == "all":
        return Window("all", trace.origin_ns, int(trace.end_ns.max()), "first to last event of any kind")
    start, end = parse_span(kind)
    recorded = int(trace.end_ns.max()) - trace.origin_ns
    if start * 1e6 >= recorded:
        raise BadUsage(
            f"{trace.name}: --window {kind}: it starts after the trace, which lasts {recorded / 1e6:,.3f} ms"
        )
    # Beyond the last event nothing is known: it is not idle time.
    first, last = trace.origin_ns + round(start * 1e6), trace.origin_ns + min(round(end * 1e6), recorded)
    return Window(kind, first, last, f"{start:g} to {min(end, recorded / 1e6):g} ms from the first event")


def parse_span(text: str) -> tuple[float, float]:
    """`START:END` in milliseconds.

    Raises:
        BadUsage: not two numbers, or END not after START.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*:\s*(\d+(?:\.\d*)?)\s*", text)
    if not found or float(found[2]) <= float(found[1]):
        raise BadUsage(
            f"--window {text}: expected steps, gpu, all, or START:END in milliseconds from the trace's start, "
            "END after START, such as 100:250"
        )
    return float(found[1]), float(found[2])
