"""What the trace itself tells of its memory: time against bytes over the sizes of one memory-bound kernel.

    time = ramp + bytes / bandwidth

A fit counts from five sizes on, when it explains nine tenths of the spread. What no fit tells is assumed
(`hardware.toml`, `assumed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.reference.facts import read_data
from gpu_trace_advisor.reference.hardware import Hardware
from gpu_trace_advisor.roofline.operator_costs import Costs
from gpu_trace_advisor.timelines.device import Timeline
from gpu_trace_advisor.trace.model import NONE

LIGHT = frozenset({"elementwise", "copy", "normalization", "softmax", "reduction", "generated"})
SIZES = 5
EXPLAINED = 0.9
SPREAD = 4.0  # the largest size over the smallest: a fit over near sizes tells nothing
CREDIBLE = (0.5, 1.0)  # a bandwidth outside these shares of the peak is a cache's, or another limit's


class Fit(NamedTuple):
    """One kernel's line: `name` is its code in the trace, `ramp_ns` the time at no bytes, `bandwidth` bytes/s."""

    name: int
    ramp_ns: float
    bandwidth: float


def fits(timeline: Timeline, costs: Costs, above: float = 0.0) -> Iterator[Fit]:
    """The lines of the memory-bound kernels that have one, over sizes of more than `above` bytes."""
    light = np.array([kind.family in LIGHT for kind in costs.kinds], np.bool_)
    size = np.array([kind.bytes for kind in costs.kinds], np.float64)
    on = np.flatnonzero((costs.kind != NONE) & (costs.share == 1.0))
    on = on[light[costs.kind[on]] & (size[costs.kind[on]] > above)] if len(on) else on
    if not len(on):
        return
    names, moved, length = timeline.trace.name_code[timeline.row[on]], size[costs.kind[on]], timeline.length[on]
    order = np.lexsort((length, moved, names))
    names, moved, length = names[order], moved[order], length[order]
    # Where each size of a kernel begins, how often it occurs, and its median time.
    first = np.flatnonzero(np.concatenate([[True], (names[1:] != names[:-1]) | (moved[1:] != moved[:-1])]))
    count = np.diff(np.append(first, len(on)))
    median = (length[first + (count - 1) // 2] + length[first + count // 2]) / 2
    for mine in np.split(np.arange(len(first)), np.flatnonzero(np.diff(names[first])) + 1):
        sizes, times = moved[first[mine]], median[mine]
        if len(sizes) < SIZES or sizes[-1] < SPREAD * sizes[0]:
            continue
        slope, base = np.polyfit(sizes, times, 1)
        spread = float(((times - times.mean()) ** 2).sum())
        missed = float(((times - (slope * sizes + base)) ** 2).sum())
        if slope > 0 and spread > 0 and 1 - missed / spread > EXPLAINED:
            yield Fit(int(names[first[mine[0]]]), float(base), 1e9 / float(slope))


def attainable_bandwidth(timeline: Timeline, costs: Costs, hardware: Hardware) -> float | None:
    """Bytes/s of the best fit over sizes that no cache holds; None where there is none."""
    low, high = CREDIBLE
    seen = [fit.bandwidth for fit in fits(timeline, costs, above=hardware.l2_bytes)]
    credible = [rate for rate in seen if low <= rate / hardware.bandwidth <= high]
    return max(credible, default=None)


def ramps(timeline: Timeline, costs: Costs) -> NDArray[np.float64]:
    """[m] ns: the kernel's own line where it has one, else assumed; nothing for a kernel that starts before its
    predecessor on the stream ends, whose pipe is full."""
    assumed = read_data("hardware.toml")["assumed"]["ramp"]
    of_name = np.full(len(timeline.trace.names), assumed["us"] * 1000.0)
    for fit in fits(timeline, costs):
        of_name[fit.name] = np.clip(fit.ramp_ns, assumed["low_us"] * 1000.0, assumed["high_us"] * 1000.0)
    result = of_name[timeline.trace.name_code[timeline.row]]
    order = np.lexsort((timeline.start, timeline.stream))
    first, second = order[:-1], order[1:]
    early = (timeline.stream[first] == timeline.stream[second]) & (timeline.end[first] > timeline.start[second])
    result[second[early]] = 0.0
    return result
