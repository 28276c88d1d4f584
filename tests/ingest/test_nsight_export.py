"""Reports of Nsight Systems: exported where nsys is installed, else told apart and explained."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight.export import is_report, report_version
from gpu_trace_advisor.ingest.nsight.reader import read_nsight

from tests.nsight_export import CUPTI, kernel, write

NEW = b"NVIDIA Tegra Profiler Report 2026@2@1@210-262137639646v0.\n" + b"\x01" * 50
OLD = b"NVIDIA Tegra Profiler Report 1.\n" + b"\x01" * 50

FAKE = """#!{python}
import pathlib, shutil, sys, time
arguments = sys.argv[1:]
pathlib.Path({log!r}).write_text(chr(10).join(arguments))
{body}
"""
EXPORT = "shutil.copy({source!r}, arguments[arguments.index('--output') + 1])"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(NEW)
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go in a test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A program called nsys on the PATH; returns where it logs its arguments."""
    folder, log = tmp_path / "bin", tmp_path / "arguments"
    folder.mkdir()
    nsys = folder / "nsys"
    nsys.write_text(FAKE.format(python=sys.executable, log=str(log), body=body))
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


@pytest.mark.parametrize(("content", "version"), [(NEW, "2026.2.1.210"), (OLD, "2021 or older"), (NEW[:29], "")])
def test_the_version_that_wrote_the_report(tmp_path: Path, content: bytes, version: str) -> None:
    path = tmp_path / "report"
    path.write_bytes(content)
    assert is_report(path)
    assert report_version(path) == version


def test_an_export_called_report_is_no_report(tmp_path: Path) -> None:
    assert not is_report(write(tmp_path / "report.nsys-rep", {}))
    assert is_report(tmp_path / "missing.qdrep")


def test_without_nsys_the_command_is_told(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnreadableTrace) as caught:
        read_nsight(report)
    message = str(caught.value)
    assert message.startswith(f"{report}: a report of Nsight Systems 2026.2.1.210, ")
    command = shlex.split(message[message.index("nsys export") :])
    assert command == [
        "nsys",
        "export",
        "--type",
        "sqlite",
        "--output",
        str(report.with_suffix(".sqlite")),
        str(report),
    ]
    assert "\n" not in message


def test_a_report_is_exported_and_the_export_removed(
    tmp_path: Path, report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "source.sqlite", {1: "k"}, **{CUPTI + "KERNEL": [kernel(0, 10)]})
    log = install(tmp_path, monkeypatch, EXPORT.format(source=str(source)))
    told: list[str] = []
    trace = read_nsight(report, told.append)
    assert (trace.name, len(trace.operations)) == ("my run.nsys-rep", 1)
    assert told == ["my run.nsys-rep: exporting a report of Nsight Systems 2026.2.1.210 to SQLite"]
    arguments = log.read_text().splitlines()
    assert arguments[:3] == ["export", "--type", "sqlite"]
    assert arguments[-1] == str(report)
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "arguments", "bin", "my run.nsys-rep", "source.sqlite", "temporary",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "print('starting'); sys.stderr.write('Importer error:' + chr(10) + 'too new' + chr(10)); sys.exit(1)",
            "too new",
        ),
        ("sys.exit(3)", "exit code 3"),
        ("pass", "wrote no file"),
        ("pathlib.Path(arguments[arguments.index('--output') + 1]).write_text('x')", "no SQLite database"),
    ],
)
def test_an_export_that_fails(
    tmp_path: Path, report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    install(tmp_path, monkeypatch, body)
    with pytest.raises(UnreadableTrace) as caught:
        read_nsight(report)
    assert str(caught.value).startswith(f"{report}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(temporary.iterdir()) == []


def test_a_program_that_cannot_be_run(report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/no/such/nsys")
    with pytest.raises(UnreadableTrace, match="cannot be run"):
        read_nsight(report)
    assert list(temporary.iterdir()) == []


def test_an_interrupted_export_is_removed(
    tmp_path: Path, report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    body = (
        "pathlib.Path(arguments[arguments.index('--output') + 1]).write_text('half'); "
        f"pathlib.Path({str(started)!r}).touch(); time.sleep(60)"
    )
    install(tmp_path, monkeypatch, body)
    code = (
        "import pathlib, signal; from gpu_trace_advisor.ingest.nsight.reader import read_nsight; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # what runs in the background inherits that it is ignored
        f"read_nsight(pathlib.Path({str(report)!r}))"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not started.exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(temporary.iterdir())
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert list(temporary.iterdir()) == []
