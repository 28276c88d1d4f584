"""Calls the loops of `loops`: compiled where the package was built with a C compiler, plain Python over lists elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def call(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Array]) -> Any:
    """`function(*inputs, *outputs)`, which writes to the outputs."""
    if is_compiled(function):
        return function(*map(_lent, inputs), *map(_lent, outputs))
    lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in (*inputs, *outputs)]
    result = function(*lists)
    for column, values in zip(outputs, lists[len(inputs) :], strict=True):
        column[:] = values
    return result


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether it takes arrays, as machine code does."""
    return not isinstance(function, FunctionType)


def _lent(value: Any) -> Any:
    """An argument as the types of `loops.pxd` have it: items one behind the other, truth values as bytes."""
    if not isinstance(value, np.ndarray):
        return value
    value = np.ascontiguousarray(value)
    return value.view(np.uint8) if value.dtype == np.bool_ else value
