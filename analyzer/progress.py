"""A progress bar for work over two seconds, on a terminal only."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from analyzer.units import percent

QUIET_S = 2.0
REDRAW_S = 0.1
BAR = 30


class Progress:
    """Shows what is being done and how much of it is; wipes itself away at the end.

    Call it with what is being done, and the share done from 0 to 1, or None where that is unknown.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.shows = stream.isatty()
        self.began = self.drawn = time.monotonic()
        self.length = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.length:
            self.stream.write("\r" + " " * self.length + "\r")
            self.stream.flush()

    def __call__(self, what: str, share: float | None) -> None:
        now = time.monotonic()
        if not self.shows or now - self.began < QUIET_S or now - self.drawn < REDRAW_S:
            return
        self.drawn = now
        if share is None:
            text = f"{what} …"
        else:
            filled = int(BAR * min(max(share, 0.0), 1.0))
            text = f"{what} [{'#' * filled}{'.' * (BAR - filled)}] {percent(share)}"
        self.stream.write("\r" + text.ljust(self.length))
        self.stream.flush()
        self.length = max(self.length, len(text))
