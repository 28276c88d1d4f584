"""Training, prefill and decode told apart, with the reason; and what an expert would say of real recordings."""

from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.analysis.phase import MIXED, UNKNOWN, Phase, detect, read_annotation
from gpu_trace_advisor.analysis.request import DECODE, PREFILL, TRAINING
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.roofline.operator_costs import operation_costs
from gpu_trace_advisor.timelines.device import Timeline, timelines
from gpu_trace_advisor.timelines.host import read_host
from gpu_trace_advisor.timelines.steps import choose_window, find_steps

from tests.build import annotation, call, kernel, op, timeline

BF16 = "c10::BFloat16"


def product(start: float, rows: int, correlation: int, name: str = "aten::mm") -> list[dict[str, Any]]:
    """A matrix product of these rows: operator, call and a kernel of 10 µs."""
    shapes = {"Input Dims": [[rows, 512], [512, 512]], "Input type": [BF16, BF16]}
    return [
        op(name, start, start + 9, **shapes), call(start + 1, start + 3, correlation),
        kernel(start + 10, start + 20, correlation, "nvjet_gemm"),
    ]  # fmt: skip


def phase(*events: dict[str, Any], steps: tuple[tuple[int, int], ...] = ()) -> Phase:
    one = timeline(*events)
    return detect(one, operation_costs(one), 0, 1_000_000, [(a * 1000, b * 1000) for a, b in steps])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", (PREFILL, 1, 888, None)),
        ("execute_context_0(0)_generation_32(32)", (DECODE, 32, 32, None)),
        ("execute_context_2(900)_generation_30(30)", (MIXED, 32, 930, None)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            (DECODE, 32, 32, 55086 // 32),
        ),
        ("step[DECODE bs=32]", (DECODE, 32, 32, None)),
        ("step[EXTEND bs=2 toks=4096]", (PREFILL, 2, 4096, None)),
        ("step[TARGET_VERIFY bs=4]", (DECODE, 4, None, None)),
        ("execute_context_0(0)_generation_0(0)", None),
        ("step[IDLE]", None),
        ("[Executor] _forward_step 35: 0 ctx reqs, 8 gen reqs", (DECODE, 8, 8, None)),
        ("_forward_step 1: 2 ctx reqs, 8 gen reqs", (MIXED, 10, None, None)),
        ("_forward_step 1: 0 ctx reqs, 0 gen reqs", None),
        ("prefill", (PREFILL, None, None, None)),
        ("decode_step 12", (DECODE, None, None, None)),
        ("decoder", None),
        ("vae.decode", None),
        ("my step[DECODE bs=32]", None),
        ("ProfilerStep#3", None),
    ],
)
def test_annotations_of_engines(name: str, said: tuple[str, int, int, int | None] | None) -> None:
    assert read_annotation(name) == said


def test_the_annotation_that_launched_the_windows_work_says_it() -> None:
    """The host is ahead: at 100 µs it annotates the decode while the prompt runs, whose annotation has ended."""
    events = [
        annotation("execute_context_2(8155_0)_generation_0(0)", 0, 40), call(1, 3, 1), kernel(100, 200, 1),
        annotation("execute_context_0(0)_generation_37(37)", 120, 180), call(121, 123, 2), kernel(200, 260, 2),
    ]  # fmt: skip
    one = timeline(*events)
    costs = operation_costs(one)
    first, second = (detect(one, costs, a * 1000, b * 1000) for a, b in ((100, 200), (200, 260)))
    assert (first.name, first.tokens) == (PREFILL, 8155)
    assert (second.name, second.tokens) == (DECODE, 37)
    assert detect(one, costs, 0, 300_000).name == MIXED


def test_prompts_and_tokens_in_one_step_are_mixed() -> None:
    """8,155 tokens of prompts and 37 sequences that generate, whatever the rows of a product."""
    found = phase(annotation("execute_context_3(8155_0)_generation_37(37_900)", 0, 40), *product(1, 37, 1))
    assert (found.name, found.batch, found.tokens) == (MIXED, 40, 8192)


def test_a_range_called_decode_is_a_models_only_beside_a_prefill() -> None:
    decode = [annotation("decode", 0, 40), *product(1, 37, 1)]
    assert phase(*decode).name == UNKNOWN
    assert phase(*decode, annotation("prefill", 500, 540), *product(501, 2000, 2)).name == MIXED


def test_the_engine_says_it() -> None:
    found = phase(annotation("step[DECODE bs=8]", 0, 40), *product(1, 4096, 1))
    assert (found.name, found.batch) == (DECODE, 8) and "step[DECODE bs=8]" in found.why


def test_steps_of_both_kinds_are_split() -> None:
    """Two annotations of one step are one stretch that knows what both tell."""
    found = phase(
        annotation("execute_32_context_0(sq0sk0)_generation_32(sq32sk3200)", 0, 40), annotation("step[DECODE bs=32]", 1, 39),
        annotation("step[EXTEND bs=1 toks=500]", 50, 90), *product(2, 32, 1), *product(60, 500, 2),
    )  # fmt: skip
    assert found.name == MIXED and "1 decode, 1 prefill" in found.why
    assert found.spans(DECODE) == [(0, 40_000)] and found.spans(PREFILL) == [(50_000, 90_000)]
    assert found.stretches[0].context == 100


@pytest.mark.parametrize(
    "event",
    [
        op("autograd::engine::evaluate_function: MmBackward0", 30, 40),
        op("MmBackward0", 30, 40),
        op("aten::native_layer_norm_backward", 30, 40),
        op("Optimizer.step#AdamW.step", 30, 40),
        annotation("bwd_microstep", 30, 40),
        annotation("forward-backward", 30, 40),
        kernel(30, 40, 9, "void flash_bwd_dq_dk_dv_loop_kernel<>"),
        kernel(30, 40, 9, "void multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>"),
    ],
    ids=lambda event: event["name"],
)
def test_training(event: dict[str, Any]) -> None:
    found = phase(*product(1, 4096, 1), event)
    assert found.name == TRAINING and event["name"][:40] in found.why


@pytest.mark.parametrize(
    "event",
    [op("aten::feedback_add", 30, 40), annotation("look backward at it", 30, 40), op("Optimizer.add_param_group#SGD", 30, 40),
     op("MmBackward0", 2_000, 2_010)],  # outside of the window
    ids=lambda event: event["name"],
)  # fmt: skip
def test_words_alone_are_no_training(event: dict[str, Any]) -> None:
    assert phase(*product(1, 4096, 1), event).name == PREFILL


def test_what_tells_is_what_comes_first_in_time_wherever_it_stands_in_the_file() -> None:
    events = [op("MmBackward0", 30, 40), op("AddBackward0", 10, 20), call(0, 5, 1), kernel(6, 50, 1)]
    assert phase(*events).why == phase(*reversed(events)).why == "it runs AddBackward0"


def test_by_the_rows_of_the_products() -> None:
    prefill = phase(*product(1, 2000, 1))
    assert (prefill.name, prefill.tokens) == (PREFILL, 2000)
    cache = kernel(30, 40, 9, "vllm::reshape_and_cache_flash_kernel")
    decode = phase(*product(1, 16, 1), cache)
    assert (decode.name, decode.batch) == (DECODE, 16) and "reshape_and_cache" in decode.why
    assert phase(*product(1, 16, 1)).name == UNKNOWN  # few rows alone may be a small model of any kind
    assert phase(*product(1, 100, 1)).name == UNKNOWN
    assert phase(*product(1, 2000, 1, "aten::bmm")).name == UNKNOWN  # no weights: not a layer
    assert phase(call(1, 3, 1), kernel(10, 20, 1, "nvjet_gemm")).name == UNKNOWN
    assert phase(call(1, 3, 1), kernel(10, 20, 1, "nvjet_gemm")).why


def test_steps_that_differ_by_their_rows() -> None:
    cache = [kernel(25, 26, 8, "paged_attention_v2"), kernel(75, 76, 9, "paged_attention_v2")]
    events = [*product(1, 2000, 1), *product(50, 8, 2), *cache]
    assert phase(*events, steps=((0, 40), (50, 90))).name == MIXED
    assert phase(*events, steps=((0, 40), (50, 90))).spans(DECODE) == [(50_000, 90_000)]
    assert phase(*events).name == UNKNOWN


EXPERT = {
    "bert-small-h100": (PREFILL, None, None),  # an encoder's forward pass: 141 tokens
    "qwen0.5b-prefill-h100": (PREFILL, None, None),
    "inductor-mlp-mi300x": (PREFILL, None, None),
    "resnet50-numworkers0-A-v100": (TRAINING, None, None),
    "resnet50-numworkers4-A-v100": (TRAINING, None, None),
    "resnet50-workers0-2021-02-list-v100q": (TRAINING, None, None),
    "mlp-train-2080ti": (TRAINING, None, None),
    "minitoy-train-mi250": (TRAINING, None, None),
    "torchrec-graph-rank0of16-a100-80g": (TRAINING, None, None),
    "vllm-decode-fullgraph-mi300x": (DECODE, 32, 1721),
    "sglang-qwen3-8b-decode-graph-mi300x": (DECODE, 32, 1024),
    "vllm-gptoss-mxfp4-eager-tp8-b200": (PREFILL, 1, None),
    "shiftvit-warm-a4000": (UNKNOWN, None, None),
    "memcpy-pinned-overlap-a100-40g": (UNKNOWN, None, None),
}


def first_timeline(path: Path) -> Timeline:
    recording = read(path)
    hosts = {process: read_host(recording, process) for process in range(len(recording.processes))}
    return timelines(recording, hosts)[0]


@pytest.mark.real
@pytest.mark.parametrize("name", EXPERT)
def test_real_traces_as_an_expert_would(real_traces: Path, name: str) -> None:
    one = first_timeline(real_traces / "traces" / "kineto" / f"{name}.json.gz")
    window = choose_window(one, find_steps(one)[0], None)
    found = detect(one, operation_costs(one), window.start_ns, window.end_ns)
    assert (found.name, found.batch, found.context) == EXPERT[name] and found.why
