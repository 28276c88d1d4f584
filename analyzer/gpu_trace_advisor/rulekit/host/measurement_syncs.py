"""Synchronisations that belong to who measures, not to the program that is measured."""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import user_line
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.compact import where
from gpu_trace_advisor.replay.fixes import plain_synchronisations
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

MEASURES = re.compile(r"profil|bench|timeit|timing|timer|measure|stopwatch", re.I)  # in the line of who measures


def measures(view: DeviceWindow, rows: Int64) -> Bool:
    """[k] the call belongs to a profiler or a timing harness: by its line of Python, or by its place between steps."""
    timeline, trace = view.timeline, view.trace
    frames, which = np.unique(timeline.host.frame[rows], return_inverse=True)
    lines = [user_line(timeline, frame) for frame in frames.tolist()]
    named = np.array([MEASURES.search(line) is not None for line in lines], np.bool_)[which]
    reads = timeline.host.operator[rows] != NONE  # .item() and the like: what waits inside an operator wants the value
    reads |= ~among(rows, plain_synchronisations(view.graph))
    linked = where(timeline.linked)
    step = view.of_step[linked]
    if view.steps_from or not (step != NONE).any():  # where none is marked, the window is one
        step = np.where(among(linked, view.operations), np.int8(0), np.int8(NONE))
    launched = trace.start_ns[timeline.launch[linked]]
    if (launched[1:] < launched[:-1]).any():
        order = np.argsort(launched, kind="stable")
        launched, step = launched[order], step[order]
    after = np.searchsorted(launched, trace.start_ns[rows])
    step = np.append(step, step.dtype.type(NONE))
    last, following = np.where(after == 0, NONE, step[after - 1]), step[after]
    return np.asarray(named | ((last != following) & ~reads), np.bool_)
