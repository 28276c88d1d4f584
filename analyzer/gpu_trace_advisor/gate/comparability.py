"""Why two runs cannot be compared, or only in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_trace_advisor.gate.run_record import HOST, DeviceRun, Run
from gpu_trace_advisor.units import read_count

OTHER_WORK = 1.5  # matrix kernels a step, or their FLOPs, above this many times the other's: another model or batch
OTHER_SHAPES = 1.05  # … from which on it is said: a fix may compute less, so may a smaller batch
NEARLY_ALL = 0.9  # of the matrix kernels: with the FLOPs of so many known, those of the step are
PARTIAL = {
    "partial": "is incomplete",
    "cut": "was cut",
    "lost-kernels": "lost kernels",
    "unrecorded-graph-nodes": "lacks the nodes of its graphs",
}
"""Health codes of recordings that do not hold all the work."""


def same_recording(before: Run, after: Run) -> bool:
    """Both sides are one recording: no two share their times to the nanosecond."""
    ours, theirs = ([(lane.name, lane.window, lane.identity) for lane in run.lanes] for run in (before, after))
    return bool(theirs) and ours == theirs


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs, a recording that comes again once: it says nothing of how much runs differ."""
    found: list[Run] = []
    for run in runs:
        if not any(same_recording(run, other) for other in found):
            found.append(run)
    return found


def other_gpu(before: Run, after: Run) -> str | None:
    """That the two ran on other GPUs, which comes before anything else; None where they did not or nobody says."""
    ours, theirs = (sorted({lane.name for lane in run.lanes if lane.name}) for run in (before, after))
    if not ours or not theirs or ours == theirs:
        return None
    return f"other GPU: {', '.join(ours)} before, {', '.join(theirs)} after"


def aligned(before: Run, after: Run) -> Run:
    """The earlier run under the later one's keys, where only the numbers of its devices or its one rank differ.

    A scheduler gives a program device 2 today that had device 0 yesterday; which ones of several ranks were recorded is
    no chance, and stays.
    """
    ours, theirs = (sorted(run.lanes, key=lambda lane: _place(lane.key)) for run in (before, after))
    if len(ours) != len(theirs) or any(lane.key == HOST for lane in (*ours, *theirs)):
        return before
    places = ([_place(lane.key)[0] for lane in lanes] for lanes in (ours, theirs))
    if len(ours) > 1 and len({tuple(names) for names in places}) > 1:
        return before
    names = {lane.key: other.key for lane, other in zip(ours, theirs, strict=True)}
    return replace(before, lanes=tuple(replace(lane, key=names[lane.key]) for lane in before.lanes))


def _place(key: str) -> tuple[str, int]:
    """`rank 0 process 1 device 2` as what comes before the device, and its number."""
    before, _, number = key.rpartition(" ")
    return before, read_count(number) or 0


def same_devices(before: Run, after: Run) -> str | None:
    """Why the devices of the two do not correspond; None when they do."""
    for side, run, other in (("after", after, before), ("before", before, after)):
        if not _on_gpu(run) and _on_gpu(other):
            return f"{side} has no GPU kernels"
    if not before.lanes and not after.lanes:
        return "neither side has GPU kernels or steps"
    ours, theirs = ({lane.key for lane in run.lanes} for run in (before, after))
    if lost := sorted(ours - theirs):
        return f"{', '.join(lost)} is missing in after"
    if found := sorted(theirs - ours):
        return f"{', '.join(found)} is missing in before"
    return None


def same_conditions(before: Run, after: Run) -> str | None:
    """Why no time of the two may be compared; None when it may."""
    pairs = [(lane, next(other for other in after.lanes if other.key == lane.key)) for lane in before.lanes]
    if before.world and after.world and before.world != after.world:
        return f"other job: {before.world} ranks before, {after.world} after"
    if ("cold" in before.health) != ("cold" in after.health):
        cold, warm = ("before", "after") if "cold" in before.health else ("after", "before")
        return f"cold against warm: {cold} is a cold start, {warm} is not"
    for side, run in (("before", before), ("after", after)):
        for code, words in PARTIAL.items():
            if code in run.health:
                return f"{side} {words}: {run.health[code].split(';')[0]}"
    return next((why for ours, theirs in pairs if (why := _same_work(ours, theirs))), None)


def other_options(before: Run, after: Run) -> str | None:
    """Profiler options of one side only: they cost host time, kernels take no longer for them."""
    differ = sorted(set(before.options) ^ set(after.options))
    if not differ:
        return None
    words = [f"{option} {'before' if option in before.options else 'after'} only" for option in differ]
    return f"other profiler options ({', '.join(words)}): host times do not compare, kernel times do"


def other_shapes(before: Run, after: Run) -> str | None:
    """That a step computes somewhat more or less than it did, as far as recorded shapes tell; None where it does not."""
    theirs = {lane.key: lane for lane in after.lanes}
    for ours in before.lanes:
        other = theirs[ours.key]
        if ours.flops and other.flops:
            here, there = ours.flops / ours.units, other.flops / other.units
            if max(here, there) > OTHER_SHAPES * min(here, there):
                return (
                    f"a step computes {here / 1e9:,.4g} GFLOP before, {there / 1e9:,.4g} after ({ours.key}): "
                    "other shapes, such as another batch?"
                )
    return None


def _on_gpu(run: Run) -> bool:
    return any(lane.key != HOST for lane in run.lanes)


def _same_work(before: DeviceRun, after: DeviceRun) -> str | None:
    if before.window != after.window:
        return f"other window: {before.window} before, {after.window} after ({before.key})"
    of = "a step" if before.window == "steps" else "the window"
    if _apart(before.flops, after.flops, before, after) and _known_alike(before, after):
        ours, theirs = (f"{(lane.flops or 0) / lane.units / 1e9:,.4g}" for lane in (before, after))
        return f"other work in {of}: {ours} GFLOP before, {theirs} after ({before.key})"
    if _apart(before.matrix_kernels, after.matrix_kernels, before, after):
        ours, theirs = (f"{(lane.matrix_kernels or 0) / lane.units:,.4g}" for lane in (before, after))
        return f"other work in {of}: {ours} matrix kernels before, {theirs} after ({before.key})"
    if before.window == "steps":
        return None
    calls = [{name: pair[0] for name, pair in lane.kernels.items()} for lane in (before, after)]
    differ = [name for name in dict.fromkeys((*calls[0], *calls[1])) if calls[0].get(name, 0) != calls[1].get(name, 0)]
    if not differ:
        return None
    most = max(differ, key=lambda name: abs(calls[0].get(name, 0) - calls[1].get(name, 0)))
    others = f" and {len(differ) - 1} more kernels that differ" if len(differ) > 1 else ""
    return (
        f"other work in the window: {calls[0].get(most, 0):,} × {most} before, {calls[1].get(most, 0):,} after{others} "
        f"({before.key}), and no steps are marked to compare by; choose them with --step-marker"
    )


def _apart(ours: float | None, theirs: float | None, before: DeviceRun, after: DeviceRun) -> bool:
    """Whether two numbers of a window, taken per step, lie so far apart that the work is another."""
    if ours is None or theirs is None:
        return False
    here, there = ours / before.units, theirs / after.units
    return max(here, there) > OTHER_WORK * min(here, there)


def _known_alike(before: DeviceRun, after: DeviceRun) -> bool:
    """The FLOPs of both are those of about as many matrix kernels a step, or of nearly all that there are."""
    lanes = [(lane, lane.flops_kernels) for lane in (before, after)]
    known = [count / lane.units for lane, count in lanes if count is not None]
    if len(known) < 2:
        return False
    alike = max(known) <= OTHER_SHAPES * min(known)
    return alike or all(count >= NEARLY_ALL * (lane.matrix_kernels or 0) for lane, count in lanes if count is not None)
