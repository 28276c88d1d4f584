"""Very many of something: what is left out is said, and the rest adds up."""

from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.timelines import device, host

from tests.build import call, kernel, op, written


def test_of_many_devices_the_busiest_are_shown_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "MOST_DEVICES", 5)
    monkeypatch.setattr("gpu_trace_advisor.analysis.device_window.MOST_DEVICES", 5)
    events = [kernel(10 * k, 10 * k + 5, device=d) for d in range(12) for k in range(1 + d)]
    found = advise_traces([read(written(tmp_path / "a.json", *events))])
    assert [one.device for one in found.devices] == [7, 8, 9, 10, 11]
    (note,) = (note for note in found.health if note.code == "left-out")
    assert note.count == 7 and note.message.startswith("7 of 12 devices are left out")


def test_of_many_threads_those_that_launch_most_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MOST_THREADS", 10)
    monkeypatch.setattr("gpu_trace_advisor.analysis.device_window.MOST_THREADS", 10)
    events = []
    for i in range(60):
        tid = i % 30
        events += [op("aten::mm", 100 * i, 100 * i + 60, tid=tid), call(100 * i + 10, 100 * i + 20, i + 1, tid=tid),
                   kernel(100 * i + 40, 100 * i + 90, i + 1)]  # fmt: skip
    found = advise_traces([read(written(tmp_path / "a.json", *events))])
    (one,) = found.devices
    assert sum(item.ns for item in one.attribution) == one.wall_ns == 5_950_000
    assert [note.count for note in found.health if note.code == "left-out"] == [20]


@pytest.mark.parametrize("threads", [3, 40])
def test_threads_are_told_apart_by_looking_or_by_sorting(threads: int, tmp_path: Path) -> None:
    """The host's side is the same whether each thread's rows are looked for or all are sorted."""
    events = []
    for i in range(120):
        at, tid = 100 * i, i % threads
        events += [op("aten::mm", at, at + 60, tid=tid), call(at + 10, at + 20, i + 1, tid=tid),
                   kernel(100 * i + 40, 100 * i + 90, i + 1)]  # fmt: skip
    (one,) = advise_traces([read(written(tmp_path / "a.json", *events))]).devices
    idle = {item.cause: item.ns for item in one.attribution if item.when == "idle"}
    assert idle["framework"] + idle.get("launch-call", 0) + idle.get("launch-latency", 0) > 0
    assert sum(idle.values()) == 119 * 50_000
