"""What is known of boxes, once for all that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import readable_host
from gpu_trace_advisor.attribution import SIDES, Pieces
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.drawing.calling import MODULE, Callers
from gpu_trace_advisor.drawing.model import Detail
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.kernel_names import kernel_class, readable
from gpu_trace_advisor.trace.lookup import distinct_rows, values_at
from gpu_trace_advisor.trace.model import NONE, Index, Int64, Kind, Trace

HOST_COLOURS = {
    HostActivity.PROFILER: "profiler", HostActivity.GARBAGE: "garbage-collection", HostActivity.DATALOADER: "dataloader",
    HostActivity.COMPILE: "compile", HostActivity.SYNC: "host-sync", HostActivity.COPY_CALL: "copies",
    HostActivity.ALLOCATOR: "allocator", HostActivity.MODULE: "module-load", HostActivity.CALL: "host-call",
    HostActivity.OPERATOR: "host-operator", HostActivity.PYTHON: "host-python", HostActivity.RANGE: "host-range",
    HostActivity.STEP: "host-range", HostActivity.WAITING: "host-waiting", HostActivity.NOTHING: "host-waiting",
}  # fmt: skip


@dataclass
class Details:
    """Details by the order in which they were first asked for."""

    found: list[Detail] = field(default_factory=list)
    place: dict[Detail, int] = field(default_factory=dict)

    def code(self, detail: Detail) -> int:
        code = self.place.setdefault(detail, len(self.found))
        if code == len(self.found):
            self.found.append(detail)
        return code

    def codes(self, each: Sequence[Detail]) -> Int64:
        return np.array([self.code(one) for one in each], np.int64)


def text_codes(trace: Trace, argument: str, rows: Index) -> Int64:
    """[k] index into `trace.strings` of a text argument, -1 where a row has none."""
    return values_at(trace.texts.get(argument), rows)


def operation_details(view: DeviceWindow, callers: Callers, details: Details) -> Int64:
    """[m] the detail of each operation of the timeline."""
    timeline, trace, host = view.timeline, view.trace, view.timeline.host
    linked = timeline.linked
    launch = np.where(linked, timeline.launch, 0)
    node = np.where(linked, callers.of_row[launch], 0)
    operator = np.where(linked, host.operator[launch], NONE)
    shapes = text_codes(trace, "Input Dims", operator)
    shapes = np.where(operator == NONE, NONE, shapes)
    grid, block = (text_codes(trace, name, timeline.row) for name in ("grid", "block"))
    distinct, which = distinct_rows([trace.name_code[timeline.row], timeline.op_class, node, shapes, grid, block])
    ideal, known = view.inkernel.claims[0], view.inkernel.modelled
    count = len(distinct)
    reached = np.bincount(which, np.where(known, ideal, 0.0), count)
    took = np.bincount(which, np.where(known, timeline.length, 0), count)
    codes = np.empty(count, np.int64)
    for i, (name, op_class, at, shape, wide, threads) in enumerate(distinct):
        full, short = trace.names[name], readable(trace.names[name])
        codes[i] = details.code(
            Detail(
                short, _colour(full, op_class), "" if full == short else full, *callers.stack(at), _text(trace, shape),
                _text(trace, wide), _text(trace, threads), min(reached[i] / took[i], 1.0) if took[i] else None,
            )
        )  # fmt: skip
    return codes[which]


def _colour(name: str, op_class: int) -> str:
    if op_class in (COMPUTE, COMMUNICATION):
        return kernel_class(name)
    return "copies"


def _text(trace: Trace, code: int) -> str:
    return trace.strings[code] if code != NONE else ""


def host_details(
    trace: Trace, doing: NDArray[np.int8], rows: Index, callers: Callers | None, details: Details
) -> Int64:
    """[k] the detail of each host row."""
    node = callers.of_row[rows] if callers else np.zeros(len(rows), np.int64)
    shapes = text_codes(trace, "Input Dims", rows)
    distinct, which = distinct_rows([trace.name_code[rows], doing[rows], trace.kind[rows], node, shapes])
    first = np.zeros(len(distinct), np.int64)
    first[which[::-1]] = rows[::-1]
    codes = np.empty(len(distinct), np.int64)
    for i, (_, op_class, kind, at, shape) in enumerate(distinct):
        name = readable_host(trace, int(first[i]))
        operator, stack = callers.stack(at) if callers else ("", ())
        name = name.removeprefix(MODULE)
        colour = (
            "host-module" if op_class == HostActivity.PYTHON and trace.label(int(first[i])).startswith(MODULE) else ""
        )
        codes[i] = details.code(
            Detail(
                name, colour or HOST_COLOURS[HostActivity(op_class)], "", "" if kind == Kind.OPERATOR else operator,
                tuple(one for one in stack if one != name), _text(trace, shape),
            )
        )  # fmt: skip
    return codes[which] if len(distinct) else np.empty(0, np.int64)


def idle_details(view: DeviceWindow, pieces: Pieces, callers: Callers, details: Details) -> Int64:
    """[k] the detail of each piece of idle time."""
    trace, row = view.trace, pieces.row
    name = np.where(row == NONE, NONE, trace.name_code[row])
    node = np.where(row == NONE, 0, callers.of_row[row])
    distinct, which = distinct_rows([pieces.cause, pieces.side, pieces.modelled.astype(np.int8), name, node])
    first = np.zeros(len(distinct), np.int64)
    first[which[::-1]] = row[::-1]
    codes = np.empty(len(distinct), np.int64)
    for i, (cause, side, modelled, named, at) in enumerate(distinct):
        evidence = readable_host(trace, int(first[i])) if named != NONE else ""
        operator, stack = callers.stack(at)
        codes[i] = details.code(
            Detail(
                evidence, IDLE[cause], "", operator if operator != evidence else "", stack, cause=IDLE[cause],
                side=SIDES[side], grade="modelled" if modelled else "measured",
            )
        )  # fmt: skip
    return codes[which] if len(distinct) else np.empty(0, np.int64)
