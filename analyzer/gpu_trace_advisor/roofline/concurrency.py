"""Time in which several things run, divided between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime import compiled, loops

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
        compiled.call(loops.divide, (start[crowd], end[crowd]), (running, part))
        result[crowd] = part
    return result
