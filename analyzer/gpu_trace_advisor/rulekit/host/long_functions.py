"""Functions of Python that run for a while before the next launch, and the GPU has nothing to do."""

from __future__ import annotations

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import numbered
from gpu_trace_advisor.rulekit.evidence import stretches
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import NONE, Index, Int64

FROM = 0.03  # of the wall in one function: less is not worth a line of its own
LONG_NS = 50_000  # without anything else: shorter ones are what Python does between the launches
MOST = 3  # are told


@dataclass(frozen=True)
class LongFunction:
    """All idle time that rests on a function of one name, or on a range in which nothing else was recorded."""

    row: Index
    """[k] its records."""
    start: Int64
    ns: Int64
    is_range: bool


def long_functions(view: DeviceWindow) -> list[LongFunction]:
    """Those of the window, most time first.

    What lies between operators of no frame rests on the record before it, which says nothing of a function; a module's
    own record stands for all that the model does there.
    """
    doing, module = view.timeline.host.doing, view.timeline.host.module
    found = []
    for one in stretches(view, ["python"]):
        function = np.isin(doing[one.row], (HostActivity.PYTHON, HostActivity.RANGE)) & (module[one.row] != one.row)
        length = np.where(module[one.row] == NONE, one.whole, one.ns)  # inside a model calls follow each other
        mine = np.flatnonzero(one.runs & function & (length >= LONG_NS))
        found += [(one.row[mine], one.start[mine], one.ns[mine])] * bool(len(mine))
    if not found:
        return []
    row, start, ns = (np.concatenate(columns) for columns in zip(*found, strict=True))
    names, of = numbered(view.trace.name_code[row])
    total = np.zeros(len(names), np.int64)
    np.add.at(total, of, ns)
    most = [of == name for name in np.argsort(-total, kind="stable")[:MOST].tolist()]
    return [
        LongFunction(row[mine], start[mine], ns[mine], bool(doing[row[mine][0]] == HostActivity.RANGE))
        for mine in most
        if ns[mine].sum() >= FROM * view.window.wall_ns
    ]
