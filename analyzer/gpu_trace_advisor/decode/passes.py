"""What the passes of a decode have to read, and how much of the device's bandwidth they use.

    floor = (weights + cache) / bandwidth        no pass is faster, whatever the kernels

Weights and cache are known from the shapes of the operators that ran, or as far as the user told them; else they are
unknown, with the reason. The exchange between devices is no part of the floor.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.phase import MIXED, product_rows
from gpu_trace_advisor.analysis.request import DECODE
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.intervals import ascending, clip, total
from gpu_trace_advisor.decode.utilization import SHAPES, WHOLE, cache_bytes, coverage, weight_bytes
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE, is_graph_launch
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import Bool, Int64, Kind
from gpu_trace_advisor.units import duration, percent

HOST_BOUND = 0.3  # of the wall waiting for the host: that comes first, fewer bytes would only lengthen the waits
IN_GRAPH = 0.5  # share of operations from which a replay is a whole pass
KEPT = 0.7
"""Pessimistic share of the bytes of weights saved that turns into time: unpacking and scales cost up to 15 %, and some
layers stay as they are."""
USUAL = ("bf16", 2)
"""Type and bytes of a weight where the recording does not tell."""

SMALL_TYPES = re.compile(
    r"mxfp4|E2m1|nvfp4|(?<![a-z])fp4|E4m3|E5m2|fp8|float8|(?<![a-z])u?int[48](?![a-z0-9])|marlin|awq|gptq|w[48]a\d|(?<![a-z])nf4|"
    r"i8i8|_qgemm|bitblas|exllama|(?<![a-z])f8", re.IGNORECASE,
)  # fmt: skip
"""Names of matrix kernels whose weights have 8 bits or fewer."""
SPECULATION = re.compile(r"TARGET_VERIFY|eagle|medusa|(?<![a-z])draft|spec_?decod|rejection_sampl", re.IGNORECASE)
EXPERTS = re.compile(r"(?<![a-z])moe|expert|grouped_?(?:gemm|mm)|matmul_ogs|topk_?gating", re.IGNORECASE)


class Amount(NamedTuple):
    """A number, or None; and how it is known, or why not."""

    value: float | None
    why: str


@dataclass(frozen=True)
class Products:
    """The matrix products with weights of a decode; n of them."""

    operation: Int64
    """[n] index into the timeline."""
    rows: Int64
    bytes: np.ndarray[tuple[int], np.dtype[np.float64]]
    """[n] bytes of the weights that each reads."""
    width: np.ndarray[tuple[int], np.dtype[np.float64]]
    """[n] bytes of one weight."""
    ridge: np.ndarray[tuple[int], np.dtype[np.float64]]
    """[n] rows from which reading the weights is free; 0 where the peaks are not known."""


@dataclass(frozen=True)
class Decoding:
    """The decode part of one device's window."""

    view: DeviceWindow

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Where the window decodes; empty where it does not, or is not known to."""
        window, phase = self.view.window, self.view.phase
        if phase.name == DECODE:
            return [(window.start_ns, window.end_ns)]
        if phase.name != MIXED:
            return []
        steps = sorted(phase.stretches)
        ends = [*(step.start_ns for step in steps[1:]), window.end_ns]  # until the next step begins
        spans = [(step.start_ns, end) for step, end in zip(steps, ends, strict=True) if step.name == DECODE]
        clipped = [(max(a, window.start_ns), min(b, window.end_ns)) for a, b in spans]
        return [(a, b) for a, b in clipped if a < b]

    @cached_property
    def ns(self) -> int:
        """Length of the decode, without waits that nothing in the recording explains (work that was cut away)."""
        lost = sum(self.view.attribution.by_cause(a, b).get("device-unknown", 0) for a, b in self.spans)
        return sum(b - a for a, b in self.spans) - lost

    @cached_property
    def idle(self) -> float:
        """Share of it in which nothing runs."""
        busy = sum(total(clip(self.view.timeline.busy, a, b)) for a, b in self.spans)
        return 1 - busy / self.ns if self.ns else 0.0

    @cached_property
    def waits(self) -> float:
        """Share of it in which the device has nothing to do because the host has not asked for it."""
        parts = (item for a, b in self.spans for item in self.view.attribution.partition(a, b))
        host = sum(item.ns for item in parts if (item.when, item.side) == ("idle", "host"))
        return host / self.ns if self.ns else 0.0

    @cached_property
    def operations(self) -> Int64:
        """Operations that start in it."""
        start = self.view.timeline.start
        inside = np.zeros(len(start), np.bool_)
        for a, b in self.spans:
            inside |= (start >= a) & (start < b)
        found: Int64 = np.flatnonzero(inside)
        return found

    @cached_property
    def passes(self) -> Amount:
        """Forward passes in it."""
        phase, steps = self.view.phase, self.view.kept_steps
        if phase.name == MIXED:
            return Amount(len(self.spans), f"{len(self.spans)} decode steps of the engine")
        if stretches := len(phase.spans(DECODE)):
            return Amount(stretches, "steps that the engine marks")
        if self.view.window.kind == "steps" and steps:
            return Amount(len(steps), "marked steps")
        trace, timeline, mine = self.view.trace, self.view.timeline, self.operations
        launches, count = np.unique(timeline.launch[mine[timeline.node[mine]]], return_counts=True)
        whole = [
            n for row, n in zip(launches.tolist(), count.tolist(), strict=True) if is_graph_launch(trace.label(row))
        ]
        if whole and len(set(whole)) == 1 and sum(whole) >= IN_GRAPH * len(mine):
            return Amount(len(whole), "graph replays, each a whole pass")
        return Amount(None, "no step or whole graph replay tells where a pass begins (--step-marker)")

    @cached_property
    def weights(self) -> Amount:
        """Bytes of the weights that one pass reads on this device."""
        told = self.view.request.weights
        if told is not None:
            return Amount(told, "as told with --weights")
        if self.passes.value is None:
            return Amount(None, self.passes.why)
        model = self.view.inkernel
        parts = [coverage(model, a, b)[0] or 0.0 for a, b in self.spans]
        found = sum(weight_bytes(model, a, b) for a, b in self.spans)
        part = min(parts, default=0.0)
        if not found or part < WHOLE:
            return Amount(
                None, f"{SHAPES.format(percent(part))}, none inside graph replays: give their bytes with --weights"
            )
        return Amount(found / self.passes.value, "weight operands of the recorded products")

    @cached_property
    def cache(self) -> Amount:
        """Bytes of the cache that one pass reads on this device."""
        found = sum(cache_bytes(self.view.inkernel, a, b) for a, b in self.spans)
        if not found or not self.passes.value:
            return Amount(None, "the shapes of attention over the cache are not recorded")
        return Amount(found / self.passes.value, "keys and values that the recorded attention reads")

    @cached_property
    def rows(self) -> Amount:
        """Tokens that a pass makes: sequences that decode together."""
        request, phase = self.view.request, self.view.phase
        if request.batch is not None:
            return Amount(request.batch, "as told with --batch")
        batches = [s.batch for s in phase.stretches if s.name == DECODE and s.batch]
        if batches:
            return Amount(float(np.median(batches)), "as the engine's annotations say")
        found = [product_rows(self.view.timeline, self.view.inkernel.costs, a, b) for a, b in self.spans]
        if not found or not sum(len(rows) for rows, _ in found):
            return Amount(None, "neither an annotation nor a recorded matrix product tells the batch (--batch)")
        rows, time = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(rows)
        middle = np.searchsorted(np.cumsum(time[order]), time.sum() / 2)
        return Amount(float(rows[order][middle]), "rows of the matrix products")

    @cached_property
    def pass_ns(self) -> float | None:
        """Length of a pass."""
        return self.ns / self.passes.value if self.passes.value and self.ns else None

    @cached_property
    def floor(self) -> Amount:
        """What a pass takes at least, in ns; None where the weights or the bandwidth are unknown, or cannot be right."""
        hardware, weights, cache = self.view.hardware, self.weights, self.cache.value
        if weights.value is None:
            return Amount(None, f"the bytes of the weights are unknown: {weights.why}")
        if hardware is None:
            return Amount(None, "the bandwidth of the device is unknown (--hardware)")
        found = (weights.value + (cache or 0.0)) / hardware.bandwidth * 1e9
        if self.pass_ns and found > self.pass_ns:
            wrong = f"reading {weights.value / 1e9:.3g} GB takes at least {duration(round(found))}, and passes take "
            return Amount(
                None, f"{wrong}{duration(round(self.pass_ns))}: the bytes, the device or the passes are wrong"
            )
        text = "" if cache is not None else "; at least, as the bytes of the cache are unknown"
        apart = "; without the exchange between devices" if self.communicates else ""
        return Amount(found, f"weights {weights.why}{text}{apart}")

    @property
    def floor_ns(self) -> float | None:
        return self.floor.value

    @cached_property
    def reach(self) -> float | None:
        """Share of the bandwidth that is used: floor over pass (MBU)."""
        return self.floor_ns / self.pass_ns if self.floor_ns is not None and self.pass_ns else None

    @cached_property
    def host_bound(self) -> bool:
        """The device waits for so much of the time that fewer bytes would only lengthen the waits."""
        return self.waits > HOST_BOUND

    @cached_property
    def products(self) -> Products:
        """Its matrix products with weights, as far as shapes are recorded."""
        model, hardware = self.view.inkernel, self.view.hardware
        kinds, kind = model.costs.kinds, model.costs.kind[self.operations]
        read = np.array([*(k.weight_bytes for k in kinds), 0.0])  # -1, no kind, is the last one
        mine, kind = self.operations[read[kind] > 0], kind[read[kind] > 0]
        width = np.array([k.weight_bytes / max(k.n * k.k * k.batch, 1) for k in kinds])
        ridge = np.array(
            [(hardware.batch_ridge(k.dtype, w) if hardware else None) or 0.0 for k, w in zip(kinds, width, strict=True)]
        )
        rows = np.array([k.m for k in kinds], np.int64)
        return Products(mine, rows[kind], read[kind] * model.costs.share[mine], width[kind], ridge[kind])

    @cached_property
    def ridge(self) -> float:
        """Rows from which reading the weights is free: the fewest of any product, else of USUAL weights; 0 where the peaks
        are not known."""
        ridges, hardware = self.products.ridge, self.view.hardware
        if len(ridges):
            return float(ridges.min())
        return (hardware.batch_ridge(*USUAL) or 0.0) if hardware else 0.0

    def of_class(self, *classes: str) -> Int64:
        """Operations whose kernel is of one of these classes."""
        timeline, mine = self.view.timeline, self.operations
        names = timeline.trace.name_code[timeline.row[mine]]
        wanted = named(timeline.trace, names, lambda name: kernel_class(name) in classes)
        found: Int64 = mine[wanted & (timeline.op_class[mine] == COMPUTE)]
        return found

    @cached_property
    def matrix(self) -> Int64:
        """Kernels that multiply by weights: by their recorded work, else by their names."""
        return ascending(np.concatenate([self.products.operation, self.of_class("gemm", "moe")]))

    @cached_property
    def quantized(self) -> str:
        """A matrix kernel or product whose weights have 8 bits or fewer; empty where none shows."""
        named = next((name for name in self.names(self.matrix) if SMALL_TYPES.search(name)), "")
        return named or (
            "its weights have 8 bits" if len(self.products.width) and self.products.width.min() < 2 else ""
        )

    @cached_property
    def speculates(self) -> str:
        """A record that shows speculative decoding; empty without."""
        trace = self.view.trace
        recorded = np.isin(trace.kind, (Kind.OPERATOR, Kind.RANGE, Kind.SPAN, Kind.PYTHON)) & (
            trace.process == self.view.timeline.process
        )
        host = (trace.names[code] for code in present(trace.name_code[recorded]).tolist())
        return next((name for name in [*self.names(self.operations), *host] if SPECULATION.search(name)), "")

    @cached_property
    def experts(self) -> str:
        """A kernel of a mixture of experts; empty without."""
        return next((name for name in self.names(self.operations) if EXPERTS.search(name)), "")

    def names(self, operations: Int64) -> list[str]:
        """Their distinct names."""
        timeline = self.view.timeline
        codes = present(timeline.trace.name_code[timeline.row[operations]])
        return [timeline.trace.names[code] for code in codes.tolist()]

    @cached_property
    def communicates(self) -> bool:
        return bool((self.view.timeline.op_class[self.operations] == COMMUNICATION).any())

    @cached_property
    def graph_nodes(self) -> Int64:
        """Operations inside graph replays, each replay's first left out."""
        later: Bool = self.view.timeline.later_node
        return self.operations[later[self.operations]]

    def room(self, weights: float, cache: float) -> float | None:
        """How many times the cache may grow until it and the weights fill the usable memory; None where unknown."""
        hardware = self.view.hardware
        if hardware is None or not cache:
            return None
        return (value("ai-service-model", "mem") * hardware.memory_bytes - weights) / cache


def engines(view: DeviceWindow) -> list[str]:
    """Inference engines that the trace shows: they batch, page the cache and capture graphs by themselves."""
    return [use.name for use in view.uses if use.role == "engine"]


def expected_tokens(drafts: int, acceptance: float) -> float:
    """Tokens of one verified pass: the accepted ones are a prefix, and one more is always right (correction C8).

    >>> round(expected_tokens(5, 0.7), 2)
    2.94
    """
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def speculation(drafts: int, acceptance: float, cost: float) -> float:
    """How many times as fast, when a draft token costs `cost` of a pass and verifying them no more than one pass.

    >>> round(speculation(5, 0.7, 0.03), 1), round(speculation(5, 0.7, 0.08), 1)
    (2.6, 2.1)
    """
    return expected_tokens(drafts, acceptance) / (1 + drafts * cost)
