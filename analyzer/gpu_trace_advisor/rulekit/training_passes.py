"""Which operations belong to backward passes and optimizers, and what the collectives of a training step reduce."""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.analysis.collectives import collectives
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.ranks.collective_kinds import dtype_bytes
from gpu_trace_advisor.ranks.model import Collectives
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.trace.lookup import values_at
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind

BACKWARD = re.compile(
    r"autograd::engine::evaluate_function|(?:torch::autograd::)?\w+Backward\d*$|torch::autograd::AccumulateGrad"
)


def in_backward(view: DeviceWindow, operations: Int64) -> Bool:
    """[k] launched by autograd's engine."""
    trace, timeline, host = view.trace, view.timeline, view.timeline.host
    backward = np.array([BACKWARD.match(name) is not None for name in trace.names], np.bool_)
    calls, which = np.unique(timeline.launch[operations], return_inverse=True)
    found = np.zeros(len(calls), np.bool_)
    at = np.where(calls == NONE, NONE, host.parent[calls]).astype(np.int64)
    while len(up := np.flatnonzero((at != NONE) & ~found)):
        found[up] = backward[trace.name_code[at[up]]]
        at[up] = host.parent[at[up]]
    return np.asarray(found[which.reshape(-1)], np.bool_)


def in_optimizer(view: DeviceWindow, operations: Int64) -> Bool:
    """[k] launched within an optimizer's step."""
    timeline, trace = view.timeline, view.trace
    rows = optimizer_steps(view)
    if not len(rows):
        return np.zeros(len(operations), np.bool_)
    start, reach = trace.start_ns[rows], np.maximum.accumulate(trace.end_ns[rows])
    begun = np.where(timeline.linked[operations], trace.start_ns[timeline.launch[operations]], NONE)
    at = np.searchsorted(start, begun, side="right") - 1
    return np.asarray((at >= 0) & (begun < reach[np.maximum(at, 0)]), np.bool_)


def optimizer_steps(view: DeviceWindow) -> Int64:
    """Rows of the records that mark an optimizer's step."""
    trace = view.trace
    steps = np.array([name.startswith("Optimizer.step") for name in trace.names], np.bool_)
    if not steps.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(trace.name_mask(steps) & ((trace.kind == Kind.OPERATOR) | (trace.kind == Kind.RANGE)))


def communicating(view: DeviceWindow) -> tuple[Int64, Collectives, Int64]:
    """The window's collectives: their operations (index into the timeline), all collectives, and which of those they are."""
    found, _ = collectives(view, len(view.timeline.row))
    timeline = view.timeline
    at = np.flatnonzero((timeline.op_class == COMMUNICATION) & (timeline.end > timeline.start))
    at = at[np.argsort(timeline.start[at], kind="stable")]
    mine = np.flatnonzero(found.inside)
    return at[mine], found, mine


def kinds_of(found: Collectives, which: Int64) -> list[str]:
    """What each of these collectives is."""
    return [found.keys[key][1] for key in found.key[which].tolist()]


def all_reduces(found: Collectives, which: Int64) -> Bool:
    """[k] whether each of these collectives is an all-reduce."""
    return np.array([kind == "allreduce" for kind in kinds_of(found, which)], np.bool_)


def shards(kinds: list[str]) -> bool:
    """Gathers or scatters among them: weights or states are sharded already."""
    return bool({"allgather", "reducescatter"} & set(kinds))


def gradient_bytes(view: DeviceWindow, on: Int64, found: Collectives, which: Int64) -> tuple[float, int, Int64]:
    """Bytes that the all-reduces of one step carry (0 not recorded), bytes of a number, and their operations."""
    reduces = all_reduces(found, which)
    on, sizes = on[reduces], found.bytes[which[reduces]]
    known = sizes > 0
    if not known.any():
        return 0.0, 0, on
    steps = max(len(view.kept_steps), 1)
    return float(sizes[known].sum()) / steps, _width(view, on[known]), on


def _width(view: DeviceWindow, on: Int64) -> int:
    """Bytes of a number in these collectives; 4 where nothing tells."""
    timeline, trace = view.timeline, view.trace
    codes = values_at(trace.texts.get("dtype"), timeline.row[on])
    widths = [dtype_bytes(trace.strings[code]) for code in present(codes[codes != NONE]).tolist()]
    launches = timeline.launch[on]
    parents = timeline.host.parent[launches[launches != NONE]]
    types = values_at(trace.texts.get("Input type"), ascending(parents[parents != NONE]))
    widths += [dtype_bytes(trace.strings[code]) for code in types[types != NONE].tolist()]
    return max((width for width in widths if width > 0), default=4)
