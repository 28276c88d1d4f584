"""The top of the kernel table of three recordings of others, beside what their shapes and events give by hand.

Calls and times are those of the kernel events that carry the external id of the operator. FLOPs and compulsory bytes follow
from the shapes: 2MNK and p(MK + KN + MN) of a product; 4BHSSD of attention and its four tensors; of a convolution 2 for
each element of the result and weight of its filter, and its input, weights and result; each element of a pointwise operation's
inputs and result.
"""

from pathlib import Path
from typing import NamedTuple

import gpu_trace_advisor
import pytest

pytestmark = pytest.mark.real


class Expected(NamedTuple):
    operator: str
    shape: str
    kernel: str
    """How its name begins."""
    calls: int
    ns: int
    median_us: float
    flops: float
    bytes: float


def product(m: int, k: int, n: int, more: int = 0) -> tuple[float, float]:
    """FLOPs and bytes in 16 bits, with `more` elements of a bias."""
    return 2 * m * k * n, 2 * (m * k + k * n + m * n + more)


ROWS, LONG = 8 * 4096, 16 * 559
LAYER, PLANE = LONG * 1024, 32 * 14 * 14

COMPILED = (
    Expected("aten::mm", "32768×2048, 2048×8192, 32768×8192", "Cijk_", 2, 3_749_165, 1874.5825, *product(ROWS, 2048, 8192)),
    Expected("aten::_flash_attention_forward", "8×4096×16×128, 8×4096×16×128, 8×4096×16×128", "attn_fwd", 1, 3_683_509, 3683.509,
             4 * 8 * 16 * 4096 * 4096 * 128, 4 * 2 * ROWS * 16 * 128),
    Expected("aten::mm", "32768×2048, 2048×2048, 32768×2048", "Cijk_", 4, 2_246_691, 560.9115, *product(ROWS, 2048, 2048)),
    Expected("aten::mm", "32768×8192, 8192×2048, 32768×2048", "Cijk_", 1, 2_033_699, 2033.699, *product(ROWS, 8192, 2048)),
    # One input is the result too: read twice and written once.
    Expected("triton_poi_fused__unsafe_view_mul_silu_2", "8×4096×8192, 32768×8192", "triton_poi", 1, 527_382, 527.382,
             ROWS * 8192, 3 * 2 * ROWS * 8192),
    Expected("triton_poi_fused__unsafe_view_add_3", "8×4096×2048, 8×4096×2048, 32768×2048", "triton_poi", 1, 140_848, 140.848,
             ROWS * 2048, 3 * 2 * ROWS * 2048),
)  # fmt: skip
PREFILL = (
    Expected("aten::mm", "8944×1024, 1024×2816", "sm90_xmma_gemm", 48, 4_015_501, 83.679, *product(LONG, 1024, 2816)),
    # A causal mask leaves 559 * 560 / 2 pairs of a sequence.
    Expected("aten::_flash_attention_forward", "16×559×16×64, 16×559×16×64, 16×559×16×64", "flash_fwd", 24, 2_722_705, 113.775,
             4 * 16 * 16 * 559 * 560 // 2 * 64, 4 * 2 * LAYER),
    Expected("aten::mul", "16×16×559×64, 1×1×559×64", "elementwise[mul]", 96, 2_679_732, 27.952, LAYER,
             2 * (2 * LAYER + 559 * 64)),
    Expected("aten::addmm", "1024, 8944×1024, 1024×1024", "sm90_xmma_gemm", 72, 2_266_292, 31.456,
             *product(LONG, 1024, 1024, 1024)),
    Expected("aten::cat", "2 tensors", "CatArrayBatchedCopy", 48, 2_014_326, 41.968, 0, 2 * 2 * LAYER),
    Expected("aten::mm", "8944×2816, 2816×1024", "sm90_xmma_gemm", 24, 1_814_774, 75.6315, *product(LONG, 2816, 1024)),
    Expected("aten::add", "16×16×559×64, 16×16×559×64", "elementwise[add]", 48, 1_671_096, 34.784, LAYER, 3 * 2 * LAYER),
)  # fmt: skip
POINTWISE = 2 * PLANE * 256 * 1024, 4 * (PLANE * 256 + 256 * 1024 + PLANE * 1024)
"""A 1 x 1 convolution between 256 and 1024 channels of 14 x 14, and its gradients, in fp32."""
TRAINING = (
    Expected("aten::cudnn_batch_norm_backward", "32×256×56×56, 32×256×56×56, 256, 256, …", "bn_bw_1C11", 24, 16_151_000, 673.5,
             5 * 32 * 256 * 56 * 56, 3 * 4 * 32 * 256 * 56 * 56),
    Expected("aten::cudnn_convolution_backward_input", "32×1024×14×14, 1024×256×1×1", "dgrad_engine", 36, 15_124_000, 404,
             *POINTWISE),
    Expected("aten::cudnn_convolution", "32×256×14×14, 1024×256×1×1", "implicit_convolve_sgemm", 36, 12_778_000, 355, *POINTWISE),
    Expected("aten::cudnn_convolution_backward_weight", "32×1024×14×14, 32×256×14×14", "wgrad_alg0_engine", 36, 12_637_000, 350.5,
             *POINTWISE),
    Expected("aten::cudnn_convolution_backward_weight", "32×256×56×56, 32×64×56×56", "wgrad_alg0_engine", 24, 11_321_000, 471,
             2 * 32 * 56 * 56 * 256 * 64, 4 * (32 * 56 * 56 * (256 + 64) + 256 * 64)),
    Expected("aten::cudnn_convolution", "32×1024×14×14, 256×1024×1×1", "implicit_convolve", 30, 10_729_000, 358, *POINTWISE),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected", "covered"),
    [
        ("inductor-mlp-mi300x", COMPILED, 1.0),
        ("qwen0.5b-prefill-h100", PREFILL, 1.0),
        ("resnet50-numworkers0-A-v100", TRAINING, 1.0),
    ],
)
def test_the_top_of_the_table(name: str, expected: tuple[Expected, ...], covered: float, real_traces: Path) -> None:
    found = gpu_trace_advisor.advise(real_traces / "traces" / "kineto" / f"{name}.json.gz").devices[0].inside_kernels
    assert found and found.covered == pytest.approx(covered, abs=1e-3)
    for one in expected:
        named = [row for row in found.rows if (row.operator, row.shape) == (one.operator, one.shape)]
        row = max((row for row in named if row.kernel.startswith(one.kernel)), key=lambda row: row.ns)
        assert (row.calls, row.ns) == (one.calls, one.ns), one
        assert row.median_ns == pytest.approx(1000 * one.median_us, abs=1), one
        assert (row.flops, row.bytes) == (one.flops, one.bytes), one
        assert row.flops_per_s == pytest.approx(one.flops / (one.median_us * 1e-6), rel=1e-4), one
        assert row.bytes_per_s == pytest.approx(one.bytes / (one.median_us * 1e-6), rel=1e-4), one
    assert max(row.ns for row in found.rows) == expected[0].ns
