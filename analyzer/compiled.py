"""Loops over rows that are plain Python on small traces and compiled by numba on large ones.

The function must be written in the subset that numba compiles. Small traces never import numba: starting it takes longer
than they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE = 500_000  # rows; more than a file of 40 MB holds
WORTH_COMPILED = 5_000  # rows from which the compiled code pays once numba is loaded anyway

Array = NDArray[Any]
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def call(function: Callable[..., Any], size: int, inputs: Sequence[Any], outputs: Sequence[Array]) -> Any:
    """`function(*inputs, *outputs)`, which writes to the outputs. `size` is the number of rows it walks."""
    if (size >= LARGE or ("numba" in sys.modules and size >= WORTH_COMPILED)) and (ready := _compile(function)):
        return ready(*inputs, *outputs)
    lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in (*inputs, *outputs)]
    result = function(*lists)
    for column, values in zip(outputs, lists[len(inputs) :], strict=True):
        column[:] = values
    return result


def _compile(function: Callable[..., Any]) -> Callable[..., Any] | None:
    if function not in _compiled:
        try:
            import numba
        except ImportError:  # no wheel for this Python yet: slower, not wrong
            return None
        _compiled[function] = numba.njit(cache=True, nogil=True)(function)
    return _compiled[function]


def chosen(function: Callable[..., Any], size: int) -> tuple[Callable[..., Any], bool]:
    """The function as it pays for so many rows, and whether it wants arrays (else lists): for loops in many parts."""
    if (size >= LARGE or ("numba" in sys.modules and size >= WORTH_COMPILED)) and (ready := _compile(function)):
        return ready, True
    return function, False
