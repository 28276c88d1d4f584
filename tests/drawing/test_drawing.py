"""The drawing model: lanes, what is known of boxes, who called, and before and after."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gpu_trace_advisor.advice.build import examine
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.drawing.lanes import nested
from gpu_trace_advisor.drawing.model import Detail, Drawing, Lane
from gpu_trace_advisor.ingest import read

from tests import build as b
from tests.drawn import drawn

SAMPLES = (
    "training-dataloader",
    "sync-storm",
    "multi-stream-events",
    "graph-decode-nsys",
    "eager-decode",
    "mlp-training",
)


def called() -> list[b.Event]:
    """A module's forward, an operator inside it with shapes, a launch and its kernel; then one launched by nothing."""
    return [
        b.frame("/home/me/train.py(7): main", 0, 400),
        b.frame("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1518): _wrapped_call_impl", 5, 300),
        b.frame("nn.Module: Net_0", 10, 290),
        b.frame("/home/me/model.py(12): forward", 20, 280),
        b.frame("nn.Module: Linear_0", 30, 200),
        b.op("aten::linear", 40, 190),
        b.op("aten::addmm", 50, 180, **{"Input Dims": [[8], [4, 16], [16, 8]]}),
        b.call(100, 110, 1),
        b.kernel(120, 220, 1, "sgemm_128x64", grid=[4, 2, 1], block=[128, 1, 1]),
        b.op("aten::relu", 210, 260), b.call(220, 230, 2), b.kernel(300, 340, 2, "relu_kernel"),
    ]  # fmt: skip


def box(drawing: Drawing, kind: str, name: str) -> Detail:
    """What is known of the one box of this name on lanes of this kind."""
    codes = {code for lane in drawing.lanes if lane.kind == kind for code in lane.detail.tolist()}
    found = [one for code, one in enumerate(drawing.details) if code in codes and one.name == name]
    assert len(found) == 1
    return found[0]


def test_a_kernel_knows_its_operator_stack_shapes_and_grid() -> None:
    (drawing,) = drawn(b.trace(*called()), window="gpu")[1]
    kernel = box(drawing, "stream", "sgemm_128x64")
    assert kernel.operator == "aten::addmm"
    assert kernel.stack == ("/home/me/train.py(7): main", "Net_0", "/home/me/model.py(12): forward", "Linear_0")
    assert kernel.shapes.replace(" ", "") == "[[8],[4,16],[16,8]]"
    assert kernel.grid.replace(" ", "") == "[4,2,1]"
    assert kernel.colour == "gemm"


def test_idle_time_knows_its_cause_and_who_was_at_work() -> None:
    (drawing,) = drawn(b.trace(*called()), window="gpu")[1]
    idle = next(lane for lane in drawing.lanes if lane.kind == "idle")
    spans = [
        (s - drawing.origin_ns, e - drawing.origin_ns)
        for s, e in zip(idle.start.tolist(), idle.end.tolist(), strict=True)
    ]
    assert spans[0][0] == 220_000 and spans[-1][1] == 300_000
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert {drawing.details[code].cause for code in idle.detail.tolist()} <= {
        "launch-call",
        "launch-latency",
        "device-unknown",
    }


def annotated(name: str) -> list[b.Event]:
    """A range around an operator that launches a kernel of 100 µs, with a call of its own that launches one of 50."""
    return [
        b.annotation(name, 0, 400), b.op("aten::mm", 20, 100), b.call(30, 60, 1), b.kernel(110, 210, 1, "sgemm"),
        b.call(120, 140, 2), b.kernel(220, 270, 2, "relu_kernel"),
    ]  # fmt: skip


def test_ranges_enclose_what_is_launched_inside_them() -> None:
    """In flame graphs and stacks, operators or not inside them."""
    (drawing,) = drawn(b.trace(*annotated("forward")), window="gpu")[1]
    found = [(node.depth, node.name, node.kind, node.colour, node.ns) for node in drawing.by_time]
    assert found[0] == (0, "forward", "range", "host-range", 150_000)
    assert (1, "aten::mm", "operator", "host-operator", 100_000) in found
    assert (2, "sgemm", "kernel", "gemm", 100_000) in found
    assert (1, "relu", "kernel", "elementwise", 50_000) in found
    assert {one.stack for one in drawing.details if one.name in ("sgemm", "relu")} == {("forward",)}


def test_a_flame_graph_shows_modules_and_operators_however_deep_the_stack() -> None:
    """Lines around everything, and a module's own, are left out; a line of which much goes two ways stays."""
    frames = [b.frame(f"train_{i}.py({i}): f{i}", i, 1000 - i) for i in range(20)]
    inner = [
        b.frame("nn.Module: Net_0", 30, 900), b.frame("model.py(7): forward", 31, 900),
        b.op("aten::mm", 40, 100), b.call(50, 60, 1), b.kernel(110, 210, 1, "sgemm"),
        b.op("aten::relu", 220, 300), b.call(230, 240, 2), b.kernel(310, 410, 2, "relu_kernel"),
    ]  # fmt: skip
    (drawing,) = drawn(b.trace(*frames, *inner), window="gpu")[1]
    assert [(node.depth, node.name, node.ns) for node in drawing.by_time] == [
        (0, "Net_0", 200_000), (1, "aten::mm", 100_000), (2, "sgemm", 100_000), (1, "aten::relu", 100_000),
        (2, "relu", 100_000),
    ]  # fmt: skip


def test_records_of_a_thread_are_nested_by_what_is_around_them() -> None:
    start, end = np.array([0, 1, 2, 4, 6, 9, 10]), np.array([8, 5, 3, 5, 7, 12, 11])
    assert [rows.tolist() for rows in nested(start, end, 8)] == [[0, 5], [1, 4, 6], [2, 3]]
    assert [rows.tolist() for rows in nested(start, end, 2)] == [[0, 5], [1, 4, 6]]


@pytest.mark.parametrize("name", SAMPLES)
def test_boxes_of_a_host_lane_lie_inside_those_above(sample: Callable[[str], Path], name: str) -> None:
    for drawing in drawn(read(sample(name)))[1]:
        lanes = [lane for lane in drawing.lanes if lane.kind == "host"]
        for lane in lanes:
            assert (lane.start[1:] >= lane.end[:-1]).all()
            if lane.depth:
                above = next(one for one in lanes if (one.label, one.depth) == (lane.label, lane.depth - 1))
                assert inside(lane, above)


def inside(lane: Lane, above: Lane) -> bool:
    """Each box begins in one of the lane above."""
    at = np.searchsorted(above.start, lane.start, side="right") - 1
    return bool((at >= 0).all() and (lane.start < above.end[at]).all())


@pytest.mark.parametrize("name", SAMPLES)
def test_idle_boxes_and_the_advice_agree(sample: Callable[[str], Path], name: str) -> None:
    """The idle lane holds the window's idle time, cause by cause, to the nanosecond."""
    advice, drawings = drawn(read(sample(name)))
    for device, drawing in zip(advice.devices, drawings, strict=True):
        idle = next(lane for lane in drawing.lanes if lane.kind == "idle")
        found: dict[str, int] = {}
        for code, ns in zip(idle.detail.tolist(), (idle.end - idle.start).tolist(), strict=True):
            found[drawing.details[code].cause] = found.get(drawing.details[code].cause, 0) + ns
        wanted: dict[str, int] = {}
        for item in device.attribution:
            if item.when == "idle":
                wanted[item.cause] = wanted.get(item.cause, 0) + item.ns
        assert found == wanted


@pytest.mark.parametrize("name", ["training-dataloader", "mlp-training", "sync-storm"])
def test_each_subset_of_fixes_saves_what_what_if_says(sample: Callable[[str], Path], name: str) -> None:
    trace = read(sample(name))
    (drawing,) = drawn(trace)[1]
    fixes = drawing.fixes
    assert fixes is not None
    assert len(fixes.variants) == 2 ** len(fixes.rules) - 1
    for variant in fixes.variants:
        chosen = ",".join(fixes.rules[i] for i in variant.fixes)
        (what,) = examine([trace], Request(what_if=chosen))[0].what_if
        assert variant.saving_ns == what.saving_ns
        assert variant.strip.end_ns - variant.strip.start_ns <= 1.02 * (fixes.before.end_ns - fixes.before.start_ns)


def test_a_rank_s_fixes_are_priced_with_what_the_other_ranks_say(sample: Callable[[str], Path]) -> None:
    """Overlap saves a rank no more than it moves bytes for; how much it waits for others only all ranks can tell."""
    traces = [read(sample(f"comm-bound-rank-rank{i}")) for i in range(2)]
    advice, drawings = drawn(*traces)
    fixes = next(one.fixes for one in drawings if one.fixes)
    assert "comm-overlap" in fixes.rules
    for variant in fixes.variants:
        chosen = ",".join(fixes.rules[i] for i in variant.fixes)
        found = examine(traces, Request(what_if=chosen))[0].what_if
        assert variant.saving_ns in [what.saving_ns for what in found]
    finding = next(one for one in advice.findings if one.rule == fixes.rules[0])
    assert fixes.variants[0].saving_ns == finding.alone_ns


def test_the_memory_curve_reaches_the_peak(sample: Callable[[str], Path]) -> None:
    advice, (drawing,) = drawn(read(sample("training-dataloader")))
    assert drawing.memory is not None and advice.devices[0].memory is not None
    assert max(drawing.memory.allocated) == advice.devices[0].memory.peak_allocated
    assert list(drawing.memory.time_ns) == sorted(drawing.memory.time_ns)


def test_a_recording_without_gpu_work_is_drawn_by_its_threads(sample: Callable[[str], Path]) -> None:
    advice, (drawing,) = drawn(read(sample("cpu-mlp")))
    assert drawing.place is None and advice.host is not None
    assert [step.name for step in drawing.steps] == [step.name for step in advice.host.steps]
    assert {lane.kind for lane in drawing.lanes} == {"host"}
    assert {one.colour for one in drawing.details if one.name == "aten::linear"} == {"host-operator"}
