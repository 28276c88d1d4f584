"""Several ranks of one run: matched, aligned, compared and replayed together, against what the simulator knows."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.device_window import views
from gpu_trace_advisor.analysis.rank_summary import MOST, budget, summarise
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import NothingToAnalyse, UnreadableTrace
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.ranks.clocks import align
from gpu_trace_advisor.ranks.collective_kinds import bus_factor, dtype_bytes, kind_of
from gpu_trace_advisor.ranks.model import PHASES, RankSet
from gpu_trace_advisor.ranks.stragglers import Arrivals, late_ones, late_ranks
from gpu_trace_advisor.report.text.ranks import lines

from tests import build
from traces.program import Program
from traces.recipe import parse
from traces.simulate import simulate
from traces.write_kineto import BASE_NS, text

HEAD = """
device H100
ranks {ranks}
launch call=6us latency=5us gap=1us return=3us event_call=700ns event_latency=1.5us
kernel gemm 200us grid=528 block=384 "gemm_kernel"
kernel extra {extra} grid=528 block=384 "more_gemm_kernel"
kernel reduce 400us grid=24 block=512 "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
kernel pass 20us grid=24 block=512 "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
"""
TRAINING = """
thread main:
  op aten::empty 4us
  steps {steps} from=1:
    loader 100us
    {loader}
    repeat 4:
      op aten::mm 6us 2us:
        launch gemm
    {compute}
    {host}
    op c10d::allreduce_ 6us 2us:
      collective reduce 400us 16MiB
    op aten::mm 6us 2us:
      launch gemm
    op c10d::allreduce_ 6us 2us:
      collective reduce 400us 16MiB
    op aten::item 3us 1us:
      copy d2h pinned 4B 1200ns
      sync stream=7
"""


def training(
    ranks: int = 4, steps: int = 6, *, slow: int | None = None, phase: str = "", extra: str = "1ms"
) -> Program:
    """Data-parallel training; one rank needs `extra` longer in a phase of every step."""
    lines = {"loader": "python 1us", "compute": "python 1us", "host": "python 1us"}
    if slow is not None:
        body = {"loader": f"loader {extra}", "compute": "launch extra", "host": f"op aten::sort {extra}"}[phase]
        lines[phase] = f"rank {slow}:\n      {body}"
    recipe = (HEAD + TRAINING).format(ranks=ranks, steps=steps, extra=extra, **lines)
    return simulate(parse(recipe, f"training-{phase}"))


def write(
    program: Program, folder: Path, *, clocks: Mapping[int, int] | None = None, baseless: Collection[int] = (),
    left_out: Collection[int] = (),
) -> Path:  # fmt: skip
    """The ranks as files: with clocks that many ns ahead, without a base, or not at all."""
    folder.mkdir(exist_ok=True)
    for rank in range(len(program.ranks)):
        if rank in left_out:
            continue
        data = text(program, rank)
        base = f'"baseTimeNanoseconds": {BASE_NS}'
        assert base in data
        if rank in baseless:
            data = data.replace(f"{base},", "")
        elif clocks:
            data = data.replace(base, f'"baseTimeNanoseconds": {BASE_NS + clocks.get(rank, 0)}')
        (folder / f"rank{rank}.json").write_text(data, encoding="utf-8")
    return folder


def looked(folder: Path | str, **more: Any) -> Advice:
    return look_at([str(folder)], Request(), **more).advice


def run_of(folder: Path | str, **more: Any) -> RankSet:
    run = looked(folder, **more).ranks
    assert run is not None
    return run


def wall(program: Program) -> int:
    """From the first step's begin to the end of the last operation of any rank."""
    return max(max(op.end for op in rank.operations) for rank in program.ranks) - program.ranks[0].steps[0].start


def codes(advice: Advice) -> set[str]:
    return {note.code for note in advice.health}


@pytest.mark.parametrize(("phase", "found"), [("loader", "dataloader"), ("compute", "compute"), ("host", "host")])
def test_a_straggler_is_found_with_its_cause_and_what_it_costs(phase: str, found: str, tmp_path: Path) -> None:
    slow = training(slow=2, phase=phase)
    run = run_of(write(slow, tmp_path / "run"))
    (straggler,) = run.stragglers
    assert (straggler.ranks, straggler.phase) == ((2,), found)
    assert run.slowest == 2
    gain = wall(slow) - wall(training())
    assert 0.88 * gain <= straggler.cost_ns <= 1.03 * gain
    assert straggler.waited_ns == pytest.approx(3 * gain, rel=0.03)
    assert (straggler.steps, straggler.of_steps) == (6, 6)
    assert straggler.how == "replay" and straggler.saving_ns == (straggler.cost_ns, straggler.cost_ns)
    assert straggler.p <= 0.01 and straggler.test == "steady"


def test_who_is_no_slower_than_the_others_is_no_straggler(tmp_path: Path) -> None:
    advice = looked(write(training(), tmp_path / "run"))
    assert advice.ranks is not None and advice.ranks.stragglers == ()
    assert advice.ranks.waiting_ns < 0.01 * advice.devices[0].wall_ns


def arrivals(start: np.ndarray[Any, np.dtype[np.int64]]) -> Arrivals:
    """[collectives, ranks] µs at which they come; each collective ends 100 µs after the last one."""
    count, ranks = start.shape
    end = np.repeat(start.max(axis=1) + 100, ranks)
    rank, instance = np.tile(np.arange(ranks), count), np.repeat(np.arange(count), ranks)
    return Arrivals(
        rank, instance, start.ravel() * 1000, end * 1000, start.ravel() * 1000, instance,
        np.ones(count, np.bool_), np.arange(count) * ranks, np.ones(count, np.bool_),
    )  # fmt: skip


def late_in(start: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[tuple[int, ...], int]]:
    """Stragglers and their cost in µs where the wall is 1 ms a collective, each in a step of its own."""
    a = arrivals(start + 1000 * np.arange(len(start))[:, None])
    found = late_ranks(a, late_ones(a), start.shape[1], 1_000_000 * len(start))
    return [(late.ranks, late.cost_ns // 1000) for late in found]


def test_ranks_that_take_turns_are_no_stragglers() -> None:
    """Of two ranks one is 100 µs later than the other ten times and the other nine times, which is 5 % of the wall each."""
    turns = np.array([[100 * (i % 2 == 0), 100 * (i % 2 == 1)] for i in range(19)], np.int64)
    assert late_in(turns) == []
    always = turns + np.array([0, 110])  # rank 1: 10 µs later ten times, 210 µs nine times
    assert late_in(always) == [((1,), 10 * 10 + 9 * 210)]
    once = np.where(np.arange(19)[:, None] == 7, [[0, 900]], turns // 5)  # 900 µs, beside turns of 20 µs
    assert late_in(once) == []


def test_nobody_waits_for_who_comes_to_a_broadcast_after_the_others_left() -> None:
    """Rank 0 sends: 1 waits for it from 0 to 300 µs, and both have left before 2 comes at 900 µs."""
    start, end = np.array([300, 0, 900]), np.array([400, 400, 1000])
    a = Arrivals(
        np.arange(3), np.zeros(3, np.int64), start, end, start, np.zeros(3, np.int64),
        np.array([True]), np.array([0]), np.array([False]),
    )  # fmt: skip
    assert a.wait_ns.tolist() == [0, 300, 0]
    late = late_ones(a)
    assert late.ranks == ((0,),) and late.cost_ns.tolist() == [300] and late.behind_ns.tolist() == [300, 0, 0]
    # No rank leaves an all-reduce before the last one has come, whatever clocks say.
    assert replace(a, together=np.array([True])).wait_ns.tolist() == [100, 400, 0]


@pytest.mark.parametrize(("ranks", "found"), [(2, 30), (4, 70), (8, 85)])
def test_equal_ranks_whose_work_varies_are_not_accused(ranks: int, found: int) -> None:
    """Arrivals that vary by 10 % of the wall: hardly one in a hundred is called; 15 % later on the average stands out, less
    among few ranks, which tell little about whether load lasts from step to step."""
    rng = np.random.default_rng(7)
    draws = [rng.normal(500, 100, (20, ranks)).astype(np.int64) for _ in range(100)]
    assert sum(bool(late_in(start)) for start in draws) <= 2
    late = [late_in(start + np.array([0] * (ranks - 1) + [150])) for start in draws]
    assert sum([slow for slow, _ in one] == [(ranks - 1,)] for one in late) >= found


def test_two_ranks_of_a_slow_node_are_one_straggler(tmp_path: Path) -> None:
    recipe = (HEAD + TRAINING).format(
        ranks=8, steps=5, extra="1ms", loader="rank 6,7:\n      loader 1ms", compute="python 1us", host="python 1us"
    )
    (straggler,) = run_of(write(simulate(parse(recipe, "node")), tmp_path / "run")).stragglers
    assert straggler.ranks == (6, 7)


def test_waiting_and_moving_add_up_to_exposed_communication(tmp_path: Path) -> None:
    run = run_of(write(training(slow=1, phase="loader"), tmp_path / "run"))
    for row in run.rows:
        assert row.waiting_ns + row.moving_ns == row.communication_ns
    assert run.rows[1].waiting_ns == 0
    assert all(row.moving_ns == pytest.approx(12 * 400_000, rel=0.01) for row in run.rows)
    (group,) = run.groups
    assert (group.kind, group.count, group.bytes, group.ranks) == ("allreduce", 12, 16 << 20, 4)
    assert group.bus_bandwidth == pytest.approx(2 * 3 / 4 * (16 << 20) / 400e-6)
    assert group.link == 450e9 and group.link_name == "NVLink"


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_is_recorded_before_the_first_collective_counts_too(steps: int, tmp_path: Path) -> None:
    """Rank 3 reads 4 ms longer in each step, all of it in the recording."""
    slow = training(steps=steps, slow=3, phase="loader", extra="4ms")
    (straggler,) = run_of(write(slow, tmp_path / "run")).stragglers
    assert (straggler.ranks, straggler.phase) == ((3,), "dataloader")
    assert straggler.cost_ns == pytest.approx(wall(slow) - wall(training(steps=steps)), rel=0.02)


def test_what_comes_from_before_the_recording_is_charged_to_nobody(tmp_path: Path) -> None:
    """Rank 3 begins its only step 5 ms after the others."""
    recipe = (HEAD + TRAINING).format(ranks=4, steps=1, extra="1ms", **dict.fromkeys(("loader", "compute", "host"), ""))
    late = recipe.replace("  op aten::empty 4us", "  rank 3:\n    python 5ms\n  op aten::empty 4us")
    advice = looked(write(simulate(parse(late, "late")), tmp_path / "run"))
    assert advice.ranks is not None
    assert advice.ranks.skew_before_ns == pytest.approx(5_000_000, rel=0.01)
    assert advice.ranks.meetings[0].flag == "first" and advice.ranks.meetings[0].cost_ns == 0
    assert advice.ranks.stragglers == () and "skew-before" in codes(advice)


@pytest.mark.parametrize("clocks", [{1: 250_000_000}, {0: -3_000_000, 2: 7_000}, {3: 86_400_000_000_000}])
def test_skewed_clocks_are_corrected_by_collectives(clocks: dict[int, int], tmp_path: Path) -> None:
    program = training(slow=2, phase="loader")
    straight = run_of(write(program, tmp_path / "straight"))
    advice = looked(write(program, tmp_path / "skewed", clocks=clocks))
    skewed = advice.ranks
    assert skewed is not None and "rank-clocks" in codes(advice)
    zero = skewed.rows[0].offset_ns + clocks.get(0, 0)
    for row in skewed.rows:
        assert row.offset_ns + clocks.get(row.rank, 0) == pytest.approx(zero, abs=1_000)
        assert row.offset_error_ns is not None and row.offset_error_ns <= 1_000
    assert [s.ranks for s in skewed.stragglers] == [s.ranks for s in straight.stragglers]
    assert skewed.stragglers[0].cost_ns == pytest.approx(straight.stragglers[0].cost_ns, abs=20_000)


def test_clocks_that_nobody_tells_are_found_by_collectives(tmp_path: Path) -> None:
    run = run_of(write(training(slow=2, phase="compute"), tmp_path / "run", baseless=range(4)))
    assert run.aligned == "collectives"
    assert run.stragglers[0].ranks == (2,)


def test_what_does_not_end_together_is_no_one_collective(tmp_path: Path) -> None:
    """Ranks 0 and 1 scatter among themselves, 2 and 3 too, on one stream without names of groups: 2 makes 3 wait, not 0."""
    scatter = {0: (100, 200), 1: (100, 200), 2: (600, 700), 3: (100, 700)}
    for rank, (come, end) in scatter.items():
        events: list[dict[str, Any]] = []
        for i in range(12):
            for kind, at, until in (("AllReduce", 0, 50), ("ReduceScatter", come, end), ("AllGather", 800, 850)):
                name, start = f"ncclDevKernel_{kind}_RING_LL", 1000 * i + at
                events += [build.call(start - 10, start - 5, len(events) + 1)]
                events += [build.kernel(start, 1000 * i + until, len(events), name, stream=20)]
        info = {"distributedInfo": {"rank": rank, "world_size": 4}, "baseTimeNanoseconds": BASE_NS}
        build.written(tmp_path / f"rank{rank}.json", *events, **info)
    advice = looked(tmp_path)
    assert advice.ranks is not None and advice.ranks.stragglers == () and advice.ranks.waiting_ns == 0
    assert {m.kind for m in advice.ranks.meetings if m.flag == "apart"} == {"reducescatter"}
    (note,) = (note for note in advice.health if note.code == "apart-collectives")
    assert note.message.startswith("12 of 36 collectives do not end together on their ranks")
    assert any("unknown in part" in line for line in lines(advice.ranks))


def test_ranks_without_a_common_clock_or_collective_are_not_aligned(tmp_path: Path) -> None:
    recipe = (
        HEAD.format(ranks=2, extra="1ms") + "thread main:\n  steps 3:\n    op aten::mm 6us 2us:\n      launch gemm\n"
    )
    advice = looked(write(simulate(parse(recipe, "apart")), tmp_path / "run", baseless=[0, 1]))
    assert advice.ranks is not None and advice.ranks.aligned == "not"
    assert {"not-aligned", "no-collectives"} <= codes(advice)


def test_missing_doubled_strange_and_broken_ranks_are_named(tmp_path: Path) -> None:
    folder = write(training(slow=2, phase="loader"), tmp_path / "run", left_out=[1])
    (folder / "again.json").write_text((folder / "rank3.json").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "broken.json").write_text("not a trace", encoding="utf-8")
    strange = (folder / "rank0.json").read_text(encoding="utf-8").replace('"world_size": 4', '"world_size": 64')
    (folder / "strange.json").write_text(strange, encoding="utf-8")
    advice = looked(folder)
    run = advice.ranks
    assert run is not None and run.missing == (1,) and run.world == 4
    assert [row.rank for row in run.rows] == [0, 2, 3]
    notes = {note.code: note.message for note in advice.health}
    assert "strange.json" in notes["mixed-ranks"]
    assert re.search(r"rank3|again", notes["duplicate-ranks"])
    assert ": 1;" in notes["missing-ranks"]
    assert any("broken.json" in error for error in advice.errors)
    assert run.stragglers[0].ranks == (2,)


def test_ranks_are_told_by_name_and_else_by_order(tmp_path: Path) -> None:
    folder = write(training(ranks=2), tmp_path / "run")
    for i, name in enumerate(("b.json", "a.json")):
        data = (folder / f"rank{i}.json").read_text(encoding="utf-8")
        data = re.sub(r'"distributedInfo": \{.*\},\n', "", data)
        (folder / f"rank{i}.json").write_text(data, encoding="utf-8")
        (tmp_path / name).write_text(data, encoding="utf-8")
    assert [row.file for row in run_of(folder).rows] == ["rank0.json", "rank1.json"]
    found = look_at([str(tmp_path / "a.json"), str(tmp_path / "b.json")], Request()).advice
    assert found.ranks is not None and [row.file for row in found.ranks.rows] == ["a.json", "b.json"]
    assert "rank-by-order" in codes(found)


def test_files_of_several_folders_may_have_one_name(tmp_path: Path) -> None:
    """Each on a clock of its own, and a rank that comes twice is no other rank."""
    first = write(training(slow=2, phase="loader"), tmp_path / "first", clocks={1: 3_000_000, 2: -5_000_000})
    second = write(training(), tmp_path / "second", clocks=dict.fromkeys(range(4), 10**12))
    twice = look_at([str(first), str(second)], Request()).advice
    assert twice.ranks is not None and [row.rank for row in twice.ranks.rows] == [0, 1, 2, 3]
    assert "duplicate-ranks" in codes(twice) and "rank-by-order" not in codes(twice)
    for rank in range(4):
        data = (first / f"rank{rank}.json").read_text(encoding="utf-8")
        (tmp_path / f"{rank}").mkdir()
        (tmp_path / f"{rank}" / "trace.json").write_text(
            re.sub(r'"distributedInfo": \{.*\},\n', "", data), encoding="utf-8"
        )
    run = look_at([str(tmp_path / f"{rank}") for rank in range(4)], Request()).advice.ranks
    assert run is not None and run.aligned == "clock and collectives"
    assert [row.offset_ns for row in run.rows] == pytest.approx([0, -3_000_000, 5_000_000, 0], abs=5_000)
    assert run.stragglers[0].ranks == (2,)


def on_own_devices(folder: Path, *, stray: bool) -> Path:
    """Each rank's work on the device of its number; with `stray`, a copy on device 0 before it, as of a second context."""
    for path in folder.iterdir():
        rank, plain = int(path.stem[-1]), json.loads(path.read_text(encoding="utf-8"))
        for e in plain["traceEvents"]:
            if "device" in e.get("args", {}):
                e["pid"] = e["args"]["device"] = rank
        if stray and rank:
            plain["traceEvents"].append(build.copy(1, 3, what="HtoD (Pinned -> Device)", bytes=8))
        path.write_text(json.dumps(plain), encoding="utf-8")
    return folder


def test_a_device_beside_that_of_the_collectives_is_no_rank(tmp_path: Path) -> None:
    """Ranks that touch device 0 before they choose their own keep their numbers."""
    advice = looked(on_own_devices(write(training(slow=2, phase="loader"), tmp_path / "run"), stray=True))
    assert advice.ranks is not None
    assert [(row.rank, row.device) for row in advice.ranks.rows] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert advice.ranks.stragglers[0].ranks == (2,)
    notes = {note.code: note.message for note in advice.health}
    assert notes["devices-beside"].endswith("device 0 of rank 1, device 0 of rank 2, device 0 of rank 3")


@pytest.mark.parametrize("jobs", [None, 2])
def test_a_device_that_only_one_rank_has(jobs: int | None, tmp_path: Path) -> None:
    folder = on_own_devices(write(training(), tmp_path / "run"), stray=False)
    advice = look_at([str(folder)], Request(device=2), jobs=jobs).advice
    assert [(device.rank, device.device) for device in advice.devices] == [(2, 2)]
    assert len(advice.errors) == 3 and "rank0.json: no operations on device 2" in advice.errors[0]
    with pytest.raises(NothingToAnalyse, match="no operations on device 9"):
        look_at([str(folder)], Request(device=9), jobs=jobs)


def test_a_recording_that_began_later_is_matched_by_time(tmp_path: Path) -> None:
    """Without sequence numbers the order of occurrence is off by what one rank did not record."""
    folder = write(training(ranks=2, slow=1, phase="loader"), tmp_path / "run")
    plain = json.loads((folder / "rank0.json").read_text(encoding="utf-8"))
    gone = [e for e in plain["traceEvents"] if "nccl" in e.get("name", "")][:3]
    plain["traceEvents"] = [e for e in plain["traceEvents"] if e not in gone]
    (folder / "rank0.json").write_text(json.dumps(plain), encoding="utf-8")
    run = run_of(folder)
    assert run.matched == 9
    assert all(m.end_ns - m.start_ns - m.skew_ns == pytest.approx(400_000, abs=2_000) for m in run.meetings)


@pytest.mark.parametrize("steps", [1, 8])
def test_what_happens_once_is_told_with_its_cause_and_accuses_nobody(steps: int, tmp_path: Path) -> None:
    """Before the second collective of the last step but two, or of the only one, rank 2 loads data for 5 ms."""
    meet = "op c10d::allreduce_ 6us 2us:\n      collective reduce 400us 16MiB\n    " + (
        "op aten::item 3us 1us:\n      copy d2h pinned 4B 1200ns\n      sync stream=7\n"
    )
    body = "  steps {n} from={first}:\n    loader 100us\n    " + meet + "    {once}" + meet
    at = max(steps - 2, 1)
    usual = body.format(n=steps - 3, first=1, once="") if steps > 1 else ""
    late = body.format(n=1, first=at, once="rank 2:\n      loader 5ms\n    ")
    after = body.format(n=2, first=at + 1, once="") if steps > 1 else ""
    whole = HEAD.format(ranks=4, extra="1ms") + "thread main:\n  op aten::empty 4us\n" + usual + late + after
    run = run_of(write(simulate(parse(whole, "once")), tmp_path / "run"))
    assert not any(one.lasting for one in run.stragglers)
    told = " ".join(lines(run))
    if steps > 1:
        (once,) = run.one_offs
        assert (once.ranks, once.steps, once.times, once.phase) == ((2,), (at,), 1, "dataloader")
        assert once.cost_ns == pytest.approx(5_000_000, rel=0.03) == once.phase_ns
        assert f"Once, in step {at}, rank 2 comes" in told and "no straggler" in told and "turns" not in told
    else:
        assert "In this one step rank 2 keeps" in told and "one step cannot tell" in told
        bare = replace(run, stragglers=tuple(replace(one, of_steps=0) for one in run.stragglers))
        assert "In this recording, which has no steps, rank 2 keeps" in " ".join(lines(bare))


@pytest.mark.parametrize("baseless", [(), (0, 1)], ids=["clocks", "no-clocks"])
@pytest.mark.parametrize("named", [True, False], ids=["steps", "no-steps"])
def test_a_recording_that_began_many_collectives_later(named: bool, baseless: tuple[int, ...], tmp_path: Path) -> None:
    """Twenty collectives a step, without numbers; rank 0 lacks the first 27 of 100. Each comes 7 µs further from the one
    before than that one, so that their distances alone tell which is which."""
    passes = "".join(
        f"  op aten::sort {100 + 7 * i}us\n  op c10d::allreduce_ 6us 2us:\n    collective reduce 400us 16MiB\n  sync stream=20\n"
        for i in range(20)
    )
    body = "thread main:\n  op aten::empty 4us\n  steps 5 from=1:\n" + passes.replace("  ", "    ")
    folder = write(
        simulate(parse(HEAD.format(ranks=2, extra="1ms") + body, "long")), tmp_path / "run", baseless=baseless
    )
    for rank, gone in ((0, 27), (1, 0)):
        path = folder / f"rank{rank}.json"
        plain = json.loads(path.read_text(encoding="utf-8"))
        lost = [e for e in plain["traceEvents"] if "nccl" in e.get("name", "")][:gone]
        plain["traceEvents"] = [
            e for e in plain["traceEvents"] if e not in lost and (named or "ProfilerStep" not in e.get("name", ""))
        ]
        path.write_text(json.dumps(plain), encoding="utf-8")
    run = run_of(folder)
    assert run.matched == 73
    assert all(m.end_ns - m.start_ns - m.skew_ns == pytest.approx(400_000, abs=2_000) for m in run.meetings)


PIPELINE_RANK = {
    0: ["launch gemm", "collective pass 20us 1MiB name=sendrecv group=f01 ranks=0,1"],
    1: [
        "collective pass 20us 1MiB name=sendrecv group=f01 ranks=0,1", "launch gemm",
        "collective pass 20us 1MiB name=sendrecv group=f12 ranks=1,2",
    ],
    2: ["collective pass 20us 1MiB name=sendrecv group=f12 ranks=1,2", "launch gemm"],
}  # fmt: skip


def pipeline(micro: int, steps: int = 4, more: dict[int, str] | None = None) -> Program:
    """Three stages, forward and back again, one after the other; what some do `more` before each exchange."""
    lines = [HEAD.format(ranks=3, extra="1ms"), "thread main:", f"  steps {steps}:"]
    for direction in (1, -1):
        for rank, body in PIPELINE_RANK.items():
            lines += [f"    rank {rank}:", f"      repeat {micro}:"]
            turned = [line.replace("group=f", "group=b") for line in body[::-1]] if direction < 0 else body
            turned = [*([more[rank]] if more and rank in more else []), *turned]
            lines += [f"        {line}" for line in turned]
    lines += ["    op aten::item 3us 1us:", "      copy d2h pinned 4B 1200ns", "      sync stream=7"]
    return simulate(parse("\n".join(lines) + "\n", "pipeline"))


def test_a_pipeline_bubble_is_seen(tmp_path: Path) -> None:
    few, many = (run_of(write(pipeline(m), tmp_path / str(m))).pipeline for m in (2, 8))
    assert few is not None and many is not None
    assert (few.stages, few.microbatches, few.expected) == (3, 2, 0.5)
    assert (many.stages, many.microbatches, many.expected) == (3, 8, 0.2)
    assert few.bubble > many.bubble > 0
    assert few.slow_rank is None and many.slow_rank is None


@pytest.mark.parametrize(("rank", "more", "phase"), [(1, "launch gemm", "compute"), (0, "loader 1ms", "dataloader")])
def test_the_stage_that_the_others_wait_for_is_named(rank: int, more: str, phase: str, tmp_path: Path) -> None:
    """Once more for each of eight microbatches, there and back: 16 times 200 µs of product, or 1 ms of loader beside one."""
    advice = looked(write(pipeline(8, more={rank: more}), tmp_path / "run"))
    assert advice.ranks is not None and advice.ranks.stragglers == ()
    found = advice.ranks.pipeline
    assert found is not None and (found.slow_rank, found.slow_phase) == (rank, phase)
    assert found.slow_ns == pytest.approx(16 * {"compute": 200_000, "dataloader": 800_000}[phase], rel=0.1)


def test_exchanges_of_unknown_partners_move_no_clock(tmp_path: Path) -> None:
    """Batched exchanges carry no metadata, and recordings without a base say nothing of their clocks: nothing is aligned."""
    folder = write(pipeline(8), tmp_path / "run", baseless=(0, 1, 2))
    for path in folder.iterdir():
        plain = json.loads(path.read_text(encoding="utf-8"))
        for event in plain["traceEvents"]:
            for key in (
                "Collective name",
                "Group size",
                "Process Group Name",
                "Process Group Description",
                "Process Group Ranks",
            ):
                event.get("args", {}).pop(key, None)
        path.write_text(json.dumps(plain), encoding="utf-8")
    advice = looked(folder)
    assert advice.ranks is not None and advice.ranks.stragglers == ()
    assert not {"rank-clocks", "rank-drift"} & codes(advice)


def test_overlap_that_could_be_better_is_priced_for_the_whole_job(tmp_path: Path) -> None:
    run = run_of(write(training(), tmp_path / "run"))
    assert run.overlap is not None and run.overlap.saving_ns is not None
    low, high = run.overlap.saving_ns
    assert 0 < low <= high <= run.overlap.exposed_ns * 1.05


def test_a_summary_is_small_and_bounded(tmp_path: Path) -> None:
    for steps, most in ((4, MOST), (400, 64)):
        folder = write(training(ranks=2, steps=steps), tmp_path / str(steps))
        (view,), _ = views(read(folder / "rank0.json"), Request())
        summary = summarise(view, most)
        assert len(summary.collectives) <= most
        assert len(pickle.dumps(summary)) < 24_000
    assert summary.stride > 1 and budget(8) == MOST and budget(1_000_000) == 64


def test_more_steps_than_a_summary_keeps_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (straggler,) = run_of(write(training(ranks=2, steps=70, slow=1, phase="loader"), tmp_path / "run")).stragglers
    assert (straggler.steps, straggler.of_steps) == (70, 70)
    folder = write(pipeline(8, steps=70), tmp_path / "pipeline")
    whole = run_of(folder).pipeline
    assert whole is not None and whole.microbatches == 8
    monkeypatch.setattr(
        "gpu_trace_advisor.advice.across_ranks.budget", lambda ranks: 600
    )  # of 1,120 exchanges on each side
    part = run_of(folder, jobs=1)
    assert part.stride > 1 and part.pipeline is not None and part.pipeline.microbatches == 8


def test_sampled_collectives_still_tell_the_straggler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(training(steps=64, slow=2, phase="loader"), tmp_path / "run")
    whole = run_of(folder)
    monkeypatch.setattr("gpu_trace_advisor.advice.across_ranks.budget", lambda ranks: 70)
    part = run_of(folder, jobs=1)
    assert part.stride == 2
    assert part.stragglers[0].ranks == (2,)
    assert part.stragglers[0].cost_ns == pytest.approx(2 * whole.stragglers[0].cost_ns, rel=0.1) or part.stragglers[
        0
    ].cost_ns == pytest.approx(whole.stragglers[0].cost_ns, rel=0.1)


@pytest.mark.filterwarnings("ignore")
def test_an_object_store_is_read(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    folder = write(training(slow=2, phase="loader"), tmp_path / "run")
    for file in folder.iterdir():
        store.pipe(f"/bucket/run/{file.name}", file.read_bytes())
    store.pipe("/bucket/run/notes.txt", b"no trace")
    for given in ("memory://bucket/run", "memory://bucket/run/rank*.json"):
        run = run_of(given)
        assert [row.file for row in run.rows] == [f"rank{i}.json" for i in range(4)]
        assert run.stragglers[0].ranks == (2,)
    with pytest.raises(UnreadableTrace, match=r"memory://bucket/none\.json: cannot be fetched: no such file"):
        looked("memory://bucket/none.json")


def test_a_server_that_does_not_answer_is_said_in_the_systems_words() -> None:
    with socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/run.json"
        with pytest.raises(UnreadableTrace, match=f"run.json: cannot be fetched: {os.strerror(errno.ECONNREFUSED)}"):
            looked(url)


def test_a_url_is_downloaded_and_credentials_are_not_shown(tmp_path: Path) -> None:
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    folder = write(training(ranks=2), tmp_path / "run")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        at = f"127.0.0.1:{server.server_port}"
        assert looked(f"http://{at}/rank1.json").devices[0].rank == 1
        with pytest.raises(UnreadableTrace) as error:
            looked(f"http://me:secret@{at}/none.json?token=secret")
        server.shutdown()
    assert "secret" not in str(error.value) and "none.json" in str(error.value)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_finds_the_same_though_a_worker_is_killed(tmp_path: Path) -> None:
    from threading import Timer

    from distributed import LocalCluster

    folder = write(training(ranks=8, slow=5, phase="loader"), tmp_path / "run")
    expected = run_of(folder, jobs=2)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:  # type: ignore[no-untyped-call]
        victim = next(iter(cluster.workers.values()))
        killer = Timer(0.4, victim.process.process._process.kill)
        killer.start()
        found = looked(folder, scheduler=cluster.scheduler_address)
        killer.cancel()
    assert found.errors == ()
    assert found.ranks is not None and found.ranks.rows == expected.rows
    assert [s.ranks for s in found.ranks.stragglers] == [(5,)]


@pytest.mark.cluster
def test_a_scheduler_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_trace_advisor.parallel.dask.TIMEOUT_S", 1)
    folder = write(training(ranks=2), tmp_path / "run")
    from gpu_trace_advisor.errors import BadUsage

    with pytest.raises(BadUsage, match=r"--scheduler tcp://127\.0\.0\.1:9: cannot be reached"):
        looked(folder, scheduler="tcp://127.0.0.1:9")


def test_offsets_are_robust_to_wild_ends() -> None:
    chance = np.random.default_rng(1)
    ends = np.sort(chance.integers(0, 10**9, 200))
    late = ends + 5_000_000 + chance.normal(0, 300, 200).astype(np.int64)
    late[::10] += 40_000_000
    rank, instance = np.repeat([0, 1], 200), np.tile(np.arange(200), 2)
    found = align(rank, instance, np.concatenate([ends, late]), np.array([True, True]), np.array([0, 1]))
    assert abs(int(found.offset_ns[1] - found.offset_ns[0]) + 5_000_000) < 500
    assert 0 < found.error_ns[1] < 1_000


def test_clocks_of_different_speed_are_straightened() -> None:
    """One clock gains 50 µs a second: 1,000 ends, 1 ms apart, whose instances are not in the order of time."""
    ends = 10**18 + 1_000_000 * np.random.default_rng(1).permutation(1000)
    fast = ends + 2_000_000 + (ends - 10**18) // 20_000
    rank, instance = np.repeat([0, 1], 1000), np.tile(np.arange(1000), 2)
    both = np.concatenate([ends, fast])
    found = align(rank, instance, both, np.array([True, True]), np.array([0, 1]))
    assert np.abs(np.subtract(*found.aligned(rank, both).reshape(2, -1))).max() <= 2
    assert found.drift[0] == 0 and found.drift[1] == pytest.approx(-5e-5, rel=1e-3)
    few = instance < 8  # of so few it cannot be told from chance
    assert not align(rank[few], instance[few], both[few], np.array([True, True]), np.array([0, 1])).drift.any()


def test_a_clock_that_runs_faster_makes_no_straggler(tmp_path: Path) -> None:
    """By 400 ppm, which is 77 µs over the recording: nobody waits for anybody."""
    folder = write(training(ranks=2, steps=100), tmp_path / "run")
    exact = run_of(folder)
    plain = json.loads((folder / "rank1.json").read_text(encoding="utf-8"), parse_float=Decimal)
    for e in plain["traceEvents"]:
        if "ts" in e:
            since = Decimal(e["ts"]) - Decimal("2345678901.234")
            e["ts"] = float(round(Decimal(e["ts"]) + since * Decimal("0.0004"), 3))
    (folder / "rank1.json").write_text(json.dumps(plain, default=float), encoding="utf-8")
    advice = looked(folder)
    assert advice.ranks is not None and advice.ranks.stragglers == exact.stragglers == ()
    assert advice.ranks.waiting_ns == pytest.approx(exact.waiting_ns, abs=200_000)
    assert "rank-drift" in codes(advice)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "allreduce"), ("_allgather_base", "allgather"),
        ("ncclKernel_ReduceScatter_RING", "reducescatter"), ("all_to_allv", "alltoall"), ("c10d::alltoall_base_", "alltoall"),
        ("ncclKernel_SendRecv_RING", "sendrecv"), ("ncclDevKernel_Broadcast", "broadcast"), ("All2All_Pooled_Req", "alltoall"),
        ("multimem_all_reduce_kernel", "allreduce"), ("gemm", "other"),
    ],
)  # fmt: skip
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_bytes_on_the_link() -> None:
    assert [bus_factor(kind, 4) for kind in ("allreduce", "allgather", "alltoall", "broadcast")] == [
        1.5,
        0.75,
        0.75,
        1.0,
    ]
    assert [dtype_bytes(n) for n in ("BFloat16", "c10::Half", "Float", "float", "Long", "Byte", "Int", "?")] == [
        2, 2, 4, 4, 8, 1, 4, -1,
    ]  # fmt: skip


def test_absolute_times_across_bases(tmp_path: Path) -> None:
    """A base, another base, and none with times since the epoch: the same instant whatever the file counts from."""

    def one(rank: int, ts: str, base: str) -> None:
        args = '{"device": 0, "stream": 7, "correlation": 1}'
        event = f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ts},"dur":10,"args":{args}}}'
        info = f'"distributedInfo": {{"rank": {rank}, "world_size": 3}}'
        (tmp_path / f"rank{rank}.json").write_text(f'{{{base}{info}, "traceEvents": [{event}]}}', encoding="utf-8")

    one(0, "7889237500000.000", '"baseTimeNanoseconds": 1767186312000000000, ')
    one(1, "113238500000.000", '"baseTimeNanoseconds": 1774962312000000000, ')
    one(2, "1775078549600000.123", "")
    run = run_of(tmp_path)
    starts = [row.start_ns for row in run.rows]
    first = 1767186312000000000 + 7889237500000000
    assert starts[1] - starts[0] == 1774962312000000000 + 113238500000000 - first
    assert starts[2] - starts[0] == 1775078549600000123 - first


@pytest.mark.real
def test_the_eight_ranks_of_dlrm() -> None:
    folder = Path(os.environ["ADVISE_REAL_TRACES"]) / "traces/kineto/dlrm-8rank-v100"
    if not folder.is_dir():
        folder = Path(os.environ["ADVISE_REAL_TRACES"]) / "kineto/dlrm-8rank-v100"
    run = run_of(folder)
    exchanges = [m for m in run.meetings if m.kind == "alltoall"]
    for meeting in exchanges[:4]:
        assert max(range(8), key=lambda r, m=meeting: m.arrivals_ns[r]) == 7  # type: ignore[misc]
    assert exchanges[0].flag == "first" and exchanges[0].cost_ns == 0
    assert run.skew_before_ns == pytest.approx(7_600_000, rel=0.01)
    seven = next(s for s in run.stragglers if s.ranks == (7,))
    assert 0 < seven.cost_ns <= 1_100_000
    steps = [row.step_ns or 0 for row in run.rows]
    assert (min(steps), max(steps)) == (12_509_000, 18_711_000)
    assert all(1_030_000 <= row.compute_ns <= 1_250_000 for row in run.rows)


@pytest.mark.real
def test_the_two_devices_of_one_nsight_file_are_ranks(real_traces: Path) -> None:
    found = sorted(real_traces.rglob("mfu-2gpu-before*.sqlite"))
    run = run_of(found[0])
    assert [row.rank for row in run.rows] == [0, 1] and run.aligned == "one recording"
    assert run.matched == 33
    assert (
        run.stragglers == ()
    )  # device 1 comes later to 14 of 16 pairs of collectives, 0 to the others: that is not steady


def test_phases_add_up_to_the_wall(tmp_path: Path) -> None:
    run = run_of(write(training(slow=1, phase="host"), tmp_path / "run"))
    for row in run.rows:
        assert len(row.phases_ns) == len(PHASES) and sum(row.phases_ns) == row.wall_ns
        assert sum(ns for _, ns in row.causes) == row.wall_ns


def test_packed_files_too(tmp_path: Path) -> None:
    folder = write(training(ranks=2), tmp_path / "run")
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert run_of(folder).matched == 12
