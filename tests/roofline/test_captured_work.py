"""Kernels of replayed graphs take the operators that a recording of the capture tells: values worked out by hand."""

import json
from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.roofline.captured_work import read_capture, with_captures
from gpu_trace_advisor.roofline.operator_costs import Costs, operation_costs

from tests.build import annotation, call, kernel, op, timeline, trace, written

Json = dict[str, Any]
BF16 = "c10::BFloat16"
UP, DOWN = [[64, 4096], [4096, 1024]], [[64, 1024], [1024, 1024]]
UP_FLOPS, DOWN_FLOPS = 536_870_912, 134_217_728  # 2 * 64 * 1024 * 4096 and 2 * 64 * 1024 * 1024
SIZE: Json = {"grid": [8, 1, 1], "block": [256, 1, 1]}
POINTWISE: Json = {"grid": [64, 1, 1], "block": [128, 1, 1]}


def launch(operator: str, shapes: list[list[int]], at: float, name: str, size: Json, number: int) -> list[Json]:
    """An operator that launches a kernel while its stream is captured: the call names it, as on ROCm."""
    return [
        op(operator, at, at + 8, **{"Input Dims": shapes, "Input type": [BF16] * len(shapes)}),
        call(at + 1, at + 4, number, "hipLaunchKernel", kernel=name, **size),
    ]


def begin(at: float) -> Json:
    return call(at, at + 1, 0, "hipStreamBeginCapture")


def end(at: float) -> Json:
    return call(at, at + 1, 0, "hipStreamEndCapture")


def two_products(at: float = 0, rows: int = 64) -> list[Json]:
    """A graph of two products with one kernel, and an activation between them."""
    up, down = [[rows, *UP[0][1:]], UP[1]], [[rows, *DOWN[0][1:]], DOWN[1]]
    return [
        begin(at), *launch("aten::mm", up, at + 10, "bf16_gemm", SIZE, 1),
        *launch("aten::silu", [[rows, 1024]], at + 20, "silu_kernel", POINTWISE, 2),
        *launch("aten::mm", down, at + 30, "bf16_gemm", SIZE, 3), end(at + 40),
    ]  # fmt: skip


def replayed(*sizes: Json, streams: tuple[int, ...] = (7, 7, 7)) -> list[Json]:
    names = ("bf16_gemm", "silu_kernel", "bf16_gemm")
    times = ((20, 60), (60, 70), (70, 90))
    return [
        call(0, 10, 5, "hipGraphLaunch"),
        *(
            kernel(*time, 5, name, stream=stream, **size)
            for name, time, size, stream in zip(names, times, sizes, streams, strict=True)
        ),
    ]


WHOLE = replayed(SIZE, POINTWISE, SIZE)


def costs_with(replay: list[Json], *captures: list[Json]) -> Costs:
    one = timeline(*replay)
    return with_captures(operation_costs(one), one, [read_capture(trace(*events)) for events in captures])


def flops(found: Costs) -> list[float | None]:
    return [found.kinds[kind].flops if kind >= 0 else None for kind in found.kind.tolist()]


def test_equal_kernels_take_their_operators_in_order() -> None:
    found = costs_with(WHOLE, two_products())
    assert flops(found)[::2] == [UP_FLOPS, DOWN_FLOPS]
    assert [found.called[kind][0] for kind in found.kind.tolist()] == ["aten::mm", "aten::silu", "aten::mm"]
    assert found.captured is not None and found.captured.all() and found.share.tolist() == [1, 1, 1]


def test_replayed_kernels_without_sizes_are_matched_by_name() -> None:
    """ROCm writes no grid with them. Captures of two batch sizes with the same kernels then tell nothing; one of them does."""
    bare = replayed({}, {}, {})
    assert flops(costs_with(bare, two_products()))[::2] == [UP_FLOPS, DOWN_FLOPS]
    assert flops(costs_with(bare, two_products(), two_products(rows=32))) == [None] * 3


def test_what_two_captures_tell_alike_is_taken() -> None:
    assert flops(costs_with(WHOLE, [*two_products(), *two_products(at=100)]))[::2] == [UP_FLOPS, DOWN_FLOPS]


def test_another_graph_gives_only_what_is_alone_in_its_kind() -> None:
    """The replay has one activation more than the capture: products of two sizes share name and grid and stay unknown."""
    more = [*WHOLE, kernel(90, 100, 5, "silu_kernel", **POINTWISE)]
    found = costs_with(more, two_products())
    assert [found.called[kind][0] if kind >= 0 else "" for kind in found.kind.tolist()] == [
        "",
        "aten::silu",
        "",
        "aten::silu",
    ]
    strange = replayed({"grid": [16, 1, 1], "block": [256, 1, 1]}, POINTWISE, SIZE)  # the batch is another one
    assert costs_with(strange, two_products()).captured is None


def test_equal_kernels_on_several_streams_have_no_order() -> None:
    found = costs_with(replayed(SIZE, POINTWISE, SIZE, streams=(7, 7, 8)), two_products())
    assert flops(found)[::2] == [None, None]
    assert found.kind[1] >= 0


def test_kernels_of_one_operator_share_its_work() -> None:
    """A product in two kernels: the reduction of its parts has none of its work."""
    shapes: Json = {"Input Dims": UP, "Input type": [BF16] * 2}
    capture = [
        begin(0), op("aten::mm", 10, 20, **shapes),
        call(11, 13, 1, "hipLaunchKernel", kernel="bf16_gemm", **SIZE),
        call(14, 16, 2, "hipLaunchKernel", kernel="splitKreduce_kernel", **POINTWISE), end(30),
    ]  # fmt: skip
    replay = [
        call(0, 10, 5, "hipGraphLaunch"), kernel(20, 60, 5, "bf16_gemm", **SIZE),
        kernel(60, 70, 5, "splitKreduce_kernel", **POINTWISE),
    ]  # fmt: skip
    found = costs_with(replay, capture)
    assert flops(found) == [UP_FLOPS, None]
    assert found.helps is not None and found.helps.tolist() == [False, True]


def cuda_capture(second: list[list[int]]) -> list[Json]:
    """CUDA's recorder does not name captured kernels; the run before the capture made the same calls, or not."""
    events = []
    for i, (shapes, at) in enumerate(((UP, 0), (DOWN, 200), (UP, 400), (second, 420))):
        number = i + 1
        events.append(op("aten::mm", at + 1, at + 9, **{"Input Dims": shapes, "Input type": [BF16] * 2}))
        events.append(call(at + 2, at + 4, number, "cudaLaunchKernel"))
        if i < 2:
            events.append(kernel(at + 20, at + 60, number, "bf16_gemm", **SIZE))
    capture = (call(390, 391, 0, "cudaStreamBeginCapture"), call(440, 441, 0, "cudaStreamEndCapture"))
    return [*events, *capture]


def test_the_run_before_a_capture_names_its_kernels() -> None:
    replay = [
        call(0, 10, 5, "cudaGraphLaunch"), kernel(20, 60, 5, "bf16_gemm", **SIZE), kernel(60, 90, 5, "bf16_gemm", **SIZE)
    ]  # fmt: skip
    assert flops(costs_with(replay, cuda_capture(DOWN))) == [UP_FLOPS, DOWN_FLOPS]
    assert flops(costs_with(replay, cuda_capture(UP))) == [None, None]


def test_kernels_launched_one_by_one_take_nothing() -> None:
    direct = [call(0, 4, 1), kernel(20, 60, 1, "bf16_gemm", **SIZE), call(5, 9, 2), kernel(60, 70, 2, "silu_kernel")]
    assert costs_with(direct, two_products()).captured is None


def test_the_command_says_what_a_capture_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two products in 40 and 20 µs: 13.4 and 6.7 TFLOP/s, all of the kernels' 70 µs with known work."""
    capture = written(tmp_path / "capture.json", *two_products())
    recorded = written(tmp_path / "decode.json", *WHOLE)
    arguments = [str(recorded), "--capture", str(capture), "--hardware", "mi300x"]
    assert main([*arguments, "--format", "json"]) == 0
    inside = json.loads(capsys.readouterr().out)["devices"][0]["inside_kernels"]
    assert (inside["kernel_ns"], inside["covered_ns"], inside["captured_ns"]) == (70_000, 70_000, 70_000)
    rows = {(row["operator"], row["shape"]): row for row in inside["rows"]}
    up, down = rows["aten::mm", "64×4096, 4096×1024"], rows["aten::mm", "64×1024, 1024×1024"]
    assert (up["flops"], up["captured"], up["borrowed"], up["calls"]) == (UP_FLOPS, 1, 0, 1)
    assert up["flops_per_s"] == pytest.approx(UP_FLOPS / 40e-6) and down["flops_per_s"] == pytest.approx(
        DOWN_FLOPS / 20e-6
    )
    assert main([*arguments, "-v"]) == 0
    assert "100.0 % of the kernels' time has known work (100.0 % by --capture)" in " ".join(
        capsys.readouterr().out.split()
    )
    advice = gpu_trace_advisor.advise(recorded, request=gpu_trace_advisor.Request(captures=(str(capture),)))
    told = advice.devices[0].inside_kernels
    assert told and told.captured_ns == 70_000


def test_a_capture_that_tells_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = written(tmp_path / "capture.json", *two_products())
    other = written(tmp_path / "other.json", call(0, 4, 1), kernel(20, 60, 1, "kernel"))
    assert main([str(other), "--capture", str(capture), "--format", "json"]) == 0
    health = json.loads(capsys.readouterr().out)["health"]
    assert [note["message"] for note in health if note["code"] == "unused-capture"] == [
        "--capture tells nothing of device 0: it replays no graph"
    ]


@pytest.mark.parametrize("content", [None, "no recording"])
def test_a_capture_that_cannot_be_read_is_the_end(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, capture = written(tmp_path / "decode.json", *WHOLE), tmp_path / "capture.json"
    if content is not None:
        capture.write_text(content)
    assert main([str(recorded), "--capture", str(capture)]) == 2
    assert "capture.json" in capsys.readouterr().err


def test_a_capture_is_not_written_over(tmp_path: Path) -> None:
    capture = written(tmp_path / "capture.json", *two_products())
    recorded = written(tmp_path / "decode.json", *WHOLE)
    assert main([str(recorded), "--capture", str(capture), "--json", str(capture)]) == 2
    assert json.loads(capture.read_text())["traceEvents"]


def test_attention_takes_its_operator_from_the_capture_and_its_cache_from_the_replay() -> None:
    """Two tokens over 300 cached ones; the capture was made with none."""
    shapes = [[2, 8, 64], [2, 1, 64], [2, 1, 64], [2, 8, 64]]
    capture = [
        begin(0),
        *launch("vllm::unified_attention_with_output", shapes, 10, "kernel_unified_attention", SIZE, 1),
        end(40),
    ]
    replay = [
        annotation("execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk300sqsq2sqsk300)", 0, 15),
        call(0, 10, 5, "hipGraphLaunch"), kernel(20, 60, 5, "kernel_unified_attention", **SIZE),
    ]  # fmt: skip
    assert flops(costs_with(replay, capture)) == [4 * 64 * 8 * 300]
