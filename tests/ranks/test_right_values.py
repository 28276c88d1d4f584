"""Who is named, and for how much, against the simulator with and without what makes a rank late."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import bench_stragglers
from tests.ranks.test_ranks import HEAD, codes, looked, run_of, training, wall, write
from traces.program import Program
from traces.recipe import parse
from traces.simulate import simulate

NESTED = """
kernel share 100us grid=24 block=512 "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
thread main:
  op aten::empty 4us
  steps 6 from=1:
    loader 100us
    {late}
    repeat 3:
      op aten::mm 6us 2us:
        launch gemm
    rank 0,1:
      collective share {first} 8MiB group=tp0 ranks=0,1
    rank 2,3:
      collective share 100us 8MiB group=tp1 ranks=2,3
    op aten::mm 6us 2us:
      launch gemm
    rank 0,2:
      collective reduce 400us 16MiB group=dp0 ranks=0,2
    rank 1,3:
      collective reduce 400us 16MiB group=dp1 ranks=1,3
    op aten::item 3us 1us:
      copy d2h pinned 4B 1200ns
      sync stream=7
"""


def nested(late: str = "python 1us", first: str = "100us") -> Program:
    """Four ranks: tensor parallel in pairs 0-1 and 2-3, data parallel 0-2 and 1-3."""
    return simulate(parse((HEAD + NESTED).format(ranks=4, extra="1ms", late=late, first=first), "nested"))


def test_partners_that_wait_for_the_late_rank_are_not_accused_with_it(tmp_path: Path) -> None:
    """Rank 1 keeps 0 waiting, which then comes late to 2."""
    slow = nested("rank 1:\n      loader 1ms")
    (straggler,) = run_of(write(slow, tmp_path / "run")).stragglers
    assert (straggler.ranks, straggler.phase) == ((1,), "dataloader")
    assert straggler.cost_ns == pytest.approx(wall(slow) - wall(nested()), rel=0.03)


def test_a_slow_link_is_no_late_rank(tmp_path: Path) -> None:
    """The first pair moves 8 MiB in 600 µs, the second in 100 µs: 14.0 and 83.9 GB/s."""
    advice = looked(write(nested(first="600us"), tmp_path / "run"))
    assert advice.ranks is not None and advice.ranks.stragglers == ()
    (link,) = (note.message for note in advice.health if note.code == "slow-link")
    assert "tp0" in link and "(ranks 0, 1)" in link and "14.0 GB/s" in link and "83.9 GB/s" in link
    assert "slow-link" not in codes(looked(write(nested(), tmp_path / "even")))


def test_of_many_collectives_whole_steps_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four steps of two collectives each, 1 ms late in every one; every other step is kept."""
    folder = write(training(steps=64, slow=2, phase="loader"), tmp_path / "run")
    monkeypatch.setattr("gpu_trace_advisor.advice.across_ranks.budget", lambda ranks: 70)
    run = run_of(folder, jobs=1)
    assert run.stride == 2 and {meeting.number % 4 in (0, 1, 2, 3) for meeting in run.meetings} == {True}
    (straggler,) = run.stragglers
    assert (straggler.ranks, straggler.phase) == ((2,), "dataloader")
    assert straggler.cost_ns == pytest.approx(64_000_000, rel=0.03)


def test_waiting_and_moving_add_up_where_streams_overlap(tmp_path: Path) -> None:
    recipe = HEAD.format(ranks=2, extra="1ms") + (
        "thread main:\n  steps 5:\n    rank 1:\n      loader 1ms\n    op aten::mm 6us 2us:\n      launch gemm\n"
        "    collective reduce 400us 16MiB stream=20 group=a ranks=0,1\n"
        "    collective reduce 700us 16MiB stream=21 group=b ranks=0,1\n"
        "    sync stream=20\n    sync stream=21\n"
    )
    run = run_of(write(simulate(parse(recipe, "two")), tmp_path / "run"))
    for row in run.rows:
        assert row.waiting_ns + row.moving_ns == row.communication_ns
    assert run.rows[0].waiting_ns == pytest.approx(5 * 1_000_000, rel=0.25)


def test_a_file_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    """Its collectives come a quarter later each time than those of the others."""
    folder = write(training(ranks=4, steps=12), tmp_path / "run")
    path = folder / "rank3.json"
    plain = json.loads(path.read_text(encoding="utf-8"))
    for event in plain["traceEvents"]:
        if "ts" in event:
            event["ts"] = round(event["ts"] * 1.24, 3)
    path.write_text(json.dumps(plain), encoding="utf-8")
    advice = looked(folder)
    assert advice.ranks is not None and [row.rank for row in advice.ranks.rows] == [0, 1, 2]
    assert any(note.code == "mixed-ranks" and "rank3.json" in note.message for note in advice.health)
    assert advice.ranks.stragglers == ()


@pytest.mark.parametrize("name", list(bench_stragglers.EQUAL))
def test_equal_ranks_are_accused_by_accident_only(name: str) -> None:
    """Of 60 runs 3 or more are accused once in about 40 tables where it is 1 %."""
    noise = bench_stragglers.EQUAL[name]
    assert sum(bool(bench_stragglers.accused(noise(np.random.default_rng(1000 + seed)))) for seed in range(60)) <= 2


@pytest.mark.parametrize("name", list(bench_stragglers.SLOW))
def test_a_rank_that_is_three_percent_slower_is_found(name: str) -> None:
    noise, late = bench_stragglers.SLOW[name]
    found = 0
    for seed in range(60):
        work = noise(np.random.default_rng(1000 + seed))
        found += bench_stragglers.accused(work) >= set(range(work.shape[2] - late, work.shape[2]))
    assert found >= 54
