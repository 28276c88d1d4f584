"""Tables of an Nsight Systems export as rows: one Part a table, columns and tables by presence, never by version."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gpu_trace_advisor.columns.compact import blocks, narrowed, places, where
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight.names import (
    COPIES,
    MEMORIES,
    OVERHEADS,
    Names,
    copy_name,
    memory_name,
    overhead_name,
    sync_name,
    without_version,
)
from gpu_trace_advisor.ingest.nsight.source import Column, PackedColumns, Source, distinct
from gpu_trace_advisor.ingest.raw_events import MISSING
from gpu_trace_advisor.trace.call_errors import RETURNED
from gpu_trace_advisor.trace.model import Bool, Index, Int8, Int32, Int64, Kind, Note, Sparse

CUPTI = "CUPTI_ACTIVITY_KIND_"
CUDA_CLASSES = (0, 1)  # runtime and driver; other event classes repeat the same calls under other names
GRID, BLOCK = (PackedColumns((f"{of}X", f"{of}Y", f"{of}Z"), (31, 16, 16), 1) for of in ("grid", "block"))
RESOURCES = PackedColumns(("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"), (15, 24, 24), 0)
NO_ID = 4294967295  # "none" as an unsigned 32-bit id
PUSH_POP, START_END, DOMAIN = 59, 60, 75


@dataclass
class TableRows:
    """Rows of one table, n of them; what has no meaning for a table is MISSING."""

    kind: Int8
    start: Int64
    end: Int64
    name: Int32
    """[n] code in `Names`."""
    pid: Int64
    tid: Int64
    device: Int64
    stream: Int64
    correlation: Int64
    bytes: Int64
    integers: dict[str, Sparse] = field(default_factory=dict)
    texts: dict[str, Sparse] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)


class Reader:
    """Reads the tables of one export; names are shared between them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names = Names()
        self.notes: list[Note] = []

    def parts(self) -> list[TableRows]:
        """Every table but the ranges, host rows first; a table that is not there gives no rows."""
        calls = self.calls()
        host = [calls, self.os_calls(), *self.overheads()]
        return [*host, self.kernels(), self.graphs(), self.copies(), self.sets(), self.syncs(calls)]

    def calls(self) -> TableRows:
        """Runtime and driver calls."""
        table = CUPTI + "RUNTIME"
        start, end, thread, correlation, name, kind, returned = self._integers(
            table, "start", "end", "globalTid", "correlationId", "nameId", "eventClass", "returnValue"
        )
        codes = self._named(name, without_version, table, "name")
        kept = np.isin(kind, CUDA_CLASSES) | (kind == MISSING)
        part = host_part(Kind.CALL, start, end, codes, thread, correlation)
        if not kept.all():
            part, returned = _subset(part, kept), returned[kept]
        part.integers = _present({RETURNED: np.where(returned == 0, MISSING, returned)})
        return part

    def os_calls(self) -> TableRows:
        start, end, thread, name = self._integers("OSRT_API", "start", "end", "globalTid", "nameId")
        return host_part(Kind.OS, start, end, self._named(name, str, "OSRT_API", "name"), thread)

    def overheads(self) -> list[TableRows]:
        """Time of the profiler and of the driver's own one-off work, named as Kineto names it where CUPTI tells."""
        labels = self._labels("ENUM_CUPTI_OVERHEAD_TYPE", OVERHEADS, overhead_name)
        parts = []
        for table in ("PROFILER_OVERHEAD", CUPTI + "OVERHEAD"):
            start, end, thread, name, kind = self._integers(
                table, "start", "end", "globalTid", "nameId", "overheadType"
            )
            codes = self._named(name, str, table, "name")
            if table.startswith(CUPTI):
                by_kind = self._per_value(kind, lambda k: labels.get(k, ""))
                codes = np.where(by_kind == self.names.code(""), codes, by_kind).astype(np.int32)
            parts.append(host_part(Kind.OVERHEAD, start, end, codes, thread))
        return parts

    def kernels(self) -> TableRows:
        table = CUPTI + "KERNEL"
        start, end, device, stream, correlation, pid, name, node, graph, resources, grid, block = self._integers(
            table, "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName",
            "graphNodeId", "graphId", RESOURCES, GRID, BLOCK,
        )  # fmt: skip
        if (name == MISSING).any():
            (short,) = self._integers(table, "shortName")
            name = np.where(name == MISSING, short, name)
        names = self._named(name, str)
        del name
        part = device_part(Kind.KERNEL, start, end, names, pid, device, stream, correlation)
        del start, end, names, pid, device, stream, correlation  # the part gives them up one by one
        rows = where(resources != MISSING)
        part.integers = {
            **_values(resources, rows, {
                "registers per thread": lambda packed: packed >> 48,
                "shared memory": lambda packed: (packed >> 24 & 0xFFFFFF) + (packed & 0xFFFFFF),
            }),
            **_values(node, where(node > 0), {"graph node id": lambda number: number}),
            **_values(graph, where(graph > 0), {"graph id": lambda number: number}),
        }  # fmt: skip
        del resources, node, graph
        part.texts = {"grid": self._shapes(grid, rows)}
        del grid
        part.texts["block"] = self._shapes(block, rows)
        return part

    def graphs(self) -> TableRows:
        """Graph replays recorded as one row each."""
        start, end, device, stream, correlation, pid, graph, executable = self._integers(
            CUPTI + "GRAPH_TRACE", "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId",
            "graphExecId",
        )  # fmt: skip
        names = self._per_value(graph, lambda g: "CUDA graph" if g == MISSING else f"CUDA graph {g}")
        part = device_part(Kind.GRAPH, start, end, names, pid, device, stream, correlation)
        part.integers = _present({"graph id": graph, "graph exec id": executable})
        if len(part):
            self.notes.append(
                Note(
                    "unrecorded-graph-nodes",
                    f"{len(part)} graph replays are recorded whole, without their kernels: record again with "
                    "--cuda-graph-trace=node to see inside them (that adds overhead)",
                    len(part),
                )
            )
        return part

    def copies(self) -> TableRows:
        start, end, device, stream, correlation, pid, size, copy, source, target, node, source_device, target_device = (
            self._integers(
                CUPTI + "MEMCPY", "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
                "copyKind", "srcKind", "dstKind", "graphNodeId", "srcDeviceId", "dstDeviceId",
            )
        )  # fmt: skip
        kinds = self._labels("ENUM_CUDA_MEMCPY_OPER", COPIES, lambda name: name.rpartition("KIND_")[2])
        memories = self._labels("ENUM_CUDA_MEM_KIND", MEMORIES, memory_name)
        # Small numbers, or damage; one code for the three of them.
        small = [np.clip(column, -1, 254) for column in (copy, source, target)]
        code = (small[0] << 16) | ((small[1] & 255) << 8) | (small[2] & 255)
        names = self._per_value(
            code, lambda c: copy_name(kinds.get(c >> 16, ""), memories.get(c >> 8 & 255), memories.get(c & 255))
        )
        part = device_part(Kind.COPY, start, end, names, pid, device, stream, correlation, size)
        peers = (source_device != MISSING) & (target_device != MISSING) & (source_device != target_device)
        part.integers = _present({
            "graph node id": np.where(node > 0, node, MISSING),
            "fromDevice": np.where(peers, source_device, MISSING), "toDevice": np.where(peers, target_device, MISSING),
        })  # fmt: skip
        return part

    def sets(self) -> TableRows:
        start, end, device, stream, correlation, pid, size, memory, node = self._integers(
            CUPTI + "MEMSET", "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "memKind",
            "graphNodeId",
        )  # fmt: skip
        memories = self._labels("ENUM_CUDA_MEM_KIND", MEMORIES, memory_name)
        names = self._per_value(memory, lambda m: f"Memset ({memories.get(m, 'Unknown')})")
        part = device_part(Kind.SET, start, end, names, pid, device, stream, correlation, size)
        part.integers = _present({"graph node id": np.where(node > 0, node, MISSING)})
        return part

    def syncs(self, calls: TableRows) -> TableRows:
        """Waits, named by the call that made them: the numbers in `syncType` mean other things in other versions."""
        start, end, device, stream, correlation, pid, event = self._integers(
            CUPTI + "SYNCHRONIZATION", "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "eventId"
        )
        part = device_part(Kind.SYNC, start, end, np.zeros(len(start), np.int32), pid, device, stream, correlation)
        made = _joined(calls.pid, calls.correlation, calls.name.astype(np.int64), part.pid, part.correlation)
        part.name = self._per_value(made, lambda code: sync_name(self.names.strings[code] if code != MISSING else ""))
        event = np.where(event == NO_ID, MISSING, event)
        part.integers = _present({"wait_on_cuda_event_id": event, **self._records(part, event)})
        return part

    def _records(self, syncs: TableRows, event: Int64) -> dict[str, Int64]:
        """The latest record of the event that each wait is for: its correlation and its stream."""
        pid, stream, correlation, recorded = self._integers(
            CUPTI + "CUDA_EVENT", "globalPid", "streamId", "correlationId", "eventId"
        )
        if not len(pid) or not (event != MISSING).any():
            return {}
        both, codes = distinct(np.concatenate([recorded, event]))
        _, owner = distinct(np.concatenate([process_id(pid), syncs.pid]))
        key = (owner.astype(np.int64) * len(both) + codes) << 32
        key |= np.clip(np.concatenate([correlation, syncs.correlation]), 0, NO_ID)
        order = np.argsort(key[: len(pid)], kind="stable")
        keys = key[order]
        at = np.searchsorted(keys, key[len(pid) :]) - 1
        found = (at >= 0) & (keys[at] >> 32 == key[len(pid) :] >> 32) & (event != MISSING)
        row = order[at]
        return {
            "wait_on_cuda_event_record_corr_id": np.where(found, correlation[row], MISSING),
            "wait_on_stream": np.where(found & (stream[row] != NO_ID), stream[row], MISSING),
        }

    def _integers(self, table: str, *columns: Column) -> list[Int64]:
        return self.source.integers(self.table(table), columns)

    def table(self, name: str) -> str:
        """The table of this name, or a later version of it (`…_V2`), if the export has one."""
        if name in self.source.tables:
            return name
        versions = [t for t in self.source.tables if re.fullmatch(re.escape(name) + r"_V\d+", t)]
        return max(versions, default=name)

    def texts(self, table: str, column: str, rows: int) -> Iterator[tuple[int, bytes]]:
        """The texts of a table with so many rows, each with its row; rows without one are left out."""
        row = 0
        for _, (texts,) in self.source.batches(self.table(table), (), (column,)):
            if row + len(texts) > rows:
                break
            yield from ((row + i, text) for i, text in enumerate(texts) if text)
            row += len(texts)
        if row != rows:
            raise UnreadableTrace(
                f"{self.source.file}: the rows of {table} do not add up: damaged; export the report again"
            )

    def _named(self, ids: Int64, change: Callable[[str], str], table: str = "", text: str = "") -> Int32:
        """Name codes of string ids; rows without one take the text column where the table has it."""
        keys, codes = distinct(ids)
        found = self.source.strings(keys)
        names = [self.names.code(change(found.get(k, b"").decode("utf-8", "replace"))) for k in keys.tolist()]
        result = np.array(names, np.int32)[codes] if len(keys) else np.empty(0, np.int32)
        if text in self.source.tables.get(self.table(table), ()) and (ids == MISSING).any():
            for row, own in self.texts(table, text, len(ids)):
                if ids[row] == MISSING:
                    result[row] = self.names.code(change(own.decode("utf-8", "replace")))
        return result

    def _per_value(self, values: Int64, name: Callable[[int], str]) -> Int32:
        keys, codes = distinct(values)
        table = np.array([self.names.code(name(k)) for k in keys.tolist()], np.int32)
        return table[codes] if len(keys) else np.empty(0, np.int32)

    def _labels(self, table: str, fallback: dict[int, str], change: Callable[[str], str]) -> dict[int, str]:
        """What the numbers of an enumeration mean: the export's own table, else Nsight's usual meaning."""
        labels = dict(fallback)
        for (ids,), (names,) in self.source.batches(table, ("id",), ("name",)):
            for number, name in zip(ids.tolist(), names, strict=True):
                if name:
                    labels[number] = change(name.decode("utf-8", "replace"))
        return labels

    def _shapes(self, packed: Int64, rows: Index) -> Sparse:
        """`[x, y, z]` for every row that has sizes, its text made once for each distinct shape. `rows` are shared where they
        are the ones."""
        mine = where(packed != MISSING)
        rows = rows if np.array_equal(rows, mine) else mine
        keys, codes = distinct(packed if len(rows) == len(packed) else packed[rows])
        names = [self.names.code(f"[{k >> 32}, {k >> 16 & 0xFFFF}, {k & 0xFFFF}]") for k in keys.tolist()]
        return Sparse(rows, np.array(names, np.int32)[codes])


def process_id(serialized: Int64) -> Int64:
    """The process id in a globalPid or globalTid; 0 where there is none."""
    return np.where(serialized == MISSING, 0, (serialized >> 24) & 0xFFFFFF)


def host_part(
    kind: Kind, start: Int64, end: Int64, name: Int32, thread: Int64, correlation: Int64 | None = None
) -> TableRows:
    n = len(start)
    none = np.broadcast_to(np.int64(MISSING), n)
    tid = np.where(thread == MISSING, MISSING, thread & 0xFFFFFF)
    return TableRows(
        np.full(n, kind, np.int8), start, end, name, process_id(thread), tid, none, none,
        none if correlation is None else correlation, none,
    )  # fmt: skip


def device_part(
    kind: Kind, start: Int64, end: Int64, name: Int32, pid: Int64, device: Int64, stream: Int64, correlation: Int64,
    size: Int64 | None = None,
) -> TableRows:  # fmt: skip
    n = len(start)
    none = np.broadcast_to(np.int64(MISSING), n)
    return TableRows(
        np.full(n, kind, np.int8), start, end, name, process_id(pid), none, device,
        np.where(stream == NO_ID, MISSING, stream), correlation, none if size is None else size,
    )  # fmt: skip


def _values(column: Int64, rows: Index, made: dict[str, Callable[[Int64], Int64]]) -> dict[str, Sparse]:
    """Columns made of another one, at these rows; none where there are none."""
    if not len(rows):
        return {}
    columns = {}
    for name, make in made.items():
        values = np.empty(len(rows), np.int64)
        for part in blocks(len(rows)):
            values[part] = make(column[rows[part]])
        columns[name] = Sparse(rows, narrowed(values))
    return columns


def _present(columns: dict[str, Int64]) -> dict[str, Sparse]:
    """Columns without their missing values; columns with nothing else are left out."""
    result = {}
    everywhere: Index | None = None
    for name, column in columns.items():
        has = column != MISSING
        if has.all() and len(column):
            everywhere = places(len(column)) if everywhere is None else everywhere
            result[name] = Sparse(everywhere, narrowed(column))
        elif has.any():
            result[name] = Sparse(where(has), narrowed(column[has]))
    return result


def _joined(pid: Int64, correlation: Int64, value: Int64, on_pid: Int64, on_correlation: Int64) -> Int64:
    """For each (on_pid, on_correlation) the value of the first row with that process and correlation, else MISSING."""
    result = np.full(len(on_pid), MISSING, np.int64)
    at = np.flatnonzero(np.isin(correlation, on_correlation) & (correlation > 0))
    if not len(at):
        return result
    keys, first = np.unique(_process_and_correlation(pid[at], correlation[at]), return_index=True)
    wanted = _process_and_correlation(on_pid, on_correlation)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = keys[place] == wanted
    result[found] = value[at[first[place[found]]]]
    return result


def _process_and_correlation(pid: Int64, correlation: Int64) -> Int64:
    return (pid << 36) | np.clip(correlation, 0, (1 << 36) - 1)


def _subset(part: TableRows, kept: Bool) -> TableRows:
    return TableRows(**{name: column[kept] for name, column in vars(part).items() if name not in ("integers", "texts")})
