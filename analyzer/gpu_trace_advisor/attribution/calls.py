"""What long runtime calls were about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpu_trace_advisor.columns.codes import first_places, present
from gpu_trace_advisor.columns.intervals import ascending, union
from gpu_trace_advisor.timelines.device import Timeline, copy_classes
from gpu_trace_advisor.timelines.host import HostActivity, Segments, captures
from gpu_trace_advisor.trace.call_errors import failed_calls
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind

POLL = re.compile(r"(?:Event|Stream)Query")
INSTANTIATE = re.compile(r"Graph\w*Instantiate")
# What an operator may call and still compute on the CPU: questions to the runtime that submit nothing.
QUESTION = re.compile(r"Get|Peek|Query|Attribute|IsCapturing|Occupancy|SetDevice")
# Operators that only stand around others, or wait for other ranks.
NO_COMPUTATION = re.compile(
    r"c10d|nccl|gloo|record_param_comms|ProcessGroup|^Optimizer\.|^autograd::|^##|Compiled|Dynamo|^rpc"
)
CPU_OPERATOR_NS = 100_000  # a shorter operator without a launch is a view, a shape or a size
SLOW_VIEW_NS = 200_000  # one that only describes its tensor anew, or allocates, is slow for other reasons up to here
VIEWS = re.compile(
    r"^aten::(?:_?(?:un)?safe_view|view|_?reshape\w*|as_strided|expand|detach|alias|permute|transpose|t|slice|select|narrow"
    r"|(?:un)?squeeze|empty\w*|new_empty\w*|chunk|split\w*|unbind|lift_fresh|result_type|resolve_conj|resolve_neg)_?$"
)
LONG_CALL_NS = 200_000  # beyond the median launch call, at a kernel's first launch: code is being loaded


@dataclass
class LongCalls:
    """What long runtime calls were about."""

    timeline: Timeline

    @cached_property
    def slow_first(self) -> set[int]:
        """Launch calls that exceed the median by 200 µs and are the first launch of their kernel."""
        timeline, trace = self.timeline, self.timeline.trace
        linked = np.flatnonzero(timeline.linked & timeline.is_kernel)
        if not len(linked):
            return set()
        _, first = first_places(trace.name_code[timeline.row[linked]])
        launches, firsts = ascending(timeline.launch[linked]), timeline.launch[linked[first]]
        usual = np.median(trace.end_ns[launches] - trace.start_ns[launches])
        slow = firsts[trace.end_ns[firsts] - trace.start_ns[firsts] > usual + LONG_CALL_NS]
        return set(slow.tolist())

    @cached_property
    def loading(self) -> set[int]:
        """Launch calls that load a module: slow first ones, and those that contain a record of it. Of the latter only a
        call that the device waits for is loading as a whole; elsewhere the record inside speaks for itself."""
        return self.slow_first | self._enclosing(HostActivity.MODULE) | self._around_module_loading()

    @cached_property
    def on_cpu(self) -> Bool:
        """[n] operators that compute on the CPU: long, and neither they nor anything inside them submits work."""
        trace, host = self.timeline.trace, self.timeline.host
        found = np.asarray(
            (host.doing == HostActivity.OPERATOR)
            & (trace.kind == Kind.OPERATOR)
            & (trace.end_ns - trace.start_ns >= CPU_OPERATOR_NS)
            & (trace.process == self.timeline.process),
            np.bool_,
        )
        rows = np.flatnonzero(found)
        found[rows[named(trace, trace.name_code[rows], lambda name: NO_COMPUTATION.search(name) is not None)]] = False
        rows = np.flatnonzero(found)
        short = trace.end_ns[rows] - trace.start_ns[rows] < SLOW_VIEW_NS
        found[rows[short & named(trace, trace.name_code[rows], lambda name: VIEWS.match(name) is not None)]] = False
        if not found.any():
            return found
        calls = np.flatnonzero((trace.kind == Kind.CALL) & (trace.process == self.timeline.process))
        calls = calls[~named(trace, trace.name_code[calls], lambda name: QUESTION.search(name) is not None)]
        around = present(host.operator[calls])
        seen = np.zeros(len(trace), np.bool_)
        while len(around := around[(around != NONE)]):
            around = around[~seen[around]]
            seen[around] = True
            above = host.parent[around]
            around = present(host.operator[above[above != NONE]])
        return found & ~seen

    @cached_property
    def to_host(self) -> Int64:
        """Calls that copy to the host: nothing is staged before their copies run."""
        timeline = self.timeline
        copies = timeline.linked & np.isin(timeline.op_class, copy_classes("DtoH"))
        return ascending(timeline.launch[copies])

    @cached_property
    def failed(self) -> Int64:
        """Calls that returned an error."""
        return failed_calls(self.timeline.trace)

    @cached_property
    def polls(self) -> Bool:
        """[names] calls that ask whether the device is done."""
        return np.array([POLL.search(name) is not None for name in self.timeline.trace.names], np.bool_)

    @cached_property
    def creates_events(self) -> Bool:
        """[names] calls that create an event."""
        return np.array(["EventCreate" in name for name in self.timeline.trace.names], np.bool_)

    @cached_property
    def instantiates(self) -> Bool:
        """[names] calls that make a captured graph ready to run."""
        return np.array([INSTANTIATE.search(name) is not None for name in self.timeline.trace.names], np.bool_)

    @cached_property
    def captures(self) -> dict[int, Segments]:
        """Thread -> stretches in which its launches were recorded into a graph and ran nothing."""
        return captures(self.timeline.trace, self.timeline.process)

    @cached_property
    def with_allocation(self) -> set[int]:
        return self._enclosing(HostActivity.ALLOCATOR)

    def _enclosing(self, doing: HostActivity) -> set[int]:
        """Calls that contain a record of this class; one without length takes none of their time."""
        host = self.timeline.host
        lasts = host.trace.end_ns > host.trace.start_ns
        inner = np.flatnonzero((host.doing == doing) & (host.parent != NONE) & lasts)
        parents = host.parent[inner]
        return set(parents[host.trace.kind[parents] == Kind.CALL].tolist())

    def _around_module_loading(self) -> set[int]:
        """Calls during which the profiler saw lazy loading, where it does not say on which thread."""
        trace, host = self.timeline.trace, self.timeline.host
        loading = np.flatnonzero(
            (trace.kind == Kind.OVERHEAD) & (host.doing == HostActivity.MODULE) & (trace.thread == NONE)
        )
        if not len(loading):
            return set()
        launches = ascending(self.timeline.launch[self.timeline.linked])
        span = union(trace.start_ns[loading], trace.end_ns[loading])
        first = np.searchsorted(span.start, trace.start_ns[launches], side="left")
        within = first < len(span.start)
        within[within] &= span.end[first[within]] <= trace.end_ns[launches[within]]
        return set(launches[within].tolist())
