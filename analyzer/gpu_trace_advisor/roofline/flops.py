"""FLOPs and compulsory bytes of matrix products, attention and convolutions, from the shapes of one call.

Compulsory bytes: every input read once, every result written once (gpu-throughput and ai-infrastructure, `matmul`:
2MNK FLOPs and p(MK + KN + MN) bytes). Both are floors: nothing is counted that a good kernel could avoid.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.operator_shapes import BYTES, Call, Tensor


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


def pairs(queries: int, keys: int, causal: bool) -> float:
    """Pairs of query and key that attention scores; a causal mask lets query i see the first keys - queries + i + 1."""
    if not causal:
        return float(queries * keys)
    if queries <= keys:
        return queries * keys - queries * (queries - 1) / 2
    return keys * (keys + 1) / 2


def attention(first: int, causal: int, *, heads_first: bool, backward: bool = False) -> Callable[[Call], Cost | None]:
    """q, k, v from argument `first`; [B,H,S,D] or [B,S,H,D]. Two products forward (4BHSSD FLOPs), five backward.

    A mask that was not recorded is taken for causal: half the work, so that the floor stays one. Grouped queries read
    fewer keys and values; their count is in the shapes.
    """

    def cost(call: Call) -> Cost | None:
        found = call.tensors(first, first + 1, first + 2)
        if not found or any(len(t.shape) != 4 for t in found):
            return None
        q, k, v = found
        sequence, head = (2, 1) if heads_first else (1, 2)
        batch, heads, queries, keys = q.shape[0], q.shape[head], q.shape[sequence], k.shape[sequence]
        mask = call.flag(causal)
        scores = pairs(queries, keys, mask is not False)
        depth = q.shape[3] + v.shape[3]
        out = batch * heads * queries * v.shape[3] * BYTES[q.dtype]
        moved = q.bytes + k.bytes + v.bytes + out
        flops = 2.0 * batch * heads * scores * depth
        if backward:  # reads also the result and its gradient, writes three gradients
            return Cost("attention", 2.5 * flops, 2.0 * moved, q.dtype)
        return Cost("attention", flops, moved, q.dtype, written=out)

    return cost


def convolution(call: Call, stride: int = 3) -> Cost | None:
    """x[N,C,…], w[K,C/g,…]; then lists of stride, padding and dilation. None where these were not recorded."""
    found = call.tensors(0, 1)
    if not found:
        return None
    x, w = found
    lists = [call.numbers(stride + i) for i in range(3)]
    if call.flag(stride + 3):  # transposed: each input element meets every weight of its channel
        return Cost("convolution", 2.0 * x.elements * prod(w.shape[1:]), x.bytes + w.bytes, x.dtype)
    steps, padding, dilation = lists
    if not (steps and padding is not None and dilation) or len(x.shape) != len(w.shape) or len(x.shape) < 3:
        return None
    rank = len(x.shape) - 2
    steps, padding, dilation = (v * rank if len(v) == 1 else v for v in (steps, padding, dilation))
    sizes = zip(x.shape[2:], w.shape[2:], steps, padding, dilation, strict=True)
    out = [(size + 2 * pad - far * (window - 1) - 1) // step + 1 for size, window, step, pad, far in sizes]
    return _convolved(x, w, x.shape[0] * w.shape[0] * prod(out))


def _convolved(x: Tensor, w: Tensor, results: int, factor: float = 1.0) -> Cost:
    flops = 2.0 * results * prod(w.shape[1:]) * factor
    written = results * BYTES[x.dtype]
    return Cost("convolution", flops, x.bytes + w.bytes + written, x.dtype, written=written)


def convolution_backward(call: Call) -> Cost | None:
    """gradient[N,K,…], x, w, …: the gradients of input and weight, each as much work as forward.

    Those wanted are told by the last argument (input, weight, bias); not recorded, one of the two.
    """
    found = call.tensors(0, 1, 2)
    if not found:
        return None
    gradient, x, w = found
    wanted = call.concrete[10] if len(call.concrete) > 10 else ""
    both = wanted.replace(" ", "").startswith("[True,True")
    if call.flag(7):
        return None
    work = 2.0 * gradient.elements * prod(w.shape[1:])
    moved = gradient.bytes + x.bytes + w.bytes
    return Cost("convolution", work * (2 if both else 1), moved * (2 if both else 1), x.dtype, several=True)


def cudnn_backward_input(call: Call) -> Cost | None:
    """sizes, gradient[N,K,…], w[K,C/g,…] (PyTorch 1.x): the bytes are those read."""
    found = call.tensors(1, 2)
    if not found or len(found[0].shape) < 3:
        return None
    gradient, w = found
    return Cost("convolution", 2.0 * gradient.elements * prod(w.shape[1:]), gradient.bytes + w.bytes, w.dtype)
