"""Rates, bounds and ceilings of the kernel table, worked by hand for an H100 (989.4 TFLOP/s, 3.35 TB/s, 794 published)."""

from typing import Any

import pytest
from gpu_trace_advisor.reference.hardware import hardware
from gpu_trace_advisor.roofline.kernel_table import Kernels, shape_text
from gpu_trace_advisor.roofline.kernel_time import InKernel

from tests.build import call, kernel, op, timeline

BF16, FP32 = "c10::BFloat16", "float"
H100 = hardware()["h100-sxm"]


def table(*events: dict[str, Any]) -> Kernels:
    one = timeline(*events)
    return Kernels(InKernel(one, H100), *one.span_ns)


def calls(
    operator: str, shapes: list[list[int]], dtype: str, name: str, times: list[float], at: float = 0.0, **more: Any
) -> list[Any]:
    """Calls of an operator that take so many µs each."""
    events, now = [], at
    for i, length in enumerate(times):
        number = int(at) + i + 1
        events.append(op(operator, now, now + 10, **{"Input Dims": shapes, "Input type": [dtype] * len(shapes)}))
        events += [call(now + 1, now + 5, number), kernel(now + 20, now + 20 + length, number, name, **more)]
        now += 30 + length
    return events


SQUARE = [[4096, 4096], [4096, 4096]]
FLOPS, BYTES = 2 * 4096**3, 3 * 2 * 4096**2


def test_a_product_beside_both_ceilings() -> None:
    """137.4 GFLOP in 250 µs: 549.8 TFLOP/s, 55.6 % of the datasheet, 69.2 % of what is published."""
    found = table(*calls("aten::mm", SQUARE, BF16, "bf16_gemm", [240, 250, 300]))
    (row,) = found.rows
    assert (row.operator, row.shape, row.calls, row.median_ns) == ("aten::mm", "4096×4096, 4096×4096", 3, 250_000)
    assert (row.flops, row.bytes, row.bound) == (FLOPS, BYTES, "compute")
    assert row.flops_per_s == pytest.approx(FLOPS / 250e-6) and row.flops_per_byte == FLOPS / BYTES
    assert row.of_datasheet == pytest.approx(FLOPS / 250e-6 / 989.4e12)
    assert row.of_reachable == pytest.approx(FLOPS / 250e-6 / 794e12)
    assert row.above_ns == pytest.approx(790_000 - 3 * FLOPS / 794e12 * 1e9, abs=2)
    assert "published" in row.reachable_from and not row.doubt
    assert (found.covered, found.kernel_ns) == (1.0, 790_000)


def test_the_best_of_the_recording_is_reachable_where_it_is_more() -> None:
    """165 µs are 833 TFLOP/s, more than the 794 published, less than the datasheet."""
    fast = calls("aten::mm", SQUARE, BF16, "fast_gemm", [165, 165, 165])
    slow = calls("aten::mm", [[4096, 8192], [8192, 4096]], BF16, "slow_gemm", [500, 500, 500], at=5000)
    found = table(*fast, *slow)
    rows = {row.kernel: row for row in found.rows}
    assert rows["slow_gemm"].reachable == pytest.approx(FLOPS / 165e-6)
    assert rows["slow_gemm"].reachable_from == "the best of this recording"
    assert rows["fast_gemm"].of_reachable == pytest.approx(1.0) and rows["fast_gemm"].above_ns == 0
    two = table(*fast[:6], *slow)  # two calls show nothing
    assert all(row.reachable == 794e12 for row in two.rows)


def test_bandwidth_is_the_datasheets_share_where_nothing_better_was_seen() -> None:
    """805 MB in 500 µs: 1.61 TB/s, 48 % of the datasheet, 53 % of nine tenths of it."""
    (row,) = table(*calls("aten::add", [[8192, 8192], [8192, 8192]], FP32, "add_kernel", [500] * 3)).rows
    assert row.bound == "memory" and row.bytes == 3 * 4 * 8192**2
    assert row.of_datasheet == pytest.approx(row.bytes / 500e-6 / 3.35e12)
    assert row.of_reachable == pytest.approx(row.bytes / 500e-6 / (0.9 * 3.35e12))
    near = table(*calls("aten::add", [[8192, 8192], [8192, 8192]], FP32, "add_kernel", [275] * 3)).rows[0]
    assert near.reachable == pytest.approx(near.bytes / 275e-6) and near.reachable_from == "the best of this recording"


def test_what_is_not_judged_says_why() -> None:
    short = table(*calls("aten::mm", [[256, 256], [256, 256]], BF16, "gemm", [8, 8, 8])).rows[0]
    assert short.doubt.startswith("short")
    fast = table(*calls("aten::mm", SQUARE, BF16, "gemm", [50, 50, 50])).rows[0]
    assert fast.doubt.startswith("faster than the device allows")
    beside = table(
        *calls("aten::mm", SQUARE, BF16, "gemm", [250]), call(6, 8, 99), kernel(25, 260, 99, "other_gemm", stream=9)
    ).rows[0]
    assert beside.doubt == "runs beside other kernels"


def test_what_is_missing_is_named_by_operator() -> None:
    known = calls("aten::mm", SQUARE, BF16, "gemm", [250])
    unknown = [op("my::op", 400, 440), call(401, 405, 77), kernel(500, 800, 77, "secret")]
    found = table(*known, *unknown)
    assert found.covered == pytest.approx(250 / 550)
    assert [(one.operator, one.kernel, one.calls, one.ns) for one in found.missing] == [
        ("my::op", "secret", 1, 300_000)
    ]


def test_kernels_that_help_the_main_one_are_covered() -> None:
    events = [
        op("aten::mm", 0, 10, **{"Input Dims": SQUARE, "Input type": [BF16] * 2}),
        call(1, 3, 1), call(4, 6, 2), kernel(20, 270, 1, "gemm"), kernel(270, 280, 2, "splitKreduce_kernel"),
    ]  # fmt: skip
    found = table(*events)
    assert found.covered == 1.0 and found.missing == [] and len(found.rows) == 1


def test_shapes_as_text() -> None:
    assert shape_text("[[2, 3], [], [[4], [5, 6]]]") == "2×3, 2 tensors"
    assert shape_text("[[1], [2], [3], [4], [5]]") == "1, 2, 3, 4, …"
    assert shape_text("no json") == shape_text("5") == ""
