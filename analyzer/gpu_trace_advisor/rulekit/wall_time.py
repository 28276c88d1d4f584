"""The wall time that a claim names, by cause: no saving of it is larger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution import Pieces
from gpu_trace_advisor.attribution.causes import CODE, IDLE
from gpu_trace_advisor.columns.intervals import Intervals
from gpu_trace_advisor.roofline.kernel_time import CAUSES
from gpu_trace_advisor.rulekit.rule import Claim
from gpu_trace_advisor.trace.model import Bool, Int64

LAUNCH_SCALE_NS = 1_000_000  # a longer gap is not the launching of one operation: something else ran
FUNCTION_NS = 250_000  # a longer stretch of one function of Python is its own work, not the launching of an operation
UNKNOWN = ("host-unknown", "device-unknown")
"""Time that nothing recorded explains: no change is known to save it."""


def of_causes(view: DeviceWindow, *causes: str) -> dict[str, int]:
    """The window's time of these causes."""
    return {cause: view.causes[cause] for cause in causes if view.causes.get(cause)}


def whole(view: DeviceWindow) -> dict[str, int]:
    """All of the window's time."""
    sums: dict[str, int] = defaultdict(int)
    for item in view.items:
        sums[item.cause] += item.ns
    return sums


def of_kernels(view: DeviceWindow, kernels: Int64, part: NDArray[np.float64] | float = 1.0) -> dict[str, int]:
    """The window's time in these kernels (operations of the timeline), shared where several run at once; of each only
    `part` (0 to 1)."""
    on, share = view.inkernel.shares(view.window.start_ns, view.window.end_ns)
    whole = np.zeros(len(view.timeline.row))
    whole[kernels] = part
    mine = np.flatnonzero(whole[on] > 0)
    table = view.inkernel.by_cause(on[mine], share[mine], view.window.start_ns, view.window.end_ns)
    sums = (table * whole[on[mine], None]).sum(axis=0)
    return {cause: int(ns) for cause, ns in zip(CAUSES, sums.tolist(), strict=True) if int(ns)}


def settled(view: DeviceWindow, claim: Claim) -> Claim:
    """The claim with its time by cause, none more than the window has of it.

    One that names no cause is about kernels: its time is divided between their causes like all of it, what is more than
    that between the others.
    """
    has = whole(view)
    named = claim.named or _divided(view, claim.ns)
    named = {cause: ns for cause, of_it in named.items() if (ns := min(of_it, has[cause])) > 0}
    return replace(claim, named=named, ns=sum(named.values()))


def _divided(view: DeviceWindow, ns: int) -> dict[str, int]:
    """So much of the window's time: that of kernels first, then all other, in proportion to their causes."""
    has = whole(view)
    found: dict[str, int] = {}
    for causes in (CAUSES, [cause for cause in has if cause not in CAUSES]):
        left, there = ns - sum(found.values()), sum(has[cause] for cause in causes)
        parts = {cause: has[cause] * min(left, there) // max(there, 1) for cause in causes}
        short = min(left, there) - sum(parts.values())  # rounded off: to the largest
        if short:
            parts[max(causes, key=lambda cause: has[cause])] += short
        found |= parts
    return found


def explained_ns(claim: Claim) -> int:
    """What of a settled claim's time has a known cause: the most that it can save."""
    return claim.ns - sum(claim.named.get(cause, 0) for cause in UNKNOWN)


def of_idle(view: DeviceWindow, spans: Intervals, causes: Collection[str] = IDLE) -> dict[str, int]:
    """The window's idle time of these causes inside the spans (disjoint, in order)."""
    return _idle(view, spans, causes, lambda part: np.ones(len(part), np.bool_))


def of_launching(view: DeviceWindow, spans: Intervals, causes: Collection[str]) -> dict[str, int]:
    """The same of what launching operations one by one leaves idle: short gaps, and no long function of Python in them."""
    gaps = view.timeline.gaps
    short = gaps.end - gaps.start <= LAUNCH_SCALE_NS
    python = CODE["python"]

    def launching(part: Pieces) -> Bool:
        function = (part.cause == python) & (part.end - part.start > FUNCTION_NS)
        return np.asarray(short[part.gap] & ~function, np.bool_)

    return _idle(view, spans, causes, launching)


def _idle(
    view: DeviceWindow, spans: Intervals, causes: Collection[str], which: Callable[[Pieces], Bool]
) -> dict[str, int]:
    if not len(spans.start):
        return {}
    wanted = np.array([cause in causes for cause in IDLE])
    covered = np.concatenate([[0], np.cumsum(spans.end - spans.start)])
    sums = np.zeros(len(IDLE), np.int64)
    for part in view.attribution.pieces.parts():
        at = np.flatnonzero(wanted[part.cause] & which(part))
        start, end = (np.clip(t[at], view.window.start_ns, view.window.end_ns) for t in (part.start, part.end))
        np.add.at(sums, part.cause[at], _covered(spans, covered, end) - _covered(spans, covered, start))
    return {cause: ns for cause, ns in zip(IDLE, sums.tolist(), strict=True) if ns}


def _covered(spans: Intervals, covered: Int64, instant: Int64) -> Int64:
    """[k] how much of the spans lies before each instant."""
    at = np.searchsorted(spans.start, instant, side="right")
    inside = np.minimum(instant, spans.end[np.maximum(at - 1, 0)]) - spans.start[np.maximum(at - 1, 0)]
    found: Int64 = covered[np.maximum(at - 1, 0)] + np.where(at > 0, inside, 0)
    return found
