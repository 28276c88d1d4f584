"""A progress bar for work over two seconds, on a terminal only."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TextIO

from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import percent

QUIET_S = 2.0
REDRAW_S = 0.1
BAR = 30


class Progress:
    """Shows what is being done and how much of it is; wipes itself away at the end.

    Call it with what is being done, and the share done from 0 to 1, or None where that is unknown. After two seconds the
    last that was told is shown, however long nothing else is.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.shows = stream.isatty()
        self.began = self.drawn = time.monotonic()
        self.length = 0
        self.told: tuple[str, float | None] = ("reading", None)

    def __enter__(self) -> Progress:
        if self.shows:
            from threading import Lock, Timer

            self.lock = Lock()
            self.timer = Timer(QUIET_S, self._draw)
            self.timer.daemon = True
            self.timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.shows:
            return
        with self.lock:
            self.shows = False
            self.timer.cancel()
            if self.length:
                self.stream.write("\r" + " " * self.length + "\r")
                self.stream.flush()

    def __call__(self, what: str, share: float | None) -> None:
        self.told = what, share
        now = time.monotonic()
        if self.shows and now - self.began >= QUIET_S and now - self.drawn >= REDRAW_S:
            self._draw()

    def _draw(self) -> None:
        with self.lock:
            if not self.shows:
                return
            self.drawn = time.monotonic()
            what, share = clean(self.told[0]), self.told[1]
            if share is None:
                text = f"{what} …"
            else:
                filled = int(BAR * min(max(share, 0.0), 1.0))
                text = f"{what} [{'#' * filled}{'.' * (BAR - filled)}] {percent(share)}"
            self.length = max(self.length, len(text))
            with suppress(OSError, ValueError):  # the terminal is gone
                self.stream.write("\r" + text.ljust(self.length))
                self.stream.flush()
