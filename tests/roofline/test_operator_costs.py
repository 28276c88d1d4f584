"""FLOPs and bytes of each family of operators, worked by hand; and which kernel of an operator has them."""

import json
from typing import Any

import pytest
from gpu_trace_advisor.roofline.flops import Cost, pairs
from gpu_trace_advisor.roofline.operator_costs import cost, dtype_of_kernel, operation_costs
from gpu_trace_advisor.trace.operator_shapes import read_call

from tests.build import call, kernel, op, timeline

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
    found = worked("triton_poi_fused_mul_silu_2", dims, [BF16, BF16, "Scalar"], ["", "", "268435456"])
    assert found and found.bytes == 2 * 2 * 268435456
    assert worked("triton_poi_fused_mul_silu_2", dims, [BF16, BF16, "Scalar"]) is None


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


def test_convolutions_by_other_algorithms_have_no_known_work() -> None:
    dims = [[], [32, 64, 56, 56], [64, 64, 3, 3]]
    events = [shaped("aten::cudnn_convolution_backward_input", 0, 50, dims, ["GenericList", FP32, FP32])]
    direct = timeline(*events, call(5, 8, 1), kernel(20, 80, 1, "dgrad_engine"))
    winograd = timeline(*events, call(5, 8, 1), call(9, 12, 2), kernel(20, 80, 1, "volta_sgemm_64x64_nt"),
                        kernel(80, 90, 2, "winograd_nonfused::winogradForwardOutput4x4"))  # fmt: skip
    assert operation_costs(direct).kind.tolist() == [0]
    assert operation_costs(winograd).kind.tolist() == [-1, -1]


def test_nodes_of_a_graph_replay_have_no_operator() -> None:
    events = [shaped("aten::mm", 0, 50, [[64, 64], [64, 64]], [FP32, FP32]), call(5, 8, 1, "cudaGraphLaunch")]
    found = operation_costs(timeline(*events, kernel(20, 80, 1, "sgemm"), kernel(80, 90, 1, "sgemm")))
    assert found.kind.tolist() == [-1, -1]
