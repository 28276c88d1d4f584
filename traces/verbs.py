"""What each line of a recipe does."""

from __future__ import annotations

from collections.abc import Iterator

from traces import recipe as language
from traces.machine import ORIGIN, Machine, Thread, Waiting
from traces.program import DeviceOp, HostEvent, Memory, Wait
from traces.recipe import Line, parse_size

_KINDS = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD"}


class Verbs(Machine):
    """A machine that understands recipes: `do_VERB` runs a line of that verb on a thread."""

    # -- host work --------------------------------------------------------------------------------------------------

    def do_python(self, line: Line, thread: Thread) -> Waiting:
        """`python 20us`: the interpreter between operators."""
        self.work(thread, line.times()[0], "python")
        yield thread.time

    def do_op(self, line: Line, thread: Thread) -> Waiting:
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

    def do_range(self, line: Line, thread: Thread) -> Waiting:
        """`range NAME:` an annotation of the program around its block."""
        event = self.open(thread, "user_annotation", line.word(0))
        event.external = next(self.externals)
        yield from self.block(line.block, thread)
        event.end = thread.time

    def do_frame(self, line: Line, thread: Thread) -> Waiting:
        """`frame NAME:` a Python frame around its block, recorded with `trace stack=1`."""
        event = self.open(thread, "python_function", line.word(0))
        event.external = next(self.frame_ids)
        event.parent = thread.frames[-1].external if thread.frames else 0
        thread.frames.append(event)
        yield from self.block(line.block, thread)
        event.end = thread.time
        thread.frames.pop()

    def do_loader(self, line: Line, thread: Thread) -> Waiting:
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

    def do_repeat(self, line: Line, thread: Thread) -> Waiting:
        for _ in range(int(line.word(0))):
            yield from self.block(line.block, thread)

    def do_once(self, line: Line, thread: Thread) -> Waiting:
        """`once NAME:` only the first time."""
        if line.word(0) not in self.done:
            self.done.add(line.word(0))
            yield from self.block(line.block, thread)

    def do_rank(self, line: Line, thread: Thread) -> Waiting:
        """`rank 0,2:` only on these ranks."""
        if str(self.rank.rank) in line.word(0).split(","):
            yield from self.block(line.block, thread)

    def do_steps(self, line: Line, thread: Thread) -> Waiting:
        """`steps 6 [from=10]:` so many profiler steps."""
        first = int(line.options.get("from", "1"))
        for number in range(first, first + (self.changes.steps or int(line.word(0)))):
            marker = self.open(thread, "user_annotation", f"ProfilerStep#{number}")
            marker.external = next(self.externals)
            yield from self.block(line.block, thread)
            marker.end = thread.time
            self.markers.append(marker)

    def do_handover(self, line: Line, thread: Thread) -> Waiting:
        """`handover THREAD:` another thread runs the block while this one waits."""
        other = self.thread(line.word(0), ORIGIN)
        self.spend(other, thread.time - other.time, "waiting", thread.tid)
        yield from self.block(line.block, other)
        self.spend(thread, other.time - thread.time, "waiting", other.tid)

    def do_alloc(self, line: Line, thread: Thread) -> Waiting:
        """`alloc 16MiB`: the framework's allocator hands out memory, in no time."""
        yield thread.time
        self._memory(thread, parse_size(line.word(0)))

    def do_release(self, line: Line, thread: Thread) -> Waiting:
        yield thread.time
        self._memory(thread, -parse_size(line.word(0)))

    def _memory(self, thread: Thread, size: int) -> None:
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

    def do_call(self, line: Line, thread: Thread) -> Waiting:
        """`call NAME 300us cause=module-load`: any runtime call that submits nothing."""
        yield thread.time
        call = self.open_call(thread, line.word(0))
        self.work(thread, line.times()[0], line.options.get("cause", "launch-call"))
        call.end = thread.time

    def do_malloc(self, line: Line, thread: Thread) -> Waiting:
        yield thread.time
        call = self.open_call(thread, "cudaMalloc")
        self.work(thread, line.times()[0], "allocator")
        call.end = thread.time

    def do_free(self, line: Line, thread: Thread) -> Waiting:
        """`free 400us`: takes that long once the device is done."""
        yield thread.time
        call = self.open_call(thread, "cudaFree")
        end = yield from self.ends(list(self.last.values()))
        wait = max(end - thread.time, 0)
        self.spend(thread, wait + self.scaled(line.times()[0], "allocator", thread), "allocator")
        call.end = thread.time

    def do_sync(self, line: Line, thread: Thread) -> Waiting:
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
        end = yield from self.ends(targets)
        self.block_until(thread, call, max(thread.time + line.time("call", 2_000), end + self.times["return"]))
        kind = {"stream": "Stream Sync", "device": "Context Sync", "event": "Event Sync"}[what]
        on = stream if what == "stream" else -1
        event = self.recorded[line.word(1)][1:] if what == "event" else ()
        self.rank.waits.append(Wait(kind, call.start, call.end, on, call.correlation, *event))

    def do_record(self, line: Line, thread: Thread) -> Waiting:
        """`record EVENT stream=7`."""
        yield thread.time
        stream = int(line.options.get("stream", "7"))
        call = self.open_call(thread, "cudaEventRecord")
        identity = self.recorded[line.word(0)][3] if line.word(0) in self.recorded else len(self.recorded) + 1
        self.recorded[line.word(0)] = (self.last.get(stream), stream, call.correlation, identity)
        self.work(thread, self.times["event_call"], "launch-call")
        call.end = thread.time

    def do_wait(self, line: Line, thread: Thread) -> Waiting:
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

    def do_launch(self, line: Line, thread: Thread) -> Waiting:
        """`launch KERNEL [6us] [stream=7]`; its first launch takes `first=30ms` of the kernel longer."""
        operation = self.operation(line)
        kernel = self.recipe.kernels[line.word(0)]
        extra = 0 if line.word(0) in self.loaded else self.scaled(kernel.time("first", 0), "module-load", thread)
        self.loaded.add(line.word(0))
        api = line.options.get("api", "cudaLaunchKernel")
        yield from self.submit(line, thread, api, [operation], extra, "module-load")

    def do_collective(self, line: Line, thread: Thread) -> Waiting:
        """`collective KERNEL 300us [16MiB] stream=20 [name=allreduce] [group=0] [ranks=0,1]`: ends on all its ranks together."""
        operation = self.operation(line)
        name, group = line.options.get("name", "allreduce"), line.options.get("group", "0")
        members = [int(rank) for rank in line.options["ranks"].split(",")] if "ranks" in line.options else None
        ranks = members or list(range(self.world.ranks))
        size = next((parse_size(w) for w in line.words[1:] if not language.is_time(w)), 0)
        operation.kind = "communication"
        operation.duration = self.scaled(self.kernel_time(line), "communication")
        operation.args = {
            "Collective name": name,
            "In msg nelems": size // 2,
            "Out msg nelems": size // 2,
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "Process Group Name": group,
            "Process Group Description": "undefined" if members else "default_pg",
            "Process Group Ranks": str(ranks),
        }
        if len(ranks) > 1:
            meeting = f"{group} {name}"
            count = self.collectives[meeting] = self.collectives.get(meeting, 0) + 1
            operation.meeting = self.world.meetings.setdefault((meeting, count), [])
            operation.members = len(ranks)
            operation.meeting.append(operation)
        yield from self.submit(line, thread, line.options.get("api", "cudaLaunchKernelExC"), [operation])

    def do_memset(self, line: Line, thread: Thread) -> Waiting:
        """`memset 4KiB 1us`."""
        yield from self.submit(line, thread, "cudaMemsetAsync", [self.operation(line)])

    def do_copy(self, line: Line, thread: Thread) -> Waiting:
        """`copy h2d pageable 16MiB 900us [staging=20us] [pinned=600us]`: `pinned` is its time with `pinned=True`."""
        operation = self.operation(line)
        if operation.memory != "pageable":
            yield from self.submit(line, thread, "cudaMemcpyAsync", [operation])
            return
        staging = line.time("staging", 0)
        yield from self.submit(line, thread, "cudaMemcpyAsync", [operation], staging, "copy-staging", returns=False)
        end = yield from self.ends([operation])
        self.block_until(thread, operation.call, max(thread.time, end + self.times["return"]))

    def do_replay(self, line: Line, thread: Thread) -> Waiting:
        """`replay NAME:` the launches of the block as one graph launch."""
        nodes = [self.operation(inner) for inner in self.submissions(line.block)]
        graph = self.graphs.setdefault(line.word(0), len(self.graphs) + 1)
        for node, operation in enumerate(nodes, 1):
            operation.graph, operation.node = graph, node
        yield from self.submit(line, thread, "cudaGraphLaunch", nodes)

    def do_capture(self, line: Line, thread: Thread) -> Waiting:
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
