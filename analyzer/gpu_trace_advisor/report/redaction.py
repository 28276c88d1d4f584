"""Texts for files that people send on: what a trace says, without what it tells of the machine."""

from __future__ import annotations

import re
from functools import lru_cache

from gpu_trace_advisor.sanitize import clean

_CHARACTER = r"(?:[^\s/\\:'\"()<>,]|(?<=\w)'(?=\w))"  # of a folder's or file's name; O'Neil has a quote in it
_WORD = rf"{_CHARACTER}+"
_END = r"[\s'\"():,;<>|]|\Z"
# A home and whose it is: names of people may hold blanks, where a folder or file follows.
HOME = re.compile(
    r"(?:(?<![\w.])(?:/mnt/[a-z])?/(?:home|Users)/|(?<!\w)[A-Za-z]:[\\/]+(?:Users|Documents and Settings)[\\/]+)"
    rf"(?:{_WORD}(?: {_WORD}){{0,3}}(?=[\\/]|\Z)|{_WORD}(?={_END}))",
    re.IGNORECASE,
)
FILE_URL = re.compile(r"file://(?:/(?=[A-Za-z]:)|[^/\s:]*(?=/))", re.IGNORECASE)
ENCODED = re.compile(r"%(?:2f|5c)", re.IGNORECASE)  # slashes in a URL
WHO = re.compile(r"(?<=://)[^\s/@]{1,255}@")
REMOTE = re.compile(
    r"(?<![\w./@-])(?:[\w.-]{1,64}@)?[\w-][\w.-]{1,254}:(?=[/~]\w)"
)  # as ssh names files of other machines
# As torch.profiler's tensorboard_trace_handler names them: host and process, or what somebody chose, then the time; vLLM adds
# what the process does.
HANDLER = re.compile(r"(?<![^\s/\\'\"()])([^\s/\\'\"()]{1,255})\.\d{6,20}(?=\.pt\.trace\.json)")
RANKS = re.compile(r"(?:(?:dp|pp|tp|ep|cp|sp|rank)[_-]?\d{1,6}[_-]?)+", re.IGNORECASE)
PROCESS = re.compile(r"(?:_|rank)[-_]?(\d{1,10}(?:\.[a-z_]{1,40})?)\Z")
_FOLDER = (
    rf"(?:(?!{_WORD}\.\w{{1,5}} ){_WORD}(?: {_WORD}){{0,3}}[\\/]+)"  # blanks, unless a file's name ends before one
)
SHARE = re.compile(
    rf"(?<![\w\\])(?<!\b[A-Za-z]:)\\{{2,4}}[^\s\\/]+\\+{_FOLDER}*(?=[^\s/\\])|(?<![\w:/])//{_WORD}/{_FOLDER}*(?=[^\s/\\])"
)
STORE = re.compile(rf"(?<!\w)(?!https?:)[A-Za-z][\w+.-]{{1,40}}://{_FOLDER}*(?=[^\s/\\])", re.IGNORECASE)
PATH = re.compile(
    rf"(?<![\w./\\<)])(?:(?:\.{{1,2}}/)+(?:{_WORD}/)*|~[\w.-]*[\\/]+{_FOLDER}*|/(?!/){_WORD}[\\/]{_FOLDER}*"
    rf"|[A-Za-z]:[\\/]+(?!/){_FOLDER}*)(?=[^\s/\\])"
)
LIBRARY = re.compile(r"(?:site-packages|dist-packages|python3(?:\.\d+)?)[\\/](?:.*[\\/])?")


@lru_cache(maxsize=200_000)
def shareable(text: str) -> str:
    """One clean line; of an absolute path only the file's name, of a library's what lies inside the library; no host."""
    text = clean(text)
    if ".pt.trace.json" in text:
        text = HANDLER.sub(_worker, text)
    if "%" in text:
        text = ENCODED.sub(lambda found: "/" if found[0] in ("%2f", "%2F") else "\\", text)
    if "/" not in text and "\\" not in text:
        return text
    text = STORE.sub("", WHO.sub("", FILE_URL.sub("", text)))
    text = SHARE.sub(_inside_library, REMOTE.sub("", text))
    return PATH.sub(_inside_library, HOME.sub("~", text))


def _worker(name: re.Match[str]) -> str:
    if RANKS.fullmatch(name[1]):
        return name[0]
    process = PROCESS.search(name[1][-60:])
    return f"worker_{process[1]}" if process else "worker"


def _inside_library(match: re.Match[str]) -> str:
    found = list(LIBRARY.finditer(match[0]))
    return re.split(r"packages[\\/]", match[0][found[-1].start() :])[-1] if found else ""
