"""The parser of small and of damaged Chrome traces."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest import chrome
from gpu_trace_advisor.ingest.chrome.json_values import Number, canonical, integer, nanoseconds
from gpu_trace_advisor.ingest.chrome.reader import parse, read_events
from gpu_trace_advisor.ingest.chrome.repair import repair
from gpu_trace_advisor.ingest.raw_events import MISSING, RawEvents

OP = '{"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 4100, "tid": 4100, "ts": 100, "dur": 30, "args": {}}'
LAUNCH = (
    '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4100, "tid": 4100,\n'
    ' "ts": 110, "dur": 5, "args": {"correlation": 11, "External id": 1}}'
)
KERNEL = (
    '{"ph": "X", "cat": "kernel", "name": "relu_kernel", "pid": 0, "tid": 7, "ts": 120, "dur": 10,\n'
    ' "args": {"stream": 7, "correlation": 11, "grid": [8, 1, 1]}}'
)
GOOD = [OP, LAUNCH, KERNEL]
NAMES = ["aten::relu", "cudaLaunchKernel", "relu_kernel"]


def document(*events: str, before: str = '"schemaVersion": 1', after: str = '"traceName": "t.json"') -> str:
    return "{" + before + ',\n"traceEvents": [\n' + ",\n".join(events) + "\n],\n" + after + "\n}"


def read(text: str | bytes) -> RawEvents:
    return parse(text.encode() if isinstance(text, str) else text, "t.json")


def names(raw: RawEvents) -> list[str]:
    return [raw.strings[code] for code in raw.name]


def one(event: dict[str, Any] | str) -> RawEvents:
    return read(f"[{event if isinstance(event, str) else json.dumps(event)}]")


def test_columns() -> None:
    raw = read(document(*GOOD))
    assert names(raw) == NAMES
    assert raw.phase.tolist() == [88, 88, 88]
    assert [raw.strings[c] for c in raw.category] == ["cpu_op", "cuda_runtime", "kernel"]
    assert [raw.strings[c] for c in raw.pid] == ["4100", "4100", "0"]
    assert [raw.strings[c] for c in raw.tid] == ["4100", "4100", "7"]
    assert raw.ts.tolist() == [100_000, 110_000, 120_000]
    assert raw.dur.tolist() == [30_000, 5_000, 10_000]
    rows, values = raw.integers["correlation"]
    assert (rows.tolist(), values.tolist()) == ([1, 2], [11, 11])
    rows, codes = raw.texts["grid"]
    assert (rows.tolist(), [raw.strings[c] for c in codes]) == ([2], ["[8, 1, 1]"])
    assert raw.metadata == {"schemaVersion": 1, "traceName": "t.json"}
    assert not raw.notes
    assert not raw.first_damage


def test_missing_fields() -> None:
    raw = one({"ph": "", "name": None, "pid": [1], "ts": None, "dur": "N/A"})
    columns = (raw.phase, raw.name, raw.category, raw.pid, raw.tid, raw.ts, raw.dur)
    assert [c.tolist() for c in columns] == [[0], [-1], [-1], [-1], [-1], [MISSING], [MISSING]]


def test_labels_keep_text() -> None:
    raw = read('[{"ph":"X","pid":"","tid":"stream 7"},{"pid":"7","tid":7},{"pid":-1,"tid":1.50}]')
    assert [raw.strings[c] for c in raw.pid] == ["", "7", "-1"]
    assert [raw.strings[c] for c in raw.tid] == ["stream 7", "7", "1.50"]
    assert raw.pid[1] == raw.tid[1]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1712195495519689.047", 1_712_195_495_519_689_047),
        ("5.7", 5_700),
        ("0.310", 310),
        ("-5", -5_000),
        ("1.5e3", 1_500_000),
        ("1E-3", 1),
        ("0.0005", 0),
        ("0.0015", 2),
        ("0.0025", 2),
        ("0.00250001", 3),
        ("-0.0015", -2),
        ('"190.500"', 190_500),
        ('"4.5"', 4_500),
        ('"12"', 12_000),
        ('"1.5e3"', 1_500_000),
        ("null", MISSING),
        ('"N/A"', MISSING),
        ('""', MISSING),
        ('"inf"', MISSING),
        ("true", MISSING),
        ("9223372036854775.807", 2**63 - 1),
        ("9223372036854775.808", MISSING),
        ("1e999999999", MISSING),
        ("1e4000", MISSING),
        ('"1e9999"', MISSING),
        ("1e-9999", 0),
        ("[1]", MISSING),
        ("0", 0),
        ("-0.0", 0),
    ],
)
def test_times_are_exact(written: str, expected: int) -> None:
    raw = one(f'{{"ph":"X","ts":{written},"dur":{written}}}')
    assert raw.ts.tolist() == raw.dur.tolist() == [expected]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("7", 7),
        ('"7"', 7),
        ('"-1"', -1),
        ("7.0", 7),
        ("7e2", 700),
        ("18446744073709551615", -1),
        ("9223372036854775809", -(2**63) + 1),
        ('"18446744073709551614"', -2),
        ("-9223372036854775807", 1 - 2**63),
    ],
)
def test_integers(written: str, expected: int) -> None:
    rows, values = one(f'{{"ph":"X","args":{{"Addr":{written}}}}}').integers["Addr"]
    assert (rows.tolist(), values.tolist()) == ([0], [expected])


@pytest.mark.parametrize(
    "written",
    ["null", "7.5", '"0x0"', '""', "true", "[7]", "18446744073709551616", "-9223372036854775809", '" 7"', "1e99"],
)
def test_what_is_no_integer_is_left_out(written: str) -> None:
    assert not one(f'{{"ph":"X","args":{{"Addr":{written}}}}}').integers


def test_texts() -> None:
    args = '{"Input Dims":[[64,3],[]],"kind":"a\\u00e9\\n","finished":false,"dtype":{"a":1.50},"name":null}'
    raw = one(f'{{"ph":"X","args":{args}}}')
    found = {key: raw.strings[codes[0]] for key, (_, codes) in raw.texts.items()}
    assert found == {"Input Dims": "[[64, 3], []]", "kind": "aé\n", "finished": "false", "dtype": '{"a": 1.50}'}


def test_last_of_a_duplicate_key_counts() -> None:
    args = '{"stream":1,"stream":2,"external id":3,"External id":4,"kind":"a","kind":"b"}'
    raw = one(f'{{"ph":"X","ts":1,"ts":2,"args":{args}}}')
    assert raw.ts.tolist() == [2_000]
    assert {key: values.tolist() for key, (_, values) in raw.integers.items()} == {"stream": [2], "External id": [4]}
    assert [raw.strings[c] for c in raw.texts["kind"][1]] == ["b"]


def test_older_spellings() -> None:
    raw = one({"ph": "X", "args": {"external id": 7, "grid dim": [1], "block dim": [2]}})
    assert list(raw.integers) == ["External id"]
    assert sorted(raw.texts) == ["block", "grid"]


def test_values() -> None:
    assert nanoseconds(10**30) == MISSING
    assert integer(True) == MISSING
    assert canonical([1, 'a"', None, {"k": Number("1e5")}, True]) == '[1, "a\\"", null, {"k": 1e5}, true]'


# ---- damage ----------------------------------------------------------------------------------------------------------


def frame(name: str) -> str:
    return '{"ph": "X", "cat": "python_function", "name": "' + name + '", "pid": 1, "tid": 1, "ts": 90, "dur": 60}'


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize(
    ("written", "repaired", "cause"),
    [
        ('{"device": "cpu"}(12): run', '{"device": "cpu"}(12): run', "unescaped quote"),
        ('<"lambda">', '<"lambda">', "unescaped quote"),
        (r"C:\Users\x\train.py(12): run", r"C:\Users\x\train.py(12): run", "Windows path"),
    ],
)
def test_damaged_name_is_repaired(written: str, repaired: str, cause: str, at: int) -> None:
    events = [*GOOD[:at], frame(written), *GOOD[at:]]
    raw = read(document(*events))
    assert names(raw) == [*NAMES[:at], repaired, *NAMES[at:]]
    assert raw.notes == {"repaired-event": 1}
    assert cause in raw.first_damage["repaired-event"]
    assert raw.metadata == {"schemaVersion": 1, "traceName": "t.json"}


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("indent", [None, 2, 4])
def test_hopeless_event_is_dropped_alone(at: int, indent: int | None) -> None:
    events = [json.dumps(json.loads(e), indent=indent) for e in GOOD]
    events.insert(at, frame('{"a": "b", "c": 1}(12): run'))
    raw = read(document(*events))
    assert names(raw) == NAMES
    assert raw.notes == {"dropped-event": 1}
    assert "unescaped quote in an event name or argument, torch before mid-2026" in raw.first_damage["dropped-event"]
    assert raw.metadata == {"schemaVersion": 1, "traceName": "t.json"}


def test_place_of_the_damage() -> None:
    text = document(OP, frame("é" + '"a": "b", "c": 1}(12): run'))
    raw = read(text)
    quote = text.encode().index('é"'.encode()) + 3
    line = text[: text.index('é"')].count("\n") + 1
    assert raw.first_damage["dropped-event"].startswith(f"line {line}, byte {quote}: ")


def test_two_damaged_in_a_row_and_many() -> None:
    bad = frame('{"a": "b", "c": 1}(12): run')
    raw = read(document(OP, bad, bad, LAUNCH, *[bad] * 50, KERNEL, bad))
    assert names(raw) == NAMES
    assert raw.notes == {"dropped-event": 53}


@pytest.mark.parametrize("token", ["inf", "-inf", "nan", "NaN", "Infinity", "-Infinity", "N/A", "-nan(ind)"])
def test_bare_words_become_missing(token: str) -> None:
    args = f'{{"stream": 7, "bytes": {token}}}'
    raw = read(document(OP, f'{{"ph": "X", "name": "k", "ts": 1, "dur": {token}, "args": {args}}}'))
    assert raw.ts.tolist() == [100_000, 1_000]
    assert raw.dur.tolist() == [30_000, MISSING]
    assert list(raw.integers) == ["stream"]
    assert raw.notes == {"repaired-event": 1}


@pytest.mark.parametrize(
    "event",
    [
        '{"ph": "X", "name": "k", "args": {"stream": 7, }}',
        '{,"ph": "X", "name": "k", "args": {,"stream": 7}, }',
    ],
)
def test_commas_too_many(event: str) -> None:
    raw = read(document(OP, event))
    assert names(raw) == ["aten::relu", "k"]
    assert raw.integers["stream"][1].tolist() == [7]
    assert raw.notes == {"repaired-event": 1}


def test_commas_between_events_are_no_damage_to_them() -> None:
    for listed in (f",{OP},{KERNEL}", f"{OP},,{KERNEL},", f"{OP},{KERNEL},\n"):
        raw = read(f"[{listed}]")
        assert names(raw) == ["aten::relu", "relu_kernel"]
        assert not raw.notes


def test_control_character_stays() -> None:
    raw = read(document(OP, frame("\x01(1)\x02\n: <module>")))
    assert names(raw)[1] == "\x01(1)\x02\n: <module>"
    assert not raw.notes


def test_invalid_utf8_is_replaced_and_counted_by_event() -> None:
    text = document(OP, frame("caf@"), frame("caf@"), frame("@@"), KERNEL).encode().replace(b"@", b"\xe9")
    raw = read(text)
    assert names(raw) == ["aten::relu", "caf\ufffd", "caf\ufffd", "\ufffd\ufffd", "relu_kernel"]
    assert raw.notes == {"repaired-event": 3}
    assert raw.first_damage["repaired-event"].startswith(f"line 4, byte {text.index(0xE9)}: ")


def test_lone_surrogate_can_be_printed() -> None:
    raw = one(r'{"ph": "X", "name": "\ud800", "cat": "\ufffd"}')
    assert raw.strings == ["\ufffd"]
    assert raw.name.tolist() == raw.category.tolist() == [0]


def test_truncated_file_keeps_complete_events() -> None:
    text = document(*GOOD, frame("f"))
    whole = text.index(frame("f"))
    for cut in range(whole, whole + len(frame("f"))):
        raw = read(text[:cut])
        assert names(raw) == NAMES
        assert raw.notes == {"partial": 1}
        assert "3 complete events" in raw.first_damage["partial"]
    for cut in range(whole + len(frame("f")), len(text)):
        raw = read(text[:cut])
        assert names(raw) == [*NAMES, "f"]
        assert raw.notes == {"partial": 1}


def test_list_without_its_bracket_is_legal() -> None:
    for end in ("", ",", "\n", ",\n"):
        raw = read("[" + ",\n".join(GOOD) + end)
        assert names(raw) == NAMES
        assert not raw.notes
    raw = read("[" + ",\n".join(GOOD)[:-3])
    assert names(raw) == NAMES[:2]
    assert raw.notes == {"partial": 1}


def test_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(document(*GOOD).encode())[:-9])
    raw = read_events(path)
    assert raw.notes == {"partial": 1}
    assert raw.first_damage["partial"].startswith("the gzip data ends early")
    assert names(raw) == NAMES[: len(raw)]


def test_damage_outside_the_events() -> None:
    log = '"WARNING": ["x "quoted" y: {"a": 1}", "z"]'
    raw = read(document(*GOOD, before=f'{log},\n"schemaVersion": 1', after=f'{log},\n"baseTimeNanoseconds": 5'))
    assert names(raw) == NAMES
    assert raw.metadata["baseTimeNanoseconds"] == 5
    assert raw.metadata["schemaVersion"] == 1


def test_entries_that_are_no_events() -> None:
    raw = read(f"[1, {OP}, null, [], {{}}]")
    assert len(raw) == 2
    assert raw.notes == {"dropped-event": 3}


def test_repair_is_strict_about_the_rest() -> None:
    assert repair('{"a": tru, "b": 1}')[0] == {"a": None, "b": 1}
    for hopeless in ('{"a": 1', '{"a" 1}', '{"a": 1 "b": 2}', "{a: 1}", '{"a": 1}}', '{"a": }', "[" * 100, '{"a": "b}'):
        assert repair(hopeless)[0] is None


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        "[",
        '"',
        "\\",
        '\\"',
        '{"a":',
        "[{",
        '{"ph":',
        '"traceEvents":[{"ph":1 ',
        "}",
        '},{"ph":',
        '[{"ph":[',
        "1",
        " ",
        ",",
        '{"ph":"',
        '"}"',
        '{"ph":"x"},{"ph":"',
        '"a" b',
        '\n"traceName":',
    ],
)
def test_garbage_ends_in_time(unit: str) -> None:
    for start in ("", "[", '{"traceEvents": [', "[" + OP + ","):
        text = start + unit * (300_000 // len(unit))
        try:
            read(text)
        except UnreadableTrace as error:
            assert "\n" not in str(error)


def test_a_flood_of_digits() -> None:
    raw = read(document(OP, '{"ph": "X", "name": "k", "ts": ' + "9" * 5000 + "}", KERNEL))
    assert names(raw) == ["aten::relu", "relu_kernel"]
    assert raw.notes == {"dropped-event": 1}


# ---- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b'{"a": 1}', "without traceEvents (its keys: 'a')"),
        (b"{}", "its keys: none"),
        (b"[1, 2]", "a JSON list without Chrome events"),
        (b"7", "starts with '7'"),
        (b'{"schema": "1.1", "nodes": []}', "PyTorch execution trace"),
        (b'{"traceEvents": null}', "traceEvents is not a list"),
        (b'{"metadata": {"a": [1', "breaks off"),
        (b"SQLite format 3\0", "SQLite"),
        (b"\n\x92\x05\x08\x00\x12\x03abc", "Perfetto"),
        (b"==12== NVPROF is profiling process 12, command: ./a\n", "nvprof"),
        (b'"Index","KernelName","gpu-id"\n', "rocprof"),
        (b"<html>", "HTML"),
        (b"PK\x03\x04", "zip"),
        (b"\x1f\x8b\x08", "ends early"),
        (b"Lorem ipsum", "'Lorem ipsum'"),
    ],
)
def test_refused_with_one_line(tmp_path: Path, stored: bytes, said: str) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(stored)
    with pytest.raises(UnreadableTrace) as caught:
        read_events(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "\n" not in message


def test_empty_list_of_events_is_a_trace() -> None:
    assert len(read('{"traceEvents": []}')) == 0
    assert len(read("[]")) == 0


def test_progress(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(document(*GOOD))
    seen: list[tuple[int, int]] = []
    read_events(path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_small_files_need_little(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(document(*GOOD))
    code = (
        "import sys; from gpu_trace_advisor.ingest.chrome.reader import read_events; read_events(sys.argv[1]);"
        "sys.exit(bool({'pandas', 'concurrent.futures'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_a_bare_word_costs_no_other_event() -> None:
    """What follows an event with one is read, whatever key it begins with and however often that happens."""
    broken = '{"ph":"X","name":"A","ts":1,"dur":2,"args":{"stream":7,"x":Infinity,"y":[nan,{"z":-inf}]}}'
    for after in ('{"bp":"e","name":"B"}', '{"unheard of":1,"name":"B"}', '{"args":{},"name":"B"}'):
        for separator in (",", ",\n  ", " , , "):
            raw = parse((f'{{"traceEvents":[{separator.join([broken, after] * 500)}]}}').encode(), "t")
            assert [raw.strings[code] for code in raw.name] == ["A", "B"] * 500
            assert raw.integers["stream"][1].tolist() == [7] * 500
            assert raw.notes == {"repaired-event": 500}


def test_a_text_keeps_its_backslashes_where_something_else_is_damaged() -> None:
    raw = parse(rb'{"traceEvents":[{"ph":"X","name":"a \\ b","ts":1,"dur":inf}]}', "t")
    assert raw.strings[raw.name[0]] == "a \\ b"


def test_a_large_file_says_what_would_make_it_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, and a small one says nothing, where the package was built without a C compiler."""
    monkeypatch.setitem(sys.modules, "gpu_trace_advisor.ingest.chrome.parallel_reader", None)
    monkeypatch.delattr(chrome, "parallel_reader", raising=False)
    path = tmp_path / "t.json"
    path.write_text(document(*GOOD))
    assert names(read_events(path)) == NAMES
    assert not caplog.messages
    monkeypatch.setattr("gpu_trace_advisor.ingest.chrome.reader.LARGE", 100)
    assert names(read_events(path)) == NAMES
    (line,) = caplog.messages
    assert "C compiler" in line
    assert "\n" not in line
