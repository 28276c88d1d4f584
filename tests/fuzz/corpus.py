"""Inputs that failed once, made as small as they go on failing: kept as JSON in corpus/, and run as tests."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import Input
from tests.hostile import places

FOLDER = Path(__file__).with_name("corpus")


def kept() -> list[Path]:
    return sorted(FOLDER.glob("*.json"))


def load(path: Path) -> Input:
    plain = json.loads(path.read_text("utf-8"))
    files = {
        name: text.encode() if isinstance(text, str) else base64.b64decode(text[0])
        for name, text in plain["files"].items()
    }
    return Input(plain["kind"], plain["through"], files, tuple(plain["arguments"]))


def keep(given: Input, failure: str) -> Path:
    """Write it under a name that its fault gives, so that one fault is kept once."""
    files: dict[str, Any] = {}
    for name, data in given.files.items():
        try:
            files[name] = data.decode()
        except UnicodeDecodeError:
            files[name] = [base64.b64encode(data).decode()]
    plain = {
        "kind": given.kind,
        "failed": failure,
        "through": given.through,
        "arguments": given.arguments,
        "files": files,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{given.through}-{hashlib.sha256(failure.encode()).hexdigest()[:10]}.json"
    path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return path


def smaller(given: Input, fails: Callable[[Input], bool], seconds: float = 20.0) -> Input:
    """The smallest of its kind that was found in so many seconds to fail likewise."""
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in _candidates(given):
            if time.monotonic() > end:
                break
            if fails(candidate):
                given, changed = candidate, True
                break
    return given


def _candidates(given: Input) -> Iterator[Input]:
    for name, data in given.files.items():
        if len(given.files) > 1 and name in given.arguments:
            others = {other: text for other, text in given.files.items() if other != name}
            yield replace(given, files=others, arguments=tuple(a for a in given.arguments if a != name))
        for less in _less(data):
            yield replace(given, files={**given.files, name: less})
    for i in range(len(given.arguments) - 1):
        if given.arguments[i].startswith("--"):
            yield replace(given, arguments=given.arguments[:i] + given.arguments[i + 2 :])


def _less(data: bytes) -> Iterator[bytes]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        events = document.get("traceEvents")
        if isinstance(events, list) and len(events) > 1:
            size = len(events)
            while size > 1:
                size = (size + 1) // 2
                for at in range(0, len(events), size):
                    yield json.dumps({**document, "traceEvents": events[:at] + events[at + size :]}).encode()
                if size == 1:
                    break
        for path in places(document)[1:]:
            yield json.dumps(_without(document, path)).encode()
        return
    if len(data) > 200_000:
        return
    size = len(data)
    while size > max(1, len(data) // 64):
        size = (size + 1) // 2
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]


def _without(document: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(document, dict):
        return {
            k: _without(v, path[1:]) if k == path[0] else v
            for k, v in document.items()
            if k != path[0] or len(path) > 1
        }
    return [
        _without(v, path[1:]) if i == path[0] else v for i, v in enumerate(document) if i != path[0] or len(path) > 1
    ]
