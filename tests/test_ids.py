"""Ids are labels: whatever number one is costs neither memory nor time, and no two become one."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.columns.codes import among, counted, first_places, present
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.ingest.raw_events import INTEGERS, TEXTS
from gpu_trace_advisor.sanitize import json_text
from numpy import array, int64

from tests.build import Event, call, event, kernel, op, step, written
from tests.hostile import NUMBERS

MOST_BYTES = 64 << 20  # a hundred times what this takes; a table of all ids would take gigabytes
IDS = [number for number in NUMBERS if isinstance(number, int) and number < 10**40]


def program(**more: Any) -> list[Event]:
    """Two steps of operator, launch and kernel, with an allocation; `more` are arguments of every event."""
    events = []
    for i in range(4):
        at = 100 * i
        events += [op("aten::mm", at + 1, at + 20), call(at + 5, at + 10, 1 + i), kernel(at + 20, at + 60, 1 + i)]
        events.append({"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1, "tid": 1, "ts": at,
                       "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 1, "Total Allocated": 512,
                                "Total Reserved": 1024}})  # fmt: skip
    events.append(event("cuda_sync", "Event Sync", 30, 35, stream=7))
    events += [step(1, 0, 200), step(2, 200, 400)]
    for one in events:
        one["args"] = {**one.get("args", {}), **more}
    return events


def said(path: Path) -> dict[str, Any]:
    tracemalloc.start()
    try:
        found = advise_traces([read(path)]).to_json()
        json_text(found)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
        return found
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", IDS)
def test_any_number_as_every_id(number: int, tmp_path: Path) -> None:
    said(written(tmp_path / "a.json", *program(**dict.fromkeys(INTEGERS, number))))
    events = program()
    for one in events:
        one["pid"] = one["tid"] = number
    said(written(tmp_path / "b.json", *events))


@pytest.mark.parametrize("key", [*INTEGERS, "pid", "tid", "id"])
def test_every_number_as_one_id(key: str, tmp_path: Path) -> None:
    events = [one for _ in range(3) for one in program()]
    for one, number in zip(events, IDS * 3, strict=False):
        (one if key in ("pid", "tid", "id") else one["args"])[key] = number
    said(written(tmp_path / "a.json", *events))


@pytest.mark.parametrize("text", ["[1, 2147483647, 4611686018427387904]", "[-1,-1,-1]", "[0]", "[[9e99]]", "x", "1²"])
@pytest.mark.parametrize("key", TEXTS)
def test_any_text_as_a_size(key: str, text: str, tmp_path: Path) -> None:
    said(written(tmp_path / "a.json", *program(**{key: text, "Input Dims": f"[{text}, {text}]"})))


def test_devices_are_told_apart_whatever_their_numbers(tmp_path: Path) -> None:
    ids = (0, 1 << 31, 1 << 32, (1 << 32) + 1, (1 << 62) - 1)
    found = said(written(tmp_path / "a.json", *(kernel(10, 20 + i, i + 1, device=d) for i, d in enumerate(ids))))
    assert [(d["device"], d["busy_ns"]) for d in found["devices"]] == [
        (d, 10_000 + 1000 * i) for i, d in enumerate(ids)
    ]


def test_many_threads_of_many_processes(tmp_path: Path) -> None:
    """Their product is no size either."""
    events = [op("aten::mm", i, i + 1, pid=i, tid=10_000 + i) for i in range(4000)]
    trace = read(written(tmp_path / "a.json", *events))
    assert len(trace.threads) == 4000
    assert [trace.threads[t].process for t in trace.thread.tolist()] == [0] * 4000
    assert [int(trace.threads[t].tid) for t in trace.thread.tolist()] == [10_000 + i for i in range(4000)]


@pytest.mark.parametrize("world", [10**9, 10**17, -5, 0, True, "9" * 400, "1²", 2.5, None])
def test_a_job_of_any_size(world: object, tmp_path: Path) -> None:
    """What a recording says is the number of its ranks lists none of them."""
    traces = [
        read(written(tmp_path / f"{rank}.json", *program(), distributedInfo={"rank": rank, "world_size": world}))
        for rank in range(2)
    ]
    tracemalloc.start()
    found = advise_traces(traces)
    assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    tracemalloc.stop()
    assert found.ranks is not None
    known = isinstance(world, int) and not isinstance(world, bool) and world > 0
    assert (found.ranks.world, found.ranks.missing_count) == ((world, int(str(world)) - 2) if known else (None, 0))
    assert list(found.ranks.missing) == (list(range(2, 66)) if known else [])


@pytest.mark.parametrize("codes", [[5, 5, -1], [2**40, -7, 2**40, 3], [-(2**62), 2**62, -(2**62)], []])
def test_distinct_values(codes: list[int]) -> None:
    column, distinct = array(codes, int64), sorted(set(codes))
    assert present(column).tolist() == distinct
    assert [part.tolist() for part in first_places(column)] == [distinct, [codes.index(c) for c in distinct]]
    values, which, often = counted(column)
    assert (values.tolist(), often.tolist()) == (distinct, [codes.count(c) for c in distinct])
    assert [values[i] for i in which] == codes
    assert among(column, array([3, -7], int64)).tolist() == [c in (3, -7) for c in codes]
    assert all(a < b for a, b in pairwise(distinct))
