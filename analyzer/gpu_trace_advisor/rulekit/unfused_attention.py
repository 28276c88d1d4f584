"""Attention written as products with a softmax between them: its scores go through memory, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.trace.model import Int64

LONG = 256  # queries and keys from which the scores outgrow the operands (head dimensions are 64 to 256)
NEAR = 8  # operations between a product and the softmax: scaling, mask, casts and dropout


class Unfused(NamedTuple):
    """Operations on a stream from the product that makes scores (backward: their gradient) to the last one that uses them."""

    operations: Int64
    backward: bool
    scores: tuple[int, int]
    """Queries and keys."""


SOFTMAX, BACKWARD = re.compile("softmax", re.IGNORECASE), re.compile("softmax_?backward", re.IGNORECASE)


def unfused_attention(view: DeviceWindow) -> Iterator[Unfused]:
    """Where attention runs unfused; a softmax that the compiler fused with its neighbours counts as one."""
    timeline, costs, on = view.timeline, view.inkernel.costs, view.operations
    kinds = (*costs.kinds, None)  # -1, no kind, is the last one
    long = [i for i, kind in enumerate(costs.kinds) if _softmax(kind, costs.called[i][0])]
    gradient = {i for i in long if BACKWARD.search(costs.called[i][0])}
    for stream in ascending(timeline.stream[on[np.isin(costs.kind[on], long)]]).tolist():
        mine = on[timeline.stream[on] == stream]
        mine = mine[np.argsort(timeline.start[mine], kind="stable")]
        kind = costs.kind[mine]
        done = 0
        for at in np.flatnonzero(np.isin(kind, long)).tolist():
            before, after = range(at - 1, max(at - NEAR, done) - 1, -1), range(at + 1, min(at + NEAR + 1, len(kind)))
            first = next((i for i in before if _makes(kinds[kind[i]], kinds[kind[at]])), None)
            if first is None:
                continue
            made = costs.kinds[kind[first]]
            last = next((i for i in after if _is(kinds[kind[i]], m=made.m, k=made.n)), None)
            if last is None:
                continue
            backward = int(kind[at]) in gradient
            if backward:
                first, last = _with_gradients(kinds, kind, first, last, (made.m, made.n), done)
            done = last + 1
            yield Unfused(mine[first:done], backward, (made.m, made.n))


def _softmax(kind: Cost, operator: str) -> bool:
    """A softmax over long rows, forward or backward."""
    if kind.family == "softmax":
        return kind.result is not None and len(kind.result) > 1 and min(kind.result[-2:]) >= LONG
    return kind.family == "generated" and SOFTMAX.search(operator) is not None


def _makes(product: Cost | None, softmax: Cost | None) -> bool:
    """The product's result are the scores of this softmax, by its shape, of a generated one by its number of elements."""
    if product is None or softmax is None or product.family != "product" or min(product.m, product.n) < LONG:
        return False
    if softmax.result:
        return (product.m, product.n) == softmax.result[-2:]
    return product.batch * product.m * product.n == softmax.flops


def _with_gradients(
    kinds: Sequence[Cost | None], kind: Int64, first: int, last: int, scores: tuple[int, int], done: int
) -> tuple[int, int]:
    """Backward with the products for the gradients of values, before, and keys, after, where they are next to it."""
    queries, keys = scores
    if first > done and _is(kinds[kind[first - 1]], m=keys, k=queries):
        first -= 1
    if last + 1 < len(kind) and (
        _is(kinds[kind[last + 1]], m=keys, k=queries) or _is(kinds[kind[last + 1]], n=keys, k=queries)
    ):
        last += 1
    return first, last


def _is(kind: Cost | None, **sizes: int) -> bool:
    """A matrix product of these sizes."""
    return kind is not None and kind.family == "product" and all(getattr(kind, name) == n for name, n in sizes.items())
