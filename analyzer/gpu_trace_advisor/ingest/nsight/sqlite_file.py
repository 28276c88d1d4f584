"""Whether an SQLite file can be read: whole, and not being written. Nothing is created beside it."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

from gpu_trace_advisor.errors import UnreadableTrace

MAGIC = b"SQLite format 3\0"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
HEADER = 100  # bytes


def check_file(path: Path, file: str) -> None:
    """Raise UnreadableTrace, calling it `file`, unless this is a whole SQLite database that nobody is writing."""
    try:
        size = path.stat().st_size
        header = _head(path, HEADER)
    except OSError as error:
        raise UnreadableTrace(f"{file}: cannot be read: {error.strerror or error}") from error
    if not header:
        raise UnreadableTrace(f"{file}: the file is empty; export the report again")
    if header[:16] != MAGIC:
        raise UnreadableTrace(
            f"{file}: no SQLite database (it starts with {header[:16]!r}): encrypted, damaged or another format; "
            "export it with: nsys export --type sqlite REPORT.nsys-rep"
        )
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    current = header[24:28] == header[92:96]  # else an old writer left the number of pages unset
    if len(header) < HEADER or (current and pages * page > size):
        raise UnreadableTrace(
            f"{file}: cut short: {size:,} of {max(pages * page, HEADER):,} bytes are there; "
            "copy it or export the report again"
        )
    _check_journals(path)
    if header[18] != 2:
        _check_lock(path)


def _head(path: Path, length: int) -> bytes:
    with path.open("rb") as f:
        return f.read(length)


def damaged(file: str, error: BaseException) -> str:
    """One line on a database that cannot be read to its end."""
    said = " ".join(str(error).split())
    return f"{file}: the SQLite database is damaged ({said}); copy it or export the report again"


def _check_journals(path: Path) -> None:
    """What lies in a journal beside the file is not in the file: reading on would show half a recording."""
    log, journal = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    try:
        unmerged = log.is_file() and log.stat().st_size > 0
        interrupted = journal.is_file() and _head(journal, 8) == JOURNAL_MAGIC
    except OSError:
        return
    if unmerged:
        raise UnreadableTrace(
            f"{path}: holds changes only in {log.name}; close the program that has it open, or merge them with: "
            f"sqlite3 {shlex.quote(str(path))} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
    if interrupted:
        raise UnreadableTrace(
            f"{path}: an export that is still being written or was interrupted ({journal.name} is beside it); "
            "wait for it or export the report again"
        )


def _check_lock(path: Path) -> None:
    """An immutable connection ignores locks, so ask an ordinary read-only one. It takes a lock and writes nothing."""
    try:
        connection = sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True, timeout=0)
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        finally:
            connection.close()
    except UnicodeDecodeError:  # a message about damaged text; the damage is met again when the tables are read
        return
    except sqlite3.Error as error:
        if "locked" in str(error):
            message = f"{path}: another program is writing it (locked); wait until it is done"
            raise UnreadableTrace(message) from error
