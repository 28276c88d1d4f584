"""What is told to do fits the recording: obeying it must not harm, and the words are those of the recorder that was used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.advice.ranking import judge
from gpu_trace_advisor.advice.rule_cases import view_of
from gpu_trace_advisor.advice.rule_loader import find_rules, named_rule
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.rulekit.rule import Finding

from tests import nsight_export as nsight
from tests.build import Event, advice, annotation, call, kernel, op, step

RULES = find_rules()[0]


def finding(advised: Advice, rule: str) -> Finding:
    return next(one for one in advised.findings if one.rule == rule)


def loading(record: str, *, elsewhere: str = "") -> Advice:
    """Four steps of 100 µs, half of each in the loader; `elsewhere` runs before the window, on another thread."""
    events = [op(elsewhere, 0, 10, tid=9)] if elsewhere else []
    for i in range(4):
        at = 1_000 + 100 * i
        events += [step(i, at, at + 100), annotation(record, at + 1, at + 51), *launch(at + 60, i + 1)]
    return advice(*events)


def launch(at: float, correlation: int, length: float = 30) -> Iterator[Event]:
    yield call(at, at + 2, correlation)
    yield kernel(at + 5, at + 5 + length, correlation)


def test_more_workers_are_for_those_who_have_some() -> None:
    one = finding(loading("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"), "dataloader")
    assert one.how.startswith("Raise num_workers")


def judged(rule: str, text: str) -> Finding:
    (one,) = judge(view_of(text), [named_rule(RULES, rule)]).findings
    return one


PYTHON = """
    step |...................
    host PPPPP.a.PPPPPPPP.b.
    s7   .......aa.........bb
    P: {frame}
    repeat: 4
    scale: 5us
"""


def test_python_of_the_model_is_captured_and_a_loop_around_it_is_vectorised() -> None:
    """A replay runs nothing of a module's forward; what the training script does itself it has to do somewhere."""
    model = judged("cpu-bound-python", PYTHON.format(frame="nn.Module: BertLayer_0"))
    assert "make_graphed_callables" in model.how and "runs none of the model's Python" in model.how
    loop = judged("cpu-bound-python", PYTHON.format(frame="train.py(40): augment"))
    assert loop.how.startswith("Vectorise or move out of the step")


PREPARING = """
    {step}
    host OOOOOOa.OOOOOb.OOOOOOc.
    s7   .......a......b.......c
    repeat: {repeat}
    scale: 10us
"""


def test_who_recorded_steps_is_not_told_to_record_some() -> None:
    once = judged("largest-loss", PREPARING.format(step="", repeat=1))
    assert "What runs once is not worth a graph" in once.how
    again = judged("largest-loss", PREPARING.format(step="step |......................", repeat=4))
    assert "What runs once" not in again.how and "torch.compile" in again.how


def test_what_compiling_would_help_is_said_in_whole_sentences() -> None:
    """Three memory-bound kernels of 6 cells each in 25, and no launch that the device waits for."""
    _, text = named_rule(RULES, "torch-compile").fires  # the second drawing
    found = judged("torch-compile", text)
    assert re.fullmatch(
        r"Nothing is compiled, and [\d.]+ % of the wall goes to chains of memory-bound kernels that could be one\.",
        found.message,
    )
    assert found.unpriced == "it is one way to what fuse-elementwise would give, which is not counted again"


@pytest.mark.parametrize(
    ("copies", "says"),
    [("c", "1 HtoD copy of pageable memory, 64.0 MB at"), ("ccc", "3 HtoD copies of pageable memory, 192.0")],
)
def test_one_copy_is_no_copies(copies: str, says: str) -> None:
    text = f"""
        host {copies}a.........
        s7   .{"c.." * len(copies)}aaaa
        c: Memcpy HtoD (Pageable -> Device) 64MB
        scale: 10ms
    """
    assert judged("h2d-pageable", text).message.startswith(says)


def test_workers_that_show_outside_the_window_are_workers() -> None:
    told = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    one = finding(loading("DataLoader wait", elsewhere=told), "dataloader")
    assert one.how.startswith("Raise num_workers")


def test_one_process_gets_its_first_workers() -> None:
    one = finding(loading("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "dataloader")
    assert "num_workers > 0" in one.how and "Raise" not in one.how


ATTENTION = """
 step |......................
 host a.m.b.c.S=============
 s7   ..aaammbbbbbbccc......
 a: aten::bmm [32,2048,128]x[32,128,2048] bf16
 m: BETWEEN [32,2048,2048] bf16
 b: aten::_softmax [32,2048,2048] bf16
 c: aten::bmm [32,2048,2048]x[32,2048,128] bf16
 repeat: 3
 scale: 100us
 device: H100 SXM
 phase: prefill
"""


@pytest.mark.parametrize(
    ("between", "masked"), [("aten::div", False), ("aten::add", True), ("aten::masked_fill", True)]
)
def test_is_causal_is_told_only_where_a_mask_is_added(between: str, masked: bool) -> None:
    """In a bidirectional encoder it would change what the model computes."""
    (one,) = judge(view_of(ATTENTION.replace("BETWEEN", between)), [named_rule(RULES, "flash-attention")]).findings
    assert ("is_causal" in one.how) == masked
    assert ("in a bidirectional model it stays" in one.how) == masked


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_tells_all_models_to_be_causal(rule: object) -> None:
    """Wherever a sentence of a finding names it, it names its condition."""
    for one in getattr(rule, "fires", ()):
        for said in judge(view_of(one), [rule]).findings:  # type: ignore[list-item]
            for sentence in said.how.split(". "):
                assert "is_causal" not in sentence or "Where the mask" in sentence


def test_a_cold_start_is_left_out_with_the_recorder_that_was_used(tmp_path: Path) -> None:
    """150 of 200 µs load a module: torch.profiler has a schedule, nsys a window and a capture range."""
    events = [*launch(0, 1, 10), call(20, 170, 0, "cuModuleLoadData"), *launch(180, 2, 15)]
    assert "schedule(" in finding(advice(*events), "module-load").how
    strings = {1: "k", 2: "cudaLaunchKernel_v7000", 3: "cuModuleLoadData"}
    calls = [
        nsight.call(a * 1000, b * 1000, i, name) for a, b, i, name in ((0, 2, 1, 2), (20, 170, 2, 3), (180, 182, 3, 2))
    ]
    kernels = [nsight.kernel(5_000, 15_000, 1), nsight.kernel(185_000, 200_000, 3)]
    path = nsight.write(
        tmp_path / "run.sqlite", strings, **{nsight.CUPTI + "RUNTIME": calls, nsight.CUPTI + "KERNEL": kernels}
    )
    how = finding(advise_traces([read(path)]), "module-load").how
    assert "schedule(" not in how and "--window START:END" in how and "cudaProfilerApi" in how
