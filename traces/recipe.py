"""The recipe language: a GPU program written down so that a person can read it.

A recipe is lines of words. Indented lines under a line that ends in ``:`` are its block. ``key=value`` words are
options; quoted words may hold spaces; ``#`` at the start of a line or after a space starts a comment. Times are
``250ns``, ``5.5us``, ``3ms``; sizes ``512``, ``4KiB``, ``16MiB``, ``1GiB``. ``define NAME PARAMETER…:`` gives a block
a name; used as a verb, its parameters stand in it as ``$PARAMETER``. ``traces/README.md`` lists the verbs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"
HEADER = ("device", "launch", "trace", "kernel", "define", "ranks", "thread")

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)")
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)?")
_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_BYTES = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class RecipeError(ValueError):
    """A recipe that cannot be read; the message names the line."""


@dataclass(frozen=True)
class Line:
    """One line of a recipe: a verb, plain words, options, and the block under it."""

    number: int
    verb: str
    words: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    block: tuple[Line, ...] = ()

    def fail(self, why: str) -> RecipeError:
        return RecipeError(f"line {self.number}: {self.verb}: {why}")

    def word(self, index: int) -> str:
        if index >= len(self.words):
            raise self.fail("a word is missing")
        return self.words[index]

    def time(self, key: str, default: int) -> int:
        """An option in nanoseconds."""
        return parse_time(self.options[key]) if key in self.options else default

    def times(self) -> list[int]:
        """The plain words that are times, in nanoseconds."""
        return [parse_time(word) for word in self.words if is_time(word)]


@dataclass(frozen=True)
class Recipe:
    """A recipe in parts: settings by header verb, kernels and definitions by name, and the program of each thread."""

    name: str
    settings: dict[str, dict[str, str]]
    device: str
    kernels: dict[str, Line]
    definitions: dict[str, Line]
    threads: dict[str, Line]


def is_time(word: str) -> bool:
    return _TIME.fullmatch(word) is not None


def parse_time(word: str) -> int:
    """``5.5us`` in whole nanoseconds."""
    match = _TIME.fullmatch(word)
    if match is None:
        raise RecipeError(f"not a time: {word!r}")
    ns = Decimal(match[1]) * _NS[match[2]]
    if ns != int(ns):
        raise RecipeError(f"not whole nanoseconds: {word!r}")
    return int(ns)


def parse_size(word: str) -> int:
    """``4MiB`` in bytes."""
    match = _SIZE.fullmatch(word)
    if match is None:
        raise RecipeError(f"not a size: {word!r}")
    return int(match[1]) * _BYTES[match[2]]


def parse(text: str, name: str = "recipe") -> Recipe:
    """Read the text of a recipe."""
    lines = list(_lines(text))
    block, rest = _block(lines, 0, 0)
    if rest != len(lines):
        raise RecipeError(f"line {lines[rest][0]}: unexpected indentation")
    settings: dict[str, dict[str, str]] = {}
    device, kernels, definitions, threads = "H100", {}, {}, {}
    for line in block:
        if line.verb == "kernel":
            kernels[line.word(0)] = line
        elif line.verb == "define":
            definitions[line.word(0)] = line
        elif line.verb == "thread":
            threads[line.word(0)] = line
        elif line.verb in HEADER:
            if line.verb == "device":
                device = line.word(0)
            settings.setdefault(line.verb, {}).update(line.options)
            if line.verb == "ranks":
                settings["ranks"]["count"] = line.word(0)
        else:
            raise line.fail(f"not one of {', '.join(HEADER)}")
    if not threads:
        raise RecipeError("a recipe needs a thread")
    return Recipe(name, settings, device, kernels, definitions, threads)


def load(name: str) -> Recipe:
    """Read the recipe of this name under ``traces/recipes``."""
    return parse((RECIPES / f"{name}.recipe").read_text(encoding="utf-8"), name)


def names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.recipe"))


def expand(definition: Line, use: Line) -> tuple[Line, ...]:
    """The block of a definition with the words of its use in place of its parameters."""
    parameters = definition.words[1:]
    if len(use.words) != len(parameters):
        raise use.fail(f"needs {' '.join(parameters) or 'no words'}")
    values = dict(zip(parameters, use.words, strict=True))
    return tuple(_fill(line, values) for line in definition.block)


def _fill(line: Line, values: dict[str, str]) -> Line:
    def fill(text: str) -> str:
        return re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), text)

    return Line(
        line.number,
        fill(line.verb),
        tuple(fill(word) for word in line.words),
        {key: fill(value) for key, value in line.options.items()},
        tuple(_fill(inner, values) for inner in line.block),
    )


def _lines(text: str) -> Iterator[tuple[int, int, str, bool]]:
    """(number, indentation, text, opens a block) of every line that says something."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#(\s.*|$)", "", raw).rstrip()
        if not line.strip():
            continue
        opens = line.endswith(":")
        yield number, len(line) - len(line.lstrip()), line.strip().removesuffix(":"), opens


def _block(lines: list[tuple[int, int, str, bool]], at: int, indent: int) -> tuple[tuple[Line, ...], int]:
    block: list[Line] = []
    while at < len(lines) and lines[at][1] >= indent:
        number, depth, text, opens = lines[at]
        if depth != indent:
            raise RecipeError(f"line {number}: unexpected indentation")
        at += 1
        inner: tuple[Line, ...] = ()
        if opens:
            if at == len(lines) or lines[at][1] <= indent:
                raise RecipeError(f"line {number}: an empty block")
            inner, at = _block(lines, at, lines[at][1])
        verb, *words = shlex.split(text)
        options = dict(word.split("=", 1) for word in words if re.match(r"[a-z_]+=", word))
        plain = tuple(word for word in words if not re.match(r"[a-z_]+=", word))
        block.append(Line(number, verb, plain, options, inner))
    return tuple(block), at
