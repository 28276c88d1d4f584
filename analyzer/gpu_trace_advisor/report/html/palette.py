"""What boxes and parts are coloured as: one colour for one thing, wherever it is drawn."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_trace_advisor.attribution.causes import CAUSES

KERNELS = {
    "gemm": "matrix products", "convolution": "convolutions", "attention": "attention", "moe": "mixture of experts",
    "normalization": "normalization, softmax", "elementwise": "elementwise", "reduction": "reductions, sorting",
    "embedding": "gather, scatter", "optimizer": "optimizer", "layout": "copies on the GPU, transposes",
    "communication": "communication", "copies": "copies", "graph": "whole graphs", "other": "other kernels",
    "kernels": "kernels of any class",
}  # fmt: skip
"""Colours of GPU work, with what they are called."""
HOST = {
    "host-range": "threads: ranges", "host-module": "threads: modules", "host-python": "threads: Python",
    "host-operator": "threads: operators", "host-call": "threads: runtime calls", "host-waiting": "threads: waiting",
}  # fmt: skip
ALIKE = {
    "softmax": "normalization", "triton": "elementwise", "quantization": "elementwise", "random": "elementwise",
    "pooling": "reduction", "sort": "reduction", "transpose": "layout", "copy": "layout", "exposed-copy": "copies",
    "memset": "copies", "migration": "copies", "exposed-communication": "communication", "unmodelled": "kernels",
}  # fmt: skip
"""Kernel classes and causes that share the colour of another one."""

labels = {cause.name: cause.label for cause in CAUSES.values()}
SLOTS = (*KERNELS, *(cause for cause in CAUSES if cause not in ALIKE), *HOST)
"""Every colour; the style has one `--c-NAME` for each."""


def slot_of(name: str) -> str:
    """The colour of a kernel class, a cause or a kind of host record."""
    slot = ALIKE.get(name, name)
    return slot if slot in SLOTS else "other"


def legend(slots: Iterable[str]) -> list[tuple[str, str]]:
    """(colour, what it stands for) of those that are drawn, in their own order."""
    drawn = set(slots)
    return [(slot, KERNELS.get(slot) or HOST.get(slot) or labels[slot]) for slot in SLOTS if slot in drawn]
