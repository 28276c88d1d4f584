"""What each kernel had to do: FLOPs and compulsory bytes, from the shapes of the operator that launched it.

Worked out once for each distinct call (operator, shapes, types, kernel name). Where an operator launches several
kernels, the one that does its work has the cost, the others are not modelled. What was not recorded is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.codes import among, present
from gpu_trace_advisor.columns.compact import constant, index_type
from gpu_trace_advisor.roofline import flops as f
from gpu_trace_advisor.roofline import memory_traffic as t
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMPUTE, Timeline
from gpu_trace_advisor.timelines.host import Host
from gpu_trace_advisor.trace.engine_steps import read_step
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.lookup import distinct_rows, named, values_of
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int32, Int64, Kind, Trace
from gpu_trace_advisor.trace.operator_shapes import Call, read_call

Formula = Callable[[Call], Cost | None]

FORMULAS: dict[str, Formula] = {
    "mm": f.mm, "addmm": f.addmm, "_addmm_activation": f.addmm, "mv": f.mv, "addmv": f.addmv, "bmm": f.bmm,
    "baddbmm": f.baddbmm, "linear": f.linear, "matmul": f.matmul, "_scaled_mm": f.scaled_mm, "_int_mm": f.mm,
    "cutlass_scaled_mm": f.cutlass_scaled_mm, "_grouped_mm": f.grouped_mm, "_scaled_grouped_mm": f.grouped_mm,
    "_flash_attention_forward": f.attention(0, 8, heads_first=False),
    "_efficient_attention_forward": f.attention(0, 9, heads_first=False),
    "_cudnn_attention_forward": f.attention(0, 10, heads_first=True),
    "_scaled_dot_product_flash_attention": f.attention(0, 4, heads_first=True),
    "_scaled_dot_product_efficient_attention": f.attention(0, 6, heads_first=True),
    "_scaled_dot_product_cudnn_attention": f.attention(0, 6, heads_first=True),
    "_scaled_dot_product_fused_attention_overrideable": f.attention(0, 5, heads_first=True),
    "_flash_attn_forward": f.attention(0, 5, heads_first=False),
    "_flash_attn_varlen_forward": f.attention(0, 9, heads_first=False),
    "_flash_attention_backward": f.attention(1, 11, heads_first=False, backward=True),
    "_efficient_attention_backward": f.attention(1, 14, heads_first=False, backward=True),
    "_cudnn_attention_backward": f.attention(1, 14, heads_first=True, backward=True),
    "_scaled_dot_product_flash_attention_backward": f.attention(1, 11, heads_first=True, backward=True),
    "_scaled_dot_product_efficient_attention_backward": f.attention(1, 11, heads_first=True, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": f.attention(1, 14, heads_first=True, backward=True),
    "_flash_attn_backward": f.attention(1, 11, heads_first=False, backward=True),
    "_flash_attn_varlen_backward": f.attention(1, 15, heads_first=False, backward=True),
    "mha_fwd": f.attention(0, 5, heads_first=False), "fmha_v3_fwd": f.attention(0, 5, heads_first=False),
    "mha_bwd": f.attention(1, 8, heads_first=False, backward=True),
    "fmha_v3_bwd": f.attention(1, 8, heads_first=False, backward=True),
    "unified_attention_with_output": f.unified_attention, "unified_attention": f.unified_attention,
    "_conv_depthwise2d": f.depthwise_convolution, "conv_depthwise3d": f.depthwise_convolution,
    "cutlass_scaled_fp4_mm": f.packed_product, "_weight_int4pack_mm": f.int4_product,
    "convolution": f.convolution, "_convolution": f.convolution, "convolution_backward": f.convolution_backward,
    "cudnn_convolution_backward_input": f.cudnn_backward_input,
    "native_layer_norm": t.same_shape("normalization"), "_fused_rms_norm": t.same_shape("normalization"),
    "rms_norm": t.same_shape("normalization", 0),
    "native_group_norm": t.spread(t.same_shape("normalization")),
    "native_batch_norm": t.spread(t.same_shape("normalization")),
    "cudnn_batch_norm": t.spread(t.same_shape("normalization")),
    "miopen_batch_norm": t.spread(t.same_shape("normalization")),
    "_batch_norm_with_update": t.spread(t.same_shape("normalization")),
    "_native_batch_norm_legit": t.spread(t.same_shape("normalization")),
    "native_layer_norm_backward": t.spread(t.same_shape("normalization", 0, 1, at=1)),
    "_fused_rms_norm_backward": t.spread(t.same_shape("normalization", 0, 1, at=1)),
    "native_group_norm_backward": t.spread(t.same_shape("normalization", 0, 1, at=1)),
    "native_batch_norm_backward": t.spread(t.same_shape("normalization", 0, 1, at=1)),
    "batch_norm_backward": t.spread(t.same_shape("normalization", 0, 1, at=1)),
    "cudnn_batch_norm_backward": t.spread(t.same_shape("normalization", 0, 1)),
    "miopen_batch_norm_backward": t.spread(t.same_shape("normalization", 0, 1)),
    "fused_add_rms_norm": t.add_norm,
    "_softmax": t.softmax, "_log_softmax": t.softmax,
    "_softmax_backward_data": t.softmax_backward, "_log_softmax_backward_data": t.softmax_backward,
    "_masked_softmax": t.same_shape("softmax"), "cumsum": t.same_shape("reduction", work=1.0),
    "copy_": t.copy, "clone": t.duplicate, "contiguous": t.duplicate, "fill_": t.fill, "zero_": t.fill,
    "cat": t.concatenate, "_cat": t.concatenate, "roll": t.duplicate, "flip": t.duplicate, "tril": t.duplicate,
    "triu": t.duplicate,
    "native_dropout": t.dropout, "native_dropout_backward": t.elementwise(2), "constant_pad_nd": t.padded,
    "_fused_dropout": t.dropout,
    "embedding": t.rows_of_table(1), "index_select": t.rows_of_table(2, 1), "gather": t.gather, "index": t.index,
    "embedding_dense_backward": t.embedding_backward, "nll_loss_backward": t.nll_backward,
    "topk": t.spread(t.reduction), "sort": t.ordered, "argsort": t.ordered, "kthvalue": t.spread(t.reduction),
    "median": t.spread(t.reduction), "multinomial": t.spread(t.reduction), "bincount": t.spread(t.reduction),
    "_unique2": t.spread(t.reduction), "masked_select": t.spread(t.outward("reduction", 0, 1, work=1.0)),
    "cumprod": t.same_shape("reduction", work=1.0), "logcumsumexp": t.same_shape("reduction", work=1.0),
    "dot": t.outward("reduction", 0, 1, work=1.0), "_foreach_norm": t.lists, "nll_loss_forward": t.picked_loss,
    "_amp_foreach_non_finite_check_and_unscale_": t.foreach(1),
    "scatter_": t.scattered(2, 3), "scatter_add_": t.scattered(2, 3), "index_add_": t.scattered(2, 3),
    "index_copy_": t.scattered(2, 3), "index_put_": t.index_put, "_index_put_impl_": t.index_put,
    "normal_": t.fill, "uniform_": t.fill, "bernoulli_": t.fill, "random_": t.fill, "exponential_": t.fill,
    "_embedding_bag": t.bags, "_embedding_bag_forward_only": t.bags,
    "grid_sampler_2d": t.sampled, "glu": t.gate, "reflection_pad2d": t.padded, "replication_pad2d": t.padded,
    "avg_pool3d": t.pooled, "_adaptive_avg_pool3d": t.pooled,
    "moe_sum": t.outward("reduction", 0, 1, work=1.0), "topk_softmax": t.outward("softmax", 0, 1, 2, 3),
    "concat_and_cache_mla": t.outward("copy", 0, 1, work=0.0),
    "sgl_per_token_group_quant_fp8": t.outward("elementwise", 0, 1, 2), "scaled_fp4_quant": t.outward("elementwise", 0, 1, 2),
    "per_token_group_fp8_quant": t.outward("elementwise", 0, 1, 2), "quantize_fp8_tensorwise": t.quantized,
    "gelu_new": t.outward("elementwise", 0, 1), "gelu_fast": t.outward("elementwise", 0, 1),
    "gelu_quick": t.outward("elementwise", 0, 1), "fused_add_rmsnorm": t.add_norm, "gemma_fused_add_rmsnorm": t.add_norm,
    "gemma_rmsnorm": t.outward("normalization", 0, 1),
    "bounds_check_indices": t.spread(t.outward("reduction", 1, 2, work=1.0)), "permute_pooled_embs": t.over(0),
    "max_pool2d_with_indices": t.max_pooled, "max_pool3d_with_indices": t.max_pooled, "avg_pool2d": t.pooled,
    "_adaptive_avg_pool2d": t.pooled, "max_pool2d_with_indices_backward": t.max_pool_backward,
    "max_pool3d_with_indices_backward": t.max_pool_backward, "avg_pool2d_backward": t.like(0, result=1),
    "_adaptive_avg_pool2d_backward": t.like(0, result=1),
    "upsample_nearest1d": t.upsampled, "upsample_nearest2d": t.upsampled, "upsample_nearest3d": t.upsampled,
    "_upsample_nearest_exact2d": t.upsampled, "upsample_bilinear2d": t.upsampled, "upsample_bicubic2d": t.upsampled,
    "upsample_trilinear3d": t.upsampled, "upsample_linear1d": t.upsampled,
    "upsample_nearest2d_backward": t.upsampled_backward, "upsample_bilinear2d_backward": t.upsampled_backward,
    "upsample_bicubic2d_backward": t.upsampled_backward,
    "_transform_bias_rescale_qkv": t.qkv_bias,
    "rotary_embedding": t.over(1, 2), "apply_rope_pos_ids_cos_sin_cache": t.over(0, 1),
    "silu_and_mul": t.outward("elementwise", 0, 1), "gelu_and_mul": t.outward("elementwise", 0, 1),
    "gelu_tanh_and_mul": t.outward("elementwise", 0, 1), "mul_and_silu": t.outward("elementwise", 0, 1),
    "static_scaled_fp8_quant": t.outward("elementwise", 0, 1), "dynamic_scaled_fp8_quant": t.outward("elementwise", 0, 1),
    "dynamic_per_token_scaled_fp8_quant": t.outward("elementwise", 0, 1),
    "rms_norm_static_fp8_quant": t.outward("normalization", 0, 1), "rmsnorm": t.outward("normalization", 0, 1),
    "rms_norm_dynamic_per_token_quant": t.outward("normalization", 0, 1),
    "rms_norm2d_fwd": t.same_shape("normalization"), "rmsnorm2d_fwd": t.same_shape("normalization"),
    "rmsnorm2d_fwd_with_add": t.outward("normalization", 0, 1, 2, 3),
    "rocm_aiter_rms_norm": t.same_shape("normalization"),
    "rocm_aiter_rmsnorm2d_fwd_with_add": t.add_norm,
    "permute_2D_sparse_data": t.over(1, 2), "permute_1D_sparse_data": t.over(1, 2), "asynchronous_complete_cumsum": t.over(0),
    "block_bucketize_sparse_features": t.over(0, 1),
    "reshape_and_cache_flash": t.into_cache, "reshape_and_cache": t.into_cache,
    "_fused_adam_": t.fused_optimizer(2), "_fused_adamw_": t.fused_optimizer(2),
    "_fused_adagrad_": t.fused_optimizer(1),
    "_fused_sgd_": t.fused_optimizer(1),
}  # fmt: skip
for _names, _arity in ((t.UNARY, 1), (t.BINARY, 2), (t.TERNARY, 3)):
    for _name in _names:
        FORMULAS[_name] = t.elementwise(_arity, _name in t.TRUTHS)
        FORMULAS[_name + "_"] = t.in_place(_arity)
        FORMULAS[f"_foreach_{_name}_"] = FORMULAS[f"_foreach_{_name}"] = t.foreach(_arity)
FORMULAS.update(dict.fromkeys(t.REDUCTIONS, t.reduction))

TEXTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")

OWN_CLASSES = {
    "product": frozenset({"gemm", "moe", "attention"}),
    "attention": frozenset({"attention", "gemm"}),
    "convolution": frozenset({"convolution", "gemm"}),
    "moe": frozenset({"moe", "gemm"}),
}
"""Classes of the kernels that can be a family's main one; for other families the longest is."""

TRUE_FP32 = re.compile(
    r"(?<![a-z])(?:volta_|ampere_|maxwell_)?sgemm|scudnn|simt|ffma|gemmsn|gemmk1|gemv|gemmn|cijk_(?!\w*_XH?_)|dot_kernel"
    r"|igemm_|miopen|mlo_|ck::|ck_tile|naive_conv|conv_?depthwise|depthwise|convolve_sgemm|wgrad_alg0|dgrad_engine|gfx9",
    re.I,
)
"""fp32 products that do not use the tensor cores; other ones may, and count at the faster rate."""

WINOGRAD, FOURIER = re.compile(r"winograd", re.I), re.compile(r"fft", re.I)
WINOGRAD_LEAST = 0.25
"""Of the definition's products: F(4x4, 3x3) needs 36 for 16 results of 9 (Lavin and Gray 2015). Fourier's are not known."""

SPELLINGS = (
    ("int64", re.compile(r"CatArrayBatchedCopy\w*<(?:long|int64_t)")),
    ("int32", re.compile(r"CatArrayBatchedCopy\w*<(?:int|int32_t),")),
    ("bf16", re.compile(r"bfloat16|bf16|_BBS_|__nv_bfloat", re.I)),
    ("fp16", re.compile(r"c10::Half|__half|fp16|f16f16|_HHS_|hgemm|h\d+gemm", re.I)),
    ("fp64", re.compile(r"double|dgemm")),
    ("fp32", re.compile(r"float|sgemm|scudnn|s1688gemm|f32f32")),
)
OPAQUE = re.compile(r"OpaqueType<\(?(?:unsigned int\))?(\d+)u?>")
OPAQUE_TYPES = {"1": "uint8", "2": "bf16", "4": "fp32", "8": "fp64"}  # the size is what counts


def dtype_of_kernel(name: str) -> str:
    """The type of a kernel's numbers, by its name; "" where that does not tell."""
    if found := OPAQUE.search(name):
        return OPAQUE_TYPES.get(found[1], "")
    return next((dtype for dtype, spelling in SPELLINGS if spelling.search(name)), "")


LOOKUP = re.compile(r"split_embedding_codegen_lookup_\w+_function")
LOOKUP_BACKWARD = re.compile(r"CppNode<SplitLookupFunction_")
"""FBGEMM's gradient of embedding tables: at least the gradient is read; which rows it touches is not recorded."""
MIXTURE = re.compile(r"fused_moe|fused_experts|moe_forward|cutlass_moe|ck_moe|asm_moe", re.I)


AUTOGRAD: dict[str, Formula] = {
    "FlashAttnFunc": f.attention(0, 5, heads_first=False), "LigerSiLUMulFunction": t.elementwise(2),
}  # fmt: skip
"""Python functions of autograd whose kernels no operator inside them launches."""


def formula(operator: str) -> Formula | None:
    """The formula of an operator by its name without namespace; None for one that is not known."""
    scope, _, name = operator.rpartition("::")
    if not scope:
        return t.generated(name) if name.startswith("triton_") else AUTOGRAD.get(name)
    if name == "fwd" and scope in ("flash_attn_3", "_vllm_fa3_C"):
        return f.attention(0, 24, heads_first=False)  # FlashAttention 3
    if name == "rms_norm" and scope != "aten":  # out, x, weight
        return t.same_shape("normalization", 1, at=1)
    if name == "_foreach_copy_":
        return lambda call: t.foreach(1)(replace(call, arguments=call.arguments[1:]))
    if MIXTURE.search(name):
        return f.mixture
    if LOOKUP.fullmatch(name):
        return t.tables
    if LOOKUP_BACKWARD.search(name):
        return t.spread(t.reduction)
    return CUDNN.get(name) or FORMULAS.get(name) or (f.any_product if scope not in ("aten", "c10d", "fbgemm") else None)


def _cudnn(padding: int, *, transposed: bool = False) -> Formula:
    """x, w, perhaps bias, then from `padding` on: padding, output padding where transposed, stride, dilation, groups."""

    def cost(call: Call) -> Cost | None:
        rest = list(call.concrete[padding:])
        if len(rest) < 4 + transposed:
            return None
        extra = rest.pop(1) if transposed else ""
        pad, stride, dilation, groups = rest[:4]
        concrete = ("", "", "", stride, pad, dilation, str(transposed), extra, groups)
        return f.convolution(Call(call.arguments[:2], concrete))

    return cost


CUDNN: dict[str, Formula] = {
    "cudnn_convolution": _cudnn(2), "cudnn_convolution_relu": _cudnn(3), "miopen_convolution": _cudnn(3),
    "miopen_depthwise_convolution": _cudnn(3), "cudnn_convolution_transpose": _cudnn(2, transposed=True),
    "miopen_convolution_transpose": _cudnn(3, transposed=True),
}  # fmt: skip

OVER_CACHE = frozenset({"unified_attention", "unified_attention_with_output"})
"""Attention of a step of a serving engine, whose annotation tells what its arguments do not."""
ON_A_WINDOW = re.compile(r"sliding|local_?attention", re.IGNORECASE)
"""Kernels for which the annotated cache is more than they read."""
BEFORE_NORM = frozenset({"cudnn_convolution", "miopen_convolution", "_convolution", "convolution"})
"""Convolutions of recordings without values: the normalization that follows reads their result."""
PARTS = frozenset({"cudnn_convolution_backward_weight", "cudnn_convolution_backward_input"})
"""What the operator around them was called with tells more than their own arguments."""


@lru_cache(maxsize=65_536)
def cost(
    operator: str, dims: str, types: str, strides: str, concrete: str, kernel: str, beside: str = ""
) -> Cost | None:  # fmt: skip
    """FLOPs and bytes of one call, None where the operator or its shapes are not known. `beside` tells what the
    call does not: the shapes of the operator around it, or of the one that reads the result, or an engine's annotation."""
    rule = formula(operator)
    assumed = dtype_of_kernel(kernel)
    call = read_call(dims, types, strides, concrete, assumed) if (rule or beside) and dims else None
    try:
        found = None
        if beside and call and (step := read_step(beside)):
            found = None if ON_A_WINDOW.search(kernel) else f.unified_attention(call, step)
        elif beside and call:
            found = _beside(operator.rpartition("::")[2], call, read_call(beside, "", assumed=_type_of(call, assumed)))
        found = found or (rule(call) if rule and call else None)
    except ArithmeticError:  # of arguments that no program passes, such as a stride of 0
        return None
    if found and found.family == "convolution" and WINOGRAD.search(kernel):
        found = replace(found, multiplied=WINOGRAD_LEAST)
    if found and found.family in OWN_CLASSES and found.dtype == "fp32" and not TRUE_FP32.search(kernel):
        return replace(found, dtype="tf32")
    return found


def _type_of(call: Call, assumed: str) -> str:
    """The type of the call's first tensor, else the kernel's."""
    return next((tensor.dtype for tensor in call.all), assumed)


def _beside(name: str, call: Call, other: Call | None) -> Cost | None:
    """A convolution of PyTorch 1.x by what is recorded beside it."""
    if other is None:
        return None
    if name in PARTS:
        return f.cudnn_backward_part(other)
    found, out = call.tensors(0, 1), other.tensor(0)
    if not found or not out or len(out.shape) != len(found[0].shape):
        return None
    if (found[0].shape[0], found[1].shape[0]) != out.shape[:2]:
        return None
    return f.convolved(found[0], found[1], out.shape)


@dataclass(frozen=True)
class Costs:
    """The cost of each operation of a timeline; m of them."""

    kind: Int32
    """[m] index into `kinds`; -1 where the work is not known."""
    share: NDArray[np.float64]
    """[m] part of that cost: 1, less where several kernels do the work of one call."""
    kinds: tuple[Cost, ...]
    operator: Index
    """[m] row of the operator that launched it, -1 none."""
    called: tuple[tuple[str, str], ...] = ()
    """Operator of each kind, and the text of its shapes."""
    helps: Bool | None = None
    """[m] a kernel beside the one that has the operator's cost: it reduces parts, converts, copies a bias. None: none does."""
    borrowed: Bool | None = None
    """[m] the cost is that of the same kernel with the same grid and block elsewhere. None: none is."""
    captured: Bool | None = None
    """[m] a recording of the capture tells the operator (`gpu_trace_advisor.roofline.captured_work`). None: of none."""

    def of(self, flag: Bool | None, rows: Index) -> Bool:
        """[k] `helps`, `borrowed` or `captured` of these operations."""
        return np.zeros(len(rows), np.bool_) if flag is None else flag[rows]


AROUND = 2  # operators further out that may have the formula which the innermost one lacks


def operation_costs(timeline: Timeline) -> Costs:
    """The cost of every compute operation, by the operator around its launch."""
    trace, n = timeline.trace, len(timeline.row)
    operator = np.full(n, NONE, index_type(len(trace)))
    linked = np.flatnonzero(timeline.linked & (timeline.op_class == COMPUTE) & ~timeline.node)
    operator[linked] = timeline.host.operator[timeline.launch[linked]]
    at = np.flatnonzero(operator != NONE)
    if not len(at):
        return Costs(constant(NONE, n, np.int32), np.broadcast_to(1.0, n), (), constant(NONE, n, operator.dtype))
    found = _Kinds(timeline)
    source, number, main = operator[at], np.full(len(at), NONE, np.int32), np.zeros(len(at), np.bool_)
    left = np.arange(len(at))
    for _ in range(1 + AROUND):
        number[left], main[left] = found.of(source[left], at[left])
        left = left[number[left] == NONE]
        around = timeline.host.parent[source[left]]
        left, around = left[around != NONE], around[around != NONE]
        if not len(left):
            break
        source[left] = around
    kinds = found.kinds
    number = by_winograd(timeline, source, at, number, kinds, found.called)
    known = number != NONE
    at, source, number, main = at[known], source[known], number[known], main[known]
    keep, part = main_kernels(timeline, source, at, main, [k.several for k in kinds], number)
    kind, share = np.full(n, NONE, np.int32), np.ones(n)
    kind[at[keep]], share[at[keep]] = number[keep], part[keep]
    helps = np.zeros(n, np.bool_)
    helps[at[~keep]] = True
    borrowed = _borrow(timeline, kind, share, helps)
    return Costs(kind, share, tuple(kinds), operator, tuple(found.called), helps, borrowed)


class _Kinds:
    """Collects the distinct calls of a timeline with their costs."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.kinds: list[Cost] = []
        self.called: list[tuple[str, str]] = []

    def of(self, source: Index, at: Int64) -> tuple[Int32, Bool]:
        """For the operations `at` the number of the cost of the operator `source`, -1 where it has none; and whether the
        kernel can be the one that does the operator's work."""
        trace = self.timeline.trace
        texts = values_of([trace.texts.get(name) for name in TEXTS], source)
        beside = texts_beside(trace, self.timeline.host, source)
        columns: list[NDArray[Any]] = [
            trace.name_code[source], *texts, trace.name_code[self.timeline.row[at]], beside
        ]  # fmt: skip
        distinct, which = distinct_rows(columns)
        number, main = np.full(len(distinct), NONE, np.int32), np.zeros(len(distinct), np.bool_)
        for i, (name, *codes, kernel, other) in enumerate(distinct):
            words = [trace.strings[code] if code != NONE else "" for code in codes]
            words.append(text_beside(trace, other))
            label = trace.names[kernel]
            found = cost(trace.names[name], *words[:-1], label, words[-1])
            if found is not None:
                number[i] = len(self.kinds)
                self.kinds.append(found)
                self.called.append((trace.names[name], words[0]))
                own = OWN_CLASSES.get(found.family)
                main[i] = own is None or kernel_class(label) in own
        return number[which], main[which]


NORMS = frozenset({"cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm"})


def text_beside(trace: Trace, code: int) -> str:
    """What a code of `texts_beside` stands for."""
    if code == NONE:
        return ""
    return trace.strings[code] if code < len(trace.strings) else trace.names[code - len(trace.strings)]


def engine_steps(trace: Trace, rows: Index) -> Int64:
    """[k] the annotation of a serving engine's step around each of these host rows (code of a name); -1 mostly."""
    found = np.full(len(rows), NONE, np.int64)
    ranges = trace.rows(Kind.RANGE)
    ranges = ranges[named(trace, trace.name_code[ranges], lambda name: read_step(name) is not None)]
    for thread in present(trace.thread[ranges]).tolist():
        steps = ranges[trace.thread[ranges] == thread]
        mine = np.flatnonzero((rows != NONE) & (trace.thread[rows] == thread))
        at = np.searchsorted(trace.start_ns[steps], trace.start_ns[rows[mine]], side="right") - 1
        inside = (at >= 0) & (trace.end_ns[steps[at]] >= trace.end_ns[rows[mine]])
        found[mine[inside]] = trace.name_code[steps[at[inside]]]
    return found


def texts_beside(trace: Trace, host: Host, source: Index) -> Index:
    """[k] what tells what each operator's own arguments do not, as a code for `text_beside`: the shapes of another call, or an
    engine's annotation; -1 mostly."""
    found = np.full(len(source), NONE, np.int64)
    shapes = trace.texts.get("Input Dims")
    if shapes is None:
        return found
    code = trace.name_code[source]
    served = np.flatnonzero(named(trace, code, lambda name: name.rpartition("::")[2] in OVER_CACHE))
    if len(served):
        steps = engine_steps(trace, source[served])
        found[served] = np.where(steps != NONE, steps + len(trace.strings), NONE)
    part = np.flatnonzero(named(trace, code, lambda name: name.rpartition("::")[2] in PARTS))
    around = host.parent[source[part]]
    found[part[around != NONE]] = values_of([shapes], around[around != NONE])[0]
    forward = named(trace, code, lambda name: name.rpartition("::")[2] in BEFORE_NORM)
    forward &= values_of([trace.texts.get("Concrete Inputs")], source)[0] == NONE
    at = np.flatnonzero(forward)
    if not len(at):
        return found
    operators = trace.rows(Kind.OPERATOR)
    names = trace.name_code[operators]
    norms = operators[named(trace, names, lambda name: name.rpartition("::")[2] in NORMS)]
    others = present(source[at])
    after = np.searchsorted(norms, source[at])
    at, after = at[after < len(norms)], after[after < len(norms)]
    follows = np.append(others, len(trace))[np.searchsorted(others, source[at], side="right")]
    norm = norms[after]
    fits = (norm < follows) & (trace.thread[norm] == trace.thread[source[at]])
    found[at[fits]] = values_of([shapes], norm[fits])[0]
    return found


def by_winograd(
    timeline: Timeline, source: Index, at: Int64, number: Int32, kinds: list[Cost], called: list[tuple[str, str]]
) -> Int32:
    """The numbers of the costs, with those of convolutions that one of their kernels shows to be done by another algorithm:
    by Winograd's with fewer products, by Fourier's with an unknown number."""
    names = timeline.trace.name_code[timeline.row[at]]
    convolution = np.array([*(kind.family == "convolution" for kind in kinds), False], np.bool_)[number]
    for pattern, multiplied in ((FOURIER, None), (WINOGRAD, WINOGRAD_LEAST)):
        telling = convolution & named(timeline.trace, names, partial(_finds, pattern))
        if not telling.any():
            continue
        mine = np.flatnonzero(convolution & among(source, source[telling]))
        if multiplied is None:
            number[mine], convolution[mine] = NONE, False
            continue
        for old in present(number[mine]).tolist():
            if kinds[old].multiplied != multiplied:
                number[mine[number[mine] == old]] = len(kinds)
                kinds.append(replace(kinds[old], multiplied=multiplied))
                called.append(called[old])
    return number


def _finds(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None


def _borrow(timeline: Timeline, kind: Int32, share: NDArray[np.float64], helps: Bool) -> Bool:
    """Gives kernels without a known call (launches or operators not recorded, nodes of graphs) the cost of the same kernel
    with the same grid and block, where all that are known have one, or all between the same kernels; which ones got it."""
    trace = timeline.trace
    borrowed = np.zeros(len(kind), np.bool_)
    on = np.flatnonzero(timeline.is_kernel & (timeline.op_class == COMPUTE) & ~helps)
    if not (kind[on] == NONE).any() or not (kind[on] != NONE).any():
        return borrowed
    sizes = values_of([trace.texts.get("grid"), trace.texts.get("block")], timeline.row[on])
    recorded = (sizes[0] != NONE) & (sizes[1] != NONE)
    on, sizes = on[recorded], [column[recorded] for column in sizes]
    if not len(on):
        return borrowed
    alike, which = distinct_rows([trace.name_code[timeline.row[on]], *sizes])
    written = np.array([any(size in trace.strings[row[1]] for size in "123456789") for row in alike], np.bool_)
    on, which = on[written[which]], which[written[which]]  # zeros stand for grids that were not recorded
    order = np.lexsort((timeline.start[on], timeline.stream[on]))
    on, which = on[order], which[order].astype(np.int64)
    left = np.arange(len(on))
    for far in range(1 + BETWEEN):
        reach = [by for step in range(1, far + 1) for by in (step, -step)]
        around = [which[left], *(_shifted(which, timeline.stream[on], by)[left] for by in reach)]
        takes, lender = _agreeing(distinct_rows(around)[1], kind[on[left]])
        takes, lender = on[left[takes]], on[left[lender]]
        kind[takes], share[takes], borrowed[takes] = kind[lender], share[lender], True
        # Those are left whose like some are known of and some are not.
        unknown = kind[on] == NONE
        left = np.flatnonzero(among(which, which[unknown]) & among(which, which[~unknown]))
        if not len(left):
            break
    return borrowed


BETWEEN = 3  # kernels before and after one that tell which of several calls it was


def _shifted(values: Int64, stream: Index, by: int) -> Int64:
    """[k] the value so many places before (after where negative) on the same stream; -1 where there is none."""
    found = np.full(len(values), NONE, np.int64)
    to, of = (slice(by, None), slice(None, -by)) if by > 0 else (slice(None, by), slice(-by, None))
    found[to] = np.where(stream[to] == stream[of], values[of], NONE)
    return found


def _agreeing(which: Index, kind: Int32) -> tuple[Int64, Int64]:
    """The places of those that have no cost in a group where all that have one agree, and for each the place of one of them."""
    count, known = int(which.max(initial=-1)) + 1, kind != NONE
    least, most = np.full(count, np.iinfo(np.int32).max), np.full(count, NONE)
    np.minimum.at(least, which[known], kind[known])
    np.maximum.at(most, which[known], kind[known])
    example = np.full(count, NONE)
    example[which[known]] = np.flatnonzero(known)
    takes = np.flatnonzero(~known & (least[which] == most[which]))
    return takes, example[which[takes]]


def main_kernels(
    timeline: Timeline, operator: Index, at: Int64, main: Bool, several: list[bool], number: Int32
) -> tuple[Bool, NDArray[np.float64]]:
    """Which of each operator's kernels do its work, and the part of each: those of the longest eligible one's name."""
    length = timeline.length[at]
    order = np.lexsort((-length, ~main, operator))
    group = np.cumsum(np.concatenate([[0], np.diff(operator[order]) != 0])) if len(order) else order
    first = np.flatnonzero(np.concatenate([[True], np.diff(group) != 0])) if len(order) else order
    best = order[first]
    many = np.array(several, np.bool_)[number] if several else np.zeros(len(at), np.bool_)
    name = timeline.trace.name_code[timeline.row[at]]
    keep, part = np.zeros(len(at), np.bool_), np.ones(len(at))
    chosen = best[group]
    keep[order] = (name[order] == name[chosen]) | (many[chosen] & (main[order] == main[chosen]))
    weight = np.where(keep[order], np.maximum(length[order], 1), 0)
    total = np.bincount(group, weight, minlength=len(first))
    part[order] = weight / np.maximum(total[group], 1)
    return keep, part
