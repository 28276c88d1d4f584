"""What the documents claim, as data: each claim with its document, section, numbers, and whether it may be used.

The claims stand in `rules/facts.toml`. A corrected claim gives only the numbers of its correction; one that must not be
used gives none.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from gpu_trace_advisor.runtime.classes import dataclass

OK, CORRECTED, DO_NOT_USE = "ok", "corrected", "do-not-use"

SCALE = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
    "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "FLOP": 1.0, "TFLOP": 1e12, "bit": 1.0, "Gbit": 1e9,
}  # fmt: skip
"""Prefixed units and what they are in the plain one; any other unit is its own."""


class UnusableFact(LookupError):
    """The claim is wrong, or holds no such number: using it is a mistake in a rule, not in the trace."""


@dataclass(frozen=True)
class Figure:
    """A number as the document writes it: one value (low = high), a span, or a list; or a formula or a word."""

    unit: str
    numbers: tuple[float, ...] = ()
    text: str = ""
    """The formula or word where there is no number."""

    @property
    def base(self) -> tuple[float, ...]:
        """The numbers in plain units: seconds, bytes, FLOP; a ratio is a fraction of 1."""
        unit, _, below = self.unit.partition("/")
        scale = SCALE.get(unit.strip(), 1.0) / SCALE.get(below.strip(), 1.0)
        return tuple(number * scale for number in self.numbers)

    def __str__(self) -> str:
        if not self.numbers:
            return " ".join(filter(None, (self.text, self.unit)))
        return " ".join(filter(None, ("–".join(f"{n:g}" for n in self.numbers), "" if self.unit == "1" else self.unit)))


@dataclass(frozen=True)
class Fact:
    """One claim. `values` of a corrected claim are those of the correction, `claimed` always the document's."""

    key: str
    says: str
    kind: str
    document: str
    section: str
    status: str
    applies_to: str
    use: str
    used_by: tuple[str, ...]
    correction: str | None = None
    """What is right instead, with its number (`C5: …`); None where the document is right."""
    claimed: dict[str, Figure] = field(default_factory=dict)
    right: dict[str, Figure] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Figure]:
        """The numbers that may be used.

        Raises:
            UnusableFact: the claim must not be used.
        """
        if self.status == DO_NOT_USE:
            raise UnusableFact(f"{self.key} must not be used: {self.correction}")
        return self.right if self.status == CORRECTED else self.claimed

    def span(self, name: str) -> tuple[float, float]:
        """Lowest and highest number of a field, in plain units (seconds, bytes, fractions of 1).

        Raises:
            UnusableFact: the claim must not be used, or has no such number.
        """
        found = self.values.get(name)
        if found is None or not found.numbers:
            why = f": {self.correction}" if self.correction else ""
            raise UnusableFact(f"{self.key} has no usable number {name!r}{why}")
        return min(found.base), max(found.base)

    def value(self, name: str) -> float:
        """The one number of a field, in plain units.

        Raises:
            UnusableFact: as `span`, or the field is a span of numbers.
        """
        low, high = self.span(name)
        if low != high:
            raise UnusableFact(f"{self.key}: {name!r} is a span, from {low:g} to {high:g}")
        return low


@cache
def facts() -> dict[str, Fact]:
    """All claims by key, in the order of the documents."""
    data = read_data("facts.toml")
    return {key: _fact(key, claim, data["corrections"]) for key, claim in data["claims"].items()}


@cache
def documents() -> dict[str, str]:
    """Short names of the documents and their titles."""
    return dict(read_data("facts.toml")["documents"])


def fact(key: str) -> Fact:
    """One claim.

    Raises:
        UnusableFact: there is no such claim.
    """
    found = _claim(key)
    if found is None:
        raise UnusableFact(f"no claim {key!r} in facts.toml")
    return found


@cache
def _claim(key: str) -> Fact | None:
    """One claim, of which alone the table is parsed: the whole file takes longer than a small trace."""
    text = read_text("facts.toml")
    name = key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'
    _, head, rest = text.partition(f"\n[claims.{name}]\n")
    if not head:
        return None
    table = rest.partition("\n[")[0]
    return _fact(key, tomllib.loads(table), _corrections())


@cache
def _corrections() -> dict[str, str]:
    return dict(tomllib.loads(read_text("facts.toml").partition("\n[claims.")[0])["corrections"])


def value(key: str, name: str) -> float:
    """One number of a claim in plain units; `Fact.value` says when it raises."""
    return fact(key).value(name)


def span(key: str, name: str) -> tuple[float, float]:
    """Lowest and highest number of a claim in plain units; `Fact.span` says when it raises."""
    return fact(key).span(name)


@cache
def read_data(name: str) -> dict[str, Any]:
    """A data file of the installed rules."""
    return tomllib.loads(read_text(name))


@cache
def read_text(name: str) -> str:
    """The same as its text."""
    return Path(import_module("gpu_trace_advisor.rules").__path__[0], name).read_text(encoding="utf-8")


def _fact(key: str, claim: dict[str, Any], corrections: dict[str, str]) -> Fact:
    see = claim.get("see")
    return Fact(
        key=key,
        says=claim["says"],
        kind=claim["kind"],
        document=claim["document"],
        section=claim["section"],
        status=claim["status"],
        applies_to=claim["for"],
        use=claim["use"],
        used_by=tuple(claim["used_by"]),
        correction=f"{see}: {corrections[see]}" if see else None,
        claimed={name: _quantity(entry) for name, entry in claim.get("values", {}).items()},
        right={name: _quantity(entry) for name, entry in claim.get("right", {}).items()},
    )


def _quantity(entry: dict[str, Any]) -> Figure:
    if "list" in entry:
        numbers = tuple(float(number) for number in entry["list"])
    else:
        numbers = tuple(float(entry[end]) for end in ("value", "low", "high") if end in entry)
    return Figure(entry.get("unit", ""), numbers, entry.get("formula", entry.get("text", "")))
