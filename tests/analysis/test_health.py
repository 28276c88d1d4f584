"""What makes numbers doubtful, and near misses. Times are µs."""

from __future__ import annotations

import pytest
from gpu_trace_advisor.advice.build import advise_traces

from tests.build import Event, advice, annotation, call, event, frame, kernel, op, step, trace


def health(*events: Event, **request: str) -> dict[str, int]:
    return {note.code: note.count for note in advice(*events, **request).health}


def message(code: str, *events: Event) -> str:
    (note,) = [n for n in advice(*events).health if n.code == code]
    return note.message


def eager(n: int, at: float = 0) -> list[Event]:
    """Launches into an idle device, 100 µs apart, 5 µs each."""
    events = []
    for i in range(n):
        start = at + 100 * i
        correlation = 20_000 + round(start)
        events += [call(start, start + 2, correlation), kernel(start + 5, start + 60, correlation)]
    return events


def test_sound_trace() -> None:
    assert health(*eager(5)) == {}


# Cut recordings and replays that are recorded in part


def waits(ms: float, name: str = "cudaLaunchKernel", *, nodes: int = 1) -> list[Event]:
    """An operation that was submitted while the device was busy and starts so many ms later."""
    start = 660 + ms * 1000
    return [
        *eager(7),
        call(620, 625, 1, name), *(kernel(start + 10 * i, start + 10 * i + 5, 1) for i in range(nodes)),
    ]  # fmt: skip


@pytest.mark.parametrize(("ms", "cut"), [(1.21, True), (1.05, False)])
def test_cut(ms: float, cut: bool) -> None:
    """Of a wait the first 200 µs at most are explained: a whole ms must be left."""
    found = health(*waits(ms))
    assert ("cut" in found) == cut
    if cut:
        assert "do not call this time idle" in message("cut", *waits(ms))


def test_hole_inside_a_replay() -> None:
    """A replay's first node is recorded, then nothing for 3 ms, then the next node."""
    events = [
        *eager(5), call(510, 515, 1, "cudaGraphLaunch"), kernel(520, 530, 1), kernel(3530, 3540, 1),
    ]  # fmt: skip
    assert health(*events) == {"unrecorded-graph-nodes": 1}
    assert "2.80 ms" in message("unrecorded-graph-nodes", *events)
    found = advice(*events)
    assert "2.80 ms" in found.verdict
    assert not found.verdict.startswith("GPU busy")


def test_small_hole_inside_a_replay_is_not_worth_a_word() -> None:
    events = [
        *eager(100),
        call(10_010, 10_015, 1, "cudaGraphLaunch"),
        kernel(10_020, 10_030, 1),
        kernel(10_330, 10_340, 1),
    ]
    assert health(*events) == {}


# Start-up


@pytest.mark.parametrize(("length", "cold"), [(131, True), (130, False)])
def test_cold(length: float, cold: bool) -> None:
    """Loading takes a fifth of the 655 µs wall, or a little less."""
    events = [*eager(5), call(460, 460 + length, 0, "cuModuleLoadData"), *eager(1, 600)]
    assert ("cold" in health(*events)) == cold


def test_instant_is_not_cold() -> None:
    assert health(op("aten::a", 0, 5), kernel(2, 2)) == {"orphan-operations": 1}


# Links


def test_orphans() -> None:
    assert health(*eager(3), kernel(400, 410), kernel(420, 430)) == {"orphan-operations": 2}
    assert "2 of 5" in message("orphan-operations", *eager(3), kernel(400, 410), kernel(420, 430))


def test_orphans_outside_the_window_do_not_count() -> None:
    assert "orphan-operations" not in health(kernel(0, 5), *eager(5, 100), window="0.1:0.4")


def test_clock_skew() -> None:
    assert health(*eager(3), call(405, 407, 1), kernel(402.5, 410, 1)) == {"clock-skew": 1}
    assert "2.500 µs" in message("clock-skew", *eager(3), call(405, 407, 1), kernel(402.5, 410, 1))
    assert health(*eager(3), call(405, 407, 1), kernel(405, 410, 1)) == {}


def test_lost_kernels() -> None:
    """Launches before the last one that has an operation were lost; those after it outlived the recording."""
    lost = [call(50 + i, 50.5 + i, 5000 + i) for i in range(3)]
    assert health(*eager(5), *lost) == {"lost-kernels": 3}
    after = [call(900 + i, 900.5 + i, 5000 + i) for i in range(3)]
    assert health(*eager(5), *after) == {}
    nested = [
        event("cuda_driver", "cuLaunchKernel", 100 * i + 0.5, 100 * i + 1, correlation=9000 + i) for i in range(4)
    ]
    assert health(*eager(5), *nested) == {}


def test_lost_kernels_of_two_devices_count_once() -> None:
    lost = [call(50 + i, 50.5 + i, 5000 + i) for i in range(3)]
    other = [call(3, 4, 1), kernel(5, 60, 1, device=1), call(480, 481, 2), kernel(490, 500, 2, device=1)]
    assert health(*eager(5), *lost, *other)["lost-kernels"] == 3


# Steps, collectives, profiler


def test_single_step() -> None:
    assert health(step(0, 0, 300), *eager(3)) == {"single-step": 1}
    assert health(step(0, 0, 100), step(1, 100, 300), *eager(3)) == {}
    assert health(step(0, 0, 300), *eager(3), window="gpu") == {}


def test_markers_without_work() -> None:
    """Five markers, the three launches of `eager` inside the first and the third of them."""
    steps = [step(0, 0, 150), step(1, 150, 190), step(2, 190, 300), step(3, 300, 400), step(4, 400, 500)]
    assert health(*steps, *eager(3)) == {"empty-steps": 3}
    assert health(*steps[:1], *steps[2:3], *eager(3)) == {}


def collectives(first: float, others: float = 20, count: int = 5) -> list[Event]:
    name = "ncclDevKernel_AllReduce"
    events, at = [], 10.0
    for i in range(count):
        length = others if i else first
        events += [call(at - 5, at - 4, i + 1), kernel(at, at + length, i + 1, name)]
        at += length + 10
    return events


@pytest.mark.parametrize(
    ("events", "outlier"),
    [
        (collectives(201), True),
        (collectives(200), False),  # ten times the median is not more than ten times
        (collectives(201, count=3), False),  # too few to tell what is usual
        ([*collectives(201), call(1000, 1001, 99), kernel(1010, 1400, 99, "ncclDevKernel_AllGather")], False),
    ],
)
def test_first_collective(events: list[Event], outlier: bool) -> None:
    assert ("collective-outlier" in health(*events)) == outlier


def test_collectives_without_kernels_are_unknown() -> None:
    asked = [annotation("nccl:all_reduce", 1, 4), op("record_param_comms", 2, 3), op("ncclish", 3, 4)]
    assert health(*asked, *eager(5)) == {"no-collectives": 2}
    assert "not zero" in message("no-collectives", *asked, *eager(5))
    assert health(*asked, *eager(5), call(510, 512, 1), kernel(515, 520, 1, "ncclDevKernel_AllReduce")) == {}
    assert "no-collectives" not in health(*asked)  # nothing ran on a device: that is said instead


def test_clocks_that_are_days_apart() -> None:
    """The operations are no lost ones, their launches no lost kernels: neither can be told."""
    day = 86_400 * 10**6
    found = health(*(call(100 * i, 100 * i + 2, i + 1) for i in range(5)),
                   *(kernel(day + 100 * i, day + 100 * i + 60, i + 1) for i in range(5)))  # fmt: skip
    assert found == {"clock-skew": 5, "orphan-operations": 5}


def test_stacks() -> None:
    """Frames tell, whatever the metadata says: older files say nothing, and the option may be on with no frame in reach."""
    assert health(*eager(5), frame("train.py(1): main", 0, 500), frame("train.py(2): step", 5, 90)) == {
        "profiler-stacks": 2,
    }  # fmt: skip
    assert advise_traces([trace(*eager(5), with_stack=1)]).health == ()
