"""One clock for all ranks: what each recording says, checked and corrected by the collectives.

No rank leaves an all-reduce (all-gather, reduce-scatter, all-to-all, barrier) before the last one has come, and all leave
it together to within some microseconds. So the ends of the same collectives tell how far two clocks are apart, whatever the
arrivals were: the median of the differences, with an error from their spread.
"""

from __future__ import annotations

import numpy as np

from analyzer.classes import dataclass
from analyzer.trace import NONE, Bool, Int64

AGREE_NS = 5_000  # clocks closer than this agree: collectives end that much apart by themselves
SPREADS = 3  # … and closer than so many times the error


@dataclass(frozen=True)
class Alignment:
    """r ranks."""

    offset_ns: Int64
    """[r] to be added to a rank's times, besides its `clock_ns`."""
    error_ns: Int64
    """[r] how far the offset may be off; -1 nothing tells."""
    by_clock: Bool
    """[r] the recording's own clock is used as it is."""
    possible: Bool
    """[r] the rank can be compared with the others."""
    how: str
    """`clock`, `collectives`, `clock and collectives`, `one recording` or `not`."""


def align(rank: Int64, instance: Int64, end_ns: Int64, clocked: Bool, local: Int64) -> Alignment:
    """The offsets of ranks from the ends of n symmetric collectives.

    `rank`, `instance` and `end_ns` are [n]: who, which one, and when it ended with the recording's clock added; `clocked`
    [r] whether there is such a clock; `local` [r] which recording, since ranks of one recording share its clock.
    """
    count = len(clocked)
    offset, error = np.zeros(count, np.int64), np.full(count, NONE, np.int64)
    measured = _measured(rank, instance, end_ns, count)
    reference = int(np.argmax(np.bincount(rank, minlength=count))) if len(rank) else 0
    for r, (by, spread) in measured.items():
        offset[r], error[r] = by, spread
    one = local == local[reference]
    # A recording's own clock is kept where the collectives agree with it.
    agree = clocked & ((error == NONE) | (np.abs(offset) <= np.maximum(AGREE_NS, SPREADS * error)))
    keep = (agree & clocked[reference]) | one
    offset[keep] = 0
    error[one] = 0
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
    return Alignment(offset, error, keep & clocked, possible, how)


def _measured(rank: Int64, instance: Int64, end_ns: Int64, count: int) -> dict[int, tuple[int, int]]:
    """Offset and error of each rank that can be tied to the one with most collectives, through others if need be."""
    if not len(rank):
        return {}
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(count + 1))
    mine = [by_rank[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    known = np.zeros(int(instance.max()) + 1, np.bool_)
    when = np.zeros(len(known), np.int64)
    reference = max(range(count), key=lambda r: len(mine[r]))
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
    shift = np.array([offsets.get(r, 0) for r in range(count)], np.int64)
    tied = np.array([r in offsets for r in range(count)], np.bool_)
    # Once more against the median over all ranks, which no single one's noise decides.
    usual = _medians(instance, end_ns + shift[rank], tied[rank], len(known))
    found = {}
    for r in offsets:
        late = end_ns[mine[r]] + shift[r] - usual[instance[mine[r]]]
        middle = float(np.median(late))
        found[r] = (int(shift[r] - round(middle)), _error(late - middle))
    base = found[reference][0]
    return {r: (by - base, spread) for r, (by, spread) in found.items()}


def _medians(instance: Int64, value: Int64, mask: Bool, count: int) -> Int64:
    """[count] median of the values of each instance."""
    at = np.flatnonzero(mask)
    order = at[np.lexsort((value[at], instance[at]))]
    low = np.searchsorted(instance[order], np.arange(count), side="left")
    high = np.searchsorted(instance[order], np.arange(count), side="right")
    middle = np.minimum((low + np.maximum(high, low + 1) - 1) // 2, max(len(order) - 1, 0))
    return np.asarray(value[order[middle]], np.int64) if len(order) else np.zeros(count, np.int64)


def _error(rest: object) -> int:
    """Half of what most ends differ by, shrunk by their number; a drift over the recording counts in full."""
    late = np.asarray(rest, np.float64)
    n = len(late)
    spread = 1.4826 * float(np.median(np.abs(late)))
    if n < 3:
        return int(np.ceil(max(spread, float(np.abs(late).max()))))
    third = max(n // 3, 1)
    drift = abs(float(np.median(late[:third])) - float(np.median(late[-third:]))) / 2
    return int(np.ceil(max(spread / np.sqrt(n), drift, 1.0)))
