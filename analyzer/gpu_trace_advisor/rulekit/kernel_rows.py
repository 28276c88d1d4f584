"""The rows of the kernel table that rules may judge, and what a better kernel could take off them.

Short kernels, those that share the device, and those faster than the device allows are never judged; nothing is where the
work of less than half of the kernels' time is known. The time above reachable is the most that a change can save; the least
is always nothing, as a timeline does not tell whether a faster kernel exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.hardware import built_for
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.roofline.kernel_table import CACHES, KernelRow
from gpu_trace_advisor.roofline.operator_costs import TRUE_FP32
from gpu_trace_advisor.roofline.tiles import Tiling
from gpu_trace_advisor.rulekit.kernel_fixes import Floats, faster
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import count_of, percent

COVERED = 0.5  # of the kernels' time whose work is known: from less nothing is said
WORTH = 0.01  # of the wall
FILLED = 0.8  # of the device that a product's blocks fill: better filled ones are no matter of tiles
WAVES = 4  # from so many on the last one hardly counts
INSIDE = 0.5  # of a tile that lies within the result
FAMILIES = ("convolution", "attention", "moe")
"""Each has a rule of its own."""


class Judged(NamedTuple):
    """A row of the table that can be judged, and its number."""

    at: int
    row: KernelRow
    cost: Cost


def judged_rows(view: DeviceWindow) -> list[Judged]:
    """The rows worth a word, most time first; none where the device or most of the work is not known."""
    table, wall = view.kernel_table, view.window.wall_ns
    if view.hardware is None or (table.covered or 0.0) < COVERED:
        return []
    found = (Judged(index, table.rows[index], table.cost(index)) for index in table.ranked)
    return [one for one in found if one.row.ns >= WORTH * wall and not one.row.doubt]


def is_cut_badly(view: DeviceWindow, one: Judged) -> bool:
    """A product whose tiles leave much of the device, or of themselves, empty."""
    cut = view.kernel_table.tiling(one.at) if one.row.family == "product" else None
    if cut is None:
        return False
    return (cut.fill < FILLED and cut.waves < WAVES) or (cut.inside < INSIDE and one.row.bound == "compute")


def is_narrowed_first(view: DeviceWindow, one: Judged) -> bool:
    """A product in true fp32 on a device whose matrix units take 16 bits: the type comes before the kernel."""
    fast = (
        max((view.hardware.peaks.get(dtype, 0.0) for dtype in ("bf16", "fp16")), default=0.0) if view.hardware else 0.0
    )
    slow = view.hardware.vector.get("fp32", 0.0) if view.hardware else 0.0
    return (
        one.row.family == "product"
        and one.row.dtype == "fp32"
        and fast > 2 * slow
        and bool(TRUE_FP32.search(one.row.kernel))
    )


def operations(view: DeviceWindow, rows: Sequence[Judged]) -> Int64:
    """The operations of the rows that run in the window."""
    found = [view.kernel_table.operations(one.at) for one in rows]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def toward(
    view: DeviceWindow, name: str, title: str, rows: Sequence[Judged], rates: Sequence[float], assumes: str
) -> Fix:  # fmt: skip
    """The rows' operations take as long as they do, or at best as long as at `rates` (share of reachable) of what can be
    reached; none gets slower."""
    high = []
    for one, rate in zip(rows, rates, strict=True):
        floor = view.kernel_table.floor_ns(one.at) or 0.0
        length = np.maximum(view.time_of(view.kernel_table.operations(one.at)), 1.0)
        high.append(np.clip(floor / max(rate, 1e-9) / length, 0.0, 1.0))
    on = operations(view, rows)
    return faster(view, name, title, on, 1.0, np.concatenate(high), assumes=(assumes,), least_ns=least_ns(view, on))


def least_ns(view: DeviceWindow, operations: Int64, dtype: str = "") -> Floats:
    """[k] ns that each of the operations needs at what can be reached, or at the peak of another type than its own; 0 where
    that is not known."""
    table = view.kernel_table
    least = np.zeros(len(view.timeline.row))
    for row in range(len(table.groups)):
        least[table.operations(row)] = (table.floor_in(row, dtype) if dtype else table.floor_ns(row)) or 0.0
    return least[operations]


def called(one: Judged) -> str:
    """The operator with its shapes and type."""
    return f"{one.row.operator} {one.row.shape} {one.row.dtype}"


def rate(row: KernelRow) -> str:
    """How fast it computes or moves, beside both ceilings."""
    speed = (
        f"{row.flops_per_s / 1e12:,.0f} TFLOP/s"
        if row.flops_per_s >= 1e13
        else f"{row.flops_per_s / 1e12:,.1f} TFLOP/s"
    )
    if row.bound == "memory":
        speed = f"{row.bytes_per_s / 1e12:,.2f} TB/s"
    shares = [f"{percent(row.of_reachable)} of what can be reached"] if row.of_reachable is not None else []
    shares += [f"{percent(row.of_datasheet, 1)} of the datasheet"] if row.of_datasheet is not None else []
    return f"{speed}, {' and '.join(shares)}" if shares else speed


def units_of(view: DeviceWindow) -> str:
    """What the device calls its processors."""
    if view.hardware:
        return view.hardware.units
    return "CUs" if "AMD" in view.device.name or built_for(view.trace.names) else "SMs"


def beyond_cache(view: DeviceWindow, one: Judged) -> bool:
    """It moves more bytes than the last-level cache may hold back; no row is judged where the device is not known."""
    return view.hardware is not None and one.row.bytes >= CACHES * view.hardware.l2_bytes


def too_few_blocks(view: DeviceWindow, one: Judged) -> str:
    """A sentence, with a blank before it, on blocks that cannot fill the device; empty where they can."""
    blocks, sms = one.row.blocks, view.kernel_table.sms
    return f" Its {count_of(blocks, 'block')} leave some of {sms} {units_of(view)} idle." if 0 < blocks < sms else ""


def formula_of(one: Judged, view: DeviceWindow) -> str:
    """The row's arithmetic."""
    row = one.row
    reach = row.reachable or 0.0
    ceiling = f"{reach / 1e12:,.2f} TB/s" if row.bound == "memory" else f"{reach / 1e12:,.0f} TFLOP/s"
    return (
        f"{row.flops / 1e9:,.4g} GFLOP and {row.bytes / 1e6:,.4g} MB a call in {row.median_ns / 1e3:,.1f} µs (median); "
        f"reachable {ceiling} ({row.reachable_from}); at it a call takes "
        f"{(view.kernel_table.floor_ns(one.at) or 0.0) / 1e3:,.1f} µs"
    )


def at_best_cut(one: Judged, cut: Tiling) -> float:
    """Share of reachable that a badly cut product would have, were the device and its tiles full."""
    whole = min(cut.fill, 1.0) * (min(cut.inside, 1.0) if cut.inside < INSIDE else 1.0)
    return min((one.row.of_reachable or 1.0) / max(whole, 1e-6), 1.0)


def left_by_tiles(view: DeviceWindow, products: Int64) -> Floats:
    """[k] the least part of each operation's time that another change may leave, so that with better tiles it is no faster
    than can be reached; 0 where that is not known."""
    least = np.zeros(len(view.timeline.row))
    for one in judged_rows(view):
        floor = view.kernel_table.floor_ns(one.at)
        if floor is None:
            continue
        mine = view.kernel_table.operations(one.at)
        cut = view.kernel_table.tiling(one.at) if is_cut_badly(view, one) else None
        tiles = (one.row.of_reachable or 1.0) / at_best_cut(one, cut) if cut else 1.0
        least[mine] = np.minimum(floor / np.maximum(view.time_of(mine), 1.0) / tiles, 1.0)
    return least[products]
