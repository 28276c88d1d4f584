"""Where recordings lie: files, folders, glob patterns, http(s) URLs, and object stores through fsspec.

Credentials are taken as those libraries take them (environment, configuration files) and never shown: a URL is printed
without its user, password and query.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gpu_trace_advisor.errors import BadUsage, UnreadableTrace
from gpu_trace_advisor.ingest import NSIGHT_STARTS, TRACE_NAMES, find_traces, natural
from gpu_trace_advisor.units import read_count

WEB = ("http", "https")
MOST_FETCHED = 64 << 30  # bytes of an answer: a server may send without end
TIMEOUT_S = 60
MOST_LISTED = 64 << 20  # bytes of a page about a folder
PATTERN = ("*", "?", "[")


def is_remote(place: str) -> bool:
    """A URL rather than a path."""
    return "://" in place


def shown(place: str) -> str:
    """A place as it may be printed: without credentials."""
    if not is_remote(place):
        return place
    try:
        parts = urlsplit(place)
    except ValueError:  # [ in the host
        return f"{place.partition('://')[0]}://…"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def name_of(place: str) -> str:
    """The file's name without its folder."""
    return PurePosixPath(urlsplit(place).path).name if is_remote(place) else Path(place).name


def labels(places: Sequence[str]) -> dict[str, str]:
    """What each recording is called: its file's name, and of those of one name as many of the folders above it as tell them
    apart."""
    parts, depth = {place: _parts(place) for place in places}, dict.fromkeys(places, 1)
    while True:
        found = {place: "/".join(parts[place][-depth[place] :]) for place in places}
        often = Counter(found.values())
        alike = [place for place in places if often[found[place]] > 1 and depth[place] < len(parts[place])]
        if not alike:
            return found
        for place in alike:
            depth[place] += 1


def _parts(place: str) -> tuple[str, ...]:
    """Folders and file, without the root."""
    path = PurePosixPath(urlsplit(place).path) if is_remote(place) else Path(place).absolute()
    return tuple(part for part in path.parts if part != path.anchor)


def once(places: Iterable[str]) -> list[str]:
    """The places without those that are one of the others again."""
    return list({place if is_remote(place) else os.path.realpath(place): place for place in places}.values())


def find_places(given: str) -> list[str]:
    """The recordings that one argument stands for, sorted by name with numbers as numbers.

    Raises:
        UnreadableTrace: nothing there, or it cannot be looked into.
        BadUsage: no name; or fsspec, or what it needs for this kind of store, is not installed.
    """
    if not is_remote(given):
        if not given.strip():
            raise BadUsage("a trace without a name; give a file, folder, pattern or URL")
        if not _can_be_a_name(given):
            raise UnreadableTrace(f"{given}: no file can have this name")
        try:
            return _find_files(given)
        except OSError as error:
            raise UnreadableTrace(f"{given}: {error.strerror or error}") from None
    try:
        scheme = urlsplit(given).scheme.lower()
    except ValueError:
        raise UnreadableTrace(f"{shown(given)}: not a URL, as https://HOST/FILE is") from None
    if scheme in WEB:
        return _listed(given) if given.endswith("/") or any(c in name_of(given) for c in PATTERN) else [given]
    store, path_in = _store(given)
    try:
        if any(c in path_in for c in PATTERN):
            names = [str(name) for name in store.glob(path_in)]
        elif store.isdir(path_in):
            names = [str(name) for name in store.ls(path_in, detail=False)]
            names = [name for name in names if name.endswith(TRACE_NAMES)]
        else:
            return [given]
    except Exception as error:  # each store has its own errors
        raise UnreadableTrace(f"{shown(given)}: cannot be listed: {_reason(error)}") from None
    if not names:
        raise UnreadableTrace(f"{shown(given)}: no traces there; expected names ending in {', '.join(TRACE_NAMES)}")
    return [str(store.unstrip_protocol(name)) for name in sorted(names, key=lambda name: natural(PurePosixPath(name)))]


def _can_be_a_name(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _listed(given: str) -> list[str]:
    """The recordings that a web server's page about a folder links to, those that a pattern in its last part matches."""
    from fnmatch import fnmatchcase
    from html import unescape
    from urllib.parse import unquote, urljoin
    from urllib.request import Request

    parts = urlsplit(given)
    folder = urlunsplit((parts.scheme, parts.netloc, parts.path.rpartition("/")[0] + "/", parts.query, ""))
    pattern = unquote(name_of(given)) if not given.endswith("/") else ""
    url, headers = _without_credentials(folder)
    try:
        with _opener().open(Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
            page = answer.read(MOST_LISTED).decode("utf-8", "replace")
    except Exception as error:  # each kind of connection has its own errors
        raise UnreadableTrace(f"{shown(given)}: cannot be listed: {_reason(error)}") from None
    names = set()
    for link in re.findall(r"""href\s*=\s*["']([^"']+)""", page, re.IGNORECASE):
        found = urlsplit(urljoin(url, unescape(link)))
        head, _, name = found.path.rpartition("/")
        if (found.netloc, f"{head}/") == (urlsplit(url).netloc, urlsplit(url).path) and name.endswith(TRACE_NAMES):
            names.add(name)
    chosen = [name for name in names if not pattern or fnmatchcase(unquote(name), pattern)]
    if not chosen:
        raise UnreadableTrace(
            f"{shown(given)}: no traces there; expected links to names ending in {', '.join(TRACE_NAMES)}"
        )
    base = urlsplit(folder)
    return [
        urlunsplit((base.scheme, base.netloc, base.path + name, base.query, ""))
        for name in sorted(chosen, key=lambda name: natural(PurePosixPath(name)))
    ]


def _find_files(given: str) -> list[str]:
    path = Path(given if given != "-" else "/dev/stdin")
    if any(c in given for c in PATTERN) and not path.exists():
        # A pipe or a device waits for ever, or has no end: only one that is named itself is read.
        found = sorted((one for one in _matching(given) if one.is_file() or one.is_dir()), key=natural)
        if not found:
            raise UnreadableTrace(f"{given}: no file matches this pattern")
        return [str(file) for one in found for file in (find_traces(one) if one.is_dir() else [one])]
    return [str(file) for file in find_traces(path)]


def _matching(pattern: str) -> Iterator[Path]:
    """Paths that a pattern matches, from the first folder that is none itself."""
    parts = Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if any(c in part for c in PATTERN))
    return Path(*parts[:fixed]).glob(str(Path(*parts[fixed:])))


GZIP = b"\x1f\x8b"
EVENTS = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"')
WRITTEN = b'{"displayTimeUnit":"ns","otherData":{"writer":"gpu-trace-advisor"}'
"""How the tracks begin that this project writes."""


def is_recording(path: Path) -> bool:
    """Whether a file that is there looks like a recording, by its beginning."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(1 << 16)
    except (OSError, ValueError):  # whoever writes there says so
        return False
    if start.startswith((GZIP, *NSIGHT_STARTS)):
        return True
    body = start.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")
    if body.startswith(b"[") and b'"ph"' in body:
        return True
    return body.startswith(b"{") and not body.startswith(WRITTEN) and any(key in body for key in EVENTS)


def same_file(one: Path | str, other: Path | str) -> bool:
    """Whether two paths name one file, which need not be there; a pipe or a device may be named twice."""
    if is_remote(str(one)) or is_remote(str(other)):
        return False
    try:
        if Path(one).exists() and not Path(one).is_file():
            return False
        if os.path.realpath(one) == os.path.realpath(other):
            return True
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return False


def bytes_of(place: str) -> int | None:
    """Size of a local recording; None where asking would cost a request."""
    try:
        return None if is_remote(place) else Path(place).stat().st_size
    except OSError:
        return None


@contextmanager
def local(place: str) -> Iterator[Path]:
    """The recording as a file here; a copy of what lies elsewhere is gone afterwards.

    Raises:
        UnreadableTrace: it cannot be fetched.
    """
    if not is_remote(place):
        yield Path(place)
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="advise-") as folder:
        name = name_of(place)[-200:]  # an address may be longer than a file's name
        path = Path(folder) / (name if name.strip(".") else "trace.json")
        try:
            _fetch(place, path)
        except (UnreadableTrace, BadUsage):
            raise
        except Exception as error:  # each store has its own errors
            raise UnreadableTrace(f"{shown(place)}: cannot be fetched: {_reason(error)}") from None
        yield path


def _fetch(place: str, path: Path) -> None:
    if urlsplit(place).scheme.lower() in WEB:
        from urllib.error import HTTPError
        from urllib.request import Request

        url, headers = _without_credentials(place)
        try:
            answer = _opener().open(Request(url, headers=headers), timeout=TIMEOUT_S)  # only what the user named
        except HTTPError as error:
            error.close()  # it is the answer, too
            raise
        with answer, path.open("wb") as file:
            length = read_count(answer.headers.get("Content-Length", "")) or 0
            if length > MOST_FETCHED:
                raise UnreadableTrace(
                    f"{shown(place)}: {length >> 30:,} GiB, more than the {MOST_FETCHED >> 30} that are fetched"
                )
            left = MOST_FETCHED
            while block := answer.read(1 << 20):
                left -= len(block)
                if left < 0:
                    raise UnreadableTrace(f"{shown(place)}: longer than the {MOST_FETCHED >> 30} GiB that are fetched")
                file.write(block)
            got = MOST_FETCHED - left
            if got < length:
                raise UnreadableTrace(f"{shown(place)}: the download broke off after {got:,} of {length:,} bytes")
        return
    store, name = _store(place)
    store.get_file(name, str(path))


def _opener() -> Any:
    """Follows where a server sends it, but takes the password along to the same host alone."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class Redirected(HTTPRedirectHandler):
        def redirect_request(self, req: Any, *rest: Any) -> Any:
            new = super().redirect_request(req, *rest)
            if new is not None and (new.type, new.host) != (req.type, req.host):
                new.remove_header("Authorization")
            return new

    return build_opener(Redirected)


def _without_credentials(place: str) -> tuple[str, dict[str, str]]:
    """The URL as servers want it, and the headers with its user and password.

    Raises:
        UnreadableTrace: it names no host, or a port that is none.
    """
    from base64 import b64encode
    from urllib.parse import unquote

    headers = {"User-Agent": "advise"}
    try:
        parts = urlsplit(place)
        if not parts.hostname or (parts.port is not None and not parts.port):
            raise ValueError
    except ValueError:
        raise UnreadableTrace(f"{shown(place)}: not a URL with a host, as https://HOST/FILE is") from None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path or "/", parts.query, "")), headers


def _store(place: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise BadUsage(f"{shown(place)}: object stores need fsspec: pip install 'gpu-trace-advisor[cluster]'") from None
    try:
        store, path = fsspec.core.url_to_fs(place)
    except (ImportError, ValueError) as error:
        raise BadUsage(f"{shown(place)}: {_reason(error)}") from None
    return store, str(path)


def _reason(error: Exception) -> str:
    """What went wrong, without anything that may hold a credential."""
    code = getattr(error, "code", None)
    if isinstance(error, ImportError | FileNotFoundError | PermissionError):
        return {"FileNotFoundError": "no such file", "PermissionError": "access denied"}.get(
            type(error).__name__, str(error).splitlines()[0]
        )
    response = getattr(error.__cause__, "response", None)  # of S3, behind an error of the system
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
        if isinstance(status, int):
            return f"the store answers with status {status}"
    reason = getattr(error, "reason", None)
    if isinstance(reason, OSError) and reason.strerror:  # of a connection: the system's own words
        return reason.strerror
    return f"{type(error).__name__}{f' {code}' if isinstance(code, int) else ''}"
