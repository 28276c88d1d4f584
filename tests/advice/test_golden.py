"""What is advised for the samples stays as it is, until that is meant to change."""

import json

import pytest

from tests.golden import FILE, advised, samples

GOLDEN: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))
HOW = "if this is meant to change: python -m tests.golden, and read what changed"


def test_every_sample_is_there() -> None:
    assert GOLDEN.keys() == samples().keys(), HOW


@pytest.mark.parametrize("name", sorted(GOLDEN.keys() & samples().keys()))
def test_advice(name: str) -> None:
    assert advised(samples()[name]) == GOLDEN[name], HOW
