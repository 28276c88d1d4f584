"""What the rules of decode say of recordings of others, and where they must be silent."""

from pathlib import Path

import pytest
from gpu_trace_advisor.advice.ranking import judge
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.decode.passes import Decoding
from gpu_trace_advisor.ingest import read

pytestmark = pytest.mark.real

DECODE = {
    "megakernel", "weight-quantization", "kv-quantization", "larger-batch", "continuous-batching", "speculative-decoding",
}  # fmt: skip
LAUNCHES = {"cuda-graphs", "torch-compile", "too-many-small-kernels", "cpu-bound-python", "host-sync"}
RULES = find_rules()[0]


def found(folder: Path, name: str, **request: object) -> tuple[DeviceWindow, set[str], dict[str, str]]:
    """The view, the rules that speak, and what the silent ones give as the reason."""
    view = views(read(folder / "traces" / "kineto" / f"{name}.json.gz"), Request(**request))[0][0]  # type: ignore[arg-type]
    verdicts = judge(view, RULES)
    assert verdicts.errors == ()
    return view, {finding.rule for finding in verdicts.findings}, {s.rule: s.why for s in verdicts.skipped}


def test_a_decode_in_one_graph_is_asked_about_bytes_at_most(real_traces: Path) -> None:
    view, spoke, _ = found(real_traces, "vllm-decode-fullgraph-mi300x")
    assert view.phase.name == "decode"
    assert spoke <= {"weight-quantization", "kv-quantization", "megakernel", "nothing-to-do"}
    decode = Decoding(view)
    assert decode.passes.value == 1
    assert decode.rows.value == 32
    assert "mxfp4" in decode.quantized


def test_a_cut_decode_is_not_told_about_launches(real_traces: Path) -> None:
    view, spoke, _ = found(real_traces, "sglang-qwen3-8b-decode-graph-mi300x")
    assert spoke <= {"weight-quantization", "kv-quantization", "megakernel", "trace-quality"}
    assert not spoke & LAUNCHES
    decode = Decoding(view)
    assert decode.ns < 15e6  # not the 463 ms of the prefill that was cut away
    assert decode.quantized == ""


def test_a_cut_decode_told_its_weights_has_a_floor(real_traces: Path) -> None:
    view, spoke, _ = found(real_traces, "sglang-qwen3-8b-decode-graph-mi300x", weights=16_400_000_000)
    decode = Decoding(view)
    assert decode.reach == pytest.approx(16.4 / 5300 * 1e3 / (decode.ns / 1e6), rel=0.01)
    assert not spoke & LAUNCHES


def test_a_prefill_gets_no_advice_of_decode(real_traces: Path) -> None:
    _, spoke, skipped = found(real_traces, "qwen0.5b-prefill-h100")
    assert not spoke & (DECODE | {"cuda-graphs"})
    assert all("does not apply to prefill" in skipped[rule] for rule in DECODE - {"weight-quantization"})
    # Version 2 on Hopper; once chains are fused the host decides, and another kernel gives no more.
    assert "saved already by what comes first (fuse-elementwise" in skipped["flash-attention"]


def test_a_model_in_4_bits_is_not_told_to_quantize_nor_an_engine_to_batch(real_traces: Path) -> None:
    for phase in (None, "decode"):
        view, spoke, _ = found(real_traces, "vllm-gptoss-mxfp4-eager-tp8-b200", phase=phase)
        assert not spoke & {
            "weight-quantization",
            "kv-quantization",
            "larger-batch",
            "continuous-batching",
            "megakernel",
        }
    assert Decoding(view).quantized


@pytest.mark.parametrize(
    "name",
    ["resnet50-numworkers0-A-v100", "mlp-train-2080ti", "torchrec-graph-rank0of16-a100-80g", "dlrm-8rank-v100/rank0"],
)
def test_training_gets_no_advice_of_decode(real_traces: Path, name: str) -> None:
    view, spoke, skipped = found(real_traces, name)
    assert view.phase.name == "training"
    assert not spoke & DECODE
    assert skipped.keys() >= DECODE


def test_an_unknown_phase_is_a_reason(real_traces: Path) -> None:
    _, spoke, skipped = found(real_traces, "shiftvit-warm-a4000")
    assert not spoke & DECODE
    assert "the phase is not known" in skipped["megakernel"]
