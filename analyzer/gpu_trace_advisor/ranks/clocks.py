"""One clock for all ranks: what each recording says, checked and corrected by the collectives.

No rank leaves an all-reduce (all-gather, reduce-scatter, all-to-all, barrier) before the last one has come, and all leave
it together to within some microseconds. So the ends of the same collectives tell how far two clocks are apart, whatever the
arrivals were: the median of the differences, with an error from their spread. Where the differences grow over the recording
the clocks run at different speeds, which is corrected too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

Float64 = NDArray[np.float64]

AGREE_NS = 5_000  # clocks closer than this agree: collectives end that much apart by themselves
SPREADS = 3  # … and closer than so many times the error
DRIFT_NS = 1_000  # over the recording: less is no drift
FEWEST_FOR_DRIFT = 9  # collectives of a rank
ROUNDS = 3  # the middle over all ranks that they are held against shifts when they are corrected


@dataclass(frozen=True)
class Alignment:
    """r ranks."""

    offset_ns: Int64
    """[r] to be added to a rank's times at `about_ns`, besides its `clock_ns`."""
    drift: Float64
    """[r] … and so much more for every ns since then."""
    about_ns: int
    error_ns: Int64
    """[r] how far the offset may be off; -1 nothing tells."""
    by_clock: Bool
    """[r] the recording's own clock is used as it is."""
    possible: Bool
    """[r] the rank can be compared with the others."""
    how: str
    """`clock`, `collectives`, `clock and collectives`, `one recording` or `not`."""

    def aligned(self, rank: Int64, ns: Int64) -> Int64:
        """[n] times of these ranks, with their `clock_ns`, on the clock that all share."""
        return _straightened(ns, rank, self.offset_ns, self.drift, self.about_ns)


def _straightened(ns: Int64, rank: Int64, offset: Int64, drift: Float64, about: int) -> Int64:
    moved = ns + offset[rank]
    return np.asarray(moved + np.rint(drift[rank] * (moved - about)).astype(np.int64))


def align(rank: Int64, instance: Int64, end_ns: Int64, clocked: Bool, local: Int64) -> Alignment:
    """The offsets of ranks from the ends of n symmetric collectives.

    `rank`, `instance` and `end_ns` are [n]: who, which one, and when it ended with the recording's clock added; `clocked`
    [r] whether there is such a clock; `local` [r] which recording, since ranks of one recording share its clock.
    """
    count = len(clocked)
    reference = int(np.argmax(np.bincount(rank, minlength=count))) if len(rank) else 0
    offset, drift, error, about = _measured(rank, instance, end_ns, count, reference)
    one = local == local[reference]
    # A recording's own clock is kept where the collectives agree with it.
    agree = clocked & ((error == NONE) | (np.abs(offset) <= np.maximum(AGREE_NS, SPREADS * error)))
    keep = (agree & clocked[reference]) | one
    offset[keep] = 0
    error[one], drift[one] = 0, 0.0
    possible = one | (error != NONE) | (clocked & clocked[reference])
    corrected = ~keep & (error != NONE)
    if one.all():
        how = "one recording"
    elif not possible[~one].any():
        how = "not"
    elif corrected.all() or not clocked.any():
        how = "collectives"
    elif ((error != NONE) & ~one).any():
        how = "clock and collectives"
    else:
        how = "clock"
    return Alignment(offset, drift, about, error, keep & clocked, possible, how)


def _measured(
    rank: Int64, instance: Int64, end_ns: Int64, count: int, reference: int
) -> tuple[Int64, Float64, Int64, int]:
    """Offset, drift and error of each rank that can be tied to the one with most collectives, through others if need be, and
    the time that they are about; the error of the others is -1."""
    offset, drift, error = np.zeros(count, np.int64), np.zeros(count), np.full(count, NONE, np.int64)
    if not len(rank):
        return offset, drift, error, 0
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(count + 1))
    mine = [by_rank[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    known = np.zeros(int(instance.max()) + 1, np.bool_)
    when = np.zeros(len(known), np.int64)
    offsets = {reference: 0}
    known[instance[mine[reference]]] = True
    when[instance[mine[reference]]] = end_ns[mine[reference]]
    left = [r for r in range(count) if r != reference and len(mine[r])]
    while left:
        waiting = []
        for r in left:
            shared = mine[r][known[instance[mine[r]]]]
            if not len(shared):
                waiting.append(r)
                continue
            offsets[r] = int(np.median(when[instance[shared]] - end_ns[shared]))
            new = mine[r][~known[instance[mine[r]]]]
            known[instance[new]] = True
            when[instance[new]] = end_ns[new] + offsets[r]
        if len(waiting) == len(left):
            break
        left = waiting
    about = int(np.median(end_ns[mine[reference]]))
    offset[list(offsets)] = list(offsets.values())
    tied = np.isin(rank, list(offsets))
    # Once more against the median over all ranks, which no single one's noise decides.
    for _ in range(ROUNDS):
        now = _straightened(end_ns, rank, offset, drift, about)
        usual = _medians(instance, now, tied, len(known))
        for r in offsets:
            by, faster, spread = _line(now[mine[r]] - about, now[mine[r]] - usual[instance[mine[r]]])
            offset[r] -= by
            drift[r] -= faster
            error[r] = spread
    base = offset[reference], drift[reference]
    offset[list(offsets)] -= base[0]
    drift[list(offsets)] -= base[1]
    return offset, drift, error, about


def _medians(instance: Int64, value: Int64, mask: Bool, count: int) -> Int64:
    """[count] median of the values of each instance."""
    at = np.flatnonzero(mask)
    order = at[np.lexsort((value[at], instance[at]))]
    if not len(order):
        return np.zeros(count, np.int64)
    low = np.searchsorted(instance[order], np.arange(count), side="left")
    high = np.maximum(np.searchsorted(instance[order], np.arange(count), side="right"), low + 1)
    a, b = (value[order[np.minimum(middle, len(order) - 1)]] for middle in ((low + high - 1) // 2, (low + high) // 2))
    return np.asarray(a + (b - a) // 2, np.int64)


def _line(time: Int64, late: Int64) -> tuple[int, float, int]:
    """By how much a rank is late at time 0, how much more it gets for every ns, and how far the former may be off.

    The slope lies between the medians of the first and the last third in time, and is 0 where the spread explains it. Of few
    collectives the error is the largest difference; else half of what most differ by, shrunk by their number.
    """
    order = np.argsort(time, kind="stable")
    at, by = time[order].astype(np.float64), late[order].astype(np.float64)
    n, slope = len(by), 0.0
    third = n // 3
    if n >= FEWEST_FOR_DRIFT:
        ends = (slice(None, third), slice(-third, None))
        (t0, t1), (y0, y1) = ([float(np.median(column[part])) for part in ends] for column in (at, by))
        slope = (y1 - y0) / (t1 - t0) if t1 > t0 else 0.0
        rest = by - slope * at
        spread = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
        if abs(y1 - y0) <= max(DRIFT_NS, SPREADS * 1.2533 * spread * np.sqrt(2 / third)):
            slope = 0.0
    rest = by - slope * at
    middle = float(np.median(rest))
    spread = 1.4826 * float(np.median(np.abs(rest - middle)))
    if n < 3:
        return round(middle), slope, int(np.ceil(max(spread, float(np.abs(rest - middle).max()))))
    return round(middle), slope, int(np.ceil(max(spread / np.sqrt(n), 1.0)))
