"""Three numbers that are often taken for one another: how much of the time the device is busy, MFU, and MBU.

    busy  time with an operation running, of the wall time: measured; near 1 also for a device that waits for its memory
    MFU   FLOPs of the matrix products, attention and convolutions over the peak of their types, of the wall time
    MBU   bytes of weights and cache that a step must read over the bandwidth, of the step's time: only for decode

MFU and MBU are modelled, and None with the reason where the recording does not hold what they need.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.phase import Phase
from gpu_trace_advisor.analysis.request import DECODE
from gpu_trace_advisor.columns.intervals import clip, total
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.roofline.kernel_time import InKernel
from gpu_trace_advisor.roofline.operator_costs import OWN_CLASSES
from gpu_trace_advisor.timelines.device import COMPUTE
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import percent

ENOUGH = 0.5  # of the matrix kernels' time must have known work; below, an MFU would say little
WHOLE = 0.95  # from here on the number stands for all of it
SUSPICIOUS = 0.75
"""A higher MFU has not been seen in training: the peak, the type or the FLOPs are wrong (correction C9)."""
SHAPES = "shapes are recorded for {} of the matrix kernels' time"
MATRIX = frozenset({"gemm", "attention", "convolution", "moe"})


class Measure(NamedTuple):
    """A share of 1, or None and why."""

    value: float | None
    grade: str
    """`measured` or `modelled`."""
    why: str
    """What it rests on; where it is None, what is missing."""


class Utilization(NamedTuple):
    busy: Measure
    mfu: Measure
    mbu: Measure


def efficiency(
    model: InKernel, start_ns: int, end_ns: int, phase: Phase, steps: int | None = None, weights: int | None = None
) -> Utilization:
    """The three of [start_ns, end_ns), which holds `steps` steps (None unknown); `weights` bytes where the user gave them."""
    wall = end_ns - start_ns
    running = total(clip(model.timeline.busy, start_ns, end_ns))
    busy = Measure(running / wall if wall else None, "measured", "time with an operation running")
    return Utilization(busy, _mfu(model, start_ns, end_ns), _mbu(model, start_ns, end_ns, phase, steps, weights))


def coverage(model: InKernel, start_ns: int, end_ns: int) -> tuple[float | None, Int64]:
    """The part of the matrix kernels' time in [start_ns, end_ns) whose work is known, None where there are none; and the
    operations that are known."""
    timeline = model.timeline
    on, share = model.shares(start_ns, end_ns)
    names = timeline.trace.name_code[timeline.row[on]]
    matrix = named(timeline.trace, names, lambda name: kernel_class(name) in MATRIX)
    working = np.array([kind.family in OWN_CLASSES for kind in model.costs.kinds], np.bool_)
    known = model.modelled[on]
    known[known] = working[model.costs.kind[on[known]]]
    all_ns = int(share[matrix | known].sum())
    return (int(share[known].sum()) / all_ns if all_ns else None), on[known]


def _mfu(model: InKernel, start_ns: int, end_ns: int) -> Measure:
    timeline = model.timeline
    if model.hardware is None:
        return Measure(None, "modelled", "the peaks of the device are not known (--hardware)")
    part, at = coverage(model, start_ns, end_ns)
    if part is None:
        return Measure(None, "modelled", "no matrix product, attention or convolution was recognised")
    if part < ENOUGH:
        return Measure(None, "modelled", f"{SHAPES.format(percent(part))} only (record_shapes)")
    inside = np.minimum(timeline.end[at], end_ns) - np.maximum(timeline.start[at], start_ns)
    compute = model.needs[0][model.costs.kind[at]] * model.costs.share[at] * inside / np.maximum(timeline.length[at], 1)
    value = float(compute.sum()) / (end_ns - start_ns)
    if value > 1:
        return Measure(None, "modelled", f"it comes out as {percent(value)}: the peak, the type or the FLOPs are wrong")
    why = "FLOPs of the recorded shapes over dense peaks; recomputation counts"
    if part < WHOLE:
        why = f"at least: {SHAPES.format(percent(part))}. {why}"
    if value > SUSPICIOUS:
        good = " to ".join(map(percent, span("tvi-mfu-good", "mfu")))
        why = f"suspicious: {good} is good; check the device, the type and the FLOPs. {why}"
    return Measure(value, "modelled", why)


def _mbu(model: InKernel, start_ns: int, end_ns: int, phase: Phase, steps: int | None, weights: int | None) -> Measure:
    if phase.name != DECODE:
        return Measure(None, "modelled", f"it is a measure of decode, and the phase is {phase.name}")
    if model.hardware is None:
        return Measure(None, "modelled", "the bandwidth of the device is not known (--hardware)")
    count = steps or len(phase.stretches)
    if not count:
        return Measure(None, "modelled", "the number of steps in the window is not known")
    found, cache = weight_bytes(model, start_ns, end_ns), cache_bytes(model, start_ns, end_ns)
    part = coverage(model, start_ns, end_ns)[0] or 0.0
    if weights is None and (not found or part < WHOLE):
        return Measure(None, "modelled", f"{SHAPES.format(percent(part))}, none in graph replays (--weights)")
    read = weights * count if weights is not None else found
    value = (read + cache) / model.hardware.bandwidth / ((end_ns - start_ns) * 1e-9)
    if value > 1:
        return Measure(None, "modelled", f"it comes out as {percent(value)}: the bytes or the device are wrong")
    source = "weights as given" if weights is not None else "weight operands of the recorded products, each read once"
    rest = "" if cache else "; at least, as the bytes of the cache are not known"
    return Measure(value, "modelled", f"{read / count / 1e9:.3g} GB a step, {source}{rest}")


def weight_bytes(model: InKernel, start_ns: int, end_ns: int) -> float:
    """Bytes of the weight operands of all matrix products that start in [start_ns, end_ns): each call reads its own."""
    return _bytes(model, start_ns, end_ns, [kind.weight_bytes for kind in model.costs.kinds])


def cache_bytes(model: InKernel, start_ns: int, end_ns: int) -> float:
    """Bytes that attention reads and writes in [start_ns, end_ns), where its shapes are recorded."""
    return _bytes(model, start_ns, end_ns, [k.bytes if k.family == "attention" else 0.0 for k in model.costs.kinds])


def _bytes(model: InKernel, start_ns: int, end_ns: int, of_kind: list[float]) -> float:
    timeline, kind = model.timeline, model.costs.kind
    at = (kind >= 0) & (timeline.op_class == COMPUTE) & (timeline.start >= start_ns) & (timeline.start < end_ns)
    return float((np.array(of_kind)[kind[at]] * model.costs.share[at]).sum()) if at.any() else 0.0
