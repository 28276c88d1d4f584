"""Loops over rows that are plain Python on small traces and machine code on large ones.

The function must be written in the subset that numba compiles, and allocate nothing. Nothing is compiled for a small trace:
that takes longer than the trace; code that is kept from a larger one serves it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime import machine_code
from gpu_trace_advisor.runtime.machine_code import Loop

LARGE = 500_000  # rows worth compiling for; more than a file of 40 MB holds
WORTH_LOADING = 50_000  # rows from which code that is kept pays for the start of what loads it
WORTH_CALLING = 500  # rows from which machine code pays once some is in use

Array = NDArray[Any]
_loops: dict[Callable[..., Any], Loop] = {}


def call(function: Callable[..., Any], size: int, inputs: Sequence[Any], outputs: Sequence[Array]) -> Any:
    """`function(*inputs, *outputs)`, which writes to the outputs. `size` is the number of rows it walks."""
    arrays = [np.ascontiguousarray(column) if isinstance(column, np.ndarray) else column for column in inputs]
    if ready := machine_code_of(function, size, *arrays, *outputs):
        return ready(*arrays, *outputs)
    lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in (*inputs, *outputs)]
    result = function(*lists)
    for column, values in zip(outputs, lists[len(inputs) :], strict=True):
        column[:] = values
    return result


def machine_code_of(function: Callable[..., Any], size: int, *args: Any) -> Loop | None:
    """The function as machine code for such arguments; None where it would not pay, or cannot be had."""
    if size >= LARGE:
        machine_code.compile_from_now()
    if size < (WORTH_CALLING if machine_code.in_use() else WORTH_LOADING):
        return None
    loop = _loops.setdefault(function, Loop(f"{function.__module__}:{function.__name__}"))
    return loop if loop.is_ready(*args) else None
