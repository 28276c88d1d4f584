"""Files that this project writes and small ones that it reads: whole or not at all, and bounded."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_trace_advisor.errors import AdviseError, BadUsage

SMALL = 1 << 20  # of a file that people write by hand
SAVED = 256 << 20  # of one that this project wrote
BLOCK = 1 << 20


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all; what is no file, such as a pipe or a device, is written to.

    A link stays one: what it leads to is replaced. The new file has the permissions of the one that it replaces.

    Raises:
        AdviseError: the place cannot be written.
    """
    data = text.encode("utf-8", errors="replace")  # a file's name need not be UTF-8
    beside: Path | None = None
    try:
        _refuse_planted_link(path)
        target = path.resolve()
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as file:
                file.write(data)
            return
        beside = target.with_name(f".advise-{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(beside, flags, 0o666), "wb") as file:
            if mode is not None:
                with suppress(OSError):
                    beside.chmod(stat.S_IMODE(mode))
            file.write(data)
        beside.replace(target)
        beside = None
    except (OSError, ValueError, RuntimeError) as error:  # a name with a zero byte; links in a circle
        reason = error.strerror if isinstance(error, OSError) else None
        raise AdviseError(f"{path}: cannot be written: {reason or error}") from None
    finally:
        if beside is not None:
            with suppress(OSError):
                beside.unlink()


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _refuse_planted_link(path: Path) -> None:
    """As the kernel does where it is told to: in a folder that everybody can write, only links of one's own are followed."""
    if not path.is_symlink() or not hasattr(os, "geteuid"):
        return
    folder, owner = path.parent.stat(), path.lstat().st_uid
    if folder.st_mode & stat.S_IWOTH and owner not in (os.geteuid(), folder.st_uid):
        raise OSError(errno.EACCES, "a link of somebody else in a folder that everybody can write")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time is inside for this path; where the system or the folder allows no lock, nobody waits.

    The lock is on the folder, so that nothing is left beside the file.
    """
    try:
        import fcntl

        folder = os.open(path.parent, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read_small(path: Path, most: int = SMALL) -> str:
    """The text of a file that is small by its nature.

    Raises:
        BadUsage: it cannot be read, is longer than `most` bytes or no UTF-8.
    """
    data = bytearray()
    try:
        with path.open("rb") as file:
            while len(data) <= most and (block := file.read(min(BLOCK, most + 1 - len(data)))):
                data += block
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise BadUsage(f"{path}: {reason or error}") from None
    if len(data) > most:
        raise BadUsage(f"{path}: longer than {most >> 20} MiB, which no such file is")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadUsage(f"{path}: no UTF-8: {error}") from None
