"""What a terminal shows during long work."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.runtime import progress
from gpu_trace_advisor.runtime.progress import Progress

from tests.build import kernel, written


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)


def shown(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().split("\r")[1:]]


def test_what_is_told_once_is_shown_while_it_lasts() -> None:
    stream = Terminal()
    with Progress(stream) as tell:
        tell("reading a.json", None)
        for _ in range(200):
            if stream.getvalue():
                break
            time.sleep(0.05)
    assert shown(stream) == ["reading a.json …", "", ""]
    assert stream.getvalue().endswith("\r" + " " * len("reading a.json …") + "\r")


def test_the_share_is_drawn() -> None:
    stream = Terminal()
    with Progress(stream) as tell:
        tell.timer.join()
        tell("reading", 0.5)
    assert shown(stream)[1] == f"reading [{'#' * 15}{'.' * 15}] 50 %"


def test_short_work_and_other_streams_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Progress(io.StringIO()) as tell:
        tell.began -= 60
        tell("reading", 0.5)
    assert tell.stream.getvalue() == ""  # type: ignore[attr-defined]
    monkeypatch.setattr(progress, "QUIET_S", 60.0)
    stream = Terminal()
    with Progress(stream) as tell:
        tell("reading", 0.5)
    tell.timer.join()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("jobs", [None, 1])
def test_one_recording_is_told_of_while_it_is_read(jobs: int | None, tmp_path: Path) -> None:
    """Not when all of it has been: no other comes after it."""
    told: list[tuple[str, float | None]] = []
    look_at([str(written(tmp_path / "a.json", kernel(0, 5)))], Request(), jobs=jobs, tell=lambda *one: told.append(one))
    assert told[0] == ("reading a.json", None)
    assert ("reading a.json", 1.0) in told
    assert told[-1] == ("analysing", None)
