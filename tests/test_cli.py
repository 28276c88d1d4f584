"""The command line: exit codes, one line for what cannot be done, and where output goes."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest
from gpu_trace_advisor import cli
from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.errors import UnreadableTrace

from tests import advices
from tests.build import Event, annotation, call, event, kernel, op, step, written
from tests.test_cases import advise

WORK = (
    *(step(3 + i, 100 * i, 100 * i + 100) for i in range(4)),
    *(call(100 * i + 10, 100 * i + 15, 1 + i) for i in range(4)),
    *(kernel(100 * i + 20, 100 * i + 60, 1 + i, "gemm") for i in range(4)),
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return written(tmp_path / "good.json", *WORK)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What standard error says when the exit code is 2 and standard output stays empty: one line."""
    try:
        code: Any = main([str(a) for a in arguments])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("advise: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def nvprof(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (start INT, end INT)")
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT)")


def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE users (name TEXT)")


def content(data: bytes | str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data if isinstance(data, bytes) else data.encode())


def chrome(*events: Event) -> Callable[[Path], object]:
    return lambda path: written(path, *events)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0d1e2f\nsize 12345\n"
BAD_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no JSON": ("a.json", content("hello world"), "hello world"),
    "JSON of something else": ("b.json", content('{"a": 1}'), "traceEvents"),
    "a list of something else": ("c.json", content("[1, 2]"), "without Chrome events"),
    "no list of events": ("d.json", content('{"traceEvents": {}}'), "traceEvents"),
    "Git LFS pointer": ("e.json.gz", content(POINTER), "git lfs pull"),
    "empty": ("f.json", content(""), "empty"),
    "empty when unpacked": ("g.json.gz", content(gzip.compress(b"")), "empty"),
    "nvprof": ("h.sqlite", nvprof, "nvprof"),
    "database of something else": ("i.sqlite", other_database, "users"),
    "rocprof": ("j.csv", content('"Name","Calls","TotalDurationNs"\n"k",3,12\n'), "rocprof"),
    "Perfetto": ("k.pftrace", content(b"\x0a\x1c\x5a\x0e\x08\x01\x12\x04abcd\x0a\x05\x00\x00"), "Perfetto"),
    "random bytes": ("l.json", content(bytes(range(256)) * 4), "binary"),
    "folder without traces": ("m", lambda path: path.mkdir(), "no traces in this folder"),
    "metadata only": ("n.json", chrome({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}}), "no events"),
    "launches without kernels": ("o.json", chrome(call(1, 2, 1), call(3, 4, 2)), "2 launches"),
    "other accelerator": ("p.json", chrome(event("mtia_ccp_events", "x", 1, 2), op("aten::a", 1, 2)), "MTIA"),
    "no usable time": ("q.json", chrome({**kernel(1, 2), "ts": 0, "dur": 0}), "no event with a usable time"),
    "another program's": ("s.json", chrome(event("blink", "x", 1, 2), event("v8", "y", 1, 2)), "(blink, v8)"),
    "missing": ("r.json", lambda path: None, "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_FILES)
@pytest.mark.parametrize("output", ["text", "json"])
def test_bad_file(what: str, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, write, says = BAD_FILES[what]
    path = tmp_path / name
    write(path)
    message = refused(capsys, path, "--format", output)
    assert name in message
    assert says in message


def test_unreadable_file(good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def closed(path: Path, *rest: Any, **more: Any) -> Any:
        if path == good:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(Path, "open", closed)
    assert "Permission denied" in refused(capsys, good)


@pytest.mark.skipif(os.name != "posix", reason="the limit of a POSIX file system")
@pytest.mark.parametrize("options", [[], ["--against"], ["--budget"], ["--rules"], ["-o"], ["--html"]])
@pytest.mark.parametrize("name", ["n" * 300, "n" * 300 + "/run*.json"])
def test_what_the_system_refuses_to_look_at(
    name: str, options: list[str], good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it does a file in a folder of somebody else's. Python 3.14 keeps to itself why a pattern matches nothing."""
    given = [good, *options, name] if options else [name]
    why = re.compile(
        f"{os.strerror(errno.ENAMETOOLONG)}|no file matches this pattern"
        if "*" in name
        else os.strerror(errno.ENAMETOOLONG)
    )
    assert why.search(refused(capsys, *given))
    with pytest.raises(UnreadableTrace, match=why):
        gpu_trace_advisor.advise(name)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--window", "sideways"], "sideways"),
        (["--window", "5:3"], "5:3"),
        (["--window=-1:3"], "-1:3"),
        (["--window", "1:"], "1:"),
        (["--window", "7:9"], "starts after the trace"),
        (["--window", "0.361:0.37"], "no GPU operation in the window"),
        (["--steps", "x"], "--steps x"),
        (["--steps", "9"], "it has 3 to 6"),
        (["--steps", "7-3"], "7-3 ends before it starts"),
        (["--steps", "3,5-4"], "5-4 ends before it starts"),
        (["--step-marker", "["], "not a regular expression"),
        (["--step-marker", "nothing"], "nothing"),
        (["--device", "4"], "[0]"),
        (["--device", "x"], "--device"),
        (["--format", "pdf"], "pdf"),
        (["--format", "github"], "--against or --budget"),
        (["--unknown"], "--unknown"),
        (["--json", "-"], "--format json writes to standard output"),
        (["--html", "-"], "--format html writes to standard output"),
        (["--jobs", "²"], "² is no whole number from 1"),
        (["--jobs", "0"], "0 is no whole number from 1"),
        (["--batch", "1.5"], "1.5 is no whole number from 1"),
        (["--price", "x"], "x is no number above 0"),
        (["--price", "inf"], "inf is no number above 0"),
        ([""], "a trace without a name"),
    ],
)
def test_bad_request(options: list[str], says: str, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, good, *options)


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "TRACE" in refused(capsys)


def test_rank_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.json", *WORK, distributedInfo={"rank": 3})
    assert main([str(path), "--rank", "3", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["traces"][0]["rank"] == 3
    assert "rank 2" in refused(capsys, path, "--rank", "2")


@pytest.mark.parametrize("window", ["steps", "gpu", "all", "0.1:0.3"])
def test_windows(window: str, good: Path) -> None:
    found = advise(good, "--window", window)
    assert found.json["window"]["kind"] == window
    assert found.device["window"] == window
    wall = {"steps": 400_000, "gpu": 340_000, "all": 400_000, "0.1:0.3": 200_000}[window]
    assert (found.device["wall_ns"], found.device["busy_ns"]) == (wall, 80_000 if ":" in window else 160_000)


@pytest.mark.parametrize(("steps", "kept"), [("4", [4]), ("3-4", [3, 4]), ("3,5-6", [3, 5, 6]), ("0-4", [3, 4])])
def test_chosen_steps(steps: str, kept: list[int], good: Path) -> None:
    found = advise(good, "--steps", steps)
    assert found.json["window"]["steps"] == [f"ProfilerStep#{n}" for n in kept]
    assert (found.device["start_ns"], found.device["end_ns"]) == ((kept[0] - 3) * 100_000, (kept[-1] - 2) * 100_000)
    left = [s["name"] for s in found.device["steps"] if s["left_out"]]
    assert left == [f"ProfilerStep#{n}" for n in range(3, 7) if n not in kept]


def test_step_marker(tmp_path: Path) -> None:
    """A regular expression, matched from the start of a range's name."""
    path = written(tmp_path / "a.json", *WORK, annotation("my iter 1", 0, 200), annotation("iter 2", 200, 400))
    assert [s["name"] for s in advise(path, "--step-marker", "iter").device["steps"]] == ["iter 2"]
    assert len(advise(path, "--step-marker", ".*iter").device["steps"]) == 2


def test_the_same_file_twice_is_one(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = good.parent / ".." / good.parent.name / good.name
    assert main([str(good), str(again), str(good), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 1


def test_several_files(good: Path, tmp_path: Path) -> None:
    """What cannot be read is an error beside the others, and a folder stands for its traces."""
    bad = tmp_path / "bad.json"
    bad.write_text("nothing", encoding="utf-8")
    for found in (advise(good, str(bad)), advise(tmp_path)):
        assert [t["name"] for t in found.json["traces"]] == ["good.json"]
        assert [bool(re.search(r"bad\.json", text)) for text in found.json["errors"]] == [True]
    worse = tmp_path / "worse.json"
    worse.write_text("less", encoding="utf-8")
    assert "none of the 2 files" in advise(bad, str(worse)).err


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
@pytest.mark.parametrize("given", ["-", "/dev/stdin"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_read(given: str, pack: Callable[[bytes], bytes], good: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpu_trace_advisor", given, "--format", "json"],
        input=pack(good.read_bytes()),
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert found["devices"] == [{**device, "file": "stdin"} for device in advise(good).json["devices"]]


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_pipe_without_a_trace() -> None:
    done = subprocess.run([sys.executable, "-m", "gpu_trace_advisor", "-"], input=b"hello", capture_output=True)
    assert done.returncode == 2
    assert done.stderr.startswith(b"advise: /dev/stdin: text that starts with 'hello'")


# Output


def test_output_file(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, beside = tmp_path / "out.txt", tmp_path / "out.json"
    assert main([str(good), "-o", str(target), "--json", str(beside)]) == 0
    assert capsys.readouterr() == ("", "")
    assert "GPU busy 40.0 %" in target.read_text("utf-8")
    assert "\x1b" not in target.read_text("utf-8")
    assert json.loads(beside.read_text("utf-8")) == advise(good).json
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good.json", "out.json", "out.txt"]


def test_output_to_a_dash(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(good), "-o", "-"]) == 0
    assert "GPU busy 40.0 %" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["good.json"]


@pytest.mark.skipif(os.name != "posix", reason="limits of a POSIX process")
@pytest.mark.parametrize(
    "options", [["-o"], ["--json"], ["--html"], ["--format", "html", "-o"], ["--format", "json", "-o"]]
)
def test_output_is_whole_or_not_there(options: list[str], good: Path, tmp_path: Path) -> None:
    """No file of this process may be longer than 1 kB: the system refuses the rest, as it does on a full disk."""
    target = tmp_path / "out"
    target.write_text("before", encoding="utf-8")
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); "
        "from gpu_trace_advisor.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        # -B: what Python keeps of modules would be cut off, too, and be loaded again
        [sys.executable, "-B", "-c", limited, str(good), *options, str(target)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"advise: {target}: cannot be written: {os.strerror(errno.EFBIG)}\n"
    assert target.read_text("utf-8") == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good.json", "out"]


@pytest.mark.parametrize("option", ["-o", "--json", "--html"])
@pytest.mark.parametrize("spelt", ["as given", "through a link", "by another path", "a recording", "packed", "Nsight"])
def test_no_output_replaces_an_input_or_a_recording(
    option: str, spelt: str, good: Path, tmp_path: Path, sample: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = tmp_path / "other"
    if spelt == "as given":
        target = good
    elif spelt == "through a link":
        (target := other).symlink_to(good)
    elif spelt == "by another path":
        target = tmp_path / ".." / tmp_path.name / good.name
    else:
        data = good.read_bytes()
        (target := other).write_bytes(
            gzip.compress(data)
            if spelt == "packed"
            else sample("graph-decode-nsys").read_bytes()
            if spelt == "Nsight"
            else data
        )
    before = target.read_bytes()
    assert "name another file" in refused(capsys, good, option, target)
    assert target.read_bytes() == before


@pytest.mark.parametrize("option", ["--against", "--budget"])
def test_no_output_replaces_what_the_run_is_held_against(
    option: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "held"
    other.write_text("[limits]", encoding="utf-8")
    assert "is one of the inputs" in refused(capsys, good, option, other, "--json", other)
    assert other.read_text("utf-8") == "[limits]"


def test_each_output_has_its_own_file(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "each its own file" in refused(capsys, good, "--json", tmp_path / "a", "--html", tmp_path / "." / "a")
    assert main([str(good), "--json", os.devnull, "-o", os.devnull]) == 0


@pytest.mark.parametrize("form", ["text", "json", "html", "markdown", "sarif", "perfetto"])
def test_what_was_written_before_is_replaced(form: str, good: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    for _ in range(2):
        assert main([str(good), "--format", form, "-o", str(target)]) == 0


@pytest.mark.skipif(os.name != "posix", reason="named pipes and links")
def test_output_to_what_is_no_file(good: Path, tmp_path: Path) -> None:
    """A pipe is written to and stays one, as a device does; behind a link its target is written."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "out.json"
    os.mkfifo(pipe)
    link.symlink_to("out.json")
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert main([str(good), "--json", str(pipe), "-o", str(link)]) == 0
    assert json.loads(reader.communicate()[0]) == advise(good).json
    assert pipe.is_fifo() and link.is_symlink() and target.read_text("utf-8").startswith("GPU busy 40.0 %")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "options", [[], ["--format", "json"], ["--format", "html"], ["--against"], ["--help"], ["--version"]]
)
def test_standard_output_that_is_full(options: list[str], good: Path) -> None:
    given = [*options, str(good)] if options == ["--against"] else options
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_trace_advisor", str(good), *given], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert done.stderr == b"advise: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell")
def test_standard_output_that_is_closed(good: Path) -> None:
    done = subprocess.run(f'"{sys.executable}" -m gpu_trace_advisor "{good}" >&-', shell=True, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell")
@pytest.mark.parametrize(("name", "code", "says"), [("good.json", 0, b"GPU busy 40.0 %"), ("missing.json", 2, b"")])
def test_standard_error_that_is_closed(name: str, code: int, says: bytes, good: Path) -> None:
    done = subprocess.run(
        f'"{sys.executable}" -m gpu_trace_advisor "{good.with_name(name)}" 2>&-', shell=True, capture_output=True
    )
    assert (done.returncode, done.stdout[:15]) == (code, says)


@pytest.mark.parametrize("form", ["text", "json", "markdown", "sarif"])
def test_what_was_read_before_an_interruption_is_written_and_the_exit_code_says_so(
    form: str, good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "looked_at", lambda *_: (advices.advice(advices.device()), [], True))
    assert main([str(good), "--format", form]) == cli.INTERRUPTED
    written, said = capsys.readouterr()
    assert "data loader" in written and said.startswith("advise: interrupted")


def test_output_in_no_folder(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere" in refused(capsys, good, "-o", tmp_path / "nowhere" / "out.txt")


def run(command: list[str], good: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "PYTHONIOENCODING")}
    return subprocess.run(
        [sys.executable, "-m", "gpu_trace_advisor", str(good), *command],
        capture_output=True,
        env={**kept, **environment},
    )


def test_as_a_module(good: Path) -> None:
    done = run([], good)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("utf-8").startswith("GPU busy 40.0 %")
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize("output", ["text", "json"])
def test_terminal_that_knows_ascii_only(output: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", *WORK, op("größer_µ", 15, 20))
    done = run(["--format", output], path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


@pytest.mark.parametrize("options", [["--help"], ["--explain", "dataloader"], ["--list-rules"]])
def test_pages_on_a_terminal_that_knows_ascii_only(options: list[str], good: Path) -> None:
    done = run(options, good, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def test_lone_surrogate_in_a_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", *WORK, kernel(380, 390, 0, "half \ud800 pair"))
    for options in (["--format", "json"], ["-o", str(tmp_path / "out.txt")], ["--json", str(tmp_path / "out.json")]):
        done = run(options, path)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
@pytest.mark.parametrize("form", ["json", "html", "markdown", "sarif", "perfetto"])
def test_file_name_that_is_no_utf8(form: str, tmp_path: Path) -> None:
    path, out = written(tmp_path / os.fsdecode(b"r\xffn.json"), *WORK), tmp_path / "out"
    assert main([str(path), "--format", form, "-o", str(out)]) == 0
    assert out.read_text("utf-8")


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_reader_that_leaves(tmp_path: Path) -> None:
    names = (kernel(1000 + 2 * i, 1001 + 2 * i, 0, f"kernel number {i} " + "x" * 200) for i in range(3000))
    path = written(tmp_path / "a.json", *WORK, *names)
    writer = subprocess.Popen(
        [sys.executable, "-m", "gpu_trace_advisor", str(path), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdout
    assert writer.stderr
    assert writer.stdout.read(10)
    writer.stdout.close()
    assert writer.stderr.read() == b""
    assert writer.wait() == 0
    writer.stderr.close()


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_color(
    environment: dict[str, str], colored: bool, good: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for key, value in {"TERM": "xterm", "COLUMNS": "100", **environment}.items():
        monkeypatch.setenv(key, value)
    if "NO_COLOR" not in environment:
        monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main([str(good)]) == 0
    assert ("\x1b[" in capsys.readouterr().out) == colored


@pytest.mark.parametrize(
    ("told", "terminal", "columns"),
    [("", 100, 100), ("", 20, 40), ("", 300, 200), ("", 0, 80), ("50", 100, 50), ("0", 100, 100), ("²", 100, 100)],
)
def test_width(told: str, terminal: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", told)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((terminal, 24)))
    assert cli.width() == columns


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_its_own_is_no_regression(
    debug: bool, good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3 and one line that says what, where and how to report it; the traceback where it is asked for."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("one \x1b[31mover\nnothing")

    monkeypatch.setattr(cli, "looked_at", broken)
    assert main([str(good), *(["--debug"] if debug else [])]) == 3
    out, err = capsys.readouterr()
    first, _, rest = err.partition("\n")
    assert out == "" and first.startswith("advise: a fault of advise ")
    assert "ZeroDivisionError: one over nothing at tests/test_cli.py:" in first and "report" in first
    assert ("Traceback" in rest) == debug and "\x1b" not in err


def test_want_of_memory_is_no_regression(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "looked_at", full)
    assert "not enough memory" in refused(capsys, good)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option, says in (("--version", "advise "), ("--help", "exit codes")):
        with pytest.raises(SystemExit) as stop:
            main([option])
        assert stop.value.code == 0
        assert says in capsys.readouterr().out


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-rules"]) == 0
    assert re.search(r"^dataloader +The data loader", capsys.readouterr().out, re.MULTILINE)
    assert main(["--explain", "cuda-graphs"]) == 0
    page = capsys.readouterr().out
    for text in (
        "Why it costs:",
        "What to do:",
        "When it must not fire:",
        "It fires:",
        "s7   ....a",
        "section 8.7",
        "C15",
    ):
        assert text in page


def test_every_cause_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    for cause in CAUSES.values():
        assert main(["--explain", cause.name]) == 0
        page = capsys.readouterr().out
        assert page.startswith(f"{cause.name}: {cause.label}\n")
        assert " ".join(cause.meaning.split()) in " ".join(page.split())
        assert "How it is told: " in page


def test_the_page_of_a_cause_names_the_rules_that_speak_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--explain", "launch-latency"])
    page = " ".join(capsys.readouterr().out.split())
    assert "[cuda-graphs]: " in page and "[dataloader]" not in page
    main(["--explain", "dataloader"])  # a cause and a rule
    both = capsys.readouterr().out
    assert both.startswith("dataloader: data loader\n") and "\ndataloader: The data loader does not keep up\n" in both


def test_explain_alone_lists_rules_and_causes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert listed >= {"host-sync", "cuda-graphs", *CAUSES}


def test_a_rules_page_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All but its drawings; and no name of an option is cut at a hyphen."""
    monkeypatch.setenv("COLUMNS", "60")
    main(["--explain", "host-sync"])
    page = capsys.readouterr().out
    assert [line for line in page.splitlines() if len(line) > 60 and not line.startswith("    ")] == []
    assert " ".join(page.split()).count("data-dependent shapes") == 1
    assert "python -m pydoc gpu_trace_advisor.rulekit.drawing" in " ".join(page.split())


def test_a_rule_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no rule nothing" in refused(capsys, "--explain", "nothing")
    assert "no such folder" in refused(capsys, "--list-rules", "--rules", tmp_path / "missing")
    assert "no trace given" in refused(capsys)


def test_a_folder_of_rules(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rule's finding and the error of a broken one stand in the same report."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from gpu_trace_advisor.rulekit.rule import Claim, rule\n"
        "@rule(title='It is mine', cites=())\n"
        "def mine(view):\n"
        "    yield Claim(message='All 400 µs of it.', ns=view.window.wall_ns, how='Look.')\n",
        encoding="utf-8",
    )
    (folder / "broken.py").write_text("raise OSError('no disk')\n", encoding="utf-8")
    assert main([str(good), "--rules", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "It is mine" in out and "Do: Look." in out
    assert "OSError: no disk" in out


@pytest.mark.parametrize("code", [0, 3])
def test_a_rule_file_that_ends_the_program_ends_nothing(
    code: int, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text(f"import sys\nsys.exit({code})\n", encoding="utf-8")
    assert main([str(good), "--rules", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "GPU busy 40.0 %" in out and f"SystemExit: {code}" in out


def test_what_if_takes_rules_and_fixes(sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(sample("training-dataloader"))
    assert main([trace, "--what-if", "dataloader,mixed-precision,fuse-elementwise", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["what_if"][0]
    assert found["fixes"] == ["dataloader", "mixed-precision"]
    assert [refusal["fix"] for refusal in found["refused"]] == ["fuse-elementwise"]
    assert 0 < found["saving_ns"][0] <= found["saving_ns"][1]


@pytest.mark.parametrize(
    ("name", "options", "fix", "why"),
    [
        ("eager-decode", ["--steps", "13-13"], "cuda-graphs", "nothing repeats in the window"),
        ("cold-start", ["--window", "all"], "module-load", "a cold start, not the steady state"),
        ("cold-start", ["--window", "all"], "cuda-graphs", "a cold start, not the steady state"),
    ],
)
def test_what_no_finding_prices_has_no_price_in_what_if(
    name: str, options: list[str], fix: str, why: str, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sample(name)), *options, "--what-if", fix, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["what_if"][0]
    assert found["saving_ns"] is None and found["fixes"] == []
    assert why in found["refused"][0]["why"]


@pytest.mark.parametrize(("name", "rules"), [("mlp-training", 2), ("training-dataloader", 3)])
def test_what_if_all_findings_were_fixed_is_what_they_give_together(
    name: str, rules: int, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(sample(name))
    assert main([trace, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    priced = [finding["rule"] for finding in found["findings"] if finding["saving_ns"]]
    assert len(priced) == rules
    assert main([trace, "--what-if", ",".join(priced), "--format", "json"]) == 0
    together = json.loads(capsys.readouterr().out)["what_if"][0]["saving_ns"]
    assert together == found["joint"][0]["saving_ns"]


@pytest.mark.parametrize(
    "name", ["mlp-training", "training-dataloader", "sync-storm", "pageable-copies", "eager-decode"]
)
def test_what_if_a_rule_s_finding_were_fixed_saves_no_more_than_it_names(
    name: str, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(sample(name))
    assert main([trace, "--format", "json"]) == 0
    priced = [finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["saving_ns"]]
    assert priced
    for finding in priced:
        assert main([trace, "--what-if", finding["rule"], "--format", "json"]) == 0
        saves = json.loads(capsys.readouterr().out)["what_if"][0]["saving_ns"]
        assert saves[1] <= sum(
            part["ns"] for other in priced if other["rule"] == finding["rule"] for part in other["named"]
        )


def test_what_the_trace_does_not_tell(sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(sample("graph-decode"))
    options = ["--phase", "decode", "--hardware", "h100-sxm", "--weights", "2.5GB", "--objective", "latency"]
    assert main([trace, *options, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == {"name": "decode", "why": "asked for with --phase"}
    assert "expected a size such as 14GB" in refused(capsys, trace, "--weights", "many")
    assert "a number of 400 digits" in refused(capsys, trace, "--weights", "9" * 400)
    assert "a number of 20 digits" in refused(capsys, trace, "--limit", "9" * 20)
    assert "no such device" in refused(capsys, trace, "--hardware", "abacus 3000")


def test_a_project_sets_defaults(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.gpu-trace-advisor]\nphase = "decode"\nverbose = true\n', encoding="utf-8")
    assert main([str(good)]) == 0
    assert "KERNELS" in capsys.readouterr().out
    assert main([str(good), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"]["name"] == "decode"
    assert main([str(good), "--format", "json", "--phase", "training"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"]["name"] == "training"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('rules = "mine"', "rules: expected window,"),
        ('scheduler = "tcp://x:1"', "scheduler: expected window,"),
        ('phase = "sleeping"', "sleeping"),
        ("top = 0", "whole number"),
        ("phase = ", "pyproject.toml: "),
    ],
)
def test_a_project_that_sets_what_it_cannot(
    table: str,
    says: str,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(f"[tool.gpu-trace-advisor]\n{table}\n", encoding="utf-8")
    try:
        assert main([str(good)]) == 2
    except SystemExit as end:
        assert end.code == 2
    told = capsys.readouterr()
    assert says in told.err and told.out == "" and told.err.count("\n") == 1


IN_A_SHELL = {
    "bash": """
eval "$(advise --completion bash)"
ask() { COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _python_argcomplete advise "${COMP_WORDS[-1]}"; echo "${COMPREPLY[@]}"; }
complete -p advise | grep -q _python_argcomplete || exit 1
ask "advise --wh"; ask "advise --format mark"
""",
    "fish": """
advise --completion fish | source
complete -C "advise --wh" | cut -f 1; complete -C "advise --format mark" | cut -f 1
complete -C "advise my-"
""",
    "zsh": r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; autoload -U compinit; compinit -D -u; eval "$(advise --completion zsh)"; echo rea""dy'
zpty -r shell told '*ready*'
ask() { zpty -w -n shell $'\C-u'"$1"$'\t'; zpty -r shell told "*$2*" && echo $2; }
ask "advise --wh" --what-if; ask "advise --format mark" markdown; ask "advise my-" my-trace.json
""",
}


@pytest.mark.parametrize("shell", [shell for shell in IN_A_SHELL if shutil.which(shell)])
def test_a_shell_completes_options_their_values_and_files(shell: str, tmp_path: Path) -> None:
    """The shell's own engine; what bash makes of files is its default, which it is told to fall back on."""
    (tmp_path / "my-trace.json").touch()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [shell, *{"fish": ("--no-config",), "zsh": ("-f",), "bash": ("--norc",)}[shell], "-c", IN_A_SHELL[shell]]
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.stdout.split() == ["--what-if", "markdown", *["my-trace.json"] * (shell != "bash")], done.stderr


def test_a_shell_is_told_what_could_come_next(tmp_path: Path) -> None:
    told = tmp_path / "told"
    environment = {
        **os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": "advise --wh", "COMP_POINT": "11", "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(told), "_ARGCOMPLETE_SHELL": "bash",
    }  # fmt: skip
    subprocess.run([sys.executable, "-m", "gpu_trace_advisor"], env=environment, check=True)
    assert told.read_text().split() == ["--what-if"]
