"""Recordings of steps drawn by their parts: operators with shapes, and what their kernels take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.build import Event, call, kernel, op, step, sync

STEPS = 4


class Part(NamedTuple):
    """An operator of the step and the ms that its kernel takes."""

    operator: str
    shapes: Sequence[Sequence[int]]
    dtype: str
    """Of all its tensors, or of each."""
    kernel: str
    ms: float
    numbers: tuple[int, ...] = ()
    """What a generated kernel is called with besides its tensors."""


def _types(part: Part) -> list[str]:
    types = part.dtype.split(",")
    return types * len(part.shapes) if len(types) == 1 else types


def drawn_steps(parts: Sequence[Part]) -> list[Event]:
    """Four equal steps of these parts, queued well ahead of the device."""
    length = 1000 * sum(part.ms for part in parts) + 40
    events, number = list[Event](), 0
    for i in range(STEPS):
        at = busy = i * length
        busy += 30
        events.append(step(i, at, at + length))
        for place, part in enumerate(parts):
            number += 1
            begun = at + 1 + 0.02 * place
            shapes: dict[str, Any] = {"Input Dims": part.shapes, "Input type": _types(part)}
            if part.numbers:
                shapes["Concrete Inputs"] = [""] * (len(part.shapes) - len(part.numbers)) + list(map(str, part.numbers))
            events.append(op(part.operator, begun, begun + 0.016, **shapes))
            events.append(call(begun + 0.004, begun + 0.012, number))
            events.append(kernel(busy, busy + 1000 * part.ms, number, part.kernel))
            busy += 1000 * part.ms
        events.append(sync(at + 25, at + length - 1))
    return events
