"""From rows in any order to a Trace: damage set aside, sorted, corrupt ends clipped, operations tied to their launches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_trace_advisor.columns.codes import numbered, present
from gpu_trace_advisor.columns.compact import index_type, narrowed, where
from gpu_trace_advisor.ingest.room import LONGEST_NAME, MOST_NAMES, OTHERS
from gpu_trace_advisor.trace.model import (
    FIRST_OPERATION,
    LAST_OPERATION,
    NO_MEMORY,
    NONE,
    Bool,
    Device,
    Index,
    Int8,
    Int32,
    Int64,
    Kind,
    Memory,
    Note,
    Process,
    Sparse,
    Thread,
    Trace,
)

LONGEST_NS = 7 * 86_400 * 10**9  # a longer event is a clock that overflowed, not a kernel
FARTHEST_NS = 1 << 62  # 146 years from the origin: differences of such times would leave 64 bits
MOST_BYTES = 1 << 50  # of one copy: no memory is as large, and sums of more would leave 64 bits
APART_NS = 3600 * 10**9  # nothing is queued for an hour: a launch so far from its operation is on another clock


@dataclass
class Rows:
    """Rows as a reader collected them, n of each column, any order; the meaning of a column is that of `Trace`."""

    kind: Int8
    start_ns: Int64
    end_ns: Int64
    untimed: Bool
    """[n] the row has no usable time; its start and end mean nothing."""
    name_code: Int32
    process: Int32
    thread: Int32
    device: Int64
    stream: Int64
    correlation: Int64
    bytes: Int64
    names: Sequence[str]
    threads: Sequence[Thread]
    processes: Sequence[Process]
    devices: Sequence[Device]
    integers: dict[str, Sparse] = field(default_factory=dict)
    texts: dict[str, Sparse] = field(default_factory=dict)
    strings: Sequence[str] = ()
    memory: Memory = NO_MEMORY


def rank_in_name(file: str) -> int | None:
    """The rank that a file's name tells, as `trace-rank3.json` does."""
    found = re.search(r"rank[_-]?(\d{1,6})(?!\d)", file, re.IGNORECASE)
    return int(found[1]) if found else None


def assemble(
    rows: Rows,
    *,
    name: str,
    format: str,
    producer: str,
    metadata: dict[str, Any],
    base_ns: int | None = None,
    rank: int | None = None,
    captured_ns: tuple[int, int] | None = None,
    notes: Sequence[Note] = (),
) -> Trace:
    """The Trace of these rows, which are used up: a large trace is not held twice.

    `notes` are what the reader found; what is found here is added.
    """
    health = list(notes)
    _bound_names(rows, health)
    order = _usable_in_order(rows, health)
    count = len(rows.kind)
    kind, start, end = (_taken(rows, column, order) for column in ("kind", "start_ns", "end_ns"))
    columns = {}
    for column in ("correlation", "bytes", "name_code", "process", "thread", "device", "stream"):
        values = _taken(rows, column, order)
        if column == "correlation":
            values[values <= 0] = NONE
        if column == "bytes":
            values[(values < 0) | (values > MOST_BYTES)] = NONE
        columns[column] = narrowed(values, np.int8, np.int16)
        del values
    place = np.full(count, NONE, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    del order
    operation = (kind >= FIRST_OPERATION) & (kind <= LAST_OPERATION)
    end = _clip_corrupt_ends(kind, start, end, operation, columns, health)
    launch = narrowed(_launches(kind, start, end, operation, columns, health))
    del operation
    integers, texts = _moved((rows.integers, rows.texts), place)
    return Trace(
        name=name,
        format=format,
        producer=producer,
        start_ns=start,
        end_ns=end,
        kind=kind,
        launch=launch,
        names=tuple(rows.names),
        threads=tuple(rows.threads),
        processes=tuple(rows.processes),
        devices=tuple(rows.devices),
        integers=integers,
        texts=texts,
        strings=rows.strings,
        memory=rows.memory,
        metadata=metadata,
        base_ns=base_ns,
        rank=rank,
        captured_ns=captured_ns,
        health=tuple(health),
        **columns,
    )


def _bound_names(rows: Rows, health: list[Note]) -> None:
    """Cut what is too long for a name, and give one name to what lies beyond the most that are told apart."""
    own = rows.strings is not rows.names
    rows.names = _shortened(rows.names)
    rows.strings = _shortened(rows.strings) if own else rows.names
    if len(rows.names) <= MOST_NAMES:
        return
    used, first, which = np.unique(rows.name_code, return_index=True, return_inverse=True)
    if len(used) > MOST_NAMES:
        beyond = first > np.sort(first)[MOST_NAMES - 1]
        rows.name_code = np.where(beyond[which], len(rows.names), rows.name_code).astype(np.int32)
        rows.names = [*rows.names, OTHERS]
        text = f"{len(used):,} names; those after the first {MOST_NAMES:,} are taken for one"
        health.append(Note("left-out", text, len(used) - MOST_NAMES))


def _shortened(names: Sequence[str]) -> Sequence[str]:
    if max(map(len, names), default=0) <= LONGEST_NAME:
        return names
    return [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]


def _taken(rows: Rows, column: str, order: Int64) -> Any:
    """A column in its final order, taken out of the rows."""
    values = getattr(rows, column)[order]
    setattr(rows, column, values[:0])
    return values


def _usable_in_order(rows: Rows, health: list[Note]) -> Int64:
    """Indices of the rows with a usable time, sorted by (start, -end, index)."""
    start, end = rows.start_ns, rows.end_ns
    bad = rows.untimed | (end < start) | (start <= -FARTHEST_NS) | (end >= FARTHEST_NS)
    with np.errstate(over="ignore"):
        bad |= (end - start) > LONGEST_NS
    if bad.any():
        kinds = [
            f"{int(n)} {Kind(k).name.lower()}"
            for k, n in zip(*np.unique(rows.kind[bad], return_counts=True), strict=True)
        ]
        health.append(
            Note(
                "quarantined-time",
                f"{int(bad.sum())} events without a usable time are outside every number ({', '.join(kinds)}): "
                "no timestamp or duration, a negative one, one over seven days, both zero, or a time centuries away",
                int(bad.sum()),
            )
        )
    kept = np.flatnonzero(~bad)
    start, end = start[kept], end[kept]
    # Traces are nearly sorted by start, which timsort likes; only where several start together their ends decide.
    order = np.argsort(start, kind="stable")
    begun = start[order]
    same = begun[1:] == begun[:-1]
    if (same & (end[order[1:]] > end[order[:-1]])).any():
        tied = np.zeros(len(order), np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        at = np.flatnonzero(tied)
        order[at] = order[at[np.lexsort((-end[order[at]], begun[at]))]]
    return np.asarray(kept[order] if len(kept) < len(bad) else order, np.int64)


def _moved(groups: Sequence[dict[str, Sparse]], place: Int32) -> list[dict[str, Sparse]]:
    """Columns, used up, with the new numbers of their rows; those of the same rows go on sharing them."""
    moved: list[dict[str, Sparse]] = [{} for _ in groups]
    last = rows = order = np.empty(0, np.int64)
    for group, key in [(i, key) for i, columns in enumerate(groups) for key in columns]:
        column = groups[group].pop(key)
        if column.rows is not last and not np.array_equal(column.rows, last):
            last, to = column.rows, place[column.rows]
            order = np.argsort(to, kind="stable")
            order = order[np.searchsorted(to, 0, sorter=order) :]  # without those that are gone
            rows = to[order]
        moved[group][key] = Sparse(rows, narrowed(column.values[order], np.int8, np.int16))
    return moved


def shares_launch(process: Int32, correlation: Int64, operation: Bool) -> Bool:
    """[n] the operation shares its correlation with another one: a node of a graph replay."""
    result = np.zeros(len(correlation), np.bool_)
    at = np.flatnonzero(operation & (correlation != NONE))
    if len(at):
        order = at[np.lexsort((correlation[at], process[at]))]
        same = (correlation[order][1:] == correlation[order][:-1]) & (process[order][1:] == process[order][:-1])
        result[order[1:]] |= same
        result[order[:-1]] |= same
    return result


def _clip_corrupt_ends(
    kind: Int8, start: Int64, end: Int64, operation: Bool, columns: dict[str, Any], health: list[Note]
) -> Int64:
    """A kernel that outlasts its next two kernels on the stream has a corrupt end: it is cut where the next one starts."""
    single = (kind == Kind.KERNEL) & ~shares_launch(columns["process"], columns["correlation"], operation)
    at = np.flatnonzero(single)
    if len(at) < 3:
        return end
    # Within a stream by (start, end): what outlasts what is then a look at the next two.
    order = at[np.lexsort((end[at], start[at], columns["stream"][at], columns["device"][at], columns["process"][at]))]
    a, b, c = order[:-2], order[1:-1], order[2:]
    same = np.ones(len(a), np.bool_)
    for key in ("process", "device", "stream"):
        same &= (columns[key][a] == columns[key][b]) & (columns[key][a] == columns[key][c])
    corrupt = same & (end[a] > end[b]) & (end[a] > end[c])
    if not corrupt.any():
        return end
    excess = int((end[a] - start[b])[corrupt].sum())
    clipped = end.copy()
    clipped[a[corrupt]] = start[b[corrupt]]
    health.append(
        Note(
            "impossible-duration",
            f"{int(corrupt.sum())} kernels outlast the next two on their stream: their ends are corrupt and were cut "
            f"at the next start ({excess / 1000:,.3f} µs in all)",
            int(corrupt.sum()),
        )
    )
    return clipped


def _launches(
    kind: Int8, start: Int64, end: Int64, operation: Bool, columns: dict[str, Any], health: list[Note]
) -> Index:
    """[n] for each operation the earliest call with its correlation in its process, unless their clocks differ."""
    launch = np.full(len(kind), NONE, index_type(len(kind)))
    correlation, process = columns["correlation"], columns["process"]
    calls = where((kind == Kind.CALL) & (correlation != NONE))
    operations = where(operation & (correlation != NONE))
    if not len(calls) or not len(operations):
        return launch
    # (process, correlation) as one number; calls are in time order, so the first of equal keys is the earliest call.
    rows = np.concatenate([calls, operations])
    keys, key = numbered(correlation[rows])
    if len(present(process)) > 1:
        keys, key = numbered(process[rows].astype(np.int64) * len(keys) + key)
    del rows
    of_call, of_operation = key[: len(calls)], key[len(calls) :]
    earliest = np.full(len(keys), NONE, calls.dtype)
    earliest[of_call[::-1]] = calls[::-1]
    launch[operations] = earliest[of_operation]
    first = earliest[of_call]
    again = start[calls] >= np.maximum(end[first], start[first] + 1)  # not a call inside the first
    used = np.zeros(len(keys), np.bool_)
    used[of_operation] = True
    repeated = present(of_call[again])
    repeated = repeated[used[repeated]]
    if len(repeated):
        health.append(
            Note(
                "duplicate-ids",
                f"{len(repeated)} correlation ids are launched more than once in one process, as when recordings are merged: "
                "which call an operation belongs to is doubtful, it is tied to the earliest",
                len(repeated),
            )
        )
    return _same_clock(launch, start, health)


def _same_clock(launch: Index, start: Int64, health: list[Note]) -> Index:
    """The launches without those on another clock than their operation."""
    linked = np.flatnonzero(launch != NONE)
    apart = np.abs(start[linked] - start[launch[linked]])
    far = linked[apart > APART_NS]
    if len(far):
        days = float(apart.max()) / 86_400e9
        health.append(
            Note(
                "clock-skew",
                f"{len(far)} of {len(linked)} operations lie up to {days:,.1f} days from their launch call: host and device "
                "were stamped by different clocks; these are not tied to their calls, and what the host did meanwhile is unknown",
                len(far),
            )
        )
        launch[far] = NONE
    return launch
