"""A report of Nsight Systems (`.nsys-rep`, `.qdrep`): its version, and its export to SQLite where nsys is installed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_trace_advisor.errors import UnreadableTrace

MAGIC = b"NVIDIA Tegra Profiler Report "
HEAD = 4096
VERSION = re.compile(re.escape(MAGIC) + rb"(\d{4}(?:@\d+){1,3})")
OLD = re.compile(re.escape(MAGIC) + rb"1\.")
SUFFIXES = (".nsys-rep", ".qdrep")


def is_report(path: Path) -> bool:
    """By its first bytes; an empty or unreadable file by its suffix."""
    head = _head(path)
    return MAGIC in head if head else path.suffix in SUFFIXES


def report_version(path: Path) -> str:
    """Version that wrote the report, as `2026.2.1.210`; `2021 or older`, or "" where the report does not say."""
    head = _head(path)
    if found := VERSION.search(head):
        return found[1].decode().replace("@", ".")
    return "2021 or older" if OLD.search(head) else ""


@contextmanager
def exported(path: Path, progress: Callable[[str], None] | None = None) -> Iterator[Path]:
    """An SQLite export of the report, in a temporary folder that is gone afterwards, whatever happens.

    Raises UnreadableTrace when nsys is not on the PATH or cannot export the report.
    """
    version = report_version(path)
    what = f"a report of Nsight Systems {version}" if version else "a report of Nsight Systems"
    nsys = shutil.which("nsys")
    if nsys is None:
        target = shlex.quote(str(path.with_suffix(".sqlite")))
        raise UnreadableTrace(
            f"{path}: {what}, and nsys is not on the PATH to export it; run where it is installed: "
            f"nsys export --type sqlite --output {target} {shlex.quote(str(path))}"
        )
    with tempfile.TemporaryDirectory(prefix="advise-") as folder:
        target_path = Path(folder) / "export.sqlite"
        if progress is not None:
            progress(f"{path.name}: exporting {what} to SQLite")
        _run([nsys, "export", "--type", "sqlite", "--output", str(target_path), str(path.absolute())], path, what)
        if not target_path.is_file():
            raise UnreadableTrace(f"{path}: {what}; nsys export ended well but wrote no file; export it by hand")
        yield target_path


def _run(command: list[str], path: Path, what: str) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        raise UnreadableTrace(f"{path}: {what}; nsys cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace").splitlines()
        reason = said[-1].strip() if said else f"exit code {done.returncode}"
        raise UnreadableTrace(
            f"{path}: {what}; nsys export failed ({reason}); an nsys at least as new as the report is needed"
        )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            return f.read(HEAD)
    except OSError:
        return b""
