"""Input that is made to fill the memory is refused by name, before it is held; names are bounded."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.ingest.chrome.reader import read_all, read_events
from gpu_trace_advisor.ingest.kineto import to_trace
from gpu_trace_advisor.ingest.room import LONGEST_NAME, MOST_NAMES, OTHERS, check_room

SIZE = 12_000_000
BOMBS = {
    "numbers": ("[", "1,", "1]"),
    "empty events": ('{"traceEvents":[', "{},", "{}]}"),
    "numbers before the events": ('{"a":[', "1,", '1],"traceEvents":[]}'),
    "numbers behind the events": ('{"traceEvents":[],"a":[', "1,", "1]}"),
    "objects before the events": ('{"a":[', "{},", '{}],"traceEvents":[]}'),
}
MEASURED = """
import re, sys
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest import read
try:
    read(sys.argv[1])
except UnreadableTrace as error:
    print(error)
print(1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
@pytest.mark.parametrize("what", BOMBS)
def test_no_text_takes_more_than_is_stated(what: str, tmp_path: Path) -> None:
    head, unit, tail = BOMBS[what]
    path = tmp_path / "bomb.json"
    path.write_text(head + unit * (SIZE // len(unit)) + tail)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    told, _, peak = done.stdout.strip().rpartition("\n")
    assert int(peak) <= 1.5 * path.stat().st_size + 300e6
    assert told.startswith(str(path)) or not told


def test_the_limit_allows_what_is_refused_without_it(tmp_path: Path) -> None:
    pytest.importorskip("gpu_trace_advisor.ingest.chrome._scan", reason="built without a C compiler")
    path = tmp_path / "a.json"
    path.write_text('{"a":[' + "1," * (5 * SIZE // 2) + '1],"traceEvents":[{"ph":"X"}]}')
    with pytest.raises(UnreadableTrace, match=r"--limit .* allows it"):
        read_events(path)
    assert len(read_events(path, limit=4 * 10**9)) == 1


def test_what_is_allowed() -> None:
    """100 MB of text: 150 + 300 MB, 80 of which the program takes itself."""
    check_room("a", 100_000_000, 370_000_000, None)
    with pytest.raises(UnreadableTrace, match="450 MB are allowed"):
        check_room("a", 100_000_000, 370_000_001, None)
    check_room("a", 100_000_000, 420_000_000, 500_000_000)
    check_room("a", 1_000_000, 10**12, None)  # small text may hold anything


def kernels(names: list[str], path: Path) -> Path:
    path.write_text(
        json.dumps(
            {
                "traceEvents": [
                    {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 2 * i, "dur": 1}
                    for i, name in enumerate(names)
                ]
            }
        )
    )
    return path


def test_names_are_cut(tmp_path: Path) -> None:
    trace = read(kernels(["k" * (LONGEST_NAME + 1), "k" * LONGEST_NAME], tmp_path / "a.json"))
    assert [trace.names[code] for code in trace.name_code.tolist()] == [
        "k" * (LONGEST_NAME - 1) + "…",
        "k" * LONGEST_NAME,
    ]
    assert not trace.health


def test_names_beyond_the_most_are_one(tmp_path: Path) -> None:
    trace = read(kernels([f"k{i}" for i in range(MOST_NAMES + 3)], tmp_path / "a.json"))
    assert [trace.names[code] for code in trace.name_code[MOST_NAMES - 1 :].tolist()] == [
        f"k{MOST_NAMES - 1}", OTHERS, OTHERS, OTHERS,
    ]  # fmt: skip
    assert [(note.code, note.count) for note in trace.health] == [("left-out", 3)]


@pytest.mark.parametrize("reader", [read_events, read_all])
@pytest.mark.parametrize("spelt", ["[" + "1," * 700_000 + "1]", "[" * 300 + "1" + "]" * 300, "[1, 2]"])
def test_lists_that_are_left_out_are_counted(spelt: str, reader: Any, tmp_path: Path) -> None:
    one = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"grid":%s}}'
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents":[' + ",".join(one % (2 * i, spelt) for i in range(2)) + "]}")
    trace = to_trace(reader(path), path)
    kept = len(spelt) < 1000
    assert [(note.code, note.count) for note in trace.health] == ([] if kept else [("left-out", 2)])
    grids = trace.texts["grid"]
    assert [trace.strings[code] for code in grids.values.tolist()] == [spelt if kept else ""] * 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_what_no_event_ends_in_is_refused_before_it_is_held(tmp_path: Path) -> None:
    """Random bytes behind a first event."""
    path = tmp_path / "random.json"
    event = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":1}'
    path.write_bytes(b'{"traceEvents":[' + event + b"," + random.Random(1).randbytes(40_000_000))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    told, _, peak = done.stdout.strip().rpartition("\n")
    assert int(peak) <= 1.5 * path.stat().st_size + 300e6
    assert told.startswith(str(path))
