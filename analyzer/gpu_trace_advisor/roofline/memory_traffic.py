"""Compulsory bytes of memory-bound operators: elementwise, copies, reductions, norms, softmax, look-ups, optimizers.

Their few FLOPs are counted a handful an element; they never bind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.trace.operator_shapes import BYTES, Call, Tensor, broadcast, promote


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


UNARY = _words(
    "abs acos asin atan ceil clamp clamp_min clamp_max cos erf exp exp2 expm1 floor frac gelu hardsigmoid hardswish "
    "hardtanh elu leaky_relu log log10 log1p log2 logical_not mish neg pow reciprocal relu rsqrt round sigmoid sign "
    "silu sin sinh cosh softshrink log_sigmoid_forward "
    "softplus sqrt square tan tanh trunc bitwise_not isnan isinf isfinite nan_to_num threshold logit"
)
BINARY = _words(
    "add sub rsub mul div remainder fmod maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor atan2 threshold_backward gelu_backward silu_backward sigmoid_backward "
    "tanh_backward mse_loss hardswish_backward hardtanh_backward leaky_relu_backward elu_backward masked_fill prelu "
    "floor_divide xlogy hypot smooth_l1_loss huber_loss hardsigmoid_backward mish_backward softplus_backward heaviside "
    "_prelu_kernel"
)
TERNARY = _words(
    "addcmul addcdiv lerp where mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy "
    "binary_cross_entropy_backward log_sigmoid_backward"
)
TRUTHS = frozenset(_words("eq ne lt le gt ge logical_not logical_and logical_or logical_xor isnan isinf isfinite"))
REDUCTIONS = _words(
    "sum mean amax amin max min argmax argmin prod all any norm linalg_vector_norm var std logsumexp var_mean aminmax "
    "trace nonzero"
)


def elementwise(arity: int, truth: bool = False) -> Callable[[Call], Cost | None]:
    """The first `arity` arguments in, one result of their broadcast shape and common type, or of bools where it is a
    `truth`; what follows are numbers or the output."""

    def cost(call: Call) -> Cost | None:
        inputs = [tensor for i in range(arity) if (tensor := call.tensor(i)) is not None]
        if not inputs:
            return None
        shape, dtype = broadcast(inputs), "bool" if truth else promote(inputs)
        return _memory("elementwise", inputs, shape, prod(shape) * BYTES[dtype])

    return cost


def in_place(arity: int) -> Callable[[Call], Cost | None]:
    """As `elementwise`, the result over the first argument."""

    def cost(call: Call) -> Cost | None:
        target = call.tensor(0)
        inputs = [tensor for i in range(arity) if (tensor := call.tensor(i)) is not None]
        return _memory("elementwise", inputs, target.shape, target.bytes) if target else None

    return cost


def foreach(arity: int) -> Callable[[Call], Cost | None]:
    """`_foreach_…` over lists: each list read, the first one's size written."""

    def cost(call: Call) -> Cost | None:
        lists = [tensors for tensors in call.arguments[:arity] if tensors]
        if not lists:
            return None
        read, written = sum(t.bytes for tensors in lists for t in tensors), sum(t.bytes for t in lists[0])
        elements = sum(t.elements for t in lists[0])
        return Cost("optimizer", float(elements * arity), float(read + written), lists[0][0].dtype, several=True)

    return cost


def fused_optimizer(states: int) -> Callable[[Call], Cost | None]:
    """Parameters, gradients and `states` lists read; parameters and states written."""

    def cost(call: Call) -> Cost | None:
        lists = call.arguments[: 2 + states]
        if len(lists) < 2 + states or not all(lists[:2]):
            return None
        sizes = [sum(t.bytes for t in tensors) for tensors in lists]
        elements = sum(t.elements for t in lists[0])
        moved = 2 * sum(sizes) - sizes[1]
        return Cost("optimizer", 10.0 * elements, float(moved), lists[0][0].dtype, several=True)

    return cost


def copy(call: Call) -> Cost | None:
    """To, from: reads one, writes the other."""
    found = call.tensors(0, 1)
    return _memory("copy", found[1:], found[0].shape, found[0].bytes) if found else None


def duplicate(call: Call) -> Cost | None:
    """A result of the same shape and type: clone, contiguous."""
    x = call.tensor(0)
    return _memory("copy", [x], x.shape, x.elements * BYTES[x.dtype]) if x else None


def fill(call: Call) -> Cost | None:
    """Writes only."""
    x = call.tensor(0)
    return _memory("elementwise", [], x.shape, x.bytes) if x else None


def concatenate(call: Call) -> Cost | None:
    """A list in, the same bytes out."""
    parts = call.arguments[0] if call.arguments else ()
    if not parts:
        return None
    read, written = sum(t.bytes for t in parts), sum(t.elements * BYTES[t.dtype] for t in parts)
    return Cost("copy", 0.0, float(read + written), parts[0].dtype, written=float(written))


def lists(call: Call) -> Cost | None:
    """All tensors of the first list are read; the results are smaller and not counted."""
    parts = call.arguments[0] if call.arguments else ()
    if not parts:
        return None
    read = float(sum(t.bytes for t in parts))
    return Cost("reduction", float(sum(t.elements for t in parts)), read, parts[0].dtype, several=True)


def ordered(call: Call) -> Cost | None:
    """x in; its values in order and their places, 8 bytes each, out."""
    x = call.tensor(0)
    if not x:
        return None
    moved = float(x.bytes + x.elements * (BYTES[x.dtype] + 8))
    return Cost("reduction", float(x.elements), moved, x.dtype, several=True)


def scattered(index: int, source: int) -> Callable[[Call], Cost | None]:
    """Elements of the source go where the index says: each is read and written, and the index is read."""

    def cost(call: Call) -> Cost | None:
        found = call.tensors(0, index, source)
        if not found:
            return None
        into, picks, values = found
        moved = float(picks.bytes + values.bytes + values.elements * BYTES[into.dtype])
        return Cost("embedding", float(values.elements), moved, into.dtype, several=True)

    return cost


def index_put(call: Call) -> Cost | None:
    """self, a list of indices, values: as `scattered`, with rows of self for indices of its first dimensions. Where the list
    was not recorded, only the values are known to move."""
    into, values = call.tensor(0), call.tensor(2)
    picks = call.arguments[1] if len(call.arguments) > 2 else ()
    if not into or not values or len(picks) > len(into.shape) or any(t.dtype == "bool" for t in picks):
        return None
    rows = prod(broadcast(picks)) * prod(into.shape[len(picks) :]) if picks else values.elements
    written = rows * BYTES[into.dtype]
    moved = float(sum(t.bytes for t in picks) + values.bytes + written)
    return Cost("embedding", float(values.elements), moved, into.dtype, several=True)


def bags(call: Call) -> Cost | None:
    """table[V,D], indices, offsets: one row of the table for each index, summed to one for each offset."""
    found = call.tensors(0, 1, 2)
    if not found or len(found[0].shape) != 2:
        return None
    table, picks, offsets = found
    row = table.shape[1] * BYTES[table.dtype]
    written = float(offsets.elements * row)
    moved = min(float(picks.elements * row), float(table.bytes)) + picks.bytes + offsets.bytes + written
    return Cost("embedding", float(picks.elements * table.shape[1]), moved, table.dtype, written=written)


def tables(call: Call) -> Cost | None:
    """FBGEMM's lookup in T tables of fp32 at once: among its arguments are two tensors of T places, one of T + 1 columns where
    each table's begin, the number of all columns and of the widest table's, and further on the indices and T times the batch
    offsets. A row of the result for each of the batch; rows of the tables are counted where all are equally wide."""
    for i in range(len(call.arguments) - 8):
        places, more, columns, indices, offsets = (call.tensor(i + j) for j in (0, 1, 2, 7, 8))
        total, widest = call.number(i + 3), call.number(i + 4)
        if not (places and more and columns and indices and offsets and total and widest):
            continue
        count = places.elements
        if (
            not count
            or (more.elements, columns.elements) != (count, count + 1)
            or offsets.elements % count != 1 % count
        ):
            continue
        written = 4.0 * total * (offsets.elements - 1) / count
        rows = 4.0 * indices.elements * widest if widest * count == total else 0.0
        table = float(sum(t.bytes for argument in call.arguments[:i] for t in argument))
        moved = written + indices.bytes + offsets.bytes + min(rows, table)
        return Cost("embedding", rows / 4, moved, "fp32", written=written)
    return None


def sampled(call: Call) -> Cost | None:
    """x[N,C,H,W], grid[N,Ho,Wo,2]: a result [N,C,Ho,Wo]; of x no more than four places for each of the result's."""
    found = call.tensors(0, 1)
    if not found or len(found[0].shape) != 4 or len(found[1].shape) != 4:
        return None
    x, grid = found
    out = x.shape[0] * x.shape[1] * prod(grid.shape[1:3]) * BYTES[x.dtype]
    return Cost("elementwise", 8.0 * out / BYTES[x.dtype], float(min(x.bytes, 4 * out) + grid.bytes + out), x.dtype)


def gate(call: Call) -> Cost | None:
    """x[…,2D]: one half through a gate that the other one is."""
    x = call.tensor(0)
    return (
        Cost("elementwise", float(x.elements), float(x.bytes + x.elements // 2 * BYTES[x.dtype]), x.dtype)
        if x
        else None
    )


def quantized(call: Call) -> Cost | None:
    """x in, its numbers in 8 bits out; scales are few."""
    x = call.tensor(0)
    return Cost("elementwise", float(x.elements), float(x.bytes + x.elements), x.dtype, several=True) if x else None


def picked_loss(call: Call) -> Cost | None:
    """x[N,C], target[N]: one element of each row."""
    found = call.tensors(0, 1)
    if not found:
        return None
    x, target = found
    return Cost("reduction", float(target.elements), float(target.bytes + target.elements * BYTES[x.dtype]), x.dtype)


def reduction(call: Call) -> Cost | None:
    """Reads its input; the result is smaller and not counted."""
    x = call.tensor(0)
    return (
        Cost("reduction", float(x.elements), float(x.bytes), x.dtype, reads=((x.shape, float(x.bytes)),)) if x else None
    )


def same_shape(family: str, *read: int, at: int = 0, work: float = 5.0) -> Callable[[Call], Cost | None]:
    """The tensors at `read` in (the first also where `read` is empty), a result like the tensor `at` out."""

    def cost(call: Call) -> Cost | None:
        inputs, like = call.tensors(*(read or (0,))), call.tensor(at)
        if not inputs or not like:
            return None
        return _memory(family, inputs, like.shape, like.elements * BYTES[like.dtype], work)

    return cost


def spread(formula: Callable[[Call], Cost | None]) -> Callable[[Call], Cost | None]:
    """The same, done by several kernels together."""

    def cost(call: Call) -> Cost | None:
        found = formula(call)
        return replace(found, several=True) if found else None

    return cost


def add_norm(call: Call) -> Cost | None:
    """x and residual, both read and written (vLLM's fused_add_rms_norm)."""
    found = call.tensors(0, 1)
    if not found:
        return None
    moved = float(sum(t.bytes for t in found))
    reads = tuple((t.shape, float(t.bytes)) for t in found)
    return Cost("normalization", 6.0 * found[0].elements, 2 * moved, found[0].dtype, result=found[0].shape,
                written=float(found[0].bytes), reads=reads)  # fmt: skip


def dropout(call: Call) -> Cost | None:
    """A result like the input, and a mask of one byte an element."""
    x = call.tensor(0)
    if not x:
        return None
    return Cost("elementwise", float(x.elements), float(x.bytes + x.elements * (BYTES[x.dtype] + 1)), x.dtype,
                result=x.shape, written=float(x.bytes), reads=((x.shape, float(x.bytes)),))  # fmt: skip


def rows_of_table(index: int, dimension: int | None = None) -> Callable[[Call], Cost | None]:
    """Rows of a table [V,…] picked by an index: reads the rows and the index, writes the rows.

    `dimension` is the argument that names the dimension; only the first one is known to be rows.
    """

    def cost(call: Call) -> Cost | None:
        found = call.tensors(0, index)
        if not found or (dimension is not None and call.number(dimension) != 0) or not found[0].shape:
            return None
        table, picks = found
        row = prod(table.shape[1:]) * BYTES[table.dtype]
        written = float(picks.elements * row)
        # Rows picked twice may come from the cache: no more is compulsory than the table.
        return Cost(
            "embedding", 0.0, min(written, float(table.bytes)) + written + picks.bytes, table.dtype, written=written
        )

    return cost


def gather(call: Call) -> Cost | None:
    """self, dim, index: one element for each of the index."""
    found = call.tensors(0, 2)
    if not found:
        return None
    size = BYTES[found[0].dtype]
    moved = min(found[1].elements * size, found[0].bytes) + found[1].elements * size + found[1].bytes
    return Cost("embedding", 0.0, float(moved), found[0].dtype)


def embedding_backward(call: Call) -> Cost | None:
    """gradient[…,D], index, rows V: reads the gradient, writes the table."""
    gradient, rows = call.tensor(0), call.number(2)
    if not gradient or rows is None or not gradient.shape:
        return None
    moved = float(gradient.bytes + rows * gradient.shape[-1] * BYTES[gradient.dtype])
    return Cost("embedding", float(gradient.elements), moved, gradient.dtype, several=True)


def nll_backward(call: Call) -> Cost | None:
    """gradient, x[N,C], target: writes a gradient like x."""
    x = call.tensor(1)
    return _memory("reduction", [], x.shape, x.elements * BYTES[x.dtype]) if x else None


POINTWISE = re.compile(r"^triton_poi_")
TWO_OPERANDS = re.compile(r"_mul_.*(?:silu|gelu)|(?:silu|gelu)_.*mul(?:_|$)")
"""A gate: its product needs a second tensor besides the one that the activation is of."""


def generated(name: str) -> Callable[[Call], Cost | None]:
    """A kernel that the compiler wrote, called with all its buffers: each is touched once, as far as its elements go; one
    that is both input and result is named once and touched twice.

    The last arguments are its numbers of elements; without them nothing is known.
    """

    def cost(call: Call) -> Cost | None:
        sizes = [int(text) for text in call.concrete if re.fullmatch("[0-9]{1,18}", text)]
        tensors = call.all
        if not sizes or not tensors:
            return None
        total = prod(sizes)
        moved = float(sum(min(t.stored, total) * BYTES[t.dtype] for t in tensors))
        whole = [tensor for tensor in tensors if tensor.elements == total]
        if POINTWISE.match(name) and len(whole) == (2 if TWO_OPERANDS.search(name) else 1):
            moved += min(tensor.bytes for tensor in whole)
        return Cost("generated", float(total), moved, promote(tensors))

    return cost


def softmax(call: Call) -> Cost | None:
    """x, dimension, whether 16-bit numbers become 32-bit ones."""
    x = call.tensor(0)
    return _memory("softmax", [x], x.shape, x.elements * (4 if call.flag(2) else BYTES[x.dtype]), 5.0) if x else None


def softmax_backward(call: Call) -> Cost | None:
    """gradient, result: a gradient of the input's type, which is the narrower of theirs and `input_dtype`."""
    found = call.tensors(0, 1)
    if not found:
        return None
    width = {5: 2, 6: 4, 15: 2}.get(call.number(3) or 0, BYTES[found[0].dtype])  # ScalarType: Half, Float, BFloat16
    return _memory("softmax", found, found[0].shape, found[0].elements * width, 5.0)


def pooled(call: Call, window: int = 1, indices: bool = False) -> Cost | None:
    """x[…,H,W], window, stride, padding and, of a maximum, dilation: a smaller result, with 8 bytes an index where asked for.
    Where the lists were not recorded, only x is known to move."""
    x = call.tensor(0)
    if not x:
        return None
    size, steps, padding = (call.numbers(window + i) for i in range(3))
    out = 0
    if size and padding is not None and len(x.shape) > len(size):
        steps = steps or size
        far = (call.numbers(window + 3) if indices else None) or [1]
        rank = len(size)
        steps, padding, far = (v * rank if len(v) == 1 else v for v in (steps, padding, far))
        if min(map(len, (steps, padding, far))) == rank and min(steps) > 0:
            sizes = zip(x.shape[-rank:], size, steps, padding, far, strict=True)
            places = [(n + 2 * pad - wide * (k - 1) - 1) // step + 1 for n, k, step, pad, wide in sizes]
            out = prod(x.shape[:-rank]) * prod(max(n, 0) for n in places)
    written = out * (BYTES[x.dtype] + (8 if indices else 0))
    return Cost("pooling", float(x.elements), float(x.bytes + written), x.dtype, written=float(written),
                reads=((x.shape, float(x.bytes)),))  # fmt: skip


def max_pooled(call: Call) -> Cost | None:
    return pooled(call, indices=True)


def max_pool_backward(call: Call) -> Cost | None:
    """gradient, x, …, indices of 8 bytes: a gradient like x."""
    found = call.tensors(0, 1)
    if not found:
        return None
    moved = found[0].bytes + 8 * found[0].elements + found[1].elements * BYTES[found[1].dtype]
    return Cost("pooling", float(found[1].elements), float(moved), found[1].dtype)


def like(*gradients: int, result: int) -> Callable[[Call], Cost | None]:
    """Pooling and scaling backward: the tensors at `gradients` in, one like `result` out."""

    def cost(call: Call) -> Cost | None:
        read, out = call.tensors(*gradients), call.tensor(result)
        if not read or not out:
            return None
        moved = sum(t.bytes for t in read) + out.elements * BYTES[out.dtype]
        return Cost("pooling", float(out.elements), float(moved), out.dtype)

    return cost


def padded(call: Call) -> Cost | None:
    """x, [left, right, top, …] of the last dimensions: a larger result."""
    x, more = call.tensor(0), call.numbers(1)
    if not x:
        return None
    sizes = list(x.shape)
    for i in range(len(more or ()) // 2):
        if i < len(sizes):
            sizes[-1 - i] += (more or [])[2 * i] + (more or [])[2 * i + 1]
    written = prod(max(size, 0) for size in sizes) * BYTES[x.dtype] if more else 0
    return Cost("copy", 0.0, float(x.bytes + written), x.dtype, written=float(written),
                reads=((x.shape, float(x.bytes)),))  # fmt: skip


def upsampled(call: Call) -> Cost | None:
    """x[N,C,…], sizes of the result."""
    x, sizes = call.tensor(0), call.numbers(1)
    if not x or not sizes or len(x.shape) != len(sizes) + 2 or min(sizes) < 1:
        return None
    written = x.shape[0] * x.shape[1] * prod(sizes) * BYTES[x.dtype]
    return Cost("elementwise", float(written), float(x.bytes + written), x.dtype, written=float(written),
                reads=((x.shape, float(x.bytes)),))  # fmt: skip


def upsampled_backward(call: Call) -> Cost | None:
    """gradient, sizes of the result, sizes of the input [N,C,…]."""
    gradient, sizes = call.tensor(0), call.numbers(2)
    if not gradient or not sizes or min(sizes) < 1:
        return None
    moved = gradient.bytes + prod(sizes) * BYTES[gradient.dtype]
    return Cost("elementwise", float(gradient.elements), float(moved), gradient.dtype)


def over(*places: int) -> Callable[[Call], Cost | None]:
    """The tensors at these places are read and written again, such as queries and keys that are rotated."""

    def cost(call: Call) -> Cost | None:
        found = call.tensors(*places) or call.tensors(*places[:1])
        if not found:
            return None
        moved = 2.0 * sum(t.bytes for t in found)
        return Cost("elementwise", 4.0 * sum(t.elements for t in found), moved, found[0].dtype)

    return cost


def outward(family: str, *places: int, work: float = 5.0) -> Callable[[Call], Cost | None]:
    """The result is among the tensors at these places: each is touched once (kernels of serving engines)."""

    def cost(call: Call) -> Cost | None:
        found = call.tensors(*places)
        if not found:
            return None
        return Cost(family, work * found[0].elements, float(sum(t.bytes for t in found)), found[-1].dtype)

    return cost


def into_cache(call: Call) -> Cost | None:
    """key, value, and the caches that they go into, narrower ones where the caches' type is."""
    found, caches = call.tensors(0, 1), call.tensors(2, 3)
    if not found or not caches:
        return None
    moved = sum(t.elements * (BYTES[t.dtype] + BYTES[cache.dtype]) for t, cache in zip(found, caches, strict=True))
    return Cost("copy", 0.0, float(moved), found[0].dtype)


def qkv_bias(call: Call) -> Cost | None:
    """qkv[B,T,3D] and its bias, moved into three tensors by head."""
    x = call.tensor(0)
    return Cost("elementwise", float(x.elements), 2.0 * x.bytes, x.dtype) if x else None


def index(call: Call) -> Cost | None:
    """x, a list of indices of which only the sizes may be recorded: as many rows of x as they name."""
    x = call.tensor(0)
    picks = call.arguments[1] if len(call.arguments) > 1 else ()
    if not x or not picks or len(picks) > len(x.shape) or any(t.dtype == "bool" for t in picks):
        return None
    rest = prod(x.shape[len(picks) :])
    written = float(prod(broadcast(picks)) * rest * BYTES[x.dtype])
    return Cost("embedding", 0.0, min(written, float(x.bytes)) + written + sum(t.bytes for t in picks), x.dtype,
                written=written)  # fmt: skip


def _memory(family: str, inputs: Sequence[Tensor], shape: tuple[int, ...], written: float, work: float = 1.0) -> Cost:
    read = float(sum(t.bytes for t in inputs))
    dtype = promote(inputs) if inputs else "fp32"
    reads = tuple((t.shape, float(t.bytes)) for t in inputs)
    return Cost(family, work * prod(shape), read + written, dtype, result=shape, written=float(written), reads=reads)
