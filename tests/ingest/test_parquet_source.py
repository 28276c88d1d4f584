"""Parquet exports: refused without pyarrow, and with it read as the SQLite export of the same tables."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight.parquet_source import ParquetFolder, is_parquet_export
from gpu_trace_advisor.ingest.nsight.reader import read_nsight
from gpu_trace_advisor.ingest.nsight.source import PackedColumns
from gpu_trace_advisor.ingest.nsight.sqlite_source import Database
from gpu_trace_advisor.ingest.raw_events import MISSING

from tests.nsight_export import CUPTI, NO_ID, call, kernel, nvtx, write


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "StringIds.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnreadableTrace, match=r"needs pyarrow: pip install pyarrow"):
        read_nsight(tmp_path)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "trace.json").touch()
    assert not is_parquet_export(tmp_path)


@pytest.fixture
def exports(tmp_path: Path) -> tuple[Path, Path]:
    """The same tables in both formats."""
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    shape: dict[str, Any] = {"gridX": 5, "gridY": 6, "gridZ": None}
    database = write(
        tmp_path / "export.sqlite",
        {1: "k", 2: "cudaLaunchKernel_v7000", 3: "registered"},
        **{CUPTI + "RUNTIME": [call(10 * i, 10 * i + 5, i, 2) for i in range(1, 50)]},
        **{CUPTI + "KERNEL": [kernel(10 * i + 6, 10 * i + 9, i, **shape, streamId=NO_ID) for i in range(1, 50)]},
        **{CUPTI + "MEMCPY": [{**kernel(1, 2), "bytes": 1, "copyKind": 1, "srcKind": 0, "dstKind": 2}]},
        NVTX_EVENTS=[nvtx(0, 90, "range"), nvtx(1, 80, None, textId=3), nvtx(2, None, "open")],
        META_DATA_EXPORT=[{"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"}],
    )
    folder = tmp_path / "export_parquet"
    folder.mkdir()
    db = sqlite3.connect(database)
    for (table,) in db.execute("SELECT name FROM sqlite_master").fetchall():
        found = db.execute(f'SELECT * FROM "{table}"')
        names = [column[0] for column in found.description]
        columns: list[Any] = list(zip(*found.fetchall(), strict=True))
        parquet.write_table(arrow.table(dict(zip(names, map(list, columns), strict=True))), folder / f"{table}.parquet")
    db.close()
    return database, folder


def test_it_is_read_like_the_sqlite_export(exports: tuple[Path, Path]) -> None:
    database, folder = map(read_nsight, exports)
    assert len(database) == 49 + 49 + 1 + 2
    for column in ("start_ns", "end_ns", "kind", "name_code", "device", "stream", "correlation", "launch", "bytes"):
        assert getattr(folder, column).tolist() == getattr(database, column).tolist(), column
    assert (folder.names, folder.health, folder.metadata) == (database.names, database.health, database.metadata)


def test_columns_are_those_of_the_sqlite_export(exports: tuple[Path, Path]) -> None:
    table, packed = CUPTI + "KERNEL", PackedColumns(("gridX", "gridY", "nope"), (31, 16, 16), 1)
    with Database(exports[0]) as database, ParquetFolder(exports[1]) as folder:
        columns = ("end", packed, "gridZ", "nope")
        both = database.integers(table, columns), folder.integers(table, columns)
        assert all(np.array_equal(one, other) for one, other in zip(*both, strict=True))
        assert set(both[0][2].tolist()) == {MISSING}
        assert folder.strings(np.array([3, 99])) == {3: b"registered"}
        assert [len(column) for column in folder.integers("no_table", ("a", packed))] == [0, 0]


def test_a_file_that_is_no_parquet(exports: tuple[Path, Path]) -> None:
    (exports[1] / "NVTX_EVENTS.parquet").write_bytes(b"nothing")
    with pytest.raises(UnreadableTrace, match=r"export_parquet: NVTX_EVENTS\.parquet cannot be read") as caught:
        read_nsight(exports[1])
    assert "\n" not in str(caught.value)
