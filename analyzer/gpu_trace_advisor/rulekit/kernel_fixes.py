"""Fixes for the operations of one view: kernels that get faster, or become one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import clip, total, union
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.replay.changes import Change, fused, scaled
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.trace.model import Int64

Floats = NDArray[np.float64]


def in_graph(view: DeviceWindow, operations: Int64) -> Int64:
    """The graph's numbers of these operations of the timeline."""
    found: Int64 = np.searchsorted(view.graph.row, view.timeline.row[operations])
    return found


def one_each(
    view: DeviceWindow, runs: Sequence[Int64], durations_ns: Sequence[int] | Int64, *, host: bool = True
) -> Change:  # fmt: skip
    """Each run of operations becomes one kernel of this many ns: `fused` for operations of the timeline.

    `runs` are of one run each [operations], or of several that are as long [runs, operations].
    """

    def change(graph: Graph) -> Graph:
        alike = [np.atleast_2d(run) for run in runs]
        operations = in_graph(view, np.concatenate([run.ravel() for run in alike]))
        counts = np.repeat([run.shape[1] for run in alike], [len(run) for run in alike])
        return fused(operations, counts, durations_ns, host=host)(graph)

    return change


def faster(
    view: DeviceWindow, name: str, title: str, operations: Int64, low: Floats | float, high: Floats | float,
    assumes: Sequence[str] = (), least_ns: Floats | float = 0.0,
) -> Fix:  # fmt: skip
    """These operations take `low` (pessimistic) and `high` (optimistic) times as long as they do; together with other fixes
    no less than `least_ns`, so that none counts time that another one has taken."""

    def change(factor: Floats | float) -> Change:
        return lambda graph: scaled(in_graph(view, operations), factor, least_ns)(graph)

    return Fix(name, title, change(low), change(high), assumes=tuple(assumes))


def merged(
    view: DeviceWindow, name: str, title: str, runs: Sequence[Int64], low: Sequence[int] | Int64, high: Sequence[int] | Int64,
    assumes: Sequence[str] = (),
) -> Fix:  # fmt: skip
    """Each run of operations becomes one kernel of this many ns, pessimistic and optimistic."""
    return Fix(name, title, one_each(view, runs, low), one_each(view, runs, high), assumes=tuple(assumes))


def of_kinds(view: DeviceWindow, operations: Int64, fit: Sequence[bool]) -> Int64:
    """Those of the operations whose kind of work fits; one truth for each kind."""
    kind = view.inkernel.costs.kind[operations]
    found: Int64 = operations[np.array([*fit, False], np.bool_)[kind]]  # -1, no kind, is the last one
    return found


def running_time(view: DeviceWindow, operations: Int64) -> int:
    """ns of the window in which at least one of these operations runs: what several streams run at once counts once."""
    timeline, window = view.timeline, view.window
    return total(clip(union(timeline.start[operations], timeline.end[operations]), window.start_ns, window.end_ns))


def less(view: DeviceWindow, operations: Int64, saved: Floats, share: float = 1.0) -> Floats:
    """What is left of each operation, as a share of its time, when `share` of these ns go."""
    length = np.maximum(view.time_of(operations), 1.0)
    return np.asarray(np.clip(1.0 - share * saved / length, 0.0, 1.0), np.float64)
