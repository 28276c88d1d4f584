"""Values that inputs are damaged with, and small mutations of JSON; a seed gives the same ones again."""

import marshal
import random
from typing import Any

TEXTS = (
    "", " ", "a/b", "../../x", "..", "\0", "\x1b]0;PWN\x07\x1b[31mred", "\x9b31m", "\u202eabc", "a\u2028b", "a\rb\nc",
    "::stop-commands::x", "##[error]x", "##vso[task.complete]x", "<script>alert(1)</script>", "</script><img src=x>",
    "{{ 7*7 }}", "|`*_[x](javascript:1)", "%0A%25", "$(id)", "'; DROP TABLE x;--", "1²2", "²", "٣", "-1", "1e999",
    "NaN", "x" * 3000, "\ud800", "\U000e0041", "é" * 300, "=1+1", "/home/John Smith/x.py", r"C:\Users\Alice B\x.py",
    r"\\server\share\x.py", "file:///home/eve/x.py",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, -2, 255, 65535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1,
    2**64, 10**30, 10**400, 0.5, -0.5, 1e-300, 1e30, 1e308, 2147483000, 4294967295,
)  # fmt: skip
SPECIALS: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": {}}, float("inf"), float("-inf"), float("nan"))


def any_value(rng: random.Random) -> Any:
    return copied(rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(SPECIALS))))


def copied(value: Any) -> Any:
    """A deep copy of a JSON value, in a tenth of the time of `copy.deepcopy`."""
    return marshal.loads(marshal.dumps(value))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [at]
    for key, one in inner:
        found += places(one, (*at, key))
    return found


def mutated(value: Any, rng: random.Random, most: int = 3) -> Any:
    """A copy with up to `most` values replaced, removed, repeated, renamed or put elsewhere."""
    value = copied(value)
    for _ in range(rng.randint(1, most)):
        paths = places(value)[1:]
        if not paths:
            return any_value(rng)
        *way, last = rng.choice(paths)
        holder = value
        for key in way:
            holder = holder[key]
        _mutate(holder, last, value, paths, rng)
    return value


def _mutate(holder: Any, key: Any, whole: Any, paths: list[Any], rng: random.Random) -> None:
    kind = rng.randrange(8)
    old = holder[key]
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copied(old))
    elif kind == 1:
        holder[rng.choice(TEXTS)] = holder.pop(key)
    elif kind == 2 and isinstance(old, int) and not isinstance(old, bool):
        holder[key] = old + rng.choice((-1, 1, -1000, 10**6, 2**40)) if rng.random() < 0.5 else -old
    elif kind == 3:
        other: Any = whole
        for step in rng.choice(paths):
            other = other[step]
        holder[key] = copied(other)
    elif kind == 4 and isinstance(old, (int, float)):
        holder[key] = str(old)
    elif kind == 5 and isinstance(old, str):
        holder[key] = old + rng.choice(TEXTS)
    else:
        holder[key] = any_value(rng)


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """A copy with some bytes changed, cut out, repeated, or cut off."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not found:
            break
        at, size = rng.randrange(len(found)), rng.choice((1, 1, 2, 8, 64, 1000))
        kind = rng.randrange(6)
        if kind == 0:
            found[at] = rng.randrange(256)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size]
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            found[at:at] = rng.choice(
                (
                    b'"',
                    b"\\",
                    b"{",
                    b"}",
                    b"[",
                    b"]",
                    b",",
                    b":",
                    b"\0",
                    b"\xff",
                    b"\xed\xa0\x80",
                    b"1e999",
                    b"NaN",
                    b"-",
                )
            )
        else:
            end = rng.randrange(len(found))
            found[at : at + size] = found[end : end + size]
    return bytes(found)
