"""A folder of Parquet files, one a table (`nsys export --type parquetdir`), as a Source. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight.arrow_batches import BATCH_ROWS
from gpu_trace_advisor.ingest.nsight.source import Batch, Column, PackedColumns
from gpu_trace_advisor.ingest.raw_events import MISSING, Int64

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
                f"{path}: a Parquet export needs pyarrow: pip install pyarrow (or export with --type sqlite)"
            ) from error
        self.file, self._arrow = str(path), pyarrow
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
        names = list(dict.fromkeys(n for c in columns for n in ([c] if isinstance(c, str) else c.names)))
        batches = [batch for batch, _ in self.batches(table, names)]
        read = {n: np.concatenate([b[i] for b in batches] or [np.empty(0, np.int64)]) for i, n in enumerate(names)}
        has = self.tables.get(table, frozenset())
        return [
            read[c] if isinstance(c, str) else _packed(c, [read[n] for n in c.names], [n in has for n in c.names])
            for c in columns
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


def _packed(column: PackedColumns, parts: Sequence[Int64], present: Sequence[bool]) -> Int64:
    value, fits = np.zeros(len(parts[0]), np.int64), np.full(len(parts[0]), present[0])
    for part, bits, there in zip(parts, column.bits, present, strict=True):
        known = part if there else np.full(len(part), column.absent, np.int64)
        fits &= (known >= 0) & (known < 1 << bits)
        value = (value << bits) | np.where(fits, known, 0)
    return np.where(fits, value, MISSING)
