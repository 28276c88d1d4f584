"""Numbers with their units, as limits are written: `10%`, `0.5 ms`, `2 GiB`, `200`."""

from __future__ import annotations

import math
import re

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.runtime.classes import dataclass

SHARE, TIME, SIZE, NUMBER = "share", "time", "size", "number"
"""Dimensions; their plain units are a fraction of 1, nanoseconds, bytes, and one."""

UNITS = {
    "%": (SHARE, 0.01),
    "ns": (TIME, 1.0), "us": (TIME, 1e3), "µs": (TIME, 1e3), "ms": (TIME, 1e6), "s": (TIME, 1e9),
    "B": (SIZE, 1.0), "KB": (SIZE, 1e3), "MB": (SIZE, 1e6), "GB": (SIZE, 1e9),
    "KiB": (SIZE, 2.0**10), "MiB": (SIZE, 2.0**20), "GiB": (SIZE, 2.0**30),
    "": (NUMBER, 1.0),
}  # fmt: skip
EXAMPLES = {SHARE: '"10%"', TIME: '"0.5 ms"', SIZE: '"2 GiB"', NUMBER: "200"}
# A comma only between thousands: 1,5 is no 15.
WRITTEN = re.compile(
    r"\s*([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ%]*)\s*"
)


@dataclass(frozen=True)
class Quantity:
    """A number in the plain unit of its dimension."""

    value: float
    dimension: str

    def __str__(self) -> str:
        return shown(self.value, self.dimension)


def parse(written: object, dimensions: tuple[str, ...], what: str) -> Quantity:
    """A limit as somebody wrote it, of one of these dimensions.

    Raises:
        BadUsage: no number, an unknown unit, or a unit of something else.
    """
    examples = " or ".join(EXAMPLES[dimension] for dimension in dimensions)
    if isinstance(written, bool) or not isinstance(written, (int, float, str)):
        raise BadUsage(f"{what} = {written!r}: expected a number such as {examples}")
    match = WRITTEN.fullmatch(str(written))
    if match is None or match[2] not in UNITS:
        raise BadUsage(f"{what} = {written!r}: expected a number such as {examples}")
    dimension, scale = UNITS[match[2]]
    if dimension not in dimensions:
        raise BadUsage(f"{what} = {written!r}: give it as {examples}")
    value = float(re.sub("[_,]", "", match[1])) * scale
    if not math.isfinite(value):
        raise BadUsage(f"{what}: a number of {len(match[1])} digits; expected one such as {examples}")
    return Quantity(value, dimension)


def shown(value: float, dimension: str) -> str:
    """For people, with four significant digits."""
    if dimension == SHARE:
        return f"{100 * value:.4g} %"
    if dimension == TIME:
        unit, scale = next(((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if abs(value) >= s), ("ns", 1.0))
        return f"{value / scale:.4g} {unit}"
    if dimension == SIZE:
        names = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
        unit, scale = next(((u, s) for u, s in names if abs(value) >= s), ("B", 1.0))
        return f"{value / scale:.4g} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
