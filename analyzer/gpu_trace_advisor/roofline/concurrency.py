"""Time in which several things run, divided between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime import compiled

Int64 = NDArray[np.int64]


def shares(start: Int64, end: Int64) -> Int64:
    """[k] ns of each interval (sorted by start, not empty): time in which n run is divided by n, the rest of the division
    goes to the longest of them. They add up to the length of the union."""
    if not len(start):
        return np.empty(0, np.int64)
    if (start[1:] >= end[:-1]).all():
        return end - start
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] >= reach[:-1]])
    alone = opens & np.concatenate([opens[1:], [True]])
    result = np.where(alone, end - start, 0)
    crowd = np.flatnonzero(~alone)
    if len(crowd):
        part, running = np.zeros(len(crowd), np.int64), np.empty(len(crowd), np.int64)
        compiled.call(divide, len(crowd), (start[crowd], end[crowd]), (running, part))
        result[crowd] = part
    return result


def divide(start: Any, end: Any, running: Any, part: Any) -> None:
    """Give each instant to the intervals (sorted by start) that run in it, equally; numba compiles it for large traces.

    `running` has room for all of them.
    """
    n = len(start)
    now = 0
    i = 0
    count = 0  # the first so many of `running` run, in order of their start
    while i < n or count > 0:
        if count == 0:
            now = start[i]
        while i < n and start[i] <= now:
            running[count] = i
            count += 1
            i += 1
        until = end[running[0]]
        longest = running[0]
        for k in range(count):
            r = running[k]
            until = min(until, end[r])
            if end[r] - start[r] > end[longest] - start[longest]:
                longest = r
        if i < n:
            until = min(until, start[i])
        each = (until - now) // count
        part[longest] += (until - now) - each * count
        left = 0
        for k in range(count):
            r = running[k]
            part[r] += each
            if end[r] > until:
                running[left] = r
                left += 1
        count = left
        now = until
