"""Pages of every shape of advice: whatever an Advice can hold or lack, a page is made of it that says it."""

import dataclasses
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.advice.build import examine
from gpu_trace_advisor.advice.model import Advice, TraceInfo, WhatIf
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.drawing.build import draw
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.html.page import render
from gpu_trace_advisor.trace.model import Note

from tests.advices import MS, advice, device, host
from tests.drawn import drawn
from tests.report.test_html import Page

WHAT_IFS = (
    WhatIf(
        "run.json", None, None, 0, ("dataloader",), (10 * MS, 20 * MS), (1.1, 1.25), ("assumed",), (("nccl", "absent"),)
    ),
    WhatIf("run.json", None, None, 1, (), None, None, (), (("dataloader", "not here"),)),
    WhatIf("run.json", 1, 77, 0, ("dataloader",), None, None, (), ()),
)
CHANGES: dict[str, dict[str, Any]] = {
    "two devices": {"devices": (device(), device(device=1, rank=1))},
    "what-if of two": {"devices": (device(), device(device=1)), "what_if": WHAT_IFS},
    "errors": {"errors": ("b.json: cut", "c.json: <b>not</b> JSON")},
    "notes": {"health": tuple(Note(code, f"{code} <i>", 2) for code in ("partial", "cold", "clock-skew", "other"))},
    "no name": {"devices": (device(name="", gpu=None, window_why="", peaks="its peaks are not known"),)},
    "bare": {"devices": (device(steps=(), step_ns=None, kernels_by_name=(), copies=(), operators=(), modules=(), gaps=(),
                                memory=None),)},
    "distrusted": {"devices": (device(replay=dataclasses.replace(device().replay, trusted=False, error=-0.5)),)},
    "no traces told": {"traces": (TraceInfo("", "nsight", None, 0, 0, 0, "", None),)},
}  # fmt: skip


@pytest.mark.parametrize("names", [*combinations(CHANGES, 1), *combinations(CHANGES, 2)], ids=" + ".join)
def test_every_shape_of_advice_makes_a_page(names: tuple[str, ...]) -> None:
    changes = {key: value for name in names for key, value in CHANGES[name].items()}
    made: Advice = dataclasses.replace(advice(device()), **changes)
    text = Page(render(made)).text
    assert "<i>" not in render(made) and "<b>not" not in render(made)
    for what in made.what_if:
        for fix, why in what.refused:
            assert f"{fix} is not priced: {why}" in text
    for error in made.errors:
        assert error in text
    assert "Undefined" not in text and "None" not in text


@pytest.mark.parametrize("change", [{}, {"steps": (), "step_ns": None}, {"ranges": (), "operators": (), "calls": ()}])
def test_every_shape_of_a_recording_without_gpu_work_makes_a_page(change: dict[str, Any]) -> None:
    made = advice(
        host=host(to_record="get the whole file", **change),
        health=(Note("partial", "the file is cut short", 1),),
        errors=("b.json: cut",),
    )
    text = Page(render(made)).text
    for words in ("To record the GPU", "get the whole file", "the file is cut short", "b.json: cut"):
        assert words in text


def test_two_devices_with_what_if(sample: Callable[[str], Path], tmp_path: Path) -> None:
    files = [str(sample(f"comm-bound-rank-rank{rank}")) for rank in (0, 1)]
    page = tmp_path / "report.html"
    assert main([*files, "--what-if", "communication-overlap", "--html", str(page), "-o", str(tmp_path / "o.txt")]) == 0
    text = Page(page.read_text(encoding="utf-8")).text
    assert text.count("communication-overlap : saves") + text.count("communication-overlap: saves") == 2


def test_ranks_come_first_and_stand_on_one_axis(sample: Callable[[str], Path]) -> None:
    made, drawings = drawn(*(read(sample(f"comm-bound-rank-rank{rank}")) for rank in (0, 1)))
    text = render(made, drawings)
    assert text.index('id="h-ranks"') < text.index('id="h-time"') < text.index('id="h-all-ranks"')
    assert text.count('class="rank-lane') == 2


@pytest.mark.parametrize("name", ["training-dataloader", "eager-decode", "mlp-training"])
def test_flame_graphs_add_up(sample: Callable[[str], Path], name: str) -> None:
    """The outermost row is all GPU time of the window, or all of its idle time; no child is wider than what it is in."""
    made, (drawing, *_) = drawn(read(sample(name)))
    one = made.devices[0]
    gpu_ns = sum(kernel.ns for kernel in one.kernels_by_name) + sum(copy.ns for copy in one.copies)
    for nodes, whole in ((drawing.by_time, gpu_ns), (drawing.by_idle, one.idle_ns)):
        outer = sum(node.ns for node in nodes if node.depth == 0)
        assert whole * 0.98 <= outer <= whole
        for i, node in enumerate(nodes):
            inside = [
                n
                for n in nodes[i + 1 :]
                if n.depth == node.depth + 1 and node.start_ns <= n.start_ns < node.start_ns + node.ns
            ]
            assert sum(n.ns for n in inside) <= node.ns


def test_the_heat_strip_has_every_steps_causes(sample: Callable[[str], Path]) -> None:
    """The idle time of all kept steps, by cause, is the device's."""
    made, (drawing, *_) = drawn(read(sample("training-dataloader")))
    one = made.devices[0]
    by_cause = {row.cause: sum(row.ns) for row in drawing.heat}
    assert by_cause["dataloader"] == pytest.approx(one.ns_of("dataloader"), abs=4)


def test_a_drawing_of_fewer_devices_than_the_advice_is_of_the_right_ones(sample: Callable[[str], Path]) -> None:
    traces = [read(sample(f"comm-bound-rank-rank{rank}")) for rank in (0, 1)]
    made, views = examine(traces)
    (drawing,) = draw(made, views[1:])
    assert drawing.place == views[1].place
