"""A folder of Parquet files, one a table (`nsys export --type parquetdir`), as a Source. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.errors import UnreadableTrace
from analyzer.ingest.arrow_batches import BATCH_ROWS
from analyzer.ingest.raw import MISSING, Int64
from analyzer.ingest.sqlite_columns import X_LIMIT, Y_LIMIT, Batch, Column

SUFFIX = ".parquet"


def is_parquet_export(path: Path) -> bool:
    """A folder with the tables of an export."""
    return path.is_dir() and any((path / (table + SUFFIX)).is_file() for table in ("StringIds", "META_DATA_EXPORT"))


class ParquetFolder:
    """The tables of a folder; see `Source` for what the methods give."""

    def __init__(self, path: Path) -> None:
        """Raises UnreadableTrace when pyarrow is not installed or a file is no Parquet."""
        try:
            pyarrow: Any = import_module("pyarrow")
            parquet: Any = import_module("pyarrow.parquet")
        except ImportError as error:
            raise UnreadableTrace(
                f"{path.name}: a Parquet export needs pyarrow: pip install pyarrow (or export with --type sqlite)"
            ) from error
        self.file, self._arrow = path.name, pyarrow
        self._files: dict[str, Any] = {}
        self.tables: dict[str, frozenset[str]] = {}
        for file in sorted(path.glob("*" + SUFFIX)):
            try:
                opened = parquet.ParquetFile(file)
            except (OSError, pyarrow.ArrowException) as error:
                raise self._damaged(file.name, error) from error
            self._files[file.stem] = opened
            self.tables[file.stem] = frozenset(opened.schema_arrow.names)

    def __enter__(self) -> ParquetFolder:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def batches(self, table: str, integers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[Batch]:
        if table not in self.tables:
            return
        columns = [name for name in dict.fromkeys((*integers, *texts)) if name in self.tables[table]]
        try:
            for batch in self._files[table].iter_batches(BATCH_ROWS, columns=columns):
                yield [self._numbers(batch, name) for name in integers], [self._texts(batch, name) for name in texts]
        except (OSError, self._arrow.ArrowException) as error:
            raise self._damaged(table + SUFFIX, error) from error

    def integers(self, table: str, columns: Sequence[Column]) -> list[Int64]:
        names = [name for column in columns for name in ([column] if isinstance(column, str) else column)]
        batches = [batch for batch, _ in self.batches(table, names)]
        read = {
            name: np.concatenate([b[i] for b in batches] or [np.empty(0, np.int64)]) for i, name in enumerate(names)
        }
        has = self.tables.get(table, frozenset())
        return [
            read[c] if isinstance(c, str) else _packed([read[n] for n in c], [n in has for n in c]) for c in columns
        ]

    def strings(self, ids: Int64) -> dict[int, bytes]:
        wanted = set(ids.tolist())
        found: dict[int, bytes] = {}
        for (keys,), (values,) in self.batches("StringIds", ("id",), ("value",)):
            found.update(pair for pair in zip(keys.tolist(), values, strict=True) if pair[0] in wanted)
        return found

    def _numbers(self, batch: Any, name: str) -> Int64:
        if name not in batch.schema.names:
            return np.full(batch.num_rows, MISSING, np.int64)
        column = batch.column(name)
        integral = self._arrow.types.is_integer(column.type)
        column = column if integral else column.cast(self._arrow.int64(), safe=False)
        # Unsigned ids above 2^63 wrap, as they do in SQLite.
        values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.where(column.is_null().to_numpy(zero_copy_only=False), MISSING, values)

    def _texts(self, batch: Any, name: str) -> list[bytes]:
        if name not in batch.schema.names:
            return [b""] * batch.num_rows
        column = batch.column(name)
        if self._arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return [value or b"" for value in column.cast(self._arrow.binary()).to_pylist()]

    def _damaged(self, file: str, error: BaseException) -> UnreadableTrace:
        said = " ".join(str(error).split())
        return UnreadableTrace(f"{self.file}: {file} cannot be read ({said}); copy it or export the report again")


def _packed(columns: list[Int64], present: list[bool]) -> Int64:
    """Three columns as one; see `Column`."""
    x, y, z = (column if there else np.ones_like(column) for column, there in zip(columns, present, strict=True))
    fits = (x >= 0) & (x < X_LIMIT) & (y >= 0) & (y < Y_LIMIT) & (z >= 0) & (z < Y_LIMIT) & present[0]
    return np.where(fits, (x << 32) | (y << 16) | z, MISSING)
