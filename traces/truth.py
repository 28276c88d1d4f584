"""The truth of a simulated program: where the wall time went, from what the simulator knows about who waited for whom.

The causes and their definitions are those of the attribution: every nanosecond of the window is compute,
communication, copy, or idle for one cause on one side (host, submitted, unlinked). Idle time is read from the
simulator's own record of what each host thread was doing and of what each operation's start waited for, never from the
events of a recording. Where the definition and that intent disagree about an interval, its length is counted in
`ambiguous_ns`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_high, median_low

from traces.program import Activity, DeviceOp, Program, Rank, Step

GENERIC = frozenset({"framework", "python", "launch-call", "host-unknown"})
STARTUP = ("module-load", "allocator", "compile")
STAGING = 50_000  # ns of a copy call beyond the launch latency that count as staging
Span = tuple[int, int]


@dataclass
class IdleSpan:
    """A stretch of idle time with its cause."""

    start: int
    end: int
    cause: str
    side: str


def union(spans: Iterable[Span]) -> list[Span]:
    """Spans without overlap, in order; touching ones become one."""
    out: list[Span] = []
    for a, b in sorted(spans):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], b))
        elif b > a:
            out.append((a, b))
    return out


def clipped(spans: Iterable[Span], window: Span) -> list[Span]:
    return [(max(a, window[0]), min(b, window[1])) for a, b in spans if a < window[1] and b > window[0]]


def length(spans: Iterable[Span]) -> int:
    return sum(b - a for a, b in spans)


class Truth:
    """The truth of one rank."""

    def __init__(self, rank: Rank, *, frameless_host: bool = False) -> None:
        """`frameless_host`: a recording without operators and frames, which shows host work as host-unknown."""
        self.rank, self.frameless_host = rank, frameless_host
        self.operations = sorted((op for op in rank.operations if op.end > op.start), key=lambda op: (op.start, op.end))
        self.busy = union((op.start, op.end) for op in self.operations)
        self.calls = sorted({id(op.call): op.call for op in rank.operations}.values(), key=lambda call: call.start)
        self.call_starts = [call.start for call in self.calls]
        self.ambiguous = 0
        self.origin = min([a.start for acts in rank.activities.values() for a in acts], default=0)
        self.gaps = self._gaps()
        self.latency = self._latency()
        self.queued = self._queued_limit()
        self.explained = [part for gap in self.gaps for part in self._explain(*gap)] + self._after()
        self.parts = self._drains(self.explained)

    # -- gaps -------------------------------------------------------------------------------------------------------

    def _gaps(self) -> list[tuple[int, int, DeviceOp]]:
        """(from, to, the operation that ends it) of all idle time up to the last operation."""
        closing: dict[int, DeviceOp] = {}
        for op in self.operations:
            if op.start not in closing or op.call.start < closing[op.start].call.start:
                closing[op.start] = op
        edges = [(self.origin, self.origin), *self.busy]
        return [(a, b, closing[b]) for (_, a), (b, _) in pairwise(edges) if b > a]

    def _latency(self) -> int:
        """The usual time in ns from a launch into an idle device to the start of its operation."""
        idle = [op for a, _, op in self.gaps if op.call.start >= a and op.node <= 1]
        values = [op.start - op.call.start for op in idle]
        kernels = [op.start - op.call.start for op in idle if op.kind == "kernel"] or values
        if values and not median_low(values) == median_high(values) == median(kernels):
            self.ambiguous += 1  # the usual latency depends on how it is counted
        return int(median(values)) if values else 0

    def _queued_limit(self) -> int:
        gaps = [
            b - a for a, b, op in self.gaps if op.previous is not None and op.previous.end == a and op.call.end <= a
        ]
        return min(max(50_000, 20 * int(median(gaps)) if gaps else 0), 200_000)

    def _explain(self, a: int, b: int, op: DeviceOp) -> Iterator[IdleSpan]:
        call = op.call
        submitted = min(max(call.start, a), b) if op.node <= 1 else a
        for start, end, cause in self._host(call.thread, a, submitted):
            yield IdleSpan(start, end, cause, "host")
        # Launch latency counts from the call's start, whether or not the call has returned.
        usual = min(max(call.start + self.latency, submitted), b)
        yield IdleSpan(submitted, usual, "launch-latency", "submitted")
        # The call is still running: what made it longer than a launch.
        running = max(usual, min(call.end, b))
        longer = self.rank.startup.get(call.correlation, "launch-call")
        if longer == "copy-staging" and running - usual <= STAGING:
            longer = "launch-call"
        yield IdleSpan(usual, running, longer, "submitted")
        # It has returned: the stream's own gap, or another stream.
        own = any(other.stream == op.stream and other.end == a for other in self._ending(a))
        known = min(running + self.queued, b)
        waiting = "queued-gap" if own else "dependency-wait"
        yield IdleSpan(running, known, waiting, "submitted")
        yield IdleSpan(known, b, "device-unknown", "submitted")
        # Was that meant? What waited for its stream or an event waits from the gap's start, whatever the call does.
        if op.reason != "latency":
            self.ambiguous += running - submitted
        if b > running and waiting != {"stream": "queued-gap", "dependency": "dependency-wait"}.get(op.reason):
            self.ambiguous += b - running
        # A reader may take a launch whose call returned before the gap for queued work.
        if op.reason == "latency" and call.end <= a:
            self.ambiguous += usual - submitted
        # Were the latency counted from the gap's start:
        self.ambiguous += min(submitted + self.latency, running) - usual

    def _after(self) -> list[IdleSpan]:
        """What the thread that launched last did after the last operation."""
        if not self.busy:
            return []
        end = self.busy[-1][1]
        parts = self._host(self.calls[-1].thread, end, max(end, self.rank.end))
        return [IdleSpan(a, b, cause, "host") for a, b, cause in parts]

    def _ending(self, a: int) -> list[DeviceOp]:
        at = bisect_right(self.operations, a, key=lambda op: op.start)
        return [op for op in self.operations[max(0, at - 64) : at] if op.end == a]

    def _host(self, thread: int, a: int, b: int) -> Iterator[tuple[int, int, str]]:
        """What this thread, or the one it was waiting for, did between a and b."""
        activities = self.rank.activities[thread]
        for activity in activities[max(0, bisect_right(activities, a, key=lambda item: item.start) - 1) :]:
            start, end = max(a, activity.start), min(b, activity.end)
            if activity.start >= b:
                break
            if end <= start:
                continue
            if activity.cause == "waiting":
                yield from self._host(activity.whom, start, end)
            else:
                yield start, end, self._named(activity)
            a = end
        if a < b:
            yield a, b, "host-unknown"

    def _named(self, activity: Activity) -> str:
        if self.frameless_host and activity.cause in ("framework", "python", "dataloader"):
            return "host-unknown"
        return activity.cause

    # -- drains -------------------------------------------------------------------------------------------------------

    def _drains(self, parts: list[IdleSpan]) -> list[IdleSpan]:
        """Generic host time is a blocking call's from its return on for one launch latency, where it waited for work."""
        drains = [
            (call.end, call.end + self.latency)
            for call in self.rank.blocking
            if length(clipped(self.busy, (call.start, call.end)))
        ]
        out: list[IdleSpan] = []
        for part in parts:
            inside: list[Span] = []
            if part.side == "host" and part.cause in GENERIC:
                inside = union(clipped(drains, (part.start, part.end)))
            at = part.start
            for start, end in inside:
                out.append(IdleSpan(at, start, part.cause, part.side))
                out.append(IdleSpan(start, end, "host-sync", "host"))
                at = end
            out.append(IdleSpan(at, part.end, part.cause, part.side))
        return [part for part in out if part.end > part.start]

    # -- windows ----------------------------------------------------------------------------------------------------

    def window(self, window: Span) -> dict[str, object]:
        """Wall, parts and idle causes of a window, in ns."""

        def spans(*kinds: str) -> int:
            return length(union(clipped(((op.start, op.end) for op in self.operations if op.kind in kinds), window)))

        busy, compute = length(clipped(self.busy, window)), spans("kernel", "graph")
        kernels = spans("kernel", "graph", "communication")
        wall = window[1] - window[0]
        idle: Counter[tuple[str, str]] = Counter()
        for part in self.parts:
            overlap = min(part.end, window[1]) - max(part.start, window[0])
            if overlap > 0:
                idle[part.side, part.cause] += overlap
        sides = {
            side: sum(ns for (s, _), ns in idle.items() if s == side) for side in ("host", "submitted", "unlinked")
        }
        return {
            "start_ns": window[0],
            "end_ns": window[1],
            "wall_ns": wall,
            "busy_ns": busy,
            "idle_ns": wall - busy,
            "compute_ns": compute,
            "communication_ns": kernels - compute,
            "copy_ns": busy - kernels,
            "communication_total_ns": spans("communication"),
            "idle_host_ns": sides["host"],
            "idle_submitted_ns": sides["submitted"],
            "idle_unlinked_ns": sides["unlinked"],
            "idle": [{"cause": cause, "side": side, "ns": ns} for (side, cause), ns in sorted(idle.items())],
        }

    def gpu_window(self) -> Span:
        return (self.busy[0][0], self.busy[-1][1]) if self.busy else (0, 0)

    def step_end(self, step: Step) -> int:
        return max([step.end] + [op.end for op in step.operations])

    def left_out(self, steps: list[Step]) -> bool:
        """Is the first step a warm-up: far longer than the others, for start-up causes?"""
        if len(steps) < 2:
            return False
        starts = [step.start for step in steps]
        others = [b - a for a, b in pairwise(starts[1:])] + [steps[-1].end - steps[-1].start]
        usual = median(others)
        excess = starts[1] - starts[0] - usual
        startup = sum(max(0, min(p.end, starts[1]) - max(p.start, starts[0])) for p in self.parts if p.cause in STARTUP)
        return starts[1] - starts[0] > 1.5 * usual and startup >= 0.5 * excess

    def to_dict(self) -> dict[str, object]:
        """Everything that is known, times in ns as in the program (a writer adds its own origin)."""
        rank = self.rank
        steps = [step for step in rank.steps if step.operations]
        kept = steps[1:] if self.left_out(steps) else steps
        starts = [step.start for step in kept]
        periods = [b - a for a, b in pairwise(starts)]
        windows = {"gpu": self.window(self.gpu_window())} if self.operations else {}
        if kept:
            windows["steps"] = self.window((starts[0], max(self.step_end(step) for step in kept)))
        graphs = [op for op in rank.operations if op.node]
        return {
            "rank": rank.rank,
            "device": rank.device,
            "operations": len(rank.operations),
            "kernels": sum(op.kind in ("kernel", "communication") for op in rank.operations),
            "launches": {
                "calls": len(self.calls),
                "linked": len(rank.operations),
                "graph_launches": sum(op.node == 1 for op in graphs),
                "graph_operations": len(graphs),
            },
            "launch_latency_ns": self.latency,
            "ambiguous_ns": self.ambiguous,
            "steps": [
                {
                    "name": step.name,
                    "start_ns": step.start,
                    "end_ns": self.step_end(step),
                    "operations": len(step.operations),
                    "left_out": step not in kept,
                }
                for step in steps
            ],
            "step_median_ns": int(median(periods)) if periods else None,
            "windows": windows,
        }


def truths(program: Program, *, frameless_host: bool = False) -> list[dict[str, object]]:
    """The truth of every rank of a program."""
    return [Truth(rank, frameless_host=frameless_host).to_dict() for rank in program.ranks]
