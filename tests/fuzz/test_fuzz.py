"""Inputs that failed once, and a few of each kind; `make fuzz` tries more of them."""

import random
import sys
from pathlib import Path

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the fuzzer limits memory as Linux does", allow_module_level=True)

from tests.fuzz.checks import failure
from tests.fuzz.corpus import kept, load, smaller
from tests.fuzz.inputs import KINDS, Input


@pytest.mark.parametrize("path", kept(), ids=lambda path: path.stem)
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    assert failure(load(path)) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_some_of_each_kind(kind: str) -> None:
    rng = random.Random(f"{kind} 1")
    for _ in range(3):
        given = KINDS[kind][1](rng)
        assert failure(given) == "", given


def test_the_same_seed_gives_the_same_inputs() -> None:
    for _, make in KINDS.values():
        assert make(random.Random(5)) == make(random.Random(5))


def test_a_failing_input_is_made_small() -> None:
    """What fails for one event among many is that event."""
    events = ", ".join(f'{{"name": "{i}"}}' for i in range(50))
    given = Input(
        "x", "advise", {"a.json": f'{{"other": 1, "traceEvents": [{events}]}}'.encode()}, ("a.json", "--window", "all")
    )
    small = smaller(given, lambda other: b'"33"' in other.files["a.json"])
    assert small.files == {"a.json": b'{"traceEvents": [{"name": "33"}]}'} and small.arguments == ("a.json",)
