"""What a replay says of a change, against the simulator run with that change.

The recipes have no randomness, so nearly all of them must agree to the nanosecond; what does not says why.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.replay.changes import (
    Change,
    Regions,
    captured,
    regions,
    scaled,
    together,
    without_host,
    without_waits,
)
from gpu_trace_advisor.replay.fixes import FIXES, copies_of, operations_of, saving
from gpu_trace_advisor.replay.sweep import replay, wall_ns
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE, FIRST_COPY, SET

from tests.programs import span_ns, viewed
from traces import recipe
from traces.program import Program
from traces.simulate import simulate
from traces.write_kineto import text

EXACT = 5e-5
KINDS = {"kernel": (COMPUTE,), "communication": (COMMUNICATION,), "copy": tuple(range(FIRST_COPY, SET + 1))}


def faster(kind: str, factor: float) -> Change:
    """The change of a graph that `scale={kind: factor}` is of a simulation."""
    if kind in KINDS:
        return lambda graph: scaled(operations_of(graph, *KINDS[kind]), factor)(graph)
    return without_host([kind], 1 - factor)


SCALES = [
    *((kind, factor) for kind in KINDS for factor in (0.5, 2.0)),
    *((kind, factor) for kind in ("framework", "python", "dataloader", "allocator", "module-load") for factor in (0.5, 0.0)),
]  # fmt: skip
CHANGES: dict[str, tuple[dict[str, object], Change]] = {
    "nothing": ({}, lambda graph: graph),
    "no loader": ({"loader": False}, without_host(["dataloader"])),
    "no syncs": ({"syncs": False}, without_waits()),
    **{f"{kind} x{factor:g}": ({"scale": {kind: factor}}, faster(kind, factor)) for kind, factor in SCALES},
}

# What is not exact, and why.
TOLERANCE = {
    # The call that loads a module is the module's as a whole, the few microseconds that it takes without, too.
    ("cold-start", "module-load x0.5"): 0.001,
    ("cold-start", "module-load x0"): 0.01,
    # No wait decides anything in the recording, so what an event takes (1.5 µs) is not known.
    ("pinned-overlap", "framework x0"): 0.0001,
}
# Alone, the recording of a rank that waits in its collectives does not hold when the other one would come.
OTHER_RANK = (
    "no loader",
    "dataloader x0.5",
    "dataloader x0",
    "no syncs",
    "communication x0.5",
    "communication x2",
    "kernel x2",
)


@cache
def base(name: str, rank: int) -> DeviceWindow:
    return viewed(simulate(name), rank, window="gpu")


def ranks() -> list[tuple[str, int]]:
    return [(name, rank) for name in recipe.names() for rank in range(2 if name == "comm-bound-rank" else 1)]


@cache
def simulated(name: str, change: str) -> Program:
    return simulate(name, **CHANGES[change][0])  # type: ignore[arg-type]


def predicted(view: DeviceWindow, change: Change) -> int:
    return wall_ns(replay(change(view.graph)), view.window, view.index)


@pytest.mark.parametrize(("name", "rank"), ranks())
def test_a_replay_with_a_change_is_the_program_with_it(name: str, rank: int) -> None:
    view, unchanged = base(name, rank), text(simulate(name))
    wrong = []
    for change, (arguments, of_graph) in CHANGES.items():
        if (name, rank) == ("comm-bound-rank", 0) and change in OTHER_RANK:
            continue
        if name == "gpu-bound-training" and change.startswith(
            ("dataloader", "allocator", "module", "comm", "copy", "no ")
        ):
            continue  # it has none of these
        program = simulated(name, change)
        if arguments and text(program) == unchanged:
            continue
        measured = span_ns(program, rank)
        off = predicted(view, of_graph) / measured - 1
        if abs(off) > TOLERANCE.get((name, change), EXACT):
            wrong.append(f"{change}: {off:+.3%} of {measured / 1e6:.3f} ms")
    assert not wrong


def test_the_rank_that_others_wait_for_needs_no_other_recording() -> None:
    view = base("comm-bound-rank", 1)
    for change in OTHER_RANK:
        assert predicted(view, CHANGES[change][1]) == span_ns(simulated("comm-bound-rank", change), 1)


def captured_as_the_recipe_says(graph: Graph, gap_ns: int | None) -> Change:
    """`capture decode:` holds all launches of a step but the last two."""
    found = regions(graph)
    later, inside = found.later.copy(), found.inside.copy()
    for calls in np.split(np.flatnonzero(later), np.searchsorted(np.flatnonzero(later), found.first[1:])):
        later[calls[-2:]] = False
        inside[np.isin(graph.trace.launch[graph.row], graph.ref[calls[-2:]])] = False
    shorter = Regions(found.first, later, inside)
    return captured(shorter, launch_ns=14_000, gap_ns=gap_ns)


def test_capturing_a_graph() -> None:
    view = base("eager-decode", 0)
    measured = span_ns(simulate("eager-decode", graphs=True))
    assert len(regions(view.graph)) == 4  # one a step
    # The first operation comes after the latency of a plain launch, and the host work before it stays.
    assert predicted(view, captured_as_the_recipe_says(view.graph, 800)) == pytest.approx(measured, rel=0.01)
    # The recording has no graph to learn the distance of its nodes from: 1 µs for 0.8.
    assert predicted(view, captured_as_the_recipe_says(view.graph, None)) == pytest.approx(measured, rel=0.05)
    # The fix captures the last two launches as well.
    what = saving(view.graph, [FIXES["cuda-graphs"]], view.window, view.index)
    assert what.low_ns <= what.high_ns
    assert what.wall_ns - what.high_ns == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("name", "h2d"), [("pageable-copies", 0.5), ("training-dataloader", 1.0)])
def test_pinning_memory(name: str, h2d: float) -> None:
    view = base(name, 0)
    measured = span_ns(simulate(name, pinned=True))
    pageable = copies_of(view.graph, memory="pageable")
    calls = np.unique(view.trace.launch[view.graph.row[pageable]]).tolist()
    faster_copies = scaled(copies_of(view.graph, "HtoD", "pageable"), h2d)
    change = together(without_waits(calls), without_host(["copy-staging"]), faster_copies)
    # A copy call that returns at once is free in the replay; it takes 6 µs.
    assert predicted(view, change) == pytest.approx(measured, rel=0.002)


def test_both_pinned_forms_hold_the_truth_between_them() -> None:
    view = base("pageable-copies", 0)
    measured = span_ns(simulate("pageable-copies", pinned=True))
    what = saving(view.graph, [FIXES["pinned-memory"]], view.window, view.index)
    assert what.wall_ns - what.high_ns <= measured * 1.005
    assert what.wall_ns - what.low_ns >= measured


def test_two_changes_at_once() -> None:
    view = base("training-dataloader", 0)
    measured = span_ns(simulate("training-dataloader", loader=False, scale={"kernel": 0.5}))
    change = together(without_host(["dataloader"]), faster("kernel", 0.5))
    assert predicted(view, change) == pytest.approx(measured, rel=EXACT)


def test_a_smaller_queue_changes_nothing_for_a_busy_device() -> None:
    program = simulate("gpu-bound-training", depth=600, steps=8)
    view = viewed(program, window="gpu")
    assert predicted(view, lambda graph: graph) == span_ns(program)
    measured = span_ns(simulate("gpu-bound-training", depth=600, steps=8, scale={"kernel": 0.02}))
    assert predicted(view, faster("kernel", 0.02)) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    "name", ["eager-decode", "mlp-training", "sync-storm", "training-dataloader", "multi-stream-events"]
)
def test_with_noise_the_unchanged_replay_stays_close(name: str) -> None:
    for seed in range(3):
        view = viewed(simulate(name, jitter=0.2, seed=seed), window="gpu")
        assert abs(view.trust.error) < 0.01
        assert view.trust.enough


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("training-dataloader", "no loader"), ("sync-storm", "no syncs"), ("eager-decode", "framework x0.5"),
        ("pageable-copies", "copy x0.5"), ("multi-stream-events", "kernel x0.5"),
    ],
)  # fmt: skip
def test_with_noise_the_change_stays_close(name: str, change: str) -> None:
    arguments, of_graph = CHANGES[change]
    for seed in range(3):
        view = viewed(simulate(name, jitter=0.1, seed=seed), window="gpu")
        measured = span_ns(simulate(name, jitter=0.1, seed=seed, **arguments))  # type: ignore[arg-type]
        assert predicted(view, of_graph) == pytest.approx(measured, rel=0.03)
