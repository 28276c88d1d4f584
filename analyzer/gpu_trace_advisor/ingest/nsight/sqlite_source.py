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

import numpy as np

from gpu_trace_advisor.columns.compact import constant
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight import arrow_batches
from gpu_trace_advisor.ingest.nsight.arrow_batches import BATCH_ROWS, ArrowError
from gpu_trace_advisor.ingest.nsight.source import Batch, Column, first_name
from gpu_trace_advisor.ingest.nsight.sqlite_file import check_file, damaged
from gpu_trace_advisor.ingest.raw_events import MISSING, Int64
from gpu_trace_advisor.runtime.heap import keep_nothing_large

SMALL_BYTES = 8 << 20
HUGE_BYTES = 64 << 20  # columns of such a file are large enough that what is freed of them counts
ROWS_FOR_TWO = 4 * BATCH_ROWS
LEAST_BYTES_A_ROW = 4  # a header byte, a serial type for each of at least two columns, and some content
MOST_DIGITS = 20  # characters that a stored byte may become: numbers are read as texts too
IDS_A_QUERY = 500


class Database:
    """An SQLite file as a Source. A context manager: the file is open inside it."""

    def __init__(self, path: Path, file: str = "") -> None:
        """Raises UnreadableTrace when the file is no whole, unlocked SQLite database; `file` names it in messages."""
        self.file = file or str(path)
        check_file(path, self.file)
        self.uri = path.absolute().as_uri() + "?mode=ro&immutable=1"
        self.bytes = path.stat().st_size
        self.large = self.bytes >= SMALL_BYTES
        if self.bytes >= HUGE_BYTES:
            keep_nothing_large()
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
        present = [column for column in columns if first_name(column) in self.tables[table]]
        select = f"SELECT {self._selected(table, present or ['rowid'], ())} FROM {_name(table)} NOT INDEXED"
        with self._explained():
            read = self._columns(select, table, max(len(present), 1))
        found = {name: _once(column) for name, column in zip(present, read, strict=False)}
        absent = constant(MISSING, len(read[0]))
        del read
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
        has = self.tables[table] | {"rowid"}
        parts = [f"ifnull({_integer(c, has)}, {MISSING})" for c in integers]
        parts += [f"ifnull(CAST({_name(c)} AS TEXT), '')" if c in has else "''" for c in texts]
        return ", ".join(parts)

    def _columns(self, select: str, table: str, width: int) -> list[Int64]:
        """Integer columns of a query; a large table is read in two halves by row id, each on a thread of its own."""
        # Asked apart, each is one look at an end of the table; asked together they read all of it.
        ends = (self.connection.execute(f"SELECT {end}(rowid) FROM {_name(table)}") for end in ("min", "max"))
        low, high = (found.fetchone()[0] for found in ends)
        if low is None:
            return [np.empty(0, np.int64) for _ in range(width)]
        most = high - low + 1  # rows, if none of the ids between is missing
        if most < 1:
            raise sqlite3.DatabaseError(f"row ids of {table} out of order")
        if most > self.bytes // LEAST_BYTES_A_ROW:
            return self._pieces(select, width)
        columns = [np.empty(most, np.int64) for _ in range(width)]
        if not self.large or most < ROWS_FOR_TWO:
            rows = self._fill(select, columns)
            return [column[:rows] for column in columns]
        half = most // 2
        parts = [column[:half] for column in columns], [column[half:] for column in columns]
        where = f"{select} WHERE rowid < {low + half}", f"{select} WHERE rowid >= {low + half}"
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(self._fill, where, parts)
        for column in columns if first < half else ():
            column[first : first + second] = column[half : half + second]
        return [column[: first + second] for column in columns]

    def _fill(self, query: str, columns: list[Int64]) -> int:
        """Write the rows of a query to the start of the columns, and say how many they are."""
        at = 0
        for integers, _ in self._run(query, len(columns), 0):
            if at + len(integers[0]) > len(columns[0]):
                raise sqlite3.DatabaseError("more rows than row ids")
            for column, values in zip(columns, integers, strict=True):
                column[at : at + len(values)] = values
            at += len(integers[0])
        return at

    def _pieces(self, query: str, width: int) -> list[Int64]:
        """The columns of a query with an unknown number of rows."""
        batches = [integers for integers, _ in self._run(query, width, 0)]
        return [np.concatenate([batch[i] for batch in batches] or [np.empty(0, np.int64)]) for i in range(width)]

    def _run(self, query: str, integers: int, texts: int) -> Iterator[Batch]:
        read = arrow_batches.read(self.uri, query, integers, texts) if self.large else self._rows(query, integers)
        rows = length = 0
        for batch in read:
            rows += len(batch[0][0]) if batch[0] else len(batch[1][0]) if batch[1] else 0
            length += sum(sum(map(len, column)) for column in batch[1])
            if (
                rows * LEAST_BYTES_A_ROW > self.bytes or length > MOST_DIGITS * self.bytes
            ):  # pages that are pointed at many times
                raise sqlite3.DatabaseError("more rows than the file has room for")
            yield batch

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
        except (sqlite3.Error, ArrowError, UnicodeDecodeError) as error:  # the last from a message about damaged text
            raise UnreadableTrace(damaged(self.file, error)) from error


def _once(column: Int64) -> Int64:
    """The column; in the room of one number where all are alike."""
    alike = len(column) > 0 and column[0] == column[-1] and bool((column == column[0]).all())
    return constant(int(column[0]), len(column)) if alike else column


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"' if identifier != "rowid" else identifier


def _integer(column: Column, has: frozenset[str]) -> str:
    """SQL of an integer or NULL; cast, so that a column has one type whatever its declaration and its first rows."""
    if isinstance(column, str):
        return f"CAST({_name(column)} AS INTEGER)" if column in has else str(MISSING)
    value, fits = "0", []
    for name, bits in zip(column.names, column.bits, strict=True):
        field = f"CAST({_name(name)} AS INTEGER)" if name in has else str(column.absent)
        fits.append(f"{field} BETWEEN 0 AND {(1 << bits) - 1}")
        value = f"(({value}) << {bits}) | {field}" if value != "0" else field
    return f"CASE WHEN {' AND '.join(fits)} THEN {value} END"
