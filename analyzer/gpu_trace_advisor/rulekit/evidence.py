"""The events behind a claim, as what people can look up: names, counts, first places, the line of Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import readable_host, user_line
from gpu_trace_advisor.attribution import HOST
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import counted, present
from gpu_trace_advisor.columns.intervals import Intervals, holds, overlaps, remainder
from gpu_trace_advisor.rulekit.rule import Evidence
from gpu_trace_advisor.trace.kernel_names import readable
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int64, Kind
from gpu_trace_advisor.units import duration

PLACES = 3  # first places shown: enough to find one in a viewer
WIDTH = 46  # characters of a name that stands for others too


def at_ms(view: DeviceWindow, instants: Sequence[int]) -> tuple[float, ...]:
    """Milliseconds from the trace's first event, of the first few."""
    return tuple(round((t - view.trace.origin_ns) / 1e6, 6) for t in sorted(instants)[:PLACES])


def python_line(view: DeviceWindow, row: int) -> str:
    """The user's line around a host record; empty where no stacks were recorded."""
    return user_line(view.timeline, int(view.timeline.host.frame[row])) if row != NONE else ""


class Stretches(NamedTuple):
    """Idle time by what the host did; k stretches of one launching thread, or of none."""

    row: Index
    """[k] the host's innermost record, or the last one before; -1 where nothing was recorded."""
    runs: Bool
    """[k] the record runs meanwhile; else it is over."""
    start: Int64
    ns: Int64
    whole: Int64
    """[k] ns of what it was cut from: idle time in which the host did the same all along."""


def stretches(view: DeviceWindow, causes: Sequence[str], inside: Intervals | None = None) -> Iterator[Stretches]:
    """The window's idle time of these causes, cut where the host's innermost record changes; only of what begins `inside`
    these spans (disjoint, in order), where told."""
    wanted, window, trace = [CODE[cause] for cause in causes], view.window, view.trace
    for part, ns in view.attribution.pieces.clipped(window.start_ns, window.end_ns):
        mine = np.flatnonzero((ns > 0) & np.isin(part.cause, wanted))
        if inside is not None:
            mine = mine[holds(inside, part.start[mine])]
        row, start = part.row[mine], np.maximum(part.start[mine], window.start_ns)
        end = start + ns[mine]
        # A piece may be several records that do the same, named by the longest of them.
        host = part.side[mine] == HOST
        meets = (row != NONE) & (trace.start_ns[row] < end) & (trace.end_ns[row] > start)
        several = host & meets & (trace.kind[row] != Kind.OS)
        runs = meets | (~host & (row != NONE))
        one = ~several
        yield Stretches(row[one], runs[one], start[one], (end - start)[one], (end - start)[one])
        for thread in present(trace.thread[row[several]]).tolist():
            at = np.flatnonzero(several & (trace.thread[row] == thread))
            yield from _by_record(view, row[at], Intervals(start[at], end[at]), thread)


def _by_record(view: DeviceWindow, row: Index, pieces: Intervals, thread: int) -> Iterator[Stretches]:
    segments, whole = view.timeline.host.segments[thread], pieces.end - pieces.start
    found = overlaps(pieces, segments.span)
    runs = np.ones(len(found.start), np.bool_)
    yield Stretches(segments.row[found.right], runs, found.start, found.end - found.start, whole[found.left])
    holes = remainder(pieces, found)
    last = row[holes.left]
    runs = (view.trace.start_ns[last] < holes.end) & (view.trace.end_ns[last] > holes.start)
    yield Stretches(last, runs, holes.start, holes.end - holes.start, whole[holes.left])


def of_causes(view: DeviceWindow, *causes: str, names: int = 3) -> tuple[Evidence, ...]:
    """The host records that most of the idle time of these causes rests on, the largest first; see `stretches`."""
    trace, (counts, totals) = view.trace, np.zeros((2, 2 * len(view.trace.names) + 1), np.int64)
    records = np.zeros((2, len(trace)), np.bool_)  # several stretches may rest on one
    for one in stretches(view, causes):
        code = _number(view, one)
        counts[0] += np.count_nonzero(code == 0)
        records[one.runs.astype(np.int8)[code != 0], one.row[code != 0]] = True
        np.add.at(totals, code, one.ns)
    for runs in (0, 1):
        counts[1 + runs :: 2] = np.bincount(trace.name_code[records[runs]], minlength=len(trace.names))
    found, codes = [], np.flatnonzero(counts)
    for code in codes[np.argsort(-totals[codes], kind="stable")[:names]].tolist():
        starts, row = _first_places(view, causes, code)
        what = readable_host(trace, row) if row != NONE else "nothing recorded"
        what = f"what follows {what}" if code % 2 else what
        places = at_ms(view, starts)
        found.append(Evidence(what, int(counts[code]), int(totals[code]), places, python_line(view, row)))
    return tuple(found)


def running(view: DeviceWindow, causes: Sequence[str], inside: Intervals, least_ns: int) -> str:
    """The record of the host that runs for at least `least_ns` of the idle time of these causes in these spans; else empty."""
    trace, ns = view.trace, np.zeros(len(view.trace.names), np.int64)
    row = np.full(len(ns), NONE, np.int64)
    for one in stretches(view, causes, inside):
        code = trace.name_code[one.row[one.runs]]
        np.add.at(ns, code, one.ns[one.runs])
        row[code] = one.row[one.runs]
    most = int(np.argmax(ns)) if len(ns) else 0
    return readable_host(trace, int(row[most])) if len(ns) and ns[most] >= max(least_ns, 1) else ""


def mostly(evidence: Evidence, ns: int) -> str:
    """How much of a time is in the first of what it rests on, in words."""
    part = evidence.ns or 0
    return (
        f"most of it in {evidence.what}" if 2 * part > ns else f"the largest part, {duration(part)}, in {evidence.what}"
    )


def _number(view: DeviceWindow, given: Stretches) -> Int64:
    """[k] the number of each record's name: odd for what follows it, even for what runs in it, and 0 without a record."""
    number = 1 + 2 * view.trace.name_code[given.row].astype(np.int64) + given.runs
    return np.where(given.row == NONE, 0, number)


def _first_places(view: DeviceWindow, causes: Sequence[str], wanted: int) -> tuple[list[int], int]:
    """Where idle time of these causes first rests on records of a name, see above; and the first of these records."""
    found: list[tuple[int, int]] = []
    for one in stretches(view, causes):
        mine = np.flatnonzero(_number(view, one) == wanted)[:PLACES]
        found += zip(one.start[mine].tolist(), one.row[mine].tolist(), strict=True)
    found.sort()
    return [start for start, _ in found[:PLACES]], found[0][1]


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
