"""Fixes of the same kernels together leave them what the device needs: no time is saved twice."""

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request

from tests.build import trace
from tests.parts import STEPS, Part, drawn_steps

BF16, FP32 = "c10::BFloat16", "float"
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "computeMajor": 9, "computeMinor": 0}]
REACHABLE, PEAK, PEAK_FP8 = 794e12, 989.4e12, 1978.9e12
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
GOOD = Part("aten::mm", [[8192, 8192]] * 2, BF16, GEMM, 1.6)


def advised(*parts: Part) -> Advice:
    return advise_traces([trace(*drawn_steps(parts), deviceProperties=H100)], Request(phase="training"))


def product(m: int, k: int, n: int, ms: float, dtype: str = BF16, kernel: str = GEMM) -> Part:
    return Part("aten::mm", [[m, k], [k, n]], dtype, kernel, ms)


def saved_ms(advice: Advice) -> float:
    """What all findings save together at best, in ms of a step."""
    (joint,) = advice.joint
    return joint.saving_ns[1] / STEPS / 1e6


def rules(advice: Advice) -> set[str]:
    return {finding.rule for finding in advice.findings if finding.saving_ns}


def test_attention_by_its_kernel_and_by_its_rate() -> None:
    """Both rules speak of one kernel of 2.75e11 FLOP: at 794 TFLOP/s it takes 0.346 ms, and that is left of 0.9."""
    shape = [4, 4096, 16, 128]
    name = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>"
    advice = advised(Part("aten::_flash_attention_forward", [shape] * 3, BF16, name, 0.9), GOOD)
    assert {"flash-attention", "attention-efficiency"} <= rules(advice)
    left = 4 * 4 * 16 * (4096 * 4097 / 2) * 128 / REACHABLE * 1e3
    assert saved_ms(advice) == pytest.approx(0.9 - left, abs=1e-3)


def test_a_slow_product_with_odd_sizes() -> None:
    """Slower than its sibling, and no multiple of 16 bytes: padding comes first, and takes 72 / 91 of its time at best."""
    advice = advised(product(8192, 8191, 8193, 2.6), GOOD)
    assert rules(advice) == {"alignment-padding"}
    assert saved_ms(advice) == pytest.approx(2.6 * (1 - 72 / 91), abs=1e-3)


def test_products_bound_by_bytes_gain_half_of_them_in_16_bits() -> None:
    """16 rows on 16384 x 16384 weights: 0.54 GB in 16 bits at nine tenths of 3.35 TB/s, whatever the tensor cores can do."""
    advice = advised(product(16, 16384, 16384, 0.6, FP32, "ampere_sgemm_128x128_nn"))
    assert rules(advice) == {"mixed-precision"}
    left = 2 * (16384 * 16384 + 2 * 16 * 16384) / (0.9 * 3.35e12) * 1e3
    assert saved_ms(advice) == pytest.approx(0.6 - left, abs=1e-3)


@pytest.mark.parametrize("ms", [0.4, 1.2, 4.0])
def test_few_tiles_in_fp32(ms: float) -> None:
    """16 tiles of 128 x 128 on 132 SMs, in true fp32: type and tiles together leave at least the FLOPs at the 16-bit peak."""
    cut = product(512, 8192, 512, ms, FP32, "ampere_sgemm_128x128_nn")
    advice = advised(cut, product(8192, 8192, 8192, 25, FP32, "ampere_sgemm_128x128_nn"), GOOD)
    assert "mixed-precision" in rules(advice)
    flops = 2 * 512 * 8192 * 512 + 2 * 8192**3
    assert ms + 25 - saved_ms(advice) >= flops / PEAK * 1e3


@pytest.mark.parametrize("rows", [8192, 8704, 33 * 128 * 2])
def test_bad_waves_in_16_bits_and_fp8(rows: int) -> None:
    """FP8, tiles, siblings and tails of the same products together leave at least the FLOPs at the 8-bit peak."""
    parts = [product(rows, 8192, 4224, 2 * rows * 8192 * 4224 / 0.55 / PEAK * 1e3), *[GOOD._replace(ms=1.25)] * 2]
    advice = advised(*parts)
    assert "fp8-training" in rules(advice)
    flops = 2 * rows * 8192 * 4224 + 2 * 2 * 8192**3
    assert sum(part.ms for part in parts) - saved_ms(advice) >= flops / PEAK_FP8 * 1e3
