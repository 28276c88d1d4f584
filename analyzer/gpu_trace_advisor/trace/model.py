"""The Trace: what one recording holds, as integer-nanosecond columns, whatever format it came from.

Rows are sorted by (start, -end, row in the file). "None" is -1 and nothing else. Only `gpu_trace_advisor.ingest` makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.compact import where
from gpu_trace_advisor.runtime.classes import dataclass

if TYPE_CHECKING:
    import hta.common.trace
    import pandas

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Index = NDArray[np.signedinteger[Any]]
"""Numbers of rows, places and the like: int32 where that holds them."""

NONE = -1


class Kind(IntEnum):
    """What a row is; host or device follows from this alone, never from its ids."""

    OPERATOR = 0  # framework operator (cpu_op)
    CALL = 1  # CUDA or HIP runtime or driver call
    PYTHON = 2  # Python frame
    RANGE = 3  # user annotation, NVTX push/pop: nests on its thread
    SPAN = 4  # NVTX start/end: may cross threads and does not nest
    OVERHEAD = 5  # the profiler's own time; thread -1 when not recorded
    OS = 6  # operating-system call (Nsight OSRT)
    ACCELERATOR = 7  # host or device row of an accelerator that is not read further

    KERNEL = 10
    GRAPH = 11  # a whole graph replay recorded as one row
    COPY = 12
    SET = 13

    SYNC = 20  # a host or stream wait drawn on a device row: no work
    PROJECTION = 21  # host annotation projected on a device row: an envelope, no work
    EVENT = 22  # event record drawn on a device row: no work


FIRST_OPERATION, LAST_OPERATION = Kind.KERNEL, Kind.SET


@dataclass(frozen=True)
class Sparse:
    """A column that few rows have: `rows` ascending, one value each."""

    rows: NDArray[np.signedinteger[Any]]
    values: NDArray[Any]

    def dense(self, n: int, missing: int = NONE) -> Int64:
        """All n rows, `missing` where a row has none."""
        column = np.full(n, missing, np.int64)
        column[self.rows] = self.values
        return column

    def at(self, rows: NDArray[Any]) -> Int64:
        """[k] the values of these rows, -1 where a row has none."""
        if not len(self.rows):
            return np.full(len(rows), NONE)
        place = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[place] == rows, self.values[place].astype(np.int64), NONE)

    def get(self, row: int, missing: int = NONE) -> int:
        at = int(np.searchsorted(self.rows, row))
        return int(self.values[at]) if at < len(self.rows) and self.rows[at] == row else missing


@dataclass(frozen=True)
class Thread:
    """A host thread: the process id and thread id as the file writes them."""

    process: int
    """Index into `Trace.processes`."""
    pid: str
    tid: str
    name: str = ""


@dataclass(frozen=True)
class Process:
    """One scope of ids: correlations, streams and threads join within it only."""

    pid: int | None
    """Process id in an Nsight recording; None in a Chrome trace."""
    rank: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Device:
    """What the recording says of a GPU; None or "" where it does not say."""

    ordinal: int
    name: str = ""
    process: int | None = None
    """Index into `Trace.processes` where the ordinal is known for that process only."""
    gpu: int | None = None
    """Physical index, where the file maps it."""
    sms: int | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    properties: dict[str, Any] = field(default_factory=dict)


MOST_SMS = 1 << 16
LARGEST_PROPERTY = 1 << 50  # bytes, bytes a second or counts: no GPU has more of anything


def plausible(device: Device) -> Device:
    """The device without what no GPU can have: numbers that are not positive, or too large to count with."""

    def within(value: Any, most: int) -> bool:
        return isinstance(value, int | float) and 0 < value <= most

    capability = device.compute_capability
    return replace(
        device,
        sms=device.sms if within(device.sms, MOST_SMS) else None,
        memory_bytes=device.memory_bytes if within(device.memory_bytes, LARGEST_PROPERTY) else None,
        compute_capability=capability if capability and 0 < capability[0] < 1000 > capability[1] >= 0 else None,
        properties={
            key: value
            for key, value in device.properties.items()
            if not isinstance(value, int | float) or within(value, LARGEST_PROPERTY)
        },
    )


@dataclass(frozen=True)
class Note:
    """One finding about the trace's health."""

    code: str
    """What kind of finding, in words with hyphens: `clock-skew`, `duplicate-ids` …; the same in every version."""
    message: str
    count: int


@dataclass(frozen=True)
class Memory:
    """Allocator events, in time order; m of them."""

    time_ns: Int64
    device: Int32
    """[m] device ordinal; -1 is the CPU."""
    bytes: Int64
    """[m] bytes allocated, negative when freed."""
    allocated: Int64
    """[m] bytes allocated on that device after the event; -1 unknown. Likewise `reserved`."""
    reserved: Int64


NO_MEMORY = Memory(*(np.empty(0, t) for t in (np.int64, np.int32, np.int64, np.int64, np.int64)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Trace:
    """One recording; n rows. Its columns are not written to: one that is the same everywhere may lie in the room of one row.

    Times are nanoseconds on the file's own clock; add `base_ns` to get the Unix epoch where the file says it.
    """

    name: str
    """File name without its folder; beside recordings of the same name with as much of the folders as tells them apart."""
    format: str
    """`kineto` or `nsight`."""
    producer: str
    """Recorder and versions, as far as the file tells."""
    start_ns: Int64
    end_ns: Int64
    kind: Int8
    name_code: Int32
    """[n] index into `names`."""
    process: Int32
    """[n] index into `processes`."""
    thread: Int32
    """[n] index into `threads`; -1 for device rows and for overhead without a thread."""
    device: Int32
    """[n] device ordinal in its process; -1 for host rows."""
    stream: Index
    """[n] stream id; -1 none."""
    correlation: Index
    bytes: Index
    """[n] bytes that a copy or set moves; -1 unknown."""
    launch: Index
    """[n] for a device operation the row of the call that submitted it, -1 when the trace holds none."""
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    processes: tuple[Process, ...]
    devices: tuple[Device, ...]
    integers: dict[str, Sparse]
    """Further integer arguments by their Kineto name (`External id`, `registers per thread`, `graph node id` …)."""
    texts: dict[str, Sparse]
    """Further text arguments (`grid`, `Input Dims` …): index into `strings`."""
    strings: Sequence[str]
    memory: Memory
    metadata: dict[str, Any]
    base_ns: int | None = None
    rank: int | None = None
    captured_ns: tuple[int, int] | None = None
    """The profiler's own span, where the file holds it."""
    health: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def operations(self) -> Index:
        """Rows of device operations: kernels, graph replays, copies and sets."""
        return where((self.kind >= FIRST_OPERATION) & (self.kind <= LAST_OPERATION))

    def rows(self, *kinds: Kind) -> Int64:
        """Rows of these kinds, in time order."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def label(self, row: int) -> str:
        """The row's name."""
        return self.names[int(self.name_code[row])]

    def text(self, row: int, argument: str) -> str | None:
        """A text argument of one row, None when it has none."""
        code = self.texts[argument].get(row) if argument in self.texts else NONE
        return self.strings[code] if code != NONE else None

    def name_mask(self, matches: Sequence[bool] | Bool) -> Bool:
        """[n] the value of `matches[name_code]` for every row."""
        return np.asarray(matches, np.bool_)[self.name_code]

    @cached_property
    def has_frames(self) -> bool:
        """Python stacks were recorded."""
        return bool((self.kind == Kind.PYTHON).any())

    @cached_property
    def origin_ns(self) -> int:
        """Start of the first row; what times shown to people count from."""
        return int(self.start_ns[0]) if len(self) else 0

    def to_pandas(self) -> pandas.DataFrame:
        """One row an event, with names spelt out: for people, not for the analysis."""
        import pandas as pd

        frame = pd.DataFrame(
            {
                "start_ns": self.start_ns,
                "end_ns": self.end_ns,
                "kind": pd.Categorical.from_codes(
                    np.searchsorted([k.value for k in Kind], self.kind), pd.Index([k.name.lower() for k in Kind])
                ),
                "name": pd.Categorical.from_codes(self.name_code, pd.Index(self.names)).remove_unused_categories(),
                "process": self.process.astype(np.int64),
                "thread": self.thread.astype(np.int64),
                "device": self.device.astype(np.int64),
                "stream": self.stream.astype(np.int64),
                "correlation": self.correlation.astype(np.int64),
                "bytes": self.bytes.astype(np.int64),
                "launch": self.launch.astype(np.int64),
            }
        )
        for argument, column in self.integers.items():
            frame[argument] = pd.arrays.IntegerArray(column.dense(len(self), 0), ~_has(column, len(self)))
        for argument, column in self.texts.items():
            texts = np.full(len(self), None, object)
            texts[column.rows] = [self.strings[code] for code in column.values]
            frame[argument] = texts
        return frame

    def to_hta(self, rank: int | None = None) -> hta.common.trace.Trace:
        """The trace as the object that Holistic Trace Analysis hands to its analyses, under this rank.

        Times are microseconds from the first row with their nanoseconds kept: HTA's own reader rounds starts up and ends
        down to whole microseconds. Needs the optional extra `hta`.
        """
        import pandas as pd
        from hta.common.trace import Trace as HtaTrace
        from hta.common.trace import transform_correlation_to_index

        rows = self.rows(*HTA_CATEGORIES)
        device = self.kind[rows] >= FIRST_OPERATION
        loaded = HtaTrace(trace_files={}, trace_dir=".")
        table = loaded.symbol_table
        table.add_symbols([*dict.fromkeys(HTA_CATEGORIES.values()), *self.names])
        code = table.get_sym_id_map()
        category = np.zeros(max(Kind) + 1, np.int64)
        for kind, name in HTA_CATEGORIES.items():
            category[kind] = code[name]
        names = np.array([code[name] for name in self.names], np.int64)
        frame = pd.DataFrame(
            {
                "index": np.arange(len(rows)),
                "cat": category[self.kind[rows]],
                "name": names[self.name_code[rows]],
                "pid": np.where(device, self.device[rows], self.process[rows]),
                "tid": np.where(device, self.stream[rows], self.thread[rows]),
                "ts": (self.start_ns[rows] - self.origin_ns) / 1000,
                "dur": (self.end_ns[rows] - self.start_ns[rows]) / 1000,
                "stream": np.where(device, np.maximum(self.stream[rows], 0), NONE),
                "correlation": self.correlation[rows].astype(np.int64),
                "iteration": NONE,
            }
        )
        frame["end"] = frame["ts"] + frame["dur"]
        key = rank if rank is not None else self.rank or 0
        loaded.traces[key] = transform_correlation_to_index(frame, table)
        loaded.meta_data[key] = self.metadata
        loaded.is_parsed = True
        return loaded


HTA_CATEGORIES = {
    Kind.OPERATOR: "cpu_op", Kind.CALL: "cuda_runtime", Kind.PYTHON: "python_function", Kind.RANGE: "user_annotation",
    Kind.SPAN: "user_annotation", Kind.KERNEL: "kernel", Kind.GRAPH: "kernel", Kind.COPY: "gpu_memcpy",
    Kind.SET: "gpu_memset",
}  # fmt: skip
"""Kineto's category of what Holistic Trace Analysis reads; other rows are left out."""


def _has(column: Sparse, n: int) -> Bool:
    mask = np.zeros(n, np.bool_)
    mask[column.rows] = True
    return mask
