"""Which device a recording is taken for, and that an unknown one has no peaks."""

from typing import Any

import pytest
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.reference.hardware import GIB, built_for, find, hardware
from gpu_trace_advisor.trace.model import Device

H100 = "NVIDIA H100 80GB HBM3"


def device(name: str = "", sms: int | None = None, gib: float | None = None, **properties: Any) -> Device:
    return Device(0, name, sms=sms, memory_bytes=round(gib * GIB) if gib else None, properties=properties)


@pytest.mark.parametrize(
    ("name", "sms", "gib", "key"),
    [
        (H100, 132, 79.2, "h100-sxm"),
        (H100, None, None, "h100-sxm"),
        ("NVIDIA A10", 72, 22.5, "a10"),
        ("NVIDIA A10G", 72, 22.3, "a10g"),
        ("NVIDIA H200 NVL", 132, 140.0, "h200-nvl"),
        ("NVIDIA B200", 148, 178.4, "b200"),
        ("Tesla V100-DGXS-32GB", 80, 31.7, "v100-sxm2"),
        ("NVIDIA A100-PG509-200", 108, 39.4, "a100-sxm4-40"),
        ("AMD Instinct MI300X VF", 304, 192.0, "mi300x"),
        ("NVIDIA A800-SXM4-80GB", 108, 79.3, "a800-sxm4-80"),
        ("NVIDIA H800", 132, 79.1, "h800-sxm"),
        ("NVIDIA H20", 78, 95.6, "h20"),
        ("NVIDIA H100", 132, 79.1, "h100-sxm"),
        ("NVIDIA H100", 114, 79.1, "h100-pcie"),
        ("NVIDIA A30 MIG 2g.12gb", 28, 11.6, "a30"),
        ("NVIDIA A40", 84, 44.4, "a40"),
        ("NVIDIA RTX A6000", 84, 47.5, "rtx-a6000"),
        ("NVIDIA RTX A4500", 56, 19.7, "rtx-a4500"),
        ("NVIDIA L40", 142, 44.4, "l40"),
        ("NVIDIA RTX 6000 Ada Generation", 142, 47.4, "rtx6000-ada"),
        ("NVIDIA GeForce RTX 3060", 28, 11.6, "rtx3060"),
        ("NVIDIA GeForce RTX 3070 Ti", 48, 7.8, "rtx3070ti"),
        ("NVIDIA GeForce RTX 3080", 68, 9.6, "rtx3080"),
        ("NVIDIA GeForce RTX 4060", 24, 7.6, "rtx4060"),
        ("NVIDIA GeForce RTX 4070", 46, 11.7, "rtx4070"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 15.7, "rtx4090-laptop"),
        ("NVIDIA GeForce RTX 2070 SUPER", 40, 7.8, "rtx2070-super"),
        ("Quadro RTX 6000", 72, 22.2, "quadro-rtx-6000"),
        ("Quadro GP100", 56, 15.9, "quadro-gp100"),
        ("AMD Instinct MI250", 104, 64.0, "mi250-gcd"),
        ("Orin", 14, 30.0, "orin-agx-32"),
        ("Orin", 16, 61.0, "orin-agx-64"),
    ],
)
def test_by_name(name: str, sms: int | None, gib: float | None, key: str) -> None:
    found = find(device(name, sms, gib))
    assert found and found.key == key and not found.inferred


@pytest.mark.parametrize(
    ("name", "sms", "gib"),
    [
        ("", None, None),
        ("NVIDIA A100", 108, 79.2),  # SXM or PCIe: not told
        ("NVIDIA A1000", 16, 8.0),
        ("NVIDIA GeForce RTX 3090 Ti", 84, 23.7),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA RTX 5880 Ada Generation", 110, 48.0),
        ("NVIDIA H100", None, None),  # SXM or PCIe: not told
        ("NVIDIA GeForce RTX 3080", 70, 12.0),  # the later card, with other rates
        ("Orin", None, None),
        ("", 132, 140.0),  # H200 or H200 NVL
        ("", 108, 79.2),
        ("ARTEMIS", None, None),
        ("NVIDIA RTX A2000 12GB", 26, 11.6),
    ],
)
def test_never_a_guess(name: str, sms: int | None, gib: float | None) -> None:
    assert find(device(name, sms, gib)) is None


def test_nameless_devices_are_inferred_and_say_so() -> None:
    found = find(device("", 304, 191.98, warpSize=64))
    assert found and found.key == "mi300x" and found.inferred and "304 CUs and 192 GiB" in found.found
    mi210 = find(device("AMD Radeon Graphics", 104, 63.98, warpSize=64))
    assert mi210 and mi210.inferred and "AMD Instinct MI210 or AMD Instinct MI250, which are alike" in mi210.found
    assert mi210.peaks["fp16"] == 181e12


def test_the_recording_wins_over_the_table() -> None:
    found = find(device("NVIDIA A100-SXM4-80GB", 108, 79.25, memoryBandwidth=2_039_040_000_000, l2CacheSize=41_943_040))
    assert found and found.bandwidth == 2.03904e12 and found.l2_bytes == 40 * 2**20
    assert found.memory_bytes == round(79.25 * GIB)


def test_a_slice_has_its_share() -> None:
    """MIG 1g.5gb of an A100 40 GB: 14 of 108 SMs, an eighth of the memory."""
    found = find(device("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 5.0))
    assert found and found.sms == 14
    assert found.peaks["bf16"] == pytest.approx(312e12 * 14 / 108)
    assert found.bandwidth == pytest.approx(1.555e12 / 8)
    assert "14 of 108 SMs" in found.found


@pytest.mark.parametrize(
    ("key", "dtype", "ridge"),
    [("h100-sxm", "bf16", 989.4 / 3.35), ("h100-sxm", "fp8", 1978.9 / 3.35), ("h20", "bf16", 37), ("h200-sxm", "bf16", 206.1),
     ("l4", "bf16", 121 / 0.3), ("h100-sxm", "fp32", 66.9 / 3.35), ("mi210", "fp32", 45.3 / 1.6)],
)  # fmt: skip
def test_ridge(key: str, dtype: str, ridge: float) -> None:
    assert hardware()[key].ridge(dtype) == pytest.approx(ridge, rel=1e-3)


def test_ridge_batches_of_an_h100() -> None:
    """2-byte weights with bf16 math 295, 1-byte weights half of it; fp8 both ways 295 again."""
    h100 = hardware()["h100-sxm"]
    assert h100.batch_ridge("bf16", 2) == pytest.approx(295.3, rel=1e-3)
    assert h100.batch_ridge("bf16", 1) == pytest.approx(147.7, rel=1e-3)
    assert h100.batch_ridge("fp8", 1) == pytest.approx(295.4, rel=1e-3)
    assert hardware()["v100-sxm2"].batch_ridge("bf16", 2) is None


def test_links_are_one_direction() -> None:
    assert hardware()["h100-sxm"].nvlink == 450e9
    assert hardware()["a100-sxm4-40"].pcie == 31.5e9
    assert hardware()["h100-sxm"].launch["graph"].ns == 1300


@pytest.mark.parametrize("asked", ["h100-sxm", "H100 SXM", H100, "nvidia h100 80gb hbm3"])
def test_override(asked: str) -> None:
    found = find(device("NVIDIA T4"), asked)
    assert found and found.key == "h100-sxm" and asked in found.found


@pytest.mark.parametrize(("asked", "near"), [("h100", "h100-pcie"), ("h1000-sxm", "h100-sxm"), ("???", "b200")])
def test_unknown_override_lists_what_is_near(asked: str, near: str) -> None:
    with pytest.raises(BadUsage, match=near):
        find(device(H100), asked)


def test_every_device_is_whole_and_sourced() -> None:
    for known in hardware().values():
        assert known.sources and known.confidence in ("high", "medium", "low")
        assert known.bandwidth > 0 and known.sms > 0 and known.peaks
        assert all(peak > 1e12 or dtype == "fp64" for dtype, peak in known.peaks.items())


def test_names_of_amds_kernels_say_what_they_are_built_for() -> None:
    tensile = "Cijk_Ailk_Bljk_BBS_BH_MT256x112x64_MI16x16x16x1_SN_GSUASB_GLS0_ISA942_IU1_K1_KLA"
    assert built_for([tensile, "Cijk_B_PostGSU2"]) == ("mi300x", "mi325x")
    assert built_for(["conv_fwd_gfx90a.kd"]) == ("mi210", "mi250-gcd", "mi250x-gcd")
    assert built_for(["ampere_sgemm_128x64_tn", "aten::mm", "gfx9421"]) == ()
