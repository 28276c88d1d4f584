"""An Advice in a notebook."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import gpu_trace_advisor
import pytest
from gpu_trace_advisor import BadUsage
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.trace.model import Note

from tests.advices import ITEMS, MS, advice, device


def test_a_repr_is_one_line() -> None:
    assert repr(advice(device())).startswith("<Advice on run.json: GPU busy 56.0 % of 100.0 ms;")
    assert "\n" not in repr(advice(device()))


def test_html_is_the_first_screen_and_escapes_what_a_recording_says() -> None:
    hostile = dataclasses.replace(advice(device()), verdict="<script>alert(1)</script>")
    shown = hostile._repr_html_()
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert "<td>data loader</td><td>30.0 ms</td><td>30.0 %</td><td>measured</td>" in shown
    for fetched in ("http", "<style", "<link", "src="):
        assert fetched not in shown


def test_html_says_what_limits_it_and_no_name_is_a_formula() -> None:
    notes = (Note("partial", "the file is cut short <here>", 1), Note("single-step", "one step only", 1))
    shown = dataclasses.replace(advice(device()), health=notes, errors=("rank1.json: no such file",))._repr_html_()
    assert "<p>Limit: the file is cut short &lt;here&gt;</p>" in shown and "one step only" not in shown
    assert "<p>Not read: rank1.json: no such file</p>" in shown
    assert shown.startswith('<div class="tex2jax_ignore mathjax_ignore">') and shown.endswith("</div>")


def test_tables_add_up(sample: Callable[[str], Path]) -> None:
    found = gpu_trace_advisor.advise(sample("training-dataloader"))
    causes = found.to_pandas("causes")
    assert causes["ns"].sum() == found.devices[0].wall_ns
    assert found.to_pandas("kernel_names")["calls"].sum() == found.devices[0].kernels
    assert list(found.to_pandas()["rule"]) == [finding.rule for finding in found.findings]
    assert len(found.to_pandas("steps")) == len(found.devices[0].steps)
    assert set(found.to_pandas("gaps")["ns"]) == {gap.ns for gap in found.devices[0].gaps}
    assert found.to_pandas("operators")["ns"].sum() == sum(owner.ns for owner in found.devices[0].operators)


def test_what_is_small_is_not_lost_in_html() -> None:
    many = tuple(TimeSlice("idle", cause, "measured", "host", "", MS) for cause in ("compile", "allocator", "profiler"))
    shown = advice(device((*ITEMS, *many)))._repr_html_()
    assert "<td>everything else</td><td>1.00 ms</td>" in shown  # the smallest of nine


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(BadUsage, match=r"to_pandas\('kernel'\): expected findings, causes, kernels,"):
        advice(device()).to_pandas("kernel")
