"""The events behind a claim, as what people can look up: names, counts, first places, the line of Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import readable_host, user_line
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import counted
from gpu_trace_advisor.rulekit.rule import Evidence
from gpu_trace_advisor.trace.kernel_names import readable
from gpu_trace_advisor.trace.model import NONE, Index, Int64

PLACES = 3  # first places shown: enough to find one in a viewer
WIDTH = 46  # characters of a name that stands for others too


def at_ms(view: DeviceWindow, instants: Sequence[int]) -> tuple[float, ...]:
    """Milliseconds from the trace's first event, of the first few."""
    return tuple(round((t - view.trace.origin_ns) / 1e6, 6) for t in sorted(instants)[:PLACES])


def python_line(view: DeviceWindow, row: int) -> str:
    """The user's line around a host record; empty where no stacks were recorded."""
    return user_line(view.timeline, int(view.timeline.host.frame[row])) if row != NONE else ""


def of_causes(view: DeviceWindow, *causes: str, names: int = 3) -> tuple[Evidence, ...]:
    """The host records that most of the idle time of these causes rests on, the largest first."""
    trace, counts, totals = view.trace, *np.zeros((2, len(view.trace.names) + 1), np.int64)
    records = np.zeros(len(trace), np.bool_)  # several stretches may rest on one
    for code, rows, _, ns in _resting_on(view, causes):
        counts[0] += np.count_nonzero(code == 0)
        records[rows[code != 0]] = True
        np.add.at(totals, code, ns)
    counts[1:] = np.bincount(trace.name_code[records], minlength=len(trace.names))
    found, codes = [], np.flatnonzero(counts)
    for code in codes[np.argsort(-totals[codes], kind="stable")[:names]].tolist():
        starts, row = _first_places(view, causes, code)
        what = readable_host(trace, row) if row != NONE else "nothing recorded"
        places = at_ms(view, starts)
        found.append(Evidence(what, int(counts[code]), int(totals[code]), places, python_line(view, row)))
    return tuple(found)


def _resting_on(view: DeviceWindow, causes: Sequence[str]) -> Iterator[tuple[Index, Index, Int64, Int64]]:
    """Of the idle time of these causes in the window, block by block: the number of the deciding record's name, from 1 on
    and 0 where there is none; the record, the start, and ns inside the window."""
    wanted = [CODE[cause] for cause in causes]
    for part, ns in view.attribution.pieces.clipped(view.window.start_ns, view.window.end_ns):
        mine = np.flatnonzero((ns > 0) & np.isin(part.cause, wanted))
        rows = part.row[mine]
        yield np.where(rows == NONE, 0, view.trace.name_code[rows] + 1), rows, part.start[mine], ns[mine]


def _first_places(view: DeviceWindow, causes: Sequence[str], wanted: int) -> tuple[list[int], int]:
    """Where idle time of these causes first rests on records of a name, see above; and the first of these records."""
    starts, rows = list[int](), list[int]()
    for code, row, start, _ in _resting_on(view, causes):
        first = np.flatnonzero(code == wanted)[: PLACES - len(starts)]
        starts += start[first].tolist()
        rows += row[first].tolist()
        if len(starts) == PLACES:
            break
    return starts, rows[0]


def of_rows(view: DeviceWindow, rows: Int64, what: str = "") -> Evidence:
    """Host records; named by the first of them, and how many other names there are, unless told."""
    trace = view.trace
    name = what or (readable_host(trace, int(rows[0])) if len(rows) else "")
    name += "" if what else _and_others(len(counted(trace.name_code[rows])[0]) - 1)
    ns = int((trace.end_ns[rows] - trace.start_ns[rows]).sum())
    starts = trace.start_ns[rows[:PLACES]].tolist()
    return Evidence(name, len(rows), ns, at_ms(view, starts), python_line(view, int(rows[0])) if len(rows) else "")


def of_operations(view: DeviceWindow, operations: Int64, what: str = "") -> Evidence:
    """Device operations (index into the timeline); named by the most frequent of them, and how many other names there are,
    unless told."""
    timeline = view.timeline
    name = what or _most_frequent(view, operations)
    ns = int(view.time_of(operations).sum())
    launch = next((row for row in timeline.launch[operations].tolist() if row != NONE), NONE)
    starts = np.sort(timeline.start[operations])[:PLACES].tolist()
    return Evidence(name, len(operations), ns, at_ms(view, starts), python_line(view, launch))


def _most_frequent(view: DeviceWindow, operations: Int64) -> str:
    """The name that most of the operations have, of several the one that comes first; empty without operations."""
    names = view.trace.name_code[view.timeline.row[operations]]
    codes, which, counts = counted(names)
    if not len(codes):
        return ""
    others = len({_called(view.trace.names[code], 200) for code in codes.tolist()}) - 1
    return _called(view.trace.names[names[np.argmax(counts[which])]], WIDTH if others else 60) + _and_others(others)


def _called(name: str, width: int) -> str:
    """A kernel without its templates; a copy with the memory that it reads."""
    return name if name.startswith("Memcpy") else readable(name, width)


def _and_others(count: int) -> str:
    return f" and {count} other{'s' * (count > 1)}" if count > 0 else ""
