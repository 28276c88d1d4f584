"""Which operations wait for those of another stream, by the events that streams wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_trace_advisor.columns.compact import where
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.graph.operations import Operations, calls_of
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.host import Host
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind, Trace


@dataclass(frozen=True)
class Waits:
    """Operations that an event holds back until another one has ended."""

    source: Int64
    waiter: Int64
    named: Bool
    """The recording says which event."""


@dataclass(frozen=True)
class _Lane:
    """The operations of one stream, in order."""

    device: int
    stream: int
    operation: Int64
    launched: Int64
    """Start of the launch call, never before an earlier one's."""
    ended: Int64
    """End, never before an earlier one's."""


def event_waits(trace: Trace, process: int, host: Host, operations: Operations) -> Waits:
    """What streams wait for: the event that the recording names, else everything earlier on the other streams."""
    matches = np.array(["streamwaitevent" in name.lower() for name in trace.names], np.bool_)
    calls = where(trace.kind == Kind.CALL)
    calls = calls[matches[trace.name_code[calls]] & np.isin(trace.thread[calls], host.launching)]
    found: list[tuple[Int64, Int64, bool]] = []
    if len(calls):
        lanes = _lanes(operations)
        named = _named_waits(trace, process, calls, lanes, operations, found)
        unnamed = calls[~np.isin(calls, named)]
        _unnamed_waits(trace, unnamed, lanes, operations, found)
    source, waiter = (np.concatenate([np.empty(0, np.int64), *(part[i] for part in found)]) for i in (0, 1))
    is_named = np.repeat([part[2] for part in found], [len(part[0]) for part in found]).astype(np.bool_)
    real = (operations.lane[source] != operations.lane[waiter]) & (operations.end[source] <= operations.start[waiter])
    source, waiter, is_named = source[real], waiter[real], is_named[real]
    # Each pair once, as named where it is.
    order = np.lexsort((~is_named, source, waiter))
    source, waiter, is_named = source[order], waiter[order], is_named[order]
    new = (np.diff(source, prepend=-1) != 0) | (np.diff(waiter, prepend=-1) != 0)
    return Waits(source[new], waiter[new], is_named[new])


def _lanes(operations: Operations) -> list[_Lane]:
    order = operations.by_lane
    low = np.iinfo(np.int64).min
    launched = np.where(operations.linked, operations.launch_start(), low)
    runs = np.split(order, np.flatnonzero(np.diff(operations.lane[order])) + 1) if len(order) else []
    return [
        _Lane(
            int(operations.device[mine[0]]), int(operations.trace.stream[operations.row[mine[0]]]), mine,
            np.maximum.accumulate(launched[mine]), np.maximum.accumulate(operations.end[mine]),
        )
        for mine in runs
    ]  # fmt: skip


def _named_waits(
    trace: Trace, process: int, calls: Int64, lanes: Sequence[_Lane], operations: Operations,
    found: list[tuple[Int64, Int64, bool]],
) -> Int64:  # fmt: skip
    """Adds the waits whose event the recording names; returns the rows of their calls."""
    keys = ("wait_on_cuda_event_record_corr_id", "wait_on_stream")
    if any(key not in trace.integers for key in keys):
        return np.empty(0, np.int64)
    recorded = trace.integers[keys[0]]
    mine = trace.process[recorded.rows] == process
    row, record = recorded.rows[mine], recorded.values[mine].astype(np.int64)
    on = trace.integers[keys[1]].at(row)
    call, source_call = (calls_of(trace, process, ids) for ids in (trace.correlation[row], record))
    # -1 is unknown; an id from the future belongs to another session.
    known = (call != NONE) & (source_call != NONE) & (record <= trace.correlation[row]) & np.isin(call, calls)
    call, source_call, on, row = call[known], source_call[known], on[known], row[known]
    device, stream = trace.device[row].astype(np.int64), trace.stream[row]
    ordinal = {lane.device: int(trace.device[operations.row[lane.operation[0]]]) for lane in lanes}
    usable = np.zeros(len(call), np.bool_)
    for waiting in lanes:
        here = (stream == waiting.stream) & ((device == ordinal[waiting.device]) | (device == NONE))
        usable |= here
        for lane in lanes:
            pairs = np.flatnonzero(here & (on == lane.stream) & (lane.device == waiting.device))
            k = np.searchsorted(waiting.launched, trace.start_ns[call[pairs]], side="left")
            j = np.searchsorted(lane.launched, trace.start_ns[source_call[pairs]], side="left") - 1
            real = (k < len(waiting.operation)) & (j >= 0)
            found.append((lane.operation[j[real]], waiting.operation[k[real]], True))
    found_calls: Int64 = ascending(call[usable])
    return found_calls


def _unnamed_waits(
    trace: Trace, calls: Int64, lanes: Sequence[_Lane], operations: Operations,
    found: list[tuple[Int64, Int64, bool]],
) -> None:  # fmt: skip
    """The next operation that the thread launches waits for everything earlier on the other streams of its device."""
    submitted = np.flatnonzero(operations.first)
    thread, begun = trace.thread[operations.launch[submitted]], operations.launch_start(submitted)
    for one in np.flatnonzero(np.bincount(trace.thread[calls])).tolist():
        here = np.flatnonzero(thread == one)
        here = here[np.argsort(begun[here], kind="stable")]
        since = trace.start_ns[calls[trace.thread[calls] == one]]
        k = np.searchsorted(begun[here], since, side="left")
        since, waiter = since[k < len(here)], submitted[here[k[k < len(here)]]]
        for lane in lanes:
            mine = operations.device[waiter] == lane.device
            j = np.searchsorted(lane.launched, since, side="left")
            j = np.minimum(j, np.searchsorted(lane.ended, operations.start[waiter], side="right")) - 1
            mine &= j >= 0
            found.append((lane.operation[j[mine]], waiter[mine], False))
