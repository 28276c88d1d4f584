"""Runs of memory-bound kernels that follow each other on a stream: what fusion could make one kernel of."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np

from analyzer.classes import dataclass
from analyzer.distinct import counted
from analyzer.intervals import grouped
from analyzer.kernels import kernel_class, readable
from analyzer.lookup import distinct_rows, named
from analyzer.study import Study
from analyzer.trace import NONE, Bool, Int64, Kind

LIGHT = frozenset({"elementwise", "normalization", "softmax", "reduction", "copy", "random"})
"""Classes of kernels that move data and hardly compute."""

FUSED_ALREADY = ("triton", "fused", "liger", "apex", "multi_tensor_apply", "cuapplylayernorm")
FEWEST = 3  # kernels of a chain: a pair is often one operator and its cast
MOST = 6  # … and at most: longer chains hardly ever share one iteration space, so they are cut


@lru_cache(maxsize=100_000)
def is_light(name: str) -> bool:
    """A memory-bound kernel that nobody fused yet."""
    lower = name.lower()
    return kernel_class(name) in LIGHT and not any(word in lower for word in FUSED_ALREADY)


@dataclass(frozen=True)
class Chain:
    """The same kernels one after the other, wherever they occur."""

    names: tuple[str, ...]
    places: Int64
    """[occurrences, kernels] operations (index into the timeline)."""
    ns: int
    """Time of all of them."""


def chains(study: Study) -> list[Chain]:
    """The chains of the window, most time first."""
    timeline, trace = study.timeline, study.trace
    on = study.operations[timeline.is_kernel[study.operations] & ~timeline.node[study.operations]]
    on = on[~in_optimizer(study, on)]
    on = on[np.lexsort((timeline.start[on], timeline.stream[on]))]
    names = trace.name_code[timeline.row[on]]
    start, count = _light_runs(named(trace, names, is_light), timeline.stream[on])
    member = np.arange(MOST)
    codes = np.where(member < count[:, None], names[np.minimum(start[:, None] + member, len(on) - 1)], NONE)
    kinds, kind = distinct_rows(list(codes.T))
    recorded = bool((trace.kind == Kind.OPERATOR).any())
    found = []
    for row, which in sorted(zip(kinds, grouped(kind, len(kinds)), strict=True), key=lambda pair: int(pair[1][0])):
        kernels = [code for code in row if code != NONE]
        if recorded or len(set(kernels)) > 1:  # one kernel again and again may be a program of its own
            places = on[start[which, None] + member[: len(kernels)]]
            told = tuple(readable(trace.names[code]) for code in kernels)
            found.append(Chain(told, places, int(timeline.length[places].sum())))
    return sorted(found, key=lambda chain: -chain.ns)


def _light_runs(light: Bool, stream: Int64) -> tuple[Int64, Int64]:
    """Where runs of light kernels begin among kernels by stream and start, and of how many each is: FEWEST to MOST."""
    joined = light[1:] & light[:-1] & (stream[1:] == stream[:-1])
    first = np.flatnonzero(light & ~np.concatenate([[False], joined]))
    last = np.flatnonzero(light & ~np.concatenate([joined, [False]]))
    parts = (last - first) // MOST + 1
    begun = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    start = np.repeat(first, parts) + MOST * begun
    count = np.minimum(np.repeat(last, parts) - start + 1, MOST)
    return start[count >= FEWEST], count[count >= FEWEST]


def in_optimizer(study: Study, operations: Int64) -> Bool:
    """[k] launched within an optimizer's step: what to do about those is not to fuse operators."""
    timeline, trace = study.timeline, study.trace
    rows = optimizer_steps(study)
    if not len(rows):
        return np.zeros(len(operations), np.bool_)
    start, reach = trace.start_ns[rows], np.maximum.accumulate(trace.end_ns[rows])
    begun = np.where(timeline.linked[operations], trace.start_ns[timeline.launch[operations]], NONE)
    at = np.searchsorted(start, begun, side="right") - 1
    return np.asarray((at >= 0) & (begun < reach[np.maximum(at, 0)]), np.bool_)


def optimizer_steps(study: Study) -> Int64:
    """Rows of the records that mark an optimizer's step."""
    trace = study.trace
    steps = np.array([name.startswith("Optimizer.step") for name in trace.names], np.bool_)
    if not steps.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(trace.name_mask(steps) & ((trace.kind == Kind.OPERATOR) | (trace.kind == Kind.RANGE)))


def operators_of(study: Study, operations: Int64) -> list[str]:
    """The operators that launched these operations, in order, repetitions in a row once."""
    timeline = study.timeline
    told: list[str] = []
    for launch in timeline.launch[operations].tolist():
        row = int(timeline.host.operator[launch]) if launch != NONE else NONE
        if row != NONE and (not told or told[-1] != study.trace.label(row)):
            told.append(study.trace.label(row))
    return told


def ns_by_class(study: Study) -> Counter[str]:
    """ns of the window's kernels by class."""
    timeline, on = study.timeline, study.operations[study.timeline.is_kernel[study.operations]]
    sums: Counter[str] = Counter()
    names = study.trace.name_code[timeline.row[on]]
    codes, which, _ = counted(names)
    ns = np.zeros(len(codes), np.int64)
    np.add.at(ns, which, timeline.length[on])
    for code, total in zip(codes.tolist(), ns.tolist(), strict=True):
        sums[kernel_class(study.trace.names[code])] += total
    return sums
