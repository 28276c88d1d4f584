"""How much memory a recording may take while it is read: what would take more is refused before it is held."""

from __future__ import annotations

from pathlib import Path

from gpu_trace_advisor.errors import UnreadableTrace

TIMES, ROOM = 1.5, 300_000_000
"""Bytes that a recording may take: so many times its unpacked text, and so many more."""
OWN = 80_000_000
"""Bytes that the program itself takes of them."""
SMALL = 8 << 20
"""Bytes of text that may hold anything."""
OBJECT = 64
"""Bytes of a small Python value."""
CHARACTER, ODD_CHARACTER = 5, 16
"""Bytes that a byte of text takes as it is decoded and repaired; of one that is not all ASCII."""
LONGEST_NAME = 1 << 16
"""Characters of a name; those of kernels made of nested templates reach a few thousand."""
LONGEST_VALUE = 1 << 20
"""Bytes of a list among the arguments of one event; longer ones are taken for none."""
LEFT_OUT = "(too long or too deep)"
"""What stands for such a list until they are counted."""
MOST_NAMES = 100_000
"""Names of one recording that are told apart; those with most numbers in them reach some thousands."""
OTHERS = "(other names)"


def as_objects(text: bytes | bytearray) -> int:
    """Bytes that JSON takes as Python values, about."""
    values = text.count(b",") + text.count(b"{") + text.count(b"[")
    return OBJECT * values + len(text) * (CHARACTER if text.isascii() else ODD_CHARACTER)


def check_room(path: Path | str, text: int, needed: int, limit: int | None) -> None:
    """Refuse what needs more bytes than its text or the limit allow.

    text: bytes of the recording, unpacked, as far as known; limit: bytes that may be taken in any case.

    Raises:
        UnreadableTrace: it needs more.
    """
    allowed = max(int(TIMES * text) + ROOM, limit or 0)
    needed += OWN
    if text > SMALL and needed > allowed:
        raise UnreadableTrace(
            f"{path}: {text / 1e6:,.0f} MB of text that would take about {needed / 1e6:,.0f} MB of memory, where "
            f"{allowed / 1e6:,.0f} MB are allowed: many small values or damage, as no profiler writes it; "
            f"--limit {-(-needed // 10**8) / 10:.1f}GB allows it"
        )
