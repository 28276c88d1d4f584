"""Reads one damaged JSON object as its writer meant it, where that is clear."""

import json
import re
from contextlib import suppress
from typing import Any

from gpu_trace_advisor.ingest.chrome.json_values import Number

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMAS = re.compile(r"[ \t\r\n,]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]{0,4000}))(\.[0-9]+)?([eE][+-]?[0-9]+)?(?=[ \t\r\n,\]}])")
_WORD = re.compile(r"[+-]?[A-Za-z/_#.()]{1,24}[0-9]{0,4}(?=[ \t\r\n]*[,\]}])")
_WORDS = {"true": True, "false": False, "null": None}
_QUOTE = re.compile('"')
# What follows the quote that ends a string: of a key, of a value in an object, of an item of a list.
_AFTER_KEY = re.compile(r"[ \t\r\n]*:")
_AFTER_VALUE = re.compile(r'[ \t\r\n]*(?:,[ \t\r\n,]*(?:"[^"\n]{1,80}"[ \t\r\n]*:|\})|\}[ \t\r\n,]*(?:[\]}"]|\Z))')
_AFTER_ITEM = re.compile(r'[ \t\r\n]*(?:,[ \t\r\n]*["\-0-9\[{tfnN]|,?[ \t\r\n]*\])')
_LONE_BACKSLASH = re.compile(r'\\(?!")')
_DEEPEST = 50


_STRING = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_TO_THE_END = re.compile(r'[^,\]}"\s]*\s*\Z')


class _Hopeless(Exception):
    pass


class Cut(Exception):
    """The text ends before it is clear."""


def lenient(text: str, at: int) -> tuple[Any, int, str]:
    """The object at a position of a text whose strings are whole: bare words for values, and commas too many, are all that
    may be wrong. The object, where it ends, and the cause of its damage; else None and how far was read.

    Raises Cut where more text could show an object.
    """
    reader = _RepairReader(text, exact=True)
    try:
        value, end = reader.value(at, 0, _AFTER_VALUE)
    except _Hopeless:
        if _TO_THE_END.match(text, reader.reached):
            raise Cut from None
        return None, reader.reached, ""
    return value, end, reader.causes[0] if reader.causes else "text"


def repair(text: str) -> tuple[Any, list[str]]:
    """The object that fills the text, and the causes of its damage (keys of CAUSES, the first one first).

    The value is None when it cannot be told what was meant. Takes time linear in the length of the text.
    """
    reader = _RepairReader(text)
    try:
        value, end = reader.value(0, 0, _AFTER_VALUE)
    except _Hopeless:
        return None, reader.causes
    if _SPACE.fullmatch(text, end) is None:
        return None, reader.causes
    return value, reader.causes or ["text"]


class _RepairReader:
    def __init__(self, text: str, exact: bool = False) -> None:
        self.text = text
        self.exact = exact
        """A string ends at its first quote."""
        self.causes: list[str] = []
        self.reached = 0
        """Where the last token began that was looked at."""

    def value(self, at: int, depth: int, after: re.Pattern[str]) -> tuple[Any, int]:
        """The value at a position and where it ends; `after` tells what may follow a string."""
        self.reached = at = self._skip(_SPACE, at)
        first = self.text[at : at + 1]
        if first == '"':
            return self._string(at + 1, after)
        if first in ("{", "[") and depth < _DEEPEST:
            return self._object(at + 1, depth) if first == "{" else self._list(at + 1, depth)
        if found := _NUMBER.match(self.text, at):
            return (Number(found[0]) if found[2] or found[3] else int(found[0])), found.end()
        if found := _WORD.match(self.text, at):
            if found[0] in _WORDS:
                return _WORDS[found[0]], found.end()
            self.causes.append("number")
            return None, found.end()
        raise _Hopeless

    def _skip(self, pattern: re.Pattern[str], at: int) -> int:
        found = pattern.match(self.text, at)
        return found.end() if found else at

    def _next_item(self, at: int, close: str, first: bool) -> int:
        """Past the commas before the next item; -1 - end when the object or list ends instead."""
        found = _COMMAS.match(self.text, at)
        assert found
        commas = found[0].count(",")
        self.reached = at = found.end()
        ends = self.text[at : at + 1] == close
        if commas != (0 if first or ends else 1):
            if not commas:
                raise _Hopeless
            self.causes.append("comma")
        return -2 - at if ends else at

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        items: dict[str, Any] = {}
        first = True
        while (at := self._next_item(at, "}", first)) >= 0:
            if self.text[at : at + 1] != '"':
                raise _Hopeless
            key, at = self._string(at + 1, _AFTER_KEY)
            self.reached = at = self._skip(_SPACE, at)
            if self.text[at : at + 1] != ":":
                raise _Hopeless
            at += 1
            items[key], at = self.value(at, depth + 1, _AFTER_VALUE)
            first = False
        return items, -1 - at

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while (at := self._next_item(at, "]", not items)) >= 0:
            item, at = self.value(at, depth + 1, _AFTER_ITEM)
            items.append(item)
        return items, -1 - at

    def _string(self, start: int, after: re.Pattern[str]) -> tuple[str, int]:
        """A string from its first character on, up to the first quote that its surroundings accept as its end."""
        text, at, inner = self.text, start, False
        if self.exact:
            return self._exact_string(start)
        while found := _QUOTE.search(text, at):
            quote = found.start()
            at = quote + 1
            run = quote
            while run > start and text[run - 1] == "\\":
                run -= 1
            if (quote - run) % 2:
                continue
            if after.match(text, at):
                return self._decode(text[start:quote], inner), at
            if after is _AFTER_KEY:
                raise _Hopeless
            inner = True
        raise _Hopeless

    def _exact_string(self, start: int) -> tuple[str, int]:
        found = _STRING.match(self.text, start)
        assert found
        end = found.end()
        if self.text[end : end + 1] != '"':
            self.reached = len(self.text) if len(self.text) - end < 6 else end
            raise _Hopeless
        body = found[0]
        return str(json.loads(f'"{body}"', strict=False)) if "\\" in body else body, end + 1

    def _decode(self, body: str, inner: bool) -> str:
        if inner:
            self.causes.append("quote")
            body = re.sub(r'(?<!\\)"', r'\\"', body)
        with suppress(ValueError):
            return str(json.loads(f'"{body}"', strict=False))
        # The writer escaped no backslash at all, so `\t` is part of a path too.
        self.causes.append("escape")
        try:
            return str(json.loads('"' + _LONE_BACKSLASH.sub(r"\\\\", body) + '"', strict=False))
        except ValueError:
            raise _Hopeless from None
