"""Single sick kernels of others (an MI300X), each with the one finding that an expert would name, and its numbers."""

from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.rulekit.rule import Finding

pytestmark = pytest.mark.real


def finding_of(folder: Path, name: str, rule: str) -> Finding:
    """What the rule says; gaps between the kernels may be said first."""
    advice = advise_traces([read(folder / "pathologies" / f"{name}.json.gz")], Request(hardware="mi300x"))
    return next(finding for finding in advice.findings[:2] if finding.rule == rule)


SICK = [
    (
        "gemm_01_compute_few_tiles",
        "tiles-and-waves",
        ("4 tiles of 256×128 × split 2 = 8 of 304 CUs", "92 % of its peak"),
    ),
    ("gemm_03_compute_misaligned", "tiles-and-waves", ("629 tiles", "2.07 waves", "69 % full", "4097")),
    ("sdpa_01_long_seq_low_eff", "attention-efficiency", ("S = 32,768", "311 TFLOP/s", "44 % of what can be reached")),
    (
        "sdpa_03_short_seq_overhead",
        "attention-efficiency",
        (
            "S = 128",
            "0.64 TB/s",
            "12.1 % of the datasheet",
            "41 TFLOP/s, 6 %",
            "64 FLOP a byte",
            "expected at this length",
        ),
    ),
    ("conv_02_small_spatial_many_ch", "convolution-shapes", ("64 rows", "128 blocks on 304 CUs", "2.5 % of the peak")),
    (
        "conv_04_depthwise",
        "convolution-shapes",
        ("depthwise", "bound by memory", "0.19 TB/s", "3.6 % of the datasheet"),
    ),
    ("elem_01_add_poor_bw", "slow-memory-kernel", ("1.91 TB/s", "36.0 % of the datasheet")),
    (
        "moe_01_many_experts_few_tokens",
        "experts-efficiency",
        (
            "0.5 tokens an expert",
            "270.5 MB",
            "102.1 µs (2 ",
            "1.63 ms (32)",
            "1.30 ms at the 25.5",
            "at most 5.5 experts",
        ),
    ),
    ("moe_05_large_capacity", "kernels-near-reachable", ("739 TFLOP/s", "104 % of what can be reached")),
]


@pytest.mark.parametrize(("name", "rule", "told"), SICK, ids=[name for name, _, _ in SICK])
def test_the_sick_kernel_is_named_with_its_numbers(
    real_traces: Path, name: str, rule: str, told: tuple[str, ...]
) -> None:
    message = finding_of(real_traces, name, rule).message
    assert [text for text in told if text not in message] == []


def test_no_saving_exceeds_the_time_above_what_can_be_reached(real_traces: Path) -> None:
    """gemm_01: 10 calls of 1085 µs (median); 34.36 GFLOP at 708 TFLOP/s take 48.5 µs."""
    saving = finding_of(real_traces, "gemm_01_compute_few_tiles", "tiles-and-waves").saving_ns
    assert saving and saving[0] == 0 and saving[1] <= 10_843_000 - 10 * 48_500


def test_what_is_near_what_can_be_had_saves_nothing(real_traces: Path) -> None:
    assert finding_of(real_traces, "moe_05_large_capacity", "kernels-near-reachable").saving_ns is None


def test_equal_additions_are_no_chain(real_traces: Path) -> None:
    advice = advise_traces([read(real_traces / "pathologies/elem_01_add_poor_bw.json.gz")])
    assert "fuse-elementwise" not in [finding.rule for finding in advice.findings]
