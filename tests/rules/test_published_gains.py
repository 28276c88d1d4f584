"""Gains that others measured and published, drawn as recordings of before: each lies inside the interval that the rule gives.

GPT-2 of 124 M parameters on one A100 80GB, 16 sequences of 1024 tokens: a public training log went from 1031 ms a step (fp32) to
354 (tf32), 311 (bf16), 136 (compiled), 97.3 (fused attention) and 94.4 (vocabulary of 50304 instead of 50257). What its step
consists of follows from the model: 12 layers of width 768 with 12 heads of 64.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from gpu_trace_advisor.advice.build import advise_traces

from tests.build import annotation, call, kernel, op, step, sync, trace
from tests.parts import STEPS, Part, drawn_steps

BF16, FP32 = "c10::BFloat16", "float"
A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "computeMajor": 8, "computeMinor": 0}]


def gain(rule: str, parts: Sequence[Part]) -> tuple[float, float]:
    """What the rule says that steps of these parts would save: parts of the wall time."""
    return told(rule, drawn_steps(parts))


def told(rule: str, events: Sequence[dict[str, Any]]) -> tuple[float, float]:
    advice = advise_traces([trace(*events, deviceProperties=A100)])
    (alone,) = [finding.alone_ns for finding in advice.findings if finding.rule == rule]
    assert alone is not None
    return alone[0] / advice.devices[0].wall_ns, alone[1] / advice.devices[0].wall_ns


def test_tf32_on_one_large_product() -> None:
    """10240 cubed on an A100: 0.11 to 0.016 s (PyTorch, CUDA semantics)."""
    size = 10240
    low, high = gain("mixed-precision", [Part("aten::mm", [[size, size]] * 2, FP32, "ampere_sgemm_128x128_nn", 110)])
    assert low <= (0.11 - 0.016) / 0.11 <= high


TOKENS, WIDTH, LAYERS = 16 * 1024, 768, 12
PRODUCT_FLOPS = 6 * 123.5e6 * TOKENS + 3 * LAYERS * 4 * 16 * 1024**2 * WIDTH  # weights and attention: 1.4e13


def test_gpt2_in_fp32() -> None:
    """1.4e13 FLOP at 90 % of 19.5 TFLOP/s are 798 of the 1031 ms: to tf32 677 less, to bf16 720."""
    products = PRODUCT_FLOPS / (0.9 * 19.5e12) * 1000
    assert products == pytest.approx(798, abs=1)
    parts = [
        Part("aten::mm", [[TOKENS, WIDTH], [WIDTH, 4 * WIDTH]], FP32, "ampere_sgemm_128x128_tn", products),
        Part("aten::add", [[TOKENS, WIDTH]] * 2, FP32, "vectorized_elementwise_kernel_add", 1031 - products),
    ]
    low, high = gain("mixed-precision", parts)
    assert low <= (1031 - 354) / 1031 <= (1031 - 311) / 1031 <= high


SCORES = [16 * 12, 1024, 1024]
HEADS, TURNED = [16 * 12, 1024, 64], [16 * 12, 64, 1024]


def training_attention(rate: float) -> list[Part]:
    """Of a compiled layer, forward and backward: products of 16 x 12 heads of 64, and one kernel for scale, mask and softmax.

    Each pass over the 403 MB of scores at this many bytes a second: two products forward with one pass each and the softmax with
    two; backward four products with one pass each and the softmax with three.
    """
    one = 2 * 16 * 12 * 1024**2 / rate * 1000
    product = "ampere_bf16_s16816gemm_bf16_128x64_tn"
    forward, backward = (
        "triton_per_fused__softmax_masked_fill_mul_3",
        "triton_per_fused__softmax_backward_data_masked_fill_mul_7",
    )
    size = (16 * 12 * 1024, 1024)
    return [
        Part("aten::bmm", [HEADS, TURNED], BF16, product, one),
        Part(forward, [SCORES, SCORES, *([[]] * 2)], BF16, forward, 2 * one, size),
        Part("aten::bmm", [SCORES, HEADS], BF16, product, one),
        Part("aten::bmm", [SCORES, HEADS], BF16, product, one),
        Part("aten::bmm", [HEADS, TURNED], BF16, product, one),
        Part(backward, [SCORES, SCORES, SCORES, *([[]] * 2)], BF16, backward, 3 * one, size),
        Part("aten::bmm", [SCORES, HEADS], BF16, product, one),
        Part("aten::bmm", [[16 * 12, 64, 1024], SCORES], BF16, product, one),
    ]


def test_gpt2_with_fused_attention() -> None:
    """At 55 % of 2.039 TB/s the eleven passes of 12 layers take 47.4 of the 136 ms; fused, the step is 38.7 ms shorter."""
    layer = training_attention(0.55 * 2.039e12)
    taken = 12 * sum(part.ms for part in layer)
    assert taken == pytest.approx(12 * 11 * 0.40265 / 1.12145, abs=0.1)
    rest = Part("aten::mm", [[TOKENS, WIDTH], [WIDTH, 4 * WIDTH]], BF16, "ampere_bf16_s16816gemm_bf16_128x128_tn", 0)
    rest = rest._replace(ms=(136 - taken) / 12)
    low, high = gain("flash-attention", [part for _ in range(LAYERS) for part in (*layer, rest)])
    assert low <= (136 - 97.3) / 136 <= high
    forward = 4 * 16 * 12 * 1024**2 * 64 / (0.35 * 312e12) * 1000  # backward takes 2.5 times as long
    assert low == pytest.approx((taken - LAYERS * 3.5 * forward) / 136, abs=1e-3)


def test_gpt2_with_a_padded_vocabulary() -> None:
    """Three products over 50257 columns, 3.8e12 FLOP at half of the peak, take 24 of the 97.3 ms; padded, 2.9 ms less."""
    flops = 2 * TOKENS * WIDTH * 50257
    head = flops / (0.5 * 312e12) * 1000
    kernel_of = "ampere_bf16_s16816gemm_bf16_128x64_{}_align1"
    products = [
        Part("aten::mm", [[TOKENS, WIDTH], [WIDTH, 50257]], BF16, kernel_of.format("tn"), head),
        Part("aten::mm", [[TOKENS, 50257], [50257, WIDTH]], BF16, kernel_of.format("nn"), head),
        Part("aten::mm", [[WIDTH, TOKENS], [TOKENS, 50257]], BF16, kernel_of.format("nt"), head),
    ]
    assert 3 * head == pytest.approx(24.3, abs=0.1)
    rest = Part("aten::add", [[TOKENS, WIDTH]] * 2, BF16, "vectorized_elementwise_kernel_add", 97.3 - 3 * head)
    low, high = gain("alignment-padding", [*products, rest])
    assert low <= (97.3 - 94.4) / 97.3 <= high


def eager_layer(rate: float) -> list[Part]:
    """What surrounds the products of a layer under autocast, forward: the scores' scale and mask in bf16, their softmax in fp32
    with a cast before and after it, and behind the products a sum, a norm and a cast of 16384 x 768."""
    number, tokens = 16 * 12 * 1024**2, [TOKENS, WIDTH]
    short = TOKENS * WIDTH

    def ms(moved: float) -> float:
        return moved / rate * 1000

    copies = "unrolled_elementwise_kernel_direct_copy"
    return [
        Part("aten::mm", [tokens, [WIDTH, 3 * WIDTH]], BF16, "ampere_bf16_s16816gemm_bf16_128x128_tn", 0.25),
        Part("aten::mul", [SCORES, []], BF16, "vectorized_elementwise_kernel_mul", ms(4 * number)),
        Part("aten::masked_fill", [SCORES, [1024, 1024]], BF16, "elementwise_kernel_masked_fill", ms(4 * number)),
        Part("aten::copy_", [SCORES, SCORES], f"{FP32},{BF16}", copies, ms(6 * number)),
        Part("aten::_softmax", [SCORES], FP32, "cunn_SoftMaxForward", ms(8 * number)),
        Part("aten::copy_", [SCORES, SCORES], f"{BF16},{FP32}", copies, ms(6 * number)),
        Part("aten::mm", [tokens, [WIDTH, WIDTH]], BF16, "ampere_bf16_s16816gemm_bf16_128x128_tn", 0.12),
        Part("aten::add", [tokens, tokens], FP32, "vectorized_elementwise_kernel_add", ms(12 * short)),
        Part("aten::native_layer_norm", [tokens], FP32, "vectorized_layer_norm_kernel", ms(8 * short)),
        Part("aten::copy_", [tokens, tokens], f"{BF16},{FP32}", copies, ms(6 * short)),
    ]


def convolving(images: int = 64) -> list[Part]:
    """ResNet-50 in fp16 on channels-first tensors: 10.6 M elements of inputs and 11.1 M of results an image, each converted (read
    and written) three times forward and backward; 24.6 GFLOP an image; 14 passes over the results for what is between."""
    rate = 0.8 * 1.555e12
    convert = 3 * images * (10.6e6 + 11.1e6) * 4 / rate * 1000
    convolve = images * 24.6e9 / (0.25 * 312e12) * 1000
    between = 14 * images * 11.1e6 * 2 / rate * 1000
    return [
        Part("aten::cudnn_convolution", [[images, 64, 56, 56]], "c10::Half",
             "void cudnn::ops::nchwToNhwcKernel<__half, __half>", convert / 2),
        Part("aten::cudnn_convolution", [[images, 64, 56, 56]], "c10::Half",
             "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc", convolve),
        Part("aten::cudnn_convolution", [[images, 64, 56, 56]], "c10::Half",
             "void cudnn::ops::nhwcToNchwKernel<__half, __half>", convert / 2),
        Part("aten::cudnn_batch_norm", [[images, 64, 56, 56]], "c10::Half", "bn_fw_tr_1C11_kernel_NCHW", between),
    ]  # fmt: skip


def test_channels_last() -> None:
    """22 % of ResNet-50's step with mixed precision (PyTorch's tutorial)."""
    low, high = gain("channels-last", convolving())
    assert low <= 0.22 <= high


def stepping(optimizer: str, ms: float, kernel_us: float, kernels: int, before_ms: float = 60) -> list[dict[str, Any]]:
    """Four steps: a product, then an optimizer that launches its kernels one by one for so many ms, or, where they take
    longer, as far ahead of the device as the step allows."""
    events, number = [], 0
    every = 1000 * ms / kernels
    for i in range(STEPS):
        at = i * (1000 * (before_ms + max(ms, kernels * kernel_us / 1000)) + 100)
        length = 1000 * (before_ms + max(ms, kernels * kernel_us / 1000))
        number += 1
        shapes = {"Input Dims": [[TOKENS, WIDTH], [WIDTH, WIDTH]], "Input type": [BF16] * 2}
        waits = at + 20 + (1000 * before_ms if every > kernel_us else 0)
        events += [
            step(i, at, at + length + 100), op("aten::mm", at + 1, at + 15, **shapes), call(at + 5, at + 9, number),
            kernel(at + 20, at + 20 + 1000 * before_ms, number, "ampere_bf16_s16816gemm_bf16_128x128_tn"),
            annotation(f"Optimizer.step#{optimizer}.step", waits, waits + 1000 * ms),
        ]  # fmt: skip
        if waits > at + 20:
            events.append(sync(at + 16, waits - 1))
        busy = at + 20 + 1000 * before_ms
        for place in range(kernels):
            number += 1
            begun = waits + place * every
            busy = max(busy, begun + 0.7 * every)
            events.append(op("aten::addcmul_", begun, begun + 0.8 * every))
            events.append(call(begun + 0.3 * every, begun + 0.6 * every, number))
            events.append(kernel(busy, busy + kernel_us, number, "vectorized_elementwise_kernel_addcmul"))
            busy += kernel_us
        events.append(sync(waits + 1000 * ms + 1, at + length + 60))
    return events


@pytest.mark.parametrize(("optimizer", "before", "after"), [("Adam", 42.7, 10.2), ("AdamW", 51.4, 15.6)])
def test_foreach(optimizer: str, before: float, after: float) -> None:
    """161 tensors with 9 kernels of 3 us each, launched one by one: foreach took 42.7 to 10.2 and 51.4 to 15.6 ms."""
    low, high = told("fused-optimizer", stepping(optimizer, before, 3, 161 * 9))
    assert low <= (before - after) / (60 + before) <= high


def test_a_fused_optimizer_may_give_nothing() -> None:
    """Where its kernels fill the device, one for all of them moves the same bytes: nothing was gained (pytorch#101291)."""
    low, high = told("fused-optimizer", stepping("Adam", 12, 30, 500))
    assert low == pytest.approx(0, abs=0.001) and high > 0


def test_gpt2_compiled() -> None:
    """311 to 136 ms. The steps in fp32 and tf32, whose products are 6.5 times as fast, leave 232 ms to what is around them."""
    layer = eager_layer(1e12)
    around, products = ([part for part in layer if ("gemm" in part.kernel) == which] for which in (False, True))
    slower = 232 / (LAYERS * sum(part.ms for part in around))
    faster = (311 - 232) / (LAYERS * sum(part.ms for part in products))
    drawn = [part._replace(ms=part.ms * (faster if "gemm" in part.kernel else slower)) for part in layer]
    low, high = gain("fuse-elementwise", drawn * LAYERS)
    assert low <= 175 / 311 <= high
