"""The overlay for Perfetto: a valid Chrome trace on the original's clock whose causes cover its idle time."""

import json
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report import perfetto

from tests import build as b
from tests.drawn import drawn

SAMPLES = ("training-dataloader", "sync-storm", "multi-stream-events", "graph-decode-nsys")


def overlay(path: Path) -> tuple[Any, dict[str, Any]]:
    advice, drawings = drawn(read(path))
    return advice, json.loads("".join(perfetto.render(advice, drawings)), parse_float=Decimal)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_causes_cover_the_idle_time_exactly(sample: Callable[[str], Path], name: str) -> None:
    advice, trace = overlay(sample(name))
    by_device: dict[int, Decimal] = defaultdict(Decimal)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["tid"] == 0:
            by_device[event["pid"] - perfetto.FIRST_PID] += event["dur"]
    for number, device in enumerate(advice.devices):
        assert by_device[number] * 1000 == device.idle_ns


@pytest.mark.parametrize("name", SAMPLES)
def test_every_event_is_one_of_a_chrome_trace(sample: Callable[[str], Path], name: str) -> None:
    advice, trace = overlay(sample(name))
    tracks = set()
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] in "XMi"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.add(perfetto.TRACKS[event["tid"]])
        if event["ph"] == "M" and event["name"] == "process_name":
            assert event["args"]["name"].startswith("advise: ")
    assert {"causes", "critical path"} <= tracks
    assert ("findings" in tracks) == bool(advice.findings)


def test_the_clock_is_the_recordings_own() -> None:
    trace = b.trace(*b_events(), baseTimeNanoseconds=1_700_000_000_000_000_000)
    made = json.loads("".join(perfetto.render(*drawn(trace))), parse_float=Decimal)
    assert made["baseTimeNanoseconds"] == 1_700_000_000_000_000_000
    first = min(e["ts"] for e in made["traceEvents"] if e["ph"] == "X" and e["tid"] == 0)
    assert first == Decimal("50.001")


def b_events() -> list[b.Event]:
    return [
        b.op("aten::mm", 5, 20), b.call(10, 15, 1), b.kernel(20, 50.001, 1),
        b.op("aten::mm", 52, 70), b.call(60, 65, 2), b.kernel(70, 90, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("ns", "text"), [(0, "0.000"), (1, "0.001"), (-1500, "-1.500"), (10**18 + 1, f"{10**15}.001")])
def test_micro(ns: int, text: str) -> None:
    assert perfetto.micro(ns) == text


def test_several_recordings_with_their_own_bases_keep_none(sample: Callable[[str], Path]) -> None:
    both = [read(sample(f"comm-bound-rank-rank{rank}")) for rank in (0, 1)]
    advice, drawings = drawn(*both)
    trace = json.loads("".join(perfetto.render(advice, drawings)))
    assert len({event["pid"] for event in trace["traceEvents"]}) == len(advice.devices)


def test_the_command_writes_it(sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "overlay.json"
    assert main([str(sample("training-dataloader")), "--format", "perfetto", "-o", str(path)]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
