"""Several cycles of the profiler's schedule in one folder, against the simulator's truth for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.parallel.advise import look_at

from tests.ranks.test_ranks import looked, training
from traces.program import Program
from traces.write_kineto import BASE_NS, text

CYCLE_NS = 10**9  # from one cycle's start to the next one's


def file_of(
    program: Program, rank: int, cycle: int, *, numbers: str = "steps", ranks: bool = True, ahead: int = 0
) -> str:
    """A rank's recording in a cycle: its steps go on from those of the cycle before, or have no markers."""
    data = text(program, rank)
    data = data.replace(str(BASE_NS), str(BASE_NS + cycle * CYCLE_NS + ahead))
    if numbers == "steps":
        data = re.sub(r"ProfilerStep#(\d+)", lambda m: f"ProfilerStep#{int(m[1]) + 20 * cycle}", data)
    else:
        data = re.sub(r"ProfilerStep#\d+", "step", data)
    return data if ranks else re.sub(r'"distributedInfo": \{.*\},\n', "", data)


@pytest.mark.parametrize("numbers", ["steps", "none"])
@pytest.mark.parametrize("ahead", [0, 14 * 10**9])
def test_the_last_cycle_is_compared(numbers: str, ahead: int, tmp_path: Path) -> None:
    """Rank 1 is slow in the first cycle, rank 2 in the last; a clock that is far ahead puts no rank into another cycle."""
    for cycle, slow in enumerate((1, None, 2)):
        program = training(slow=slow, phase="loader")
        for rank in range(4):
            data = file_of(program, rank, cycle, numbers=numbers, ahead=ahead * (rank == 3))
            (tmp_path / f"host_{rank}.{1_700_000_000_000 + cycle}.pt.trace.json").write_text(data, encoding="utf-8")
    advice = looked(tmp_path)
    assert advice.ranks is not None
    assert [(row.rank, f"{1_700_000_000_002}" in row.file) for row in advice.ranks.rows] == [
        (r, True) for r in range(4)
    ]
    assert [straggler.ranks for straggler in advice.ranks.stragglers] == [(2,)]
    notes = {note.code: note.message for note in advice.health}
    assert notes["cycles"].startswith("3 cycles of recording") and "duplicate-ranks" not in notes


def test_a_cycle_that_all_ranks_have_comes_before_a_later_one(tmp_path: Path) -> None:
    for cycle, slow in enumerate((1, 2)):
        for rank in range(4):
            if (cycle, rank) != (1, 3):
                data = file_of(training(slow=slow, phase="loader"), rank, cycle)
                (tmp_path / f"rank{rank}-{cycle}.json").write_text(data, encoding="utf-8")
    advice = looked(tmp_path)
    assert advice.ranks is not None and advice.ranks.missing == ()
    assert [row.file for row in advice.ranks.rows] == [f"rank{rank}-0.json" for rank in range(4)]
    assert [straggler.ranks for straggler in advice.ranks.stragglers] == [(1,)]


def test_cycles_of_ranks_without_numbers_are_told_by_the_names_of_workers(tmp_path: Path) -> None:
    for cycle, slow in enumerate((1, 2)):
        for rank, worker in enumerate("abcd"):
            data = file_of(training(slow=slow, phase="loader"), rank, cycle, ranks=False)
            (tmp_path / f"{worker}.{1_700_000_000_000 + cycle}.pt.trace.json").write_text(data, encoding="utf-8")
    advice = looked(tmp_path)
    assert advice.ranks is not None and [row.rank for row in advice.ranks.rows] == [0, 1, 2, 3]
    assert [straggler.ranks for straggler in advice.ranks.stragglers] == [(2,)]


def test_cycles_of_one_process_are_no_ranks(tmp_path: Path) -> None:
    for cycle in range(3):
        data = file_of(training(), 0, cycle, ranks=False)
        (tmp_path / f"worker0.{1_700_000_000_000 + cycle}.pt.trace.json").write_text(data, encoding="utf-8")
    assert look_at([str(tmp_path)], Request()).advice.ranks is None
