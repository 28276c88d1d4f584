"""What kinds of collectives there are, how they are named, and how many bytes their links carry."""

import re

from gpu_trace_advisor.trace.model import NONE

KINDS = (
    ("reducescatter", re.compile(r"reduce_?scatter", re.I)),
    ("allreduce", re.compile(r"all_?reduce|cross_device_reduce", re.I)),
    ("allgather", re.compile(r"all_?gather", re.I)),
    ("alltoall", re.compile(r"all_?(to|2)_?all", re.I)),
    ("broadcast", re.compile(r"broadcast|bcast", re.I)),
    ("barrier", re.compile(r"barrier", re.I)),
    ("sendrecv", re.compile(r"send_?recv", re.I)),
    ("gather", re.compile(r"gather", re.I)),
    ("scatter", re.compile(r"scatter", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
    ("send", re.compile(r"send", re.I)),
    ("recv", re.compile(r"recv|receive", re.I)),
)
SYMMETRIC = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Kinds that no rank leaves before all have come."""
POINT_TO_POINT = ("send", "recv", "sendrecv", "p2p")
DTYPE_BYTES = (
    (re.compile(r"64|double|long", re.I), 8),
    (re.compile(r"bf16|bfloat16|half|float16|16", re.I), 2),
    (re.compile(r"8|byte|bool|char", re.I), 1),
    (re.compile(r"32|float|int", re.I), 4),
)
PHASE_OF = {
    "dataloader": "dataloader", "copy-staging": "copies", "allocator": "stalls", "module-load": "stalls",
    "compile": "stalls", "garbage-collection": "stalls", "profiler": "profiler", "host-unknown": "unknown",
    "device-unknown": "unknown",
}  # fmt: skip
"""Phase of an idle cause; `host` for the others."""


def kind_of(name: str) -> str:
    """Which collective a kernel, operator or argument names; `other` for none."""
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes that each link carries for every byte of the message (NCCL's bus bandwidth)."""
    if kind == "allreduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("allgather", "reducescatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0


def dtype_bytes(name: str) -> int:
    """Bytes of one element of a type by its name in any spelling; -1 for none known."""
    return next((size for pattern, size in DTYPE_BYTES if pattern.search(name)), NONE)
