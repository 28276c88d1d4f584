"""JSON values as the columns hold them: exact times, wrapped integers, clean text."""

import json
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from gpu_trace_advisor.ingest.raw_events import MISSING

CAUSES = {
    "quote": "unescaped quote in an event name or argument, torch before mid-2026",
    "escape": "backslash not escaped in a text (a Windows path, torch before 2.1)",
    "number": "a number printed as inf, nan or N/A",
    "comma": "a comma too many",
    "unicode": "text that is not valid UTF-8, shown as U+FFFD",
    "text": "text that is not JSON",
    "event": "an entry of traceEvents that is no event",
}
"""Causes of damage, for a person."""


class Number(str):
    """A JSON number with a fraction or an exponent, as its text: a float would lose nanoseconds."""

    __slots__ = ()
    __repr__ = str.__str__


class NotStrict(ValueError):
    pass


def not_strict(token: str) -> None:
    raise NotStrict(token)


_EXACT = Context(prec=60)
_DIGITS = re.compile(r"-?[0-9]{1,40}\Z")
_DECIMAL = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,4})?\Z")
INT64 = 1 << 63


def nanoseconds(value: Any) -> int:
    """Decimal microseconds as whole nanoseconds, half to even; MISSING when it is no number or outside int64."""
    kind = value.__class__
    if kind is int:
        result = value * 1000
    elif kind is Number or kind is str:
        whole, _, fraction = value.partition(".")
        if len(fraction) == 3 and fraction.isdigit() and whole.isdigit() and value.isascii() and len(whole) < 40:
            result = int(whole + fraction)
        elif not _DECIMAL.match(value):
            return MISSING
        else:
            exact = Decimal(value).scaleb(3, _EXACT)
            if exact.adjusted() > 20:
                return MISSING
            result = int(exact.to_integral_value(ROUND_HALF_EVEN, _EXACT))
    else:
        return MISSING
    return result if -INT64 < result < INT64 else MISSING


def integer(value: Any) -> int:
    """An argument as int64, unsigned values wrapped; MISSING when it is no whole number or outside the 64 bits."""
    kind = value.__class__
    if kind is str:
        if not _DIGITS.match(value):
            return MISSING
        value = int(value)
    elif kind is Number:
        if not _DECIMAL.match(value):
            return MISSING
        exact = Decimal(value)
        if exact.adjusted() > 20 or exact != exact.to_integral_value():
            return MISSING
        value = int(exact)
    elif kind is not int:
        return MISSING
    if value >= INT64:
        value = value - 2 * INT64 if value < 2 * INT64 else MISSING
    return value if value >= -INT64 else MISSING


def canonical(value: Any) -> str:
    """A value as JSON text in one spelling, `[1, "a"]`, numbers as written."""
    if value.__class__ is int or isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(canonical, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {canonical(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with U+FFFD for each byte that was no UTF-8."""
    return SURROGATE.sub("\ufffd", text)
