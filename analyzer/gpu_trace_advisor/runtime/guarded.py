"""What users bring along, patterns and rules: it may raise anything, and it may never end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
LONGEST_S = 60.0  # for a file of somebody's own rules, or one of them on one device


class TookTooLong(Exception):
    """It was not done in its time."""


class Failed(Exception):
    """What somebody's own code raised, in one line."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End Python code and the matching of patterns after so many seconds; a call into other C code is ended when it returns.

    Only in the main thread and where the system has interval timers: elsewhere there is no limit. A shorter limit around this
    one stays.

    Raises:
        TookTooLong: it was not done by then.
    """
    around = signal.getitimer(signal.ITIMER_REAL)[0] if hasattr(signal, "setitimer") else 0.0
    if not hasattr(signal, "setitimer") or current_thread() is not main_thread() or 0 < around <= seconds:
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TookTooLong(f"not done after {seconds:g} s")

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    _, every = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if around:
            signal.setitimer(signal.ITIMER_REAL, max(around - (time.monotonic() - began), 0.001), every)


def attempt(work: Callable[[], T]) -> T:
    """What somebody's own code answers.

    Raises:
        Failed: it raised something, `SystemExit` and a `KeyboardInterrupt` of its own among them, or took longer.
        KeyboardInterrupt: somebody pressed Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGINT)
    asked = pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        assert callable(handler)
        handler(number, frame)

    if callable(handler) and current_thread() is main_thread():
        asked = True
        signal.signal(signal.SIGINT, note)
    try:
        with time_limit(LONGEST_S):
            return work()
    except BaseException as error:
        if pressed:
            raise KeyboardInterrupt from None
        raise Failed(described(error)) from error
    finally:
        if asked:
            signal.signal(signal.SIGINT, handler)


def described(error: BaseException) -> str:
    """Its kind and what it says; an exception of somebody's own may fail even at that."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
