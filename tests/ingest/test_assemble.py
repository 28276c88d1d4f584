"""From rows to a Trace: damage, order, corrupt ends, launches. Times are µs."""

from __future__ import annotations

import pytest
from gpu_trace_advisor.trace.model import NONE, Kind, Trace
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build import Event, call, copy, event, kernel, memset, op, trace

WEEK = 7 * 86_400 * 10**6


def health(recording: Trace) -> dict[str, int]:
    return {note.code: note.count for note in recording.health}


def ends(*events: Event) -> list[float]:
    """End of every operation, in order of starts."""
    found = trace(*events)
    return [int(t) / 1000 for t in found.end_ns[found.operations]]


# Time


@pytest.mark.parametrize(
    ("fields", "usable"),
    [
        ({}, True),
        ({"ts": 0}, True),
        ({"dur": 0}, True),
        ({"dur": WEEK}, True),
        ({"ts": -50}, True),
        ({"ts": 0, "dur": 0}, False),
        ({"ts": None}, False),
        ({"dur": None}, False),
        ({"dur": -1}, False),
        ({"dur": "-0.001"}, False),
        ({"dur": WEEK + 0.001}, False),
        ({"ts": "NaN"}, False),
        ({"ts": "30.5"}, True),
    ],
)
@pytest.mark.parametrize("one", [kernel(20, 30), op("aten::a", 20, 30)])
def test_usable_time(fields: Event, usable: bool, one: Event) -> None:
    found = trace({**one, **fields}, call(1, 2))
    assert len(found) == 1 + usable
    assert health(found) == ({} if usable else {"quarantined-time": 1})


def test_quarantine_is_told_by_kind() -> None:
    damaged = [{**one, "ts": 0, "dur": 0} for one in (kernel(1, 2), kernel(1, 2), copy(1, 2), op("a", 1, 2))]
    (note,) = trace(kernel(1, 2), *damaged).health
    assert note.count == 4
    for text in ("2 kernel", "1 copy", "1 operator"):
        assert text in note.message


def test_arguments_move_with_their_rows() -> None:
    """Quarantined and reordered rows keep their own arguments."""
    found = trace(
        {**kernel(1, 2, 9, "lost", grid=[9, 9, 9]), "dur": -1}, kernel(30, 31, 3, "c", grid=[3, 1, 1]),
        kernel(10, 11, 1, "a", grid=[1, 1, 1]), kernel(20, 21, 2, "b"),
    )  # fmt: skip
    assert [(found.label(r), found.text(r, "grid"), int(found.correlation[r])) for r in found.operations.tolist()] == [
        ("a", "[1, 1, 1]", 1), ("b", None, 2), ("c", "[3, 1, 1]", 3),
    ]  # fmt: skip
    assert found.integers.keys() == set()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=12))
def test_order(spans: list[tuple[int, int]]) -> None:
    """By start, then the longer first, then as in the file."""
    found = trace(*(op(f"{i}", s, s + n) for i, (s, n) in enumerate(spans)))
    expected = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i))
    assert [found.label(row) for row in range(len(found))] == [str(i) for i in expected]


# Corrupt ends


def test_kernel_that_outlasts_two_successors_is_cut() -> None:
    found = trace(kernel(0, 1000), kernel(10, 20), kernel(20, 30), kernel(30, 40))
    assert (found.end_ns[found.operations] // 1000).tolist() == [10, 20, 30, 40]
    assert health(found) == {"impossible-duration": 1}
    assert "990.000" in found.health[0].message


@pytest.mark.parametrize(
    "events",
    [
        [kernel(0, 25), kernel(10, 20), kernel(20, 30)],  # overlaps both, outlasts one: dependent launch
        [kernel(0, 30), kernel(10, 20), kernel(20, 30)],  # ends with the second
        [kernel(0, 1000), kernel(10, 20)],  # too few to tell
        [kernel(0, 1000), kernel(10, 20), kernel(20, 30, stream=8)],  # another stream
        [kernel(0, 1000), kernel(10, 20), kernel(20, 30, device=1)],  # another device
        [kernel(0, 1000), kernel(10, 20), copy(20, 30)],  # copies have engines of their own
        [copy(0, 1000), kernel(10, 20), kernel(20, 30)],
        [memset(0, 1000), kernel(10, 20), kernel(20, 30)],
        [kernel(0, 1000, 5), kernel(10, 20, 5), kernel(20, 30, 5)],  # branches of one replay
        [kernel(0, 1000, 5), kernel(10, 20), kernel(20, 30), memset(1, 2, 5, stream=9)],
    ],
)
def test_what_is_not_cut(events: list[Event]) -> None:
    assert ends(*events) == [e["ts"] + e["dur"] for e in sorted(events, key=lambda e: e["ts"])]
    assert health(trace(*events)) == {}


def test_successors_of_a_replay_do_not_count() -> None:
    """The nodes lie on the stream too, but only kernels outside of replays are compared with each other."""
    assert ends(kernel(0, 100), kernel(10, 20, 5), kernel(20, 30, 5), kernel(40, 50), kernel(50, 60)) == [
        40, 20, 30, 50, 60,
    ]  # fmt: skip


def test_several_corrupt_ends_in_a_row() -> None:
    assert ends(kernel(0, 900), kernel(10, 800), kernel(20, 30), kernel(30, 40), kernel(50, 60)) == [10, 20, 30, 40, 60]


# Launches


def linked(*events: Event) -> list[str | None]:
    """For each operation in order the name of its launch."""
    found = trace(*events)
    return [found.label(row) if row != NONE else None for row in found.launch[found.operations].tolist()]


def test_earliest_call_is_the_launch() -> None:
    driver = event("cuda_driver", "cuLaunchKernel", 3, 4, correlation=1)
    assert linked(call(2, 5, 1), driver, kernel(10, 20, 1)) == ["cudaLaunchKernel"]
    assert linked(driver, call(30, 31, 1), kernel(10, 20, 1)) == ["cuLaunchKernel"]


@pytest.mark.parametrize("correlation", [0, -1, None])
def test_ids_that_mean_none_never_join(correlation: int | None) -> None:
    without = {**kernel(10, 20), "args": {"stream": 7, "correlation": correlation}}
    first = {**call(1, 2), "args": {"correlation": correlation}}
    found = trace(first, without)
    assert found.launch[found.operations].tolist() == [NONE]
    assert set(found.correlation.tolist()) == {NONE}


def test_large_ids() -> None:
    big = 2**62 + 1
    assert linked(call(1, 2, big), call(3, 4, big + 1, "other"), kernel(10, 20, big + 1)) == ["other"]


def test_only_calls_launch() -> None:
    assert linked(event("cpu_op", "aten::a", 1, 2, correlation=1), kernel(10, 20, 1)) == [None]


def test_all_kinds_of_work_have_launches() -> None:
    events = [call(i, i + 0.5, i, f"call {i}") for i in range(1, 4)]
    assert linked(*events, kernel(10, 11, 1), copy(12, 13, 2), memset(14, 15, 3)) == ["call 1", "call 2", "call 3"]
    found = trace(*events, kernel(10, 11, 1))
    assert found.launch[found.rows(Kind.CALL)].tolist() == [NONE] * 3


def test_calls_that_share_an_id_are_told() -> None:
    """Merged recordings: the operations go with the earliest call, and it is said that this is doubtful."""
    events = [call(10, 15, 5, "first"), kernel(20, 30, 5), call(110, 115, 5), kernel(120, 130, 5)]
    assert health(trace(*events)) == {"duplicate-ids": 1}
    assert linked(*events) == ["first", "first"]


@pytest.mark.parametrize(
    "events",
    [
        [call(10, 15, 5), call(11, 14, 5, "cuLaunchKernel"), kernel(20, 30, 5)],  # a call inside the call
        [call(10, 10, 5), call(10, 10, 5), kernel(20, 30, 5)],  # the same call twice
        [call(10, 15, 5), call(110, 115, 5), kernel(20, 30, 6)],  # no operation asks for it
        [call(10, 15), call(110, 115), kernel(20, 30)],
    ],
)
def test_calls_that_share_no_id(events: list[Event]) -> None:
    assert "duplicate-ids" not in health(trace(*events))


HOUR = 3600 * 10**6


@pytest.mark.parametrize("days", [-19_675.9, 19_675.9, 0.5])
def test_clocks_that_are_days_apart_tie_nothing(days: float) -> None:
    shift = round(days * 24 * HOUR)
    found = trace(*(call(100 * i, 100 * i + 5, i + 1) for i in range(5)),
                  *(kernel(shift + 100 * i, shift + 100 * i + 60, i + 1) for i in range(5)))  # fmt: skip
    assert (found.launch == NONE).all()
    assert health(found) == {"clock-skew": 5}
    assert f"{abs(days):,.1f} days" in found.health[0].message


def test_an_hour_in_the_queue_is_possible() -> None:
    found = trace(call(0, 5, 1), kernel(HOUR, HOUR + 10, 1))
    assert health(found) == {} and found.launch[found.operations].tolist() == [0]


def test_times_that_cannot_be_subtracted_are_set_aside() -> None:
    century = 2**62 // 1000
    for far in (kernel(century, century + 10), kernel(-century - 10, -century)):
        found = trace(kernel(1, 2), far)
        assert health(found) == {"quarantined-time": 1} and ends(kernel(1, 2), far) == [2]
    assert health(trace(kernel(1, 2), kernel(century - 10, century - 1), kernel(-century, 10 - century))) == {}
