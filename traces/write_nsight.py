"""Write a simulated program as an Nsight Systems SQLite export of schema 3.25.0; times in ns since the session's start.

An export holds what Nsight Systems sees: runtime calls, device operations and NVTX ranges. Operators and Python frames
are not in it; annotations and steps are NVTX ranges.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from traces.program import DeviceOp, HostEvent, Program, Rank
from traces.write_kineto import geometry

OFFSET_NS = 4_000_000_000  # from the session's start to the program's time 0
SCHEMA = "3.25.0"
MARKER = "iteration"  # steps are NVTX ranges "iteration N"
_VERSIONED = {
    "cudaLaunchKernel": "_v7000",
    "cudaLaunchKernelExC": "_v11060",
    "cudaGraphLaunch": "_v10000",
    "cudaEventRecord": "_v3020",
    "cudaStreamWaitEvent": "_v3020",
}
_COPY_KINDS = {"h2d": 1, "d2h": 2, "d2d": 8}
_MEMORY_KINDS = {"pageable": 0, "pinned": 1, "device": 2}
_ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": (
        (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
        (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
    ),
    "ENUM_CUDA_MEM_KIND": (
        (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
        (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
        (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
    ),
    "ENUM_CUPTI_SYNC_TYPE": (
        (0, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown"),
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ),
}
_SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
_NO_STREAM = 0xFFFFFFFF

# Table: its columns in order, each an INTEGER that may be missing unless marked: ! never missing, :T text, :R real.
_TABLES = {
    "StringIds": "id! value:T!",
    "META_DATA_EXPORT": "name:T! value:T",
    "META_DATA_CAPTURE": "name:T! value:T",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:T localTime:T systemClockNs",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId! priority globalTid",
    "TARGET_INFO_GPU": (
        "vmId! id! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId "
        "uuid:T luid chipName:T cuDevice computeMajor computeMinor smMajor smMinor"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid! uuid:T numMultiprocessors",
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext"
    ),
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid demangledName! shortName! "
        "mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! "
        "staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted "
        "graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX "
        "clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters "
        "sharedMemoryRequestedPercentage tensorSizeMinusOneElements:T!"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid bytes! copyKind! "
        "deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId "
        "virtualAddress copyCount"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid value! bytes! graphNodeId "
        "memKind"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid graphId! graphExecId!"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid deprecatedSyncType "
        "syncType! eventId! eventSyncId"
    ),
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:T globalTid endGlobalTid textId domainId uint64Value "
        "int64Value doubleValue:R uint32Value int32Value floatValue:R jsonTextId jsonText:T binaryData:T"
    ),
}
Row = dict[str, object]


def write_nsight(program: Program, path: str | Path) -> None:
    """Write all ranks of a program into one database, replacing what was there."""
    path = Path(path)
    path.unlink(missing_ok=True)
    tables = _Tables()
    for rank in program.ranks:
        tables.add_rank(program, rank)
    tables.add_session(program)
    with closing(sqlite3.connect(path)) as db:
        for table, columns in _TABLES.items():
            rows = tables.rows.get(table, [])
            if rows:  # an export has no empty tables
                _write(db, table, columns.split(), rows)
        for table, entries in _ENUMS.items():
            db.execute(f"CREATE TABLE {table} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", entries)
        db.commit()
        db.execute("VACUUM")


def _write(db: sqlite3.Connection, table: str, columns: Iterable[str], rows: list[Row]) -> None:
    declared, names = [], []
    for column in columns:
        name, _, kind = column.rstrip("!").partition(":")
        names.append(name)
        key = " PRIMARY KEY" if (table, name) == ("StringIds", "id") else ""
        missing = " NOT NULL" if column.endswith("!") else ""
        declared.append(f'"{name}" { ({"T": "TEXT", "R": "REAL"}.get(kind, "INTEGER")) }{missing}{key}')
    db.execute(f"CREATE TABLE {table} ({', '.join(declared)})")
    marks = ", ".join("?" * len(names))
    db.executemany(f"INSERT INTO {table} VALUES ({marks})", [[row.get(name) for name in names] for row in rows])


def api_name(name: str) -> str:
    """A runtime function's name with the version that exports add."""
    return name if name.startswith("cu") and not name.startswith("cuda") else name + _VERSIONED.get(name, "_v3020")


class _Tables:
    """The rows of every table."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.strings: dict[str, int] = {}

    def add(self, table: str, **row: object) -> None:
        self.rows.setdefault(table, []).append(row)

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings) + 1)

    def add_session(self, program: Program) -> None:
        device = program.device
        for ordinal in range(len(program.ranks)):
            self.add(
                "TARGET_INFO_GPU", vmId=1 << 48, id=ordinal, name=device["name"],
                busLocation=f"0000:{ordinal + 1:02x}:00.0", isDiscrete=1, totalMemory=device["totalGlobalMem"],
                smCount=device["numSms"], pwGpuId=ordinal,
                uuid=_uuid(ordinal), cuDevice=ordinal, computeMajor=device["computeMajor"],
                computeMinor=device["computeMinor"], smMajor=device["computeMajor"], smMinor=device["computeMinor"],
            )  # fmt: skip
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_767_225_600_000_000_000, utcTime="2026-01-01T00:00:00",
                 localTime="2026-01-01T00:00:00", systemClockNs=86_400_000_000_000)  # fmt: skip
        major, minor, micro = SCHEMA.split(".")
        for name, value in (
            ("EXPORT_PRODUCT_VERSION", "2026.2.1.210"),
            ("EXPORT_PRODUCT_DATE", "2026.2"),
            ("EXPORT_SCHEMA_VERSION", SCHEMA),
            ("EXPORT_SCHEMA_VERSION_MAJOR", major),
            ("EXPORT_SCHEMA_VERSION_MINOR", minor),
            ("EXPORT_SCHEMA_VERSION_MICRO", micro),
            ("EXPORT_PLATFORM", "linux-desktop"),
        ):
            self.add("META_DATA_EXPORT", name=name, value=value)
        whole = any(operation.kind == "graph" for rank in program.ranks for operation in rank.operations)
        for name, value in (
            ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph" if whole else "Node"),
            ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
            ("PROCESS_0:COLLECT_NVTX_TRACE", "true"),
        ):
            self.add("META_DATA_CAPTURE", name=name, value=value)
        for value, identity in self.strings.items():
            self.add("StringIds", id=identity, value=value)

    def add_rank(self, program: Program, rank: Rank) -> None:
        process = 1 << 48 | rank.pid << 24
        place: Row = {"deviceId": 0, "contextId": 1, "greenContextId": 0, "globalPid": process}
        self.add("PROCESSES", globalPid=process, pid=rank.pid, name="python3")
        for name, tid in rank.threads.items():
            self.add("ThreadNames", nameId=self.text(name), priority=20, globalTid=process | tid)
        self.add("TARGET_INFO_CUDA_DEVICE", gpuId=rank.device, cudaId=0, pid=rank.pid, uuid=_uuid(rank.device),
                 numMultiprocessors=program.device["numSms"])  # fmt: skip
        self.add("TARGET_INFO_CUDA_CONTEXT_INFO", nullStreamId=7, hwId=0, vmId=1, processId=rank.pid, deviceId=0,
                 contextId=1, parentContextId=0, isGreenContext=0)  # fmt: skip
        for stream in sorted({operation.stream for operation in rank.operations}):
            self.add("TARGET_INFO_CUDA_STREAM", streamId=stream, hwId=0, vmId=1, processId=rank.pid, contextId=1,
                     priority=0, flag=1 if stream == 7 else 2)  # fmt: skip
        for event in sorted(rank.events, key=lambda event: (event.start, -event.end)):
            self.add_host(event, process)
        for number, operation in enumerate(sorted(rank.operations, key=lambda op: (op.start, op.stream)), 1):
            self.add_operation(operation, place, number)
        for wait in rank.waits:
            self.add(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=wait.start + OFFSET_NS, end=wait.end + OFFSET_NS,
                streamId=_NO_STREAM if wait.stream < 0 else wait.stream, correlationId=wait.correlation,
                syncType=_SYNC_TYPES[wait.kind], eventId=_NO_STREAM if wait.event < 0 else wait.event, eventSyncId=0,
                **{**place, "greenContextId": None},
            )  # fmt: skip

    def add_host(self, event: HostEvent, process: int) -> None:
        span: Row = {
            "start": event.start + OFFSET_NS,
            "end": event.end + OFFSET_NS,
            "globalTid": process | event.thread,
        }
        if event.kind == "cuda_runtime":
            self.add("CUPTI_ACTIVITY_KIND_RUNTIME", eventClass=1, correlationId=event.correlation,
                     nameId=self.text(api_name(event.name)), returnValue=0, **span)  # fmt: skip
        elif event.kind == "user_annotation":
            text = re.sub(r"^ProfilerStep#", f"{MARKER} ", event.name)
            self.add("NVTX_EVENTS", eventType=59, text=text, domainId=0, **span)

    def add_operation(self, operation: DeviceOp, place: Row, number: int) -> None:
        row: Row = {
            **place, "start": operation.start + OFFSET_NS, "end": operation.end + OFFSET_NS,
            "streamId": operation.stream, "correlationId": operation.correlation,
            "graphNodeId": operation.graph << 32 | operation.node if operation.node else None,
        }  # fmt: skip
        if operation.kind == "graph":
            del row["graphNodeId"]
            self.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", graphId=operation.graph, graphExecId=operation.graph, **row)
        elif operation.kind == "memset":
            self.add("CUPTI_ACTIVITY_KIND_MEMSET", value=0, bytes=operation.bytes, memKind=2, **row)
        elif operation.kind == "memcpy":
            host, device = _MEMORY_KINDS.get(operation.memory, 2), _MEMORY_KINDS["device"]
            self.add(
                "CUPTI_ACTIVITY_KIND_MEMCPY", bytes=operation.bytes, copyKind=_COPY_KINDS[operation.copy],
                srcKind=host if operation.copy == "h2d" else device,
                dstKind=host if operation.copy == "d2h" else device, copyCount=1, **row,
            )  # fmt: skip
        else:
            grid, block, registers, shared = geometry(operation)
            name = self.text(operation.name)
            self.add(
                "CUPTI_ACTIVITY_KIND_KERNEL", demangledName=name, shortName=self.text(short_name(operation.name)),
                mangledName=name, launchType=1, cacheConfig=1, registersPerThread=registers, gridX=grid[0],
                gridY=grid[1], gridZ=grid[2], blockX=block[0], blockY=block[1], blockZ=block[2], staticSharedMemory=0,
                dynamicSharedMemory=shared, localMemoryPerThread=0, localMemoryTotal=0, gridId=number,
                sharedMemoryExecuted=shared, sharedMemoryLimitConfig=0, graphId=operation.graph or None, clusterX=0,
                clusterY=0, clusterZ=0, clusterSchedulingPolicy=0, maxPotentialClusterSize=0, maxActiveClusters=0,
                tensorSizeMinusOneElements="[]", **row,
            )  # fmt: skip


def short_name(name: str) -> str:
    """The function's own name, without type, namespaces and template arguments."""
    return re.split(r"[<(]", name.replace("(anonymous namespace)::", "").removeprefix("void "))[0].split("::")[-1]


def _uuid(ordinal: int) -> str:
    return f"00000000-0000-4000-8000-{ordinal:012x}"
