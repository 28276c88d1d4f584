"""One simulated process with its device: its threads, the passing of their time, and what its streams do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

from traces import recipe as language
from traces.program import Activity, DeviceOp, HostEvent, Rank, Step
from traces.recipe import Line, Recipe, parse_time

ORIGIN = 2_000_000  # ns: when the recorded program begins
_DEFAULTS = {
    "call": 6_000,
    "latency": 5_500,
    "gap": 1_000,
    "return": 3_000,
    "event_latency": 1_500,
    "event_call": 800,
    "graph_call": 14_000,
    "graph_latency": 13_000,
    "node_gap": 800,
}  # ns
Waiting = Iterator[int | None]  # a thread's own time before it acts, or None while it waits for an unknown time


@dataclass(frozen=True)
class Changes:
    """How a run differs from its recipe."""

    scale: Mapping[str, float] = field(default_factory=dict)
    """Factors on times: kernel, communication, copy, framework, python, dataloader, allocator, module-load."""
    loader: bool = True
    syncs: bool = True
    graphs: bool = False
    pinned: bool = False
    steps: int | None = None
    jitter: float = 0.0
    seed: int = 0
    launch: Mapping[str, int] = field(default_factory=dict)
    """Other nanoseconds for the recipe's `launch` settings."""
    depth: int | None = None
    """Other number of launches in flight."""


@dataclass
class Thread:
    """A host thread while it runs."""

    name: str
    tid: int
    time: int
    operators: list[HostEvent] = field(default_factory=list)
    frames: list[HostEvent] = field(default_factory=list)
    loaders: int = 0  # data loaders entered


@dataclass
class World:
    """What the ranks share."""

    ranks: int
    meetings: dict[tuple[str, int], list[DeviceOp]] = field(default_factory=dict)
    pending: list[DeviceOp] = field(default_factory=list)  # submitted, start or end not known yet

    def settle(self) -> None:
        """Set what has become known about the submitted operations."""
        while sum(op.resolve() for op in self.pending):
            pass
        self.pending = [op for op in self.pending if op.end < 0]


class Machine:
    """One process with its device: what the lines of a recipe build on."""

    def __init__(self, recipe: Recipe, changes: Changes, rank: int, world: World) -> None:
        self.recipe, self.changes, self.world = recipe, changes, world
        self.rank = Rank(rank, 31_000 + 7 * rank, rank)
        settings = recipe.settings.get("launch", {})
        self.times = {
            key: parse_time(settings[key]) if key in settings else default for key, default in _DEFAULTS.items()
        }
        self.times.update(changes.launch)
        self.depth = changes.depth or int(settings.get("depth", "1022"))
        self.random = random.Random(changes.seed * 1000 + rank)
        self.correlations = itertools.count(101)
        self.externals = itertools.count(1)
        self.frame_ids = itertools.count(1)
        self.graphs: dict[str, int] = {}
        self.loaded: set[str] = set()  # kernels launched before
        self.done: set[str] = set()  # `once` blocks run
        self.collectives: dict[str, int] = {}
        self.threads: dict[str, Thread] = {}
        self.launches: list[DeviceOp] = []  # the first operation of every launch call
        self.last: dict[int, DeviceOp] = {}  # by stream
        self.held: dict[int, list[tuple[DeviceOp, int]]] = {}  # by stream: waits that its next operation inherits
        self.recorded: dict[
            str, tuple[DeviceOp | None, int, int, int]
        ] = {}  # event: operation, stream, correlation, id
        self.allocated, self.address, self.held_memory = 0, 0x7F0000000000, {"": [0]}
        self.markers: list[HostEvent] = []

    # -- threads ----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> Waiting:
        line = self.recipe.threads[name]
        thread = self.thread(name, ORIGIN + line.time("at", 0))
        yield thread.time
        yield from self.block(line.block, thread)

    def thread(self, name: str, time: int) -> Thread:
        if name not in self.threads:
            tid = self.rank.pid + (0 if name == "main" else 40 + len(self.threads))
            self.threads[name] = Thread(name, tid, time)
            self.rank.threads[name] = tid
            self.rank.activities[tid] = []
        return self.threads[name]

    def block(self, lines: tuple[Line, ...], thread: Thread) -> Waiting:
        for line in lines:
            if line.verb in self.recipe.definitions:
                yield from self.block(language.expand(self.recipe.definitions[line.verb], line), thread)
                continue
            verb = getattr(self, f"do_{line.verb.replace('-', '_')}", None)
            if verb is None:
                raise line.fail("no such verb")
            yield from verb(line, thread)

    def spend(self, thread: Thread, ns: int, cause: str, whom: int = 0) -> None:
        """Let time pass on a thread, and remember what for."""
        if thread.loaders and cause != "waiting":
            cause = "dataloader"
        if ns > 0:
            self.rank.activities[thread.tid].append(Activity(thread.time, thread.time + ns, cause, whom))
            thread.time += ns

    def scaled(self, ns: int, kind: str, thread: Thread | None = None) -> int:
        """Nanoseconds of this kind with the run's changes in them."""
        if thread is not None and thread.loaders:
            kind = "dataloader"
        factor = self.changes.scale.get(kind, 1.0)
        if self.changes.jitter:
            factor *= 1 + self.changes.jitter * (2 * self.random.random() - 1)
        return ns if factor == 1 else round(ns * factor)

    def work(self, thread: Thread, ns: int, cause: str) -> None:
        self.spend(thread, self.scaled(ns, cause, thread), cause)

    def open(self, thread: Thread, kind: str, name: str, args: dict[str, object] | None = None) -> HostEvent:
        event = HostEvent(kind, name, thread.tid, thread.time, args=args or {})
        self.rank.events.append(event)
        return event

    def open_call(self, thread: Thread, name: str) -> HostEvent:
        call = self.open(thread, "cuda_runtime", name)
        call.correlation = next(self.correlations)
        call.external = thread.operators[-1].external if thread.operators else 0
        return call

    def block_until(self, thread: Thread, call: HostEvent, time: int) -> None:
        self.spend(thread, time - thread.time, "host-sync")
        call.end = thread.time
        self.rank.blocking.append(call)

    def submit(
        self,
        line: Line,
        thread: Thread,
        api: str,
        nodes: list[DeviceOp],
        extra: int = 0,
        startup: str = "",
        returns: bool = True,
    ) -> Waiting:
        """Make the call that submits these operations (several: a graph), `extra` ns later than a plain one."""
        yield thread.time
        call = self.open_call(thread, api)
        prefix = "graph_" if api == "cudaGraphLaunch" else ""
        latency, cost = (line.time(key, self.times[prefix + key]) for key in ("latency", "call"))
        if extra:
            self.rank.startup[call.correlation] = startup
        freed = 0
        if len(self.launches) >= self.depth:
            gate = self.launches[-self.depth]
            while gate.start < 0:
                yield None
                self.world.settle()
            freed = gate.start
        for i, operation in enumerate(nodes):
            operation.call, operation.correlation, operation.external = call, call.correlation, call.external
            operation.floor = max(thread.time + extra + latency, freed)
            operation.previous = self.last.get(operation.stream)
            operation.gap = self.times["node_gap" if i else "gap"]
            operation.waits = self.held.pop(operation.stream, [])
            self.last[operation.stream] = operation
            self.rank.operations.append(operation)
            self.world.pending.append(operation)
        self.launches.append(nodes[0])
        self.world.settle()
        if returns:
            self.spend(thread, max(extra + cost, freed - thread.time), startup if extra else "launch-call")
            call.end = thread.time

    # -- the device -------------------------------------------------------------------------------------------------

    def ends(self, operations: list[DeviceOp]) -> Generator[int | None, None, int]:
        """When the last of these ends, as soon as that is known."""
        self.world.settle()
        while any(op.end < 0 for op in operations):
            yield None
            self.world.settle()
        return max((op.end for op in operations), default=0)

    def finish(self) -> None:
        rank = self.rank
        self.world.settle()
        if any(op.end < 0 for op in rank.operations):
            raise RuntimeError(
                f"rank {rank.rank}: {self.world.pending[0].name} never ended: does every rank reach its collective?"
            )
        rank.end = max([thread.time for thread in self.threads.values()] + [op.end for op in rank.operations])
        for marker in self.markers:
            inside = tuple(op for op in rank.operations if marker.start <= op.call.start < marker.end)
            rank.steps.append(Step(marker.name, marker.thread, marker.start, marker.end, inside))
