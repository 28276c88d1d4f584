"""The terminal view of an Advice."""

from __future__ import annotations

from analyzer.advice import Advice


def render(advice: Advice, *, color: bool, width: int) -> str:
    """The advice as text, at most `width` columns wide."""
    return advice.verdict + "\n"
