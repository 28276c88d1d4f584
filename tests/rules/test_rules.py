"""Every rule: its cases, its page, its sources."""

import re
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.ranking import judge
from gpu_trace_advisor.advice.rule_cases import view_of
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.analysis.request import PHASES
from gpu_trace_advisor.reference.facts import DO_NOT_USE, fact, facts
from gpu_trace_advisor.rulekit.rule import NEEDS, Finding, Rule

RULES, ERRORS = find_rules()
BY_ID = {rule.id: rule for rule in RULES}
HEADINGS = ("Why it costs", "What to do", "How to verify", "When it must not fire")
FOLDER = Path(__file__).parents[2] / "rules"


def said(rule: Rule, text: str) -> tuple[Finding, ...]:
    """What one rule finds in a drawing."""
    verdicts = judge(view_of(text), [rule])
    assert verdicts.errors == ()
    return verdicts.findings


def cases(kind: str) -> list[object]:
    return [
        pytest.param(rule, text, id=f"{rule.id}-{number}")
        for rule in RULES
        for number, text in enumerate(getattr(rule, kind))
    ]


def test_all_rules_load() -> None:
    assert ERRORS == []
    assert {path.stem.replace("_", "-") for path in FOLDER.glob("[!_]*.py")} == BY_ID.keys()


@pytest.mark.parametrize(("rule", "text"), cases("fires"))
def test_fires(rule: Rule, text: str) -> None:
    findings = said(rule, text)
    assert findings, f"causes: {view_of(text).causes}"
    for finding in findings:
        assert re.search(r"\d", finding.message), "a message has its numbers"
        assert not re.search(r"(?<![\d.])0\.0+ ms", finding.message), "microseconds are not shown as no milliseconds"
        assert finding.how


@pytest.mark.parametrize(("rule", "text"), cases("quiet"))
def test_stays_quiet(rule: Rule, text: str) -> None:
    assert said(rule, text) == ()


@pytest.mark.parametrize(("rule", "text"), cases("misses"))
@pytest.mark.xfail(strict=True, reason="a known failure")
def test_known_failures(rule: Rule, text: str) -> None:
    assert said(rule, text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_has_a_page(rule: Rule) -> None:
    assert [heading for heading in HEADINGS if not rule.section(heading)] == []
    first = rule.page.split("\n\n")[0]
    assert first.endswith(".") and not first.startswith(HEADINGS)
    assert rule.title and not rule.title.endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_has_cases(rule: Rule) -> None:
    assert rule.fires
    assert len(rule.quiet) > len(rule.fires) or len(rule.quiet) >= 3


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_cites_usable_claims_that_name_it(rule: Rule) -> None:
    named = {key for key, claim in facts().items() if f"rule:{rule.id}" in claim.used_by}
    assert {key for key in rule.cites if not key.startswith("https://")} == named
    assert all(fact(key).status != DO_NOT_USE for key in named)


def test_claims_name_rules_that_exist() -> None:
    used = {
        user.removeprefix("rule:") for claim in facts().values() for user in claim.used_by if user.startswith("rule:")
    }
    assert used <= BY_ID.keys()


def test_no_number_of_a_claim_without_its_key() -> None:
    """What a rule reads from facts.toml it also cites."""
    for path in FOLDER.glob("[!_]*.py"):
        text = path.read_text(encoding="utf-8")
        read = set(re.findall(r'\b(?:value|span|fact)\("([\w.-]+)"', text))
        assert read <= set(BY_ID[path.stem.replace("_", "-")].cites), path.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_needs_and_phases_are_known(rule: Rule) -> None:
    assert set(rule.needs) <= NEEDS.keys()
    assert set(rule.phases) <= set(PHASES)
    assert bool(rule.phases) == bool(rule.because)
    assert not rule.because or rule.because in rule.cites


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ("vllm::moe_forward", "--enforce-eager"),
        ("sgl_kernel::fwd", "--disable-cuda-graph"),
        ("aten::mm", "torch.compile"),
    ],
)
def test_what_captures_is_said_in_the_words_of_the_program(operator: str, says: str) -> None:
    view = view_of(f"""
        step |...................
        host OO.a.OO.b.OO.c.OO.d
        s7   ....a.....b....c...d
        a: {operator}
        repeat: 4
        scale: 10us
    """)
    (claim,) = BY_ID["cuda-graphs"].check(view)
    assert says in claim.how


@pytest.mark.parametrize(
    ("asked_for", "says", "not_said"),
    [
        ("device: a100-sxm4-80", "bfloat16", "fp16"),
        ("device: v100-sxm2", "GradScaler", "bfloat16"),
        ("device: v100-sxm2\n phase: prefill", "autocast with fp16;", "GradScaler"),
        ("", "before Ampere", "has no bf16"),  # the device is not known
    ],
)
def test_the_precision_advised_is_one_that_the_device_has(asked_for: str, says: str, not_said: str) -> None:
    (claim,) = BY_ID["mixed-precision"].check(
        view_of(f"""
 step |...................
 host abS==============..
 s7   .aaaaaaaaaaaaabbbbbb
 a: volta_sgemm_128x64_tn
 {asked_for}
 repeat: 4
 scale: 100us
""")
    )
    assert says in claim.how and not_said not in claim.how


@pytest.mark.parametrize(
    ("a", "b", "title"),
    [
        ("volta_sgemm_128x64_tn", "volta_sgemm_64x64_nn", "Matrix products in fp32"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "relu", "Convolutions in fp32"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "volta_sgemm_64x64_nn", "Convolutions and matrix products in fp32"),
    ],
)
def test_fp32_work_is_called_by_what_it_is(a: str, b: str, title: str) -> None:
    (claim,) = BY_ID["mixed-precision"].check(
        view_of(f"""
 step |...................
 host abS==============..
 s7   .aaaaaaaaaaaaabbbbbb
 a: {a}
 b: {b}
 device: v100-sxm2
 repeat: 4
 scale: 100us
""")
    )
    assert claim.title == title


def test_no_rule_takes_more_than_the_wall_though_many_streams_run(tmp_path: Path) -> None:
    """Four streams multiply for all of the time: that is the whole wall and not four of it."""
    from gpu_trace_advisor.advice.build import advise_traces
    from gpu_trace_advisor.ingest import read

    from tests import build as b

    events = []
    for i in range(40):
        for stream in range(4):
            n = 4 * i + stream + 1
            at = 1000 * i + 5 * stream
            events += [b.op("aten::mm", at, at + 4), b.call(at + 1, at + 3, n),
                       b.kernel(1000 * i + 30, 1000 * i + 1030, n, "volta_sgemm_128x64_nn", stream=stream)]  # fmt: skip
    found = advise_traces([read(b.written(tmp_path / "a.json", *events))])
    (finding,) = (one for one in found.findings if one.rule == "mixed-precision")
    assert "take 100.0 % of the wall (40.0 ms)" in finding.message
    assert finding.ns == found.devices[0].wall_ns
