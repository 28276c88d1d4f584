"""FLOPs and compulsory bytes of matrix products, attention and convolutions, from the shapes of one call.

Compulsory bytes: every input read once, every result written once (gpu-throughput and ai-infrastructure, `matmul`:
2MNK FLOPs and p(MK + KN + MN) bytes). Both are floors: nothing is counted that a good kernel could avoid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.engine_steps import EngineStep
from gpu_trace_advisor.trace.operator_shapes import BRACKETS, BYTES, Call, Tensor


@dataclass(frozen=True)
class Routed:
    """A mixture of experts as one call sees it: which expert gets which token is not recorded."""

    tokens: int
    chosen: int
    """Experts of a token."""
    experts: int
    expert_bytes: float
    """Weights of one expert."""

    @property
    def tokens_an_expert(self) -> float:
        return self.tokens * self.chosen / self.experts

    @property
    def fewest(self) -> int:
        """Experts touched when all tokens choose the same."""
        return min(self.chosen, self.experts)

    @property
    def most(self) -> int:
        """Experts touched when no two tokens share one, as far as there are so many."""
        return min(self.experts, self.tokens * self.chosen)

    @property
    def expected(self) -> float:
        """Experts touched when tokens choose evenly: E (1 - (1 - k/E)^T).

        >>> round(Routed(16, 2, 64, 0.0).expected, 1)
        25.5
        """
        touched = self.experts * (1 - (1 - self.chosen / self.experts) ** self.tokens)
        return min(max(touched, self.fewest), self.most)


@dataclass(frozen=True)
class Convolution:
    """What kind of convolution it is."""

    groups: int
    channels: int
    """Of the input. Likewise `filters` of the result."""
    filters: int
    size: tuple[int, ...]
    dilated: bool = False
    transposed: bool = False

    @property
    def depthwise(self) -> bool:
        """Each channel has its own filters."""
        return self.groups > 1 and self.groups == self.channels

    @property
    def pointwise(self) -> bool:
        """1 x 1: a matrix product."""
        return prod(self.size) == 1


@dataclass(frozen=True)
class Cost:
    """What one operator call has to do."""

    family: str
    """`product`, `attention`, `convolution`, or a memory-bound family of `gpu_trace_advisor.roofline.memory_traffic`."""
    flops: float
    bytes: float
    dtype: str
    """Of the numbers multiplied."""
    weight_bytes: float = 0.0
    """Part of `bytes`: the weight operand of a matrix product."""
    m: int = 0
    """Rows, columns and depth of a matrix product; 0 where it is none. `batch` products of this size."""
    n: int = 0
    k: int = 0
    batch: int = 1
    result: tuple[int, ...] | None = None
    """Shape of the result; None where there are several or it is not known."""
    written: float = 0.0
    """Part of `bytes`: the result."""
    reads: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Shape and bytes of each input of a memory-bound operator."""
    several: bool = False
    """Several kernels do the work together, not one of them."""
    multiplied: float = 1.0
    """Part of `flops` that the kernel's algorithm needs at least: Winograd's needs fewer than the definition."""
    queries: int = 0
    """Attention: queries and keys of a sequence (its mean where they differ), and the head size."""
    keys: int = 0
    head: int = 0
    varies: bool = False
    """Differs between calls with the same arguments, as of attention over a growing cache."""
    routed: Routed | None = None
    window: Convolution | None = None


def product(batch: int, m: int, n: int, k: int, a: Tensor, b: Tensor, *, out: str = "", extra: float = 0.0,
            weights: bool = True) -> Cost:  # fmt: skip
    """`batch` products [m,k] x [k,n]; `extra` bytes of a bias; `b` holds weights or not."""
    written = batch * m * n * BYTES[out or a.dtype]
    return Cost(
        "product", 2.0 * batch * m * n * k, a.bytes + b.bytes + written + extra, a.dtype, b.bytes if weights else 0.0,
        m, n, k, batch, written=written,
    )  # fmt: skip


def mm(call: Call) -> Cost | None:
    """a[M,K] b[K,N]."""
    return _two(call, 0, 1)


def addmm(call: Call) -> Cost | None:
    """bias, a[M,K], b[K,N]."""
    bias = call.tensor(0)
    return _two(call, 1, 2, extra=bias.bytes if bias else 0.0)


def scaled_mm(call: Call) -> Cost | None:
    """a[M,K] b[K,N] in 8 bits, the result in 16."""
    return _two(call, 0, 1, out="bf16")


def cutlass_scaled_mm(call: Call) -> Cost | None:
    """out[M,N], a[M,K], b[K,N] (vLLM)."""
    out = call.tensor(0)
    return _two(call, 1, 2, out=out.dtype) if out else None


def _two(call: Call, left: int, right: int, *, out: str = "", extra: float = 0.0) -> Cost | None:
    found = call.tensors(left, right)
    if not found or any(len(t.shape) != 2 for t in found) or found[0].shape[1] != found[1].shape[0]:
        return None
    (m, k), (_, n) = found[0].shape, found[1].shape
    return product(1, m, n, k, *found, out=out, extra=extra)


def mv(call: Call, first: int = 0) -> Cost | None:
    """a[M,K] x[K]; the matrix holds the weights."""
    found = call.tensors(first, first + 1)
    if not found or len(found[0].shape) != 2 or found[1].shape != found[0].shape[1:]:
        return None
    (n, k), matrix, vector = found[0].shape, found[0], found[1]
    return product(1, 1, n, k, vector, matrix)


def addmv(call: Call) -> Cost | None:
    """bias, a[M,K], x[K]."""
    return mv(call, 1)


def bmm(call: Call, first: int = 0) -> Cost | None:
    """a[B,M,K] b[B,K,N]: activations on both sides."""
    found = call.tensors(first, first + 1)
    if not found or any(len(t.shape) != 3 for t in found) or found[0].shape[2] != found[1].shape[1]:
        return None
    batch, m, k = found[0].shape
    return product(batch, m, found[1].shape[2], k, *found, weights=False)


def baddbmm(call: Call) -> Cost | None:
    """bias, a[B,M,K], b[B,K,N]."""
    return bmm(call, 1)


def linear(call: Call) -> Cost | None:
    """x[…,K], weight[N,K], bias."""
    found = call.tensors(0, 1)
    if not found or len(found[1].shape) != 2 or not found[0].shape or found[0].shape[-1] != found[1].shape[1]:
        return None
    bias = call.tensor(2)
    (n, k), m = found[1].shape, prod(found[0].shape[:-1])
    return product(1, m, n, k, *found, extra=bias.bytes if bias else 0.0)


def matmul(call: Call) -> Cost | None:
    """a[…,M,K] b[…,K,N]; a matrix on the right is shared by all of the left."""
    found = call.tensors(0, 1)
    if not found or min(len(t.shape) for t in found) < 2 or found[0].shape[-1] != found[1].shape[-2]:
        return None
    a, b = found
    if len(b.shape) == 2:
        return product(1, prod(a.shape[:-1]), b.shape[1], b.shape[0], a, b)
    if a.shape[:-2] != b.shape[:-2]:
        return None
    return product(prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1], a, b, weights=False)


def grouped_mm(call: Call) -> Cost | None:
    """Tokens a[T,K], experts b[E,K,N], each token with one of them: weights of at most T experts are read."""
    found = call.tensors(0, 1)
    if not found or len(found[0].shape) != 2 or len(found[1].shape) != 3 or found[0].shape[1] != found[1].shape[1]:
        return None
    (tokens, k), (experts, _, n) = found[0].shape, found[1].shape
    used = min(experts, tokens) / experts if experts else 0.0
    weights = found[1].bytes * used
    written = tokens * n * BYTES["bf16" if found[0].dtype == "fp8" else found[0].dtype]
    return Cost(
        "product", 2.0 * tokens * n * k, found[0].bytes + weights + written, found[0].dtype, weights, tokens, n, k
    )


NUMBERS = frozenset({"fp32", "bf16", "fp16", "fp8", "int8"})


def pairs(queries: float, keys: float, causal: bool) -> float:
    """Pairs of query and key that attention scores; a causal mask lets query i see the first keys - queries + i + 1."""
    if not causal:
        return float(queries * keys)
    if queries <= keys:
        return queries * keys - queries * (queries - 1) / 2
    return keys * (keys + 1) / 2


def attention(first: int, causal: int, *, heads_first: bool, backward: bool = False) -> Callable[[Call], Cost | None]:
    """q, k, v from argument `first`; [B,H,S,D] or [B,S,H,D], or [T,H,D] of sequences laid end to end, whose ends are in the
    argument after v. Two products forward (4BHSSD FLOPs), five backward.

    Argument `causal` is a flag, or the type of the mask as a number. A mask that was not recorded is taken for causal: half
    the work, so that the floor stays one. Grouped queries read fewer keys and values; their count is in the shapes.
    Sequences laid end to end are taken to be equally long, which is the least work.
    """

    def cost(call: Call) -> Cost | None:
        found = call.tensors(first, first + 1, first + 2)
        if not found or len({len(t.shape) for t in found}) > 1 or len(found[0].shape) not in (3, 4):
            return None
        q, k, v = found
        if len(q.shape) == 3:
            ends = next((t for t in call.all if len(t.shape) == 1 and t.dtype in ("int32", "int64")), None)
            batch = max(ends.shape[0] - 1, 1) if ends else 1
            heads, queries, keys = q.shape[1], q.shape[0] / batch, k.shape[0] / batch
        else:
            sequence, head = (2, 1) if heads_first else (1, 2)
            batch, heads, queries, keys = q.shape[0], q.shape[head], float(q.shape[sequence]), float(k.shape[sequence])
        masked = call.flag(causal)
        if masked is None and (number := call.number(causal)) is not None:
            masked = number != 0
        return attended(q, k, v, batch, heads, queries, keys, masked is not False, backward=backward)

    return cost


def attended(
    q: Tensor, k: Tensor, v: Tensor, batch: int, heads: int, queries: float, keys: float, causal: bool, *,
    backward: bool = False,
) -> Cost:  # fmt: skip
    """Attention of `batch` sequences; backward also reads the result and its gradient, and writes three gradients."""
    depth, wide = q.shape[-1], v.shape[-1]
    out = q.elements / max(depth, 1) * wide * BYTES[q.dtype]
    moved = q.bytes + k.bytes + v.bytes + out
    flops = 2.0 * batch * heads * pairs(queries, keys, causal) * (depth + wide)
    times, written = (2.0, 0.0) if backward else (1.0, out)
    return Cost(
        "attention", (2.5 if backward else 1.0) * flops, times * moved, q.dtype, written=written, batch=batch * heads,
        queries=round(queries), keys=round(keys), head=depth,
    )  # fmt: skip


def unified_attention(call: Call, step: EngineStep | None = None) -> Cost | None:
    """q[T,H,D], k, v (vLLM): of one engine step. How the tokens belong to requests, and the cache that they read, is not in
    the arguments but in the engine's annotation of the step: 2HD FLOPs and as many for the values for each pair, and the keys
    and values of all requests, in the narrower of the types of queries and keys. Without one, compulsory are the tokens' own
    keys and values, and that each token attends to itself. A step may be padded to more tokens than it has."""
    found = call.tensors(0, 1, 2)
    if not found:
        return None
    q, k, v = found
    if len(q.shape) != 3 or q.shape[0] != k.shape[0]:
        return None
    if step and len(k.shape) == len(v.shape) == 3 and 0 < step.queries <= q.shape[0]:
        depth, wide = q.shape[-1] + v.shape[-1], min(BYTES[q.dtype], BYTES[k.dtype])
        written = float(step.queries * q.shape[1] * v.shape[-1] * max(BYTES[q.dtype], BYTES[k.dtype]))
        cache = step.keys * wide * (k.shape[1] * k.shape[-1] + v.shape[1] * v.shape[-1])
        moved = step.queries * q.shape[1] * q.shape[-1] * BYTES[q.dtype] + cache + written
        return Cost(
            "attention", 2.0 * q.shape[1] * step.pairs * depth, moved, q.dtype, written=written,
            batch=step.requests * q.shape[1], queries=max(round(step.queries / step.requests), 1),
            keys=round(step.keys / step.requests), head=q.shape[-1], varies=True,
        )  # fmt: skip
    return attended(q, k, v, q.shape[0], q.shape[1], 1.0, 1.0, causal=True)


def mixture(call: Call) -> Cost | None:
    """x[T,H], the experts' w1[E,2I,H] and w2[E,H,I], and the router's weights [T,k]: two products for each chosen expert.

    The bytes are those of the fewest experts that can be touched.
    """
    tensors = [tensor for argument in call.arguments for tensor in argument[:1]]
    x = tensors[0] if tensors else None
    stacks = [tensor for tensor in tensors[1:] if len(tensor.shape) == 3][:2]
    if x is None or len(x.shape) != 2 or len(stacks) != 2:
        return None
    tokens, (experts, wide, hidden), (others, back, inner) = x.shape[0], stacks[0].shape, stacks[1].shape
    routes = [t for t in tensors[1:] if len(t.shape) == 2 and t.shape[0] == tokens and t.shape[1] <= experts]
    if not routes or not tokens or experts != others or not experts or not inner:
        return None
    weights = (stacks[0].bytes + stacks[1].bytes) / experts
    # Packed weights hold several numbers an element: the sizes of x tell how many.
    packed = x.shape[1] / hidden if hidden else 0.0
    routed = Routed(tokens, routes[0].shape[1], experts, weights)
    pair = 2.0 * (wide * hidden * packed + back * inner * packed)
    least = routed.fewest * weights
    dtype = stacks[0].dtype if stacks[0].dtype in ("fp8", "fp4") and x.dtype == stacks[0].dtype else x.dtype
    return Cost(
        "moe", tokens * routed.chosen * pair, 2.0 * x.bytes + least, dtype, least, routed=routed, several=True,
        written=float(x.bytes),
    )  # fmt: skip


def convolution(call: Call, stride: int = 3) -> Cost | None:
    """x[N,C,…], w[K,C/g,…]; then lists of stride, padding and dilation, whether transposed, output padding and groups.
    None where these were not recorded."""
    found = call.tensors(0, 1)
    if not found or len(found[0].shape) != len(found[1].shape) or len(found[0].shape) < 3:
        return None
    x, w = found
    steps, padding, dilation, more = (call.numbers(stride + i) for i in (0, 1, 2, 4))
    transposed = bool(call.flag(stride + 3))
    if not (steps and padding is not None and dilation) or min(steps) < 1:
        return None
    rank = len(x.shape) - 2
    steps, padding, dilation = (v * rank if len(v) == 1 else v for v in (steps, padding, dilation))
    extra = more if transposed and more and len(more) == rank else [0] * rank
    sizes = zip(x.shape[2:], w.shape[2:], steps, padding, dilation, extra, strict=True)
    if transposed:
        groups = call.number(stride + 5) or 1
        out = [
            (size - 1) * step - 2 * pad + far * (window - 1) + 1 + add for size, window, step, pad, far, add in sizes
        ]
        return convolved(x, w, (x.shape[0], w.shape[1] * groups, *out), dilated=max(dilation) > 1, transposed=True)
    out = [(size + 2 * pad - far * (window - 1) - 1) // step + 1 for size, window, step, pad, far, _ in sizes]
    return convolved(x, w, (x.shape[0], w.shape[0], *out), dilated=max(dilation) > 1)


def convolved(
    x: Tensor, w: Tensor, out: tuple[int, ...], *, dilated: bool = False, transposed: bool = False
) -> Cost | None:  # fmt: skip
    """A convolution with a result of this shape: each element of the result (of the input where it is transposed) meets the
    weights of its channel. As a matrix product it has a row for each place and a column for each filter; transposed, a row
    for each place of the input and a column for each place of a filter."""
    inner = prod(w.shape[1:])
    if min(out) < 1 or not inner or min(x.shape) < 1:
        return None
    written = prod(out) * BYTES[x.dtype]
    channels, filters, size = x.shape[1], out[1], w.shape[2:]
    if transposed:
        groups = max(filters // w.shape[1], 1)
        m, n, k = x.elements // channels, inner, channels // groups
    else:
        groups = max(channels // w.shape[1], 1)
        m, n, k = prod(out) // filters, filters // groups, inner
    return Cost(
        "convolution", 2.0 * (x.elements if transposed else prod(out)) * inner, x.bytes + w.bytes + written, x.dtype,
        m=m, n=max(n, 1), k=max(k, 1), batch=groups, written=written,
        window=Convolution(groups, channels, filters, size, dilated, transposed),
    )  # fmt: skip


def depthwise_convolution(call: Call) -> Cost | None:
    """x, w, window, bias, stride, padding, dilation (`_conv_depthwise2d`)."""
    return convolution(call, 4)


def convolution_backward(call: Call) -> Cost | None:
    """gradient[N,K,…], x, w, …: the gradients of input and weight, each as much work as forward.

    Those wanted are told by the last argument (input, weight, bias); not recorded, one of the two.
    """
    found = call.tensors(0, 1, 2)
    if not found:
        return None
    gradient, x, w = found
    wanted = call.concrete[10] if len(call.concrete) > 10 else ""
    both = wanted.replace(" ", "").translate(BRACKETS).startswith("[True,True")
    dilation = call.numbers(6) or [1]
    forward = convolved(x, w, gradient.shape, dilated=max(dilation) > 1, transposed=bool(call.flag(7)))
    if not forward:
        return None
    times = 2 if both else 1
    return replace(forward, flops=forward.flops * times, bytes=forward.bytes * times, written=0.0, several=True)


def cudnn_backward_input(call: Call) -> Cost | None:
    """sizes, gradient[N,K,…], w[K,C/g,…] (PyTorch 1.x): the bytes are those read."""
    found = call.tensors(1, 2)
    if not found or len(found[0].shape) < 3:
        return None
    gradient, w = found
    return Cost("convolution", 2.0 * gradient.elements * prod(w.shape[1:]), gradient.bytes + w.bytes, w.dtype)


def cudnn_backward_part(around: Call) -> Cost | None:
    """x, gradient, w of the operator around a gradient of input or weight (PyTorch 1.x): one of the two gradients."""
    found = around.tensors(0, 1, 2)
    return convolved(found[0], found[2], found[1].shape) if found and len(found[1].shape) > 2 else None


def packed_product(call: Call) -> Cost | None:
    """out[M,N], a[M,K/2], b[N,K/2]: two numbers of 4 bits a byte (`cutlass_scaled_fp4_mm`)."""
    found = call.tensors(0, 1, 2)
    if not found or any(len(t.shape) != 2 for t in found):
        return None
    out, a, b = found
    if a.shape[0] != out.shape[0] or b.shape != (out.shape[1], a.shape[1]):
        return None
    moved = float(out.bytes + a.bytes + b.bytes)
    m, n, k = out.shape[0], out.shape[1], 2 * a.shape[1]
    return Cost("product", 2.0 * m * n * k, moved, "fp4", float(b.bytes), m, n, k, written=float(out.bytes))


def int4_product(call: Call) -> Cost | None:
    """a[M,K], weights of 4 bits, group size, scales and zeros [K/group,N,2] (`_weight_int4pack_mm`)."""
    a, packed, scales = call.tensor(0), call.tensor(1), call.tensor(3)
    if not a or not packed or not scales or len(a.shape) != 2 or len(scales.shape) != 3:
        return None
    m, k, n = *a.shape, scales.shape[1]
    written, weights = m * n * BYTES[a.dtype], k * n / 2
    return Cost("product", 2.0 * m * n * k, a.bytes + weights + scales.bytes + written, a.dtype, weights, m, n, k,
                written=written)  # fmt: skip


def any_product(call: Call) -> Cost | None:
    """A product by an operator that is not known: of its first three matrices, two share a depth, and where the third has
    the sizes that are left it is the result. Weights lie [N,K] (as `linear` has them) or [K,N]."""
    matrices = [t for argument in call.arguments[:4] for t in argument[:1] if len(t.shape) == 2 and t.dtype in NUMBERS][
        :3
    ]
    for skip in (1, 0) if len(matrices) == 3 else (0,):
        a, b = matrices[skip : skip + 2] if len(matrices) >= skip + 2 else (None, None)
        if not a or not b:
            return None
        m, k = a.shape
        n = b.shape[0] if b.shape[1] == k else b.shape[1] if b.shape[0] == k else 0
        if n and (not skip or matrices[0].shape == (m, n)):
            return product(
                1, m, n, k, a, b, out=matrices[0].dtype if skip else "bf16" if a.dtype in ("fp8", "int8") else ""
            )
    return None
