"""What each kernel had to do: FLOPs and compulsory bytes, from the shapes of the operator that launched it.

Worked out once for each distinct call (operator, shapes, types, kernel name). Where an operator launches several
kernels, the one that does its work has the cost, the others are not modelled. What was not recorded is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.compact import constant, index_type
from gpu_trace_advisor.roofline import flops as f
from gpu_trace_advisor.roofline import memory_traffic as t
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMPUTE, Timeline
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.lookup import distinct_rows, named, values_of
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int32, Int64
from gpu_trace_advisor.trace.operator_shapes import Call, read_call

Formula = Callable[[Call], Cost | None]

FORMULAS: dict[str, Formula] = {
    "mm": f.mm, "addmm": f.addmm, "_addmm_activation": f.addmm, "mv": f.mv, "addmv": f.addmv, "bmm": f.bmm,
    "baddbmm": f.baddbmm, "linear": f.linear, "matmul": f.matmul, "_scaled_mm": f.scaled_mm, "_int_mm": f.mm,
    "cutlass_scaled_mm": f.cutlass_scaled_mm, "_grouped_mm": f.grouped_mm, "_scaled_grouped_mm": f.grouped_mm,
    "_flash_attention_forward": f.attention(0, 8, heads_first=False),
    "_efficient_attention_forward": f.attention(0, 8, heads_first=False),
    "_scaled_dot_product_flash_attention": f.attention(0, 4, heads_first=True),
    "_scaled_dot_product_efficient_attention": f.attention(0, 6, heads_first=True),
    "_scaled_dot_product_cudnn_attention": f.attention(0, 6, heads_first=True),
    "_flash_attn_forward": f.attention(0, 5, heads_first=False),
    "_flash_attention_backward": f.attention(1, 11, heads_first=False, backward=True),
    "_efficient_attention_backward": f.attention(1, 99, heads_first=False, backward=True),
    "_scaled_dot_product_flash_attention_backward": f.attention(1, 11, heads_first=True, backward=True),
    "_scaled_dot_product_efficient_attention_backward": f.attention(1, 11, heads_first=True, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": f.attention(1, 13, heads_first=True, backward=True),
    "_flash_attn_backward": f.attention(1, 12, heads_first=False, backward=True),
    "convolution": f.convolution, "_convolution": f.convolution, "convolution_backward": f.convolution_backward,
    "cudnn_convolution_backward_input": f.cudnn_backward_input,
    "native_layer_norm": t.same_shape("normalization"), "native_group_norm": t.same_shape("normalization"),
    "native_batch_norm": t.same_shape("normalization"), "cudnn_batch_norm": t.same_shape("normalization"),
    "miopen_batch_norm": t.same_shape("normalization"), "_fused_rms_norm": t.same_shape("normalization"),
    "_batch_norm_with_update": t.same_shape("normalization"), "rms_norm": t.same_shape("normalization", 0),
    "native_layer_norm_backward": t.same_shape("normalization", 0, 1, at=1),
    "native_group_norm_backward": t.same_shape("normalization", 0, 1, at=1),
    "native_batch_norm_backward": t.same_shape("normalization", 0, 1, at=1),
    "cudnn_batch_norm_backward": t.same_shape("normalization", 0, 1),
    "miopen_batch_norm_backward": t.same_shape("normalization", 0, 1),
    "fused_add_rms_norm": t.add_norm,
    "_softmax": t.same_shape("softmax"), "_log_softmax": t.same_shape("softmax"),
    "_softmax_backward_data": t.same_shape("softmax", 0, 1),
    "_log_softmax_backward_data": t.same_shape("softmax", 0, 1),
    "_masked_softmax": t.same_shape("softmax"), "cumsum": t.same_shape("reduction", work=1.0),
    "copy_": t.copy, "clone": t.duplicate, "contiguous": t.duplicate, "fill_": t.fill, "zero_": t.fill,
    "cat": t.concatenate,
    "native_dropout": t.dropout, "native_dropout_backward": t.elementwise(2), "constant_pad_nd": t.reduction,
    "embedding": t.rows_of_table(1), "index_select": t.rows_of_table(2, 1), "gather": t.gather,
    "embedding_dense_backward": t.embedding_backward, "nll_loss_backward": t.nll_backward,
    "max_pool2d_with_indices": t.reduction, "avg_pool2d": t.reduction, "_adaptive_avg_pool2d": t.reduction,
    "max_pool2d_with_indices_backward": t.nll_backward,
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
}
"""Classes of the kernels that can be a family's main one; for other families the longest is."""

TRUE_FP32 = re.compile(
    r"(?<![a-z])(?:volta_|ampere_|maxwell_)?sgemm|scudnn|simt|ffma|gemmsn|gemmk1|gemv|gemmn|cijk_|dot_kernel", re.I
)
"""fp32 products that do not use the tensor cores; other ones may, and count at the faster rate."""

TRANSFORMED = re.compile(r"winograd|fft", re.I)
"""Convolutions by other algorithms: their FLOPs are fewer than those of the definition, and not known."""

SPELLINGS = (
    ("bf16", re.compile(r"bfloat16|bf16|_BBS_|__nv_bfloat", re.I)),
    ("fp16", re.compile(r"c10::Half|__half|fp16|f16f16|_HHS_|hgemm|h\d+gemm", re.I)),
    ("fp64", re.compile(r"double|dgemm")),
    ("fp32", re.compile(r"float|sgemm|s1688gemm|f32f32")),
)
OPAQUE = re.compile(r"OpaqueType<\(?(?:unsigned int\))?(\d+)u?>")
OPAQUE_TYPES = {"1": "uint8", "2": "bf16", "4": "fp32", "8": "fp64"}  # the size is what counts


def dtype_of_kernel(name: str) -> str:
    """The type of a kernel's numbers, by its name; "" where that does not tell."""
    if found := OPAQUE.search(name):
        return OPAQUE_TYPES.get(found[1], "")
    return next((dtype for dtype, spelling in SPELLINGS if spelling.search(name)), "")


def formula(operator: str) -> Formula | None:
    """The formula of an operator by its name without namespace; None for one that is not known."""
    scope, _, name = operator.rpartition("::")
    if not scope:
        return t.generated if name.startswith("triton_") else None
    if name == "rms_norm" and scope != "aten":  # out, x, weight
        return t.same_shape("normalization", 1, at=1)
    if name == "_foreach_copy_":
        return lambda call: t.foreach(1)(replace(call, arguments=call.arguments[1:]))
    return CUDNN.get(name) or FORMULAS.get(name)


def _cudnn(call: Call) -> Cost | None:
    """x, w, padding, stride, dilation, groups: the lists in cuDNN's order."""
    concrete = list(call.concrete)
    if len(concrete) < 6:
        return None
    concrete[2:5] = [concrete[3], concrete[2], concrete[4]]
    return f.convolution(Call((*call.arguments[:2], (), *call.arguments[2:]), ("", "", "", *concrete[2:5], "False")))


CUDNN: dict[str, Formula] = {"cudnn_convolution": _cudnn, "miopen_convolution": _cudnn}


@lru_cache(maxsize=65_536)
def cost(operator: str, dims: str, types: str, strides: str, concrete: str, kernel: str) -> Cost | None:
    """FLOPs and bytes of one call, None where the operator or its shapes are not known."""
    rule = formula(operator)
    call = read_call(dims, types, strides, concrete, dtype_of_kernel(kernel)) if rule and dims else None
    try:
        found = rule(call) if rule and call else None
    except ArithmeticError:  # of arguments that no program passes, such as a stride of 0
        return None
    if found and found.family in OWN_CLASSES and found.dtype == "fp32" and not TRUE_FP32.search(kernel):
        return replace(found, dtype="tf32")
    return found


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


def operation_costs(timeline: Timeline) -> Costs:
    """The cost of every compute operation, by the operator around its launch."""
    trace, n = timeline.trace, len(timeline.row)
    operator = np.full(n, NONE, index_type(len(trace)))
    linked = np.flatnonzero(timeline.linked & (timeline.does == COMPUTE) & ~timeline.node)
    operator[linked] = timeline.host.operator[timeline.launch[linked]]
    at = np.flatnonzero(operator != NONE)
    if not len(at):
        return Costs(constant(NONE, n, np.int32), np.broadcast_to(1.0, n), (), constant(NONE, n, operator.dtype))
    kind, share = np.full(n, NONE, np.int32), np.ones(n)
    texts = values_of([trace.texts.get(name) for name in TEXTS], operator[at])
    columns: list[NDArray[Any]] = [trace.name_code[operator[at]], *texts, trace.name_code[timeline.row[at]]]
    distinct, which = distinct_rows(columns)
    kinds: list[Cost] = []
    number = np.full(len(distinct), NONE, np.int32)
    main = np.zeros(len(distinct), np.bool_)
    for i, (name, *codes, kernel) in enumerate(distinct):
        words = [trace.strings[code] if code != NONE else "" for code in codes]
        label = trace.names[kernel]
        found = cost(trace.names[name], *words, label)
        if found is not None:
            number[i] = len(kinds)
            kinds.append(found)
            own = OWN_CLASSES.get(found.family)
            main[i] = own is None or kernel_class(label) in own
    known = (number[which] != NONE) & ~_transformed(timeline, operator[at], at, number[which], kinds)
    at, which = at[known], which[known]
    keep, part = _main_kernels(timeline, operator[at], at, main[which], [k.several for k in kinds], number[which])
    kind[at[keep]], share[at[keep]] = number[which[keep]], part[keep]
    return Costs(kind, share, tuple(kinds), operator)


def _transformed(timeline: Timeline, operator: Index, at: Int64, number: Int32, kinds: list[Cost]) -> Bool:
    """Kernels of convolutions that one of their kernels shows to be done by another algorithm."""
    names = timeline.trace.name_code[timeline.row[at]]
    telling = named(timeline.trace, names, lambda name: TRANSFORMED.search(name) is not None)
    convolution = np.array([*(kind.family == "convolution" for kind in kinds), False], np.bool_)  # -1 is the last one
    return np.asarray(convolution[number] & among(operator, operator[telling]), np.bool_)


def _main_kernels(
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
