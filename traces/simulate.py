"""A discrete-event simulator of GPU programs.

Host threads run the lines of a recipe one after another; what they submit starts on its stream as soon as the launch
has reached the device, the stream's predecessor has ended and the events waited for have happened. Whole nanoseconds
throughout; the same recipe gives the same program, to the nanosecond.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

from traces import recipe as language
from traces.devices import DEVICES
from traces.program import Activity, DeviceOp, HostEvent, Memory, Program, Rank, Step, Wait
from traces.recipe import Line, Recipe, parse_size, parse_time

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
_KINDS = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD"}
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
class _Thread:
    """A host thread while it runs."""

    name: str
    tid: int
    time: int
    operators: list[HostEvent] = field(default_factory=list)
    frames: list[HostEvent] = field(default_factory=list)
    loaders: int = 0  # data loaders entered


@dataclass
class _World:
    """What the ranks share."""

    ranks: int
    meetings: dict[tuple[str, int], list[DeviceOp]] = field(default_factory=dict)
    pending: list[DeviceOp] = field(default_factory=list)  # submitted, start or end not known yet

    def settle(self) -> None:
        """Set what has become known about the submitted operations."""
        while sum(op.resolve() for op in self.pending):
            pass
        self.pending = [op for op in self.pending if op.end < 0]


def simulate(
    recipe: Recipe | str,
    *,
    scale: Mapping[str, float] | None = None,
    loader: bool = True,
    syncs: bool = True,
    graphs: bool = False,
    pinned: bool = False,
    steps: int | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    launch: Mapping[str, int] | None = None,
    depth: int | None = None,
) -> Program:
    """Run a recipe (or the sample recipe of this name), with changes.

    `loader=False` leaves data loaders out, `syncs=False` waiting calls, `graphs=True` replays every `capture` block as
    one graph, `pinned=True` makes pageable copies pinned and asynchronous; `scale` multiplies times by their kind.
    """
    if isinstance(recipe, str):
        recipe = language.load(recipe)
    changes = Changes(scale or {}, loader, syncs, graphs, pinned, steps, jitter, seed, launch or {}, depth)
    ranks = int(recipe.settings.get("ranks", {}).get("count", "1"))
    world = _World(ranks)
    machines = [_Machine(recipe, changes, rank, world) for rank in range(ranks)]
    _run([machine.start(name) for machine in machines for name in recipe.threads])
    for machine in machines:
        machine.finish()
    return Program(
        recipe.name, DEVICES[recipe.device], recipe.settings.get("trace", {}), tuple(m.rank for m in machines)
    )


def _run(threads: list[Waiting]) -> None:
    """Advance the threads in order of their own time until all have ended."""
    due = dict.fromkeys(range(len(threads)), 0)
    while due:
        for i in sorted(due, key=lambda i: (due[i], i)):
            try:
                time = next(threads[i])
            except StopIteration:
                del due[i]
                break
            if time is not None:  # else it waits for something that another thread has yet to submit
                due[i] = time
                break
        else:
            raise RuntimeError("every thread waits for another: a collective that some rank never reaches?")


class _Machine:
    """One process with its device."""

    def __init__(self, recipe: Recipe, changes: Changes, rank: int, world: _World) -> None:
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
        self.threads: dict[str, _Thread] = {}
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

    def thread(self, name: str, time: int) -> _Thread:
        if name not in self.threads:
            tid = self.rank.pid + (0 if name == "main" else 40 + len(self.threads))
            self.threads[name] = _Thread(name, tid, time)
            self.rank.threads[name] = tid
            self.rank.activities[tid] = []
        return self.threads[name]

    def block(self, lines: tuple[Line, ...], thread: _Thread) -> Waiting:
        for line in lines:
            if line.verb in self.recipe.definitions:
                yield from self.block(language.expand(self.recipe.definitions[line.verb], line), thread)
                continue
            verb = getattr(self, f"do_{line.verb.replace('-', '_')}", None)
            if verb is None:
                raise line.fail("no such verb")
            yield from verb(line, thread)

    def spend(self, thread: _Thread, ns: int, cause: str, whom: int = 0) -> None:
        """Let time pass on a thread, and remember what for."""
        if thread.loaders and cause != "waiting":
            cause = "dataloader"
        if ns > 0:
            self.rank.activities[thread.tid].append(Activity(thread.time, thread.time + ns, cause, whom))
            thread.time += ns

    def scaled(self, ns: int, kind: str, thread: _Thread | None = None) -> int:
        """Nanoseconds of this kind with the run's changes in them."""
        if thread is not None and thread.loaders:
            kind = "dataloader"
        factor = self.changes.scale.get(kind, 1.0)
        if self.changes.jitter:
            factor *= 1 + self.changes.jitter * (2 * self.random.random() - 1)
        return ns if factor == 1 else round(ns * factor)

    def work(self, thread: _Thread, ns: int, cause: str) -> None:
        self.spend(thread, self.scaled(ns, cause, thread), cause)

    def open(self, thread: _Thread, kind: str, name: str, args: dict[str, object] | None = None) -> HostEvent:
        event = HostEvent(kind, name, thread.tid, thread.time, args=args or {})
        self.rank.events.append(event)
        return event

    def open_call(self, thread: _Thread, name: str) -> HostEvent:
        call = self.open(thread, "cuda_runtime", name)
        call.correlation = next(self.correlations)
        call.external = thread.operators[-1].external if thread.operators else 0
        return call

    # -- host work --------------------------------------------------------------------------------------------------

    def do_python(self, line: Line, thread: _Thread) -> Waiting:
        """`python 20us`: the interpreter between operators."""
        self.work(thread, line.times()[0], "python")
        yield thread.time

    def do_op(self, line: Line, thread: _Thread) -> Waiting:
        """`op NAME BEFORE [AFTER] [in=SHAPES type=TYPE]:` an operator; its own time before and after its block."""
        before, after = [*line.times(), 0, 0][:2]
        args: dict[str, object] = {key: line.options[key] for key in ("in", "type") if key in line.options}
        event = self.open(thread, "cpu_op", line.word(0), args)
        event.external = next(self.externals)
        thread.operators.append(event)
        self.work(thread, before, "framework")
        yield from self.block(line.block, thread)
        self.work(thread, after, "framework")
        event.end = thread.time
        thread.operators.pop()

    def do_range(self, line: Line, thread: _Thread) -> Waiting:
        """`range NAME:` an annotation of the program around its block."""
        event = self.open(thread, "user_annotation", line.word(0))
        event.external = next(self.externals)
        yield from self.block(line.block, thread)
        event.end = thread.time

    def do_frame(self, line: Line, thread: _Thread) -> Waiting:
        """`frame NAME:` a Python frame around its block, recorded with `trace stack=1`."""
        event = self.open(thread, "python_function", line.word(0))
        event.external = next(self.frame_ids)
        event.parent = thread.frames[-1].external if thread.frames else 0
        thread.frames.append(event)
        yield from self.block(line.block, thread)
        event.end = thread.time
        thread.frames.pop()

    def do_loader(self, line: Line, thread: _Thread) -> Waiting:
        """`loader 20ms [:]`: the data loader's next batch; its block runs inside, after that time."""
        if not self.changes.loader:
            return
        event = self.open(thread, "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        event.external = next(self.externals)
        thread.loaders += 1
        self.work(thread, sum(line.times()), "dataloader")
        yield from self.block(line.block, thread)
        thread.loaders -= 1
        event.end = thread.time
        yield thread.time

    def do_repeat(self, line: Line, thread: _Thread) -> Waiting:
        for _ in range(int(line.word(0))):
            yield from self.block(line.block, thread)

    def do_once(self, line: Line, thread: _Thread) -> Waiting:
        """`once NAME:` only the first time."""
        if line.word(0) not in self.done:
            self.done.add(line.word(0))
            yield from self.block(line.block, thread)

    def do_rank(self, line: Line, thread: _Thread) -> Waiting:
        """`rank 0,2:` only on these ranks."""
        if str(self.rank.rank) in line.word(0).split(","):
            yield from self.block(line.block, thread)

    def do_steps(self, line: Line, thread: _Thread) -> Waiting:
        """`steps 6 [from=10]:` so many profiler steps."""
        first = int(line.options.get("from", "1"))
        for number in range(first, first + (self.changes.steps or int(line.word(0)))):
            marker = self.open(thread, "user_annotation", f"ProfilerStep#{number}")
            marker.external = next(self.externals)
            yield from self.block(line.block, thread)
            marker.end = thread.time
            self.markers.append(marker)

    def do_handover(self, line: Line, thread: _Thread) -> Waiting:
        """`handover THREAD:` another thread runs the block while this one waits."""
        other = self.thread(line.word(0), ORIGIN)
        self.spend(other, thread.time - other.time, "waiting", thread.tid)
        yield from self.block(line.block, other)
        self.spend(thread, other.time - thread.time, "waiting", other.tid)

    def do_alloc(self, line: Line, thread: _Thread) -> Waiting:
        """`alloc 16MiB`: the framework's allocator hands out memory, in no time."""
        yield thread.time
        self._memory(thread, parse_size(line.word(0)))

    def do_release(self, line: Line, thread: _Thread) -> Waiting:
        yield thread.time
        self._memory(thread, -parse_size(line.word(0)))

    def _memory(self, thread: _Thread, size: int) -> None:
        if size > 0:
            self.address += size
            self.held_memory.setdefault(str(size), []).append(self.address)
        stack = self.held_memory.get(str(abs(size)), [])
        address = (stack[-1] if size > 0 else stack.pop()) if stack else self.address
        self.allocated += size
        reserved = -(-max(self.allocated, self.rank.memory[-1].reserved if self.rank.memory else 0) // (2 << 20)) * (
            2 << 20
        )
        self.rank.memory.append(Memory(thread.time, thread.tid, size, address, self.allocated, reserved))

    # -- runtime calls ----------------------------------------------------------------------------------------------

    def do_call(self, line: Line, thread: _Thread) -> Waiting:
        """`call NAME 300us cause=module-load`: any runtime call that submits nothing."""
        yield thread.time
        call = self.open_call(thread, line.word(0))
        self.work(thread, line.times()[0], line.options.get("cause", "launch-call"))
        call.end = thread.time

    def do_malloc(self, line: Line, thread: _Thread) -> Waiting:
        yield thread.time
        call = self.open_call(thread, "cudaMalloc")
        self.work(thread, line.times()[0], "allocator")
        call.end = thread.time

    def do_free(self, line: Line, thread: _Thread) -> Waiting:
        """`free 400us`: returns no earlier than the device is done."""
        yield thread.time
        call = self.open_call(thread, "cudaFree")
        end = yield from self._ends(list(self.last.values()))
        self.spend(thread, max(self.scaled(line.times()[0], "allocator", thread), end - thread.time), "allocator")
        call.end = thread.time

    def do_sync(self, line: Line, thread: _Thread) -> Waiting:
        """`sync stream=7`, `sync device`, `sync event NAME`: the host waits for the device."""
        if not self.changes.syncs:
            return
        yield thread.time
        what = line.words[0] if line.words else "stream"
        stream = int(line.options.get("stream", "7"))
        name = {"stream": "cudaStreamSynchronize", "device": "cudaDeviceSynchronize", "event": "cudaEventSynchronize"}[
            what
        ]
        call = self.open_call(thread, name)
        if what == "event":
            operation = self.recorded[line.word(1)][0]
            targets = [operation] if operation is not None else []
        else:
            targets = [op for s, op in self.last.items() if what == "device" or s == stream]
        end = yield from self._ends(targets)
        self.block_until(thread, call, max(thread.time + line.time("call", 2_000), end + self.times["return"]))
        kind = {"stream": "Stream Sync", "device": "Context Sync", "event": "Event Sync"}[what]
        self.rank.waits.append(Wait(kind, call.start, call.end, stream if what == "stream" else -1, call.correlation))

    def block_until(self, thread: _Thread, call: HostEvent, time: int) -> None:
        self.spend(thread, time - thread.time, "host-sync")
        call.end = thread.time
        self.rank.blocking.append(call)

    def do_record(self, line: Line, thread: _Thread) -> Waiting:
        """`record EVENT stream=7`."""
        yield thread.time
        stream = int(line.options.get("stream", "7"))
        call = self.open_call(thread, "cudaEventRecord")
        identity = self.recorded[line.word(0)][3] if line.word(0) in self.recorded else len(self.recorded) + 1
        self.recorded[line.word(0)] = (self.last.get(stream), stream, call.correlation, identity)
        self.work(thread, self.times["event_call"], "launch-call")
        call.end = thread.time

    def do_wait(self, line: Line, thread: _Thread) -> Waiting:
        """`wait EVENT stream=20`: what this stream gets from now on runs after the event."""
        yield thread.time
        stream = int(line.options.get("stream", "7"))
        call = self.open_call(thread, "cudaStreamWaitEvent")
        operation, source, correlation, identity = self.recorded[line.word(0)]
        if operation is not None:
            self.held.setdefault(stream, []).append((operation, self.times["event_latency"]))
        self.work(thread, self.times["event_call"], "launch-call")
        call.end = thread.time
        self.rank.waits.append(
            Wait("Stream Wait Event", call.start, call.end, stream, call.correlation, source, correlation, identity)
        )

    # -- submissions ------------------------------------------------------------------------------------------------

    def do_launch(self, line: Line, thread: _Thread) -> Waiting:
        """`launch KERNEL [6us] [stream=7]`; its first launch takes `first=30ms` of the kernel longer."""
        operation = self.operation(line)
        kernel = self.recipe.kernels[line.word(0)]
        extra = 0 if line.word(0) in self.loaded else self.scaled(kernel.time("first", 0), "module-load", thread)
        self.loaded.add(line.word(0))
        api = line.options.get("api", "cudaLaunchKernel")
        yield from self.submit(line, thread, api, [operation], extra, "module-load")

    def do_collective(self, line: Line, thread: _Thread) -> Waiting:
        """`collective KERNEL 300us [16MiB] stream=20 [name=allreduce] [group=…]`: ends on all ranks together."""
        operation = self.operation(line)
        group = line.options.get("name", "allreduce")
        size = next((parse_size(w) for w in line.words[1:] if not language.is_time(w)), 0)
        operation.kind = "communication"
        operation.duration = self.scaled(self.kernel_time(line), "communication")
        operation.args = {
            "Collective name": group,
            "In msg nelems": size // 2,
            "Out msg nelems": size // 2,
            "Group size": self.world.ranks,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.world.ranks))),
        }
        if self.world.ranks > 1:
            count = self.collectives[group] = self.collectives.get(group, 0) + 1
            operation.meeting = self.world.meetings.setdefault((group, count), [])
            operation.members = self.world.ranks
            operation.meeting.append(operation)
        yield from self.submit(line, thread, line.options.get("api", "cudaLaunchKernelExC"), [operation])

    def do_memset(self, line: Line, thread: _Thread) -> Waiting:
        """`memset 4KiB 1us`."""
        yield from self.submit(line, thread, "cudaMemsetAsync", [self.operation(line)])

    def do_copy(self, line: Line, thread: _Thread) -> Waiting:
        """`copy h2d pageable 16MiB 900us [staging=20us] [pinned=600us]`: `pinned` is its time with `pinned=True`."""
        operation = self.operation(line)
        if operation.memory != "pageable":
            yield from self.submit(line, thread, "cudaMemcpyAsync", [operation])
            return
        staging = line.time("staging", 0)
        yield from self.submit(line, thread, "cudaMemcpyAsync", [operation], staging, "copy-staging", returns=False)
        end = yield from self._ends([operation])
        self.block_until(thread, operation.call, max(thread.time, end + self.times["return"]))

    def do_replay(self, line: Line, thread: _Thread) -> Waiting:
        """`replay NAME:` the launches of the block as one graph launch."""
        nodes = [self.operation(inner) for inner in self.submissions(line.block)]
        graph = self.graphs.setdefault(line.word(0), len(self.graphs) + 1)
        for node, operation in enumerate(nodes, 1):
            operation.graph, operation.node = graph, node
        yield from self.submit(line, thread, "cudaGraphLaunch", nodes)

    def do_capture(self, line: Line, thread: _Thread) -> Waiting:
        """`capture NAME:` a block that a change may replay as a graph."""
        if self.changes.graphs:
            yield from self.do_replay(line, thread)
        else:
            yield from self.block(line.block, thread)

    def submissions(self, lines: tuple[Line, ...]) -> Iterator[Line]:
        for line in lines:
            if line.verb in self.recipe.definitions:
                yield from self.submissions(language.expand(self.recipe.definitions[line.verb], line))
            elif line.verb in ("launch", "memset", "copy"):
                yield line
            elif line.verb in ("sync", "collective", "loader"):
                raise line.fail("cannot be captured")
            else:
                for _ in range(int(line.word(0)) if line.verb == "repeat" else 1):
                    yield from self.submissions(line.block)

    def kernel_time(self, line: Line) -> int:
        times = line.times() or self.recipe.kernels[line.word(0)].times()
        if not times:
            raise line.fail("how long?")
        return times[0]

    def operation(self, line: Line) -> DeviceOp:
        """The device operation that a line submits, not submitted yet."""
        call = HostEvent("cuda_runtime", "", 0, 0)
        operation = DeviceOp("kernel", line.words[0], int(line.options.get("stream", "7")), 0, 0, call, 0, None, 0)
        if line.verb in ("launch", "collective"):
            if line.word(0) not in self.recipe.kernels:
                raise line.fail("no such kernel")
            kernel = self.recipe.kernels[line.word(0)]
            operation.name = next((w for w in kernel.words[1:] if not language.is_time(w)), line.word(0))
            operation.shape = kernel.options
            operation.duration = self.scaled(self.kernel_time(line), "kernel")
        elif line.verb == "memset":
            operation.kind, operation.name, operation.bytes = "memset", "Memset (Device)", parse_size(line.word(0))
            operation.duration = self.scaled(line.times()[0], "copy")
        else:
            memory = "pinned" if self.changes.pinned else line.word(1)
            time = (
                line.time("pinned", line.times()[0])
                if self.changes.pinned and line.word(1) == "pageable"
                else line.times()[0]
            )
            operation.kind, operation.copy, operation.memory = "memcpy", line.word(0), memory
            operation.bytes = parse_size(line.word(2))
            operation.duration = self.scaled(time, "copy")
            host = memory.capitalize()
            ends = {"h2d": (host, "Device"), "d2h": ("Device", host), "d2d": ("Device", "Device")}[operation.copy]
            operation.name = f"Memcpy {_KINDS[operation.copy]} ({ends[0]} -> {ends[1]})"
        return operation

    def submit(
        self,
        line: Line,
        thread: _Thread,
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
        queue = self.rank.operations
        freed = 0
        launches = [op for op in queue[-(self.depth + 1) :] if op.node <= 1] if len(queue) >= self.depth else []
        if len(launches) >= self.depth:
            gate = launches[-self.depth]
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
            queue.append(operation)
            self.world.pending.append(operation)
        self.world.settle()
        if returns:
            self.spend(thread, max(extra + cost, freed - thread.time), startup if extra else "launch-call")
            call.end = thread.time

    # -- the device -------------------------------------------------------------------------------------------------

    def _ends(self, operations: list[DeviceOp]) -> Generator[int | None, None, int]:
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
