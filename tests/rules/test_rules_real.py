"""What an expert would say of recordings of others: the rules' findings, in order."""

from functools import cache
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.ingest import find_traces, read
from gpu_trace_advisor.rulekit.rule import Finding

pytestmark = pytest.mark.real

LAUNCHES = {"cuda-graphs", "torch-compile", "cpu-bound-python", "too-many-small-kernels"}


@cache
def advised(path: Path) -> Advice:
    return advise_traces([read(path)])


def findings(folder: Path, name: str) -> tuple[Finding, ...]:
    """Of the first device of a recording."""
    advice = advised(folder / "traces" / name)
    return tuple(f for f in advice.findings if f.device == advice.devices[0].device)


def rules(folder: Path, name: str) -> list[str]:
    return [finding.rule for finding in findings(folder, name)]


def test_a_loader_in_the_training_process_comes_first(real_traces: Path) -> None:
    assert rules(real_traces, "kineto/resnet50-numworkers0-A-v100.json.gz")[0] == "dataloader"
    assert "dataloader" in rules(real_traces, "kineto/resnet50-workers0-2021-02-list-v100q.json.gz")[:2]


def test_the_saving_of_the_loader_is_what_workers_gave(real_traces: Path) -> None:
    """A recording with four workers shows steps of 126.8 ms instead of 176.5."""
    advice = advised(real_traces / "traces/kineto/resnet50-numworkers0-A-v100.json.gz")
    low, high = advice.findings[0].saving_ns or (0, 0)
    assert low / advice.devices[0].wall_ns - 0.03 <= 1 - 126.8 / 176.5 <= high / advice.devices[0].wall_ns


@pytest.mark.parametrize(
    "name",
    [
        "kineto/bert-small-h100.json.gz",
        "kineto/transformer-tutorial-a-h100.json.gz",
        "kineto/transformer-tutorial-b-h100.json.gz",
        "kineto/vllm-gptoss-mxfp4-eager-tp8-b200.json.gz",
    ],
)
def test_launch_bound_inference_is_told_to_capture_with_low_confidence(real_traces: Path, name: str) -> None:
    (found,) = (finding for finding in findings(real_traces, name) if finding.rule == "cuda-graphs")
    assert found.confidence == "low"
    assert found.doubts
    if "transformer" not in name:  # one step alone shows no repeats
        assert found.saving_ns is None
    assert "mixed-precision" not in rules(real_traces, name)


def test_an_engine_is_told_its_own_option(real_traces: Path) -> None:
    found = findings(real_traces, "kineto/vllm-gptoss-mxfp4-eager-tp8-b200.json.gz")
    assert any("--enforce-eager" in finding.how for finding in found)


def test_a_busy_prefill_is_told_to_fuse(real_traces: Path) -> None:
    found = rules(real_traces, "kineto/qwen0.5b-prefill-h100.json.gz")
    assert found[0] == "fuse-elementwise"
    assert not {"cuda-graphs", "megakernel", "host-sync"} & set(
        found
    )  # the profiler's script synchronises, not the program


def test_a_decode_in_one_graph_is_told_nothing_about_launches(real_traces: Path) -> None:
    assert rules(real_traces, "kineto/vllm-decode-fullgraph-mi300x.json.gz") == ["nothing-to-do"]


def test_fp32_products_are_told_to_use_the_tensor_cores(real_traces: Path) -> None:
    found = rules(real_traces, "nsys/cs336-2.7B-eager-fp32-a100-80g.sqlite")
    assert found[0] == "mixed-precision"
    assert not LAUNCHES & set(found)


def test_offloaded_weights_are_to_stay_on_the_device(real_traces: Path) -> None:
    first = findings(real_traces, "nsys/wan21-t2v-sp2-cpuoffload-h100.sqlite")[0]
    assert first.rule == "copy-overlap"
    assert "Keep the weights on the device" in first.how
    assert "h2d-pageable" not in rules(real_traces, "nsys/wan21-t2v-sp2-cpuoffload-h100.sqlite")


@pytest.mark.parametrize("kind", ["nonblocking", "sync"])
def test_pageable_copies_are_to_be_pinned(real_traces: Path, kind: str) -> None:
    """A recording with pinned memory shows 30.75 ms a step instead of 67.9."""
    name = f"kineto/memcpy-pageable-{kind}-a100-40g.json.gz"
    first = findings(real_traces, name)[0]
    assert first.rule == "h2d-pageable"
    low, high = first.saving_ns or (0, 0)
    assert low <= (1 - 30.75 / 67.9) * advised(real_traces / "traces" / name).devices[0].wall_ns <= high


def test_pinned_copies_that_overlap_already_are_left_alone(real_traces: Path) -> None:
    """Only what the time goes to is said."""
    assert rules(real_traces, "kineto/memcpy-pinned-overlap-a100-40g.json.gz") == ["largest-loss"]


def test_unrecorded_graph_work_comes_first_and_withholds_every_saving(real_traces: Path) -> None:
    found = findings(real_traces, "kineto/torchrec-graph-rank0of16-a100-80g.json.gz")
    assert [f.rule for f in found[:2]] == ["trace-quality", "comm-overlap"]
    assert "15.1 %" in found[1].message
    assert all(f.saving_ns is None for f in found)
    assert "above 5 %" in found[1].unpriced


def test_a_cut_recording_says_so_and_saves_nothing(real_traces: Path) -> None:
    found = findings(real_traces, "kineto/sglang-qwen3-8b-decode-graph-mi300x.json.gz")
    assert found[0].rule == "trace-quality"
    assert all(f.saving_ns is None for f in found)


def test_ranks_are_asked_about_together(real_traces: Path) -> None:
    alone = findings(real_traces, "kineto/dlrm-8rank-v100/rank0.json.gz")
    messages = [f.message for f in alone if f.rule == "comm-overlap"]
    assert len(messages) == 2 and "one rank's trace cannot tell" in messages[1]
    together = advise_traces([read(file) for file in find_traces(real_traces / "traces/kineto/dlrm-8rank-v100")])
    asked = [f.message for f in together.findings if f.rank == 0 and f.rule == "comm-overlap"]
    assert any("Ranks 4, 5 come last to 3 of 7 collectives" in message for message in asked)
    assert together.verdict.startswith("rank 5 device 5, which the other ranks wait for: ")
    assert together.ranks and all(  # waiting for others is nothing that overlap could save
        (f.saving_ns or (0, 0))[1] <= next(row.moving_ns for row in together.ranks.rows if row.rank == f.rank)
        for f in together.findings
        if f.rule == "comm-overlap"
    )


@pytest.mark.parametrize("name", ["kineto/shiftvit-cold-a4000.json.gz", "kineto/minitoy-train-mi250.json.gz"])
def test_a_cold_start_is_said_and_nothing_else_advised(real_traces: Path, name: str) -> None:
    found = findings(real_traces, name)
    assert [f.rule for f in found] == ["module-load"]
    assert found[0].saving_ns is None and found[0].unpriced.startswith("withheld")


def test_what_is_fine_gets_no_priced_advice(real_traces: Path) -> None:
    assert all(f.saving_ns is None for f in findings(real_traces, "kineto/memcpy-pinned-overlap-a100-40g.json.gz"))


def test_of_a_busy_device_only_the_kernels_are_left(real_traces: Path) -> None:
    """97 % busy and compiled: attention at 298 of 708 TFLOP/s, and perhaps nothing can be had."""
    found = findings(real_traces, "kineto/inductor-mlp-mi300x.json.gz")
    assert [f.rule for f in found] == ["attention-efficiency", "slow-sibling"]
    assert all(f.saving_ns and f.saving_ns[0] == 0 for f in found)


def test_a_program_without_pytorch_is_told_in_the_words_of_cuda(real_traces: Path) -> None:
    question, first = findings(real_traces, "nsys/saxpy-mpi-a100-40g.sqlite")[:2]
    assert (question.rule, first.rule) == ("largest-loss", "h2d-pageable")  # two thirds of the wall were not recorded
    assert "cudaMallocHost" in first.how and "DataLoader" not in first.how
