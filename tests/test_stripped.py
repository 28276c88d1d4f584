"""What recordings lack raises `unexplained`, and their savings are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice

from tests.programs import recording
from tests.stripped import STRIPPERS, advised
from traces.recipe import parse
from traces.simulate import simulate

TRACES = Path(__file__).parents[1] / "traces"
FULL_OF_LAUNCHES = ("eager-decode", "training-dataloader", "comm-bound-rank-rank1", "pageable-copies")


def refused(advice: Advice) -> bool:
    return not advice.devices[0].replay.trusted and all(finding.saving_ns is None for finding in advice.findings)


@pytest.mark.parametrize("name", FULL_OF_LAUNCHES)
@pytest.mark.parametrize("lost", ["launch calls", "a host thread", "kernels"])
def test_a_recording_without_half_of_it_is_refused_savings(name: str, lost: str) -> None:
    path = TRACES / f"{name}.json.gz"
    assert not refused(advised(path))
    assert refused(advised(path, STRIPPERS[lost]))


@pytest.mark.parametrize("name", ["eager-decode", "training-dataloader", "mlp-training"])
def test_a_pytorch_program_without_operators_is_refused_savings(name: str) -> None:
    assert refused(advised(TRACES / f"{name}.json.gz", STRIPPERS["operators and frames"]))


@pytest.mark.parametrize("name", ["comm-bound-rank-rank0", "graph-decode", "sync-storm", "pinned-overlap"])
def test_waits_that_held_something_back_are_missed(name: str) -> None:
    """Streams that waited for each other, and values that were read: of neither the wait is recorded any more."""
    assert refused(advised(TRACES / f"{name}.json.gz", STRIPPERS["event and wait calls"]))


def test_waits_that_held_nothing_back_are_not() -> None:
    """The program launches on one stream and reads nothing."""
    path = TRACES / "eager-decode.json.gz"
    whole, stripped = (
        advised(path).devices[0].replay,
        advised(path, STRIPPERS["event and wait calls"]).devices[0].replay,
    )
    assert (whole.unexplained, stripped.unexplained) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["gpu-bound-training", "training-dataloader", "sync-storm", "comm-bound-rank-rank0"])
def test_every_other_record_of_the_first_half(name: str) -> None:
    assert refused(advised(TRACES / f"{name}.json.gz", STRIPPERS["every other record of the first half"]))


HOLES = """
device H100
launch call=6us latency=5us gap=1us return=2us
trace shapes=0 stack=0
kernel k 60us
thread main:
  op aten::empty 4us
  steps 5 from=1:
    python 3ms
    {}
"""


@pytest.mark.parametrize(
    ("launches", "lacks"),
    [("op aten::add 9us 2us:\n      launch k", False), ("launch k", True)],
)
def test_a_hole_before_an_operator_is_the_programs_own_time(launches: str, lacks: bool) -> None:
    """3 ms without a record before each kernel: where operators are recorded around launches nothing was left out."""
    program = simulate(parse(HOLES.format(launches), "holes"))
    (device,) = advise_traces([recording(program)]).devices
    unknown = sum(item.ns for item in device.attribution if item.cause == "host-unknown") / device.wall_ns
    assert unknown > 0.9
    assert device.replay.unexplained == pytest.approx(unknown if lacks else 0)
    assert device.replay.trusted is not lacks
