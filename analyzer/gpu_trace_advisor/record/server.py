"""`python -m gpu_trace_advisor.record --server URL --seconds N`: record a running vLLM or SGLang server by its own HTTP calls.

Both start and stop torch.profiler at POST /start_profile and /stop_profile, and write a file for each rank into a folder on
their side. vLLM has these calls only where it was started with --profiler-config (before 0.13: VLLM_TORCH_PROFILER_DIR), which
names the folder; it reads no body, and writes a file of its front end, without GPU work, besides. SGLang always has them, and
takes the folder from the body: `output_dir`, else SGLANG_TORCH_PROFILER_DIR, else /tmp. It answers 500 while it profiles already.
Sources: vLLM, "Profiling vLLM" and vllm/config/profiler.py; SGLang, "Benchmark and Profiling" and `ProfileReqInput`.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from gpu_trace_advisor.ingest import TRACE_NAMES

START_SECONDS = 60.0  # for the server to start its profiler
QUIET_SECONDS = 2.0  # without a change of size, and a file is whole
LOOK_SECONDS = 0.25
TELL_SECONDS = 10.0
HOW = (
    """start vLLM with --profiler-config '{"profiler": "torch", "torch_profiler_dir": "FOLDER"}' (before 0.13: with """
    "VLLM_TORCH_PROFILER_DIR=FOLDER in its environment); SGLang needs nothing"
)
HINTS = {
    401: "it wants a key, which is not sent: start it without one while it is profiled",
    403: "it wants a key, which is not sent: start it without one while it is profiled",
    404: HOW,
    405: HOW,
    500: "is it profiling already, or told no folder? see its log",
    501: HOW,
}
Tell = Callable[[str], None]


def record_server(
    url: str, seconds: float, folder: Path, patience: float, tell: Tell, *, there: str | None = None
) -> list[Path]:
    """Profile a server for some seconds; the recordings that it wrote to `folder`, which it knows as `there`.

    patience: seconds to wait for the profiler to stop, and for its files: writing them may take minutes.

    Raises:
        BadUsage: no such folder, or no URL of a server.
        NothingToAnalyse: the server refuses, dies, or writes nothing.
    """
    url = _address(url)
    if not folder.is_dir():
        raise BadUsage(f"{folder}: no such folder; name the one that the server writes to ({HOW})")
    before = _recordings(folder)
    _post(url, "start_profile", START_SECONDS, {"output_dir": there or str(folder.resolve()), "record_shapes": True})
    tell(f"recording for {seconds:g} s; send the requests that matter")
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:  # ends the recording early; a second one ends this program
        tell("interrupted: what was recorded until now is kept")
    tell(f"stopping the profiler; the server writes its files, which may take minutes (at most {patience:g} s)")
    _post(url, "stop_profile", patience)
    return _written(folder, before, patience, tell)


def _address(url: str) -> str:
    """Where the server's calls are: of an address for its clients, which ends in /v1, what is before that.

    Raises:
        BadUsage: it is no address of a server.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no port, or no address in brackets
        known = False
    if not known or not url.isprintable() or " " in url:
        raise BadUsage(f"--server {url}: expected an address such as http://127.0.0.1:8000")
    if "@" in parts.netloc:
        raise BadUsage("--server: a name and password in the address are not sent; give it without them")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix("/v1"), "", ""))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Nothing is asked of another server than the one that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, call: str, seconds: float, body: dict[str, object] | None = None) -> None:
    """Ask for something that has no answer but yes.

    Raises:
        NothingToAnalyse: there is no server, or it does not do it.
    """
    data, headers = (json.dumps(body).encode(), {"Content-Type": "application/json"}) if body else (b"", {})
    request = urllib.request.Request(f"{url}/{call}", data, headers, method="POST")
    shown = f"{urlsplit(url).hostname}: /{call}"
    try:
        urllib.request.build_opener(_NoRedirect).open(request, timeout=seconds).close()
    except urllib.error.HTTPError as error:
        with error:
            said = " ".join(error.read(200).decode("utf-8", errors="replace").split())
        hint = HINTS.get(error.code, "see the server's log")
        text = " ".join(filter(None, (str(error.code), error.reason, said[:80])))
        raise NothingToAnalyse(f"{shown}: the server answers {text}; {hint}") from None
    except TimeoutError:
        raise NothingToAnalyse(
            f"{shown}: no answer within {seconds:g} s; see the server's log, or give more --patience"
        ) from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise NothingToAnalyse(f"{shown}: {reason}; is the server running there?") from None
    except (OSError, HTTPException) as error:
        raise NothingToAnalyse(f"{shown}: the connection broke ({error}); did the server die?") from None


def _recordings(folder: Path) -> dict[Path, tuple[int, int]]:
    """The recordings below a folder with their size and time of change."""
    found = {}
    for path in folder.rglob("*"):
        if path.name.endswith(TRACE_NAMES) and path.is_file():
            status = path.stat()
            found[path] = status.st_size, status.st_mtime_ns
    return found


def _written(folder: Path, before: dict[Path, tuple[int, int]], patience: float, tell: Tell) -> list[Path]:
    """The new recordings, once none has changed for a while."""
    deadline, since, last = time.monotonic() + patience, time.monotonic(), dict[Path, tuple[int, int]]()
    told = since
    while time.monotonic() < deadline:
        new = {path: state for path, state in _recordings(folder).items() if before.get(path) != state}
        if new != last:
            since, last = time.monotonic(), new
        if new and time.monotonic() - since >= QUIET_SECONDS and all(size for size, _ in new.values()):
            return sorted(new)
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            written = sum(size for size, _ in new.values())
            tell(f"waiting for files in {folder}: {len(new)} so far, {written / 1e6:,.1f} MB")
        time.sleep(LOOK_SECONDS)
    if last:
        tell("the files still change; what is there is read")
        return sorted(last)
    raise NothingToAnalyse(
        f"{folder}: the server wrote no recording there within {patience:g} s; does it know this folder by "
        f"another name (--server-folder)? {HOW}"
    )
