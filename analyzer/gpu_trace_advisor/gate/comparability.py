"""Why two runs cannot be compared, or only in part."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_trace_advisor.gate.run_record import HOST, Lane, Run

OTHER_WORK = 1.5  # matrix kernels a step on one side above this many times the other's: another model or batch
OTHER_SHAPES = 1.05  # likewise their FLOPs, from which on it is said: a fix may compute less, so may a smaller batch
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
    for ours, theirs in pairs:
        if ours.name != theirs.name and ours.name and theirs.name:
            return f"other GPU: {ours.name} before, {theirs.name} after"
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
    """That a step computes more or less than it did, as far as recorded shapes tell; None where it does not."""
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


def _same_work(before: Lane, after: Lane) -> str | None:
    if before.window != after.window:
        return f"other window: {before.window} before, {after.window} after ({before.key})"
    if before.window != "steps":
        ours, theirs = ({name: pair[0] for name, pair in lane.kernels.items()} for lane in (before, after))
        if ours != theirs:
            return (
                f"other work in the window: {before.counts.get('kernels', 0):,} kernels before, "
                f"{after.counts.get('kernels', 0):,} after ({before.key}), and no steps are marked to compare by; "
                "choose them with --step-marker"
            )
        return None
    if before.matrix_kernels is None or after.matrix_kernels is None:
        return None
    ours_, theirs_ = before.matrix_kernels / before.units, after.matrix_kernels / after.units
    if max(ours_, theirs_) > OTHER_WORK * min(ours_, theirs_):
        return f"other work in a step: {ours_:g} matrix kernels before, {theirs_:g} after ({before.key})"
    return None
