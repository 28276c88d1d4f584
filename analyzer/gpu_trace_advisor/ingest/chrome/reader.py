"""Reads Chrome-trace JSON into RawEvents with the standard library alone; `chrome_fast` does the large files.

A valid file goes through `json.loads`. Any other is walked event by event: a damaged event is repaired or dropped, and
both are counted. Every loop moves forward, and the text that failed attempts may look at again is bounded, so the time
is linear in the size of the file whatever it holds.
"""

import gc
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest import room
from gpu_trace_advisor.ingest.chrome.json_values import (
    CAUSES,
    INT64,
    SURROGATE,
    Number,
    canonical,
    clean,
    integer,
    nanoseconds,
    not_strict,
)
from gpu_trace_advisor.ingest.chrome.repair import Cut, lenient, repair
from gpu_trace_advisor.ingest.chrome.text_file import TextFile
from gpu_trace_advisor.ingest.raw_events import ALIASES, INTEGERS, MISSING, TEXTS, RawEvents

Progress = Callable[[int, int], None]
"""Called with (bytes of the file done, bytes of the file)."""

LARGE = 40 << 20
"""Bytes of text from which on it is not held in memory as a whole."""
PACKED = 8
"""Text is about so many times longer than its gzip data, or more; twice that is usual."""


def read_events(path: Path | str, progress: Progress | None = None, limit: int | None = None) -> RawEvents:
    """Read a Chrome-trace file of any size.

    limit: bytes of memory that this may take, where its size allows less (`ingest.room`).

    Raises UnreadableTrace, with one line that says what the file is, when it holds no trace.
    """
    with TextFile(path) as file:
        if file.size <= (LARGE // PACKED if file.gzipped else LARGE):
            text = file.take(LARGE + 1, progress)
            if len(text) <= LARGE:
                if raw := _parse_fast(text, path, file.damage, limit):
                    return raw
                if len(text) <= room.SMALL or not _compiled():
                    return parse(text, path, file.damage)
                del text
                return read_again(path, progress, limit)
            file.put_back(text)
            del text
        if parallel_reader := _compiled():
            found: RawEvents = parallel_reader.read_file(file, progress, limit=limit)
            return found
    from logging import getLogger

    getLogger("gpu_trace_advisor").warning(_SLOW, path)
    return read_all(path, progress)


_SLOW = "%s: read without the compiled parser, which takes a tenth of the time; install a C compiler, then gpu-trace-advisor anew"


def read_again(path: Path | str, progress: Progress | None, limit: int | None) -> RawEvents:
    """RawEvents of a damaged file, whose text is not held as a whole."""
    with TextFile(path) as file:
        found: RawEvents = _compiled().read_file(file, progress, limit=limit)
        return found


def _parse_fast(text: bytearray, path: Path | str, damage: str, limit: int | None) -> RawEvents | None:
    """RawEvents of a text that is whole and without fault, where the compiled parser is there."""
    parallel_reader = None if damage else _compiled()
    found: RawEvents | None = parallel_reader.parse_whole(text, path, limit) if parallel_reader else None
    return found


def _compiled() -> Any:
    """`parallel_reader`; None where the package was built without a C compiler."""
    try:
        from gpu_trace_advisor.ingest.chrome import parallel_reader
    except ImportError:
        return None
    return parallel_reader


def read_all(
    path: Path | str, progress: Progress | None = None, limit: int | None = None, *, bounded: bool = False
) -> RawEvents:
    """`read_events` without the compiled parser: holds the whole text in memory, if need be only where that is allowed."""
    with TextFile(path) as file:
        text = file.take(sys.maxsize, progress)
        if bounded:
            room.check_room(path, len(text), room.as_objects(text), limit)
        return parse(text, path, file.damage)


def parse(text: bytes | bytearray, path: Path | str, damage: str = "") -> RawEvents:
    """RawEvents of a whole file.

    text: UTF-8 without byte order mark; path: for messages; damage: why the text ends early, if it does.
    Raises UnreadableTrace when it is no Chrome trace.
    """
    refuse_other_formats(bytes(text[:4096]), path, damage)
    decoded = text.decode("utf-8", "surrogateescape")
    collecting = gc.isenabled()
    gc.disable()  # the collector would scan the growing tree of objects again and again
    try:
        return _parse(decoded, path, damage)
    finally:
        if collecting:
            gc.enable()


def _parse(text: str, path: Path | str, damage: str) -> RawEvents:
    events = Events()
    try:
        document = json.loads(text, strict=False, parse_float=Number, parse_constant=not_strict)
    except (ValueError, RecursionError):
        walker = Walker(text, events)
        walker.walk()
        document = walker.document()
        if not walker.found_events:
            raise UnreadableTrace(f"{path}: {walker.why_unreadable()}") from None
        if not len(events) and walker.is_list:
            raise UnreadableTrace(f"{path}: {_NOT_A_TRACE.format('JSON damaged from its start')}") from None
    else:
        if not _add_document(events, document, path):
            Walker(text, events).walk()  # which says where
    if damage:
        events.notes["partial"] = 1
        events.first_damage["partial"] = f"{damage}; {len(events)} complete events read"
    raw = events.columns(plain_metadata(document) if isinstance(document, dict) else {})
    _place_first_bad_byte(raw, text)
    return raw


def _add_document(events: "Events", document: Any, path: Path | str) -> bool:
    """Add the events of a document; False, and none, where some of the list are no events."""
    listed = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise UnreadableTrace(f"{path}: {describe(document)}")
    if isinstance(document, list) and document and not any(isinstance(e, dict) and "ph" in e for e in document):
        raise UnreadableTrace(f"{path}: {_NOT_A_TRACE.format('a JSON list without Chrome events')}")
    if not all(entry.__class__ is dict for entry in listed):
        return False
    events.extend(listed)
    return True


# ---- what the file is, when it is no trace ---------------------------------------------------------------------------

_NOT_A_TRACE = "{}, not a Chrome trace; give the file that torch.profiler's export_chrome_trace wrote"

_BINARIES = (
    (b"SQLite format 3\0", "an SQLite database, not JSON; an Nsight Systems export needs the suffix .sqlite"),
    (b"PK\x03\x04", "a zip archive; unpack it and give the trace inside"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it with `zstd -d` first"),
    (b"BZh", "compressed with bzip2; unpack it with `bunzip2` first"),
    (b"\xfd7zXZ\0", "compressed with xz; unpack it with `unxz` first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the trace itself; run `git lfs pull` and try again"),
    (b"\x80\x04", _NOT_A_TRACE.format("a Python pickle (a memory snapshot?)")),
    (b"\x80\x05", _NOT_A_TRACE.format("a Python pickle (a memory snapshot?)")),
    (b"\x89HDF", _NOT_A_TRACE.format("an HDF5 file")),
)

_DOCUMENTS = (
    ("nodes", "looks like a PyTorch execution trace or Chakra graph, which holds no times"),
    ("device_traces", "looks like a PyTorch memory snapshot"),
    ("segments", "looks like a PyTorch memory snapshot"),
    ("rocprofiler-sdk-tool", "looks like the JSON of rocprofv3"),
    ("profiles", "looks like a speedscope profile"),
    ("timeDeltas", "looks like a V8 CPU profile"),
    ("cells", "looks like a Jupyter notebook"),
    ("data", "looks like a JSON export of Nsight Systems; export it with `nsys export --type sqlite` instead"),
)


def refuse_other_formats(start: bytes, path: Path | str, damage: str = "") -> None:
    """Raise UnreadableTrace when the first bytes of the text (up to 4 KB) show that it is no JSON."""
    for magic, what in _BINARIES:
        if start.startswith(magic):
            raise UnreadableTrace(f"{path}: {what}")
    body = start.strip(b" \t\r\n\0")
    if not body:
        what = f"nothing can be read: {damage}" if damage else "the file is empty"
        raise UnreadableTrace(f"{path}: {what}; export the trace again")
    if body[:1] in b"{[":
        return
    if b"NVPROF is profiling" in start:
        what = "the text output of nvprof"
    elif start.startswith(b"\n") and not start[1:2].isspace() and _is_binary(start):
        what = "binary, perhaps a Perfetto protobuf trace"
    elif _is_binary(start):
        what = "binary data"
        if Path(path).suffix in (".nsys-rep", ".qdrep"):
            what += " (export it with `nsys export --type sqlite` first)"
    elif body[:1] == b"<":
        what = "HTML or XML"
    elif body.startswith(b'"Name"') or b"KernelName" in body.partition(b"\n")[0]:
        what = "a CSV table of rocprof"
    else:
        what = f"text that starts with {body[:20].decode('utf-8', 'replace')!r}"
    raise UnreadableTrace(f"{path}: {_NOT_A_TRACE.format(what)}")


def _is_binary(start: bytes) -> bool:
    return any(byte < 9 or 13 < byte < 32 for byte in start[:512])


def describe(document: Any) -> str:
    """What a JSON document without traceEvents looks like, as the end of an error message."""
    if not isinstance(document, dict):
        return _NOT_A_TRACE.format(f"JSON that is a single {type(document).__name__}")
    if "traceEvents" in document:
        return "JSON whose traceEvents is not a list; export the trace again"
    for key, what in _DOCUMENTS:
        if key in document:
            return f"JSON without traceEvents: {what}; record with torch.profiler or Nsight Systems"
    keys = ", ".join(repr(key)[:40] for key in list(document)[:4])
    return _NOT_A_TRACE.format(f"JSON without traceEvents (its keys: {keys or 'none'})")


# ---- columns ---------------------------------------------------------------------------------------------------------


class _Pool(dict[str, int]):
    """Strings and their codes; a new string gets the next code."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code


class _Labels(dict[Any, int]):
    """Codes of the values of pid and tid."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self._pool = pool

    def __missing__(self, value: Any) -> int:
        self[value] = code = self._pool[str(value)]
        return code


class _RawTexts(dict[str, int]):
    """Codes of lists and other values, by their repr."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self._pool = pool

    def add(self, value: Any) -> int:
        try:
            key = repr(value)
            code = self.get(key)
            if code is None:
                self[key] = code = self._pool[canonical(value) if len(key) <= room.LONGEST_VALUE else room.LEFT_OUT]
        except RecursionError:
            return self._pool[room.LEFT_OUT]
        return code


_Sparse = tuple[list[int], list[int]]


@dataclass
class Events:
    """Events added one by one, to become RawEvents."""

    pool: _Pool = field(default_factory=_Pool)
    notes: Counter[str] = field(default_factory=Counter)
    first_damage: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._labels = _Labels(self.pool)
        self._raw = _RawTexts(self.pool)
        self._dense: tuple[list[int], ...] = tuple([] for _ in range(7))
        self._integers: dict[str, _Sparse] = {name: ([], []) for name in INTEGERS}
        self._texts: dict[str, _Sparse] = {name: ([], []) for name in TEXTS}
        # argument as spelt -> (is it text, where its rows and its values go)
        self._argument = {name: (False, *self._integers[name]) for name in INTEGERS}
        self._argument |= {name: (True, *self._texts[name]) for name in TEXTS}
        self._argument |= {old: self._argument[new] for old, new in ALIASES.items()}

    def __len__(self) -> int:
        return len(self._dense[0])

    def note(self, code: str, where: str) -> None:
        """Count one damage under a health code; `where` is kept for the first."""
        self.notes[code] += 1
        self.first_damage.setdefault(code, where)

    def extend(self, entries: Iterable[dict[str, Any]]) -> None:
        """Add entries of traceEvents, which are objects."""
        phases, names, categories, pids, tids, starts, durations = self._dense
        pool, labels, arguments, add_raw = self.pool, self._labels, self._argument, self._raw.add
        for event in entries:
            row = len(phases)
            get = event.get
            phase = get("ph")
            phases.append(ord(phase[0]) & 0x7F if phase.__class__ is str and phase and phase[0] < "\x80" else 0)
            for key, column in (("name", names), ("cat", categories)):
                value = get(key)
                column.append(pool[value] if value.__class__ is str else self._label(value))
            for key, column in (("pid", pids), ("tid", tids)):
                value = get(key)
                kind = value.__class__
                column.append(labels[value] if kind is int or kind is str else self._label(value))
            value = get("ts")
            starts.append(MISSING if value is None else nanoseconds(value))
            value = get("dur")
            durations.append(MISSING if value is None else nanoseconds(value))
            args = get("args")
            if args.__class__ is not dict:
                continue
            for key, value in args.items():
                found = arguments.get(key)
                if found is None:
                    continue
                is_text, rows, values = found
                rows.append(row)
                kind = value.__class__
                if is_text:
                    values.append(pool[value] if kind is str else -1 if value is None else add_raw(value))
                elif kind is int and -INT64 <= value < INT64:
                    values.append(value)
                else:
                    values.append(integer(value))

    def _label(self, value: Any) -> int:
        """The code of a name, category, pid or tid; -1 unless it is a string or a number."""
        kind = value.__class__
        return self._labels[value] if kind is int or kind is Number or kind is str else -1

    def take(self, event: dict[str, Any]) -> tuple[list[int], dict[str, int], dict[str, int], list[str]]:
        """The row of one event instead of adding it: dense columns, integers and texts, and the strings they index."""
        self.extend((event,))
        dense = [column.pop() for column in self._dense]
        found: list[dict[str, int]] = []
        for arguments, missing in ((self._integers, MISSING), (self._texts, -1)):
            found.append({key: values[-1] for key, (_, values) in arguments.items() if values})
            for rows, values in arguments.values():
                rows.clear()
                values.clear()
            found[-1] = {key: value for key, value in found[-1].items() if value != missing}
        strings = [str(text) for text in self.pool]
        for codes in (self.pool, self._labels, self._raw):
            codes.clear()
        return dense, found[0], found[1], strings

    def columns(self, metadata: dict[str, Any]) -> RawEvents:
        """RawEvents of what was added; nothing can be added afterwards."""
        strings, code_of, bad = _clean_pool(self.pool)
        phase, name, category, pid, tid, ts, dur = self._dense
        names, categories, pids, tids = (
            _recode(np.array(column, np.int32), code_of) for column in (name, category, pid, tid)
        )
        integers, texts = {}, {}
        for key, sparse in self._integers.items():
            rows, numbers = _last_of_each_row(sparse, MISSING)
            if len(rows):
                integers[key] = rows, numbers
        for key, sparse in self._texts.items():
            rows, codes = _last_of_each_row(sparse, -1)
            if len(rows):
                texts[key] = rows, _recode(codes.astype(np.int32), code_of)
        raw = RawEvents(
            np.array(phase, np.uint8),
            names,
            categories,
            pids,
            tids,
            np.array(ts, np.int64),
            np.array(dur, np.int64),
            integers,
            texts,
            strings,
            metadata,
            self.notes,
            self.first_damage,
        )
        if code_of is not None:
            note_bad_text(raw, {int(code_of[code]) for code in bad})
        return raw


def _clean_pool(pool: Iterable[str]) -> tuple[list[str], "np.ndarray[Any, np.dtype[np.int32]] | None", set[int]]:
    """The strings without surrogates, old code -> new code where two became one, and the old codes of those changed."""
    strings = [str(text) for text in pool]
    bad = set()
    for code, text in enumerate(strings):
        if not text.isascii() and SURROGATE.search(text):
            bad.add(code)
    if not bad:
        return strings, None, bad
    distinct: dict[str, int] = {}
    code_of = [distinct.setdefault(clean(t) if c in bad else t, len(distinct)) for c, t in enumerate(strings)]
    return list(distinct), np.array(code_of, np.int32), bad


def _recode(codes: Any, code_of: Any) -> Any:
    if code_of is None:
        return codes
    return np.where(codes < 0, codes, code_of[np.maximum(codes, 0)]).astype(np.int32)


def _last_of_each_row(sparse: _Sparse, missing: int) -> tuple[Any, Any]:
    """Rows and values as arrays: of several for one row the last, and none that is missing."""
    rows, values = np.array(sparse[0], np.int64), np.array(sparse[1], np.int64)
    keep = values != missing
    keep[:-1] &= rows[:-1] != rows[1:]
    return rows[keep], values[keep]


def note_bad_text(raw: RawEvents, bad: set[int]) -> None:
    """Count the events with a text of the codes in `bad` as repaired."""
    is_bad = np.zeros(len(raw.strings) + 1, bool)
    is_bad[list(bad)] = True
    rows = is_bad[raw.name] | is_bad[raw.category] | is_bad[raw.pid] | is_bad[raw.tid]
    for where, codes in raw.texts.values():
        rows[where[is_bad[codes]]] = True
    count = int(rows.sum())
    if count:
        raw.notes["repaired-event"] += count
        raw.first_damage.setdefault("repaired-event", f"event {int(rows.argmax()) + 1}: {CAUSES['unicode']}")


def _place_first_bad_byte(raw: RawEvents, text: str) -> None:
    if not is_bad_text(raw):
        return
    found = re.search("[\udc80-\udcff]", text)
    if found:
        raw.first_damage["repaired-event"] = f"{place(text, found.start())}: {CAUSES['unicode']}"


def is_bad_text(raw: RawEvents) -> bool:
    """Whether the first event that was repaired had a text that is not UTF-8, and nothing else."""
    return raw.first_damage.get("repaired-event", "").endswith(CAUSES["unicode"])


def place(text: str, position: int) -> str:
    """A position in the text for a person: `line 7, byte 812`."""
    before = text[:position].encode("utf-8", "surrogateescape")
    return f"line {before.count(10) + 1}, byte {len(before)}"


def plain_metadata(document: dict[str, Any]) -> dict[str, Any]:
    """Every top-level key but traceEvents."""
    metadata = {}
    for key, value in document.items():
        if key != "traceEvents":
            try:
                metadata[clean(key)] = _plain(value)
            except RecursionError:
                metadata[clean(key)] = None
    return metadata


def _plain(value: Any) -> Any:
    """A metadata value with its Numbers as floats and without lone surrogates; may raise RecursionError."""
    if isinstance(value, Number):
        return float(value)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _plain(item) for key, item in value.items()}
    return value


# ---- damaged files ---------------------------------------------------------------------------------------------------

SPACE = re.compile(r"[ \t\r\n\0]*")
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
_EVENT_KEY = r'\{[ \t\r\n]*"(?:ph|cat|name|pid|tid|ts|dur|id|args|bp|s)"[ \t\r\n]*:'
NEXT_EVENT = rf"\}}[ \t\r\n]*,[ \t\r\n,]*(?={_EVENT_KEY})"
"""Matches from the end of an event up to the next one."""
_NEXT_EVENT = re.compile(NEXT_EVENT)
_END_OF_EVENTS = re.compile(r'\}[ \t\r\n]*(?=\][ \t\r\n]*(?:,[ \t\r\n]*"[^"\\\n]{0,80}"[ \t\r\n]*:|\}|\Z))')
_TOP_KEYS = (
    "schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|traceEvents|traceName|trace_id"
    "|host_name|record_shapes|with_stack|with_flops|with_modules|profile_memory"
)
_NEXT_KEY = re.compile(rf'[,\n\]}}"][ \t\r\n]*(?="(?:{_TOP_KEYS})"[ \t\r\n]*:)')
_DECODER = json.JSONDecoder(strict=False, parse_float=Number, parse_constant=not_strict)
_WINDOW = 1 << 14
FAILED_PASSES, LOOKED_AT = 8, 100_000
"""How many times over the text, and characters besides, may be looked at in vain before the walk gives up."""
TRUNCATED = "the file is truncated"
ENDS_INSIDE = "the file ends inside an event"
SECOND = "a second document follows and is not read"


class Walker:
    """Walks the text of a damaged file, adding its events to `events`."""

    def __init__(self, text: str, events: Events) -> None:
        self.text = text
        self.events = events
        self.found_events = False
        self.is_list = False
        self._metadata: dict[str, Any] = {}
        self._budget = FAILED_PASSES * len(text) + LOOKED_AT
        self.looked_at = 0
        """Characters that were looked at in vain."""
        self._error = 0
        self._cut = False
        self.failures = 0
        """How often something could not be read."""
        self._low, self._window = 0, ""

    def document(self) -> dict[str, Any]:
        """The top-level keys but traceEvents."""
        return self._metadata

    def why_unreadable(self) -> str:
        """The end of the message for a file in which no traceEvents was found."""
        if self._metadata and "partial" not in self.events.notes:
            return describe(self._metadata)
        return _NOT_A_TRACE.format("JSON that breaks off or is damaged before any traceEvents")

    def walk(self) -> None:
        """Read the document from its start."""
        position = self._skip(SPACE, 0)
        if self.text[position] == "[":
            self.found_events = self.is_list = True
            self._walk_events(position + 1)
        elif (end := self._walk_keys(position + 1)) is None:
            self._end_early(len(self.text), TRUNCATED)
        elif '"ph"' in self.text[end:]:
            self._end_early(end, SECOND)

    def _skip(self, pattern: re.Pattern[str], position: int) -> int:
        found = pattern.match(self.text, position)
        return found.end() if found else position

    def _end_early(self, position: int, what: str) -> None:
        if "partial" not in self.events.notes:
            where = f"{place(self.text, position)}: {what}; {len(self.events)} complete events read"
            self.events.note("partial", where)

    def _walk_keys(self, position: int) -> int | None:
        """Read `"key": value` pairs; returns where the object ended, None when the text ended first."""
        text = self.text
        while True:
            position = self._skip(_SEPARATORS, position)
            if position >= len(text):
                return None
            if text[position] == "}":
                return position + 1
            key, after = self._decode(position)
            if isinstance(key, str):
                after = self._skip(SPACE, after)
                if text[after : after + 1] == ":":
                    after = self._skip(SPACE, after + 1)
                    if key == "traceEvents" and text[after : after + 1] == "[":
                        self.found_events = True
                        end = self._walk_events(after + 1)
                        if end is None:
                            return None
                        position = end
                        continue
                    value, end = self._decode(after)
                    if end > after:
                        self._metadata[key] = value
                        position = end
                        continue
            self.failures += 1
            found = _NEXT_KEY.search(text, max(after, position))
            if not found:
                return None
            position = found.end()

    def _decode(self, position: int) -> tuple[Any, int]:
        """The JSON value at a position and where it ends; the position itself when there is none.

        Decodes in a window of the text: an error message of `json` costs time linear in the text that it was given.
        """
        size = _WINDOW
        while self._budget > 0:
            if not self._low <= position < self._low + len(self._window):
                self._look_at(position, size)
            low, limit = self._low, len(self._window)
            whole = low + limit == len(self.text)
            try:
                value, end = _DECODER.raw_decode(self._window, position - low)
                if end < limit or whole:
                    return value, low + end
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > limit - 32
                if whole or not cut:
                    self._fail(position, low + error.pos, limit if cut else error.pos, cut)
                    break
            except RecursionError:
                self._fail(position, position, limit, False)
                break
            except ValueError:  # a constant, or a number of thousands of digits
                self._fail(position, position, 0, False)
                break
            self._budget -= limit // 16
            size = 4 * limit if low == position else _WINDOW
            self._look_at(position, size)
        return None, position

    def _look_at(self, position: int, size: int) -> None:
        self._low, self._window = position, self.text[position : position + size]

    def _fail(self, position: int, error: int, reached: int, cut: bool) -> None:
        """Note where the decoder failed, how far into the window it looked, and whether that was for want of text."""
        self._error, self._cut = error, cut
        self.failures += 1
        self._look_in_vain(max(self._low + reached - position, 1))
        if len(self._window) > _WINDOW:
            self._look_at(0, 0)

    def _walk_events(self, position: int) -> int | None:
        """Read events up to the end of their list; returns where it ended, None when the text ended first."""
        text, events = self.text, self.events
        while True:
            start = self._skip(_SEPARATORS, position)
            if start >= len(text):
                return None
            if text[start] == "]":
                return start + 1
            value, position = self._decode(start)
            if position > start:
                if isinstance(value, dict):
                    events.extend((value,))
                else:
                    self._note("dropped-event", start, "event")
                continue
            if self._budget <= 0:
                self._end_early(start, "too much damage to go on")
                return len(text)
            with suppress(Cut):
                value, position, cause = self._lenient(start)
                if value is not None:
                    self._note("repaired-event", start, cause)
                    events.extend((value,))
                    continue
            end, follows = self._end_of_damaged(start)
            self._mend(start, end, follows)
            if not follows and end >= len(text):
                return None
            position = end

    def _lenient(self, start: int) -> tuple[Any, int, str]:
        """See `lenient`; for an event."""
        if self.text[start] != "{":
            return None, start, ""
        try:
            found = lenient(self.text, start)
        except Cut:
            self._look_in_vain(len(self.text) - start)
            raise
        if found[0] is None:
            self._look_in_vain(found[1] - start)
        return found

    def _look_in_vain(self, count: int) -> None:
        self.looked_at += count
        self._budget -= count

    def _end_of_damaged(self, start: int) -> tuple[int, bool]:
        """Where the damaged event at `start` ends, and whether its list goes on or ends there."""
        found = _NEXT_EVENT.search(self.text, start)
        if not found:
            self._budget -= len(self.text) - start
            found = _END_OF_EVENTS.search(self.text, start)
        if not found:
            return len(self.text), False
        return found.start() + 1, True

    def _mend(self, start: int, end: int, follows: bool) -> None:
        """Add the damaged event of the text from start to end, repaired, or count it as lost."""
        value, causes = repair(self.text[start:end])
        if isinstance(value, dict):
            self._note("repaired-event", start, causes[0])
            self.events.extend((value,))
        elif not follows:
            self._end_early(end, ENDS_INSIDE)
        else:
            self._note("dropped-event", max(self._error, start), self._cause_of_loss(start))

    def _cause_of_loss(self, start: int) -> str:
        position = max(self._error, start)
        return "quote" if '"' in self.text[max(position - 2, start) : position + 1] else "text"

    def _note(self, code: str, position: int, cause: str) -> None:
        """Count one damage; its place takes a look at all the text before it, so only the first one's is found."""
        first = code not in self.events.first_damage
        self.events.note(code, f"{place(self.text, position)}: {CAUSES[cause]}" if first else "")
