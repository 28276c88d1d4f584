"""What makes numbers doubtful, and near misses. Times are µs."""

from __future__ import annotations

import pytest
from gpu_trace_advisor.advice.build import advise_traces

from tests.build import Event, advice, annotation, call, event, frame, kernel, memset, op, step, sync, trace


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


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        ([sync(560, 615)], "late-start"),  # all was done when it was launched
        ([sync(560, 615, "cudaStreamSynchronize")], "late-start"),
        ([sync(560, 615, "cudaEventSynchronize")], "cut"),  # the event may be an old one
        ([sync(560, 615), call(617, 619, 99)], "cut"),  # what this launched was not recorded
        ([call(-200_000, -20, 0, "cudaFree")], "late-start"),  # creates the context: there was nothing before
        ([call(-200_000, -20, 0, "cuInit")], "late-start"),
        ([call(100, 300, 0, "cuInit")], "cut"),  # of a second library
    ],
)
def test_work_that_was_cut_away_needs_a_possibility(before: list[Event], kind: str) -> None:
    assert {"cut", "late-start"} & set(health(*before, *waits(3))) == {kind}


def test_a_late_start_is_said_as_such() -> None:
    found = advice(sync(560, 615), *waits(30))
    assert "the GPU began late although it had nothing else to do" in found.verdict
    (finding,) = [finding for finding in found.findings if finding.rule == "trace-quality"]
    assert (finding.title, finding.saving_ns) == ("The GPU begins late", None)


def test_a_front_that_was_cut_is_found_behind_a_moment_on_another_stream() -> None:
    """A set of 3 ns, then 100 ms in which the first kernel of the other stream waits for work from before the recording."""
    events = [
        call(0, 2, 1, "cudaMemsetAsync"), memset(4, 4.003, 1, stream=20), call(10, 14, 2),
        *(kernel(100_000 + 60 * i, 100_050 + 60 * i, 2 + i) for i in range(1)), sync(20, 100_060),
        *(event for i in range(5) for event in (
            call(100_100 + 100 * i, 100_104 + 100 * i, 10 + i), kernel(100_105 + 100 * i, 100_160 + 100 * i, 10 + i)
        )),
    ]  # fmt: skip
    assert health(*events, window="gpu")["cut"] == 1


# Thinned recordings


@pytest.mark.parametrize(("apart", "thin"), [(150, True), (30, False)])
def test_next_to_nothing_of_the_calls_is_counted_in(apart: int, thin: bool) -> None:
    """Launches whose ids are so far apart; the smallest and the largest id are another session's."""
    ids = [7, *(1_000 + apart * i for i in range(300)), 9_000_000]
    events = [
        event for i, number in enumerate(ids) for event in (
            op("aten::mul", 20 * i, 20 * i + 12), call(20 * i + 6, 20 * i + 12, number),
            kernel(20 * i + 14, 20 * i + 19, number, f"kernel_{i % 10}"),
        )
    ]  # fmt: skip
    found = advice(*events)
    assert ("thinned" in {note.code for note in found.health}) == thin
    assert ("cuda-graphs" in {finding.rule for finding in found.findings}) != thin


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
    assert ("cold" in health(*events, window="gpu")) == cold


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


# What lies outside the window


def test_what_takes_long_before_the_window_is_told() -> None:
    """349 of 593 ms before the first operation, 275 of them in two calls."""
    events = [
        call(0, 200_000, 0, "cudaHostAlloc"), call(210_000, 285_000, 0, "cudaHostAlloc"), call(348_000, 348_010, 1),
        kernel(349_000, 593_000, 1),
    ]  # fmt: skip
    assert message("outside-window", *events) == (
        "349.0 ms (58.9 % of the recording) before the window, 275.0 ms of it in cudaHostAlloc × 2: not in these numbers "
        "(--window all)"
    )


def test_what_is_short_or_asked_for_is_not_told() -> None:
    events = [op("aten::empty", 0, 99), *eager(9, 100)]
    assert "outside-window" not in health(*events)  # 0.1 ms
    late = [op("aten::empty", 0, 9_000), *eager(9, 10_000)]
    assert "outside-window" in health(*late)
    assert "outside-window" not in health(*late, window="all")
