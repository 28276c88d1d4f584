"""The compiled parser against the standard library: every layout, every cut, and damage."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gpu_trace_advisor.ingest.chrome._scan", reason="built without a C compiler")

from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.chrome import parallel_reader as chrome_fast
from gpu_trace_advisor.ingest.chrome import reader as chrome
from gpu_trace_advisor.ingest.chrome._scan import PADDING, Scanner
from gpu_trace_advisor.ingest.chrome.text_file import TextFile
from gpu_trace_advisor.ingest.raw_events import ALIASES, INTEGERS, MISSING, TEXTS, RawEvents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TINY = [256, 1000, 65_536]

EVENTS: list[dict[str, Any]] = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 41,
        "tid": 41,
        "ts": 100.125,
        "dur": 30,
        "args": {"External id": 1, "Input Dims": [[4, 4], [], [[1], [2, 3]]], "Input type": ["float", 'a ] } " \\ b']},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": 'void k<int, {lambda}>("x", é€😀)',
        "pid": 0,
        "tid": 7,
        "ts": "110.5",
        "dur": "4",
        "args": {
            "stream": "7",
            "correlation": 11,
            "grid": [8, 1, 1],
            "bytes": 5.0,
            "Addr": 2**64 - 1,
            "occupancy": {"a": [1]},
        },
    },
    {
        "name": "thread_name",
        "ph": "M",
        "pid": "Spans",
        "tid": "",
        "ts": 0,
        "args": {"name": "thread \\ 1", "labels": "CPU"},
    },
    {"ph": "i", "s": "g", "pid": -1, "tid": "stream 7", "ts": -5, "name": "", "dur": None, "args": {}},
    {"ph": "f", "id": 55, "pid": 0, "tid": 7, "ts": 1712195495519689.047, "bp": "e", "cat": "ac2g", "name": "ac2g"},
    {},
    {"args": {"finished": False, "kind": None, "dtype": 1.50, "stream": None, "Rank": True, "external id": "9"}},
    {"ph": "X", "name": "exponent", "ts": 1.5e3, "dur": 1e-3, "args": {"stream": 7e0, "Comms Id": 2**70}},
]
METADATA = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": ']}, {"ph":'}],
    "nested": {"traceEvents": [{"ph": 1}]},
}


class Reference:
    """The columns as the contract words them, worked out from `json` and `decimal` alone."""

    def __init__(self, text: str) -> None:
        document = json.loads(text, parse_float=Decimal)
        self.events = document.pop("traceEvents") if isinstance(document, dict) else document
        self.metadata = document if isinstance(document, dict) else {}

    def rows(self) -> Iterator[dict[Any, Any]]:
        for event in self.events:
            ph = event.get("ph")
            row: dict[Any, Any] = {"ph": ord(ph[0]) if ph else 0}
            for key in ("name", "cat", "pid", "tid"):
                value = event.get(key)
                row[key] = value if isinstance(value, str) or value is None else str(value)
            for key in ("ts", "dur"):
                value = event.get(key)
                row[key] = MISSING if value is None else _ns(value)
            for key, value in (event.get("args") or {}).items():
                key = ALIASES.get(key, key)
                if key in INTEGERS:
                    number = _whole(value)
                    if number is not None:
                        row["integer", key] = number
                elif key in TEXTS and value is not None:
                    row["text", key] = (
                        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=float)
                    )
            yield row


def _ns(value: Any) -> int:
    return int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_EVEN))


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or value is None or isinstance(value, (list, dict)):
        return None
    try:
        number = Decimal(value)
    except ArithmeticError:
        return None
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        return None
    if number != number.to_integral_value() or not -(2**63) < number < 2**64:
        return None
    return int(number) - (2**64 if number >= 2**63 else 0)


def rows_of(raw: RawEvents) -> list[dict[Any, Any]]:
    def text(code: int) -> str | None:
        return raw.strings[code] if code >= 0 else None

    rows: list[dict[Any, Any]] = [
        {"ph": ph, "name": text(name), "cat": text(cat), "pid": text(pid), "tid": text(tid), "ts": ts, "dur": dur}
        for ph, name, cat, pid, tid, ts, dur in zip(
            raw.phase.tolist(),
            raw.name.tolist(),
            raw.category.tolist(),
            raw.pid.tolist(),
            raw.tid.tolist(),
            raw.ts.tolist(),
            raw.dur.tolist(),
            strict=True,
        )
    ]
    for key, (where, numbers) in raw.integers.items():
        assert (where[1:] > where[:-1]).all()
        for row, number in zip(where.tolist(), numbers.tolist(), strict=True):
            rows[row]["integer", key] = number
    for key, (where, codes) in raw.texts.items():
        assert (where[1:] > where[:-1]).all()
        for row, code in zip(where.tolist(), codes.tolist(), strict=True):
            rows[row]["text", key] = raw.strings[code]
    assert len(set(raw.strings)) == len(raw.strings)
    return rows


def fast(text: str | bytes, folder: Path, chunk_size: int = 256, threads: int = 2) -> RawEvents:
    path = folder / "t.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return chrome_fast.read(path, chunk_size=chunk_size, threads=threads)


def layouts(document: Any) -> dict[str, str]:
    """One document as it is printed by different writers."""
    found = {
        "compact": json.dumps(document, separators=(",", ":")),
        "one line": json.dumps(document),
        "indent 2": json.dumps(document, indent=2),
        "indent 4": json.dumps(document, indent=4, ensure_ascii=False),
        "tabs": json.dumps(document, indent="\t").replace("\n", "\r\n"),
    }
    events = document["traceEvents"] if isinstance(document, dict) else document
    printed = ",\n  ".join("{\n    " + json.dumps(event, ensure_ascii=False)[1:-1] + "\n  }" for event in events)
    if isinstance(document, dict):
        head = json.dumps({key: value for key, value in document.items() if key != "traceEvents"})[1:-1]
        found["kineto"] = "\n{\n  " + head + ',\n  "traceEvents": [\n  ' + printed + '\n  ],\n  "traceName": "x"\n}'
        found["events first"] = json.dumps({"traceEvents": events} | document)
    else:
        found["kineto list"] = "[\n  " + printed + "\n]"
    return found


def shuffled(seed: int, count: int) -> list[dict[str, Any]]:
    """Events in random order with their keys in random order."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        event = dict(rng.choice(EVENTS))
        if "name" in event and number % 3 == 0:
            event["name"] += f" {number}"
        keys = list(event)
        rng.shuffle(keys)
        made.append({key: event[key] for key in keys})
    return made


@pytest.mark.parametrize("chunk_size", TINY)
@pytest.mark.parametrize("as_list", [False, True])
def test_every_layout_and_cut(tmp_path: Path, chunk_size: int, as_list: bool) -> None:
    events = shuffled(chunk_size, 300)
    document = events if as_list else METADATA | {"traceEvents": events, "traceName": "x"}
    for name, text in layouts(document).items():
        expected = Reference(text)
        for read in (fast(text, tmp_path, chunk_size), chrome.parse(text.encode(), "t")):
            assert rows_of(read) == list(expected.rows()), name
            assert read.metadata == expected.metadata, name
            assert not read.notes, name


def test_more_rows_and_strings_than_there_is_room_for(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": f"name {n} " + "x" * 200, "ts": n, "args": {"Rank": n}} for n in range(20_000)]
    text = json.dumps(events)
    assert rows_of(fast(text, tmp_path, 1 << 20)) == list(Reference(text).rows())


def test_bom_gzip_and_utf16(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS})
    expected = list(Reference(text).rows())
    for stored in (text.encode("utf-8-sig"), gzip.compress(text.encode()), text.encode("utf-16")):
        assert rows_of(fast(stored, tmp_path)) == expected


def test_large_files_take_the_compiled_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"traceEvents": EVENTS * 20})
    monkeypatch.setattr(chrome, "LARGE", 1000)
    called = []
    monkeypatch.setattr(chrome_fast, "read_file", lambda file, *_, **__: called.append(everything(file)))
    once, often = (
        gzip.compress(text.encode()),
        b"".join(gzip.compress(part.encode()) for part in (text[:99], text[99:])),
    )
    for packed in (chrome.PACKED, 1):
        monkeypatch.setattr(chrome, "PACKED", packed)  # large as it lies there, or large only once it is unpacked
        for stored in (text.encode(), once, often):
            (tmp_path / "t.json").write_bytes(stored)
            chrome.read_events(tmp_path / "t.json")
    assert called == [text.encode()] * 6


def everything(file: TextFile) -> bytes:
    found, buffer = b"", memoryview(bytearray(1000))
    while size := file.fill(buffer):
        found += buffer[:size]
    return found


def test_progress_ends_at_the_size(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": EVENTS * 50}))
    seen: list[tuple[int, int]] = []
    chrome_fast.read(path, lambda done, size: seen.append((done, size)), 4096)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


# ---- damage ----------------------------------------------------------------------------------------------------------

BAD = [
    '{"ph": "X", "name": "{"device": "cpu"}(12): run", "pid": 1}',
    '{"ph": "X", "name": "{"a": "b", "c": 1}(12): run", "pid": 1}',
    r'{"ph": "X", "name": "C:\Users\x\t.py", "pid": 1}',
    '{"ph": "X", "name": "k", "ts": 1, "dur": inf, "args": {"stream": nan, "x": N/A}}',
    '{"ph": "X", "name": "k", "args": {"grid": [nan, 1]}}',
    '{"ph": "X", "name": "k", "args": {"stream": 7, }, }',
    '{"ph": "X", "name": "k", "args": {,"stream": 7}}',
    '{"ph": "X", "name": "k", "ts": 1.5e3, "\\u0070id": 3}',
    '{"ph": "X", "name": "k", "ts": 01}',
    '{"ph": "X", "name": "k" "pid": 1}',
    '{"ph": "X", "name": "caf\ud800"}',
    '{"ph": "X", "name": "k", "args": {"Input type": ["float", ,float", "int"]}}',
    '{"ph": "X", "name": "k", "args": {"Concrete Inputs": ["", "5" disk", ""]}, "pid": 1}',
    "null",
]


@pytest.mark.parametrize("chunk_size", TINY)
@pytest.mark.parametrize("bad", BAD)
def test_damage_is_treated_alike(tmp_path: Path, bad: str, chunk_size: int) -> None:
    good = [json.dumps(event) for event in EVENTS if event]
    for at in (0, 3, len(good)):
        for separator in (",", ",\n  "):
            for end in ('], "traceName": "x"}', "]}"):
                listed = separator.join([*good[:at], bad, *good[at:]])
                text = ('{"traceEvents": [' + listed + end).encode("utf-8", "surrogatepass")
                read_alike(text, tmp_path, chunk_size)


def test_place_of_the_damage(tmp_path: Path) -> None:
    good = ",\n".join(json.dumps(event) for event in EVENTS * 20)
    text = '{"traceEvents": [\n' + good + ",\n" + BAD[1] + ",\n" + good + "]}"
    mine, other = fast(text, tmp_path, 1000), chrome.parse(text.encode(), "t")
    assert mine.first_damage == other.first_damage
    assert mine.notes == {"dropped-event": 1}


def test_truncated_anywhere(tmp_path: Path) -> None:
    text = json.dumps({"a": 1, "traceEvents": EVENTS[:3], "traceName": "x"}).encode()
    for cut in range(text.index(b"[") + 1, len(text)):
        mine, other = fast(text[:cut], tmp_path), chrome.parse(text[:cut], "t")
        assert rows_of(mine) == rows_of(other), cut
        assert mine.notes == other.notes == {"partial": 1}, cut


@pytest.mark.parametrize(
    "unit", ["{", "[", '"', '{"ph":"x"},{"ph":"', '},{"ph":', '{"a":', "1", ",", '{"ph":[', '{"ph":1']
)
def test_garbage_ends_in_time(tmp_path: Path, unit: str) -> None:
    for start in ("", "[", '{"traceEvents": [', '[{"ph": 1},'):
        with suppress(UnreadableTrace):
            fast(start + unit * (200_000 // len(unit)), tmp_path, 10_000)


def test_what_is_no_trace_is_refused_alike(tmp_path: Path) -> None:
    for text in (b"", b"x", b'{"a": 1}', b"[1]", b'{"traceEvents": 7}', b"{" * 10_000, b"[" * 10_000, b'{"a": "'):
        with pytest.raises(UnreadableTrace):
            fast(text, tmp_path)


SEEDS = [text.encode() for text in layouts(METADATA | {"traceEvents": EVENTS[:6], "traceName": "x"}).values()]
SEEDS += [text.encode() for text in layouts(EVENTS[:5]).values()]
SEEDS += [
    f'{{"traceEvents": [{", ".join(map(json.dumps, EVENTS[:3]))}, {bad}, {{"ph": "X"}}]}}'.encode(
        "utf-8", "surrogatepass"
    )
    for bad in BAD
]
PARTS = [
    *'"{}[],\\-0.', "\\u12", "\\ud800", "1e5", "inf", "NaN", "-Infinity", "N/A", "null", "tru", ": ", "\n", '{"ph":',
    '},{"name":', '"args": {', '"a":1', "9" * 50, '[[1,2],{"a":"x"}]',
    '"\n":1,', '"ts": "1e3",', "[[[", '"' + "k" * 90 + '":1,',
]  # fmt: skip
CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.one_of(st.integers(0, 40), st.just(1 << 20)),
        st.one_of(st.binary(max_size=4), st.sampled_from([part.encode() for part in PARTS])),
    ),
    min_size=1,
    max_size=4,
)
"""Where in the text, how many bytes go, what comes instead."""


def damaged(text: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, removed, added in changes:
        at = round(where * len(text))
        text = text[:at] + added + text[at + removed :]
    return text


def read_alike(text: bytes, folder: Path, size: int) -> None:
    """Both readers find the same columns, metadata and damage, or refuse the text for the same reason."""
    path = folder / "t.json"
    path.write_bytes(text)
    try:
        other = chrome.read_all(path)
    except UnreadableTrace as error:
        with pytest.raises(UnreadableTrace, match=re.escape(str(error))):
            fast(text, folder, size)
        return
    mine = fast(text, folder, size)
    assert rows_of(mine) == rows_of(other)
    assert mine.metadata == other.metadata
    assert mine.notes == other.notes
    assert mine.first_damage == other.first_damage


@settings(
    max_examples=int(os.environ.get("ADVISE_FUZZ_EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(SEEDS), CHANGES, st.sampled_from([64, 256, 100_000]))
def test_any_change_is_read_alike(
    tmp_path: Path, seed: bytes, changes: list[tuple[float, int, bytes]], size: int
) -> None:
    read_alike(damaged(seed, changes), tmp_path, size)


GUARDED = """
import ctypes, mmap, sys
from gpu_trace_advisor.ingest.chrome._scan import PADDING, Scanner
page = mmap.PAGESIZE
room = mmap.mmap(-1, 4 * page)
address = ctypes.addressof(ctypes.c_char.from_buffer(room))
assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + 3 * page), page, 0)
seed = bytes.fromhex(sys.argv[1])
for end in range(len(seed)):
    for tail in (b"", b'"', b"\\\\", b"\\\\u00", b"-", b"1.", b"1e", b"tru", b"[[", b" " * 31):
        text = seed[:end] + tail
        start = 3 * page - PADDING - len(text)
        room[start : 3 * page] = text + bytes(PADDING)
        scanner = Scanner()
        scanner.scan(memoryview(room)[start : 3 * page], len(text))
print("read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects memory with a call of Linux")
def test_nothing_is_read_behind_the_padding() -> None:
    """A page that cannot be read lies behind the buffer."""
    seed = json.dumps([*EVENTS[:4], {"name": "x" * 70}])[1:].encode()
    done = subprocess.run([sys.executable, "-c", GUARDED, seed.hex()], capture_output=True, text=True)
    assert done.stdout == "read\n", done.stderr[-2000:]


def test_a_text_without_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="padding"):
        Scanner().scan(bytes(PADDING - 1), 0)


SMALL = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS * 40, "distributedInfo": {"rank": 3}})


def test_a_small_text_is_read_by_the_compiled_parser() -> None:
    mine, other = chrome_fast.parse_whole(bytearray(SMALL.encode()), "t"), chrome.parse(SMALL.encode(), "t")
    assert mine
    assert rows_of(mine) == rows_of(other)
    assert (mine.metadata, mine.notes) == (other.metadata, other.notes)


def test_a_small_text_with_a_fault_is_left_to_the_other_parser() -> None:
    middle = SMALL.index('"ph"', len(SMALL) // 2)
    for faulty in (
        SMALL[:-40],
        SMALL[:middle] + SMALL[middle + 1 :],
        SMALL[:middle] + "7" + SMALL[middle:],
        SMALL.replace('"dur": ', '"dur": inf, "was": ', 1),
        "[]",
        "no trace",
    ):
        with suppress(UnreadableTrace):
            assert chrome_fast.parse_whole(bytearray(faulty.encode()), "no such file") is None, faulty[:200]


# ---- recordings ------------------------------------------------------------------------------------------------------


@pytest.mark.real
def test_recordings(tmp_path: Path) -> None:
    for path in sorted((Path(os.environ["ADVISE_REAL_TRACES"]) / "traces" / "kineto").rglob("*.json.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        expected = Reference(text)
        rows = list(expected.rows())
        for read in (chrome_fast.read(path, chunk_size=100_000), chrome.read_events(path)):
            assert rows_of(read) == rows, path.name
            assert not read.notes, path.name
            assert read.metadata.keys() == expected.metadata.keys()
        if len(text) < 600_000:
            for name, printed in layouts(json.loads(text)).items():
                again = list(Reference(printed).rows())
                for size in (4096, 65_536):
                    assert rows_of(fast(printed, tmp_path, size)) == again, (path.name, name)
