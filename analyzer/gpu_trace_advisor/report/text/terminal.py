"""Lines for a terminal: columns that count, names that cannot misbehave, colour that can be left away."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

STYLES = {
    "bold": "1", "dim": "2", "head": "1;36", "compute": "32", "communication": "35", "copy": "34", "idle": "31",
    "warn": "33",
}  # fmt: skip
UNITS = re.compile(r"(\d) (%|[mµn]?s|[KMG]?i?B)(?!\w)")
EIGHTHS = " ▏▎▍▌▋▊▉█"
ASCII = str.maketrans(
    {"█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": " ", "▎": " ", "▏": " ", "…": ".", "µ": "u", "–": "-",
     "—": "-", "·": "-", "×": "x", "→": ">", "‘": "'", "’": "'", "“": '"', "”": '"', "≥": ">=", "≤": "<="}
)  # fmt: skip


def columns(text: str) -> int:
    """Columns that the text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(4096)
def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, width: int) -> str:
    """The text in at most `width` columns; a cut one ends in `…`."""
    if columns(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…" if width > 0 else ""


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` columns, to the left or to the right of them."""
    text = clip(text, width)
    blank = " " * (width - columns(text))
    return blank + text if right else text + blank


def bar(part: float, width: int) -> str:
    """A bar for a part from 0 to 1; something that is there is seen."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    eighths = max(eighths, 1) if part > 0 else eighths
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def encodable(text: str, encoding: str | None) -> str:
    """The text with only what a stream of this encoding can write: ASCII for bars and signs where it must be."""
    try:
        text.encode(encoding or "ascii")
        return text
    except (UnicodeEncodeError, LookupError):
        plain = text.translate(ASCII)
    try:
        return plain.encode(encoding or "ascii", errors="replace").decode(encoding or "ascii")
    except LookupError:
        return plain.encode("ascii", errors="replace").decode("ascii")


@dataclass
class Page:
    """Lines of at most `width` columns. Text that comes from a trace is cleaned by whoever puts it here."""

    width: int
    color: bool
    lines: list[str] = field(default_factory=list)

    def line(self, *spans: tuple[str, str]) -> None:
        """A line of (text, style) spans; what exceeds the width is cut."""
        left, out = self.width, []
        for text, style in spans:
            text = clip(text, left)
            left -= columns(text)
            code = STYLES.get(style) if self.color else None
            out.append(f"\x1b[{code}m{text}\x1b[0m" if code and text.strip() else text)
        self.lines.append("".join(out).rstrip())

    def head(self, title: str, note: str = "") -> None:
        """A section's heading, after an empty line."""
        if self.lines:
            self.lines.append("")
        self.line((title, "head"), (f"  {note}" if note else "", "dim"))

    def prose(self, text: str, indent: str = "", style: str = "", first: str | None = None) -> None:
        """Words in as many lines as they need; `first` begins the first line instead of the indent."""
        lead = indent if first is None else first
        for line in wrapped(UNITS.sub("\\1\u00a0\\2", text), self.width - columns(indent)):
            self.line((lead, ""), (line.replace("\u00a0", " "), style))
            lead = indent

    def table(
        self, rows: Sequence[Sequence[str]], heads: Sequence[str] = (), grow: int = 0, indent: str = "  "
    ) -> None:
        """Columns side by side: the one at `grow` takes what is left, at the left; the others stand at the right."""
        if not rows:
            return
        every = [heads, *rows] if heads else list(rows)
        sizes = [max(columns(row[i]) for row in every) for i in range(len(rows[0]))]
        sizes[grow] = self._room(sizes, grow, columns(indent))
        for number, row in enumerate(every):
            cells = [pad(cell, size, right=i != grow) for i, (cell, size) in enumerate(zip(row, sizes, strict=True))]
            self.line((indent + "  ".join(cells), "dim" if heads and not number else ""))

    def _room(self, sizes: list[int], grow: int, indent: int) -> int:
        others = sum(sizes) - sizes[grow] + 2 * (len(sizes) - 1) + indent
        return max(min(sizes[grow], self.width - others), min(sizes[grow], 8))

    def text(self) -> str:
        """All lines, each ended."""
        return "\n".join(self.lines) + "\n"


def wrapped(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` columns; a longer word is cut into pieces."""
    if text.isascii():
        return textwrap.wrap(text, max(width, 8), break_on_hyphens=False) or [""]
    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if columns(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *whole, line = _pieces(word, width)
        lines += whole
    return [*lines, line]


def _pieces(word: str, width: int) -> list[str]:
    pieces, piece, used = [], "", 0
    for character in word:
        size = _columns(character)
        if used + size > max(width, 2):
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + character, used + size
    return [*pieces, piece]
