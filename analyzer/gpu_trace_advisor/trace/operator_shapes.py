"""What a recorded operator was called with: its tensors' shapes and types, read from the recording's texts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from gpu_trace_advisor.runtime.classes import dataclass

DTYPES = {
    "double": ("fp64", 8), "float": ("fp32", 4), "c10::Half": ("fp16", 2), "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1), "c10::Float8_e5m2fnuz": ("fp8", 1),
    "long int": ("int64", 8), "long": ("int64", 8), "int": ("int32", 4),
    "short int": ("int16", 2), "short": ("int16", 2),
    "signed char": ("int8", 1), "char": ("int8", 1), "unsigned char": ("uint8", 1), "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8), "c10::complex<double>": ("complex128", 16),
    # The names of ScalarType, as other writers spell them.
    "Double": ("fp64", 8), "Float": ("fp32", 4), "Half": ("fp16", 2), "BFloat16": ("bf16", 2),
    "Float8_e4m3fn": ("fp8", 1), "Float8_e4m3fnuz": ("fp8", 1), "Float8_e5m2": ("fp8", 1), "Float8_e5m2fnuz": ("fp8", 1),
    "Long": ("int64", 8), "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1),
    "Bool": ("bool", 1), "ComplexFloat": ("complex64", 8), "ComplexDouble": ("complex128", 16),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),
}  # fmt: skip
"""Type as PyTorch writes it -> (our name, bytes); two numbers of 4 bits share a byte."""

BYTES = dict(DTYPES.values())
FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8", "fp4")
MOST = 1 << 48
"""Elements of a tensor, or size of a stride or padding; more than any device holds, so a larger number is damage."""
BRACKETS = str.maketrans("()", "[]")
INTEGER = re.compile(r"-?\d{1,14}", re.ASCII)


@dataclass(frozen=True)
class Tensor:
    """One argument that is a tensor."""

    shape: tuple[int, ...]
    dtype: str
    stored: int
    """Elements that lie in memory: an expanded dimension (stride 0) is stored once."""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes that reading it moves at least."""
        return self.stored * BYTES[self.dtype]


@dataclass(frozen=True)
class Call:
    """The arguments of one operator call, in order; a list of tensors is one argument."""

    arguments: tuple[tuple[Tensor, ...], ...]
    """Tensors of each argument, none for scalars and what was not given."""
    concrete: tuple[str, ...]
    """Values of the scalar arguments, "" where unknown; empty when the recording has none."""

    def tensor(self, argument: int) -> Tensor | None:
        """The tensor at this place, None when there is none."""
        found = self.arguments[argument] if argument < len(self.arguments) else ()
        return found[0] if len(found) == 1 else None

    def tensors(self, *arguments: int) -> list[Tensor] | None:
        """The tensors at these places; None when one of them is none."""
        found = [tensor for i in arguments if (tensor := self.tensor(i)) is not None]
        return found if len(found) == len(arguments) else None

    @property
    def all(self) -> list[Tensor]:
        """Every tensor, lists included."""
        return [tensor for argument in self.arguments for tensor in argument]

    def flag(self, argument: int) -> bool | None:
        """A boolean argument; None when it was not recorded."""
        return {"True": True, "False": False}.get(self._concrete(argument))

    def number(self, argument: int) -> int | None:
        """An integer argument; None when it was not recorded."""
        text = self._concrete(argument)
        return int(text) if INTEGER.fullmatch(text) else None

    def numbers(self, argument: int) -> list[int] | None:
        """A list of integers, in brackets or parentheses; None when it was not recorded."""
        try:
            values = json.loads(self._concrete(argument).translate(BRACKETS))
        except (ValueError, RecursionError):
            return None
        integers = isinstance(values, list) and all(isinstance(value, int) and abs(value) <= MOST for value in values)
        return values if integers else None

    def _concrete(self, argument: int) -> str:
        return self.concrete[argument] if argument < len(self.concrete) else ""


@lru_cache(maxsize=65_536)
def read_call(dims: str, types: str, strides: str = "", concrete: str = "", assumed: str = "") -> Call | None:
    """The call that these texts describe; None where they do not hold together.

    `assumed` is the type of tensors whose type was not recorded (lists, NVTX ranges); "" leaves them out.
    """
    try:
        shapes, names, steps, values = (json.loads(text) if text else [] for text in (dims, types, strides, concrete))
        if not isinstance(shapes, list) or not isinstance(names, list) or not isinstance(steps, list):
            return None
        names = names or [None] * len(shapes)
        if len(names) != len(shapes):
            return None
        pad = len(shapes) - len(steps)
        parts = zip(shapes, names, [*steps, *[None] * max(pad, 0)], strict=False)
        arguments = tuple(tuple(_tensors(shape, name, stride, assumed)) for shape, name, stride in parts)
    except (ValueError, RecursionError):
        return None
    return Call(arguments, tuple(str(value) for value in values) if isinstance(values, list) else ())


def _tensors(shape: Any, name: Any, strides: Any, assumed: str) -> Sequence[Tensor]:
    """A tensor, the tensors of a list, or none for a scalar.

    Raises:
        ValueError: the shape of a tensor is none.
    """
    if not isinstance(shape, list):
        return ()
    if shape and isinstance(shape[0], list):
        inner = strides if isinstance(strides, list) and len(strides) == len(shape) else [None] * len(shape)
        return [_tensor(size, assumed, step) for size, step in zip(shape, inner, strict=True) if assumed]
    known = isinstance(name, str) and name in DTYPES
    dtype = DTYPES[name][0] if known else assumed if name is None and shape else ""
    return [_tensor(shape, dtype, strides)] if dtype else ()


def _tensor(shape: Any, dtype: str, strides: Any) -> Tensor:
    sizes = shape if isinstance(shape, list) else [None]
    if any(type(size) is not int or not 0 <= size <= MOST for size in sizes) or prod(sizes) > MOST:
        raise ValueError(f"no shape: {shape!r:.80}")
    steps = strides if isinstance(strides, list) and len(strides) == len(shape) else [1] * len(shape)
    stored = prod(size for size, step in zip(shape, steps, strict=True) if step != 0)
    return Tensor(tuple(shape), dtype, stored)


def broadcast(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape of an elementwise result."""
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def promote(tensors: Sequence[Tensor]) -> str:
    """The type of an elementwise result: tensors with dimensions decide over those without, floats over integers."""
    dimensioned = [tensor for tensor in tensors if tensor.shape] or list(tensors)
    floats = [t for t in dimensioned if t.dtype in FLOATS] or dimensioned
    widest = max(floats, key=lambda tensor: BYTES[tensor.dtype])
    mixed = {tensor.dtype for tensor in floats} == {"bf16", "fp16"}
    return "fp32" if mixed else widest.dtype
