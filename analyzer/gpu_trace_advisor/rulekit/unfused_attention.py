"""Attention written as a product, a softmax and a product: its scores go through memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.trace.model import Int64

LONG = 256  # queries and keys from which the scores outgrow the operands (head dimensions are 64 to 256)
NEAR = 8  # operations between a product and the softmax: scaling, mask, casts and dropout


def unfused_attention(view: DeviceWindow) -> Iterator[Int64]:
    """Runs of operations on a stream from the product that makes scores to the one that uses them."""
    timeline, costs, on = view.timeline, view.inkernel.costs, view.operations
    kinds = (*costs.kinds, None)  # -1, no kind, is the last one
    scores = {i: kind.result[-2:] for i, kind in enumerate(costs.kinds) if kind.family == "softmax" and kind.result}
    long = [i for i, shape in scores.items() if len(shape) == 2 and min(shape) >= LONG]
    for stream in ascending(timeline.stream[on[np.isin(costs.kind[on], long)]]).tolist():
        mine = on[timeline.stream[on] == stream]
        mine = mine[np.argsort(timeline.start[mine], kind="stable")]
        kind = costs.kind[mine]
        done = 0
        for at in np.flatnonzero(np.isin(kind, long)).tolist():
            queries, keys = scores[int(kind[at])]
            before, after = range(at - 1, max(at - NEAR, done) - 1, -1), range(at + 1, min(at + NEAR + 1, len(kind)))
            first = next((i for i in before if _is(kinds[kind[i]], m=queries, n=keys)), None)
            last = next((i for i in after if _is(kinds[kind[i]], m=queries, k=keys)), None)
            if first is not None and last is not None:
                done = last + 1
                yield mine[first:done]


def _is(kind: Cost | None, **sizes: int) -> bool:
    """A matrix product of these sizes."""
    return kind is not None and kind.family == "product" and all(getattr(kind, name) == n for name, n in sizes.items())
