"""Arrow batches of an SQLite query, without Python objects for the values and without holding up other threads.

ADBC hands a stream over in Arrow's C structures, whose layout the Arrow specification fixes. Calling it through ctypes
lets other threads run while SQLite works, which the Python bindings do not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpu_trace_advisor.ingest.raw_events import Int64

BATCH_ROWS = 1 << 16


class ArrowError(Exception):
    """SQLite or ADBC failed on a query; says what they said."""


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    pass


_Stream._fields_ = [
    ("get_schema", ctypes.c_void_p),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


def read(uri: str, query: str, integers: int, texts: int) -> Iterator[tuple[list[Int64], list[list[bytes]]]]:
    """The rows of a query on a connection of its own: its first columns are integers, the others texts, none NULL.

    Raises ArrowError.
    """
    import adbc_driver_manager
    import adbc_driver_sqlite

    try:
        with (
            adbc_driver_sqlite.connect(uri) as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
            adbc_driver_manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(BATCH_ROWS)})
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
            try:
                yield from _read(handle.address, integers, texts)
            finally:
                handle.release()
    except adbc_driver_manager.Error as error:
        raise ArrowError(str(error)) from error


def _read(address: int, integers: int, texts: int) -> Iterator[tuple[list[Int64], list[list[bytes]]]]:
    stream = _Stream.from_address(address)
    while True:
        array = _Array()
        if stream.get_next(stream, array):
            raise ArrowError((stream.get_last_error(stream) or b"no reason given").decode("utf-8", "replace"))
        if not array.release:
            return
        try:
            n = array.length
            columns = [array.children[i].contents for i in range(array.n_children)]
            if [column.n_buffers for column in columns] != [2] * integers + [3] * texts:
                raise ArrowError("the columns are of other types than they were cast to")
            result = [_numbers(c, n) for c in columns[:integers]], [_texts(c, n) for c in columns[integers:]]
        finally:
            array.release(array)
        if n:
            yield result


def _numbers(column: _Array, n: int) -> Int64:
    if not n:
        return np.empty(0, np.int64)
    return np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(column.buffers[1] + 8 * column.offset)).copy()


def _texts(column: _Array, n: int) -> list[bytes]:
    if not n:
        return []
    ends = list((ctypes.c_int32 * (n + 1)).from_address(column.buffers[1] + 4 * column.offset))
    if ends[-1] == ends[0]:
        return [b""] * n
    data = ctypes.string_at(column.buffers[2] + ends[0], ends[-1] - ends[0])
    return [data[a - ends[0] : b - ends[0]] for a, b in pairwise(ends)]
