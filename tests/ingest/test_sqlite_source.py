"""Columns of SQLite files: both ways of reading give the same arrays, whatever the tables are like."""

import ctypes
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight import arrow_batches
from gpu_trace_advisor.ingest.nsight import sqlite_source as sqlite_columns
from gpu_trace_advisor.ingest.nsight.source import PackedColumns, distinct
from gpu_trace_advisor.ingest.nsight.sqlite_source import Database
from gpu_trace_advisor.ingest.raw_events import MISSING
from gpu_trace_advisor.runtime import heap
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

Make = Callable[..., Path]


@pytest.fixture(params=["standard library", "adbc", "adbc in two"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with every way of reading, in small batches."""
    monkeypatch.setattr(sqlite_columns, "BATCH_ROWS", 7)
    monkeypatch.setattr(arrow_batches, "BATCH_ROWS", 7)
    if request.param != "standard library":
        monkeypatch.setattr(sqlite_columns, "SMALL_BYTES", 0)
    if request.param == "adbc in two":
        monkeypatch.setattr(sqlite_columns, "ROWS_FOR_TWO", 2)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def database(columns: str, rows: Sequence[Sequence[Any]], *more: str) -> Path:
        """A database with a table t of these columns and rows, and what further statements do to it."""
        path = tmp_path / "t.sqlite"
        path.unlink(missing_ok=True)
        db = sqlite3.connect(path)
        db.execute(f"CREATE TABLE t ({columns})")
        if rows:
            db.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
        for statement in more:
            db.execute(statement)
        db.commit()
        db.close()
        return path

    return database


def integers(path: Path, *columns: Any) -> list[list[int]]:
    with Database(path) as database:
        return [column.tolist() for column in database.integers("t", columns)]


def test_columns_come_in_the_order_asked_for(make: Make) -> None:
    path = make("a INTEGER, b INTEGER", [(i, -i) for i in range(100)])
    assert integers(path, "b", "a", "b") == [[-i for i in range(100)], list(range(100)), [-i for i in range(100)]]


def test_extremes_are_exact(make: Make) -> None:
    values = [2**63 - 1, -(2**63) + 1, 2**53 + 1, 0, -1]
    assert integers(make("a INTEGER", [(v,) for v in values]), "a") == [values]


def test_null_first_and_text_among_integers(make: Make) -> None:
    rows = [(None,)] * 20 + [("12",), ("x",), (3.9,), (b"44",), (None,), (5,)]
    assert integers(make("a INTEGER", rows), "a") == [[MISSING] * 20 + [12, 0, 3, 44, MISSING, 5]]


@pytest.mark.parametrize("type_", ["INT", "TEXT", "REAL", "BLOB", ""])
def test_the_declared_type_means_nothing(make: Make, type_: str) -> None:
    assert integers(make(f"a {type_}", [(7,), (None,), (8,)]), "a") == [[7, MISSING, 8]]


def test_what_is_not_there_is_missing(make: Make) -> None:
    path = make("a INTEGER", [(1,), (2,)])
    assert integers(path, "nope", "a") == [[MISSING, MISSING], [1, 2]]
    assert integers(path, "nope") == [[MISSING, MISSING]]
    with Database(path) as database:
        assert [len(column) for column in database.integers("no_table", ("a", "b"))] == [0, 0]
        assert list(database.batches("no_table", ("a",))) == []
        assert database.strings(np.array([1])) == {}


def test_an_empty_table(make: Make) -> None:
    assert integers(make("a INTEGER", []), "a", "b") == [[], []]


def test_rows_keep_their_order_across_gaps_in_the_row_ids(make: Make) -> None:
    path = make("a INTEGER", [(i,) for i in range(200)], "DELETE FROM t WHERE a % 3 = 1", "DELETE FROM t WHERE a < 40")
    assert integers(path, "a") == [[i for i in range(40, 200) if i % 3 != 1]]


def test_row_ids_far_apart(make: Make) -> None:
    path = make("a INTEGER", [(1,), (2,)], "INSERT INTO t (rowid, a) VALUES (9000000000000000000, 3), (-5, 0)")
    assert integers(path, "a") == [[0, 1, 2, 3]]


def test_an_index_does_not_change_the_order(make: Make) -> None:
    path = make("a INTEGER", [(9 - i,) for i in range(10)], "CREATE INDEX i ON t (a)")
    assert integers(path, "a") == [[9 - i for i in range(10)]]


def test_packed_columns(make: Make) -> None:
    packed = PackedColumns(("x", "y", "z"), (31, 16, 16), 1)
    rows: list[tuple[Any, ...]] = [
        (5, 6, 7), (2**31 - 1, 65535, 65535), (2**31, 0, 0), (0, 65536, 0), (1, -1, 1), (None, 1, 1), (1, 1, None),
    ]  # fmt: skip
    path = make("x INTEGER, y INTEGER, z INTEGER", rows)
    assert integers(path, packed) == [[(5 << 32) | (6 << 16) | 7, 2**63 - 1, *[MISSING] * 5]]
    path = make("x INTEGER", [(5,)])
    assert integers(path, packed, PackedColumns(("y", "x"), (8, 8), 0)) == [[(5 << 32) | (1 << 16) | 1], [MISSING]]


def test_texts_in_batches(make: Make) -> None:
    values = ["", None, "é", b"\xff\xfe", 12, "long " * 50] * 5
    path = make("a INTEGER, s TEXT", [(i, v) for i, v in enumerate(values)])
    with Database(path) as database:
        batches = list(database.batches("t", ("a",), ("s", "no_column")))
    assert [n for (a,), _ in batches for n in a.tolist()] == list(range(30))
    assert max(len(a) for (a,), _ in batches) == 7
    assert [t for _, (s, _) in batches for t in s] == [b"", b"", "é".encode(), b"\xff\xfe", b"12", b"long " * 50] * 5
    assert {t for _, (_, s) in batches for t in s} == {b""}


def test_reading_may_stop_early(make: Make) -> None:
    path = make("a INTEGER", [(i,) for i in range(100)])
    with Database(path) as database:
        assert next(iter(database.batches("t", ("a",))))[0][0].tolist() == list(range(7))
        assert len(database.integers("t", ("a",))[0]) == 100


def test_strings_by_id(make: Make) -> None:
    many = ", ".join(f"({i}, 'text {i}')" for i in range(2000))
    path = make("a", [], "CREATE TABLE StringIds (id INTEGER, value TEXT)", f"INSERT INTO StringIds VALUES {many}")
    with Database(path) as database:
        found = database.strings(np.arange(-5, 1500))
    assert found == {i: f"text {i}".encode() for i in range(1500)}


def test_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "50% #1?&mode=rwc é.sqlite"
    db = sqlite3.connect(path)
    db.execute('CREATE TABLE t ("a ""b" INTEGER, "select" INTEGER)')
    db.execute("INSERT INTO t VALUES (1, 2)")
    db.commit()
    db.close()
    assert integers(path, 'a "b', "select") == [[1], [2]]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_damage_deep_in_a_table_is_one_line(make: Make) -> None:
    path = make("a INTEGER", [(i,) for i in range(5000)])
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 8] = b"\xee" * 8
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace, match=r"t\.sqlite: the SQLite database is damaged") as caught:
        integers(path, "a")
    assert "\n" not in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays.arrays(
        np.int64,
        st.integers(0, 60),
        elements=st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.just(10**12)),
    )
)
def test_distinct_is_unique(values: Any) -> None:
    keys, codes = distinct(values)
    assert keys.tolist() == sorted(set(values.tolist()))
    assert keys[codes].tolist() == values.tolist()


def test_a_large_export_sets_how_memory_is_allocated_in_a_process_of_its_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a test suite or of a training run is somebody else's."""
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (i INTEGER)")
        db.commit()
    monkeypatch.setattr(sqlite_columns, "HUGE_BYTES", 0)
    for own in (False, True):
        told: list[str] = []
        monkeypatch.setattr(heap, "_own", own)
        monkeypatch.setattr(heap, "_sparing", False)
        monkeypatch.setattr(ctypes, "CDLL", lambda _, told=told: told.append("mallopt"))
        with Database(path):
            assert bool(told) == own
