"""Fixes for the operations of one study: kernels that get faster, or become one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analyzer.changes import Change, fused, scaled
from analyzer.fixes import Fix
from analyzer.graph import Graph
from analyzer.study import Study
from analyzer.trace import Int64

Floats = NDArray[np.float64]


def in_graph(study: Study, operations: Int64) -> Int64:
    """The graph's numbers of these operations of the timeline."""
    found: Int64 = np.searchsorted(study.graph.row, study.timeline.row[operations])
    return found


def one_each(
    study: Study, runs: Sequence[Int64], durations_ns: Sequence[int] | Int64, *, host: bool = True
) -> Change:  # fmt: skip
    """Each run of operations becomes one kernel of this many ns: `fused` for operations of the timeline.

    `runs` are of one run each [operations], or of several that are as long [runs, operations].
    """

    def change(graph: Graph) -> Graph:
        alike = [np.atleast_2d(run) for run in runs]
        operations = in_graph(study, np.concatenate([run.ravel() for run in alike]))
        counts = np.repeat([run.shape[1] for run in alike], [len(run) for run in alike])
        return fused(operations, counts, durations_ns, host=host)(graph)

    return change


def faster(
    study: Study, name: str, title: str, operations: Int64, low: Floats | float, high: Floats | float,
    assumes: Sequence[str] = (),
) -> Fix:  # fmt: skip
    """These operations take `low` (pessimistic) and `high` (optimistic) times as long as they do."""

    def change(factor: Floats | float) -> Change:
        return lambda graph: scaled(in_graph(study, operations), factor)(graph)

    return Fix(name, title, change(low), change(high), assumes=tuple(assumes))


def merged(
    study: Study, name: str, title: str, runs: Sequence[Int64], low: Sequence[int] | Int64, high: Sequence[int] | Int64,
    assumes: Sequence[str] = (),
) -> Fix:  # fmt: skip
    """Each run of operations becomes one kernel of this many ns, pessimistic and optimistic."""
    return Fix(name, title, one_each(study, runs, low), one_each(study, runs, high), assumes=tuple(assumes))


def of_kinds(study: Study, operations: Int64, fit: Sequence[bool]) -> Int64:
    """Those of the operations whose kind of work fits; one truth for each kind."""
    kind = study.inkernel.costs.kind[operations]
    found: Int64 = operations[np.array([*fit, False], np.bool_)[kind]]  # -1, no kind, is the last one
    return found


def lengths(study: Study, operations: Int64) -> Floats:
    """ns of each."""
    timeline = study.timeline
    return np.asarray(timeline.length[operations], np.float64)


def less(study: Study, operations: Int64, saved: Floats, share: float = 1.0) -> Floats:
    """What is left of each operation, as a share of its time, when `share` of these ns go."""
    length = np.maximum(lengths(study, operations), 1.0)
    return np.asarray(np.clip(1.0 - share * saved / length, 0.0, 1.0), np.float64)
