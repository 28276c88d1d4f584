"""Whether the device is known to have had nothing to do when an operation was submitted.

Then nothing that the recording lacks can have held the operation back, and a long wait is the device's own: WSL2 hands
work over late, a first launch loads code, another process has the device. Known from two things, if no launch since then
lost its operation:

    a synchronisation that returned before      what was launched before it is done
    the start of the process or the context     there was no work before

That the operation before on the same stream has ended proves nothing: work of another stream may fill the device.
"""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.analysis.summary import lost_launches
from gpu_trace_advisor.attribution import Attribution
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.timelines.host import CONTEXT_NS, HostActivity
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind

CONTEXT = re.compile(r"^(?:cu|hip)Init|Ctx(?:Create|Retain)|PrimaryCtxRetain", re.IGNORECASE)
NEVER = np.iinfo(np.int64).min
ALL = -2  # streams


def proven_empty(attribution: Attribution, operations: Int64) -> Bool:
    """[k] for operations (index into the timeline) with a launch."""
    timeline = attribution.timeline
    trace = timeline.trace
    if not len(operations):
        return np.zeros(0, np.bool_)
    launched = trace.start_ns[timeline.launch[operations]]
    proof = np.maximum(_context(attribution, launched), _synchronised(attribution, operations, launched))
    lost = np.sort(trace.start_ns[lost_launches(timeline)])
    between = np.searchsorted(lost, launched, side="left") - np.searchsorted(lost, proof, side="right")
    return np.asarray((proof != NEVER) & (between == 0), np.bool_)


def _last(instants: Int64, before: Int64) -> Int64:
    """[k] the last of these instants by then, NEVER where there is none."""
    instants = np.sort(instants)
    at = np.searchsorted(instants, before, side="right") - 1
    return np.where(at >= 0, instants[at], NEVER) if len(instants) else np.full(len(before), NEVER)


def _context(attribution: Attribution, launched: Int64) -> Int64:
    """When the context that launches was there; only one after whose start nothing ran yet says anything."""
    timeline = attribution.timeline
    trace, doing = timeline.trace, timeline.host.doing
    calls = np.flatnonzero((trace.kind == Kind.CALL) & (trace.process == timeline.process))
    created = named(trace, trace.name_code[calls], lambda name: CONTEXT.search(name) is not None)
    long = (doing[calls] == HostActivity.MODULE) & (trace.end_ns[calls] - trace.start_ns[calls] > CONTEXT_NS)
    first = trace.end_ns[calls[created | long]]
    first = first[first <= timeline.span_ns[0]]
    return _last(first, launched)


def _synchronised(attribution: Attribution, operations: Int64, launched: Int64) -> Int64:
    """When a synchronisation with the operation's stream, or with all, last returned. One with an event proves nothing: the
    event may be an old one."""
    timeline, blocking = attribution.timeline, attribution.blocking
    trace, proof = timeline.trace, np.full(len(operations), NEVER)
    codes = trace.name_code[blocking.row]
    of_event = named(trace, codes, lambda name: "eventsync" in name.lower())
    of_stream = named(trace, codes, lambda name: "streamsync" in name.lower())
    stream = np.where(blocking.is_copy | of_stream, _stream_of(attribution), ALL)
    for one in ascending(timeline.stream[operations]).tolist():
        mine = timeline.stream[operations] == one
        rows = blocking.row[~of_event & ((stream == ALL) | (stream == one))]
        proof[mine] = _last(trace.end_ns[rows], launched[mine])
    return proof


def _stream_of(attribution: Attribution) -> Int64:
    """[q] the stream that each blocking call waits for, as its record on the device tells, else that of the last operation
    that its thread launched."""
    timeline, row = attribution.timeline, attribution.blocking.row
    trace = timeline.trace
    found = np.full(len(row), NONE)
    linked = np.flatnonzero(timeline.linked)
    launch = timeline.launch[linked]
    for thread in ascending(trace.thread[row]).tolist():
        mine = np.flatnonzero(trace.thread[row] == thread)
        own = np.flatnonzero(trace.thread[launch] == thread)
        own = own[np.argsort(trace.start_ns[launch[own]], kind="stable")]
        at = np.searchsorted(trace.start_ns[launch[own]], trace.start_ns[row[mine]], side="right") - 1
        if len(own):
            found[mine] = np.where(at >= 0, timeline.stream[linked[own[np.maximum(at, 0)]]], NONE)
    device = np.flatnonzero((trace.kind == Kind.SYNC) | (trace.kind == Kind.COPY))
    device = device[(trace.process[device] == timeline.process) & (trace.correlation[device] > 0)]
    if len(device):
        device = device[np.argsort(trace.correlation[device], kind="stable")]
        ids = trace.correlation[device]
        at = np.minimum(np.searchsorted(ids, trace.correlation[row]), len(ids) - 1)
        same = ids[at] == trace.correlation[row]
        found[same] = trace.stream[device[at[same]]]
    return found
