"""The documents' claims: complete, sourced, unreadable where they are wrong; their arithmetic worked again by hand."""

import re
from pathlib import Path

import pytest
from gpu_trace_advisor.reference.facts import (
    CORRECTED,
    DO_NOT_USE,
    OK,
    Fact,
    Figure,
    UnusableFact,
    documents,
    fact,
    facts,
    span,
    value,
)

FACTS = list(facts().values())
USERS = ("rule:", "bound:", "page:", "test:", "unused: ")


def test_all_claims_are_there() -> None:
    assert len(FACTS) == 200
    assert {f.status for f in FACTS} == {OK, CORRECTED, DO_NOT_USE}


@pytest.mark.parametrize("claim", FACTS, ids=lambda f: f.key)
def test_a_claim_says_where_it_stands_and_who_uses_it(claim: Fact) -> None:
    assert claim.says and claim.section and claim.use
    assert claim.document in documents()
    assert claim.used_by and all(user.startswith(USERS) for user in claim.used_by)
    assert len(claim.used_by) == 1 or not any(user.startswith("unused") for user in claim.used_by)
    assert (claim.correction is None) == (claim.status == OK)


@pytest.mark.parametrize("claim", [f for f in FACTS if f.status == DO_NOT_USE], ids=lambda f: f.key)
def test_a_wrong_claim_is_never_readable(claim: Fact) -> None:
    assert claim.used_by[0].startswith("unused: ")
    with pytest.raises(UnusableFact, match="must not be used"):
        _ = claim.values
    for name in claim.claimed:
        with pytest.raises(UnusableFact):
            claim.span(name)


def test_a_corrected_claim_gives_the_correction() -> None:
    assert fact("ai-ridge-300").claimed["ridge"].numbers == (300.0,)
    assert value("ai-ridge-300", "ridge") == 295.3
    assert value("gt-nvlink-pcie", "nvlink") == 450e9  # one direction, as the PCIe figure
    with pytest.raises(UnusableFact, match="C2"):
        value("tvi-cause-activation", "share")
    with pytest.raises(UnusableFact, match="no claim"):
        value("nothing", "share")
    with pytest.raises(UnusableFact, match="span"):
        value("tvi-mfu-good", "mfu")


@pytest.mark.parametrize(
    ("quantity", "base", "text"),
    [
        (Figure("us", (1.3,)), (1.3e-6,), "1.3 us"),
        (Figure("TB/s", (3.35,)), (3.35e12,), "3.35 TB/s"),
        (Figure("GB/GPU", (70.0,)), (70e9,), "70 GB/GPU"),
        (Figure("1", (0.4, 0.55)), (0.4, 0.55), "0.4–0.55"),
        (Figure("FLOP", (), "2*M*K*N"), (), "2*M*K*N FLOP"),
    ],
)
def test_units(quantity: Figure, base: tuple[float, ...], text: str) -> None:
    assert quantity.base == pytest.approx(base)
    assert str(quantity) == text


H100_BANDWIDTH, H100_BF16 = 3.35e12, 989.4e12


@pytest.mark.parametrize(
    ("key", "name", "by_hand", "within"),
    [
        ("tvi-ridge-h100", "ridge", H100_BF16 / H100_BANDWIDTH, 0.003),
        ("ai-ridge-300", "ridge", H100_BF16 / H100_BANDWIDTH, 0.001),
        ("tvi-floor-1b", "t_min", 2e9 / H100_BANDWIDTH, 0.01),
        ("tvi-floor-1b", "rate", H100_BANDWIDTH / 2e9, 0.001),
        ("tvi-floor-8b", "t_min", 16e9 / H100_BANDWIDTH, 0.001),
        ("tvi-floor-8b", "rate", H100_BANDWIDTH / 16e9, 0.002),
        ("tvi-floor-70b-tp2", "t_min", 70e9 / H100_BANDWIDTH, 0.001),
        ("tvi-floor-405b-tp8", "t_min", 405e9 * 2 / 8 / H100_BANDWIDTH, 0.002),
        ("tvi-llama1b-floor", "rate", H100_BANDWIDTH / 2.48e9, 0.001),
        ("tvi-llama1b-megakernel", "rate", 0.78 * H100_BANDWIDTH / 2.48e9, 0.005),
        ("tvi-train-example-intensity", "I", 3 * 8 * 4096, 0.0),
        ("tvi-spec-gain", "tokens", (1 - 0.7**6) / (1 - 0.7), 0.001),
        ("tvi-kv-128k-8b", "kv", 131072 * 131072, 0.002),
        ("ai-kv-per-token", "8B", 2 * 32 * 8 * 128 * 2, 0.0),
        ("ai-infiniband", "bw", 400e9 / 8, 0.0),
        ("ai-dp-example", "t", 2 * 7 / 8 * 14e9 / 450e9, 0.02),
        ("ai-7b-240", "rate", H100_BANDWIDTH / 14e9, 0.002),
        ("ai-ex3-m64", "m", 9 * 7 + 1, 0.0),
        ("tvi-prefill-example", "I", 2000, 0.0),
        ("ai-nvlink-450", "bw", 900e9 / 2, 0.0),
        ("ai-serial-fraction", "s1", 1 / (0.01 + 0.99 / 64), 0.001),
        ("ai-serial-fraction", "s5", 1 / (0.05 + 0.95 / 64), 0.005),
        ("ai-decode-util", "util", 1 / (H100_BF16 / H100_BANDWIDTH), 0.15),
        ("ai-jetson-8b", "tpot", 8e9 / 2 / 0.2e12, 0.001),
        ("ai-jetson-8b", "rate", 0.2e12 / (8e9 / 2), 0.001),
        ("ai-jetson-8b", "ttft", 2 * 8e9 * 500 / 25e12 * 2, 0.01),
        ("ai-kv-example-8b", "kv", 2 * 32 * 8 * 128 * 2, 0.0),
        ("ai-b-memory-limit", "t", (14e9 + 100 * 4096 * 131072) / H100_BANDWIDTH, 0.02),
    ],
)
def test_arithmetic_of_the_documents(key: str, name: str, by_hand: float, within: float) -> None:
    assert value(key, name) == pytest.approx(by_hand, rel=within)


def test_spans_by_hand() -> None:
    assert span("tvi-spec-gain", "speedup") == pytest.approx((2.94 / (1 + 5 * 0.08), 2.94 / (1 + 5 * 0.03)), rel=0.02)
    assert span("gt-fp8-2x", "step") == pytest.approx((1 / (1 - 0.60 / 2), 1 / (1 - 0.75 / 2)), rel=0.01)
    assert span("ai-bubble-examples", "b") == pytest.approx((7 / 39, 7 / 15), abs=0.005)
    assert span("ai-matmul-examples", "I") == pytest.approx((1.0, 4096 / 3), rel=0.01)


def test_prices_and_fits_by_hand() -> None:
    price = fact("ai-cost-per-mtok").claimed["example"].numbers[0]
    assert price == pytest.approx(2.5 / (800 * 3600) * 1e6, abs=0.005)
    batch, weights = value("ai-kv-example-8b", "B_fail"), 16e9
    assert weights + batch * 1800 * value("ai-kv-example-8b", "kv") > 0.9 * 80e9


BOUNDS = {
    "alignment": "roofline/alignment.py", "fusible-chains": "rulekit/fusible_chains.py",
    "attainable-bandwidth": "roofline/bandwidth_fit.py", "in-kernel": "roofline/kernel_time.py",
    "ladder": "decode/ladder.py", "mfu-mbu": "decode/utilization.py", "phase": "analysis/phase.py",
    "roofline": "roofline/points.py", "serving": "decode/serving_cost.py",
}  # fmt: skip
"""What `bound:` may name, and the module of gpu_trace_advisor that works it out."""

ROOT = Path(__file__).parents[2]


def test_bounds_and_tests_that_claims_name_exist() -> None:
    used = {user for claim in FACTS for user in claim.used_by}
    assert {user.removeprefix("bound:") for user in used if user.startswith("bound:")} == BOUNDS.keys()
    assert all((ROOT / "analyzer" / "gpu_trace_advisor" / module).is_file() for module in BOUNDS.values())
    assert {user for user in used if user.startswith(("page:", "test:"))} == {"test:facts"}


def test_claims_worked_out_here_say_so() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    worked_out = {claim.key for claim in FACTS if f'"{claim.key}"' in here}
    assert worked_out == {claim.key for claim in FACTS if "test:facts" in claim.used_by}


def test_modules_that_read_claims_are_named_by_them() -> None:
    keys = {claim.key for claim in FACTS}
    for path in sorted((ROOT / "analyzer" / "gpu_trace_advisor").rglob("*.py")):
        read = set(re.findall(r'"((?:tvi|gt|ai)-[\w.-]+)"', path.read_text(encoding="utf-8"))) & keys
        assert all(any(user.startswith("bound:") for user in fact(key).used_by) for key in read), path.name


@pytest.mark.parametrize("claim", FACTS, ids=lambda claim: claim.key)
def test_one_claim_alone_is_what_the_whole_file_says(claim: Fact) -> None:
    assert fact(claim.key) == claim
