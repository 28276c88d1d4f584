"""Which engines, compilers and libraries the program uses, each with the record that shows it.

A name counts only where it is distinctive: a scope, a path or the beginning of a record of the right kind, never a word
found anywhere. Kernels of one project run inside others (TensorRT-LLM's in vLLM), so kernels show a library, not an engine.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.trace.model import Int64, Kind, Trace

OPERATORS = (Kind.OPERATOR, Kind.RANGE, Kind.SPAN)
FRAMES = (Kind.PYTHON,)
KERNELS = (Kind.KERNEL,)
CALLS = (Kind.CALL,)


class Use(NamedTuple):
    """Something the program uses."""

    name: str
    role: str
    """`engine`, `compiler`, `attention`, `library`, `parallelism` or `graphs`."""
    seen: str
    """The record's name."""
    records: int
    """How many records show it."""


class _Sign(NamedTuple):
    name: str
    role: str
    kinds: tuple[Kind, ...]
    pattern: re.Pattern[str]
    """Matched from the start of the record's name."""


def _signs(*rows: tuple[str, str, tuple[Kind, ...], str]) -> tuple[_Sign, ...]:
    return tuple(_Sign(name, role, kinds, re.compile(pattern)) for name, role, kinds, pattern in rows)


SIGNS = _signs(
    ("vLLM", "engine", OPERATORS, r"vllm::|_C_cache_ops::reshape_and_cache|_vllm_fa[23]_C::"),
    ("vLLM", "engine", FRAMES, r"(?:.*/)?vllm/(?:v1|worker|engine|model_executor|attention)/"),
    ("SGLang", "engine", OPERATORS, r"step\[(?:DECODE|EXTEND|MIXED|PREFILL|TARGET_VERIFY|IDLE)|sgl_kernel::"),
    ("SGLang", "engine", FRAMES, r"(?:.*/)?sglang/srt/"),
    ("TensorRT-LLM", "engine", OPERATORS, r"trtllm::"),
    ("TensorRT-LLM", "engine", FRAMES, r"(?:.*/)?tensorrt_llm/"),
    ("TensorRT", "engine", OPERATORS, r"ExecutionContext::(?:enqueue|execute)"),
    ("torch.compile", "compiler", OPERATORS, r"Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction(?:Backward)?$"),
    ("torch.compile", "compiler", KERNELS, r"triton_(?:poi|red|per|tem|mm|bmm|for|unk)_|triton__0d1d"),
    ("FlashAttention 2", "attention", KERNELS, r"void (?:pytorch_)?flash::flash_(?:fwd|bwd)_"),
    ("FlashAttention 3", "attention", KERNELS, r"void cutlass::device_kernel<flash::(?:\w+<flash::)?FlashAttn(?:Fwd|Bwd)Sm90"),
    ("FlashAttention 4", "attention", KERNELS, r"kernel_cutlass_\w*FlashAttention(?:Forward|Backward)Sm100"),
    ("FlashInfer", "attention", KERNELS, r"(?:void )?flashinfer::"),
    ("FlashInfer", "attention", FRAMES, r"(?:.*/)?flashinfer/"),
    ("TensorRT-LLM attention", "attention", KERNELS, r"fmhaSm\d+\w*Kernel"),
    ("cuDNN attention", "attention", KERNELS, r"cudnn_generated_\w*sdpa"),
    ("memory-efficient attention", "attention", KERNELS, r"fmha_cutlass[FB]_|void attention_kernel_(?:backward_)?batched_impl<"),
    ("Liger", "library", OPERATORS, r"Liger\w+Function"),
    ("Liger", "library", FRAMES, r"(?:.*/)?liger_kernel/"),
    ("Liger", "library", KERNELS, r"_?liger_"),
    ("Apex", "library", KERNELS, r"void (?:\(anonymous namespace\)::)?cu(?:ApplyLayerNorm|ComputeGradInput)"),
    ("Apex", "library", FRAMES, r"(?:.*/)?apex/(?:optimizers|normalization|contrib|amp|multi_tensor_apply)/"),
    ("Transformer Engine", "library", KERNELS, r"(?:void )?transformer_engine::"),
    ("Transformer Engine", "library", FRAMES, r"(?:.*/)?transformer_engine/pytorch/"),
    ("TensorRT-LLM kernels", "library", KERNELS, r"(?:void )?tensorrt_llm::kernels::"),
    ("DeepSpeed", "parallelism", OPERATORS, r"DeepSpeedEngine\.|DeepSpeedZeroOptimizer"),
    ("DeepSpeed", "parallelism", FRAMES, r"(?:.*/)?deepspeed/(?:runtime|ops)/"),
    ("FSDP", "parallelism", OPERATORS, r"FSDP::|FullyShardedDataParallel\."),
    ("FSDP", "parallelism", FRAMES, r"(?:.*/)?torch/distributed/(?:fsdp|_composable/fsdp)/"),
    ("DDP", "parallelism", OPERATORS, r"DistributedDataParallel\.forward"),
    ("DDP", "parallelism", FRAMES, r"nn\.Module: DistributedDataParallel(?:_\d+)?$"),
    ("Megatron", "parallelism", FRAMES, r"(?:.*/)?megatron/(?:core|training)/"),
    ("CUDA graphs", "graphs", CALLS, r"(?:cuda|hip|cu)GraphLaunch"),
    ("CUDA graphs", "graphs", (Kind.GRAPH,), r""),
)  # fmt: skip


def uses(trace: Trace, start_ns: int | None = None, end_ns: int | None = None) -> list[Use]:
    """What the records show that start in [start_ns, end_ns), all of them by default; in the order of SIGNS, once each."""
    first = 0 if start_ns is None else int(np.searchsorted(trace.start_ns, start_ns))
    last = len(trace) if end_ns is None else int(np.searchsorted(trace.start_ns, end_ns))
    count = _counts(trace, first, last)
    names = {kinds: _counted(trace, count[:, list(kinds)].sum(axis=1)) for kinds in {sign.kinds for sign in SIGNS}}
    found: dict[str, Use] = {}
    for sign in SIGNS:
        hits = [(label, count) for label, count in names[sign.kinds] if sign.pattern.match(label)]
        if hits and sign.name not in found:
            seen = max(hits, key=lambda hit: hit[1])[0]
            found[sign.name] = Use(sign.name, sign.role, seen, sum(count for _, count in hits))
    return list(found.values())


PYTORCH = ("aten::", "at::native", "torch", "c10::")


def is_pytorch(trace: Trace) -> bool:
    """PyTorch's own recorder made it, or its names are in it; else advice is given in CUDA's words."""
    return trace.format == "kineto" or any(word in name for name in trace.names for word in PYTORCH)


def _counts(trace: Trace, first: int, last: int) -> Int64:
    """[names, kinds] how many of the rows from `first` to before `last` have this name and are of this kind."""
    kinds = max(Kind) + 1
    both = trace.name_code[first:last] * np.int64(kinds) + trace.kind[first:last]
    return np.bincount(both, minlength=len(trace.names) * kinds).reshape(-1, kinds)


def _counted(trace: Trace, count: Int64) -> list[tuple[str, int]]:
    """The names that occur, and how often; `count` is by name."""
    return [(trace.names[code], int(count[code])) for code in np.flatnonzero(count).tolist()]
