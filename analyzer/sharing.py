"""Time in which several things run, divided between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer import compiled

Int64 = NDArray[np.int64]


def shares(start: Int64, end: Int64) -> Int64:
    """[k] ns of each interval (sorted by start, not empty): time in which n run is divided by n, the rest of the division
    goes to the longest of them. They add up to the length of the union."""
    if not len(start):
        return np.empty(0, np.int64)
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] >= reach[:-1]])
    alone = opens & np.concatenate([opens[1:], [True]])
    result = np.where(alone, end - start, 0)
    crowd = np.flatnonzero(~alone)
    if len(crowd):
        part = np.zeros(len(crowd), np.int64)
        compiled.call(divide, len(crowd), (start[crowd], end[crowd]), (part,))
        result[crowd] = part
    return result


def divide(start: Any, end: Any, part: Any) -> None:
    """Give each instant to the intervals (sorted by start) that run in it, equally; numba compiles it for large traces."""
    running = [0] * 0
    i = 0
    now = 0
    n = len(start)
    while i < n or len(running) > 0:
        if len(running) == 0:
            now = start[i]
        while i < n and start[i] <= now:
            running.append(i)
            i += 1
        until = end[running[0]]
        for r in running:
            until = min(until, end[r])
        if i < n:
            until = min(until, start[i])
        each = (until - now) // len(running)
        longest = running[0]
        for r in running:
            part[r] += each
            if end[r] - start[r] > end[longest] - start[longest]:
                longest = r
        part[longest] += (until - now) - each * len(running)
        now = until
        running = [r for r in running if end[r] > now]
