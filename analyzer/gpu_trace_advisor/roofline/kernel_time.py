"""The time in which kernels run, split into what the work needs and four losses; the parts add up to it exactly.

A kernel's share is its time, divided equally where several run at once. From the share the claims are taken in order,
each as far as something is left:

    ideal               roofline time: FLOPs over the dense peak, or compulsory bytes over the attainable bandwidth
    tail                SMs without a block in the last wave (`gpu_trace_advisor.roofline.occupancy`), of the time beyond the ramp
    ramp                the memory pipe fills and drains once a kernel
    activation-traffic  an intermediate written by a memory-bound kernel and read by the next one: fusion avoids both
    inefficiency        what is left

Modelled all of them. Kernels whose work the recording does not tell, or of a device without known peaks, are
`unmodelled`, and that is measured. The ideal time of a kernel that is faster is its share; one faster than the device
can be shows a wrong model (type, sparsity, another algorithm) and is flagged.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.compact import blocks, where
from gpu_trace_advisor.reference.facts import read_data
from gpu_trace_advisor.reference.hardware import Hardware
from gpu_trace_advisor.roofline.bandwidth_fit import attainable_bandwidth, ramps
from gpu_trace_advisor.roofline.captured_work import Capture, with_captures
from gpu_trace_advisor.roofline.concurrency import shares
from gpu_trace_advisor.roofline.occupancy import Tails, tails
from gpu_trace_advisor.roofline.operator_costs import OWN_CLASSES, Costs, operation_costs
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMPUTE, Timeline
from gpu_trace_advisor.trace.lookup import distinct_rows, values_at
from gpu_trace_advisor.trace.model import NONE, Bool, Device, Index, Int64

CAUSES = ("ideal", "tail", "ramp", "activation-traffic", "inefficiency", "unmodelled")
MEMORY_BOUND = frozenset({"elementwise", "copy", "normalization", "softmax", "reduction"})
"""Families whose intermediates fusion avoids."""

CLOCK_NS = 1_000  # coarsest clock of a recording; a kernel is not faster than the device for less than this
AROUND = 3  # an operator and how many around it may be the one that autograd records: relu around clamp_min
CACHE_SPEED: float = read_data("hardware.toml")["assumed"]["cache"]["speed"]
"""Rate of the last-level cache over the device memory; assumed."""

Floats = NDArray[np.float64]


class ComputeSlice(NamedTuple):
    """A part of the compute time of a window."""

    cause: str
    ns: int
    grade: str


@dataclass(frozen=True)
class InKernel:
    """The model of one device's kernels; m operations, as in the timeline."""

    timeline: Timeline
    hardware: Hardware | None
    captures: tuple[Capture, ...] = ()
    """Recordings of how the graphs were captured that the timeline replays."""

    @cached_property
    def costs(self) -> Costs:
        return with_captures(operation_costs(self.timeline), self.timeline, self.captures)

    @property
    def sms(self) -> int | None:
        """SMs, or compute units of AMD; None where neither the recording nor the table tells."""
        return device_of(self.timeline).sms or (self.hardware.sms if self.hardware else None)

    @cached_property
    def tails(self) -> Tails:
        return tails(self.timeline, device_of(self.timeline), self.sms)

    @cached_property
    def attainable(self) -> float:
        """Bytes/s that a well-written kernel reaches: as seen in the trace, else the assumed share of the peak."""
        assert self.hardware is not None
        seen = attainable_bandwidth(self.timeline, self.costs, self.hardware)
        return seen or self.hardware.bandwidth * self.hardware.attainable

    @cached_property
    def needs(self) -> tuple[Floats, Floats, Bool]:
        """[kinds] ns for the FLOPs, ns for the bytes, and whether the device's peaks tell both."""
        hardware, kinds = self.hardware, self.costs.kinds
        if hardware is None:
            return np.zeros(len(kinds)), np.zeros(len(kinds)), np.zeros(len(kinds), np.bool_)
        peaks = {**hardware.peaks, "tf32": hardware.peaks.get("tf32", hardware.peaks.get("fp32", 0.0))}
        vector = hardware.vector.get("fp32", 0.0)
        compute, known = np.zeros(len(kinds)), np.ones(len(kinds), np.bool_)
        for i, kind in enumerate(kinds):
            peak = peaks.get(kind.dtype, 0.0) if kind.family in OWN_CLASSES else vector
            compute[i] = kind.flops * kind.multiplied / peak * 1e9 if peak else 0.0
            known[i] = bool(peak)
        return compute, np.array([self.memory_ns(k.bytes, k.weight_bytes) for k in kinds], np.float64), known

    def memory_ns(self, moved: float, weights: float = 0.0) -> float:
        """ns to move these bytes; what is no weight and fits into the last-level cache may come from there."""
        assert self.hardware is not None
        rest = moved - weights
        speed = CACHE_SPEED if rest <= self.hardware.l2_bytes else 1.0
        return (weights + rest / speed) / self.attainable * 1e9

    @cached_property
    def modelled(self) -> Bool:
        """[m] compute operations whose work and peaks are known."""
        known: Bool = (self.costs.kind != NONE) & (self.timeline.op_class == COMPUTE)
        known[known] = self.needs[2][self.costs.kind[known]]
        return known

    @cached_property
    def avoidable(self) -> Floats:
        """[m] ns of traffic of intermediates that go from one memory-bound kernel to the next on its stream: the read, and
        the write unless autograd keeps the result."""
        timeline, kinds, kind = self.timeline, self.costs.kinds, self.costs.kind
        found = np.zeros(len(timeline.row))
        if not kinds or self.hardware is None:
            return found
        light = np.array([k.family in MEMORY_BOUND for k in kinds], np.bool_)
        order = np.lexsort((timeline.start, timeline.stream))
        first, second = order[:-1], order[1:]
        near = (timeline.stream[first] == timeline.stream[second]) & self.modelled[first] & self.modelled[second]
        near[near] = light[kind[first[near]]] & light[kind[second[near]]]
        first, second = first[near], second[near]
        pairs, pair = distinct_rows([kind[first], kind[second]])
        written, read = np.zeros(len(pairs)), np.zeros(len(pairs))
        for i, (producer, consumer) in enumerate((kinds[a], kinds[b]) for a, b in pairs):
            passed = next((b for shape, b in consumer.reads if shape == producer.result and b == producer.written), 0.0)
            if passed:
                written[i] = self.saved_ns(producer.bytes, producer.written)
                read[i] = self.saved_ns(consumer.bytes, passed)
        found[first] += np.where(self.kept[first], 0.0, written[pair])
        found[second] += read[pair]
        return found

    @cached_property
    def kept(self) -> Bool:
        """[m] the operator, or one around it, is recorded by autograd, which may keep its result for backward."""
        host, recorded = self.timeline.host, self.timeline.trace.integers.get("Sequence number")
        found = np.zeros(len(self.timeline.length), np.bool_)
        at = np.flatnonzero(self.costs.operator != NONE)
        row = self.costs.operator[at]
        for _ in range(AROUND):
            found[at] |= values_at(recorded, row) != NONE
            inner = host.parent[row] != NONE
            at, row = at[inner], host.parent[row[inner]]
        return found

    def saved_ns(self, moved: float, avoided: float) -> float:
        """ns that these bytes, of all that a kernel moves, take of its memory time."""
        return self.memory_ns(moved) * avoided / moved if moved else 0.0

    @cached_property
    def claims(self) -> tuple[Floats, Floats, Floats, Floats]:
        """[m] ns of ideal time, tail, ramp and avoidable traffic that each whole operation claims."""
        kind = np.where(self.modelled, self.costs.kind, NONE)
        on = np.flatnonzero(kind != NONE)
        if self.hardware is None or not len(on):
            nothing = np.broadcast_to(0.0, len(kind))
            return nothing, nothing, nothing, nothing
        ideal, tail, ramp, avoid = (np.zeros(len(kind)) for _ in range(4))
        compute, memory, _ = self.needs
        share = self.costs.share[on]
        avoid[on] = np.minimum(self.avoidable[on], memory[kind[on]])
        ideal[on] = np.maximum(compute[kind[on]], memory[kind[on]] - avoid[on]) * share
        ramp[on] = ramps(self.timeline, self.costs)[on]
        tail[on] = np.nan_to_num(self.tails.idle[on]) * np.maximum(self.timeline.length[on] - ramp[on], 0)
        return ideal, tail, ramp, avoid

    @cached_property
    def violated(self) -> Bool:
        """[m] faster than the device can be: its FLOPs at the peak, its bytes at the full bandwidth or, as far as they
        fit, from the last-level cache."""
        found = np.zeros(len(self.timeline.length), np.bool_)
        on = np.flatnonzero(self.modelled)
        if self.hardware is None or not len(on):
            return found
        moved = np.array([kind.bytes for kind in self.costs.kinds])
        cached = np.minimum(moved, self.hardware.l2_bytes)
        memory = (moved - cached + cached / CACHE_SPEED) / self.hardware.bandwidth * 1e9
        least = np.maximum(self.needs[0], memory)[self.costs.kind[on]] * self.costs.share[on]
        found[on] = least > self.timeline.length[on] + CLOCK_NS
        return found

    def shares(self, start: int, end: int) -> tuple[Index, Int64]:
        """The compute operations that run in [start, end), and the ns of each; they add up to the time one runs."""
        timeline = self.timeline
        on = where((timeline.op_class == COMPUTE) & (timeline.start < end) & (timeline.end > start))
        on = on[timeline.end[on] > timeline.start[on]]
        return on, shares(np.maximum(timeline.start[on], start), np.minimum(timeline.end[on], end))

    def parts(self, start: int, end: int) -> tuple[Index, Int64]:
        """The operations that run in [start, end) and [k, 6] ns of each by CAUSES; a row adds up to its share."""
        on, share = self.shares(start, end)
        return on, self.by_cause(on, share, start, end)

    def by_cause(self, on: Index, share: Int64, start: int, end: int) -> Int64:
        """[k, 6] ns of each of these operations by CAUSES."""
        table = np.zeros((len(on), len(CAUSES)), np.int64)
        known = self.modelled[on]
        if not known.any():
            table[:, CAUSES.index("unmodelled")] = share
            return table
        begun, ended = self.timeline.start[on], self.timeline.end[on]
        clipped = np.minimum(ended, end) - np.maximum(begun, start)
        inside = clipped / np.maximum(ended - begun, 1)
        left = np.where(known, share, 0)
        for column, claim in enumerate(self.claims):
            taken = np.minimum(left, np.rint(claim[on] * inside).astype(np.int64))
            table[:, column] = taken
            left = left - taken
        table[:, CAUSES.index("inefficiency")] = left
        table[:, CAUSES.index("unmodelled")] = np.where(known, 0, share)
        return table

    def split(self, start: int, end: int) -> list[ComputeSlice]:
        """The time in [start, end) in which kernels other than communication run, by cause; adds up to it exactly."""
        on, share = self.shares(start, end)
        sums = np.zeros(len(CAUSES), np.int64)
        for part in blocks(len(on)):
            sums += self.by_cause(on[part], share[part], start, end).sum(axis=0)
        return [
            ComputeSlice(cause, ns, "measured" if cause == "unmodelled" else "modelled")
            for cause, ns in zip(CAUSES, sums.tolist(), strict=True)
            if ns
        ]


def device_of(timeline: Timeline) -> Device:
    """What the recording says of the timeline's device.

    Where it lists others only (its own numbering of the visible ones) and they are all alike, one of them; else nothing.
    """
    listed = [d for d in timeline.trace.devices if d.process in (None, timeline.process)]
    mine = [d for d in listed if d.ordinal == timeline.device]
    alike = {(d.name, d.sms, d.memory_bytes) for d in listed}
    return (mine or (listed if len(alike) == 1 else []) or [Device(timeline.device)])[0]
