"""What is printed, made harmless: names from a trace may hold anything, escape sequences and commands to a CI among it.

`clean` makes one line of a name, `printable` goes over all that is written to standard output and standard error,
`json_text` is JSON in which nothing but letters stands unescaped.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
COLOURS = re.compile(r"(\x1b\[[0-9;]{1,8}m)")
"""What this project itself writes to a terminal."""

# Control characters but the line feed, marks for writing direction and other formats, separators of lines, surrogates.
UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001-\U000e007f]"
)
CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
# GitHub reads a line that begins with ::, also after blanks; it, Azure and TeamCity read ##[…], ##vso[…], ##teamcity[… anywhere.
BRACKET_COMMANDS = re.compile(r"##(?=[A-Za-z]{0,16}\[)")
LINE_COMMANDS = re.compile(r"^(\s*):(?=:)", re.MULTILINE)


@lru_cache(maxsize=100_000)
def clean(text: str) -> str:
    """A name from a trace on one line, without escape sequences, control, format and unassigned characters."""
    text = ESCAPES.sub("", text) if "\x1b" in text else text
    if text.isascii() and text.isprintable():
        return text.strip()
    return " ".join("".join(map(_harmless, text)).split())


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cf":  # marks for writing direction, joiners
        return ""
    return "?" if category in ("Cs", "Cn", "Co") else character


def printable(text: str, *, color: bool = False, commands: bool = False) -> str:
    """A text of any number of lines without what a terminal, or the CI that keeps its output, would obey.

    color: its own colours stay. commands: lines that begin with :: are meant for a CI.
    """
    if color and "\x1b" in text:
        pieces = COLOURS.split(text)
        text = "".join(piece if i % 2 else _visible(piece) for i, piece in enumerate(pieces))
    else:
        text = _visible(text)
    if not commands and in_ci(os.environ):
        text = LINE_COMMANDS.sub(r"\1: ", text)
    return BRACKET_COMMANDS.sub("# #", text) if commands or in_ci(os.environ) else text


def _visible(text: str) -> str:
    return UNSEEN.sub(" ", ESCAPES.sub("", text)) if UNSEEN.search(text) else text


def in_ci(environment: Mapping[str, str]) -> bool:
    """Whether a CI reads what is printed."""
    return any(environment.get(name, "").lower() not in ("", "0", "false") for name in CI_VARIABLES)


def json_text(value: object, *, indent: int | None = 1, ascii_only: bool = False) -> str:
    """JSON for files and terminals: what is not seen, and what a CI would take for a command, stands as \\uXXXX.

    Raises:
        ValueError: a number in it is infinite or none.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, allow_nan=False, separators=separators)
    text = UNSEEN.sub(_escaped, text) if UNSEEN.search(text) else text
    return text.replace("##", "\\u0023\\u0023") if BRACKET_COMMANDS.search(text) else text


def _escaped(match: re.Match[str]) -> str:
    return "\ufffd" if "\ud800" <= match[0] <= "\udfff" else json.dumps(match[0])[1:-1]
