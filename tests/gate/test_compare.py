"""Comparisons: every verdict with its reason, on runs made by hand, on generated programs and on recordings of others."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import StepAdvice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.analysis.summary import KernelTime
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.gate.baseline import Baseline, load_runs
from gpu_trace_advisor.gate.compare import IMPROVED, NOT_COMPARABLE, REGRESSED, SAME, TOO_FEW, Comparison, compare
from gpu_trace_advisor.gate.noise import apart
from gpu_trace_advisor.gate.rank_test import rank_test, shift
from gpu_trace_advisor.gate.run_record import Run, counts, run_of
from gpu_trace_advisor.ingest import read

from tests.advices import MS, advice, device, host
from tests.build import Event, annotation, call, kernel, op, step, written
from traces.simulate import simulate
from traces.write_kineto import write_kineto

GEMM = "ampere_sgemm_128x64_tn"
STEADY = (10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98, 10.04, 9.96)


def steps(periods: Sequence[float], first: float = 0) -> tuple[StepAdvice, ...]:
    """Marked steps with these start-to-start times in ms; one more than there are times."""
    starts = [first]
    for period in periods:
        starts.append(starts[-1] + period)
    ns = [round(start * MS) for start in starts]
    return tuple(
        StepAdvice(f"ProfilerStep#{i}", at, at + 9 * MS, 5 * MS + i, 10, None) for i, at in enumerate(ns, start=1)
    )


def run(
    periods: Sequence[float] = STEADY, *, loader: float = 1, options: tuple[str, ...] = (),
    each: dict[str, Sequence[int]] | None = None, **changes: Any,
) -> Run:  # fmt: skip
    """A run with these step times in ms, of them `loader` ms the data loader's. What is counted is spread evenly over the
    steps, but for what is given for `each` of them."""
    made = steps(periods)
    wall, count = made[-1].end_ns, len(made)
    idle = round(loader * count * MS)
    items = (
        TimeSlice("idle", "dataloader", "measured", "host", "", idle),
        TimeSlice("compute", "unmodelled", "measured", None, "", wall - idle),
    )
    fields: dict[str, Any] = {
        "attribution": items, "steps": made, "start_ns": 0, "end_ns": wall, "window": "steps",
        "kernels": 2 * count, "operations": 2 * count, "syncs": 0,
        "kernels_by_name": (KernelTime("ampere_sgemm_128x64_tn", "gemm", 2 * count, wall - idle),),
        **changes,
    }  # fmt: skip
    value = advice(device(items, **fields))
    if fields["steps"]:
        totals = counts(value.to_json()["devices"][0])
        spread = {name: each[name] if each and name in each else evenly(total, count) for name, total in totals.items()}
        fields["steps"] = tuple(
            dataclasses.replace(step, counts={name: spread[name][i] for name in spread})
            for i, step in enumerate(fields["steps"])
        )
        value = advice(device(items, **fields))
    traces = tuple(dataclasses.replace(trace, options=options) for trace in value.traces)
    return run_of(dataclasses.replace(value, traces=traces).to_json())


def evenly(total: int, count: int) -> list[int]:
    """The total in so many whole parts, as even as can be."""
    return [total * (i + 1) // count - total * i // count for i in range(count)]


def of_job(world: int) -> Run:
    """Rank 0 of a job of so many ranks."""
    return dataclasses.replace(run(slower(1 + world / 1000)), world=world)


def health(of: Run, code: str) -> Run:
    return dataclasses.replace(of, health={code: "what it says; more"})


def slower(by: float, periods: Sequence[float] = STEADY) -> tuple[float, ...]:
    return tuple(period * by + 0.001 for period in periods)


# Noise


def test_the_shift_is_the_median_of_all_differences() -> None:
    # after - before: 3-1, 3-2, 9-1, 9-2 = 2, 1, 8, 7; sorted 1 2 7 8
    assert shift([1, 2], [3, 9]).by == 4.5


def test_four_against_four_tell_only_without_overlap() -> None:
    apart, crossed = shift([1, 2, 3, 4], [5, 6, 7, 8]), shift([1, 2, 3, 5], [4, 6, 7, 8])
    assert apart.p == pytest.approx(2 / 70)  # 2 of the 70 ways to deal out ranks
    assert crossed.p == pytest.approx(4 / 70)
    assert (apart.significant, crossed.significant) == (True, False)


def test_nine_against_nine_need_a_fiftieth() -> None:
    before = [float(n) for n in range(9)]
    assert shift(before, [n + 20 for n in before]).significant
    assert not shift(before, [n + 3 for n in before]).significant


def test_equal_values_are_no_shift() -> None:
    same = shift([5, 5, 5, 5], [5, 5, 5, 5])
    assert (same.by, same.low, same.high, same.p, same.significant) == (0, 0, 0, 1, False)


def test_the_interval_holds_the_shift() -> None:
    found = shift(list(range(10)), list(range(2, 12)))
    assert found.low <= found.by == 2 <= found.high


def test_ties_share_their_mean_rank() -> None:
    # Ranks of 1 1 | 1 2 are 2 2 2 4; of the 6 pairs 3 hold the 4, and every sum lies 1 from the mean of 5.
    assert rank_test([1, 1], [1, 2]) == 1
    # 1 1 1 | 2 2 2: only 2 of the 20 ways to choose three lie as far apart.
    assert rank_test([1, 1, 1], [2, 2, 2]) == pytest.approx(0.1)


@pytest.mark.parametrize(("before", "after", "ties"), [(4, 7, 0), (27, 9, 0), (60, 50, 0), (60, 50, 5)])
def test_p_is_that_of_scipy(before: int, after: int, ties: int) -> None:
    scipy = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(before)
    one, two = random.normal(0, 1, before), random.normal(0.4, 1, after)
    if ties:
        one, two = np.round(one * ties), np.round(two * ties)
    method = "exact" if min(before, after) <= 20 else "asymptotic"
    assert rank_test(one.tolist(), two.tolist()) == pytest.approx(scipy.mannwhitneyu(one, two, method=method).pvalue)


def test_runs_lie_apart_as_students_t_says() -> None:
    """Steps that do not scatter: factors of e^-0.1, 1 and e^0.1 have a variance of 0.01, which counts 2 of 6; t of 4 + 2
    degrees of freedom is 3.707, and a single value differs from the mean of three by √(1 + 1/3) as much."""
    runs = [[10 * math.exp(by)] * 9 for by in (-0.1, 0, 0.1)]
    found = apart(runs, [12.0] * 9)
    assert found.chance == pytest.approx(3.707 * (0.02 / 6) ** 0.5 * (4 / 3) ** 0.5)
    assert found.by == pytest.approx(math.log(1.2)) and not found.beyond


def test_many_runs_leave_room_for_one_that_lies_far_out() -> None:
    """Ten runs e^±0.1 apart, half and half, have a variance of 0.1/9; it counts 9 of 13, and t stays that of 6 degrees."""
    runs = [[10 * math.exp(by)] * 9 for by in (-0.1, 0.1) * 5]
    assert apart(runs, [10.0] * 9).chance == pytest.approx(3.707 * (0.1 / 13) ** 0.5 * 1.1**0.5)


@pytest.mark.parametrize(
    ("scatter", "usual"),
    [(0.001, 0.006), (0.01, 0.025), (0.02, 0.04), (0.05, 0.045), (0.1, 0.09)],
)
def test_one_run_differs_as_is_usual_for_its_scatter(scatter: float, usual: float) -> None:
    """Two steps a factor of e^(√2 s) apart deviate by s; t of 4 degrees of freedom is 4.604, and one run against one differs
    by √2 as much. Runs lie six times the scatter apart up to 2.5 %, else twice up to 4.5 %, or 0.9 of it if that is more."""
    two = [10, 10 * math.exp(scatter * 2**0.5)]
    for other in (two, [3 * ms for ms in two]):  # slower by a factor scatters as much
        assert apart([two], other).chance == pytest.approx(4.604 * usual * 2**0.5)


def test_one_odd_step_of_several_is_no_scatter() -> None:
    assert apart([[10, 10, 10, 10, 90]], [10, 10, 10, 10, 10]).chance == 0


def test_one_odd_run_of_several_says_nothing_of_the_scatter() -> None:
    """Of three runs one has steps of 10 and 20: what is usual is that of the two that do not scatter."""
    quiet, odd = [10.0, 10.0], [10.0, 20.0]
    assert apart([quiet, odd], quiet, min).chance == 0


# Verdicts


def test_slower_steps_are_a_regression_that_names_its_cause() -> None:
    found = compare([run()], run(slower(1.2), loader=3))
    assert (found.verdict, found.exit_code) == (REGRESSED, 1)
    assert "+20.0 %" in found.reason
    assert "mostly data loader, +2.000 ms a step" in found.reason


def test_the_percentage_is_that_of_the_times_beside_it() -> None:
    """The medians moved by 18 ms, the median of the 25 differences is 10 ms."""
    found = compare([run((10, 10, 12, 20, 20))], run((20, 20, 30, 30, 30)))
    assert "step time 12.0 → 30.0 ms, +150.0 % (shift +10.000 ms, 95 % interval " in found.reason


def test_quicker_steps_are_an_improvement() -> None:
    found = compare([run(loader=3)], run(slower(0.8), loader=1.25))
    assert (found.verdict, found.exit_code) == (IMPROVED, 0)
    assert "mostly data loader, -1.750 ms a step" in found.reason


@pytest.mark.parametrize(("by", "verdict"), [(1.029, SAME), (1.031, REGRESSED), (0.971, SAME), (0.968, IMPROVED)])
def test_three_percent_is_the_least_that_counts(by: float, verdict: str) -> None:
    quiet = tuple(10 + n / 1000 for n in range(9))
    assert compare([run(quiet)], run(slower(by, quiet))).verdict == verdict


@pytest.mark.parametrize(("more", "verdict"), [(0.009, SAME), (0.012, REGRESSED)])
def test_ten_microseconds_are_the_least_that_counts(more: float, verdict: str) -> None:
    quick = tuple(0.1 + n / 1e6 for n in range(9))
    assert compare([run(quick, loader=0)], run([q + more for q in quick], loader=0)).verdict == verdict


def test_a_slow_first_of_more_than_five_steps_is_left_out() -> None:
    assert run((12, 11, 10, 10, 10)).lanes[0].periods_ns == (11 * MS, 10 * MS, 10 * MS, 10 * MS)
    assert run((11, 10, 10, 10, 10)).lanes[0].periods_ns[0] == 11 * MS
    assert run((12, 10, 10, 10)).lanes[0].periods_ns[0] == 12 * MS


@pytest.mark.parametrize(("count", "verdict"), [(3, TOO_FEW), (4, REGRESSED)])
def test_five_steps_are_enough_and_four_are_not(count: int, verdict: str) -> None:
    found = compare([run(STEADY[:count])], run(slower(2, STEADY[:count])))
    assert found.verdict == verdict
    if verdict == TOO_FEW:
        assert found.exit_code == 2
        assert "4 steps before and 4 after, at least five are needed" in found.reason


def test_what_lies_within_the_spread_of_runs_is_noise() -> None:
    """Two modes between runs, quiet inside each: one run alone would call the other mode a regression."""
    fast, slow = tuple(22.5 + n / 100 for n in range(9)), tuple(25.5 + n / 100 for n in range(9))
    assert compare([run(fast)], run(slow)).verdict == REGRESSED
    several = compare([run(fast), run(slow), run(fast)], run([p + 0.001 for p in slow]))
    assert several.verdict == SAME
    step = several.lanes[0].step
    # The same recording twice counts once: ln 22.54 and ln 25.54 have a variance of 0.0078, which counts 1 of 5, steps hardly
    # scatter; t of 4 + 1 degrees of freedom is 4.032, one value differs from the mean of two by √1.5 as much.
    assert step is not None and step.noise_ns == pytest.approx(
        (math.exp(4.032 * (0.0078 / 5 * 1.5) ** 0.5) - 1) * 24.04 * MS, rel=0.02
    )


@pytest.mark.parametrize(("runs", "verdict"), [(1, SAME), (3, REGRESSED)])
def test_a_tenth_more_is_told_by_three_runs_and_not_by_one(runs: int, verdict: str) -> None:
    """Steps scatter by 0.5 %, runs of such by 2.5 %: one differs from one by 4.604 √2 · 2.5 % = 16 % at most by chance; from
    three, which hardly differ, by 3.707 √(4/6) √(4/3) · 2.5 % = 9 %."""
    before = [run(slower(1 + n / 1000)) for n in range(runs)]
    assert compare(before, run(slower(1.11))).verdict == verdict


def test_a_single_run_says_so_and_several_do_not() -> None:
    assert any("single run" in note for note in compare([run()], run(slower(1.001))).notes)
    assert not any("single run" in note for note in compare([run(), run(slower(1.002))], run(slower(1.001))).notes)


def test_a_recording_given_twice_counts_once() -> None:
    """Else it would say that runs do not differ, and its steps would count twice."""
    once, twice = compare([run()], run(slower(1.04))), compare([run(), run()], run(slower(1.04)))
    assert twice.lanes == once.lanes and twice.lanes[0].steps == (10, 10)
    assert twice.before == once.before and set(once.notes) < set(twice.notes)
    assert Baseline().with_run(run()).with_run(run()) == Baseline().with_run(run())


def test_a_recording_against_itself_is_neutral_and_says_so() -> None:
    found = compare([run()], run())
    assert (found.verdict, found.exit_code, found.itself) == (SAME, 0, True)
    assert "same recording" in found.reason
    assert found.lanes[0].counts == ()


def test_more_work_a_step_is_a_regression_at_the_same_speed() -> None:
    found = compare([run()], run(slower(1.001), syncs=10))
    assert (found.verdict, found.exit_code) == (REGRESSED, 1)
    assert "more work a step: syncs 0 → 1" in found.reason


def test_fewer_operations_at_the_same_speed_are_shown_and_no_improvement() -> None:
    found = compare([run(syncs=10)], run(slower(1.001)))
    assert found.verdict == SAME
    assert [(c.name, c.before, c.after, c.grew) for c in found.lanes[0].counts] == [("syncs", 1, 0, False)]


def counted(each: Sequence[int], by: float = 1, name: str = "syncs") -> Run:
    """A run of so many steps with these counts in each."""
    totals: dict[str, Any] = {name.replace("-", "_"): sum(each)}
    return run(slower(by, (STEADY * 3)[: len(each) - 1]), each={name: each}, **totals)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            (0, 0, 0, 0, 1, 0, 0, 0, 0, 1),
            (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0),
        ),  # every fifth step, in windows of 10 and 12
        (
            (550, 561, 553, 556, 550, 563),
            (552, 563, 557, 560, 551, 562),
        ),  # kernels that the allocator and the data change
        ((550, 550, 550, 550, 550, 551), (551, 551, 551, 551, 551, 551)),  # 0.2 % of one: too little to matter
    ],
)
def test_what_varies_by_itself_is_told_and_no_regression(before: Sequence[int], after: Sequence[int]) -> None:
    found = compare([counted(before)], counted(after, 1.001))
    assert found.verdict == SAME
    change = next(change for change in found.lanes[0].counts if change.name == "syncs")
    assert (change.grew, change.exact) == (False, False)


def test_what_varies_is_held_against_its_noise() -> None:
    """From about 2 to 9 a step, in three runs before: more than chance would have it."""
    each = ((2, 1, 2, 2, 3, 2, 2, 1, 2, 2), (2, 2, 2, 3, 2, 2, 1, 2, 2, 2), (2, 2, 1, 2, 2, 2, 3, 2, 2, 2))
    before = [counted(counts, 1 + i / 1000) for i, counts in enumerate(each)]
    found = compare(before, counted((9, 9, 8, 9, 9, 9, 10, 9, 9, 9), 1.0005))
    assert found.verdict == REGRESSED and "more work a step: syncs 2 → 9" in found.reason


def test_what_is_constant_in_both_is_exact() -> None:
    found = compare([counted((2,) * 6)], counted((3,) * 6, 1.001))
    assert found.verdict == REGRESSED and "more work a step: syncs 2 → 3" in found.reason
    (change,) = found.lanes[0].counts
    assert (change.grew, change.exact) == (True, True)


def test_runs_that_differ_in_a_count_make_it_no_measure() -> None:
    """2 in one run and 4 in the other, whatever the reason: 5 is no proof of anything."""
    assert compare([counted((2,) * 6), counted((4,) * 6, 1.002)], counted((5,) * 6, 1.001)).verdict == SAME


def test_a_microsecond_makes_a_copy_blocking() -> None:
    found = compare([counted((0,) * 6, name="blocking-copies")], counted((0, 0, 0, 1, 0, 0), 1.001, "blocking-copies"))
    assert found.verdict == SAME and not found.lanes[0].counts[0].exact


@pytest.mark.parametrize(("by", "verdict"), [(0.8, IMPROVED), (0.98, SAME), (1.001, REGRESSED)])
def test_what_is_faster_is_not_regressed_for_its_counts(by: float, verdict: str) -> None:
    assert compare([counted((2,) * 10)], counted((3,) * 10, by)).verdict == verdict


def test_an_old_baseline_without_counts_a_step_tells_and_does_not_fail() -> None:
    old = run(syncs=10)
    lanes = tuple(dataclasses.replace(lane, step_counts={}) for lane in old.lanes)
    assert compare([dataclasses.replace(old, lanes=lanes)], run(slower(1.001), syncs=20)).verdict == SAME


def test_a_count_within_those_of_the_runs_before_has_not_grown() -> None:
    found = compare([run(syncs=10), run(slower(1.002), syncs=20)], run(slower(1.001), syncs=20))
    assert found.verdict == SAME
    assert found.lanes[0].counts == ()


def test_changes_of_causes_add_up_to_the_change_of_the_wall() -> None:
    before, after = run(), run(slower(1.2), loader=2.5)
    lane = compare([before], after).lanes[0]
    wall = after.lanes[0].wall_ns / 10 - before.lanes[0].wall_ns / 10
    assert sum(change.delta_ns for change in lane.causes) == pytest.approx(wall)
    assert lane.causes[0].name == "dataloader"
    assert lane.causes[0].delta_ns == pytest.approx(1.5 * MS)


def test_kernels_change_in_time_and_calls_per_step() -> None:
    more = (KernelTime("ampere_sgemm_128x64_tn", "gemm", 30, 40 * MS),)
    less = (KernelTime("ampere_sgemm_128x64_tn", "gemm", 20, 20 * MS),)
    (change,) = compare([run(kernels_by_name=less)], run(slower(1.1), kernels_by_name=more)).lanes[0].kernels
    assert (change.before_ns, change.after_ns, change.calls) == (2 * MS, 4 * MS, (2, 3))


# Not comparable


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (run(), run(name="NVIDIA A100"), "other GPU: NVIDIA H100 before, NVIDIA A100 after"),
        (of_job(8), of_job(16), "other job: 8 ranks before, 16 after"),
        (run(), run(window="gpu"), "other window: steps before, gpu after"),
        (health(run(), "cold"), run(slower(1.1)), "cold against warm: before is a cold start"),
        (run(), health(run(slower(1.1)), "cold"), "cold against warm: after is a cold start"),
        (run(), health(run(slower(1.1)), "partial"), "after is incomplete: what it says"),
        (health(run(), "lost-kernels"), run(slower(1.1)), "before lost kernels"),
        (run(), run_of(advice(host=host()).to_json()), "after has no GPU kernels"),
        (run_of(advice(host=host()).to_json()), run(), "before has no GPU kernels"),
        (
            run(),
            run(slower(1.1), kernels_by_name=(KernelTime("ampere_sgemm_128x64_tn", "gemm", 40, MS),)),
            "other work in a step: 2 matrix kernels before, 4 after",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(before: Run, after: Run, reason: str) -> None:
    found = compare([before], after)
    assert (found.verdict, found.exit_code) == (NOT_COMPARABLE, 2)
    assert reason in found.reason


def test_other_versions_compare_with_a_note(tmp_path: Path) -> None:
    """What was upgraded is what is compared, or it is not: whoever reads the verdict has to know."""
    paths = []
    for name, version in (("before", 12040), ("after", 12080)):
        events = [e for i in range(6) for e in a_step(i, i * 1000 + (name == "after"))]
        info = {"distributedInfo": {"rank": 0, "world_size": 8}, "cuda_runtime_version": version}
        paths.append(written(tmp_path / f"{name}.json", *events, **info))
    before, after = (load_runs(path, Request())[0] for path in paths)
    assert (before.world, before.producers) == (8, ("torch.profiler (CUDA 12040)",))
    assert Run.from_json(json.loads(json.dumps(before.to_json())), "") == before
    told = "recorded by torch.profiler (CUDA 12040) before, torch.profiler (CUDA 12080) after"
    assert told in compare([before], after).notes
    assert not any("recorded by" in note for note in compare([before], dataclasses.replace(before, name="x")).notes)


def test_another_batch_is_other_work(tmp_path: Path) -> None:
    """A product of [b, 1024] and [1024, 1024] takes 2 b 1024² FLOPs: 0.0671 G for 32 rows, half of it for 16."""

    def batch(rows: int, at: int) -> Run:
        events = []
        for i in range(6):
            shapes = {"Input Dims": [[rows, 1024], [1024, 1024]], "Input type": ["float", "float"]}
            product = op("aten::mm", i * 1000 + at, i * 1000 + at + 15, **shapes)
            events += [*a_step(i, i * 1000 + at), product]
        return load_runs(written(tmp_path / f"{rows}-{at}.json", *events), Request())[0]

    found = compare([batch(32, 0)], batch(16, 1))
    assert found.verdict == NOT_COMPARABLE
    assert found.reason == "other work in a step: 0.06711 GFLOP before, 0.03355 after (device 0)"
    assert not any("GFLOP" in note for note in compare([batch(32, 0)], batch(32, 2)).notes)
    told = "a step computes 0.06711 GFLOP before, 0.06291 after (device 0): other shapes, such as another batch?"
    assert told in compare([batch(32, 0)], batch(30, 1)).notes


def a_step(number: int, at: int) -> list[dict[str, Any]]:
    """A marked step of 1 ms with one kernel."""
    return [step(number, at, at + 1000), call(at + 5, at + 10, number + 1), kernel(at + 20, at + 900, number + 1, GEMM)]


def test_two_cold_starts_compare_with_a_note() -> None:
    found = compare([health(run(), "cold")], health(run(slower(1.2)), "cold"))
    assert found.verdict == REGRESSED
    assert any("cold starts" in note for note in found.notes)


@pytest.mark.parametrize(("gpu_more", "verdict", "code"), [(0, NOT_COMPARABLE, 2), (2 * MS, REGRESSED, 1)])
def test_with_other_profiler_options_only_kernel_times_count(gpu_more: int, verdict: str, code: int) -> None:
    made = tuple(dataclasses.replace(s, gpu_ns=s.gpu_ns + gpu_more) for s in steps(slower(2)))
    found = compare([run()], run(slower(2), options=("with_stack",), steps=made))
    assert (found.verdict, found.exit_code) == (verdict, code)
    assert "other profiler options (with_stack after only)" in found.reason
    assert found.lanes[0].step is None
    assert found.lanes[0].causes == ()


def test_a_run_before_that_is_not_comparable_is_left_out() -> None:
    found = compare([run(), run(name="NVIDIA A100")], run(slower(1.2)))
    assert found.verdict == REGRESSED
    assert "1 of 2 runs of before are not comparable" in found.notes


def window(calls: int, ns: int) -> Run:
    """No steps: a window of the GPU's time."""
    kernels = (KernelTime("ampere_sgemm_128x64_tn", "gemm", calls, ns),)
    return run(window="gpu", steps=(), step_ns=None, kernels=calls, operations=calls, kernels_by_name=kernels)


def test_less_work_in_a_window_is_no_improvement() -> None:
    found = compare([window(34, 34 * MS)], dataclasses.replace(window(30, 30 * MS), name="after"))
    assert found.verdict == NOT_COMPARABLE
    assert "other work in the window: 34 × ampere_sgemm_128x64_tn before, 30 after" in found.reason
    assert "--step-marker" in found.reason


def test_the_same_work_in_one_window_is_too_little_to_tell() -> None:
    before, after = window(30, 30 * MS), window(30, 25 * MS)
    lane = dataclasses.replace(after.lanes[0], identity=(1, 2, 3, 4))
    assert compare([before], dataclasses.replace(after, lanes=(lane,))).verdict == TOO_FEW


def test_another_gpu_is_named_before_anything_else() -> None:
    a100 = run_of(advice(device(name="NVIDIA A100", device=3), device(name="NVIDIA A100", device=4)).to_json())
    found = compare([health(run(), "cold")], a100)
    assert (found.verdict, found.reason) == (NOT_COMPARABLE, "other GPU: NVIDIA H100 before, NVIDIA A100 after")


def test_another_device_of_the_same_type_will_do() -> None:
    found = compare([run()], run(slower(1.001), device=2))
    assert found.verdict == SAME
    assert "device 0 before is held against device 2 after" in found.notes
    two = advice(device(), device(device=1)), advice(device(device=2, end_ns=7), device(device=5))
    lanes = compare([run_of(two[0].to_json())], run_of(two[1].to_json())).lanes
    assert [lane.key for lane in lanes] == ["device 2", "device 5"]


def test_other_ranks_of_several_are_no_others_place() -> None:
    before, after = (advice(*(device(rank=rank, operations=rank) for rank in ranks)) for ranks in ((0, 1), (0, 2)))
    assert compare([run_of(before.to_json())], run_of(after.to_json())).reason == "rank 1 device 0 is missing in after"


def test_a_lost_device_is_named() -> None:
    two = advice(device(), device(device=1))
    found = compare([run_of(two.to_json())], run_of(advice(device()).to_json()))
    assert (found.verdict, found.reason) == (NOT_COMPARABLE, "device 1 is missing in after")


def test_processes_match_by_position_whatever_their_ids() -> None:
    before = advice(device(process=144), device(process=145, device=1))
    after = advice(device(process=9, end_ns=7), device(process=12, device=1))
    lanes = compare([run_of(before.to_json())], run_of(after.to_json())).lanes
    assert [lane.key for lane in lanes] == ["process 0 device 0", "process 1 device 1"]


# Saved forms


def test_a_run_survives_its_json() -> None:
    made = run(options=("with_stack",))
    assert Run.from_json(json.loads(json.dumps(made.to_json())), "here") == made


def test_a_baseline_keeps_five_runs_a_gpu_and_reads_back(tmp_path: Path) -> None:
    baseline = Baseline()
    for n in range(7):
        baseline = baseline.with_run(run(slower(1 + n / 1000)))
    baseline = baseline.with_run(run(name="NVIDIA A100"))
    path = tmp_path / "deep" / "decode.json"
    baseline.write(path)
    assert Baseline.load(path) == baseline
    assert {name: len(runs) for name, runs in baseline.hardware.items()} == {"NVIDIA H100": 5, "NVIDIA A100": 1}
    assert len(load_runs(path, Request())) == 6
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) < 200
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"baseline": 9, "hardware": {}}', "not a baseline of version 1"),
        ('{"baseline": 9, "hardware": {}}', "delete it and write it anew"),
        ('{"baseline": 1, "hardware": {"H100": 3}}', "not a baseline of version 1"),
        ('{"baseline": 1, "hardware": {"H100": []}}', "a baseline without runs"),
        ('{"baseline": 1, "hardware": {"H100": [{}]}}', "not a run of a baseline"),
        ('{"schema": 1, "traces": [1], "devices": [], "health": []}', "not an advice in JSON"),
        ('{"schema": 9}', "an advice of another version"),
        ('{"schema": 1}', "not an advice in JSON"),
        ('{"schema": 1', "not JSON"),
    ],
)
def test_a_damaged_baseline_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "before.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadUsage, match=message):
        load_runs(path, Request())


# The command


def generated(path: Path, **changes: Any) -> Path:
    write_kineto(simulate("training-dataloader", steps=10, jitter=0.02, **changes), path)
    return path


def test_the_command_compares_traces_saved_advice_and_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = generated(tmp_path / "before.json.gz", seed=1)
    after = generated(tmp_path / "after.json.gz", seed=2, loader=False)
    saved, compared = tmp_path / "saved.json", tmp_path / "compared.json"
    assert main([str(before), "-o", str(tmp_path / "text"), "--json", str(saved)]) == 0
    assert main([str(after), "--against", str(saved), "--json", str(compared)]) == 0
    improved = capsys.readouterr()
    assert improved.out.startswith("improved: step time")
    assert "mostly data loader" in " ".join(improved.out.split())
    assert improved.err == ""
    assert main([str(after), "--against", str(before), "-o", str(tmp_path / "text")]) == 0
    assert json.loads(compared.read_text(encoding="utf-8"))["comparison"]["verdict"] == IMPROVED
    assert main([str(before), "--against", str(after), "--format", "json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)["comparison"]
    assert (found["verdict"], found["exit_code"]) == (REGRESSED, 1)
    assert err.startswith("advise: regressed: step time")
    assert err.count("\n") == 1


def test_an_empty_later_run_is_inconclusive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(tmp_path / "before.json", call(0, 5, 1), kernel(10, 20, 1))
    after = written(tmp_path / "after.json")
    assert main([str(after), "--against", str(before)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("not comparable: after has no GPU kernels")
    assert err.startswith("advise: inconclusive: not comparable: after has no GPU kernels")
    assert main([str(before), "--against", str(after)]) == 2
    assert capsys.readouterr().err.startswith("advise: before: after.json")


def test_several_runs_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [generated(tmp_path / f"{seed}.json.gz", seed=seed) for seed in range(3)]
    assert main([str(runs[2]), "--against", str(runs[0]), "--against", str(runs[1])]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no difference beyond noise")
    assert "single run" not in out


def test_annotations_for_github(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = generated(tmp_path / "before.json.gz", seed=1, loader=False)
    after = generated(tmp_path / "after.json.gz", seed=2)
    assert main([str(after), "--against", str(before), "--format", "github"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error title=after.json.gz%3A regressed::step time")
    assert "%25" in line and "% " not in line


def few_steps(extra: int) -> list[Event]:
    """Three steps of 100 µs with a kernel each, the kernel 40 µs and some more long."""
    steps = [step(3 + i, 100 * i, 100 * i + 100) for i in range(3)]
    calls = [call(100 * i + 10, 100 * i + 15, 1 + i) for i in range(3)]
    return [*steps, *calls, *(kernel(100 * i + 20, 100 * i + 60 + extra, 1 + i, "gemm") for i in range(3))]


def test_too_few_steps_are_a_warning_and_the_findings_go_to_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    after, before = (
        written(tmp_path / f"{name}.json", *few_steps(extra)) for name, extra in (("after", 1), ("before", 0))
    )
    assert main([str(after), "--against", str(before), "--format", "github"]) == 2
    assert capsys.readouterr().out.startswith("::warning title=after.json%3A too few steps to tell::")
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("before\n") and "GPU busy" in text


def test_a_summary_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary.md"))
    after, before = (
        written(tmp_path / f"{name}.json", *few_steps(extra)) for name, extra in (("after", 1), ("before", 0))
    )
    assert main([str(after), "--against", str(before), "--format", "github"]) == 2
    assert "warning: the step summary cannot be written" in capsys.readouterr().err


def test_steps_of_the_host_alone_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def recording(name: str, period: int) -> Path:
        marks = [step(n, n * period, n * period + 900 + n) for n in range(8)]
        return written(tmp_path / name, *marks, annotation("work", 0, 500))

    assert main([str(recording("slow.json", 2000)), "--against", str(recording("quick.json", 1000))]) == 1
    assert "step time 1.000 → 2.000 ms" in " ".join(capsys.readouterr().out.split())


# Recordings of others


def pair(real_traces: Path, before: str, after: str) -> Comparison:
    one, two = (run_of(advise_traces([read(real_traces / "traces" / name)]).to_json()) for name in (before, after))
    return compare([one], two)


@pytest.mark.real
@pytest.mark.parametrize(
    ("before", "after", "verdict", "words"),
    [
        ("kineto/transformer-tutorial-a-h100.json.gz", "kineto/transformer-tutorial-b-h100.json.gz", TOO_FEW, "3 steps"),
        ("nsys/mfu-2gpu-before-hopper2x.sqlite", "nsys/mfu-2gpu-after-hopper2x.sqlite", NOT_COMPARABLE, "other work"),
        ("kineto/shiftvit-cold-a4000.json.gz", "kineto/shiftvit-warm-a4000.json.gz", NOT_COMPARABLE, "cold against warm"),
        (
            "kineto/resnet50-numworkers0-A-v100.json.gz", "kineto/resnet50-numworkers4-A-v100.json.gz", IMPROVED,
            "mostly data loader, -57.5",
        ),
        (
            "kineto/memcpy-pageable-sync-a100-40g.json.gz", "kineto/memcpy-pinned-overlap-a100-40g.json.gz",
            IMPROVED, "mostly exposed copies",
        ),
        ("kineto/transformer-tutorial-a-h100.json.gz", "kineto/transformer-tutorial-a-h100.json.gz", SAME, "itself"),
    ],
)  # fmt: skip
def test_pairs_recorded_by_others(real_traces: Path, before: str, after: str, verdict: str, words: str) -> None:
    found = pair(real_traces, before, after)
    assert found.verdict == verdict
    assert words in found.reason


def test_the_samples_compare_with_themselves_only(sample: Callable[[str], Path]) -> None:
    one = run_of(advise_traces([read(sample("sync-storm"))]).to_json())
    assert compare([one], one).itself
