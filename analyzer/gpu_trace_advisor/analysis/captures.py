"""The recordings of graph captures that a request names."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.ingest.locations import find_places, is_remote, local, once
from gpu_trace_advisor.roofline.captured_work import Capture, read_capture


def read_captures(request: Request) -> tuple[Capture, ...]:
    """What the captures tell that were asked for; each is read once as long as its file stays as it is.

    Raises:
        UnreadableTrace: one cannot be read.
        BadUsage: nothing of its name.
    """
    places = once(place for one in request.captures for place in find_places(one))
    return tuple(_read(place, _state(place), request.limit) for place in sorted(places))


def _state(place: str) -> tuple[int, int]:
    """What changes when a file is written anew."""
    if is_remote(place):
        return 0, 0
    try:
        found = Path(place).stat()
    except OSError:  # reading says what is wrong
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=64)
def _read(place: str, state: tuple[int, int], limit: int | None) -> Capture:
    with local(place) as path:
        return read_capture(read(path, limit=limit))
