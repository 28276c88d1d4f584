"""Texts for files that people send on: what a trace says, without what it tells of the machine."""

from __future__ import annotations

import re
from functools import lru_cache

from gpu_trace_advisor.sanitize import clean

PATH = re.compile(
    r"(?<![\w./\\<)])(?:(?:\.{1,2}/)+(?:[^\s/\\:'\"()<>,]+/)*|(?:/(?!/)|~/|[A-Za-z]:[\\/](?!/))(?:[^\s/\\:'\"()<>,]+[\\/])+)"
    r"(?=[^\s/\\])"
)
LIBRARY = re.compile(r"(?:site-packages|dist-packages|python3(?:\.\d+)?)[\\/](?:.*[\\/])?")


@lru_cache(maxsize=200_000)
def shareable(text: str) -> str:
    """One clean line; of an absolute path only the file's name, of a library's what lies inside the library."""
    text = clean(text)
    if "/" not in text and "\\" not in text:
        return text
    return PATH.sub(_inside_library, text)


def _inside_library(match: re.Match[str]) -> str:
    found = list(LIBRARY.finditer(match[0]))
    return match[0][found[-1].start() :].split("packages/")[-1] if found else ""
