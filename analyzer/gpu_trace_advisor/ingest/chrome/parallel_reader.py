"""Reads large Chrome-trace JSON into RawEvents: compiled, streamed and on several threads.

One thread reads the text (and unpacks it) into chunks that it cuts where an event seems to begin; others parse the
chunks into columns. That a chunk begins at an event is proved when its predecessor's parser stops exactly at its end. Where it
does not, the rest is joined with the next chunk and parsed again, so where the cuts fall never changes the result.
An event that the compiled parser does not know how to read goes to the one of `chrome`, which repairs or drops it.
"""

import codecs
import json
import os
import queue
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_trace_advisor.ingest.chrome._scan import ESCAPED, LIST_ENDS, ODD, PADDING, VALUE, Scanner
from gpu_trace_advisor.ingest.chrome.json_values import CAUSES, SURROGATE, Number, canonical, clean, not_strict
from gpu_trace_advisor.ingest.chrome.reader import (
    ENDS_INSIDE,
    FAILED_PASSES,
    LOOKED_AT,
    NEXT_EVENT,
    SECOND,
    SPACE,
    TRUNCATED,
    Events,
    Progress,
    Walker,
    is_bad_text,
    note_bad_text,
    plain_metadata,
    read_all,
    refuse_other_formats,
)
from gpu_trace_advisor.ingest.chrome.repair import Cut, repair
from gpu_trace_advisor.ingest.chrome.text_file import HeldText, TextFile
from gpu_trace_advisor.ingest.raw_events import INTEGERS, TEXTS, RawEvents
from gpu_trace_advisor.ingest.room import LEFT_OUT, LONGEST_VALUE, SMALL, as_objects, check_room
from gpu_trace_advisor.runtime.heap import give_back

CHUNK = 4 << 20
CUT = -1
"""How a chunk's parser stops when the text ends in an event; else see `_scan`."""
_JOINED = 64 << 20
"""Bytes of one event, or of the text before the events, above which the whole file is left to the other parser."""
_NEXT_EVENT = re.compile(NEXT_EVENT.encode())
_FOLLOWING = re.compile(NEXT_EVENT)
BYTES_A_ROW = 33
"""Of an event without arguments, in columns."""
_HEAD = 1 << 16
"""Bytes in which the first event is looked for, at most; then in twice as many, and so on."""
_TAIL = 1 << 15
MOST_DAMAGE = 100_000
"""Damaged events of one chunk; text with more is no trace."""
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
    file: TextFile,
    progress: Progress | None = None,
    chunk_size: int = CHUNK,
    threads: int | None = None,
    limit: int | None = None,
) -> RawEvents:
    """`read` of a file that is open."""
    try:
        return _Reader(file, progress, chunk_size, threads or min(os.cpu_count() or 1, 4), limit).read()
    except _CannotCope:
        return read_all(file.path, progress, limit, bounded=True)


def parse_whole(text: bytearray, path: Path | str, limit: int | None = None) -> RawEvents | None:
    """RawEvents of the text of a whole file; None unless the text is without fault."""
    held = HeldText(text, path)
    threads = max(1, min(os.cpu_count() or 1, len(text) // CHUNK))
    with suppress(_CannotCope):
        return _Reader(held, None, min(CHUNK, len(text) + PADDING), threads, limit).read()
    return None


# ---- one chunk -------------------------------------------------------------------------------------------------------


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
    worker: int = 0
    rows: int = 0
    dense: Any = None
    """See `Scanner.dense` and `Scanner.sparse`; likewise `sparse`."""
    sparse: Any = None
    looked_at: int = 0
    """Characters that were looked at in vain."""
    damage: list[tuple[str, int, str, int]] = field(default_factory=list)
    """(health code, position in the chunk, cause, how many)."""


class _Worker:
    """What one thread parses with."""

    def __init__(self, number: int, whole: bool) -> None:
        self.number, self.whole = number, whole
        """whole: whatever is damaged goes to the other reader."""
        self.scanner = Scanner()
        self.events = Events()

    def parse(self, chunk: _Chunk) -> _Chunk:
        """Parse the text of a chunk, which begins where an event may begin."""
        scanner = self.scanner
        scanner.begin()
        chunk.damage.clear()
        chunk.looked_at = 0
        while (stop := scanner.scan(chunk.buffer, chunk.end)) == ODD:
            if not self._odd(chunk):
                stop = CUT
                break
        if scanner.repaired:
            chunk.damage.append(("repaired-event", scanner.first_repaired, "number", scanner.repaired))
        chunk.stop, chunk.position, chunk.worker, chunk.rows = stop, scanner.position, self.number, scanner.rows
        chunk.dense, chunk.sparse = scanner.dense(), scanner.sparse()
        return chunk

    def _odd(self, chunk: _Chunk) -> bool:
        """Read what the compiled parser could not, with the rules of `chrome`; False when the text ends in it.

        Where a quote is missing the compiled parser takes all that follows for text, and says that the event is cut.
        """
        start = self.scanner.position
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
        chunk.looked_at += walker.looked_at
        if read is None:
            return False
        value, after, code, cause, where = read
        position = start + len(text[:after].encode("utf-8", "surrogateescape"))
        if code:
            where = start + len(text[:where].encode("utf-8", "surrogateescape"))
            if self.whole or len(chunk.damage) >= MOST_DAMAGE:
                raise _CannotCope
            chunk.damage.append((code, where, cause, 1))
        if value is not None:
            self.scanner.add(*self.events.take(value))
        self.scanner.go_on_at(position)
        return True


class _EventWalker(Walker):
    """Reads the one event that a text begins with."""

    def one(self, whole: bool, at_end: bool) -> tuple[Any, int, str, str, int] | None:
        """(event or None, where it ends, health code or "", cause, where the damage is).

        None when more text is needed. whole: nothing of the chunk follows the text; at_end: nor of the file.
        """
        text = self.text
        at_end = at_end and whole
        value, end = self._decode(0)
        if end and isinstance(value, dict):
            return value, end, "", "", 0
        if end and (end < len(text) or at_end):
            return None, end, "dropped-event", "event", 0
        if self._budget <= 0:
            raise _CannotCope
        try:
            value, end, cause = self._lenient(0)
        except Cut:
            if not at_end:
                return None
            value = None
        if value is not None:
            return value, end, "repaired-event", cause, 0
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

    def read(self) -> tuple[str, int]:
        """(what is wrong with the end of the document or "", where)."""
        end = self._walk_keys(0)
        if end is None:
            return TRUNCATED, len(self.text.encode("utf-8", "surrogateescape"))
        return (SECOND if '"ph"' in self.text[end:] else ""), len(self.text[:end].encode("utf-8", "surrogateescape"))

    def _walk_events(self, position: int) -> int | None:
        raise _CannotCope


class _Source:
    """The text of a file in chunks."""

    def __init__(self, file: TextFile | HeldText, progress: Progress | None) -> None:
        self.file, self.progress = file, progress
        self._held = memoryview(b"")
        """Text that was read and belongs to the next chunk."""
        self._base = 0
        self.size = 0
        """Bytes of text read."""

    def _fill(self, view: memoryview) -> int:
        """Fill a buffer; how many bytes, fewer than fit only at the end of the text."""
        filled = min(len(self._held), len(view))
        view[:filled] = self._held[:filled]
        self._held = self._held[filled:]
        while filled < len(view) and (size := self.file.fill(view[filled : filled + _READ])):
            filled += size
            self.size += size
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
        room = len(buffer) - PADDING
        view = memoryview(buffer)[:room]
        filled = self._fill(view)
        if not filled:
            return None
        ahead = bytes(self._held) or bytes(self.take(1))
        end = _cut(view) if ahead else filled
        self._held = memoryview(bytes(view[end:filled]) + ahead)
        buffer[end : end + PADDING] = 0
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
    def __init__(
        self,
        file: TextFile | HeldText,
        progress: Progress | None,
        chunk_size: int,
        threads: int,
        limit: int | None = None,
    ) -> None:
        self.file, self.progress, self.chunk_size, self.limit = file, progress, chunk_size, limit
        self.workers = [_Worker(number, isinstance(file, HeldText)) for number in range(threads)]
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
        self.looked_at = self.held = 0
        self.notes: dict[str, int] = {}

    def read(self) -> RawEvents:
        source = _Source(self.file, self.progress)
        metadata = self._read_head(source)
        self._read_events(source)
        self.size = source.size
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
            check_room(self.file.path, len(head), as_objects(head), self.limit)
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
        return self.free.pop() if self.free else np.zeros(self.chunk_size + PADDING, np.uint8)

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
            if chunk.stop == LIST_ENDS:
                self.ended = True
                self.after += bytes(chunk.buffer[chunk.position : chunk.end])
            elif chunk.stop == CUT:
                self.rest = bytes(chunk.buffer[chunk.position : chunk.end])
                self.rest_base = chunk.base + chunk.position
                if len(self.rest) > _JOINED:
                    raise _CannotCope
                if len(self.rest) > SMALL:  # no event ends in all of it
                    check_room(self.file.path, chunk.base + chunk.end, as_objects(self.rest), self.limit)
        chunk.buffer = None
        if len(buffer) == self.chunk_size + PADDING:
            self.free.append(buffer)

    def _joined(self, chunk: _Chunk) -> _Chunk:
        """The rest of the text before a chunk together with the chunk's."""
        end = len(self.rest) + chunk.end
        buffer = np.zeros(end + PADDING, np.uint8)
        buffer[: len(self.rest)] = np.frombuffer(self.rest, np.uint8)
        buffer[len(self.rest) : end] = chunk.buffer[: chunk.end]
        return _Chunk(buffer, end, chunk.base - len(self.rest), chunk.last)

    def _keep(self, chunk: _Chunk) -> None:
        self.looked_at += chunk.looked_at
        if self.looked_at > FAILED_PASSES // 2 * (chunk.base + chunk.end) + LOOKED_AT // 2:
            raise _CannotCope  # the other reader may give up before the end
        for code, position, cause, count in chunk.damage:
            self.notes[code] = self.notes.get(code, 0) + count
            where = chunk.base + position, cause
            if code not in self.first_damage or where < self.first_damage[code]:
                self.first_damage[code] = where
        if chunk.rows:
            self.chunks.append(chunk)
            own = BYTES_A_ROW * chunk.rows + sum(len(part) for pair in chunk.sparse.values() for part in pair)
            self.held += own
            coming = (len(self.workers) + 2) * own  # of the chunks that are parsed meanwhile
            check_room(self.file.path, chunk.base + chunk.end, 2 * self.held + coming, self.limit)

    # -- putting it together

    def _columns(self) -> RawEvents:
        strings, code_of, bad = self._merge_pools()
        total = sum(chunk.rows for chunk in self.chunks)
        phase: Any = np.empty(total, np.uint8)
        labels: list[Any] = [np.empty(total, np.int32) for _ in range(4)]
        times: list[Any] = [np.empty(total, np.int64) for _ in range(2)]
        bases, row = [], 0
        for chunk in self.chunks:
            rows = slice(row, row + chunk.rows)
            phase[rows], chunk.dense[0] = np.frombuffer(chunk.dense[0], np.uint8), None
            for k, column in enumerate(labels, 1):
                column[rows] = code_of[chunk.worker][np.frombuffer(chunk.dense[k], np.int32)]
            for k, column in enumerate(times, 5):
                column[rows] = np.frombuffer(chunk.dense[k], np.int64)
            chunk.dense = None
            bases.append(row)
            row += chunk.rows
        integers = {name: found for name in INTEGERS if (found := self._sparse(name, bases, None))}
        texts = {name: found for name in TEXTS if (found := self._sparse(name, bases, code_of))}
        self.chunks.clear()
        raw = RawEvents(
            phase, labels[0], labels[1], labels[2], labels[3], times[0], times[1], integers, texts, strings, {}
        )
        if bad:
            note_bad_text(raw, bad)
        return raw

    def _sparse(self, name: str, bases: list[int], code_of: list[Any] | None) -> tuple[Any, Any] | None:
        """Rows and values of an argument, taken from the chunks one after the other; None where it does not occur."""
        kind = np.int64 if code_of is None else np.int32
        total = sum(len(chunk.sparse[name][0]) // 4 for chunk in self.chunks if name in chunk.sparse)
        rows: Any = np.empty(total, np.int64)
        values: Any = np.empty(total, kind)
        at = 0
        for chunk, base in zip(self.chunks, bases, strict=True):
            if found := chunk.sparse.pop(name, None):
                mine = np.frombuffer(found[1], kind)
                there = slice(at, at + len(mine))
                np.add(np.frombuffer(found[0], np.int32), base, out=rows[there])
                values[there] = mine if code_of is None else code_of[chunk.worker][mine]
                at = there.stop
        return (rows, values) if total else None

    def _merge_pools(self) -> tuple[list[str], list[Any], set[int]]:
        """The strings of all threads, each thread's codes among them, and the codes of those that were damaged."""
        codes: dict[str, int] = {}
        bad: set[int] = set()
        code_of = []
        for worker in self.workers:
            mine: Any = np.empty(worker.scanner.n_strings + 1, np.int32)
            mine[-1] = -1  # so that no string stays none
            for number, (data, kind) in enumerate(worker.scanner.all_strings()):
                text, damaged = _decoded(data, kind)
                mine[number] = code = codes.setdefault(text, len(codes))
                if damaged:
                    bad.add(code)
            code_of.append(mine)
        return list(codes), code_of, bad

    def _finish(self, raw: RawEvents, metadata: dict[str, Any] | None) -> None:
        """Add the metadata behind the events, and what was damaged."""
        why, where = "", self.size
        if self.ended and metadata is not None:
            check_room(self.file.path, self.size, as_objects(self.after), self.limit)
            after = _AfterWalker(self.after.decode("utf-8", "surrogateescape"), Events())
            why, position = after.read()
            where += position - len(self.after)
            metadata |= after.document()
        elif self.rest:
            why = ENDS_INSIDE
        elif metadata is not None and not self.ended:
            why = TRUNCATED
        if why and not self.file.damage:
            why = f"{self._place(where)}: {why}"
        why = self.file.damage or why
        if isinstance(self.file, HeldText) and (why or self.notes or raw.notes):
            raise _CannotCope
        if why:
            raw.notes["partial"] = 1
            raw.first_damage["partial"] = f"{why}; {len(raw)} complete events read"
        raw.metadata = plain_metadata(metadata or {})
        raw.notes.update(self.notes)
        for code, (position, cause) in self.first_damage.items():
            raw.first_damage[code] = f"{self._place(position)}: {CAUSES[cause]}"
        if is_bad_text(raw) and (bad := _first_bad_byte(self.file.path)) is not None:
            raw.first_damage["repaired-event"] = f"{self._place(bad)}: {CAUSES['unicode']}"

    def _place(self, position: int) -> str:
        """A position in the text for a person."""
        if isinstance(self.file, HeldText):
            return ""  # what is damaged goes to the other reader
        line, left = 1, position
        with TextFile(self.file.path) as file:
            for block in file.blocks():
                line += block[:left].count(b"\n")
                left -= len(block)
                if left <= 0:
                    break
        return f"line {line}, byte {position}"


def _first_bad_byte(path: Path) -> int | None:
    """Where a text is not UTF-8."""
    decoder, before, pending = codecs.getincrementaldecoder("utf-8")(), 0, 0
    with TextFile(path) as file:
        try:
            for block in file.blocks():
                decoder.decode(block)
                before += len(block)
                pending = len(decoder.getstate()[0])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return before - pending + error.start
    return None


# Integers in lists, in the spelling of `canonical`: nothing to decode.
_INTEGER_LISTS = re.compile(rb"(?:\[(?=[\[\]0-9-])|\](?=,|\]|\Z)|-?(?:0|[1-9][0-9]*)(?=,|\])|, (?=[\[0-9-]))+")


def _decoded(data: bytes, kind: int) -> tuple[str, bool]:
    """A string of a pool as text, and whether it was damaged."""
    if kind == VALUE and len(data) > LONGEST_VALUE:
        return LEFT_OUT, False
    if kind == VALUE and _INTEGER_LISTS.fullmatch(data):
        return data.decode(), False
    text = data.decode("utf-8", "surrogateescape")
    if kind == ESCAPED:
        text = json.loads(f'"{text}"', strict=False)
    elif kind == VALUE:
        text = canonical(json.loads(text, strict=False, parse_float=Number, parse_constant=not_strict))
    if not text.isascii() and SURROGATE.search(text):
        return clean(text), True
    return text, False
