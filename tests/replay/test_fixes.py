"""Named fixes: what each changes, when it is refused, and that savings together stay possible."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.replay.changes import synchronisations
from gpu_trace_advisor.replay.fixes import (
    FIXES,
    LOADER_KEEPS,
    Fix,
    Saving,
    copies_of,
    graph_launch_ns,
    plain_synchronisations,
    saving,
)
from gpu_trace_advisor.replay.sweep import wall_ns

from tests.build import call, copy, kernel, sync
from tests.graph.test_graph import graph, measured, replayed
from tests.programs import random_view, viewed
from tests.replay.test_changes import communicating, launches
from traces import recipe
from traces.simulate import simulate

SEEDS = range(40)


def samples() -> list[DeviceWindow]:
    return [viewed(simulate(name), window="gpu") for name in recipe.names() if name != "gpu-bound-training"]


def usable(view: DeviceWindow) -> list[Fix]:
    return [fix for fix in FIXES.values() if fix.refuses(view.graph) is None]


def test_a_saving_is_an_interval_within_the_wall() -> None:
    for view in [random_view(seed) for seed in SEEDS]:
        before = wall_ns(view.program.unchanged, view.window, 0)
        for fix in usable(view):
            what = view.saving(fix)
            assert 0 <= what.low_ns <= what.high_ns < what.wall_ns == before, fix.name


def test_all_fixes_together_save_less_than_the_wall_and_more_than_each() -> None:
    for view in [random_view(seed) for seed in SEEDS]:
        fixes = usable(view)
        both = saving(view.graph, fixes, view.window, 0)
        assert both.low_ns <= both.high_ns < both.wall_ns
        plain = [
            fix for fix in fixes if fix.name in ("dataloader", "host-sync", "allocator", "module-load", "host-work")
        ]
        together = saving(view.graph, plain, view.window, 0)
        assert all(view.saving(fix).high_ns <= together.high_ns for fix in plain)


def test_the_same_fix_twice_saves_what_it_saves_once() -> None:
    for name in ("dataloader", "host-sync", "allocator", "module-load", "host-work"):
        for view in [random_view(seed) for seed in range(10)]:
            fix = FIXES[name]
            assert saving(view.graph, [fix, fix], view.window, 0) == view.saving(fix)


def test_nothing_to_do_has_nothing_to_save() -> None:
    view = viewed(simulate("nothing-to-do"), window="gpu")
    for fix in usable(view):
        assert view.saving(fix).high_ns < 0.001 * view.window.wall_ns, fix.name


def test_the_loader_keeps_a_part() -> None:
    view = viewed(simulate("training-dataloader"), window="gpu")
    what = view.saving(FIXES["dataloader"])
    assert what.low_ns == int(what.high_ns * LOADER_KEEPS)
    assert what.high_ns == pytest.approx(0.364 * what.wall_ns, rel=0.01)


def test_speedup() -> None:
    assert Saving(200, 500, 1000).speedup == (1.25, 2.0)


def test_fixes_are_refused_with_a_reason() -> None:
    eager = graph(*launches(4))
    reasons = {name: fix.refuses(eager) for name, fix in FIXES.items()}
    assert {name for name, reason in reasons.items() if reason} == {
        "pinned-memory", "communication-overlap", "copy-overlap",
    }  # fmt: skip
    assert reasons["pinned-memory"] == "the trace has no pageable copies"
    assert "does not name" in (FIXES["cuda-graphs"].refuses(communicating()) or "")
    assert "no two launches" in (FIXES["cuda-graphs"].refuses(graph(call(0, 5, 1), kernel(6, 16, 1))) or "")


def test_a_sync_behind_a_copy_reads_a_value() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), sync(10, 109), call(110, 115, 2, "cudaMemcpyAsync"),
        copy(116, 118, 2, "DtoH (Device -> Pinned)"), sync(116, 122, "cudaStreamSynchronize"),
    )  # fmt: skip
    assert [of.trace.label(row) for row in plain_synchronisations(of).tolist()] == ["cudaDeviceSynchronize"]


def pageable(direction: str) -> Graph:
    """A blocking copy, the framework's wait for its stream, and a kernel."""
    return graph(
        call(0, 60, 1, "cudaMemcpyAsync"), copy(10, 54, 1, direction), sync(61, 63, "cudaStreamSynchronize"),
        call(70, 75, 2), kernel(76, 86, 2),
    )  # fmt: skip


def test_nothing_waits_for_a_pinned_copy_to_the_device() -> None:
    of = pageable("HtoD (Pageable -> Device)")
    assert replayed(of) == measured(of)
    assert replayed(of, FIXES["pinned-memory"].low) == [50, 61]  # 40 for the copy, and the kernel behind it
    assert replayed(of, FIXES["pinned-memory"].high) == [32, 43]


def test_the_host_waits_for_a_pinned_copy_that_comes_back_but_at_best() -> None:
    of = pageable("DtoH (Device -> Pageable)")
    assert replayed(of) == measured(of)
    assert replayed(of, FIXES["pinned-memory"].low) == [50, 75]  # returns at 52, 7 of host work, 6 of latency
    assert replayed(of, FIXES["pinned-memory"].high) == [32, 24]  # beside the copy


def test_a_copy_that_comes_back_is_waited_for_by_its_own_call_where_nothing_else_does() -> None:
    of = graph(
        call(0, 60, 1, "cudaMemcpy"), copy(10, 54, 1, "DtoH (Device -> Pageable)"), call(70, 75, 2), kernel(76, 86, 2)
    )
    assert replayed(of) == measured(of)
    assert replayed(of, FIXES["pinned-memory"].low) == [50, 82]  # returns at 56, 10 of host work, 6 of latency
    assert replayed(of, FIXES["pinned-memory"].high) == [32, 26]  # nobody waits, and the copy is on its own


def test_the_wait_of_a_free_is_the_allocators() -> None:
    of = graph(
        call(0, 5, 1), kernel(6, 106, 1), call(10, 130, 0, "cudaFree"), call(140, 145, 2), kernel(146, 156, 2),
    )  # fmt: skip
    assert synchronisations(of).tolist() == plain_synchronisations(of).tolist() == []
    assert replayed(of, FIXES["host-sync"].high) == measured(of)
    assert replayed(of, FIXES["allocator"].low) == [106, 132]  # it waits still, and then takes no time
    assert replayed(of, FIXES["allocator"].high) == [106, 117]


def test_a_graph_launch_costs_what_the_trace_shows() -> None:
    assert graph_launch_ns(graph(*launches(3))) == 10_000
    of = graph(call(0, 14, 1, "cudaGraphLaunch"), kernel(20, 30, 1), kernel(31, 41, 1))
    assert graph_launch_ns(of) == 14_000


def test_copies_by_direction_and_memory() -> None:
    of = graph(
        call(0, 5, 1), copy(6, 16, 1, "HtoD (Pageable -> Device)"), call(20, 25, 2), copy(26, 36, 2, "HtoD (Pinned -> Device)"),
        call(40, 45, 3), copy(46, 56, 3, "DtoH (Device -> Pageable)"), call(60, 65, 4), kernel(66, 76, 4),
    )  # fmt: skip
    assert copies_of(of).tolist() == [0, 1, 2]
    assert copies_of(of, "HtoD").tolist() == [0, 1]
    assert copies_of(of, memory="pageable").tolist() == [0, 2]
    assert copies_of(of, "DtoH", "pinned").tolist() == []


def test_every_fix_on_every_sample() -> None:
    for view in samples():
        for fix in usable(view):
            what = view.saving(fix)
            assert 0 <= what.low_ns <= what.high_ns < what.wall_ns, (view.trace.name, fix.name)
            assert np.isfinite(what.speedup).all()
