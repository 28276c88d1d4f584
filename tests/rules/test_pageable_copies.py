"""Pinning gives something to copies that come again, and nothing to those that come once.

A repeat of these programs is a copy of 100 µs (1 MB) from pageable memory, which the host issues and does not wait for, then
six kernels of 50 µs, launched while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_trace_advisor.rulekit.rule import Finding

from tests.build import Event, advice, call, copy, frame, kernel, op, step

REPEAT = 500
SIZE = 1_000_000
PROGRAM = frame("main.py(1): main", 0, 4_000)


def repeat(at: float, first: int, copies: int = 1, name: str = "kernel") -> Iterator[Event]:
    for i in range(copies):
        yield call(at + 100 * i, at + 100 * i + 5, first + i, "cudaMemcpyAsync")
        yield copy(at + 100 * i + 10, at + 100 * i + 110, first + i, bytes=SIZE)
    at += 100 * copies - 90
    for i in range(6):
        yield call(at + 10 * i, at + 10 * i + 5, first + copies + i)
        yield kernel(at + 100 + 50 * i, at + 150 + 50 * i, first + copies + i, name=f"{name}_{i}")


def loads(count: int, first: int) -> Iterator[Event]:
    """So many copies of 100 µs, one after the other."""
    for i in range(count):
        yield call(110 * i, 110 * i + 5, first + i, "cudaMemcpyAsync")
        yield copy(110 * i + 10, 110 * i + 110, first + i, bytes=SIZE)


def found(*events: Event, window: str | None = None) -> Finding:
    (finding,) = [
        finding for finding in advice(PROGRAM, *events, window=window).findings if finding.rule == "h2d-pageable"
    ]
    return finding


def named(finding: Finding) -> dict[str, int]:
    return {part.cause: part.ns for part in finding.named}


def test_copies_before_the_first_kernel_are_a_load() -> None:
    kernels = [event for i in range(5) for event in repeat(1_200 + REPEAT * i, 100 + 20 * i, copies=0)]
    finding = found(*loads(10, 1), *kernels, window="gpu")
    assert named(finding) == {"exposed-copy": 10 * 100_000}
    assert finding.saving_ns is None
    assert "before the first kernel" in finding.message
    assert "pin" not in finding.how.lower()
    assert "DataLoader" not in finding.how


def test_a_load_is_no_part_of_what_pinning_gives_to_the_repeats() -> None:
    repeats = [event for i in range(5) for event in repeat(1_200 + REPEAT * i, 100 + 20 * i)]
    finding = found(*loads(10, 1), *repeats, window="gpu")
    assert named(finding)["exposed-copy"] == 5 * 100_000
    assert finding.saving_ns is not None
    assert finding.saving_ns[1] <= finding.ns < 10 * 100_000


def test_a_step_that_loads_beside_its_input_counts_for_nothing() -> None:
    """The first of four marked steps copies 11 times as much as the others."""
    events, at = list[Event](), 0
    for i, copies in enumerate((11, 1, 1, 1)):
        length = 400 + 100 * copies
        events += [step(i, at, at + length), op("aten::to", at + 1, at + 2), *repeat(at + 5, 100 * (i + 1), copies)]
        at += length
    assert named(found(*events))["exposed-copy"] == 3 * 100_000


def test_kernels_that_never_repeat_leave_copies_unpriced() -> None:
    events = [event for i in range(2) for event in repeat(REPEAT * i, 1 + 20 * i, name=f"part{i}")]
    finding = found(*events)
    assert finding.saving_ns is None
    assert "copied once" in finding.unpriced


def test_a_loader_is_named_only_where_there_is_one() -> None:
    events = [event for i in range(5) for event in repeat(REPEAT * i, 100 + 20 * i)]
    events.append(op("aten::to", 1, 2))
    assert "DataLoader" not in found(*events).how
    assert "DataLoader(pin_memory=True)" in found(*events, op("enumerate(DataLoader)#_MultiProcessing", 3, 4)).how
