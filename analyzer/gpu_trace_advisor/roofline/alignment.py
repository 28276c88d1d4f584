"""Sizes of matrix products that memory and matrix units take in one piece."""

from __future__ import annotations

from math import prod

from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.trace.operator_shapes import BYTES

ROWS = 16  # fewer rows are bound by reading the weights, aligned or not
MORE = 0.15  # of further work that padding may add: above it eats what it gives


def aligned(kind: Cost) -> bool:
    """Columns and depth are multiples of 16 bytes."""
    align = value("gt-tile-16", "align")
    return all(size * width(kind) % align == 0 for size in (kind.n, kind.k))


def width(kind: Cost) -> int:
    """Bytes of an element; a tf32 product reads fp32."""
    return BYTES["fp32" if kind.dtype == "tf32" else kind.dtype]


def worth_padding(kind: Cost) -> bool:
    """A product of more than a few rows to which padding adds little work."""
    if kind.family != "product" or kind.m <= ROWS:
        return False
    best = best_multiple(kind)
    padded = prod(-(-size // best) * best for size in (kind.n, kind.k))
    return padded <= (1 + MORE) * kind.n * kind.k


def best_multiple(kind: Cost) -> int:
    """Elements of 128 bytes."""
    return int(value("gt-tile-16", "best")) // width(kind)
