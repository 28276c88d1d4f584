"""Reading a recording, whatever its format, into a Trace.

The format is told by the first bytes, never by the file's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePath

from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.runtime.heap import give_back
from gpu_trace_advisor.trace.model import Trace

Progress = Callable[[str, float | None], None]
"""Called with what is being done and how much of it is, from 0 to 1; None where that is unknown."""

TRACE_NAMES = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep")
LARGE = 200_000  # rows; a smaller trace leaves little behind
NSIGHT_NAMES = (".sqlite", ".nsys-rep", ".qdrep")
NSIGHT_STARTS = (b"SQLite format 3\0", b"NVIDIA Tegra Profiler Report")


def read(path: str | os.PathLike[str], progress: Progress | None = None, limit: int | None = None) -> Trace:
    """The Trace of a torch.profiler or Nsight Systems recording.

    limit: bytes of memory that reading may take, where the size of the recording allows less (`ingest.room`).

    Raises:
        UnreadableTrace: no such file, or no trace that can be read; one line says what was found and what to do.
    """
    path = Path(path)
    tell = progress or (lambda what, share: None)
    tell(f"reading {path.name}", None)
    try:
        if path.is_fifo():
            return _read_pipe(path, progress, limit)
        if path.is_dir() or _is_nsight(path):
            from gpu_trace_advisor.ingest.nsight.reader import read_nsight

            return _alone(read_nsight(path, lambda what: tell(what, None)))
        from gpu_trace_advisor.ingest.chrome.reader import read_events
        from gpu_trace_advisor.ingest.kineto import to_trace

        raw = read_events(
            path, lambda done, total: tell(f"reading {path.name}", done / total if total else None), limit
        )
        return _alone(to_trace(raw, path))
    except FileNotFoundError:
        raise UnreadableTrace(f"{path}: no such file") from None
    except OSError as error:
        raise UnreadableTrace(f"{path}: {error.strerror or error}") from None


def _read_pipe(path: Path, progress: Progress | None, limit: int | None) -> Trace:
    """The Trace of a copy: a pipe gives its bytes once, and its first ones have to be looked at before all are read."""
    from shutil import copyfileobj
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="advise-") as folder:
        copy = Path(folder) / path.name
        with path.open("rb") as pipe, copy.open("wb") as file:
            copyfileobj(pipe, file, 1 << 20)
        try:
            return read(copy, progress, limit)
        except UnreadableTrace as error:
            raise UnreadableTrace(str(error).replace(str(copy), str(path))) from None


def _alone(trace: Trace) -> Trace:
    """The trace, once what reading it took has been given back."""
    if len(trace) > LARGE:
        give_back()
    return trace


def find_traces(path: Path) -> list[Path]:
    """The traces a path stands for: itself, or those in a folder, sorted by name with numbers as numbers.

    Raises:
        UnreadableTrace: a folder without traces, or what cannot be looked into.
    """
    try:
        if not path.is_dir():
            return [path]
        found = sorted((p for p in path.iterdir() if p.is_file() and p.name.endswith(TRACE_NAMES)), key=natural)
        if found:
            return found
        if any(p.suffix == ".parquet" for p in path.iterdir()):
            return [path]
    except OSError as error:
        raise UnreadableTrace(f"{path}: {error.strerror or error}") from None
    raise UnreadableTrace(
        f"{path}: no traces in this folder; expected files named {', '.join('*' + n for n in TRACE_NAMES)}"
    )


def natural(path: PurePath) -> list[tuple[int, str]]:
    """Sorts names with their numbers as numbers."""
    import re

    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _is_nsight(path: Path) -> bool:
    """By its first bytes; by its name where they are damaged and no Chrome trace's either."""
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(NSIGHT_STARTS):
        return True
    return path.name.endswith(NSIGHT_NAMES) and not start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(
        (b"{", b"[", b"\x1f\x8b")
    )
