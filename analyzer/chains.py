"""Runs of memory-bound kernels that follow each other on a stream: what fusion could make one kernel of."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from analyzer.kernels import kernel_class, readable
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
    places: tuple[Int64, ...]
    """Operations (index into the timeline) of each occurrence."""
    ns: int
    """Time of all of them."""


def chains(study: Study, fewest: int = FEWEST) -> list[Chain]:
    """The chains of the window, most time first."""
    timeline, trace = study.timeline, study.trace
    on = study.operations[timeline.is_kernel[study.operations] & ~timeline.node[study.operations]]
    on = on[~in_optimizer(study, on)]
    on = on[np.lexsort((timeline.start[on], timeline.stream[on]))]
    names = trace.name_code[timeline.row[on]]
    light = np.zeros(len(trace.names), np.bool_)
    for code in np.unique(names).tolist():
        light[code] = is_light(trace.names[code])
    same = np.concatenate([[False], timeline.stream[on][1:] == timeline.stream[on][:-1]]) if len(on) else on > 0
    places: dict[tuple[int, ...], list[Int64]] = defaultdict(list)
    run: list[int] = []
    for at, (code, joined) in enumerate(zip(names.tolist(), same.tolist(), strict=True)):
        if run and (not joined or not light[code] or len(run) == MOST):
            if len(run) >= fewest:
                places[tuple(names[run].tolist())].append(on[run])
            run = []
        if light[code]:
            run.append(at)
    if len(run) >= fewest:
        places[tuple(names[run].tolist())].append(on[run])
    length = timeline.length
    recorded = bool((trace.kind == Kind.OPERATOR).any())
    found = [
        Chain(
            tuple(readable(trace.names[code]) for code in codes), tuple(where), int(sum(length[w].sum() for w in where))
        )
        for codes, where in places.items()
        if recorded or len(set(codes)) > 1  # one kernel again and again may be a program of its own
    ]
    return sorted(found, key=lambda chain: -chain.ns)


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
    named = np.array([name.startswith("Optimizer.step") for name in trace.names], np.bool_)
    return np.flatnonzero(trace.name_mask(named) & np.isin(trace.kind, (Kind.OPERATOR, Kind.RANGE)))


def operators_of(study: Study, operations: Int64) -> list[str]:
    """The operators that launched these operations, in order, repetitions in a row once."""
    timeline = study.timeline
    told: list[str] = []
    for launch in timeline.launch[operations].tolist():
        row = int(timeline.host.operator[launch]) if launch != NONE else NONE
        if row != NONE and (not told or told[-1] != study.trace.label(row)):
            told.append(study.trace.label(row))
    return told


def graph_index(study: Study, operations: Int64) -> Int64:
    """Indices in the study's graph of operations of its timeline."""
    at = np.searchsorted(study.graph.row, study.timeline.row[operations])
    return np.asarray(at, np.int64)


def most_common_class(study: Study) -> Counter[str]:
    """ns of the window's kernels by class."""
    timeline, on = study.timeline, study.operations[study.timeline.is_kernel[study.operations]]
    sums: Counter[str] = Counter()
    names = study.trace.name_code[timeline.row[on]]
    length = timeline.length[on]
    for code in np.unique(names).tolist():
        sums[kernel_class(study.trace.names[code])] += int(length[names == code].sum())
    return sums
