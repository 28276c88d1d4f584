"""What a simulated program did: host records, device operations, and who waited for whom. All times in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass
class HostEvent:
    """One record of a host thread: an operator, annotation, Python frame or runtime call."""

    kind: str  # cpu_op, user_annotation, python_function, cuda_runtime
    name: str
    thread: int
    start: int
    end: int = -1
    correlation: int = 0
    external: int = 0  # kineto's External id; a runtime call carries that of the operator around it
    parent: int = 0  # of a Python frame: the Python id of the one around it
    args: dict[str, object] = field(default_factory=dict)


@dataclass
class Memory:
    """One allocation (positive) or release (negative) of device memory."""

    at: int
    thread: int
    bytes: int
    address: int
    allocated: int
    reserved: int


@dataclass
class DeviceOp:
    """One kernel, copy or set on a stream.

    Its start is the latest of what it waited for: its launch (``floor``), its stream's predecessor plus the gap
    between them, and the operations of the events its stream was told to wait for.
    """

    kind: str  # kernel, communication, memcpy, memset; graph: all nodes of a replay as one
    name: str
    stream: int
    duration: int
    correlation: int
    call: HostEvent
    floor: int  # earliest start that its launch allows
    previous: DeviceOp | None  # on the same stream
    gap: int  # after `previous`
    waits: list[tuple[DeviceOp, int]] = field(default_factory=list)  # (operation, latency after its end)
    meeting: list[DeviceOp] | None = None  # the same collective on the other ranks
    members: int = 1  # ranks that take part
    start: int = -1
    end: int = -1
    reason: str = ""  # what its start was waiting for last: latency, stream, dependency
    bytes: int = 0
    copy: str = ""  # h2d, d2h, d2d
    memory: str = ""  # pageable, pinned
    graph: int = 0
    node: int = 0  # 1 is the first node of a replay, 0 is no graph
    external: int = 0
    shape: dict[str, str] = field(default_factory=dict)  # launch geometry
    args: dict[str, object] = field(default_factory=dict)

    def resolve(self) -> bool:
        """Set start and end as soon as everything they depend on is known; True when something became known."""
        before = self.start, self.end
        if self.start < 0:
            if (self.previous is not None and self.previous.end < 0) or any(op.end < 0 for op, _ in self.waits):
                return False
            candidates = [(self.floor, "latency")]
            if self.previous is not None:
                candidates.append((self.previous.end + self.gap, "stream"))
            candidates += [(op.end + latency, "dependency") for op, latency in self.waits]
            self.start, self.reason = max(candidates, key=lambda item: item[0])
        if self.end < 0:
            if self.meeting is None:
                self.end = self.start + self.duration
            elif len(self.meeting) == self.members and all(op.start >= 0 for op in self.meeting):
                self.end = max(op.start for op in self.meeting) + self.duration
        return (self.start, self.end) != before


@dataclass(frozen=True)
class Wait:
    """A row of the device's own record of a wait: a stream for an event, or the host for a stream or the device."""

    kind: str  # Stream Wait Event, Stream Sync, Context Sync, Event Sync
    start: int
    end: int
    stream: int
    correlation: int
    source_stream: int = -1
    record_correlation: int = -1
    event: int = -1


@dataclass(frozen=True)
class Activity:
    """What a host thread did, by intent: a cause of `gpu_trace_advisor.attribution`, or `waiting` for the thread `whom`."""

    start: int
    end: int
    cause: str
    whom: int = 0


@dataclass(frozen=True)
class Step:
    """One step marker and the operations launched inside."""

    name: str
    thread: int
    start: int
    end: int
    operations: tuple[DeviceOp, ...] = ()


@dataclass
class Rank:
    """One process: its records, its one device, and the simulator's own knowledge of what caused what."""

    rank: int
    pid: int
    device: int
    threads: dict[str, int] = field(default_factory=dict)
    events: list[HostEvent] = field(default_factory=list)
    operations: list[DeviceOp] = field(default_factory=list)  # in order of submission
    memory: list[Memory] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    activities: dict[int, list[Activity]] = field(default_factory=dict)  # by thread, in order
    blocking: list[HostEvent] = field(default_factory=list)  # calls that waited for the device
    startup: dict[int, str] = field(default_factory=dict)  # correlation: cause of a call longer than a launch
    steps: list[Step] = field(default_factory=list)
    end: int = 0  # of the recording


@dataclass(frozen=True)
class Program:
    """A simulated program."""

    name: str
    device: dict[str, int | str]
    options: dict[str, str]  # of the recording: shapes, stack, memory, sync
    ranks: tuple[Rank, ...]


def whole_graphs(program: Program) -> Program:
    """The program as a recorder shows it that keeps graph replays whole: each is one operation."""
    return replace(program, ranks=tuple(_whole(rank) for rank in program.ranks))


def _whole(rank: Rank) -> Rank:
    nodes: dict[int, list[DeviceOp]] = {}
    for operation in rank.operations:
        if operation.node:
            nodes.setdefault(operation.correlation, []).append(operation)
    one: dict[int, DeviceOp] = {}
    for correlation, parts in nodes.items():
        end = max(part.end for part in parts)
        first = parts[0]
        one[correlation] = replace(first, kind="graph", name="", end=end, duration=end - first.start, shape={}, bytes=0)

    def kept(operations: Iterable[DeviceOp]) -> list[DeviceOp]:
        return [one.get(op.correlation, op) for op in operations if op.node <= 1]

    steps = [replace(step, operations=tuple(kept(step.operations))) for step in rank.steps]
    return replace(rank, operations=kept(rank.operations), steps=steps)
