"""Frozen classes of this package behave as the standard library's do."""

import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.runtime.classes import dataclass


@dataclass(frozen=True)
class Ours:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list, repr=False, compare=False)

    @cached_property
    def twice(self) -> int:
        return 2 * self.size


@dataclasses.dataclass(frozen=True)
class Theirs:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list, repr=False, compare=False)


@dataclass
class Open:
    name: str


def test_they_are_made_shown_and_compared_alike() -> None:
    ours, theirs = Ours("a", parts=[1]), Theirs("a", parts=[1])
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert inspect.signature(Ours) == inspect.signature(Theirs)
    assert ours == Ours("a") != Ours("a", 4)
    assert ours != theirs  # type: ignore[comparison-overlap]
    assert {ours: 1}[Ours("a")] == 1
    assert dataclasses.replace(ours, size=4) == Ours("a", 4)
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert (ours.twice, ours.twice) == (6, 6)


def test_columns_and_long_lists_are_not_printed_in_full() -> None:
    @dataclass(frozen=True)
    class Columns:
        times: Any
        words: Any

    assert repr(Columns(np.arange(3_000_000), ["a"] * 21)).endswith(
        "Columns(times=<int64, 3000000>, words=<list of 21>)"
    )
    assert repr(Columns(np.zeros((2, 3), np.int8), ("a", "b"))).endswith("(times=<int8, 2 × 3>, words=('a', 'b'))")
    assert repr(Columns(np.int64(7), {})).endswith(f"(times={np.int64(7)!r}, words={{}})")


@pytest.mark.parametrize("name", ["size", "twice", "other"])
def test_nothing_of_them_changes(name: str) -> None:
    ours: Any = Ours("a")
    with pytest.raises(FrozenInstanceError):
        setattr(ours, name, 5)
    with pytest.raises(FrozenInstanceError):
        del ours.size
    assert ours == Ours("a")


def test_others_may_change() -> None:
    one = Open("a")
    one.name = "b"
    assert one == Open("b")
