"""What a program uses, by distinctive evidence only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.rulekit.drawing import parse
from gpu_trace_advisor.trace.software import is_pytorch, uses

from tests.build import annotation, call, frame, kernel, op, trace


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (op("vllm::unified_attention_with_output", 0, 9), "vLLM"),
        (frame("vllm/v1/worker/gpu_worker.py(12): execute_model", 0, 9), "vLLM"),
        (frame("/usr/lib/python3/site-packages/sglang/srt/managers/scheduler.py(9): run", 0, 9), "SGLang"),
        (annotation("step[DECODE bs=32]", 0, 9), "SGLang"),
        (annotation("## Call CompiledFxGraph abc ##", 0, 9), "torch.compile"),
        (op("Torch-Compiled Region: 0/0", 0, 9), "torch.compile"),
        (kernel(0, 9, 1, "triton_poi_fused_add_0"), "torch.compile"),
        (kernel(0, 9, 1, "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>"), "FlashAttention 2"),
        (kernel(0, 9, 1, "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::Mainloop>>"), "FlashAttention 3"),
        (
            kernel(0, 9, 1, "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<>>>"),
            "FlashAttention 3",
        ),
        (op("LigerRMSNormFunction", 0, 9), "Liger"),
        (frame("apex/optimizers/fused_adam.py(98): step", 0, 9), "Apex"),
        (frame("deepspeed/runtime/engine.py(98): step", 0, 9), "DeepSpeed"),
        (op("FSDP::pre_forward", 0, 9), "FSDP"),
        (op("DistributedDataParallel.forward", 0, 9), "DDP"),
        (frame("megatron/core/pipeline_parallel/schedules.py(98): forward_step", 0, 9), "Megatron"),
        (call(0, 9, 1, "cudaGraphLaunch"), "CUDA graphs"),
        (
            kernel(0, 9, 1, "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)"),
            "memory-efficient attention",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else part["name"][:40],
)
def test_distinctive_evidence(event: dict[str, Any], name: str) -> None:
    (found,) = uses(trace(event))
    assert (found.name, found.seen, found.records) == (name, event["name"], 1)


@pytest.mark.parametrize(
    "event",
    [
        frame("/home/user/vllm_plots.py(3): draw", 0, 9),
        annotation("compare with vllm and sglang", 0, 9),
        op("aten::mm", 0, 9),
        frame("torch/_dynamo/eval_frame.py(10): fn", 0, 9),
        kernel(0, 9, 1, "triton_kernel"),
        kernel(0, 9, 1, "my_flash_fwd_kernel"),
        kernel(0, 9, 1, "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>"),
        annotation("cudaGraphLaunch", 0, 9),
        frame("projects/megatron_notes.py(1): run", 0, 9),
        annotation("execute_context_1(888)_generation_0(0)", 0, 9),  # SGLang's recordings have been given it, too
    ],
    ids=lambda event: event["name"],
)
def test_words_alone_are_no_evidence(event: dict[str, Any]) -> None:
    assert uses(trace(event)) == []


def test_in_a_window() -> None:
    one = trace(op("FSDP::pre_forward", 0, 9), op("DistributedDataParallel.forward", 50, 60))
    assert [use.name for use in uses(one, end_ns=20_000)] == ["FSDP"]
    assert [use.name for use in uses(one, start_ns=20_000)] == ["DDP"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "there", "absent"),
    [
        ("vllm-gptoss-mxfp4-eager-tp8-b200", {"vLLM", "torch.compile"}, {"TensorRT-LLM", "SGLang", "CUDA graphs"}),
        ("vllm-decode-fullgraph-mi300x", {"vLLM", "CUDA graphs"}, {"SGLang"}),
        ("sglang-qwen3-8b-decode-graph-mi300x", {"SGLang", "CUDA graphs"}, {"vLLM"}),
        ("qwen0.5b-prefill-h100", {"FlashAttention 2"}, {"torch.compile", "vLLM"}),
        ("torchrec-graph-rank0of16-a100-80g", {"torch.compile", "CUDA graphs", "DDP"}, {"FSDP"}),
    ],
)
def test_real_traces(real_traces: Path, name: str, there: set[str], absent: set[str]) -> None:
    found = {use.name for use in uses(read(real_traces / "traces" / "kineto" / f"{name}.json.gz"))}
    assert there <= found and not absent & found


def test_pytorch_is_told_by_its_recorder_or_its_names() -> None:
    drawn = parse("host a\ns7   .a")
    assert is_pytorch(drawn)
    assert not is_pytorch(replace(drawn, format="nsight"))
    eager = parse("host a\ns7   .a\na: void at::native::vectorized_elementwise_kernel<4>(int)")
    assert is_pytorch(replace(eager, format="nsight"))
