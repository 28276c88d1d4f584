"""Traces drawn as text, both ways: what the rules' cases and pages are made of.

    step |............|............|
    host D====OOa.O.b.D====OOa.O.b.
    s7   ........aaaa.b.......aaaa.b
    a: aten::mm [64,4096]x[4096,4096] bf16

One character is 1 µs. On a `host` row (`host2` … are further threads) a run of a small letter is a launch call, and the
same letter on a stream row (`s7`; `s7@1` lies on device 1) the operation it launched: the first run launches the first
one, and so on. A capital letter, carried on with `=` or by itself, is a record of what the thread did: see RECORDS.
`c>>` on a stream row is a copy. A row given twice is one row: what the second shows lies inside or beside what the first
shows. `.` is nothing, and `|` on the `step` row begins a step. Lines below add what a drawing cannot show:

    a: aten::mm [64,4096]x[4096,4096] bf16    the operator around the launch, with its shapes; `> NAME` names the kernel
    n: ncclDevKernel_AllReduce_Sum_bf16       the operation's name alone
    k: my_kernel <<<133, 256>>>               its blocks, and the threads of each (32 registers a thread)
    c: Memcpy HtoD (Pageable -> Device) 4MB   copies and sets, with their size
    g: graph                                  one call replays all operations of this letter up to its next call
    D: my_loader.py(7): next_batch            the name of a record
    scale: 10us    device: H100 SXM    repeat: 4    (the drawing so many times, each a step)
    memory: 60GB    (what the allocator holds at its peak)
    phase: decode    objective: latency    weights: 14GB    (what to ask for; `asked` reads them)
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np

from gpu_trace_advisor.ingest.assemble import Rows, assemble
from gpu_trace_advisor.reference.facts import read_data
from gpu_trace_advisor.reference.hardware import GIB, hardware, named
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NO_MEMORY, NONE, Device, Int64, Kind, Memory, Process, Sparse, Thread, Trace
from gpu_trace_advisor.trace.operator_shapes import DTYPES
from gpu_trace_advisor.units import SIZES

RECORDS = {
    "S": (Kind.CALL, "cudaStreamSynchronize"),
    "D": (Kind.RANGE, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    "A": (Kind.CALL, "cudaMalloc"),
    "F": (Kind.CALL, "cudaFree"),
    "M": (Kind.CALL, "cuModuleLoadData"),
    "O": (Kind.OPERATOR, "aten::view"),
    "P": (Kind.PYTHON, "train.py(12): step"),
    "C": (Kind.PYTHON, "torch/_dynamo/convert_frame.py(1): _compile"),
    "G": (Kind.PYTHON, "<built-in function gc.collect>"),
}
"""Capital letter -> the record it stands for: a blocking synchronisation, the data loader, allocation and freeing, a module
load, operator time, a Python frame, compiling, garbage collection."""

OPTIONS = ("scale", "device", "repeat", "memory", "phase", "objective", "weights")
TYPES = {ours: theirs for theirs, (ours, _) in reversed(DTYPES.items())}
SCALES = {"ns": 1, "us": 1_000, "ms": 1_000_000}

_ROW = re.compile(r"\s*(?P<label>host\d*|step|s\d+(?:@\d+)?)\s+(?P<cells>\S+)\s*$")
_LINE = re.compile(r"\s*(?P<key>[A-Za-z]|[a-z]{4,}):\s+(?P<text>.+?)\s*$")
_RUN = re.compile(
    r"(?P<copy>[a-z])>+|(?P<letter>[a-z])(?P=letter)*|(?P<record>[A-Z])(?:=|(?P=record))*|(?P<mark>\|)|\."
)
_OPERATOR = re.compile(r"(?P<name>\w+::\w+)(?:\s+(?P<dims>[\[\]\d,x]+)\s+(?P<dtype>\w+))?(?:\s*>\s*(?P<kernel>.+))?$")
_GEOMETRY = re.compile(r"\s*<<<(?P<blocks>\d+),\s*(?P<threads>\d+)>>>$")
_AMOUNT = re.compile(r"([\d.]+)([KMG]?B)$")
_MEMORY = re.compile(r"(?P<name>Mem(?:cpy|set)\b.*?)(?:\s+(?P<size>[\d.]+)(?P<unit>[KMG]?B))?$")


class BadDrawing(ValueError):
    """The text is no drawing."""


@dataclass(frozen=True)
class Block:
    """What one row shows from one column to another, in columns."""

    row: str
    letter: str
    start: int
    end: int
    copies: bool = False


@dataclass(frozen=True)
class ParsedDrawing:
    """A text taken apart."""

    runs: tuple[Block, ...]
    marks: tuple[int, ...]
    width: int
    names: dict[str, str]
    options: dict[str, str]

    @property
    def scale_ns(self) -> int:
        """ns of a column."""
        found = re.fullmatch(r"(\d+)(ns|us|ms)", self.options.get("scale", "1us"))
        if not found:
            raise BadDrawing(f"scale: {self.options['scale']}: expected a length such as 10us")
        return int(found[1]) * SCALES[found[2]]

    @property
    def steps(self) -> list[tuple[int, int]]:
        """From each mark to the next, the last one to the drawing's end."""
        return [(a, b) for a, b in zip(self.marks, [*self.marks[1:], self.width], strict=False) if b > a]


def read_drawing(text: str) -> ParsedDrawing:
    """The parts of a drawing, its repetitions drawn out.

    Raises:
        BadDrawing: a line is neither a row nor one of the lines below, or has a character that means nothing.
    """
    runs, marks, width, names, options = list[Block](), list[int](), 0, dict[str, str](), dict[str, str]()
    for line in filter(str.strip, text.splitlines()):
        if row := _ROW.match(line):
            cells, at = row["cells"], 0
            while at < len(cells):
                found = _RUN.match(cells, at)
                if not found:
                    raise BadDrawing(f"{line.strip()!r}: {cells[at]!r} means nothing")
                letter = found["copy"] or found["letter"] or found["record"]
                if letter:
                    runs.append(Block(row["label"], letter, at, found.end(), bool(found["copy"])))
                elif found["mark"]:
                    marks.append(at)
                at = found.end()
            width = max(width, len(cells) - (row["label"] == "step" and cells.endswith("|")))
        elif (below := _LINE.match(line)) and (len(below["key"]) == 1 or below["key"] in OPTIONS):
            (names if len(below["key"]) == 1 else options)[below["key"]] = below["text"]
        else:
            raise BadDrawing(f"{line.strip()!r}: neither a row nor a line about one")
    times = int(options.get("repeat", "1"))
    if times > 1:
        moved = [
            Block(r.row, r.letter, r.start + i * width, r.end + i * width, r.copies) for i in range(times) for r in runs
        ]
        starts = [mark + i * width for i in range(times) for mark in marks or [0] if mark < width]
        return ParsedDrawing(tuple(moved), tuple(starts), times * width, names, options)
    return ParsedDrawing(tuple(runs), tuple(mark for mark in marks if mark < width), width, names, options)


def asked(text: str) -> dict[str, str]:
    """What the lines below a drawing ask for: `phase`, `objective`, `weights`."""
    return {key: value for key, value in read_drawing(text).options.items() if key in ("phase", "objective", "weights")}


def parse(text: str) -> Trace:
    """The trace that a text draws.

    Raises:
        BadDrawing: the text is no drawing.
    """
    return _Writer(read_drawing(text)).trace()


@dataclass
class _Writer:
    """Collects the rows of a trace."""

    drawing: ParsedDrawing
    columns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, int] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    texts: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    launched: list[int] = field(default_factory=list)
    """Rows of the kernels whose blocks are drawn."""

    def add(self, kind: Kind, name: str, start: int, end: int, **ids: int) -> int:
        values = {"thread": NONE, "device": NONE, "stream": NONE, "correlation": NONE, "bytes": NONE, **ids}
        values |= {"kind": kind, "name": self.names.setdefault(name, len(self.names)), "start": start, "end": end}
        for column, value in values.items():
            self.columns[column].append(value)
        return len(self.columns["kind"]) - 1

    def text(self, row: int, argument: str, value: str) -> None:
        self.texts[argument].append((row, self.strings.setdefault(value, len(self.strings))))

    def trace(self) -> Trace:
        drawing, scale = self.drawing, self.drawing.scale_ns
        threads = sorted({run.row for run in drawing.runs if run.row.startswith("host")} | {"host"})
        for number, (start, end) in enumerate(drawing.steps):
            self.add(Kind.RANGE, f"ProfilerStep#{number}", start * scale, end * scale, thread=0)
        launches = self._host(threads, scale)
        self._streams(launches, scale)
        none = np.zeros(len(self.columns["kind"]), np.int32)
        rows = Rows(
            kind=np.array(self.columns["kind"], np.int8),
            start_ns=self._column("start"),
            end_ns=self._column("end"),
            untimed=none.astype(np.bool_),
            name_code=self._column("name").astype(np.int32),
            process=none,
            thread=self._column("thread").astype(np.int32),
            device=self._column("device").astype(np.int32),
            stream=self._column("stream"),
            correlation=self._column("correlation"),
            bytes=self._column("bytes"),
            names=list(self.names),
            threads=[Thread(0, "100", str(i + 1), name) for i, name in enumerate(threads)],
            processes=[Process(None)],
            devices=self._devices(),
            integers=self._registers(),
            texts={name: _sparse(pairs, np.int32) for name, pairs in self.texts.items()},
            strings=list(self.strings),
            memory=self._memory(),
        )
        return assemble(rows, name="drawing", format="kineto", producer="a drawing", metadata={})

    def _registers(self) -> dict[str, Sparse]:
        of = {"registers per thread": 32, "shared memory": 0} if self.launched else {}
        return {name: _sparse([(row, value) for row in self.launched], np.int64) for name, value in of.items()}

    def _memory(self) -> Memory:
        asked_for = self.drawing.options.get("memory")
        if asked_for is None:
            return NO_MEMORY
        if not (found := _AMOUNT.match(asked_for)):
            raise BadDrawing(f"memory: {asked_for}: expected a size such as 60GB")
        size = np.array([round(float(found[1]) * SIZES[found[2]])], np.int64)
        return Memory(np.zeros(1, np.int64), np.zeros(1, np.int32), size, size, size)

    def _name(self, letter: str) -> str:
        """What the line below says of a letter, but for its blocks."""
        return _GEOMETRY.sub("", self.drawing.names.get(letter, ""))

    def _column(self, name: str) -> Int64:
        return np.array(self.columns[name], np.int64)

    def _host(self, threads: list[str], scale: int) -> dict[str, list[tuple[int, int]]]:
        """Adds the host's rows; the calls of each letter as (start, correlation)."""
        calls: dict[str, list[tuple[int, int]]] = defaultdict(list)
        copies = {run.letter for run in self.drawing.runs if run.copies}
        for number, run in enumerate((r for r in self.drawing.runs if r.row.startswith("host")), start=1):
            thread, start, end = threads.index(run.row), run.start * scale, run.end * scale
            what = self._name(run.letter)
            if run.letter.isupper():
                if run.letter not in RECORDS:
                    raise BadDrawing(f"{run.letter} on {run.row}: there are {', '.join(RECORDS)}")
                kind, name = RECORDS[run.letter]
                self.add(kind, what or name, start, end, thread=thread)
                continue
            if operator := _OPERATOR.match(what):
                self._operator(operator, start, end, thread)
            memory = _MEMORY.match(what)
            call = "cudaLaunchKernel"
            if what.startswith("graph"):
                call = "cudaGraphLaunch"
            elif run.letter in copies or memory:
                call = "cudaMemsetAsync" if memory and memory["name"].startswith("Memset") else "cudaMemcpyAsync"
            self.add(Kind.CALL, call, start, end, thread=thread, correlation=number)
            calls[run.letter].append((start, number))
        return calls

    def _operator(self, found: re.Match[str], start: int, end: int, thread: int) -> None:
        row = self.add(Kind.OPERATOR, found["name"], start, end, thread=thread)
        if found["dims"]:
            dims = [json.loads(shape) for shape in found["dims"].split("x")]
            self.text(row, "Input Dims", json.dumps(dims))
            self.text(row, "Input type", json.dumps([TYPES.get(found["dtype"], found["dtype"])] * len(dims)))

    def _streams(self, calls: dict[str, list[tuple[int, int]]], scale: int) -> None:
        seen: dict[str, int] = defaultdict(int)
        for run in sorted((r for r in self.drawing.runs if r.row.startswith("s")), key=lambda r: r.start):
            what = self._name(run.letter)
            mine = calls[run.letter]
            at = seen[run.letter]
            if what.startswith("graph"):  # the last replay that had begun
                at = sum(start <= run.start * scale for start, _ in mine) - 1
            correlation = mine[at][1] if 0 <= at < len(mine) else NONE
            seen[run.letter] += 1
            kind, name, size = _operation(run, what)
            stream, _, device = run.row[1:].partition("@")
            row = self.add(
                kind, name, run.start * scale, run.end * scale, device=int(device or 0), stream=int(stream),
                correlation=correlation, bytes=size,
            )  # fmt: skip
            if drawn := _GEOMETRY.search(self.drawing.names.get(run.letter, "")):
                self.launched.append(row)
                self.text(row, "grid", f"[{drawn['blocks']}, 1, 1]")
                self.text(row, "block", f"[{drawn['threads']}, 1, 1]")

    def _devices(self) -> list[Device]:
        name = self.drawing.options.get("device")
        if not name:
            return []
        known = hardware()[named(name).key]
        capability = re.fullmatch(
            r"(\d+)\.(\d+)", read_data("hardware.toml")["devices"][known.key]["compute_capability"]
        )
        version = (int(capability[1]), int(capability[2])) if capability else None
        ordinals = {int(run.row.partition("@")[2] or 0) for run in self.drawing.runs if run.row.startswith("s")}
        return [
            Device(
                i, known.name, sms=known.sms, memory_bytes=known.memory_bytes // GIB * GIB, compute_capability=version
            )
            for i in sorted(ordinals)
        ]


def _sparse(pairs: list[tuple[int, int]], dtype: Any) -> Sparse:
    rows, values = zip(*sorted(pairs), strict=True)
    return Sparse(np.array(rows, np.int64), np.array(values, dtype))


def _operation(run: Block, what: str) -> tuple[Kind, str, int]:
    """Kind, name and bytes of what a stream row shows."""
    memory = _MEMORY.match(what)
    if memory or run.copies:
        size = round(float(memory["size"]) * SIZES[memory["unit"]]) if memory and memory["size"] else NONE
        name = memory["name"] if memory else "Memcpy HtoD (Pinned -> Device)"
        return (Kind.SET if name.startswith("Memset") else Kind.COPY), name, size
    if operator := _OPERATOR.match(what):
        return Kind.KERNEL, operator["kernel"] or f"{operator['name'].partition('::')[2]}_kernel", NONE
    if what.startswith("graph"):
        return Kind.KERNEL, what.removeprefix("graph").strip() or f"node_{run.letter}", NONE
    return Kind.KERNEL, what or f"kernel_{run.letter}", NONE


def draw(trace: Trace, scale_ns: int = 1_000) -> str:
    """A small trace as text, the other way round; each launch call has a letter of its own.

    Raises:
        BadDrawing: more launches than letters, or records that overlap on a row.
    """
    return "\n".join(_Painter(trace, scale_ns).lines())


@dataclass
class _Painter:
    trace: Trace
    scale_ns: int
    letters: dict[int, str] = field(default_factory=dict)
    """Row of a call, or of an operation without one -> its letter."""

    def lines(self) -> Iterator[str]:
        trace = self.trace
        width = self._place(int(trace.end_ns.max())) if len(trace) else 0
        rows: dict[str, list[str]] = {}
        below: dict[str, str] = {}
        for row in trace.operations.tolist():
            key = int(trace.launch[row]) if trace.launch[row] != NONE else row
            if key not in self.letters:
                if len(self.letters) == 26:
                    raise BadDrawing("more than 26 launches: draw a shorter trace")
                self.letters[key] = chr(ord("a") + len(self.letters))
            letter = self.letters[key]
            device = int(trace.device[row])
            copies = trace.kind[row] in (Kind.COPY, Kind.SET)
            cells = rows.setdefault(f"s{trace.stream[row]}" + (f"@{device}" if device else ""), ["."] * width)
            self._paint(cells, row, letter, ">" if copies else letter)
            size = f" {trace.bytes[row]}B" if copies and trace.bytes[row] != NONE else ""
            below[letter] = trace.label(row) + size
        for row in trace.rows(Kind.CALL, Kind.OPERATOR, Kind.PYTHON, Kind.RANGE).tolist():
            thread = int(trace.thread[row])
            shown = self.letters.get(row) or _record_letter(trace, row)
            if shown:
                cells = rows.setdefault(f"host{thread + 1 if thread else ''}", ["."] * width)
                self._paint(cells, row, shown, shown if row in self.letters else "=")
        steps = [row for row in trace.rows(Kind.RANGE).tolist() if trace.label(row).startswith("ProfilerStep")]
        if steps:
            marks = ["."] * width
            for marker in steps:
                marks[self._place(int(trace.start_ns[marker]))] = "|"
            rows["step"] = marks
        order = sorted(rows, key=lambda label: (label != "step", not label.startswith("host"), label))
        longest = max(map(len, rows), default=0)
        yield from (f"{label:<{longest}} {''.join(rows[label])}" for label in order)
        yield from (f"{letter}: {name}" for letter, name in sorted(below.items()))
        if self.scale_ns != 1_000:
            yield f"scale: {self.scale_ns}ns"

    def _place(self, instant: int) -> int:
        return (instant - self.trace.origin_ns) // self.scale_ns

    def _paint(self, cells: list[str], row: int, first: str, rest: str) -> None:
        start, end = self._place(int(self.trace.start_ns[row])), self._place(int(self.trace.end_ns[row]))
        end = max(end, start + 1)
        if any(cell != "." for cell in cells[start:end]):
            raise BadDrawing(f"{self.trace.label(row)} overlaps what is drawn before it")
        cells[start:end] = [first] + [rest] * (end - start - 1)


def _record_letter(trace: Trace, row: int) -> str | None:
    known = ((letter, kind, name) for letter, (kind, name) in RECORDS.items())
    return next((letter for letter, kind, name in known if kind == trace.kind[row] and name == trace.label(row)), None)
