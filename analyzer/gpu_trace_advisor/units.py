"""Numbers with their units, as people read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpu_trace_advisor.errors import BadUsage


def duration(ns: int) -> str:
    """A length of time in the unit that suits it."""
    size_ = abs(ns)
    if size_ < 1_000:
        return f"{ns:,} ns"
    if size_ < 1_000_000:
        return f"{ns / 1e3:,.1f} µs"
    if size_ < 10_000_000:
        return f"{ns / 1e6:,.2f} ms"
    if size_ < 10_000_000_000:
        return f"{ns / 1e6:,.1f} ms"
    return f"{ns / 1e9:,.2f} s"


def share(ns: int, wall_ns: int) -> str:
    """A percentage that never rounds a part to all or nothing."""
    if not wall_ns:
        return "0 %"
    value = 100 * ns / wall_ns
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.1f} %"


def between(ends: tuple[Any, Any], form: Callable[[Any], str] = duration) -> str:
    """`12.3 ms to 15.5 ms`; one number where both read alike."""
    low, high = map(form, ends)
    return high if low == high else f"{low} to {high}"


def faster(speedup: tuple[float, float]) -> str:
    """`1.03× to 1.25× speedup`."""
    return f"{between(speedup, '{:.2f}×'.format)} speedup"


def percent(part: float, digits: int = 0, sign: str = "") -> str:
    """A ratio as a percentage; with the sign `+` it is a change."""
    value = round(100 * part, digits) + 0.0  # never -0
    return f"{value:{sign}.{digits}f} %"


def size(count: int | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return "unknown"
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= one:
            return f"{count / one:,.2f} {unit}"
    return f"{count:,} B"


def moved_at(count: int, ns: int) -> str:
    """Bytes in decimal units and how fast they move, as links are rated: `25.5 GB at 27.7 GB/s`; nothing where there are none."""
    if not count or not ns:
        return "sizes not recorded"
    unit, one = next(((u, o) for u, o in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)) if count >= o), ("B", 1))
    return f"{count / one:,.{1 if one > 1 else 0}f} {unit} at {count / ns:.1f} GB/s"


def count_of(number: int, one: str, several: str = "") -> str:
    """`1 launch call`, `20 launch calls`; `several` where it is no plain plural."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else f"{count:,} times"


def read_count(text: str | bytes) -> int | None:
    """The whole number that plain digits are, up to 18 of them; None where they are something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

LARGEST_SIZE = 2**63  # what counts of bytes are held in


def read_size(text: str, option: str = "--weights") -> int:
    """Bytes of `14GB`, `13.5 GiB` or `14000000000`.

    Raises:
        BadUsage: not a size, or one beyond all that bytes are counted in.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kKMGT]?i?B?)\s*", text)
    if not found or found[2].upper() not in SIZES:
        raise BadUsage(f"{option} {text}: expected a size such as 14GB")
    value = float(found[1]) * SIZES[found[2].upper()]
    if value >= LARGEST_SIZE:
        raise BadUsage(f"{option}: a number of {len(found[1])} digits; expected a size such as 14GB")
    return round(value)
