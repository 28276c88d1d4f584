"""Inside the kernels: each operator, shape and kernel with its rates, beside two ceilings.

    datasheet   what the maker prints; it prices nothing
    reachable   the most that kernels of this kind are known to reach: the best of this recording (same family, type and bound;
                at least 3 calls of at least 20 us), or what is published for products of this type where that is more; for
                bandwidth, where the recording shows less, 0.9 of the datasheet, assumed

    time above reachable = sum over the calls of max(t - max(FLOPs / R, bytes / BW), 0): the most a better kernel could give

A timeline does not tell stalls, clocks, cache hits, the bytes that truly moved, or whether a faster kernel exists.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.roofline.kernel_time import InKernel
from gpu_trace_advisor.roofline.operator_costs import OWN_CLASSES
from gpu_trace_advisor.roofline.tiles import Tiling, blocks_of, filled, tiling
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.kernel_names import readable
from gpu_trace_advisor.trace.lookup import distinct_rows
from gpu_trace_advisor.trace.model import NONE, Index, Int64
from gpu_trace_advisor.trace.operator_shapes import BYTES

MISSING_KEPT = 200  # of the kernels whose work is not known
JUDGED_NS = 20_000  # shorter kernels are mostly launch and ramp
CALLS = 3  # of a kernel that shows what can be reached
CACHES = 4  # times the last-level cache: fewer bytes may not come from memory
ALONE = 0.9  # of its time a kernel has the device to itself; else its rates are not its own
FULL = 1.02  # of the datasheet: more is no rate but a wrong type, clock or count


@dataclass(frozen=True)
class KernelRow:
    """Calls of one kernel for one operator and shape. Rates are of the median call."""

    operator: str
    shape: str
    kernel: str
    family: str
    dtype: str
    calls: int
    ns: int
    median_ns: int
    flops: float
    """Of one call; likewise `bytes`, which are the compulsory ones."""
    bytes: float
    flops_per_byte: float
    flops_per_s: float
    bytes_per_s: float
    bound: str
    """`compute` or `memory`, of what can be reached; empty where the device's peaks are not known."""
    of_datasheet: float | None
    """Share of the bound's ceiling; likewise `of_reachable`."""
    reachable: float | None
    """FLOP/s or bytes/s, by the bound."""
    reachable_from: str
    of_reachable: float | None
    above_ns: int | None
    """Time above reachable, of all calls."""
    tile: str
    blocks: int
    """0: not recorded."""
    waves: float | None
    fill: float | None
    doubt: str
    """Why the row is not judged; empty where it is."""
    borrowed: int = 0
    """Calls whose work is that of the same kernel with the same grid and block elsewhere in the recording."""
    captured: int = 0
    """Calls whose operator only the recording of a capture tells."""


class Ceiling(NamedTuple):
    rate: float
    source: str
    own: int
    """Row of the table that shows it, -1 for what is published or assumed."""


@dataclass(frozen=True)
class Missing:
    """Kernels whose work is not known, by the operator that launched them."""

    operator: str
    kernel: str
    calls: int
    ns: int


class Kernels:
    """The table of a window."""

    def __init__(self, model: InKernel, start: int, end: int) -> None:
        self.model, self.start, self.end = model, start, end
        timeline, costs = model.timeline, model.costs
        self.on, self.share = model.shares(start, end)
        kind = costs.kind[self.on]
        known = kind != NONE
        self.covered_ns = int(self.share[known | costs.of(costs.helps, self.on)].sum())
        self.captured_ns = int(self.share[costs.of(costs.captured, self.on)].sum())
        self.kernel_ns = int(self.share.sum())
        self._known = np.flatnonzero(known)
        on = self.on[self._known]
        which = self._same(kind[self._known])
        names = timeline.trace.name_code[timeline.row[on]]
        self.groups, group = distinct_rows([which, names]) if len(on) else ([], np.empty(0, np.int64))
        length = timeline.length[on]
        order = np.lexsort((length, group))
        self._order, self._bounds = order, np.searchsorted(group[order], np.arange(len(self.groups) + 1))

    @property
    def covered(self) -> float | None:
        """Part of the kernels' time whose operators' work is known; None without kernels."""
        return self.covered_ns / self.kernel_ns if self.kernel_ns else None

    def _same(self, kind: Index) -> Int64:
        """[k] the first kind with the operator, shape and work of each: strides and values tell kinds apart, not rows."""
        costs = self.model.costs
        first: dict[tuple[object, ...], int] = {}
        table = np.array(
            [
                first.setdefault(
                    (*called, cost.dtype, *((cost.flops, cost.bytes, cost.multiplied) if not cost.varies else ())), i
                )
                for i, (cost, called) in enumerate(zip(costs.kinds, costs.called, strict=True))
            ],
            np.int64,
        )
        return table[kind] if len(table) else np.empty(0, np.int64)

    def operations(self, row: int) -> Int64:
        """The row's operations of the timeline, shortest first."""
        at = self._order[self._bounds[row] : self._bounds[row + 1]]
        return np.asarray(self.on[self._known[at]], np.int64)

    def cost(self, row: int) -> Cost:
        """Of one call; the mean where it varies between calls with the same arguments."""
        cost = self.model.costs.kinds[self.groups[row][0]]
        return self._mean[row] if cost.varies else cost

    @cached_property
    def _mean(self) -> dict[int, Cost]:
        found, kinds = dict[int, Cost](), self.model.costs.kinds
        for row, (kind, _) in enumerate(self.groups):
            if kinds[kind].varies:
                mine = [kinds[one] for one in self.model.costs.kind[self.operations(row)].tolist()]
                flops, moved = (
                    sum(values) / len(mine) for values in zip(*((c.flops, c.bytes) for c in mine), strict=True)
                )
                found[row] = replace(kinds[kind], flops=flops, bytes=moved)
        return found

    @cached_property
    def _measured(self) -> list[_Measured]:
        timeline, costs, violated = self.model.timeline, self.model.costs, self.model.violated
        found = []
        for row in range(len(self.groups)):
            at = self._order[self._bounds[row] : self._bounds[row + 1]]
            operations = self.on[self._known[at]]
            length = timeline.length[operations]
            part = float(costs.share[operations].mean())
            median = float(length[(len(length) - 1) // 2] + length[len(length) // 2]) / 2
            whole = int(length.sum())
            inside = int(self.share[self._known[at]].sum())
            clipped = bool(timeline.start[operations].min() < self.start or timeline.end[operations].max() > self.end)
            alone = clipped or inside >= ALONE * whole
            wrong = int(violated[operations].sum())
            found.append(_Measured(median, inside, part, alone, wrong, len(operations)))
        return found

    @cached_property
    def _bound(self) -> list[str]:
        """By the datasheet, so that it does not depend on the ceilings found with it."""
        hardware = self.model.hardware
        compute, _, known = self.model.needs
        found = []
        for row, (kind, _) in enumerate(self.groups):
            cost = self.cost(row)
            if hardware is None or not known[kind]:
                found.append("")
                continue
            published = self._published(cost.dtype)
            peak = self._peak(cost)
            needs = compute[kind] * (peak / published if published and cost.family in OWN_CLASSES else 1.0)
            memory = cost.bytes / (hardware.bandwidth * hardware.attainable) * 1e9
            found.append("compute" if needs > memory else "memory")
        return found

    def _published(self, dtype: str) -> float:
        return self.model.hardware.reachable.get(dtype, 0.0) if self.model.hardware else 0.0

    def _peak(self, cost: Cost) -> float:
        """FLOP/s by the datasheet; 0 unknown."""
        hardware = self.model.hardware
        if hardware is None:
            return 0.0
        if cost.family not in OWN_CLASSES:
            return hardware.vector.get("fp32", 0.0)
        peaks = hardware.peaks
        return peaks.get(cost.dtype, peaks.get("fp32", 0.0) if cost.dtype == "tf32" else 0.0)

    @cached_property
    def _best(self) -> dict[tuple[str, str, str], Ceiling]:
        """(bound, family, type) -> the best of this recording; of bandwidth there is one for all."""
        hardware, found = self.model.hardware, dict[tuple[str, str, str], Ceiling]()
        for row, seen in enumerate(self._measured):
            bound, cost = self._bound[row], self.cost(row)
            if (
                not hardware
                or not bound
                or seen.calls < CALLS
                or seen.median_ns < JUDGED_NS
                or seen.wrong
                or not seen.alone
            ):
                continue
            amount = cost.flops * cost.multiplied if bound == "compute" else cost.bytes
            rate = amount * seen.part / seen.median_ns * 1e9
            if bound == "memory" and (cost.bytes < CACHES * hardware.l2_bytes or rate > FULL * hardware.bandwidth):
                continue
            key = (bound, cost.family, cost.dtype) if bound == "compute" else (bound, "", "")
            if rate > found.get(key, Ceiling(0.0, "", NONE)).rate:
                found[key] = Ceiling(rate, "the best of this recording", row)
        return found

    def ceiling(self, row: int) -> Ceiling | None:
        """What a kernel like this row's can reach, FLOP/s or bytes/s by its bound; None where nothing tells."""
        hardware, bound, cost = self.model.hardware, self._bound[row], self.cost(row)
        if hardware is None or not bound:
            return None
        if bound == "memory":
            seen = self._best.get(("memory", "", ""))
            assumed = hardware.bandwidth * hardware.attainable
            if seen and seen.rate >= assumed * hardware.attainable:  # near enough to be what there is
                return seen
            return Ceiling(assumed, f"{hardware.attainable:g} of the datasheet, assumed", NONE)
        seen = self._best.get(("compute", cost.family, cost.dtype))
        published = self._published(cost.dtype)
        if published and published > (seen.rate if seen else 0.0):
            return Ceiling(published, f"published: {hardware.reachable_source}", NONE)
        return seen

    @cached_property
    def bandwidth(self) -> float:
        """Bytes/s that can be reached; 0 where nothing tells."""
        hardware = self.model.hardware
        if hardware is None:
            return 0.0
        seen = self._best.get(("memory", "", ""))
        assumed = hardware.bandwidth * hardware.attainable
        return seen.rate if seen and seen.rate >= assumed * hardware.attainable else assumed

    def floor_ns(self, row: int) -> float | None:
        """ns that one call needs at what can be reached; None where that is not known."""
        ceiling, cost, part = self.ceiling(row), self.cost(row), self._measured[row].part
        if ceiling is None:
            return None
        memory = cost.bytes * part / self.bandwidth * 1e9
        if self._bound[row] == "memory":
            return memory
        return max(cost.flops * cost.multiplied * part / ceiling.rate * 1e9, memory)

    def floor_in(self, row: int, dtype: str) -> float | None:
        """ns that one call needs in numbers of this type, at its peak; None where that is not known."""
        cost, part, hardware = self.cost(row), self._measured[row].part, self.model.hardware
        peak = hardware.peaks.get(dtype, 0.0) if hardware else 0.0
        if not peak:
            return None
        width = min(BYTES[dtype] / BYTES.get("fp32" if cost.dtype == "tf32" else cost.dtype, 4), 1.0)
        return max(
            cost.flops * cost.multiplied * part / peak * 1e9,
            self.model.memory_ns(cost.bytes * part * width, cost.weight_bytes * part * width),
        )

    @cached_property
    def rows(self) -> list[KernelRow]:
        """One for each operator, shape and kernel, in the order of `groups`."""
        return [self._row(row) for row in range(len(self.groups))]

    @cached_property
    def ranked(self) -> list[int]:
        """The rows, most time first."""
        return sorted(range(len(self.rows)), key=lambda row: (-self.rows[row].ns, self.rows[row].kernel))

    def _row(self, row: int) -> KernelRow:
        kind, name = self.groups[row]
        cost, seen, trace = self.cost(row), self._measured[row], self.model.timeline.trace
        called = self.model.costs.called[kind]
        hardware, bound = self.model.hardware, self._bound[row]
        flops, moved = cost.flops * seen.part, cost.bytes * seen.part
        median = max(seen.median_ns, 1.0)
        rate = (flops * cost.multiplied if bound == "compute" else moved) / median * 1e9
        ceiling, floor = self.ceiling(row), self.floor_ns(row)
        peak = 0.0 if hardware is None else self._peak(cost) if bound == "compute" else hardware.bandwidth
        costs, operations = self.model.costs, self.operations(row)
        length = self.model.timeline.length[operations]
        cut = self.tiling(row)
        blocks = cut.blocks if cut else self.blocks(row)
        waves, fill = (
            (cut.waves, cut.fill) if cut else filled(blocks, self.sms) if blocks and self.sms else (None, None)
        )
        return KernelRow(
            operator=called[0],
            shape=shape_text(called[1]),
            kernel=readable(trace.names[name]),
            family=cost.family,
            dtype=cost.dtype,
            calls=seen.calls,
            ns=seen.ns,
            median_ns=round(seen.median_ns),
            flops=flops,
            bytes=moved,
            flops_per_byte=flops / moved if moved else 0.0,
            flops_per_s=flops / median * 1e9,
            bytes_per_s=moved / median * 1e9,
            bound=bound,
            of_datasheet=rate / peak if peak and bound else None,
            reachable=ceiling.rate if ceiling else None,
            reachable_from=ceiling.source if ceiling else "",
            of_reachable=rate / ceiling.rate if ceiling else None,
            above_ns=None if floor is None else int(np.maximum(length - floor, 0.0).sum()),
            tile="×".join(map(str, cut.sides)) if cut else "",
            blocks=blocks,
            waves=waves,
            fill=fill,
            doubt=self._doubt(row, rate, peak),
            borrowed=int(costs.of(costs.borrowed, operations).sum()),
            captured=int(costs.of(costs.captured, operations).sum()),
        )

    def _doubt(self, row: int, rate: float, peak: float) -> str:
        seen = self._measured[row]
        if seen.wrong or (peak and self._bound[row] == "compute" and rate > FULL * peak):
            return "faster than the device allows: type, clock or work are wrong"
        if not seen.alone:
            return "runs beside other kernels"
        if seen.median_ns < JUDGED_NS:
            return "short: launch and ramp decide"
        return "" if self.ceiling(row) else "what can be reached is not known"

    def own(self, row: int) -> bool:
        """The row itself shows what can be reached."""
        ceiling = self.ceiling(row)
        return ceiling is not None and ceiling.own == row

    def best_like(self, row: int) -> float:
        """FLOP/s of the best other row of the family and type; 0 where there is none."""
        cost = self.cost(row)
        best = self._best.get(("compute", cost.family, cost.dtype))
        return best.rate if best and best.own != row else 0.0

    def published(self, row: int) -> float:
        """FLOP/s that are published as reachable for products of the row's type; 0 unknown."""
        return self._published(self.cost(row).dtype)

    def peak(self, row: int) -> float:
        """FLOP/s of the datasheet for the row's type; 0 unknown."""
        return self._peak(self.cost(row))

    @property
    def sms(self) -> int:
        return self.model.sms or 0

    def tiling(self, row: int) -> Tiling | None:
        """How the row's product is cut into tiles; None where that is not known."""
        cost, trace = self.cost(row), self.model.timeline.trace
        if cost.family not in ("product", "convolution") or not cost.m or not self.sms:
            return None
        operation = int(self.operations(row)[0])
        name = trace.names[self.groups[row][1]]
        resident = self.model.tails.resident[operation]
        grid, block = self._launch(operation)
        return tiling(
            name, cost.m, cost.n, cost.batch, grid, block, self.sms, int(resident) if resident == resident else 1,
            self._reduced(operation),
        )  # fmt: skip

    def blocks(self, row: int) -> int:
        """Blocks of the row's launches, 0 where they were not recorded."""
        return blocks_of(
            self.model.timeline.trace.names[self.groups[row][1]], *self._launch(int(self.operations(row)[0]))
        )

    def _launch(self, operation: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Grid and block of an operation, as recorded with it or with its call."""
        timeline = self.model.timeline
        for at in (int(timeline.row[operation]), int(timeline.launch[operation])):
            grid, block = (_sizes(timeline.trace.text(at, name)) if at != NONE else None for name in ("grid", "block"))
            if grid and max(grid) > 0:
                return grid, block
        return None, None

    def _reduced(self, operation: int) -> str:
        """The name of the next kernel, where the same operator launched it."""
        timeline, operator = self.model.timeline, self.model.costs.operator
        after = operation + 1
        if after >= len(timeline.row) or operator[operation] == NONE or operator[after] != operator[operation]:
            return ""
        return timeline.label(after)

    @cached_property
    def missing(self) -> list[Missing]:
        """Kernels whose work is not known, most time first: the first of them."""
        timeline, costs = self.model.timeline, self.model.costs
        unknown = (costs.kind[self.on] == NONE) & ~costs.of(costs.helps, self.on)
        on, share = self.on[unknown], self.share[unknown]
        if not len(on):
            return []
        trace, operator = timeline.trace, costs.operator[on]
        code = np.where(operator != NONE, trace.name_code[operator], NONE)
        pairs, which = distinct_rows([code, trace.name_code[timeline.row[on]]])
        calls, ns = np.bincount(which), np.bincount(which, share).astype(np.int64)
        return [
            Missing(
                trace.names[pairs[i][0]] if pairs[i][0] != NONE else "",
                readable(trace.names[pairs[i][1]]),
                int(calls[i]),
                int(ns[i]),
            )
            for i in np.argsort(-ns, kind="stable")[:MISSING_KEPT].tolist()
        ]


class _Measured(NamedTuple):
    median_ns: float
    ns: int
    """In the window, time with several kernels divided between them."""
    part: float
    """Of the operator's work that one call does."""
    alone: bool
    wrong: int
    """Calls faster than the device allows."""
    calls: int


def _sizes(text: str | None) -> tuple[int, ...] | None:
    numbers = tuple(int(number) for number in re.findall(r"\d{1,18}", text)) if text else ()
    return numbers if 1 <= len(numbers) <= 3 else None


def shape_text(dims: str, most: int = 4) -> str:
    """The shapes of an operator's tensors, as people write them.

    >>> shape_text("[[4096, 4096], [4096, 50257], []]")
    '4096×4096, 4096×50257'
    """
    try:
        shapes = json.loads(dims) if dims else []
    except (ValueError, RecursionError):
        return ""
    parts = (
        [_one_shape(shape) for shape in shapes if isinstance(shape, list) and shape] if isinstance(shapes, list) else []
    )
    return ", ".join(parts[:most]) + (", …" if len(parts) > most else "")


def _one_shape(shape: list[object]) -> str:
    if isinstance(shape[0], list):
        return f"{len(shape)} tensors"
    return "×".join(str(size) for size in shape)
