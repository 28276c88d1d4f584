"""Texts for files that people send on: what a trace says, without what it tells of the machine."""

from __future__ import annotations

import re
from functools import lru_cache

from gpu_trace_advisor.sanitize import clean

_END = r"[\s'\"():,;<>|]|\Z"
# A home and whose it is: names of people may hold blanks, where a folder or file follows.
HOME = re.compile(
    r"(?:(?<![\w.])(?:/mnt/[a-z])?/(?:home|Users)/|(?<!\w)[A-Za-z]:[\\/](?:Users|Documents and Settings)[\\/])"
    rf"(?:[^\s/\\:'\"()<>,]+(?: [^\s/\\:'\"()<>,]+){{0,3}}(?=[\\/]|\Z)|[^\s/\\:'\"()<>,]+(?={_END}))",
    re.IGNORECASE,
)
FILE_URL = re.compile(r"file://(?:/(?=[A-Za-z]:)|[^/\s:]*(?=/))", re.IGNORECASE)
SHARE = re.compile(r"(?<![\w\\])\\\\[^\s\\/]+\\(?:[^\\/:'\"()<>,]+\\)*(?=[^\s/\\])")
# As torch.profiler's tensorboard_trace_handler names them: host, process, time; vLLM adds what the process does.
HANDLER = re.compile(r"[^\s/\\'\"()]+_(\d{1,10}(?:\.[a-z_]+)?)\.\d{6,20}(?=\.pt\.trace\.json)")
_WORD = r"[^\s/\\:'\"()<>,]+"
_FOLDER = rf"(?:(?!{_WORD}\.\w{{1,5}} ){_WORD}(?: {_WORD}){{0,3}}[\\/])"  # blanks, unless a file's name ends before one
PATH = re.compile(
    rf"(?<![\w./\\<)])(?:(?:\.{{1,2}}/)+(?:{_WORD}/)*|~[\\/]{_FOLDER}*|/(?!/){_WORD}[\\/]{_FOLDER}*"
    rf"|[A-Za-z]:[\\/](?!/){_FOLDER}*)(?=[^\s/\\])"
)
LIBRARY = re.compile(r"(?:site-packages|dist-packages|python3(?:\.\d+)?)[\\/](?:.*[\\/])?")


@lru_cache(maxsize=200_000)
def shareable(text: str) -> str:
    """One clean line; of an absolute path only the file's name, of a library's what lies inside the library; no host."""
    text = clean(text)
    if ".pt.trace.json" in text:
        text = HANDLER.sub(r"worker_\1", text)
    if "/" not in text and "\\" not in text:
        return text
    text = SHARE.sub(_inside_library, FILE_URL.sub("", text))
    return PATH.sub(_inside_library, HOME.sub("~", text))


def _inside_library(match: re.Match[str]) -> str:
    found = list(LIBRARY.finditer(match[0]))
    return re.split(r"packages[\\/]", match[0][found[-1].start() :])[-1] if found else ""
