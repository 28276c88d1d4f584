"""What a device operation is, from its name: communication, kind of copy, class of kernel, and a name people can read."""

from __future__ import annotations

import re
from functools import lru_cache

COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|oneccl|msccl|multimem_all_reduce|cross_device_reduce|nvshmem|deep_ep(?![a-z])", re.IGNORECASE
)

# First match decides. Vendor libraries before framework words: a GEMM may be called `..._softmax_gemm`.
CLASSES = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("communication", COMMUNICATION.pattern),
        ("attention", r"flash|fmha|attention|attn|mha_|sdpa|paged_|splitkv|mla_"),
        ("moe", r"moe|expert|grouped_?gemm|matmul_ogs|topk_gating"),
        ("convolution", r"conv|wgrad|dgrad|winograd|implicit_gemm|cudnn.*(?:fprop|bprop)|im2col|igemm"),
        ("gemm", r"gemm|gemv|matmul|cublas|cutlass|nvjet|xmma|hmma|cijk_|splitk|bmm_|mm_kernel|tensile"),
        ("softmax", r"softmax"),
        ("normalization", r"norm|bn_(?:fw|bw)|welford|rms"),
        ("optimizer", r"multi_tensor_apply|adam|sgd|foreach|lamb|adagrad"),
        ("embedding", r"embedding|indexselect|gather|scatter|index_(?:select|put|elementwise)|split_embedding"),
        ("transpose", r"transpose|nchwtonhwc|nhwctonchw|permute"),
        ("sort", r"sort|topk|radix|cub::|thrust::|scan|unique|nonzero"),
        ("reduction", r"reduce|sum_kernel|mean_|argmax"),
        ("pooling", r"pool"),
        ("random", r"dropout|philox|distribution|random|bernoulli"),
        ("copy", r"copy|cat_?array|catarray|memcpy|direct_copy|cast"),
        ("elementwise", r"elementwise|vectorized|pointwise|triton_poi|add|mul|gelu|silu|relu|sigmoid|fill|act_and"),
        ("triton", r"^triton|_kernel_0d1d|triton"),
    )
)

COPY_NAME = re.compile(
    r"mem(?:cpy|set)\s*(?P<direction>\w+)?\s*(?:\((?P<from>[\w ]+?)\s*->\s*(?P<to>[\w ]+?)\))?", re.IGNORECASE
)
DIRECTIONS = ("HtoD", "DtoH", "PtoP", "DtoD")
_SPELLINGS = (
    ("HtoD", re.compile(r"htod|hosttodevice|host_to_device|h2d", re.IGNORECASE)),
    ("DtoH", re.compile(r"dtoh|devicetohost|device_to_host|d2h", re.IGNORECASE)),
    ("PtoP", re.compile(r"ptop|peertopeer|peer|p2p", re.IGNORECASE)),
)


def is_communication(name: str) -> bool:
    """A kernel of a collective or peer transfer, by its name."""
    return COMMUNICATION.search(name) is not None


def copy_direction(name: str) -> str:
    """`HtoD`, `DtoH`, `PtoP`, or `DtoD` for every copy that stays on the device or does not say."""
    return next((direction for direction, spelling in _SPELLINGS if spelling.search(name)), "DtoD")


def copy_memory(name: str) -> str:
    """`pageable` or `pinned`, of the host's side of a copy; nothing when the name does not tell (ROCm)."""
    lower = name.lower()
    return "pageable" if "pageable" in lower else "pinned" if "pinned" in lower else ""


@lru_cache(maxsize=100_000)
def kernel_class(name: str) -> str:
    """The kernel's class by its name, `other` when it has none of the known words."""
    return next((cls for cls, pattern in CLASSES if pattern.search(name)), "other")


@lru_cache(maxsize=100_000)
def readable(name: str, width: int = 60) -> str:
    """A kernel name without templates, namespaces and argument lists, at most `width` characters.

    The functor of an elementwise kernel is its meaning and stays: `vectorized_elementwise[CUDAFunctor_add]`.
    """
    short = re.sub(r"^void\s+", "", name.strip())
    functors = (
        re.findall(r"(\w*(?:Functor|functor|Op|_kernel_cuda|_kernel_impl)\w*)", short[short.find("<") :])
        if "<" in short
        else []
    )
    base = _without_brackets(short)
    base = base.split("(")[0].strip().split("::")[-1].strip() or short
    base = re.sub(r"_kernel$", "", base) or base
    telling = [f for f in functors if f not in base and "BinaryFunctor" not in f and not f.startswith("TrivialOffset")]
    if telling and re.search(r"elementwise|reduce|multi_tensor|index|unrolled|foreach", base):
        base = f"{base}[{telling[0]}]"
    base = " ".join(base.split())
    return base if len(base) <= width else base[: width - 1] + "…"


def _without_brackets(text: str) -> str:
    """The text outside <…>; unbalanced brackets are kept."""
    kept, depth = [], 0
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">" and depth:
            depth -= 1
        elif not depth:
            kept.append(character)
    return "".join(kept) if depth == 0 else text
