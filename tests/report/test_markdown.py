"""Markdown for a pull request: the same facts, nothing of a trace that means something there."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.report import markdown
from gpu_trace_advisor.rulekit.rule import Evidence, Finding, JointGain, Named, Source
from gpu_trace_advisor.trace.model import Note

from tests.advices import MS, advice, device


def finding(**changes: object) -> Finding:
    made = Finding(
        rule="dataloader", title="The data loader does not keep up", message="The GPU waits for 30 ms.", file="run.json",
        rank=None, process=None, device=0, ns=30 * MS, named=(Named("dataloader", 30 * MS),),
        saving_ns=(20 * MS, 30 * MS), alone_ns=(20 * MS, 30 * MS),
        speedup=(1.25, 1.43), unpriced="", grade="modelled", confidence="low", doubts=("one step only",),
        evidence=(Evidence("next(loader)", 2, 30 * MS, (0.5, 50.5), "train.py(7): main"),), formula="30 of 100 ms",
        assumes=(), sources=(Source("k", "a document", "8.2", "Loading is slow.", "It is not."),), how="Use workers.",
        verify="Record again.",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_the_findings_with_their_savings_and_evidence() -> None:
    made = advice(
        device(), findings=(finding(), finding(rule="host-sync", title="Drained")),
        joint=(JointGain("run.json", None, None, 0, (40 * MS, 50 * MS), (1.6, 2.0)),),
    )  # fmt: skip
    text = markdown.render(made)
    assert text.startswith(f"**{markdown.escaped(made.verdict)}**")
    assert (
        "| 1 | **The data loader does not keep up** | 20.0 ms to 30.0 ms (20.0 % to 30.0 %) | modelled, low confidence |"
        in text
    )
    assert "Together: 40.0 ms to 50.0 ms, 1.60× to 2.00× speedup." in text
    assert "`next(loader)` × 2, 30.0 ms at 0.500, 50.500 ms of the trace, from `train.py(7): main`" in text
    assert text.count("<details>") == text.count("</details>") == 3
    assert "| data loader | 30.0 | 30.0 % |  |" in text


def test_what_has_no_price_is_to_be_checked() -> None:
    assert "| to check |" in markdown.render(advice(device(), findings=(finding(saving_ns=None),)))


def test_nothing_found_is_said() -> None:
    text = markdown.render(advice(device(), health=(Note("cut", "the front is cut off", 1),)))
    assert "No rule found anything" in text
    assert "- cut: the front is cut off" in text


@pytest.mark.parametrize(
    ("text", "expected"),
[
        ("@team fixes #1", r"\@team fixes \#1"), ("<img src=x>", r"\<img src=x\>"), ("a|b", r"a\|b"),
        ("/home/x/a.py", "a.py"), ("a\nb", "a b"),
    ],
)  # fmt: skip
def test_escaped(text: str, expected: str) -> None:
    assert markdown.escaped(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("a", "`a`"), ("a`b", "`` a`b ``"), ("a|b", r"`a\|b`")])
def test_code(text: str, expected: str) -> None:
    assert markdown.code(text) == expected


def test_the_command_writes_it(sample: Callable[[str], Path], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([str(sample("training-dataloader")), "--format", "markdown"]) == 0
    assert "| **GPU busy** |" in capsysbinary.readouterr().out.decode("utf-8")


def test_a_comparison_comes_first(sample: Callable[[str], Path], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    same = str(sample("training-dataloader"))
    main([same, "--against", same, "--format", "markdown"])
    assert capsysbinary.readouterr().out.decode("utf-8").startswith("**No difference beyond noise**")
