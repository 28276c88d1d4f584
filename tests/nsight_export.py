"""Small Nsight Systems exports for tests: tables written as given, ids packed as the recorder packs them."""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CUPTI = "CUPTI_ACTIVITY_KIND_"
VM = 1 << 48  # what stands above the process id in a serialized id
NO_ID = 4294967295
TEXTS = frozenset({"value", "text", "name", "uuid", "label"})

Rows = Sequence[Mapping[str, Any]]


def process(pid: int) -> int:
    """A globalPid."""
    return VM | pid << 24


def thread(pid: int, tid: int) -> int:
    """A globalTid."""
    return VM | pid << 24 | tid


def write(path: Path, strings: Mapping[int, str | bytes] | None = None, **tables: Rows) -> Path:
    """A database with these tables; a table has the columns that its rows have. `strings` are those of StringIds."""
    db = sqlite3.connect(path)
    if strings is not None:
        tables = {"StringIds": [{"id": id_, "value": text} for id_, text in strings.items()], **tables}
    for table, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row)) or ["start", "end"]
        types = ", ".join(f'"{c}" {"TEXT" if c in TEXTS else "INTEGER"}' for c in columns)
        db.execute(f'CREATE TABLE "{table}" ({types})')
        marks = ", ".join("CAST(? AS TEXT)" if c in TEXTS else "?" for c in columns)
        db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(c) for c in columns] for row in rows])
    db.commit()
    db.close()
    return path


def kernel(start: int, end: int, correlation: int = 0, pid: int = 500, name: int = 1, **more: Any) -> dict[str, Any]:
    """A row of CUPTI_ACTIVITY_KIND_KERNEL on device 0, stream 7."""
    row = {"start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": correlation}
    return {**row, "globalPid": process(pid), "demangledName": name, "shortName": name, **more}


def call(
    start: int, end: int, correlation: int, name: int, pid: int = 500, tid: int = 501, **more: Any
) -> dict[str, Any]:
    """A row of CUPTI_ACTIVITY_KIND_RUNTIME."""
    row = {"start": start, "end": end, "eventClass": 0, "globalTid": thread(pid, tid), "correlationId": correlation}
    return {**row, "nameId": name, **more}


def nvtx(start: int, end: int | None, text: str | None, event: int = 59, **more: Any) -> dict[str, Any]:
    """A row of NVTX_EVENTS."""
    row = {"start": start, "end": end, "eventType": event, "text": text, "textId": None, "domainId": 0}
    return {**row, "globalTid": thread(500, 501), **more}
