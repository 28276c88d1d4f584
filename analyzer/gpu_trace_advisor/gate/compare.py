"""What changed from earlier runs to a later one, per step, and whether it is more than noise.

The unit is the marked step. A window without steps is compared only when it holds the same kernels on both sides, and
then nothing is known of its noise. Less work in a fixed window is never an improvement. `gate.noise` says how far apart
runs of one program may lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import fmean
from typing import Any

from gpu_trace_advisor.attribution.causes import label
from gpu_trace_advisor.gate.comparability import (
    aligned,
    distinct,
    other_gpu,
    other_options,
    other_shapes,
    same_conditions,
    same_devices,
    same_recording,
)
from gpu_trace_advisor.gate.noise import apart
from gpu_trace_advisor.gate.rank_test import Shift, shift
from gpu_trace_advisor.gate.run_record import DeviceRun, Run, middle
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.units import percent

IMPROVED, REGRESSED, SAME = "improved", "regressed", "no difference beyond noise"
TOO_FEW, NOT_COMPARABLE = "too few steps to tell", "not comparable"
EXIT_CODES = {IMPROVED: 0, SAME: 0, REGRESSED: 1, TOO_FEW: 2, NOT_COMPARABLE: 2}
WORST_FIRST = (NOT_COMPARABLE, REGRESSED, TOO_FEW, IMPROVED, SAME)

RELATIVE = 0.03  # smaller shifts are not called: 2 % noise between 10 steps shifts them so far once in 300 times
ABSOLUTE_NS = 10_000  # a step's markers are no more exact than this
FEWEST_PERIODS = 4  # between five steps
QUICKER = 0.01  # a step shorter by more is no regression for what it counts
BY_TIMING = ("blocking-copies",)
"""Counts that a microsecond decides: whether a copy had ended when its call returned."""
KERNELS_SHOWN = 12


@dataclass(frozen=True)
class Timing:
    """A time of every step on both sides: medians, the shift and what it is measured against, in ns."""

    before_ns: float
    after_ns: float
    shift: Shift | None
    """None with too few steps."""
    noise_ns: float | None
    """The larger of the uncertainty of the shift and of how far runs of one program may lie apart."""
    verdict: str


@dataclass(frozen=True)
class Change:
    """Time per step (mean) under one name, in ns."""

    name: str
    before_ns: float
    after_ns: float
    calls: tuple[float, float] | None = None
    """Per step, of a kernel."""
    beyond_noise: bool | None = None
    """None where the noise is not known."""

    @property
    def delta_ns(self) -> float:
        return self.after_ns - self.before_ns


@dataclass(frozen=True)
class CountChange:
    """A number per step."""

    name: str
    before: float
    after: float
    grew: bool
    """More than before, and not by chance."""
    exact: bool
    """The same in every step of each side; else it varies by itself, and is held against its noise as a time is."""


@dataclass(frozen=True)
class LaneChange:
    """One device; `step` and `gpu` are None where times must not be compared or were not recorded."""

    key: str
    name: str
    steps: tuple[int, int]
    step: Timing | None
    gpu: Timing | None
    causes: tuple[Change, ...]
    """By size of the change, all of them."""
    kernels: tuple[Change, ...]
    counts: tuple[CountChange, ...]
    """Those that differ."""


@dataclass(frozen=True)
class Comparison:
    verdict: str
    reason: str
    before: tuple[str, ...]
    after: str
    lanes: tuple[LaneChange, ...]
    notes: tuple[str, ...] = ()
    itself: bool = False
    """Both sides are one recording."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "exit_code": self.exit_code}


def compare(before: Sequence[Run], after: Run) -> Comparison:
    """The later run against the earlier ones, which are runs of one program."""
    given, before = before, distinct(before)
    names = tuple(run.name for run in before)
    if all(same_recording(run, after) for run in before):
        why = "both sides are the same recording: this compares it with itself"
        lanes = tuple(_lane_change([lane], lane, times=False) for lane in after.lanes)
        return Comparison(SAME, why, names, after.name, lanes, itself=True)
    on_it = [aligned(run, after) for run in before if other_gpu(run, after) is None]
    if not on_it:
        return not_comparable(other_gpu(before[-1], after) or "", names, after.name)
    alike = [run for run in on_it if same_devices(run, after) is None]
    if not alike:
        return not_comparable(same_devices(on_it[-1], after) or "", names, after.name)
    usable = [run for run in alike if same_conditions(run, after) is None]
    forbidden = same_conditions(alike[-1], after) if not usable else None
    runs = usable or alike[-1:]
    options = other_options(runs[-1], after)
    lanes = tuple(
        _lane_change([_lane(run, lane.key) for run in runs], lane, times=not forbidden, host=not options)
        for lane in after.lanes
    )
    notes = [f"{len(before) - len(runs)} of {len(before)} runs of before are not comparable"] * (
        len(runs) < len(before)
    )
    if len(before) < len(given):
        notes.append("a recording that was given several times counts once")
    if len(runs) == 1 and not forbidden:
        notes.append("single run before: how much runs differ is not known, only how much steps do")
    notes += sorted({note for run in before for note in _renamed(run, aligned(run, after))})
    if runs[-1].producers and after.producers and runs[-1].producers != after.producers:
        notes.append(f"recorded by {', '.join(runs[-1].producers)} before, {', '.join(after.producers)} after")
    if shapes := other_shapes(runs[-1], after):
        notes.append(shapes)
    if "cold" in after.health and not forbidden:
        notes.append("both sides are cold starts: this says nothing of the steady state")
    if forbidden:
        return Comparison(NOT_COMPARABLE, forbidden, names, after.name, lanes, tuple(notes))
    if options:
        return _kernel_times_only(options, names, after.name, lanes, tuple(notes))
    verdict, reason = _judge(lanes)
    return Comparison(verdict, reason, names, after.name, lanes, tuple(notes))


def not_comparable(why: str, before: tuple[str, ...] = (), after: str = "") -> Comparison:
    """The comparison that could not be made."""
    return Comparison(NOT_COMPARABLE, why, before, after, ())


def _renamed(run: Run, as_: Run) -> list[str]:
    """What stands under another number of device or rank than in its recording."""
    pairs = zip(run.lanes, as_.lanes, strict=True)
    return [f"{lane.key} before is held against {new.key} after" for lane, new in pairs if lane.key != new.key]


def _lane(run: Run, key: str) -> DeviceRun:
    return next(lane for lane in run.lanes if lane.key == key)


def _lane_change(before: Sequence[DeviceRun], after: DeviceRun, *, times: bool, host: bool = True) -> LaneChange:
    step = _timing([lane.periods_ns for lane in before], after.periods_ns) if times and host else None
    gpu = _timing([lane.gpu_ns for lane in before], after.gpu_ns) if times else None
    floor = None if step is None or step.noise_ns is None else max(step.noise_ns, ABSOLUTE_NS)
    mine = after.causes, after.units
    return LaneChange(
        key=after.key,
        name=after.name,
        steps=(sum(lane.steps for lane in before), after.steps),
        step=step,
        gpu=gpu,
        causes=_changes([(lane.causes, lane.units) for lane in before], mine, floor) if times and host else (),
        kernels=_kernels(before, after) if times else (),
        counts=count_changes(before, after),
    )


def _timing(before: Sequence[Sequence[int]], after: Sequence[int]) -> Timing | None:
    pooled = [ns for run in before for ns in run]
    if not pooled or not after:
        return None
    usual, now = middle(pooled) or 0.0, middle(after) or 0.0
    if min(len(pooled), len(after)) < FEWEST_PERIODS:
        return Timing(usual, now, None, None, TOO_FEW)
    moved = shift(pooled, after)
    runs = apart([[max(ns, 1) for ns in run] for run in before], [max(ns, 1) for ns in after])
    verdict = SAME
    if moved.significant and runs.beyond and abs(moved.by) > max(RELATIVE * usual, ABSOLUTE_NS):
        verdict = REGRESSED if moved.by > 0 else IMPROVED
    return Timing(usual, now, moved, max(moved.half_width, runs.share * usual), verdict)


def _changes(
    before: Sequence[tuple[Mapping[str, int], int]], after: tuple[Mapping[str, int], int], floor: float | None
) -> tuple[Change, ...]:
    names = dict.fromkeys(name for causes, _ in (*before, after) for name in causes)
    found = []
    for name in names:
        usual = fmean(causes.get(name, 0) / units for causes, units in before)
        now = after[0].get(name, 0) / after[1]
        found.append(Change(name, usual, now, None, None if floor is None else abs(now - usual) > floor))
    return tuple(sorted(found, key=lambda change: -abs(change.delta_ns)))


def _kernels(before: Sequence[DeviceRun], after: DeviceRun) -> tuple[Change, ...]:
    names = dict.fromkeys(name for lane in (*before, after) for name in lane.kernels)
    found = []
    for name in names:
        rows = [(lane.kernels.get(name, (0, 0)), lane.units) for lane in before]
        calls, ns = after.kernels.get(name, (0, 0))
        counts = fmean(row[0] / units for row, units in rows), calls / after.units
        found.append(Change(name, fmean(row[1] / units for row, units in rows), ns / after.units, counts))
    changed = [change for change in found if change.delta_ns]
    return tuple(sorted(changed, key=lambda change: -abs(change.delta_ns))[:KERNELS_SHOWN])


def count_changes(before: Sequence[DeviceRun], after: DeviceRun) -> tuple[CountChange, ...]:
    """Counts per step that differ; one grew when it is above that of every run before, by more than it varies by itself."""
    found = []
    for name, now in after.counts.items():
        runs = [lane for lane in before if name in lane.counts]
        usual = [Fraction(lane.counts[name], lane.units) for lane in runs]
        here = Fraction(now, after.units)
        if usual and here not in usual:
            nearest = max(usual) if here > max(usual) else min(usual)
            exact = (
                name not in BY_TIMING and len(set(usual)) == 1 and all(_steady(lane, name) for lane in (*runs, after))
            )
            grew = here > max(usual) and (exact or _grew(runs, after, name))
            found.append(CountChange(name, float(nearest), float(here), grew, exact))
    return tuple(found)


def _steady(lane: DeviceRun, name: str) -> bool:
    """The count is the same in every step, of several."""
    each = lane.step_counts.get(name, ())
    return len(each) > 1 and len(set(each)) == 1


def _grew(before: Sequence[DeviceRun], after: DeviceRun, name: str) -> bool:
    """A count that varies lies higher than chance would have it, as `_timing` tells of a time."""
    runs, now = [lane.step_counts.get(name, ()) for lane in before], after.step_counts.get(name, ())
    pooled = [count for each in runs for count in each]
    if min(len(pooled), len(now)) <= FEWEST_PERIODS or not all(runs):
        return False
    enough = fmean(now) - fmean(pooled) > RELATIVE * fmean(pooled)
    above_none = [[count + 1 for count in each] for each in (*runs, now)]  # a ratio needs more than 0
    return enough and shift(pooled, now).significant and apart(above_none[:-1], above_none[-1], fmean).beyond


def _judge(lanes: Sequence[LaneChange]) -> tuple[str, str]:
    """The verdict over all devices and the sentence for it."""
    judged = [(_verdict_of(lane), lane) for lane in lanes]
    verdict = min((verdict for verdict, _ in judged), key=WORST_FIRST.index)
    of_it = [lane for found, lane in judged if found == verdict]
    lane = max(of_it, key=lambda lane: abs(lane.step.after_ns - lane.step.before_ns) if lane.step else 0)
    return verdict, _sentence(verdict, lane)


def _verdict_of(lane: LaneChange) -> str:
    if lane.step is None:
        return TOO_FEW
    if lane.step.verdict == SAME and any(count.grew for count in lane.counts) and not _quicker(lane.step):
        return REGRESSED
    return lane.step.verdict


def _quicker(step: Timing) -> bool:
    """Too little or too uncertain for an improvement, but no regression, whatever was counted."""
    return step.after_ns < (1 - QUICKER) * step.before_ns or (step.shift is not None and step.shift.high < 0)


def _sentence(verdict: str, lane: LaneChange) -> str:
    if lane.step is None:
        return "no two steps on both sides, so one window stands against another" + _grown(lane)
    step = lane.step
    moved = f"step time {ms(step.before_ns)} → {ms(step.after_ns)} ms"
    if step.shift is None:
        return f"{lane.steps[0]} steps before and {lane.steps[1]} after, at least five are needed; {moved}" + _grown(
            lane
        )
    text = (
        f"{moved}, {percent(step.after_ns / step.before_ns - 1, 1, '+')} (shift {step.shift.by / 1e6:+.3f} ms, "
        f"95 % interval {step.shift.low / 1e6:+.3f} to {step.shift.high / 1e6:+.3f} ms)"
    )
    if verdict == REGRESSED and step.verdict == SAME:
        return f"more work a step{_grown(lane)}; {text}"
    sign = step.shift.by
    main = next((change for change in lane.causes if change.delta_ns * sign > 0), None)
    if verdict in (IMPROVED, REGRESSED) and main is not None:
        text += f"; mostly {label(main.name)}, {main.delta_ns / 1e6:+.3f} ms a step"
    return text


def _grown(lane: LaneChange) -> str:
    grown = [f"{count.name} {count.before:g} → {count.after:g}" for count in lane.counts if count.grew]
    return f": {', '.join(grown)}" if grown else ""


def _kernel_times_only(
    why: str, before: tuple[str, ...], after: str, lanes: tuple[LaneChange, ...], notes: tuple[str, ...]
) -> Comparison:
    worse = [lane for lane in lanes if lane.gpu is not None and lane.gpu.verdict == REGRESSED]
    if worse and worse[0].gpu is not None:
        gpu = worse[0].gpu
        text = f"GPU time of a step {ms(gpu.before_ns)} → {ms(gpu.after_ns)} ms ({worse[0].key}); {why}"
        return Comparison(REGRESSED, text, before, after, lanes, notes)
    return Comparison(NOT_COMPARABLE, why, before, after, lanes, notes)


def ms(ns: float) -> str:
    """Milliseconds with what can be told apart."""
    return f"{ns / 1e6:,.3f}" if abs(ns) < 1e7 else f"{ns / 1e6:,.1f}"
