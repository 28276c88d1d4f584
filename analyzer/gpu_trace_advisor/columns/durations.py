"""Columns of nanoseconds in half the room: hardly a stretch of time takes longer than a second or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.compact import blocks, index_type

Bool = NDArray[np.bool_]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Index = NDArray[np.signedinteger[Any]]

NEVER = -(1 << 60)  # before everything else: an edge of a graph that holds nothing back
_BEYOND = -(1 << 31)  # in the narrow column: kept beside it, or NEVER where it is not
_LONGEST = (1 << 31) - 1


class Nanoseconds:
    """[n] ns, read and written like a column of 64 bits, by places, by mask or by slice."""

    def __init__(self, short: Int32, far: Index, far_ns: Int64) -> None:
        self.short, self.far, self.far_ns = short, far, far_ns
        """`far`: places of those beyond 32 bits, ascending, and what they are."""

    @classmethod
    def of(cls, ns: Any) -> Nanoseconds:
        """These whole numbers."""
        ns = np.asarray(ns)
        if ns.strides == (0,) and len(ns) and abs(int(ns[0])) <= _LONGEST:
            return cls(np.broadcast_to(ns[:1].astype(np.int32), len(ns)), *_NOTHING)
        if ns.dtype == np.int32 and not (ns == _BEYOND).any():
            return cls(ns, *_NOTHING)
        made = cls.empty(len(ns))
        for part in blocks(len(ns)):
            made[part] = ns[part]
        return made

    @classmethod
    def empty(cls, count: int) -> Nanoseconds:
        """So many, to be written to."""
        return cls(np.empty(count, np.int32), *_NOTHING)

    def __len__(self) -> int:
        return len(self.short)

    def __repr__(self) -> str:
        return f"<ns, {len(self)}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.int64, copy=False)

    def __getitem__(self, at: Any) -> Int64:
        found: Int64 = self.short[at].astype(np.int64)
        beyond = np.flatnonzero(found == _BEYOND)
        if len(beyond):
            places = self._places(at)[beyond]
            near = np.minimum(np.searchsorted(self.far, places), len(self.far) - 1)
            listed = self.far[near] == places if len(self.far) else np.zeros(len(places), np.bool_)
            found[beyond] = NEVER
            found[beyond[listed]] = self.far_ns[near[listed]]
        return found

    def __setitem__(self, at: Any, ns: Any) -> None:
        ns = np.asarray(ns)
        beyond = (ns <= _BEYOND) | (ns > _LONGEST)
        self._forget(at)
        if not beyond.any():
            self.short[at] = ns
            return
        self.short[at] = np.where(beyond, _BEYOND, ns)
        listed = beyond & (ns != NEVER)
        if listed.any():
            places = self._places(at)
            listed, ns = np.broadcast_to(listed, len(places)), np.broadcast_to(ns, len(places))
            far, far_ns = np.append(self.far, places[listed]), np.append(self.far_ns, ns[listed])
            order = np.argsort(far)
            self.far, self.far_ns = far[order], far_ns[order]

    def _places(self, at: Any) -> Index:
        """Which places these are."""
        if isinstance(at, slice):
            return np.arange(*at.indices(len(self)))
        return np.flatnonzero(at) if at.dtype == np.bool_ else at

    def _forget(self, at: Any) -> None:
        """What is kept beside the column of these."""
        if len(self.far) and (marked := self.short[at] == _BEYOND).any():
            kept = ~np.isin(self.far, self._places(at)[marked])
            self.far, self.far_ns = self.far[kept], self.far_ns[kept]

    def copy(self) -> Nanoseconds:
        """One of its own to write to."""
        return Nanoseconds(self.short.copy(), self.far, self.far_ns)

    def change(self, mask: Bool, by: Callable[[Int64], Any]) -> None:
        """Those that the mask says become what `by` makes of them."""
        for part in blocks(len(self)):
            at = np.flatnonzero(mask[part]) + part.start
            if len(at):
                self[at] = by(self[at])

    def with_inserted(self, at: Index, ns: int) -> Nanoseconds:
        """One with as many more of `ns`, each before the place that `numpy.insert` would take."""
        made = Nanoseconds(
            np.insert(self.short, at, 0), self.far + np.searchsorted(at, self.far, side="right"), self.far_ns
        )
        made[np.asarray(at + np.arange(len(at)))] = ns
        return made

    @property
    def columns(self) -> tuple[Any, ...]:
        """For compiled loops: narrow column, places and values of what lies beyond it, its mark for that, and what the
        marked are that are not among them."""
        return self.short, self.far.astype(np.int64, copy=False), self.far_ns, _BEYOND, NEVER


_NOTHING: tuple[Any, Any] = (np.empty(0, index_type(0)), np.empty(0, np.int64))


def concatenated(parts: list[Nanoseconds]) -> Nanoseconds:
    """All of them, which are used up, one behind the other."""
    made, first = Nanoseconds.empty(sum(map(len, parts))), 0
    for part in parts:
        made[first : first + len(part)] = part[:]
        first += len(part)
    parts.clear()
    return made


def rearranged(ns: Nanoseconds, order: Index) -> Nanoseconds:
    """Those at these places."""
    made = Nanoseconds.empty(len(order))
    for part in blocks(len(order)):
        made[part] = ns[order[part]]
    return made


def durations(ns: Int64) -> Index:
    """Lengths of time in 32 bits where they fit."""
    return ns.astype(np.int32) if int(ns.max(initial=0)) <= _LONGEST else ns
