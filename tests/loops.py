"""Loops for the tests of machine code."""

from typing import Any


def add_up(columns: Any, factor: int, sums: Any) -> int:
    """Each column's sum times the factor; returns how many items there are."""
    for column in range(columns.shape[1]):
        sums[column] = 0
        for row in range(columns.shape[0]):
            sums[column] += columns[row, column] * factor
    return int(columns.shape[0] * columns.shape[1])


def mark(flags: Any, small: Any) -> None:
    """Each flag as a number of the other type."""
    for i in range(len(flags)):
        small[i] = 3 if flags[i] else -3


def divide(by: int, out: Any) -> None:
    """One number divided by another, which may be 0."""
    out[0] = 100 // by
