"""Columns of an SQLite file as numpy arrays, read without a Python object a row where the file is large.

The file is opened read-only and immutable: nothing is created beside it, no lock is taken, and it is never changed.
Small files go through the standard library, which starts at once; large ones through ADBC in Arrow batches.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from analyzer.errors import UnreadableTrace
from analyzer.ingest import arrow_batches
from analyzer.ingest.arrow_batches import BATCH_ROWS, ArrowError
from analyzer.ingest.raw import MISSING, Int64

SMALL_BYTES = 8 << 20
ROWS_FOR_TWO = 4 * BATCH_ROWS
IDS_A_QUERY = 500
MAGIC = b"SQLite format 3\0"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
X_LIMIT, Y_LIMIT = 1 << 31, 1 << 16
INFORMATION = 100  # bytes of the file header

Column = str | tuple[str, str, str]
"""A column, or three small ones in one: x << 32 | y << 16 | z, an absent y or z as 1, MISSING when one does not fit."""
Batch = tuple[list[Int64], list[list[bytes]]]
"""Some rows: an array for each integer column and a list for each text column, in the order they were asked for."""


class Source(Protocol):
    """Tables of one export. Rows come in the same order whatever columns are asked for."""

    file: str
    """Name for messages."""
    tables: dict[str, frozenset[str]]
    """Table -> its columns."""

    def batches(self, table: str, integers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[Batch]:
        """The rows of a table in bounded batches. An integer that is NULL is MISSING, a text b""."""
        ...

    def integers(self, table: str, columns: Sequence[Column]) -> list[Int64]:
        """Whole integer columns, MISSING where NULL or where the table lacks the column; empty without the table."""
        ...

    def strings(self, ids: Int64) -> dict[int, bytes]:
        """The texts of these ids of the table `StringIds`; ids it lacks are left out."""
        ...


class Database:
    """An SQLite file as a Source. A context manager: the file is open inside it."""

    def __init__(self, path: Path, file: str = "") -> None:
        """Raises UnreadableTrace when the file is no whole, unlocked SQLite database; `file` names it in messages."""
        self.file = file or path.name
        check_file(path)
        self.uri = path.absolute().as_uri() + "?mode=ro&immutable=1"
        self.large = path.stat().st_size >= SMALL_BYTES
        with self._explained():
            self.connection = sqlite3.connect(self.uri, uri=True, check_same_thread=False)
            self.connection.text_factory = bytes
            try:
                self.tables = self._tables()
            except BaseException:
                self.connection.close()
                raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def batches(self, table: str, integers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[Batch]:
        if table not in self.tables:
            return
        query = f"SELECT {self._selected(table, integers, texts)} FROM {_name(table)} NOT INDEXED"
        with self._explained():
            yield from self._run(query, len(integers), len(texts))

    def integers(self, table: str, columns: Sequence[Column]) -> list[Int64]:
        if table not in self.tables:
            return [np.empty(0, np.int64) for _ in columns]
        present = [column for column in columns if first_of(column) in self.tables[table]]
        select = f"SELECT {self._selected(table, present or ['rowid'], ())} FROM {_name(table)} NOT INDEXED"
        with self._explained():
            read = self._in_two(select, table, max(len(present), 1))
        found = dict(zip(present, read, strict=False))
        absent = np.broadcast_to(np.int64(MISSING), len(read[0]))
        return [found.get(column, absent) for column in columns]

    def strings(self, ids: Int64) -> dict[int, bytes]:
        if not {"id", "value"} <= self.tables.get("StringIds", frozenset()):
            return {}
        wanted = ids.tolist()
        found: dict[int, bytes] = {}
        with self._explained():
            for i in range(0, len(wanted), IDS_A_QUERY):
                chunk = wanted[i : i + IDS_A_QUERY]
                marks = ",".join("?" * len(chunk))
                query = f"SELECT id, CAST(value AS TEXT) FROM StringIds WHERE id IN ({marks})"
                found.update((id_, value or b"") for id_, value in self.connection.execute(query, chunk))
        return found

    def _tables(self) -> dict[str, frozenset[str]]:
        names = [row[0] for row in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {}
        for raw in names:
            table = raw.decode("utf-8", "replace")
            columns = self.connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
            tables[table] = frozenset(column.decode("utf-8", "replace") for (column,) in columns)
        return tables

    def _selected(self, table: str, integers: Sequence[Column], texts: Sequence[str]) -> str:
        """Columns cast, so that a column is of one type whatever its declaration and its first rows are."""
        has = self.tables[table] | {"rowid"}
        parts = [f"ifnull({_integer(c, has)}, {MISSING})" for c in integers]
        parts += [f"ifnull(CAST({_name(c)} AS TEXT), '')" if c in has else "''" for c in texts]
        return ", ".join(parts)

    def _in_two(self, select: str, table: str, width: int) -> list[Int64]:
        """Integer columns of a query; a large table is read in two halves by row id, each on a thread of its own."""
        whole = [select]
        if self.large:
            # Asked apart, each is one look at an end of the table; asked together they read all of it.
            ends = (self.connection.execute(f"SELECT {end}(rowid) FROM {_name(table)}") for end in ("min", "max"))
            low, high = (found.fetchone()[0] for found in ends)
            if low is not None and high - low >= ROWS_FOR_TWO:
                middle = (low + high) // 2
                whole = [f"{select} WHERE rowid <= {middle}", f"{select} WHERE rowid > {middle}"]
        if len(whole) == 1:
            parts = [self._collect(whole[0], width)]
        else:
            with ThreadPoolExecutor(2) as pool:
                parts = list(pool.map(lambda query: self._collect(query, width), whole))
        columns = []
        for i in range(width):
            # One column after the other, so that no more than one is held twice.
            columns.append(np.concatenate([piece for part in parts for piece in part[i]] or [np.empty(0, np.int64)]))
            for part in parts:
                part[i].clear()
        return columns

    def _collect(self, query: str, width: int) -> list[list[Int64]]:
        pieces: list[list[Int64]] = [[] for _ in range(width)]
        for integers, _ in self._run(query, width, 0):
            for i, column in enumerate(integers):
                pieces[i].append(column)
        return pieces

    def _run(self, query: str, integers: int, texts: int) -> Iterator[Batch]:
        return arrow_batches.read(self.uri, query, integers, texts) if self.large else self._rows(query, integers)

    def _rows(self, query: str, integers: int) -> Iterator[Batch]:
        cursor = self.connection.execute(query)
        while rows := cursor.fetchmany(BATCH_ROWS):
            columns = list(zip(*rows, strict=True))
            yield [np.array(c, np.int64) for c in columns[:integers]], [list(c) for c in columns[integers:]]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Whatever SQLite or ADBC raise becomes an UnreadableTrace with one line."""
        try:
            yield
        except (sqlite3.Error, ArrowError) as error:
            raise UnreadableTrace(damaged(self.file, error)) from error


def check_file(path: Path) -> None:
    """Raise UnreadableTrace unless this is a whole SQLite database that nobody is writing."""
    file = path.name
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            header = f.read(INFORMATION)
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
    if len(header) < INFORMATION or (current and pages * page > size):
        raise UnreadableTrace(
            f"{file}: cut short: {size:,} of {max(pages * page, INFORMATION):,} bytes are there; "
            "copy it or export the report again"
        )
    _check_journals(path)
    if header[18] != 2:
        _check_lock(path)


def damaged(file: str, error: BaseException) -> str:
    """One line on a database that cannot be read to its end."""
    said = " ".join(str(error).split())
    return f"{file}: the SQLite database is damaged ({said}); copy it or export the report again"


def _check_journals(path: Path) -> None:
    """What lies in a journal beside the file is not in the file: reading on would show half a recording."""
    log, journal = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    try:
        unmerged = log.is_file() and log.stat().st_size > 0
        interrupted = journal.is_file() and journal.open("rb").read(8) == JOURNAL_MAGIC
    except OSError:
        return
    if unmerged:
        raise UnreadableTrace(
            f"{path.name}: holds changes only in {log.name}; close the program that has it open, or merge them with: "
            f"sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
    if interrupted:
        raise UnreadableTrace(
            f"{path.name}: an export that is still being written or was interrupted ({journal.name} is beside it); "
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
    except sqlite3.Error as error:
        if "locked" in str(error):
            message = f"{path.name}: another program is writing it (locked); wait until it is done"
            raise UnreadableTrace(message) from error


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"' if identifier != "rowid" else identifier


def first_of(column: Column) -> str:
    """The column that the others are worth nothing without."""
    return column if isinstance(column, str) else column[0]


def _integer(column: Column, has: frozenset[str]) -> str:
    """SQL of an integer or NULL."""
    if isinstance(column, str):
        return f"CAST({_name(column)} AS INTEGER)" if column in has else str(MISSING)
    x, y, z = (f"CAST({_name(c)} AS INTEGER)" if c in has else "1" for c in column)
    fits = f"{x} BETWEEN 0 AND {X_LIMIT - 1} AND {y} BETWEEN 0 AND {Y_LIMIT - 1} AND {z} BETWEEN 0 AND {Y_LIMIT - 1}"
    return f"CASE WHEN {fits} THEN ({x} << 32) | ({y} << 16) | {z} END"


def distinct(values: Int64) -> tuple[Int64, Int64]:
    """The distinct values, ascending, and the index among them of every row's value. Quick where values repeat."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < 4 * len(values) + 65536:
        present = np.zeros(high - low + 1, np.bool_)
        present[values - low] = True
        return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[values - low]
    heads = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    keys, codes = np.unique(values[heads], return_inverse=True)
    return keys, np.repeat(codes, np.diff(heads, append=len(values)))
