"""Where the work of a window repeats on the device: from the end of one repeat's GPU work to the end of the next one's."""

from __future__ import annotations

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import Intervals, grouped
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import covered
from gpu_trace_advisor.trace.model import Int64


@dataclass(frozen=True)
class Repeats:
    """The same work several times, in time order; k of them."""

    spans: Intervals
    """[k] from where the GPU work before ends to where its own does. The first one has only its own: what came before it,
    loading or a first iteration, is no repeat."""
    idle_ns: int
    """Median time without GPU work in one that has another before it."""

    def __len__(self) -> int:
        return len(self.spans.start)


NONE = Repeats(Intervals(np.empty(0, np.int64), np.empty(0, np.int64)), 0)


def repeats(view: DeviceWindow) -> Repeats:
    """The repeats of a window: its marked steps, else the periods of its launch sequence; none where nothing repeats."""
    parts = _steps(view) if view.window.kind == "steps" else _periods(view)
    if len(parts) < 2:
        return NONE
    timeline = view.timeline
    starts = [int(timeline.start[part].min()) for part in parts]
    ends = np.maximum.accumulate([int(timeline.end[part].max()) for part in parts])
    spans = Intervals(np.minimum(np.concatenate([starts[:1], ends[:-1]]), ends), ends)
    start, end = spans.start[1:], spans.end[1:]
    return Repeats(spans, int(np.median(end - start - covered(Intervals(start, end), timeline.busy))))


def _steps(view: DeviceWindow) -> list[Int64]:
    """The operations of each kept step."""
    kept = [i for i, step in enumerate(view.steps) if step.left_out is None]
    of_each = grouped(view.of_step[view.operations], len(view.steps))
    return [view.operations[of_each[i]] for i in kept if len(of_each[i])]


def _periods(view: DeviceWindow) -> list[Int64]:
    """The operations of each period of the launch sequence."""
    found = view.repetition
    if found.count < 2:
        return []
    timeline, mine = view.timeline, view.operations
    begun = np.where(timeline.linked, view.trace.start_ns[timeline.launch], timeline.start)[mine]
    ordered = mine[np.lexsort((timeline.start[mine], begun))][found.before :]
    length = round(found.operations)
    return [ordered[i * length : (i + 1) * length] for i in range(found.count)]
