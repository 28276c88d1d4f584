"""Reads large Chrome-trace JSON into RawEvents: compiled, streamed and on several threads.

One thread reads the text (and unpacks it) into chunks that it cuts where an event seems to begin; others parse the
chunks into columns. That a chunk begins at an event is proved when its predecessor's parser stops exactly at its end. Where it
does not, the rest is joined with the next chunk and parsed again, so where the cuts fall never changes the result.
An event that the compiled parser does not know how to read goes to the one of `chrome`, which repairs or drops it.
"""

import json
import os
import queue
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_trace_advisor.ingest.chrome import scan_layout as scan
from gpu_trace_advisor.ingest.chrome.json_values import CAUSES, SURROGATE, Number, canonical, clean, not_strict
from gpu_trace_advisor.ingest.chrome.reader import (
    NEXT_EVENT,
    SPACE,
    Events,
    Progress,
    Walker,
    note_bad_text,
    plain_metadata,
    read_all,
    refuse_other_formats,
)
from gpu_trace_advisor.ingest.chrome.repair import repair, repair_value
from gpu_trace_advisor.ingest.chrome.text_file import HeldText, TextFile
from gpu_trace_advisor.ingest.raw_events import INTEGERS, MISSING, TEXTS, RawEvents
from gpu_trace_advisor.runtime.heap import give_back
from gpu_trace_advisor.runtime.machine_code import Loop, compile_from_now

_parse_events, _group, _refill, _intern = [
    Loop(
        f"gpu_trace_advisor.ingest.chrome.scan:{name}",
        "gpu_trace_advisor.ingest.raw_events",
        "gpu_trace_advisor.ingest.chrome.scan_layout",
        "gpu_trace_advisor.ingest.chrome.scan_vectors",
    )
    for name in ("parse_events", "group", "refill", "intern")
]

CHUNK = 4 << 20
_JOINED = 64 << 20
"""Bytes of one event, or of the text before the events, above which the whole file is left to the other parser."""
_NEXT_EVENT = re.compile(NEXT_EVENT.encode())
_FOLLOWING = re.compile(NEXT_EVENT)
_HEAD = 1 << 16
"""Bytes in which the first event is looked for, at most; then in twice as many, and so on."""
_TAIL = 1 << 15
_READ = 1 << 20
"""Bytes read at a time, so that progress is seen."""


class _CannotCope(Exception):
    """The file is unusual enough to be left to the slow parser; a small one is when anything is wrong with it."""


def read(
    path: Path | str, progress: Progress | None = None, chunk_size: int = CHUNK, threads: int | None = None
) -> RawEvents:
    """Read a Chrome-trace file; see `chrome.read_events`.

    chunk_size: bytes of text parsed at a time; threads: how many parse, by default one per processor up to 4.
    Raises UnreadableTrace when it is no Chrome trace.
    """
    with TextFile(path) as file:
        return read_file(file, progress, chunk_size, threads)


def read_file(
    file: TextFile, progress: Progress | None = None, chunk_size: int = CHUNK, threads: int | None = None
) -> RawEvents:
    """`read` of a file that is open."""
    compile_from_now()
    try:
        reader = _Reader(file, progress, chunk_size, threads or min(os.cpu_count() or 1, 4))
        reader.workers[0].is_ready()  # compiled together, for smaller files to come
        return reader.read()
    except (_CannotCope, ImportError):  # numba may be absent, or lag behind a new release of Python
        return read_all(file.path, progress)


def parse_if_kept(text: bytearray, path: Path | str) -> RawEvents | None:
    """RawEvents of the text of a whole file; None unless the text is without fault and the compiled code ready to run."""
    held = HeldText(text, path)
    reader = _Reader(
        held, None, min(CHUNK, len(text) + scan.PADDING), max(1, min(os.cpu_count() or 1, len(text) // CHUNK))
    )
    if not reader.workers[0].is_ready():
        return None
    with suppress(_CannotCope):
        return reader.read()
    return None


# ---- one thread's strings --------------------------------------------------------------------------------------------


class _Pool:
    """The strings of one thread: their bytes in one heap, found by a hash table."""

    def __init__(self) -> None:
        self.state = np.zeros(scan.STATE, np.int64)
        self.heap = np.zeros(1 << 20, np.uint8)
        self._make(1 << 13)

    def _make(self, size: int) -> None:
        self.table = np.zeros((size, 4), np.int64)
        self.slots = np.full(2 * size, -1, np.int32)

    def arrays(self) -> tuple[Any, ...]:
        return self.heap, self.table, self.slots, self.state

    def grow(self) -> None:
        """Room for twice as many strings and bytes."""
        count = int(self.state[scan.N_STRINGS])
        if 2 * count >= len(self.table):
            before = self.table
            self._make(2 * len(before))
            self.table[: len(before)] = before
            _refill(self.table, count, self.slots)
        heap = np.zeros(2 * len(self.heap), np.uint8)
        heap[: len(self.heap)] = self.heap
        self.heap = heap

    def add(self, text: str) -> int:
        """The code of a decoded string."""
        data = text.encode()
        buffer = np.zeros(len(data) + scan.PADDING, np.uint8)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        while (code := int(_intern(buffer, 0, len(data), scan.PLAIN, *self.arrays()))) == -2:
            self.grow()
        return code

    def strings(self) -> Iterator[tuple[bytes, int]]:
        """Every string's bytes and kind, by code."""
        count = int(self.state[scan.N_STRINGS])
        heap = self.heap.data
        for start, length, kind in self.table[:count, : scan.HASH].tolist():
            yield bytes(heap[start : start + length]), kind


# ---- one chunk -------------------------------------------------------------------------------------------------------


@dataclass
class _Columns:
    """Rows as a chunk's parser writes them."""

    rows: int
    sparse: int

    def __post_init__(self) -> None:
        self.dense = np.empty((self.rows, scan.DENSE), np.int64)
        self.integers, self.texts = np.empty((self.sparse, 3), np.int64), np.empty((self.sparse, 3), np.int64)
        self.last = np.zeros(len(INTEGERS) + len(TEXTS), np.int64)

    def arrays(self) -> tuple[Any, ...]:
        return self.dense, self.integers, self.texts, self.last

    def grown(self) -> "_Columns":
        """The same rows with room for twice as many."""
        new = _Columns(2 * self.rows, 2 * self.sparse)
        for after, before in zip(new.arrays(), self.arrays(), strict=True):
            after[: len(before)] = before
        return new


@dataclass
class _Chunk:
    """Text and, once parsed, its rows; the buffer holds `end` bytes of text and padding."""

    buffer: Any
    end: int
    base: int
    """Bytes of text before it."""
    last: bool = False
    stop: int = 0
    position: int = 0
    pool: int = 0
    rows: int = 0
    phase: Any = None
    labels: Any = None
    times: Any = None
    integers: Any = None
    texts: Any = None
    damage: list[tuple[str, int, str, int]] = field(default_factory=list)
    """(health code, position in the chunk, cause, how many)."""


class _Worker:
    """What one thread parses with."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pool = _Pool()
        self.columns = _Columns(1 << 12, 1 << 15)
        self.events = Events()

    def is_ready(self) -> bool:
        """Whether the compiled code can run now."""
        text, columns, pool = np.zeros(0, np.uint8), self.columns.arrays(), self.pool.arrays()
        counts, rows, _ = _parts(0, 1, np.int64)
        return (
            _parse_events.is_ready(text, 0, *columns, *pool)
            and all(
                _group.is_ready(self.columns.integers, 0, 0, counts, counts, rows, np.zeros(0, kind))
                for kind in (np.int64, np.int32)
            )
            and _refill.is_ready(self.pool.table, 0, self.pool.slots)
            and _intern.is_ready(text, 0, 0, scan.PLAIN, *pool)
        )

    def parse(self, chunk: _Chunk) -> _Chunk:
        """Parse the text of a chunk, which begins where an event may begin."""
        state = self.pool.state
        state[: scan.N_STRINGS] = 0
        state[scan.N_REPAIRED] = 0
        chunk.damage.clear()
        while True:
            stop = _parse_events(chunk.buffer, chunk.end, *self.columns.arrays(), *self.pool.arrays())
            if stop == scan.FULL:
                self.columns = self.columns.grown()
            elif stop == scan.POOL_FULL:
                self.pool.grow()
            elif stop not in (scan.ODD, scan.CUT):
                break
            elif not self._odd(chunk):
                stop = scan.CUT
                break
        if state[scan.N_REPAIRED]:
            first = int(state[scan.FIRST_REPAIRED])
            chunk.damage.append(("repaired-event", first, "number", int(state[scan.N_REPAIRED])))
        chunk.stop, chunk.position, chunk.pool = stop, int(state[scan.POSITION]), self.number
        self._keep(chunk)
        return chunk

    def _keep(self, chunk: _Chunk) -> None:
        state, columns = self.pool.state, self.columns
        chunk.rows = rows = int(state[scan.ROWS])
        chunk.phase = columns.dense[:rows, scan.PHASE].astype(np.uint8)
        chunk.labels = [columns.dense[:rows, scan.LABELS + k].astype(np.int32) for k in range(4)]
        chunk.times = [columns.dense[:rows, scan.TIMES + k].copy() for k in range(2)]
        chunk.integers = _grouped(columns.integers, int(state[scan.N_INTEGERS]), 0, len(INTEGERS), np.int64)
        chunk.texts = _grouped(columns.texts, int(state[scan.N_TEXTS]), len(INTEGERS), len(TEXTS), np.int32)

    def _odd(self, chunk: _Chunk) -> bool:
        """Read what the compiled parser could not, with the rules of `chrome`; False when the text ends in it.

        Where a quote is missing the compiled parser takes all that follows for text, and says that the event is cut.
        """
        start = int(self.pool.state[scan.POSITION])
        size = 1 << 12
        while True:
            stop = min(start + size, chunk.end)
            text = bytes(chunk.buffer[start:stop]).decode("utf-8", "surrogateescape")
            walker = _EventWalker(text, self.events)
            read = walker.one(stop == chunk.end, chunk.last)
            if read is None and stop < chunk.end:
                size *= 8
                continue
            break
        self.events.notes.clear()
        if read is None:
            return False
        value, after, code, cause, where = read
        position = start + len(text[:after].encode("utf-8", "surrogateescape"))
        if code:
            where = start + len(text[:where].encode("utf-8", "surrogateescape"))
            chunk.damage.append((code, where, cause, 1))
        if value is not None:
            self._add(value, chunk, start)
        self.pool.state[scan.POSITION] = position
        return True

    def _add(self, event: dict[str, Any], chunk: _Chunk, start: int) -> None:
        """Append a row for an event that the slow parser read."""
        dense, integers, texts, strings = self.events.take(event)
        state = self.pool.state
        row = int(state[scan.ROWS])
        slack = scan.SLACK
        while (
            row >= self.columns.rows or max(state[scan.N_INTEGERS], state[scan.N_TEXTS]) + slack > self.columns.sparse
        ):
            self.columns = self.columns.grown()
        if any(SURROGATE.search(text) for text in strings):
            chunk.damage.append(("repaired-event", start, "unicode", 1))
        codes = [self.pool.add(clean(text)) for text in strings]
        codes.append(-1)
        columns = self.columns
        columns.dense[row] = [dense[0], *(codes[code] for code in dense[1:5]), *dense[5:7]]
        for key, value in integers.items():
            columns.integers[state[scan.N_INTEGERS]] = row, INTEGERS.index(key), value
            state[scan.N_INTEGERS] += 1
        for key, code in texts.items():
            columns.texts[state[scan.N_TEXTS]] = row, len(INTEGERS) + TEXTS.index(key), codes[code]
            state[scan.N_TEXTS] += 1
        state[scan.ROWS] = row + 1


def _grouped(entries: Any, count: int, first: int, n_keys: int, kind: Any) -> tuple[Any, Any, Any]:
    """How many of each key, and rows and values sorted by key."""
    counts, rows, values = _parts(count, n_keys, kind)
    _group(entries, count, first, counts, np.zeros(n_keys, np.int64), rows, values)
    return counts, rows, values


def _parts(count: int, n_keys: int, kind: Any) -> tuple[Any, Any, Any]:
    """Room for what `_grouped` returns."""
    return np.zeros(n_keys, np.int64), np.empty(count, np.int32), np.empty(count, kind)


class _EventWalker(Walker):
    """Reads the one event that a text begins with."""

    def one(self, whole: bool, at_end: bool) -> tuple[Any, int, str, str, int] | None:
        """(event or None, where it ends, health code or "", cause, where the damage is).

        None when more text is needed. whole: nothing of the chunk follows the text; at_end: nor of the file.
        """
        text = self.text
        value, end = self._decode(0)
        if end and (end < len(text) or whole):
            if isinstance(value, dict):
                return value, end, "", "", 0
            return None, end, "dropped-event", "event", 0
        if self._budget <= 0:
            raise _CannotCope
        at_end = at_end and whole
        if not at_end and (self._cut or not _FOLLOWING.search(text)):
            return None
        end, follows = self._end_of_damaged(0)
        value, causes = repair(text[:end])
        if isinstance(value, dict):
            return value, end, "repaired-event", causes[0], 0
        if not follows:
            return None
        return None, end, "dropped-event", self._cause_of_loss(0), max(self._error, 0)


class _HeadWalker(Walker):
    """Reads the top-level keys before the events."""

    def find(self) -> int | None:
        """Where the first event may begin; None when the text ends before or is damaged there."""
        position = self._skip(SPACE, 0)
        self.at: int | None = None
        if self.text[position] == "[":
            self.is_list = True
            return position + 1
        self._walk_keys(position + 1)
        return None if self.failures else self.at

    def _walk_events(self, position: int) -> int | None:
        self.at = position
        return None


class _AfterWalker(Walker):
    """Reads the top-level keys behind the events."""

    def read(self) -> bool:
        """Whether the document is complete."""
        end = self._walk_keys(0)
        return end is not None and '"ph"' not in self.text[end:]

    def _walk_events(self, position: int) -> int | None:
        raise _CannotCope


class _Source:
    """The text of a file in chunks."""

    def __init__(self, file: TextFile | HeldText, progress: Progress | None) -> None:
        self.file, self.progress = file, progress
        self._held = memoryview(b"")
        """Text that was read and belongs to the next chunk."""
        self._base = 0

    def _fill(self, view: memoryview) -> int:
        """Fill a buffer; how many bytes, fewer than fit only at the end of the text."""
        filled = min(len(self._held), len(view))
        view[:filled] = self._held[:filled]
        self._held = self._held[filled:]
        while filled < len(view) and (size := self.file.fill(view[filled : filled + _READ])):
            filled += size
            if self.progress:
                self.progress(self.file.done, self.file.size)
        return filled

    def take(self, size: int) -> bytearray:
        """The next bytes, `size` of them, fewer at the end of the text."""
        taken = bytearray(size)
        with memoryview(taken) as view:
            filled = self._fill(view)
        del taken[filled:]
        return taken

    def put_back(self, text: bytearray, base: int) -> None:
        """Return what was taken and not used; base: bytes of the text before it."""
        self._held, self._base = memoryview(bytes(text)), base

    def everything(self) -> bytearray:
        """All the text that is left."""
        taken = bytearray()
        while more := self.take(1 << 20):
            taken += more
        return taken

    def chunk(self, buffer: Any) -> "_Chunk | None":
        """Fill a buffer, up to where an event seems to begin; None at the end of the text."""
        room = len(buffer) - scan.PADDING
        view = memoryview(buffer)[:room]
        filled = self._fill(view)
        if not filled:
            return None
        ahead = bytes(self._held) or bytes(self.take(1))
        end = _cut(view) if ahead else filled
        self._held = memoryview(bytes(view[end:filled]) + ahead)
        buffer[end : end + scan.PADDING] = 0
        chunk = _Chunk(buffer, end, self._base, last=not ahead)
        self._base += end
        return chunk


def _cut(text: memoryview) -> int:
    """Where the last event that begins in the text seems to begin; its length when none does."""
    window = _TAIL
    while True:
        start = max(len(text) - window, 0)
        end = 0
        for found in _NEXT_EVENT.finditer(text[start:]):
            end = found.end()
        if end:
            return start + end
        if not start:
            return len(text)
        window *= 16


# ---- the file --------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, file: TextFile | HeldText, progress: Progress | None, chunk_size: int, threads: int) -> None:
        self.file, self.progress, self.chunk_size = file, progress, chunk_size
        self.workers = [_Worker(number) for number in range(threads)]
        self.idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        self.free: list[Any] = []
        self.chunks: list[_Chunk] = []
        self.rest = b""
        self.ended = False
        """The list of events has ended; what follows goes to `after`."""
        self.after = bytearray()
        self.first_damage: dict[str, tuple[int, str]] = {}
        self.notes: dict[str, int] = {}

    def read(self) -> RawEvents:
        source = _Source(self.file, self.progress)
        metadata = self._read_head(source)
        self._read_events(source)
        raw = self._columns()
        self.workers, self.free, self.idle = [], [], queue.SimpleQueue()
        give_back()
        if metadata is None and not raw.phase.any():
            raise _CannotCope  # a list of what may be no events at all
        self._finish(raw, metadata)
        return raw

    def _read_head(self, source: "_Source") -> dict[str, Any] | None:
        """Read up to the first event; the top-level keys before it, None when the file is a bare list."""
        head = source.take(min(max(self.chunk_size, 4096), _HEAD))
        refuse_other_formats(bytes(head[:4096]), self.file.path, self.file.damage)
        while True:
            text = head.decode("utf-8", "surrogateescape")
            walker = _HeadWalker(text, Events())
            at = walker.find()
            if at is not None:
                break
            more = source.take(len(head))
            if not more or len(head) > _JOINED:
                raise _CannotCope
            head += more
        start = len(text[:at].encode("utf-8", "surrogateescape"))
        source.put_back(head[start:], start)
        return None if walker.is_list else walker.document()

    def _read_events(self, source: "_Source") -> None:
        """Parse chunk after chunk."""
        if len(self.workers) > 1:
            self._read_in_threads(source)
        else:
            while not self.ended and (chunk := source.chunk(self._buffer())):
                self._accept(self._parse(chunk))
        if self.ended:
            self.after += source.everything()

    def _read_in_threads(self, source: "_Source") -> None:
        """At most two more chunks than there are threads are in memory."""
        from concurrent.futures import Future, ThreadPoolExecutor

        pending: deque[Future[_Chunk]] = deque()
        with ThreadPoolExecutor(len(self.workers)) as executor:
            try:
                while not self.ended and (chunk := source.chunk(self._buffer())):
                    pending.append(executor.submit(self._parse, chunk))
                    while pending and (len(pending) > len(self.workers) + 1 or pending[0].done()):
                        self._accept(pending.popleft().result())
                while pending:
                    self._accept(pending.popleft().result())
            finally:
                for future in pending:
                    future.cancel()

    def _buffer(self) -> Any:
        return self.free.pop() if self.free else np.zeros(self.chunk_size + scan.PADDING, np.uint8)

    def _parse(self, chunk: _Chunk) -> _Chunk:
        worker = self.idle.get()
        try:
            return worker.parse(chunk)
        finally:
            self.idle.put(worker)

    def _accept(self, chunk: _Chunk) -> None:
        """Take the rows of the next chunk in file order, once it is known where its first event begins."""
        buffer = chunk.buffer
        if self.ended:
            self.after += bytes(chunk.buffer[: chunk.end])
        else:
            if self.rest:
                chunk = self._parse(self._joined(chunk))
                self.rest = b""
            self._keep(chunk)
            if chunk.stop == scan.LIST_ENDS:
                self.ended = True
                self.after += bytes(chunk.buffer[chunk.position : chunk.end])
            elif chunk.stop == scan.CUT:
                self.rest = bytes(chunk.buffer[chunk.position : chunk.end])
                self.rest_base = chunk.base + chunk.position
                if len(self.rest) > _JOINED:
                    raise _CannotCope
        chunk.buffer = None
        if len(buffer) == self.chunk_size + scan.PADDING:
            self.free.append(buffer)

    def _joined(self, chunk: _Chunk) -> _Chunk:
        """The rest of the text before a chunk together with the chunk's."""
        end = len(self.rest) + chunk.end
        buffer = np.zeros(end + scan.PADDING, np.uint8)
        buffer[: len(self.rest)] = np.frombuffer(self.rest, np.uint8)
        buffer[len(self.rest) : end] = chunk.buffer[: chunk.end]
        return _Chunk(buffer, end, chunk.base - len(self.rest), chunk.last)

    def _keep(self, chunk: _Chunk) -> None:
        for code, position, cause, count in chunk.damage:
            self.notes[code] = self.notes.get(code, 0) + count
            where = chunk.base + position, cause
            if code not in self.first_damage or where < self.first_damage[code]:
                self.first_damage[code] = where
        if chunk.rows:
            self.chunks.append(chunk)

    # -- putting it together

    def _columns(self) -> RawEvents:
        strings, code_of, bad = self._merge_pools()
        total = sum(chunk.rows for chunk in self.chunks)
        phase = np.empty(total, np.uint8)
        labels = [np.empty(total, np.int32) for _ in range(4)]
        times = [np.empty(total, np.int64) for _ in range(2)]
        bases, row = [], 0
        for chunk in self.chunks:
            rows = slice(row, row + chunk.rows)
            phase[rows] = chunk.phase
            for k, column in enumerate(labels):
                column[rows] = code_of[chunk.pool][chunk.labels[k]]
            for k, instants in enumerate(times):
                instants[rows] = chunk.times[k]
            chunk.phase = chunk.labels = chunk.times = None
            bases.append(row)
            row += chunk.rows
        integers = self._sparse("integers", bases, INTEGERS, MISSING, None)
        texts = self._sparse("texts", bases, TEXTS, -1, code_of)
        self.chunks.clear()
        raw = RawEvents(
            phase, labels[0], labels[1], labels[2], labels[3], times[0], times[1], integers, texts, strings, {}
        )
        if bad:
            note_bad_text(raw, bad)
        return raw

    def _sparse(
        self, kind: str, bases: list[int], names: tuple[str, ...], missing: int, code_of: list[Any] | None
    ) -> dict[str, tuple[Any, Any]]:
        """The columns of arguments, each taken from the chunks one after the other."""
        columns = {}
        parts = [getattr(chunk, kind) for chunk in self.chunks]
        starts = [np.concatenate(([0], np.cumsum(part[0]))).tolist() for part in parts]
        for key, name in enumerate(names):
            total = sum(start[key + 1] - start[key] for start in starts)
            if not total:
                continue
            rows: Any = np.empty(total, np.int64)
            values: Any = np.empty(total, np.int64 if code_of is None else np.int32)
            at = 0
            for chunk, part, start, base in zip(self.chunks, parts, starts, bases, strict=True):
                here = slice(start[key], start[key + 1])
                there = slice(at, at + start[key + 1] - start[key])
                np.add(part[1][here], base, out=rows[there])
                values[there] = part[2][here] if code_of is None else code_of[chunk.pool][part[2][here]]
                at = there.stop
            keep = values != missing
            if not keep.all():
                rows, values = rows[keep], values[keep]
            if len(rows):
                columns[name] = rows, values
        for chunk in self.chunks:
            setattr(chunk, kind, None)
        return columns

    def _merge_pools(self) -> tuple[list[str], list[Any], set[int]]:
        """The strings of all threads, each thread's codes among them, and the codes of those that were damaged."""
        codes: dict[str, int] = {}
        bad: set[int] = set()
        code_of = []
        for worker in self.workers:
            mine: Any = np.empty(int(worker.pool.state[scan.N_STRINGS]) + 1, np.int32)
            mine[-1] = -1  # so that no string stays none
            for number, (data, kind) in enumerate(worker.pool.strings()):
                text, damaged = _decoded(data, kind)
                mine[number] = code = codes.setdefault(text, len(codes))
                if damaged:
                    bad.add(code)
            code_of.append(mine)
        return list(codes), code_of, bad

    def _finish(self, raw: RawEvents, metadata: dict[str, Any] | None) -> None:
        """Add the metadata behind the events, and what was damaged."""
        why = ""
        if self.ended and metadata is not None:
            after = _AfterWalker(self.after.decode("utf-8", "surrogateescape"), Events())
            if not after.read():
                why = "the file is truncated behind its events"
            metadata |= after.document()
        elif self.rest:
            why = f"byte {self.rest_base}: the file ends inside an event"
        elif metadata is not None and not self.ended:
            why = "the file is truncated"
        why = self.file.damage or why
        if isinstance(self.file, HeldText) and (why or self.notes or raw.notes):
            raise _CannotCope
        if why:
            raw.notes["partial"] = 1
            raw.first_damage["partial"] = f"{why}; {len(raw)} complete events read"
        raw.metadata = plain_metadata(metadata or {})
        raw.notes.update(self.notes)
        for code, (position, cause) in self.first_damage.items():
            raw.first_damage[code] = f"line {_line(self.file.path, position)}, byte {position}: {CAUSES[cause]}"


def _line(path: Path, position: int) -> int:
    """The number of the line, from 1, of a position in the text."""
    line = 1
    with TextFile(path) as file:
        for block in file.blocks():
            line += block[:position].count(b"\n")
            position -= len(block)
            if position <= 0:
                break
    return line


# Integers in lists, in the spelling of `canonical`: nothing to decode.
_INTEGER_LISTS = re.compile(rb"(?:\[(?=[\[\]0-9-])|\](?=,|\]|\Z)|-?(?:0|[1-9][0-9]*)(?=,|\])|, (?=[\[0-9-]))+")


def _decoded(data: bytes, kind: int) -> tuple[str, bool]:
    """A string of a pool as text, and whether it was damaged."""
    if kind == scan.VALUE and _INTEGER_LISTS.fullmatch(data):
        return data.decode(), False
    text = data.decode("utf-8", "surrogateescape")
    damaged = False
    if kind == scan.ESCAPED:
        text = json.loads(f'"{text}"', strict=False)
    elif kind == scan.VALUE:
        try:
            text = canonical(json.loads(text, strict=False, parse_float=Number, parse_constant=not_strict))
        except (ValueError, RecursionError):
            damaged = True
            with suppress(ValueError):
                text = canonical(repair_value(text))
    if not text.isascii() and SURROGATE.search(text):
        return clean(text), True
    return text, damaged
