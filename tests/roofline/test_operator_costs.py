"""FLOPs and bytes of each family of operators, worked by hand; and which kernel of an operator has them."""

import json
from typing import Any

import pytest
from gpu_trace_advisor.roofline.flops import Cost, pairs
from gpu_trace_advisor.roofline.kernel_table import Kernels
from gpu_trace_advisor.roofline.kernel_time import InKernel
from gpu_trace_advisor.roofline.operator_costs import cost, dtype_of_kernel, operation_costs
from gpu_trace_advisor.trace.operator_shapes import read_call

from tests.build import annotation, call, kernel, op, timeline

BF16, FP32, INT64 = "c10::BFloat16", "float", "long int"


def worked(
    operator: str, dims: list[Any], types: list[str], concrete: list[str] | None = None, kernel: str = "kernel",
    strides: list[Any] | None = None,
) -> Cost | None:  # fmt: skip
    texts = (json.dumps(part) if part is not None else "" for part in (dims, types, strides, concrete))
    return cost(operator, *texts, kernel)


PRODUCTS = [
    # operator, shapes, type, M, N, K, batch, FLOPs, bytes, of them weights
    ("aten::mm", [[64, 4096], [4096, 1024]], BF16, 64, 1024, 4096, 1, 2 * 64 * 1024 * 4096,
     2 * (64 * 4096 + 4096 * 1024 + 64 * 1024), 2 * 4096 * 1024),
    ("aten::addmm", [[1024], [64, 4096], [4096, 1024]], BF16, 64, 1024, 4096, 1, 2 * 64 * 1024 * 4096,
     2 * (64 * 4096 + 4096 * 1024 + 64 * 1024 + 1024), 2 * 4096 * 1024),
    ("aten::linear", [[2, 32, 4096], [1024, 4096]], BF16, 64, 1024, 4096, 1, 2 * 64 * 1024 * 4096,
     2 * (64 * 4096 + 4096 * 1024 + 64 * 1024), 2 * 4096 * 1024),
    ("aten::bmm", [[8, 16, 32], [8, 32, 64]], FP32, 16, 64, 32, 8, 2 * 8 * 16 * 64 * 32,
     4 * 8 * (16 * 32 + 32 * 64 + 16 * 64), 0),
    ("aten::baddbmm", [[8, 16, 64], [8, 16, 32], [8, 32, 64]], FP32, 16, 64, 32, 8, 2 * 8 * 16 * 64 * 32,
     4 * 8 * (16 * 32 + 32 * 64 + 16 * 64), 0),
    ("aten::matmul", [[4, 16, 32], [32, 64]], FP32, 64, 64, 32, 1, 2 * 64 * 64 * 32,
     4 * (64 * 32 + 32 * 64 + 64 * 64), 4 * 32 * 64),
    ("aten::mv", [[1024, 4096], [4096]], BF16, 1, 1024, 4096, 1, 2 * 1024 * 4096,
     2 * (1024 * 4096 + 4096 + 1024), 2 * 1024 * 4096),
    ("aten::_scaled_mm", [[64, 4096], [4096, 1024]], "c10::Float8_e4m3fn", 64, 1024, 4096, 1, 2 * 64 * 1024 * 4096,
     64 * 4096 + 4096 * 1024 + 2 * 64 * 1024, 4096 * 1024),
    # 100 tokens over 8 experts: all of their weights; 4 tokens: at most four experts'
    ("aten::_grouped_mm", [[100, 512], [8, 512, 256]], BF16, 100, 256, 512, 1, 2 * 100 * 512 * 256,
     2 * (100 * 512 + 8 * 512 * 256 + 100 * 256), 2 * 8 * 512 * 256),
    ("aten::_grouped_mm", [[4, 512], [8, 512, 256]], BF16, 4, 256, 512, 1, 2 * 4 * 512 * 256,
     2 * (4 * 512 + 4 * 512 * 256 + 4 * 256), 2 * 4 * 512 * 256),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "dims", "dtype", "m", "n", "k", "batch", "flops", "moved", "weights"), PRODUCTS)
def test_products(
    operator: str,
    dims: list[list[int]],
    dtype: str,
    m: int,
    n: int,
    k: int,
    batch: int,
    flops: int,
    moved: int,
    weights: int,
) -> None:
    found = worked(operator, dims, [dtype] * len(dims), kernel="sgemm")
    assert found and (found.m, found.n, found.k, found.batch) == (m, n, k, batch)
    assert (found.flops, found.bytes, found.weight_bytes) == (flops, moved, weights)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("ampere_sgemm_128x64_nn", "fp32"), ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "fp32"),
     ("cutlass_80_tensorop_s1688gemm_256x128", "tf32"), ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "tf32"),
     ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs", "fp32")],
)  # fmt: skip
def test_fp32_products_on_tensor_cores(kernel: str, dtype: str) -> None:
    found = worked("aten::mm", [[64, 64], [64, 64]], [FP32, FP32], kernel=kernel)
    assert found and found.dtype == dtype


def test_attention_prefill() -> None:
    """16 sequences of 559 tokens, 16 heads of 64, causal: half the scores and the diagonal."""
    q = [16, 559, 16, 64]
    causal = ["", "", "", "", "", "559", "559", "0.", "True"]
    found = worked("aten::_flash_attention_forward", [q, q, q, *[[]] * 6], [BF16] * 3 + [""] * 6, causal)
    assert found and found.flops == 4 * 16 * 16 * 64 * (559 * 560 / 2)
    assert found.bytes == 4 * 16 * 559 * 16 * 64 * 2
    full = worked("aten::_flash_attention_forward", [q, q, q, *[[]] * 6], [BF16] * 3 + [""] * 6, [*causal[:8], "False"])
    assert full and full.flops == 4 * 16 * 16 * 64 * 559 * 559
    unknown = worked("aten::_flash_attention_forward", [q, q, q], [BF16] * 3)
    assert unknown and unknown.flops == found.flops  # a floor


def test_attention_decode_has_the_intensity_of_its_query_group() -> None:
    """One query a sequence, 32 heads on 8 of keys, 128 k of context: 2 g / p = 4 FLOP a byte (correction C7)."""
    shapes = [[1, 32, 1, 128], [1, 8, 131072, 128], [1, 8, 131072, 128]]
    found = worked("aten::_scaled_dot_product_flash_attention", shapes, [BF16] * 3, ["", "", "", "0.", "False"])
    assert found and found.flops == 4 * 32 * 131072 * 128
    assert found.flops / found.bytes == pytest.approx(4.0, rel=1e-3)


def test_attention_backward_is_five_products() -> None:
    shape = [2, 8, 128, 64]
    forward = worked("aten::_scaled_dot_product_flash_attention", [shape] * 3, [BF16] * 3, ["", "", "", "0.", "True"])
    concrete = [""] * 11 + ["True"]
    backward = worked("aten::_scaled_dot_product_flash_attention_backward", [shape] * 5, [BF16] * 5, concrete)
    assert forward and backward
    assert backward.flops == 2.5 * forward.flops and backward.bytes == 8 * 2 * 8 * 128 * 64 * 2


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "count"), [(4, 4, False, 16), (4, 4, True, 10), (1, 100, True, 100), (2, 4, True, 7)]
)
def test_pairs_under_a_mask(queries: int, keys: int, causal: bool, count: int) -> None:
    assert pairs(queries, keys, causal) == count


def test_convolution() -> None:
    """ResNet's first layer: 7x7 stride 2 padding 3 on 224x224 gives 112x112."""
    x, w = [32, 3, 224, 224], [64, 3, 7, 7]
    concrete = ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]
    types = [FP32, FP32, *[""] * 7]
    found = worked("aten::convolution", [x, w, *[[]] * 7], types, concrete, "implicit_convolve_sgemm")
    results = 32 * 64 * 112 * 112
    assert found and found.flops == 2 * results * 3 * 7 * 7
    assert found.bytes == 4 * (32 * 3 * 224 * 224 + 64 * 3 * 7 * 7 + results)
    assert worked("aten::convolution", [x, w, *[[]] * 7], types) is None  # without the strides nothing is known
    cudnn = worked(
        "aten::cudnn_convolution", [x, w, *[[]] * 7], types, ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False"]
    )
    assert cudnn and cudnn.flops == found.flops
    backward = ["", "", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    both = worked("aten::convolution_backward", [[32, 64, 112, 112], x, w, *[[]] * 8], [FP32] * 3 + [""] * 8, backward)
    assert both and both.flops == 2 * found.flops


N = 16 * 559 * 1024
TRAFFIC = [
    # what, operator, shapes, types, concrete, bytes
    ("add", "aten::add", [[16, 559, 1024], [16, 559, 1024], []], [BF16, BF16, "Scalar"], None, 6 * N),
    ("broadcast", "aten::mul", [[16, 559, 1024], [1024]], [BF16, BF16], None, 4 * N + 2048),
    ("a number", "aten::mul", [[16, 559, 1024], []], [BF16, "double"], None, 4 * N + 8),
    ("promoted", "aten::mul", [[16, 559, 1024], [16, 559, 1024]], [BF16, FP32], None, 2 * N + 4 * N + 4 * N),
    ("comparison", "aten::eq", [[16, 559, 1024], []], [INT64, "Scalar"], None, 8 * N + N),
    ("in place", "aten::add_", [[16, 559, 1024], [16, 559, 1024], []], [FP32, FP32, "Scalar"], None, 12 * N),
    ("unary, out given", "aten::clamp_min", [[N], [], [N]], [FP32, "Scalar", FP32], None, 8 * N),
    ("cast", "aten::copy_", [[16, 559, 1024], [16, 559, 1024], []], [FP32, BF16, "Scalar"], None, 6 * N),
    ("fill", "aten::fill_", [[N], []], [FP32, "Scalar"], None, 4 * N),
    ("softmax", "aten::_softmax", [[16, 559, 1024], [], []], [BF16, "Scalar", "Scalar"], None, 4 * N),
    ("layer norm", "aten::native_layer_norm", [[16, 559, 1024], [], [1024], [1024], []],
     [BF16, "ScalarList", BF16, BF16, "Scalar"], None, 4 * N),
    ("layer norm backward", "aten::native_layer_norm_backward", [[N], [N]], [BF16, BF16], None, 6 * N),
    ("vLLM norm", "_C::rms_norm", [[888, 2880], [888, 2880], [2880], []], [BF16, BF16, BF16, "Scalar"], None,
     4 * 888 * 2880),
    ("vLLM add and norm", "_C::fused_add_rms_norm", [[888, 2880], [888, 2880], [2880], []], [BF16, BF16, BF16, "Scalar"],
     None, 8 * 888 * 2880),
    ("sum", "aten::sum", [[16, 559, 1024], []], [FP32, "ScalarList"], None, 4 * N),
    ("index_select", "aten::index_select", [[151936, 1024], [], [8944]], [BF16, "Scalar", INT64], ["", "0", ""],
     2 * 8944 * 2048 + 8 * 8944),
    ("embedding", "aten::embedding", [[151936, 1024], [16, 559]], [BF16, INT64], None, 2 * 8944 * 2048 + 8 * 8944),
    ("sort", "aten::sort", [[1000, 1000]], [FP32], None, (4 + 4 + 8) * 10**6),
    ("topk", "aten::topk", [[1000, 1000], []], [FP32, "Scalar"], None, 4 * 10**6),
    ("scatter_add_", "aten::scatter_add_", [[500, 64], [], [100, 64], [100, 64]], [FP32, "Scalar", INT64, FP32], None,
     6400 * (8 + 4 + 4)),
    ("index_add_", "aten::index_add_", [[500, 64], [], [100], [100, 64]], [FP32, "Scalar", INT64, FP32], None,
     100 * 8 + 6400 * (4 + 4)),
    ("dropout's numbers", "aten::bernoulli_", [[1000, 1000]], [FP32], None, 4 * 10**6),
    ("bags", "aten::_embedding_bag", [[10**6, 64], [5000], [100]], [FP32, INT64, INT64], None,
     5000 * 256 + 5100 * 8 + 100 * 256),
    ("grid sampler", "aten::grid_sampler_2d", [[2, 8, 64, 64], [2, 32, 32, 2]], [FP32, FP32], None,
     4 * (2 * 8 * 64 * 64 + 2 * 32 * 32 * 2 + 2 * 8 * 32 * 32)),
    ("glu", "aten::glu", [[1000, 1000], []], [BF16, "Scalar"], None, 3 * 10**6),
    ("loss", "aten::nll_loss_forward", [[32, 1000], [32]], [FP32, INT64], None, 32 * (8 + 4)),
    ("huber", "aten::huber_loss", [[1000], [1000]], [FP32, FP32], None, 12_000),
    ("entropy backward", "aten::binary_cross_entropy_backward", [[1000]] * 3, [FP32] * 3, None, 16_000),
    ("SGLang's norm", "sgl_kernel::fused_add_rmsnorm", [[888, 2880], [888, 2880], [2880], []], [BF16, BF16, BF16, "Scalar"],
     None, 8 * 888 * 2880),
    ("quantization by group", "sgl_kernel::sgl_per_token_group_quant_fp8", [[64, 4096], [64, 4096], [64, 32]],
     [BF16, "c10::Float8_e4m3fn", FP32], None, 64 * 4096 * 3 + 64 * 32 * 4),
    ("quantization", "primus_turbo::quantize_fp8_tensorwise", [[64, 4096], []], [BF16, ""], None, 64 * 4096 * 3),
    ("experts' sum", "_moe_C::moe_sum", [[64, 4, 512], [64, 512]], [BF16, BF16], None, 5 * 64 * 512 * 2),
    ("index check", "fbgemm::bounds_check_indices", [[6], [33398], [393217], []], ["long", "long", "long", "Scalar"], None,
     8 * (33398 + 393217)),
    ("loss backward", "aten::nll_loss_backward", [[], [32, 1000], [32]], [FP32, FP32, INT64], None, 4 * 32000),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "dims", "types", "concrete", "moved"), [row[1:] for row in TRAFFIC],
                         ids=[row[0] for row in TRAFFIC])  # fmt: skip
def test_traffic(operator: str, dims: list[Any], types: list[str], concrete: list[str] | None, moved: int) -> None:
    found = worked(operator, dims, types, concrete)
    assert found and found.bytes == moved


def test_an_expanded_input_is_read_once() -> None:
    found = worked("aten::add", [[1000, 1000], [1000, 1000]], [FP32, FP32], strides=[[1000, 1], [0, 1]])
    assert found and found.bytes == 4 * (1_000_000 + 1_000 + 1_000_000)


def test_optimizers() -> None:
    """Adam on fp32: reads parameter, gradient and two states, writes three of them: 28 bytes a parameter."""
    lists = [[[1000], [200]]] * 4
    name = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
    found = worked("aten::_fused_adamw_", lists, ["TensorList"] * 4, kernel=name)
    assert found and found.bytes == 28 * 1200 and found.several
    added = worked(
        "aten::_foreach_add_", lists[:2], ["TensorList"] * 2, kernel="multi_tensor_apply_kernel<c10::BFloat16>"
    )
    assert added and added.bytes == 3 * 2 * 1200
    assert worked("aten::_foreach_add_", lists[:2], ["TensorList"] * 2, kernel="unknown") is None  # type not told


def test_a_compiled_kernel_touches_each_buffer_once() -> None:
    dims = [[8, 4096, 8192], [32768, 8192], []]
    found = worked("triton_red_fused_add_2", dims, [BF16, BF16, "Scalar"], ["", "", "268435456"])
    assert found and found.bytes == 2 * 2 * 268435456
    assert worked("triton_red_fused_add_2", dims, [BF16, BF16, "Scalar"]) is None


@pytest.mark.parametrize(
    ("kernel", "dims", "passes"),
    [
        ("triton_poi_fused_gelu_view_0", [[4096, 8192]], 2),  # over its only tensor
        ("triton_poi_fused_gelu_0", [[4096, 8192], [4096, 8192]], 2),  # one in, one out
        (
            "triton_poi_fused_mul_silu_2",
            [[4096, 8192], [4096, 8192]],
            3,
        ),  # a gate has two in, so one of them is written
        ("triton_poi_fused_mul_silu_2", [[4096, 8192], [4096, 8192], [4096, 8192]], 3),
        ("triton_poi_fused_add_view_0", [[4096, 8192], [8192]], 2 + 1 / 4096),  # a bias, in place
    ],
)
def test_what_a_compiled_kernel_writes_in_place_is_read_and_written(
    kernel: str, dims: list[list[int]], passes: float
) -> None:
    n = 4096 * 8192
    found = worked(kernel, [*dims, []], [BF16] * len(dims) + ["Scalar"], [""] * len(dims) + [str(n)], kernel)
    assert found and found.bytes == 2 * n * passes


@pytest.mark.parametrize(
    ("operator", "dims", "types"),
    [
        ("aten::unheard_of", [[64, 64]], [FP32]),
        ("vllm::moe_forward", [[888, 3072], [888, 128], []], [BF16, BF16, ""]),
        ("aten::mm", [[64, 64], [32, 64]], [FP32, FP32]),  # inner sizes differ
        ("aten::mm", [[64, 64]], [FP32]),
        ("aten::mm", [], []),
        ("aten::mm", [[64, 64], [64, 64]], ["unheard of", "unheard of"]),
        ("aten::index_select", [[10, 10], [], [5]], [FP32, "Scalar", INT64]),  # which dimension was not recorded
        ("mm", [[64, 64], [64, 64]], [FP32, FP32]),
    ],
)
def test_what_is_not_known_is_not_guessed(operator: str, dims: list[Any], types: list[str]) -> None:
    assert worked(operator, dims, types) is None


def test_broken_texts() -> None:
    assert read_call("[[1, 2", '["float"]') is None
    assert read_call("[[1, 2]]", '["float", "float"]') is None
    assert read_call("[[1, 2]]", "", assumed="bf16") is not None


@pytest.mark.parametrize(
    "size", ["null", '"7"', "[]", "{}", "-1", "1e30", "0.5", "true", "9223372036854775807", "1" * 5000]
)
@pytest.mark.parametrize("dims", ["[[%s, 2]]", "[[2, %s], [2, 2]]", "[[[2, 2], [%s]]]"])
def test_a_shape_is_of_sizes(dims: str, size: str) -> None:
    for types in ("", '["float"]', '["float", "float"]'):
        for strides in ("", "[[1, 1]]", "[1, 2]"):
            assert not (call := read_call(dims % size, types, strides, "", "bf16")) or not call.all


@pytest.mark.parametrize("other", ["5", "null", "{}", '"x"', "[5, 5]", "[[], {}]", "[" * 100_000])
def test_what_is_no_list_of_arguments(other: str) -> None:
    found = read_call(other, "")
    assert found is None or not found.all
    for dims, types, strides in (("[[2, 2]]", other, ""), ("[[2, 2]]", '["float"]', other)):
        found = read_call(dims, types, strides, other)
        assert found is None or [tensor.elements for tensor in found.all] in ([], [4])


@pytest.mark.parametrize("text", ["--5", "5-", "²", "٣", "9" * 5000, "", "5.0", "None"])
def test_an_argument_that_is_no_number(text: str) -> None:
    call = read_call("[[2, 2]]", '["float"]', "", json.dumps([text, f"[{text}]"]))
    assert call and call.number(0) is None and call.numbers(1) in (None, [])


def test_a_convolution_with_a_stride_of_zero_is_not_known() -> None:
    concrete = ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    assert worked("aten::convolution", [[8, 64, 56, 56], [128, 64, 3, 3]], [FP32, FP32], concrete=concrete) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4>", "bf16"),
     ("ampere_fp16_s16816gemm_fp16_128x64", "fp16"), ("dgemm_kernel", "fp64"), ("attn_fwd", "")],
)  # fmt: skip
def test_type_by_kernel_name(name: str, dtype: str) -> None:
    assert dtype_of_kernel(name) == dtype


def shaped(name: str, start: float, end: float, dims: list[Any], types: list[str]) -> dict[str, Any]:
    return op(name, start, end, **{"Input Dims": dims, "Input type": types})


def test_of_several_kernels_one_does_the_work() -> None:
    """A split product: two GEMM kernels of one name share it by their time, the copy and the sum have none of it."""
    one = timeline(
        shaped("aten::addmm", 0, 50, [[64], [64, 64], [64, 64]], [FP32] * 3),
        *(call(5 + 5 * i, 8 + 5 * i, i) for i in range(1, 5)),
        kernel(20, 80, 1, "direct_copy_kernel"), kernel(80, 110, 2, "ampere_sgemm_64x64"),
        kernel(110, 120, 3, "ampere_sgemm_64x64"), kernel(120, 125, 4, "splitKreduce_kernel"),
    )  # fmt: skip
    found = operation_costs(one)
    assert (found.kind != -1).tolist() == [False, True, True, False]
    assert found.share[1:3].tolist() == [0.75, 0.25]


def test_convolutions_by_other_algorithms() -> None:
    """Winograd's F(4x4, 3x3) needs at least a quarter of the products of the definition; Fourier's are not known."""
    dims = [[], [32, 64, 56, 56], [64, 64, 3, 3]]
    events = [shaped("aten::cudnn_convolution_backward_input", 0, 50, dims, ["GenericList", FP32, FP32])]
    direct = timeline(*events, call(5, 8, 1), kernel(20, 80, 1, "dgrad_engine"))
    assert operation_costs(direct).kind.tolist() == [0]
    found = {}
    for after in ("winograd_nonfused::winogradForwardOutput4x4", "fft2d_c2r_32x32"):
        found[after] = operation_costs(
            timeline(
                *events,
                call(5, 8, 1),
                call(9, 12, 2),
                kernel(20, 80, 1, "volta_sgemm_64x64_nt"),
                kernel(80, 90, 2, after),
            )
        )
    winograd, fourier = found.values()
    assert [winograd.kinds[k].multiplied if k >= 0 else 0 for k in winograd.kind.tolist()] == [0.25, 0]
    assert winograd.kinds[winograd.kind[0]].flops == 2 * 32 * 64 * 56 * 56 * 64 * 9
    assert fourier.kind.tolist() == [-1, -1]


def test_nodes_of_a_graph_replay_have_no_operator() -> None:
    events = [shaped("aten::mm", 0, 50, [[64, 64], [64, 64]], [FP32, FP32]), call(5, 8, 1, "cudaGraphLaunch")]
    found = operation_costs(timeline(*events, kernel(20, 80, 1, "sgemm"), kernel(80, 90, 1, "sgemm")))
    assert found.kind.tolist() == [-1, -1]


X, W = [512, 64, 56, 56], [64, 64, 3, 3]


def test_a_convolution_of_miopen_has_a_bias_before_its_lists() -> None:
    concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False"]
    found = worked("aten::miopen_convolution", [X, W, *[[]] * 7], [FP32, FP32, *[""] * 7], concrete, "igemm_fwd_gtcx3")
    assert found and found.flops == 2 * 512 * 64 * 56 * 56 * 64 * 9 == 118_380_036_096
    assert found.dtype == "fp32"  # no kernel of NVIDIA's tensor cores


@pytest.mark.parametrize("spelling", ["[1, 1]", "(1,1)", "(1, 1)"])
@pytest.mark.parametrize("dtype", ["float", "Float"])
def test_types_and_lists_have_two_spellings(spelling: str, dtype: str) -> None:
    concrete = ["", "", "", spelling, spelling, spelling, "False", spelling, "1"]
    found = worked("aten::convolution", [X, W, *[[]] * 7], [dtype, dtype, *[""] * 7], concrete)
    assert found and found.flops == 2 * 512 * 64 * 56 * 56 * 64 * 9


def test_types_that_were_not_recorded_are_the_kernels() -> None:
    found = cost("aten::mm", "[[64, 64], [64, 64]]", "[]", "", "", "volta_sgemm_64x64_nn")
    assert found and found.dtype == "fp32" and found.bytes == 3 * 4 * 64 * 64


def test_convolutions_of_pytorch_1_by_what_is_recorded_beside_them() -> None:
    """The normalization reads what the convolution wrote; the gradient of the weights is told by the operator around it."""
    x, w, out = [32, 512, 14, 14], [1024, 512, 1, 1], [32, 1024, 7, 7]
    flops = 2 * 32 * 1024 * 7 * 7 * 512
    forward = timeline(
        shaped("aten::cudnn_convolution", 0, 20, [x, w, *[[]] * 7], [FP32, FP32, *["GenericList"] * 7]),
        call(5, 8, 1), kernel(30, 60, 1, "implicit_convolve_sgemm"),
        shaped("aten::cudnn_batch_norm", 21, 29, [out, [1024], [1024]], [FP32] * 3),
        call(22, 24, 2), kernel(60, 70, 2, "bn_fw_tr_1C11"),
    )  # fmt: skip
    found = operation_costs(forward)
    assert found.kinds[found.kind[0]].flops == flops
    backward = timeline(
        shaped("aten::cudnn_convolution_backward", 0, 50, [x, out, w], [FP32] * 3),
        shaped("aten::cudnn_convolution_backward_weight", 10, 40, [[], out, x], ["GenericList", FP32, FP32]),
        call(15, 18, 1), kernel(30, 60, 1, "wgrad_alg0_engine<float>"),
    )  # fmt: skip
    found = operation_costs(backward)
    assert found.kinds[found.kind[0]].flops == flops


@pytest.mark.parametrize(
    ("operator", "place", "count"),
    [
        # arguments before the three tensors, place of the mask, how many there are
        ("aten::_efficient_attention_backward", 14, 18),
        ("aten::_scaled_dot_product_cudnn_attention_backward", 14, 16),
        ("flash_attn::_flash_attn_backward", 11, 18),
        ("aten::_efficient_attention_forward", 9, 13),
    ],
)
def test_where_the_mask_is_told(operator: str, place: int, count: int) -> None:
    """Non-causal attention has 4 B H S S D FLOPs and 2.5 times as many backward; causal has S (S + 1) / 2 pairs."""
    backward = "backward" in operator
    heads_first = "scaled_dot" in operator
    q = [2, 8, 128, 64] if heads_first else [2, 128, 8, 64]
    dims = [q] * (4 if backward else 3)
    dims += [[]] * (count - len(dims))
    types = [BF16 if shape else "Scalar" for shape in dims]
    mask = ("0", "1") if "efficient" in operator else ("False", "True")
    whole, half = (
        worked(operator, dims, types, [*[""] * place, told, *[""] * (count - place - 1)], "fmha_cutlass")
        for told in mask
    )
    times = 2.5 if backward else 1
    assert whole and whole.flops == times * 4 * 2 * 8 * 128 * 128 * 64
    assert half and half.flops == times * 4 * 2 * 8 * (128 * 129 / 2) * 64


def test_sequences_laid_end_to_end() -> None:
    """Four sequences of 1000 tokens in all: at least as much work as four of 250."""
    dims = [[1000, 8, 64], [1000, 2, 64], [1000, 2, 64], [5], [5], *[[]] * 5]
    types = [BF16] * 3 + ["int", "int"] + ["Scalar"] * 5
    found = worked("flash_attn::_flash_attn_varlen_forward", dims, types, [*[""] * 9, "False"])
    assert found and found.flops == 4 * 4 * 8 * 250 * 250 * 64
    assert found.bytes == 2 * (1000 * 8 * 64 * 2 + 1000 * 2 * 64 * 2)


P, Q = 256 * 64 * 112 * 112, 256 * 64 * 56 * 56  # ResNet's pooling at a batch of 256
REPAIRED = [
    ("maximum", "aten::max_pool2d_with_indices", [[256, 64, 112, 112], [], [], [], [], []], [BF16, *[""] * 5],
     ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"], 2 * P + 10 * Q),
    ("maximum backward", "aten::max_pool2d_with_indices_backward",
     [[256, 64, 56, 56], [256, 64, 112, 112], *[[]] * 5, [256, 64, 56, 56]], [BF16, BF16, *[""] * 5, INT64],
     None, 2 * P + 10 * Q),
    ("mean", "aten::avg_pool2d", [[8, 4, 8, 8], *[[]] * 6], [FP32, *[""] * 6], ["", "[2, 2]", "[]", "[0, 0]"], 4 * 8 * 4 * 80),
    ("softmax to fp32", "aten::_softmax", [[64, 1000], [], []], [BF16, "", ""], ["", "-1", "True"], 6 * 64000),
    ("pad", "aten::constant_pad_nd", [[888, 2880], [], []], [BF16, "", ""], ["", "[0, 192]", "0."], 2 * 888 * (2880 + 3072)),
    ("upsample", "aten::upsample_nearest2d", [[2, 3, 8, 8], [], [], []], [FP32, "", "", ""], ["", "[16, 16]"],
     4 * 6 * (64 + 256)),
    ("rotary", "_C::rotary_embedding", [[888], [888, 512], [888, 64], [], [131072, 64], []],
     [INT64, BF16, BF16, "", BF16, ""], None, 2 * 2 * 888 * 576),
    ("gate", "_C::silu_and_mul", [[64, 1000], [64, 2000]], [BF16, BF16], None, 2 * 64 * 3000),
    ("into the cache", "_C_cache_ops::reshape_and_cache_flash",
     [[888, 1, 64], [888, 1, 64], [9, 16, 1, 64], [9, 16, 1, 64], [888]], [BF16, BF16, "unsigned char", "unsigned char", INT64],
     None, 2 * 888 * 64 * 3),
    ("norm backward", "aten::_fused_rms_norm_backward", [[64, 512], [64, 512]], [BF16, BF16], None, 6 * 64 * 512),
    ("table's gradient", "torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>", [[128, 48]], [FP32], None, 4 * 128 * 48),
    ("lengths and values", "fbgemm::permute_2D_sparse_data", [[24], [24, 16], [768], [], []], ["int"] * 3 + ["", ""], None,
     2 * 4 * (24 * 16 + 768)),
    ("index", "aten::index", [[1000, 64], [[10]]], [FP32, "TensorList"], None, 4 * 2 * 640 + 4 * 10),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "dims", "types", "concrete", "moved"), [row[1:] for row in REPAIRED],
                         ids=[row[0] for row in REPAIRED])  # fmt: skip
def test_bytes_of_operators(
    operator: str, dims: list[Any], types: list[str], concrete: list[str] | None, moved: int
) -> None:
    found = worked(operator, dims, types, concrete, "kernel<float>")
    assert found and found.bytes == moved


def test_a_mixture_of_experts() -> None:
    """16 tokens choose 2 of 64 experts of 270.5 MB: at least two are read, at most 32, 25.5 if they choose evenly."""
    dims = [[16, 4096], [64, 22016, 4096], [64, 4096, 11008], [16, 2]]
    found = worked(
        "vllm::rocm_aiter_fused_moe", dims, ["BFloat16"] * 3 + ["Float"], kernel="aiter_fused_moe_kernel_bf16"
    )
    assert found and found.routed
    expert = 2 * (22016 * 4096 + 4096 * 11008)
    assert expert == 270_532_608
    assert found.flops == 2 * 16 * 2 * (22016 * 4096 + 4096 * 11008)
    assert found.bytes == 2 * expert + 2 * 2 * 16 * 4096
    routed = found.routed
    assert (routed.tokens_an_expert, routed.fewest, routed.most) == (0.5, 2, 32)
    assert routed.expected == pytest.approx(64 * (1 - (62 / 64) ** 16)) == pytest.approx(25.5, abs=0.02)


def test_products_of_serving_engines() -> None:
    """The first three matrices tell: [M,K] and [N,K], with the result [M,N] before them or not."""
    fp8 = "c10::Float8_e4m3fn"
    blockwise = worked("vllm::w8a8_block_fp8_matmul", [[64, 512], [256, 512], [64, 4], [2, 4]], [fp8, fp8, FP32, FP32])
    out = worked("_C::some_gemm", [[64, 256], [64, 512], [256, 512]], [BF16, BF16, BF16])
    for found in (blockwise, out):
        assert found and (found.m, found.n, found.k) == (64, 256, 512)
    packed = worked(
        "_C::cutlass_scaled_fp4_mm", [[64, 256], [64, 256], [256, 256]], [BF16, "unsigned char", "unsigned char"]
    )
    assert packed and packed.flops == 2 * 64 * 256 * 512 and packed.dtype == "fp4"
    int4 = worked("aten::_weight_int4pack_mm", [[64, 512], [32, 4, 32, 4], [], [4, 256, 2]], [BF16, "int", "", BF16])
    assert int4 and int4.flops == 2 * 64 * 256 * 512 and int4.weight_bytes == 256 * 512 / 2


def test_the_same_kernel_of_the_same_size_does_the_same_work() -> None:
    """A kernel whose launch was not recorded, where all that were agree; not where two sizes share a grid."""
    shapes = [[64, 64], [64, 64]]
    size: dict[str, Any] = {"grid": [4, 1, 1], "block": [128, 1, 1]}
    events = [
        shaped("aten::mm", 0, 10, shapes, [BF16, BF16]), call(5, 8, 1), kernel(20, 30, 1, "bf16_gemm", **size),
        kernel(40, 50, 99, "bf16_gemm", **size), kernel(60, 70, 98, "bf16_gemm", grid=[8, 1, 1], block=[128, 1, 1]),
    ]  # fmt: skip
    found = operation_costs(timeline(*events))
    assert found.kind.tolist() == [0, 0, -1]
    assert found.borrowed is not None and found.borrowed.tolist() == [False, True, False]
    other = [
        shaped("aten::mm", 11, 15, [[64, 32], [32, 64]], [BF16, BF16]),
        call(12, 13, 2),
        kernel(80, 90, 2, "bf16_gemm", **size),
    ]
    assert operation_costs(timeline(*events, *other)).kind.tolist() == [0, -1, -1, 1]


@pytest.mark.parametrize(
    ("annotation", "requests", "queries", "keys", "pairs"),
    [
        # 32 answers, one token each, over 55,086 of cache: each with all of its keys
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", 32, 32, 55_086, 55_086),
        # a prompt of 888 tokens: 888 * 889 / 2
        ("execute_context_1(888_788544)_generation_0(0)", 1, 888, 888, 394_716),
        # 4 new tokens behind 6 cached ones see 7, 8, 9 and 10 keys; two answers have 5 and 7
        ("execute_6_context_1(sq4sk10sqsq16sqsk40)_generation_2(sq2sk12sqsq2sqsk12)", 3, 6, 22, 34 + 12),
        ("execute_context_2(8)_generation_3(3)", 5, 11, 11, 2 * 4 * 5 / 2 + 3),
    ],
)
def test_attention_of_an_engine_step(annotation: str, requests: int, queries: int, keys: int, pairs: float) -> None:
    """8 heads of 64 on one of keys: 4 x 64 FLOP a pair and head; the cache of all requests once, in the type of its keys."""
    q, kv, out = [1024, 8, 64], [1024, 1, 64], [1024, 8, 64]
    texts = (json.dumps([q, kv, kv, out]), json.dumps([BF16] * 4), "", "")
    found = cost("vllm::unified_attention_with_output", *texts, "kernel_unified_attention_3d", annotation)
    assert found and found.flops == 4 * 64 * 8 * pairs
    assert found.bytes == 2 * (2 * queries * 8 * 64 + 2 * keys * 64)
    assert (found.batch, found.varies) == (requests * 8, True)


def test_the_annotation_around_attention_tells_its_cache() -> None:
    """Two steps of one program differ; what a sliding window reads is not told, and a call outside of them stays a floor."""
    shapes: dict[str, Any] = {
        "Input Dims": [[2, 8, 64], [2, 1, 64], [2, 1, 64], [2, 8, 64]], "Input type": [BF16] * 4,
    }  # fmt: skip
    events = []
    for i, cached in enumerate((100, 200)):
        at = 100 * i
        sums = f"(sq2sk{cached}sqsq2sqsk{cached})"
        events += [
            annotation(f"execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2{sums}", at, at + 90),
            op("vllm::unified_attention_with_output", at + 1, at + 9, **shapes), call(at + 2, at + 4, 2 * i + 1),
            kernel(at + 10, at + 20, 2 * i + 1, "kernel_unified_attention_3d"),
            op("vllm::unified_attention_with_output", at + 30, at + 39, **shapes), call(at + 31, at + 33, 2 * i + 2),
            kernel(at + 40, at + 50, 2 * i + 2, "fmhaPagedKvSlidingOrChunkedCausal"),
        ]  # fmt: skip
    events += [
        op("vllm::unified_attention_with_output", 300, 309, **shapes), call(301, 303, 9),
        kernel(310, 320, 9, "kernel_unified_attention_3d"),
    ]  # fmt: skip
    one = timeline(*events)
    found = operation_costs(one)
    flops = [found.kinds[kind].flops / (4 * 64 * 8) for kind in found.kind.tolist()]
    assert flops == [100, 2, 200, 2, 2]
    rows = {(row.kernel, row.calls): row for row in Kernels(InKernel(one, None), *one.span_ns).rows}
    assert rows["kernel_unified_attention_3d", 2].flops == 4 * 64 * 8 * 150  # the mean of both steps


@pytest.mark.parametrize(
    ("operator", "causal"),
    [("flash_attn_3::fwd", 24), ("aiter::mha_fwd", 5), ("aiter::fmha_v3_fwd", 5), ("FlashAttnFunc", 5)],
)
def test_attention_by_other_libraries(operator: str, causal: int) -> None:
    """4 sequences of 512, 8 heads of 64: all pairs where the flag at its place says so, else half and the diagonal."""
    shape = [4, 512, 8, 64]
    dims, types = [shape] * 3 + [[]] * (causal - 2), [BF16] * 3 + [""] * (causal - 2)
    for flag, pairs_of in (("False", 512 * 512), ("True", 512 * 513 / 2)):
        found = worked(operator, dims, types, [""] * causal + [flag])
        assert found and found.flops == 4 * 4 * 8 * 64 * pairs_of
    backward = worked("aiter::mha_bwd", [shape] * 5 + [[]] * 4, [BF16] * 5 + [""] * 4, [""] * 8 + ["False"])
    assert backward and backward.flops == 2.5 * 4 * 4 * 8 * 64 * 512 * 512


def test_lists_have_the_type_of_the_kernel() -> None:
    """Their own is not recorded: norms of 1,200 numbers of 16 bits; 100 rows of 64 put where 100 numbers say."""
    norms = worked("aten::_foreach_norm", [[[1000], [200]]], ["TensorList"], kernel="multi_tensor_apply<c10::BFloat16>")
    assert norms and norms.bytes == 2 * 1200
    dims, types = [[500, 64], [[100]], [100, 64]], [BF16, "TensorList", BF16]
    rows = worked("aten::index_put_", dims, types, kernel="index_put_kernel<OpaqueType<2>>")
    assert rows and rows.bytes == 2 * 100 + (2 + 2) * 6400
    unrecorded = worked("aten::_index_put_impl_", [[16, 27, 27], [], [16, 351]], [FP32, "", FP32])
    assert unrecorded and unrecorded.bytes == 2 * 4 * 16 * 351
    numbers = "void at::native::CatArrayBatchedCopy<long, unsigned int, 2, 128, 1>(long*)"
    joined = worked("aten::cat", [[[100], [28]], []], ["TensorList", "Scalar"], kernel=numbers)
    assert joined and joined.bytes == 2 * 8 * 128


def test_kernels_between_the_same_others_do_the_same_work() -> None:
    """Two products share a kernel and a grid: what runs before and after tells which one an unlinked kernel is. The first one
    and the last one of the recording lack a neighbour, and one between others than those known stays unknown."""
    size: dict[str, Any] = {"grid": [4, 1, 1], "block": [128, 1, 1]}
    wide, deep = [[64, 64], [64, 64]], [[64, 256], [256, 64]]
    names = ("bf16_gemm", "silu_kernel", "bf16_gemm", "norm_kernel")
    events, at, number = [], 0, 0
    for linked in (False, True, True, False):
        for i, name in enumerate(names):
            number += 1
            if linked and name == "bf16_gemm":
                events += [
                    shaped("aten::mm", at, at + 4, deep if i else wide, [BF16, BF16]),
                    call(at + 1, at + 2, number),
                ]
            events.append(kernel(at + 5, at + 9, number, name, **size))
            at += 10
    events.append(kernel(at, at + 5, 99, "silu_kernel", **size))
    events.append(kernel(at + 5, at + 9, 98, "bf16_gemm", **size))
    one = timeline(*events)
    found = operation_costs(one)
    flops = [found.kinds[kind].flops if kind >= 0 else None for kind in found.kind.tolist()]
    gemms = [work for work, row in zip(flops, one.row.tolist(), strict=True) if one.trace.label(row) == "bf16_gemm"]
    small, large = 2 * 64**3, 2 * 64 * 256 * 64
    assert gemms == [None, large, small, large, small, large, small, large, None]


@pytest.mark.parametrize("before", [[], [[0]]])
def test_a_lookup_in_several_tables(before: list[list[int]]) -> None:
    """Six tables of 64 columns, a batch of 65,536 and 33,398 indices: a result of 65,536 x 384, and a row for each index. Newer
    versions have an argument more before these; without the number of columns nothing is known."""
    dims = [*before, [0], [25657792], [0], [0, 0], [6], [6], [7], [], [], [7], [], [33398], [393217], []]
    types = [*["float"] * len(before), *["float"] * 4, "int", "long", "int", "Scalar", "Scalar", "long", "Scalar", "long",
             "long", "Scalar"]  # fmt: skip
    concrete = [*[""] * (len(before) + 7), "384", "64", "", "20", "", "", "0"]
    name = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    found = worked(name, dims, types, concrete)
    assert found and found.bytes == 4 * 65536 * 384 + 8 * (33398 + 393217) + 33398 * 64 * 4
    uneven = worked(name, dims, types, [*concrete[: len(before) + 8], "128", *concrete[len(before) + 9 :]])
    assert uneven and uneven.bytes == 4 * 65536 * 384 + 8 * (33398 + 393217)
    assert worked(name, dims, types) is None
