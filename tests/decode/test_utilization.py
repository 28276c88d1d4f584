"""Busy, MFU and MBU by hand, and None with the reason where they cannot be told."""

from typing import Any

import pytest
from gpu_trace_advisor.analysis.phase import Phase
from gpu_trace_advisor.analysis.request import DECODE, TRAINING
from gpu_trace_advisor.decode.utilization import Utilization, efficiency
from gpu_trace_advisor.reference.hardware import hardware
from gpu_trace_advisor.roofline.kernel_time import InKernel

from tests.build import call, kernel, op, timeline

BF16 = "c10::BFloat16"
H100 = hardware()["h100-sxm"]


def shown(
    rows: int, length: float, wall: float, phase: str = DECODE, device: Any = H100, extra: Any = (), **more: Any
) -> Utilization:
    """One product [rows, 8192] x [8192, 8192] of `length` µs in a window of `wall` µs."""
    shapes = {"Input Dims": [[rows, 8192], [8192, 8192]], "Input type": [BF16, BF16]}
    events = [op("aten::mm", 0, 9, **shapes), call(1, 3, 1), kernel(10, 10 + length, 1, "nvjet_gemm"), *extra]
    return efficiency(InKernel(timeline(*events), device), 0, round(wall * 1000), Phase(phase, "test"), **more)


def test_by_hand() -> None:
    """4096 rows: 2 x 4096 x 8192 x 8192 FLOPs at 989.4 TFLOP/s are 555.6 µs of 1111; one row: 134.2 MB at 3.35 TB/s."""
    many = shown(4096, 1000, 1111.3, TRAINING)
    assert many.mfu.value == pytest.approx(0.5, rel=1e-3) and many.busy.value == pytest.approx(1000 / 1111.3)
    assert many.mbu.value is None and "training" in many.mbu.why
    one = shown(1, 50, 100, steps=1)
    assert one.mbu.value == pytest.approx(2 * 8192**2 / 3.35e12 / 100e-6, rel=1e-6)
    assert one.mfu.value == pytest.approx(2 * 8192**2 / 989.4e12 / 100e-6, rel=1e-6)
    assert one.busy.value == 0.5 and one.busy.grade == "measured" and one.mbu.grade == "modelled"


def test_weights_as_given() -> None:
    assert shown(1, 50, 100, steps=1, weights=100_000_000).mbu.value == pytest.approx(1e8 / 3.35e12 / 100e-6)


def test_what_is_missing_is_said() -> None:
    assert "--hardware" in shown(1, 50, 100, device=None, steps=1).mfu.why
    assert "--hardware" in shown(1, 50, 100, device=None, steps=1).mbu.why
    assert "number of steps" in shown(1, 50, 100).mbu.why
    unknown = [call(11, 12, 2), kernel(61, 99, 2, "another_gemm")]
    partly = shown(1, 50, 100, steps=1, extra=unknown)
    assert partly.mbu.value is None and "57 %" in partly.mbu.why and "--weights" in partly.mbu.why
    assert partly.mfu.value is not None and partly.mfu.why.startswith("at least")
    mostly = shown(1, 10, 100, steps=1, extra=[call(11, 12, 2), kernel(21, 99, 2, "another_gemm")])
    assert mostly.mfu.value is None and "11 %" in mostly.mfu.why
    empty = efficiency(InKernel(timeline(call(1, 3, 1), kernel(10, 20, 1, "relu")), H100), 0, 30_000, Phase(DECODE, ""))
    assert empty.mfu.value is None and "no matrix product" in empty.mfu.why


def test_impossible_values_are_refused_and_high_ones_flagged() -> None:
    assert shown(4096, 400, 400, TRAINING).mfu.value is None
    assert "wrong" in shown(4096, 400, 400, TRAINING).mfu.why
    assert shown(4096, 600, 615, TRAINING).mfu.why.startswith("suspicious: 40 % to 55 % is good")
    assert shown(1, 20, 30, steps=1).mbu.value is None
