"""NVTX ranges of an Nsight Systems export: annotations, and the operators that a framework emits as ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpu_trace_advisor.ingest.nsight.names import Names
from gpu_trace_advisor.ingest.nsight.source import distinct
from gpu_trace_advisor.ingest.nsight.tables import DOMAIN, PUSH_POP, START_END, Reader, TableRows, host_part, process_id
from gpu_trace_advisor.ingest.raw_events import MISSING
from gpu_trace_advisor.trace.model import Int8, Int32, Int64, Kind, Note, Sparse
from gpu_trace_advisor.units import read_count

OP_ID, SEQUENCE, SIZES, INPUTS = b", op_id = ", b", seq = ", b", sizes = ", b", input_op_ids = "


@dataclass
class Labels:
    """Names of the rows of NVTX_EVENTS, n of them, and what a framework wrote behind them."""

    name: Int32
    operator: Int8
    """[n] 1 when the text says that it is a framework operator."""
    sequence: Int64
    dims: Int32
    """[n] code of the text of the input shapes; -1 without."""


def read_ranges(reader: Reader) -> list[TableRows]:
    """The closed ranges: push/pop and start/end apart, in the order of the table."""
    table = reader.table("NVTX_EVENTS")
    if table not in reader.source.tables:
        return []
    start, end, event, thread, domain, text_id = reader.source.integers(
        table, ("start", "end", "eventType", "globalTid", "domainId", "textId")
    )
    labels = _labels(reader, table, text_id)
    domains = _domains(event, thread, domain, labels)
    parts = []
    for kind, number in ((Kind.RANGE, PUSH_POP), (Kind.SPAN, START_END)):
        of_kind = event == number
        still_open = int((of_kind & (end == MISSING)).sum())
        rows = np.flatnonzero(of_kind & (end != MISSING))
        part = host_part(kind, start[rows], end[rows], labels.name[rows], thread[rows])
        if kind == Kind.RANGE:
            part.kind[labels.operator[rows] == 1] = Kind.OPERATOR
        part.integers = {"Sequence number": _sparse(labels.sequence[rows], MISSING)}
        part.texts = {
            "domain": _sparse(domains[rows], -1),
            "Input Dims": _sparse(labels.dims[rows].astype(np.int64), -1),
        }
        parts.append(part)
        if still_open:
            message = f"{still_open} NVTX ranges were open when the recording ended, and are left out"
            reader.notes.append(Note("dropped-event", message, still_open))
    return parts


def _sparse(column: Int64, missing: int) -> Sparse:
    rows = np.flatnonzero(column != missing)
    return Sparse(rows, column[rows])


def _labels(reader: Reader, table: str, text_id: Int64) -> Labels:
    """The text of each row: its own, else the registered string."""
    keys, codes = distinct(text_id)
    found = reader.source.strings(keys)
    registered = [_parsed(found.get(key, b""), reader.names) for key in keys.tolist()]
    columns = [np.array(column, np.int64)[codes] for column in zip(*registered, strict=True)]
    name, operator, sequence, dims = columns or [np.empty(0, np.int64) for _ in range(4)]
    if "text" in reader.source.tables[table]:
        for row, label in _own_labels(reader, table, len(text_id)):
            name[row], operator[row], sequence[row], dims[row] = label
    return Labels(name.astype(np.int32), operator.astype(np.int8), sequence, dims.astype(np.int32))


def _own_labels(reader: Reader, table: str, rows: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    known: dict[bytes, tuple[int, int, int, int]] = {}
    for row, text in reader.texts(table, "text", rows):
        label = known.get(text)
        if label is None:
            label = _parsed(text, reader.names)
            if OP_ID not in text:  # a text with an id never comes again
                known[text] = label
        yield row, label


def _parsed(text: bytes, names: Names) -> tuple[int, int, int, int]:
    """Name code, whether it is an operator, sequence number and code of the shapes.

    A framework emits `aten::mul, seq = 46174, op_id = 993406, sizes = [[2, 3]], input_op_ids = [(1,0)]`.
    """
    name, emitted, rest = text.partition(OP_ID)
    sequence, dims = MISSING, -1
    if emitted:
        bare, _, digits = name.rpartition(SEQUENCE)
        if bare and (number := read_count(digits)) is not None:
            name, sequence = bare, number
        shapes = rest.partition(SIZES)[2].partition(INPUTS)[0]
        if shapes:
            dims = names.code(shapes.decode("utf-8", "replace"))
    # `ProfilerStep#3` and the like are annotations, also where the framework emits them like its operators.
    operator = (bool(emitted) and b"#" not in name) or name.startswith(b"aten::")
    return names.code(name.decode("utf-8", "replace")), int(operator), sequence, dims


def _domains(event: Int64, thread: Int64, domain: Int64, labels: Labels) -> Int64:
    """[n] code of the name of each row's domain; -1 in the default domain, which has no name."""
    made = np.flatnonzero(event == DOMAIN)
    pid = process_id(thread)
    known = {(int(pid[row]), int(domain[row])): int(labels.name[row]) for row in made.tolist()}
    if not known:
        return np.full(len(event), -1, np.int64)
    ids, codes = distinct(domain)
    pids, owner = distinct(pid)
    keys, which = distinct(owner.astype(np.int64) * len(ids) + codes)
    table = [known.get((int(pids[k // len(ids)]), int(ids[k % len(ids)])), -1) for k in keys.tolist()]
    return np.array(table, np.int64)[which]
