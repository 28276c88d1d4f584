"""An Nsight Systems recording as a Trace: an SQLite export, a folder of Parquet files, or the report itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_trace_advisor.columns.compact import constant, narrowed, where
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.assemble import Rows, assemble, rank_in_name
from gpu_trace_advisor.ingest.nsight.export import exported, is_report
from gpu_trace_advisor.ingest.nsight.nvtx import read_ranges
from gpu_trace_advisor.ingest.nsight.parquet_source import ParquetFolder, is_parquet_export
from gpu_trace_advisor.ingest.nsight.session import base_ns, devices, metadata, process_labels, producer, thread_names
from gpu_trace_advisor.ingest.nsight.source import Source, distinct
from gpu_trace_advisor.ingest.nsight.sqlite_source import Database
from gpu_trace_advisor.ingest.nsight.tables import CUPTI, Reader, TableRows
from gpu_trace_advisor.ingest.raw_events import MISSING
from gpu_trace_advisor.trace.model import NONE, Index, Int32, Int64, Kind, Note, Process, Sparse, Thread, Trace

Progress = Callable[[str], None]
NSIGHT = re.compile(
    rf"{CUPTI}\w+|NVTX_EVENTS|OSRT_API|StringIds|META_DATA_EXPORT|EXPORT_META_DATA|TARGET_INFO_\w+|PROFILER_OVERHEAD"
)
NVPROF = {CUPTI + "CONCURRENT_KERNEL", CUPTI + "CDP_KERNEL", CUPTI + "DRIVER", CUPTI + "DEVICE"}
ESSENTIAL = {"start", "end"}


def read_nsight(path: Path, progress: Progress | None = None) -> Trace:
    """The Trace of an Nsight Systems recording.

    A report (`.nsys-rep`, `.qdrep`) is exported first where `nsys` is installed; `progress` is told so in one line.
    Raises UnreadableTrace when the file is no recording that can be read.
    """
    if path.is_dir():
        if not is_parquet_export(path):
            raise UnreadableTrace(f"{path}: a folder without the tables of an Nsight Systems export")
        with ParquetFolder(path) as folder:
            return to_trace(folder, path)
    if is_report(path):
        with exported(path, progress) as export, Database(export, str(path)) as database:
            return to_trace(database, path)
    with Database(path) as database:
        return to_trace(database, path)


def to_trace(source: Source, path: Path) -> Trace:
    """The Trace of an export's tables. `path` gives the name, and the rank where it says one."""
    _check_tables(source)
    reader = Reader(source)
    parts = [part for part in (*read_ranges(reader), *reader.parts()) if len(part)]
    rows = _rows(source, reader, parts)
    about = metadata(source)
    return assemble(
        rows,
        name=path.name,
        format="nsight",
        producer=producer(about),
        metadata=about,
        base_ns=base_ns(source),
        rank=rank_in_name(path.name),
        notes=reader.notes + _unknown_tables(source),
    )


def _rows(source: Source, reader: Reader, parts: list[TableRows]) -> Rows:
    """The parts one after the other. They give up their columns, which are large."""
    integers, texts = _sparse(parts, "integers"), _sparse(parts, "texts")
    pids, process = distinct(_taken(parts, "pid"))
    labels = process_labels(source)
    threads, thread = _threads(source, _taken(parts, "tid"), process, pids)
    kind, start, end = _taken(parts, "kind"), _taken(parts, "start"), _taken(parts, "end")
    device = _or_none(_taken(parts, "device"))
    on_device = kind >= Kind.KERNEL
    return Rows(
        kind=kind,
        start_ns=start,
        end_ns=end,
        untimed=(start == MISSING) | (end == MISSING),
        name_code=_taken(parts, "name"),
        process=process.astype(np.int32, copy=False),
        thread=thread,
        device=device.astype(np.int32, copy=False),
        stream=_or_none(_taken(parts, "stream")),
        correlation=_or_none(_taken(parts, "correlation")),
        bytes=_or_none(_taken(parts, "bytes")),
        names=reader.names.strings,
        threads=threads,
        processes=[Process(pid, label=labels.get(pid, "")) for pid in pids.tolist()],
        devices=devices(source, pids, process[on_device], device[on_device]),
        integers=integers,
        texts=texts,
        strings=reader.names.strings,
    )


def _check_tables(source: Source) -> None:
    """Raise UnreadableTrace, naming what there is, unless these are the tables of an Nsight Systems export."""
    tables = sorted(source.tables)
    if NVPROF & set(tables) and CUPTI + "KERNEL" not in source.tables:
        raise UnreadableTrace(
            f"{source.file}: recorded by nvprof, which is not read; record the program again with: nsys profile"
        )
    if not any(NSIGHT.fullmatch(table) for table in tables):
        listed = ", ".join(tables[:6]) + (", …" if len(tables) > 6 else "") if tables else "none"
        raise UnreadableTrace(
            f"{source.file}: no Nsight Systems export (its tables: {listed}); make one with: "
            "nsys export --type sqlite REPORT.nsys-rep"
        )
    for table in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME"):
        lacking = ESSENTIAL - source.tables.get(CUPTI + table, frozenset(ESSENTIAL))
        if lacking:
            raise UnreadableTrace(
                f"{source.file}: the table {CUPTI}{table} has no column {', '.join(sorted(lacking))}; "
                "export the report again"
            )


def _unknown_tables(source: Source) -> list[Note]:
    """Tables that look like GPU work under a name that is not known: work that the Trace lacks."""
    known = re.compile(rf"{CUPTI}(KERNEL|MEMCPY|MEMSET|GRAPH_TRACE)(_V\d+)?")
    unknown = [t for t in source.tables if re.match(rf"{CUPTI}\w*(KERNEL|MEMCPY|MEMSET)", t) and not known.fullmatch(t)]
    unknown = [t for t in sorted(unknown) if len(source.integers(t, ("start",))[0])]
    message = f"tables of a kind that is not known were left out: {', '.join(unknown)}"
    return [Note("partial", message, len(unknown))] if unknown else []


def _taken(parts: Sequence[TableRows], column: str) -> Any:
    """A column of all parts, which are left without it."""
    pieces = [vars(part).pop(column) for part in parts]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces or [np.empty(0, {"kind": np.int8, "name": np.int32}.get(column, np.int64))])


def _or_none(column: Int64) -> Index:
    if len(column) and (column == column[0]).all():
        return constant(NONE if column[0] == MISSING else int(column[0]), len(column))
    column = column if column.flags.writeable else column.copy()
    column[column == MISSING] = NONE
    return narrowed(column)


def _threads(source: Source, tid: Int64, process: Index, pids: Int64) -> tuple[list[Thread], Int32]:
    """Host threads by process and thread id, and each row's."""
    thread = np.full(len(tid), NONE, np.int32)
    host = where(tid != MISSING)
    keys, codes = distinct((process[host].astype(np.int64) << 24) | tid[host])
    thread[host] = codes
    names = thread_names(source)
    threads = []
    for key in keys.tolist():
        pid, number = int(pids[key >> 24]), key & 0xFFFFFF
        threads.append(Thread(key >> 24, str(pid), str(number), names.get((pid, number), "")))
    return threads, thread


def _sparse(parts: Sequence[TableRows], group: str) -> dict[str, Sparse]:
    """Each argument over all parts, rows numbered as when the parts are put one after the other."""
    pieces: dict[str, list[Sparse]] = {}
    first = 0
    for part in parts:
        moved: dict[int, Index] = {}  # those of the same rows go on sharing them
        for name, column in getattr(part, group).items():
            if len(column.rows):
                rows = moved.setdefault(id(column.rows), column.rows + first if first else column.rows)
                pieces.setdefault(name, []).append(Sparse(rows, column.values))
        first += len(part)
        setattr(part, group, {})
    return {name: _one_after_the_other(columns) for name, columns in pieces.items()}


def _one_after_the_other(columns: Sequence[Sparse]) -> Sparse:
    if len(columns) == 1:
        return columns[0]
    return Sparse(np.concatenate([c.rows for c in columns]), np.concatenate([c.values for c in columns]))
