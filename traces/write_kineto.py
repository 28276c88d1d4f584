"""Write a simulated program the way Kineto prints a recording: decimal microseconds, its key order, its layout."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from traces.program import DeviceOp, HostEvent, Memory, Program, Rank

BASE_NS = 1_759_300_074_000_000_000  # baseTimeNanoseconds: the quarter of a year that the recording fell in
OFFSET_NS = 2_345_678_901_234  # from there to the program's time 0
_CBIDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemcpy": 31,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaGraphLaunch": 311,
    "cudaStreamIsCapturing": 317,
    "cudaHostAlloc": 39,
}
_SYNC_FLOWS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaStreamWaitEvent")


def us(ns: int) -> str:
    """Nanoseconds as decimal microseconds with three digits."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def text(program: Program, rank: int = 0) -> str:
    """The whole file of one rank."""
    return "".join(_file(program, program.ranks[rank]))


def write_kineto(program: Program, path: str | Path, rank: int = 0) -> None:
    """Write one rank; a name ending in .gz is compressed, always to the same bytes for the same program."""
    path = Path(path)
    data = text(program, rank).encode()
    if path.suffix == ".gz":
        with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(data)
    else:
        path.write_bytes(data)


def _file(program: Program, rank: Rank) -> Iterator[str]:
    options = program.options
    yield '\n{\n  "schemaVersion": 1,\n'
    if len(program.ranks) > 1:
        world = len(program.ranks)
        info = {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": world,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": world,
                    "ranks": list(range(world)),
                }
            ],
            "nccl_version": "2.27.5",
        }
        yield f'  "distributedInfo": {json.dumps(info)},\n'
    yield '  "deviceProperties": [\n'
    yield ",\n".join(_device(program, ordinal) for ordinal in range(len(program.ranks)))
    yield "\n  ],\n"
    yield '  "cupti_version": 26,\n  "cuda_runtime_version": 12080,\n  "cuda_driver_version": 12080,\n'
    for option, key in (("shapes", "record_shapes"), ("memory", "profile_memory"), ("stack", "with_stack")):
        if options.get(option) == "1":
            yield f'  "{key}": 1,\n'
    yield f'  "trace_id": "{_identity(program.name, rank.rank)}",\n'
    yield f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": [\n'
    yield ",\n".join(_events(program, rank))
    yield f'\n  ],\n  "traceName": "{program.name}.json"\n}}\n'


def _identity(name: str, rank: int) -> str:
    """Thirty-two hexadecimal digits made of the name."""
    return (f"{name}-{rank}".encode().hex().upper() + "0" * 32)[:32]


def _device(program: Program, ordinal: int) -> str:
    rows = (
        ("maxThreadsPerBlock", "maxThreadsPerMultiprocessor"),
        ("regsPerBlock", "warpSize"),
        ("sharedMemPerBlock", "numSms"),
        ("regsPerMultiprocessor", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor"),
    )
    device = program.device
    lines = [
        f'"id": {ordinal}, "name": "{device["name"]}", "totalGlobalMem": {device["totalGlobalMem"]}',
        f'"computeMajor": {device["computeMajor"]}, "computeMinor": {device["computeMinor"]}',
        *(", ".join(f'"{key}": {device[key]}' for key in row) for row in rows),
    ]
    return "    {\n      " + ",\n      ".join(lines) + "\n    }"


def _complete(cat: str, name: str, pid: int, tid: int, start: int, end: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {us(start + OFFSET_NS)}, "dur": {us(end - start)},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _flow(phase: str, identity: int, pid: int, tid: int, at: int) -> str:
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {identity}, "pid": {pid}, "tid": {tid}, "ts": {us(at + OFFSET_NS)},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def _meta(name: str, at: int, pid: int | str, tid: int, key: str, value: object) -> str:
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {us(at + OFFSET_NS)}, "pid": {json.dumps(pid)}, "tid": {tid},\n'
        f'    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }}'
    )


def _events(program: Program, rank: Rank) -> Iterator[str]:
    options = program.options
    host = [event for event in rank.events if event.kind in ("cpu_op", "user_annotation")]
    for index, event in enumerate(host):
        yield _complete(
            event.kind, event.name, rank.pid, event.thread, event.start, event.end, _host_args(event, index, options)
        )
    memories = rank.memory if options.get("memory") == "1" else []
    for index, memory in enumerate(memories, len(host)):
        yield _memory(rank, memory, index)
    if options.get("stack") == "1":
        frames = [event for event in rank.events if event.kind == "python_function"]
        for index, event in enumerate(frames, len(host) + len(memories)):
            args = f'"Python parent id": {event.parent or "null"}, "Python id": {event.external}, "Ev Idx": {index}'
            yield _complete(event.kind, event.name, rank.pid, event.thread, event.start, event.end, args)
    yield from _calls_and_operations(program, rank)
    yield from _projections(rank)
    yield from _rows(program, rank)


def _memory(rank: Rank, memory: Memory, index: int) -> str:
    return (
        '  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
        f'    "pid": {rank.pid}, "tid": {memory.thread},\n    "ts": {us(memory.at + OFFSET_NS)},\n    "args": {{\n'
        f'      "Total Reserved": {memory.reserved}, "Total Allocated": {memory.allocated}, "Bytes": {memory.bytes}, '
        f'"Addr": {memory.address}, "Device Id": {rank.device}, "Device Type": 1, "Ev Idx": {index}\n    }}\n  }}'
    )


def _host_args(event: HostEvent, index: int, options: dict[str, str]) -> str:
    args = f'"External id": {event.external}, "Record function id": 0, '
    if options.get("shapes") == "1" and "in" in event.args:
        dims = str(event.args["in"]).replace(",", ", ")
        count = len(json.loads(dims))
        args += f'"Input type": {json.dumps([event.args.get("type", "c10::BFloat16")] * count)}, "Input Dims": {dims}, '
    return args + f'"Ev Idx": {index}'


def _calls_and_operations(program: Program, rank: Rank) -> Iterator[str]:
    by_call: dict[int, list[DeviceOp]] = {}
    for operation in rank.operations:
        by_call.setdefault(operation.correlation, []).append(operation)
    waits = {wait.correlation: wait for wait in rank.waits} if program.options.get("sync") == "1" else {}
    for call in (event for event in rank.events if event.kind == "cuda_runtime"):
        external = f'"External id": {call.external}, ' if call.external else ""
        args = f'{external}"cbid": {_CBIDS.get(call.name, 0)}, "correlation": {call.correlation}'
        yield _complete(call.kind, call.name, rank.pid, call.thread, call.start, call.end, args)
        if call.correlation in by_call or call.name in _SYNC_FLOWS:
            yield _flow("s", call.correlation, rank.pid, call.thread, call.start)
        for operation in by_call.get(call.correlation, []):
            yield _operation(program, rank, operation)
            yield _flow("f", operation.correlation, rank.device, operation.stream, operation.start)
        if call.correlation in waits:
            wait = waits[call.correlation]
            args = f'{external}"cuda_sync_kind": "{wait.kind}", '
            if wait.kind in ("Stream Wait Event", "Event Sync"):
                args += (
                    f'"wait_on_stream": {wait.source_stream}, '
                    f'"wait_on_cuda_event_record_corr_id": {wait.record_correlation}, '
                    f'"wait_on_cuda_event_id": {wait.event}, '
                )
            args += f'"stream": {wait.stream}, "correlation": {wait.correlation}, "device": {rank.device}, "context": 1'
            row = 1 if wait.stream < 0 else wait.stream
            yield _complete("cuda_sync", wait.kind, rank.device, row, wait.start, wait.end, args)


def _operation(program: Program, rank: Rank, operation: DeviceOp) -> str:
    external = f'"External id": {operation.external}, ' if operation.external else ""
    node = f', "graph id": {operation.graph}, "graph node id": {operation.node}' if operation.node else ""
    place = (
        f'"device": {rank.device}, "context": 1, "stream": {operation.stream}, "correlation": {operation.correlation}'
    )
    if operation.kind in ("kernel", "communication"):
        cat, args = "kernel", f'{external}"queued": 0, {place}, {_geometry(program, operation)}{node}'
        for key, value in operation.args.items():
            args += f", {json.dumps(key)}: {json.dumps(value)}"
    else:
        cat = "gpu_memcpy" if operation.kind == "memcpy" else "gpu_memset"
        rate = operation.bytes / max(1, operation.end - operation.start)
        args = f'{external}{place}, "bytes": {operation.bytes}, "memory bandwidth (GB/s)": {rate:.6g}{node}'
    return _complete(cat, operation.name, rank.device, operation.stream, operation.start, operation.end, args)


def geometry(operation: DeviceOp) -> tuple[list[int], list[int], int, int]:
    """Grid, block, registers per thread and shared memory in bytes of a kernel."""

    def three(key: str, default: str) -> list[int]:
        return ([int(n) for n in operation.shape.get(key, default).split(",")] + [1, 1])[:3]

    return (
        three("grid", "264"),
        three("block", "256"),
        int(operation.shape.get("regs", "32")),
        int(operation.shape.get("smem", "0")),
    )


def _geometry(program: Program, operation: DeviceOp) -> str:
    grid, block, registers, shared = geometry(operation)
    blocks = grid[0] * grid[1] * grid[2] / int(program.device["numSms"])
    warps = blocks * -(-block[0] * block[1] * block[2] // 32)
    occupancy = min(100, round(100 * warps / (int(program.device["maxThreadsPerMultiprocessor"]) // 32)))
    return (
        f'"registers per thread": {registers}, "shared memory": {shared}, "blocks per SM": {blocks:.7g}, '
        f'"warps per SM": {warps:.7g}, "grid": {grid}, "block": {block}, "est. achieved occupancy %": {occupancy}'
    )


def _projections(rank: Rank) -> Iterator[str]:
    """Every annotation once more on each stream that got work from inside it, around that work."""
    for event in rank.events:
        if event.kind != "user_annotation":
            continue
        streams: dict[int, list[DeviceOp]] = {}
        for operation in rank.operations:
            if event.start <= operation.call.start < event.end and operation.call.thread == event.thread:
                streams.setdefault(operation.stream, []).append(operation)
        for stream, operations in sorted(streams.items()):
            start, end = min(op.start for op in operations) - 1, max(op.end for op in operations) + 1
            yield _complete(
                "gpu_user_annotation", event.name, rank.device, stream, start, end, f'"External id": {event.external}'
            )


def _rows(program: Program, rank: Rank) -> Iterator[str]:
    begin, end = 100_000, rank.end + 1_500_000
    yield _meta("process_name", begin, rank.pid, 0, "name", "python3")
    yield _meta("process_labels", begin, rank.pid, 0, "labels", "CPU")
    yield _meta("process_sort_index", begin, rank.pid, 0, "sort_index", rank.pid)
    for ordinal in range(len(program.ranks)):
        yield _meta("process_name", begin, ordinal, 0, "name", "python3")
        yield _meta("process_labels", begin, ordinal, 0, "labels", f"GPU {ordinal}")
        yield _meta("process_sort_index", begin, ordinal, 0, "sort_index", 5_000_000 + ordinal)
    for stream in sorted({operation.stream for operation in rank.operations}):
        yield _meta("thread_name", begin, rank.device, stream, "name", f"stream {stream} ")
        yield _meta("thread_sort_index", begin, rank.device, stream, "sort_index", stream)
    for tid in sorted(set(rank.threads.values())):
        yield _meta("thread_name", begin, rank.pid, tid, "name", f"thread {tid} (python3)")
        yield _meta("thread_sort_index", begin, rank.pid, tid, "sort_index", tid)
    yield (
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {us(begin + OFFSET_NS)}, '
        f'"dur": {us(rank.end + 500_000 - begin)},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  }'
    )
    yield _meta("process_sort_index", begin, "Spans", 0, "sort_index", 536870912)
    yield (
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n    "pid": "Traces", '
        f'"tid": "Trace PyTorch Profiler", "ts": {us(begin + OFFSET_NS)}\n  }}'
    )
    yield (
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", '
        f'"ts": {us(end + OFFSET_NS)}\n  }}'
    )
