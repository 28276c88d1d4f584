"""How many blocks and threads a kernel was launched with, and whether that is enough to keep the device at work."""

from __future__ import annotations

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.roofline.occupancy import size_of
from gpu_trace_advisor.trace.lookup import distinct_rows, values_of
from gpu_trace_advisor.trace.model import Bool, Int64

EIGHTH = 8  # of the SMs: with blocks for no more, nearly all of the device has nothing to do
THREADS_OF_ONE_SM = 2048  # at most, on any device: fewer in all leave every SM but one nearly empty


def launch_size(view: DeviceWindow, operations: Int64) -> tuple[Int64, Int64]:
    """[k], [k] blocks, and threads of each, of these operations; -1 where the recording does not say."""
    trace = view.trace
    columns = [trace.texts.get(name) for name in ("grid", "block")]
    distinct, which = distinct_rows(values_of(columns, view.timeline.row[operations]))
    sizes = np.array([[size_of(trace, code) for code in codes] for codes in distinct], np.int64).reshape(-1, 2)
    blocks, threads = sizes[which].T
    return blocks, threads


def nearly_empty(view: DeviceWindow, operations: Int64) -> Bool:
    """[k] launched with so few blocks that most SMs have none, or so few threads that one SM could hold them all."""
    blocks, threads = launch_size(view, operations)
    known = (blocks > 0) & (threads > 0)  # recorders of AMD write zeros for what they do not know
    few = blocks * threads < THREADS_OF_ONE_SM
    if sms := view.inkernel.sms:
        few = few | (blocks * EIGHTH <= sms)
    return np.asarray(known & few, np.bool_)
