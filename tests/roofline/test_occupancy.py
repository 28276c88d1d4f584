"""Idle SMs of the last wave, by hand."""

from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.roofline.kernel_time import device_of
from gpu_trace_advisor.roofline.occupancy import SmLimits, resident_blocks, sm_limits, tail_shares, tails
from gpu_trace_advisor.trace.model import Device

from tests.build import call, kernel, op, timeline_of, trace

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85018279936, "computeMajor": 9,
        "computeMinor": 0, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 233472, "warpSize": 32}  # fmt: skip
LIMITS = SmLimits(warps=64, blocks=32, shared_bytes=233472, registers=65536, reserved_bytes=1024)


def one(value: int) -> Any:
    return np.array([value], np.int64)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "resident"),
    [
        (128, 32, 0, 16),  # 64 warps of 4
        (32, 16, 0, 32),  # as many blocks as an SM takes
        (256, 128, 0, 2),  # 65536 / (4096 x 8)
        (128, 90, 0, 5),  # registers in units of 256 a warp: 2880 -> 3072
        (384, 168, 231424, 1),  # 231424 + 1024 of 233472 bytes
        (128, 16, 20480, 10),
        (1024, 255, 0, 1),  # would not fit: still one runs
    ],
)
def test_resident_blocks(threads: int, registers: int, shared: int, resident: int) -> None:
    assert resident_blocks(LIMITS, one(threads), one(registers), one(shared)).tolist() == [resident]


@pytest.mark.parametrize(
    ("blocks", "sms", "resident", "waves", "idle", "bound"),
    [
        (512, 148, 1, 4, 80 / 148 / 4, 1 - 512 / 592),  # Hazy Research: 68 SMs work in the fourth wave, 80 idle
        (132, 132, 1, 1, 0.0, 0.0),
        (133, 132, 1, 2, 131 / 132 / 2, 1 - 133 / 264),
        (66, 132, 4, 1, 0.5, 1 - 66 / 528),
        (264, 132, 4, 1, 0.0, 0.5),  # every SM has work, none is full
        (1, 132, 16, 1, 131 / 132, 1 - 1 / 2112),
    ],
)
def test_tail(blocks: int, sms: int, resident: int, waves: int, idle: float, bound: float) -> None:
    found = tail_shares(one(blocks), sms, one(resident))
    assert [column.tolist()[0] for column in found] == pytest.approx([waves, idle, bound])
    assert found[1] <= found[2]


def test_limits_come_from_the_recording_then_from_the_table() -> None:
    seen = Device(0, compute_capability=(8, 9), properties={"maxWarpsPerMultiprocessor": 48, "maxBlocksPerMultiprocessor": 24,
                  "sharedMemPerMultiprocessor": 102400, "regsPerMultiprocessor": 65536, "warpSize": 32})  # fmt: skip
    assert sm_limits(seen) == SmLimits(48, 24, 102400, 65536, 1024)
    assert sm_limits(Device(0, compute_capability=(7, 0))) == SmLimits(64, 32, 96 * 1024, 65536, 0)
    assert sm_limits(Device(0)) is None
    assert sm_limits(Device(0, compute_capability=(9, 4), properties={"warpSize": 64})) is None  # AMD
    assert sm_limits(Device(0, compute_capability=(13, 7))) is None


def launched(**geometry: Any) -> Any:
    recording = trace(
        op("aten::mm", 0, 20), call(5, 8, 1), kernel(20, 40, 1, **geometry), deviceProperties=[H100]
    )  # fmt: skip
    one_device = timeline_of(recording)
    return tails(one_device, device_of(one_device), 132)


def test_tail_of_a_recorded_kernel() -> None:
    found = launched(grid=[22, 3, 1], block=[128, 1, 1], **{"registers per thread": 128, "shared memory": 0})
    assert found.idle.tolist() == [0.5] and found.resident.tolist() == [4] and found.waves.tolist() == [1]


@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"grid": [66, 1, 1], "block": [128, 1, 1]},  # ROCm: neither registers nor shared memory
        {"grid": [66, 1, 1], "block": [128, 1, 1], "registers per thread": 0, "shared memory": 0},
        {"grid": [0, 0, 0], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0},
        # Damage.
        {"grid": [-1, -1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0},
        {"grid": [2**40, 2**40, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0},
        {"grid": [66, 1, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0},
        {"grid": [66, 1, 1], "block": [2**40, 1, 1], "registers per thread": 32, "shared memory": 0},
        {"grid": [66, 1, 1], "block": [128, 1, 1], "registers per thread": 2**60, "shared memory": 0},
        {"grid": [66, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 2**62},
    ],
)
def test_not_measurable_is_not_zero(geometry: dict[str, Any]) -> None:
    assert np.isnan(launched(**geometry).idle).all()
