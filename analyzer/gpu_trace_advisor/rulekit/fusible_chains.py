"""Runs of memory-bound kernels that follow each other on a stream: what fusion could make one kernel of.

A reduction over more than a row ends a run: what follows needs all of its blocks, so one kernel cannot do both. Work on
single numbers and on integers (`num_batches_tracked`, indices) is part of none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.intervals import grouped
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.rulekit.kernel_fixes import running_time
from gpu_trace_advisor.rulekit.training_passes import in_optimizer
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.kernel_names import computes_integers, kernel_class, readable
from gpu_trace_advisor.trace.lookup import distinct_rows, named, values_of
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

LIGHT = frozenset({"elementwise", "normalization", "softmax", "reduction", "copy", "random"})
"""Classes of kernels that move data and hardly compute."""

FUSED_ALREADY = ("triton", "fused", "liger", "apex", "multi_tensor_apply", "cuapplylayernorm")
FROM = 0.05  # of the wall in chains; training uses up to twice that as a matter of course
FEWEST = 3  # kernels of a chain: a pair is often one operator and its cast
MOST = 6  # … and at most: longer chains hardly ever share one iteration space, so they are cut


# Reductions over more than a row, whose result is known when all blocks are done: statistics of a batch, a loss, ATen's
# reduction over columns (which computes several outputs at once).
ACROSS_ROWS = re.compile(r"bn_(?:fw|bw)|batch_?norm|loss|reduce_kernel<\d+, [24],", re.IGNORECASE)
# Operators that reduce all of a tensor where they have no more arguments than these: tensor, type.
REDUCES_ALL = {"aten::sum": 2, "aten::mean": 2, "aten::prod": 2, "aten::max": 1, "aten::min": 1, "aten::all": 1,
               "aten::any": 1, "aten::argmax": 1, "aten::argmin": 1, "aten::norm": 2, "aten::std": 2, "aten::var": 2}  # fmt: skip


@lru_cache(maxsize=100_000)
def is_light(name: str) -> bool:
    """A memory-bound kernel that nobody fused yet, and no bookkeeping of counters and indices."""
    lower = name.lower()
    return (
        kernel_class(name) in LIGHT and not any(word in lower for word in FUSED_ALREADY) and not computes_integers(name)
    )


@dataclass(frozen=True)
class Chain:
    """The same kernels one after the other, wherever they occur."""

    names: tuple[str, ...]
    places: Int64
    """[occurrences, kernels] operations (index into the timeline)."""
    ns: int
    """Time of all of them."""


def chains(view: DeviceWindow) -> list[Chain]:
    """The chains of the window, most time first."""
    timeline, trace = view.timeline, view.trace
    on = view.operations[timeline.is_kernel[view.operations] & ~timeline.node[view.operations]]
    on = on[~in_optimizer(view, on)]  # what to do about those is not to fuse operators
    on = on[np.lexsort((timeline.start[on], timeline.stream[on]))]
    names = trace.name_code[timeline.row[on]]
    scalar, whole = _by_arguments(view, on)
    whole |= named(trace, names, lambda name: ACROSS_ROWS.search(name) is not None) | _across_blocks(view, on)
    start, count = _light_runs(named(trace, names, is_light) & ~scalar, whole, timeline.stream[on])
    member = np.arange(MOST)
    codes = np.where(member < count[:, None], names[np.minimum(start[:, None] + member, len(on) - 1)], NONE)
    kinds, kind = distinct_rows(list(codes.T))
    found = []
    for row, which in sorted(zip(kinds, grouped(kind, len(kinds)), strict=True), key=lambda pair: int(pair[1][0])):
        kernels = [code for code in row if code != NONE]
        if len(set(kernels)) > 1:  # one kernel again and again is a loop, which passes nothing on
            places = on[start[which, None] + member[: len(kernels)]]
            told = tuple(readable(trace.names[code]) for code in kernels)
            found.append(Chain(told, places, int(view.time_of(places).sum())))
    return sorted(found, key=lambda chain: -chain.ns)


def worth_fusing(view: DeviceWindow) -> list[Chain]:
    """The chains, where they take so much of the wall that fusing them pays; else none."""
    found = chains(view)
    _, usual = span("tvi-share-elementwise", "share")
    least = max(FROM, usual) if view.phase.name == "training" else FROM
    return found if running_time(view, operations_of(found)) >= least * view.window.wall_ns else []


def operations_of(chains: Sequence[Chain]) -> Int64:
    """Operations (index into the timeline) of all of these chains."""
    return np.concatenate([np.empty(0, np.int64), *(chain.places.ravel() for chain in chains)])


def _by_arguments(view: DeviceWindow, operations: Int64) -> tuple[Bool, Bool]:
    """[k] launched by an operator whose tensors have one element each; by one that reduces all of its tensor."""
    trace, launch = view.trace, view.timeline.launch[operations]
    scalar, whole = np.zeros(len(operations), np.bool_), np.zeros(len(operations), np.bool_)
    row = np.where(launch != NONE, view.timeline.host.operator[launch], NONE)
    has = np.flatnonzero(row != NONE)
    dims = values_of([trace.texts.get("Input Dims")], row[has])[0]
    kinds, which = distinct_rows([trace.name_code[row[has]], dims])
    of_kind = np.array([_read(trace.names[name], trace.strings[text]) if text != NONE else (False, False)
                        for name, text in kinds], np.bool_).reshape(-1, 2)  # fmt: skip
    scalar[has], whole[has] = of_kind[which].T
    return scalar, whole


def _read(operator: str, shapes: str) -> tuple[bool, bool]:
    """Whether a call with these shapes works on single numbers, and whether it reduces all of its tensor."""
    single = "[" in shapes[1:] and all(size == "1" for size in re.findall(r"\d+", shapes))
    return single, _count(shapes) <= REDUCES_ALL.get(operator, -1)


def _count(shapes: str) -> int:
    """Arguments of a call whose shapes are written like `[[4, 4], [], []]`."""
    depth = found = 0
    for character in shapes:
        found += character == "[" and depth == 1
        depth += (character == "[") - (character == "]")
    return found


def _across_blocks(view: DeviceWindow, operations: Int64) -> Bool:
    """[k] a reduction of ATen's in which several blocks work on one output: a grid of more than one block in its second
    dimension."""
    trace, row = view.trace, view.timeline.row[operations]
    reduces = named(trace, trace.name_code[row], lambda name: "reduce_kernel" in name)
    grids = values_of([trace.texts.get("grid")], row)[0]
    known = present(grids[reduces & (grids != NONE)]).tolist()
    wide = [code for code in known if len(size := re.findall(r"\d+", trace.strings[code])) > 1 and int(size[1]) > 1]
    return np.asarray(reduces & np.isin(grids, wide), np.bool_)


def _light_runs(light: Bool, ends: Bool, stream: Int64) -> tuple[Int64, Int64]:
    """Where runs of light kernels begin among kernels by stream and start, and of how many each is: FEWEST to MOST. What
    `ends` a run is its last one."""
    joined = light[1:] & light[:-1] & (stream[1:] == stream[:-1]) & ~ends[:-1]
    first = np.flatnonzero(light & ~np.concatenate([[False], joined]))
    last = np.flatnonzero(light & ~np.concatenate([joined, [False]]))
    parts = (last - first) // MOST + 1
    begun = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    start = np.repeat(first, parts) + MOST * begun
    count = np.minimum(np.repeat(last, parts) - start + 1, MOST)
    return start[count >= FEWEST], count[count >= FEWEST]


def operators_of(view: DeviceWindow, operations: Int64) -> list[str]:
    """The operators that launched these operations, in order, repetitions in a row once."""
    timeline = view.timeline
    operators: list[str] = []
    for launch in timeline.launch[operations].tolist():
        row = int(timeline.host.operator[launch]) if launch != NONE else NONE
        if row != NONE and (not operators or operators[-1] != view.trace.label(row)):
            operators.append(view.trace.label(row))
    return operators
