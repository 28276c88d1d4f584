"""The ladder of a decode, against numbers worked out by hand."""

import dataclasses

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.ranking import judge
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.decode.ladder import LABEL, Ladder, Rung, ladder
from gpu_trace_advisor.decode.passes import Decoding, expected_tokens, speculation
from gpu_trace_advisor.report.text.page import render
from gpu_trace_advisor.rulekit.drawing import parse
from gpu_trace_advisor.rulekit.rule import Finding

# Passes of 10 ms, replayed as graphs; the kernels run for 9 of them.
REPLAYS = """
step |.........
host g.S=======
s7   .ggggggggg
g: graph my_gemm_kernel
repeat: 3
scale: 1ms
device: H100 SXM
"""
# 1 x 4096 x 57344 in bf16: 469.8 MB of weights; attention reads 2 x 8 x 4096 x 128 x 2 B = 16.8 MB.
SHAPES = """
step |....................
host a.b.S===============
s7   .aaaaaaaaaaaaaaaabb.
a: aten::mm [1,4096]x[4096,57344] bf16
b: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,4096,128]x[1,8,4096,128] bf16 > flash_fwd_splitkv
repeat: 3
scale: 10us
device: H100 SXM
"""


def view_of(text: str, **request: object) -> DeviceWindow:
    return views(parse(text), Request(**{"phase": "decode", **request}))[0][0]  # type: ignore[arg-type]


def ladder_of(text: str, **request: object) -> Ladder:
    view = view_of(text, **request)
    found = ladder(view, judge(view, find_rules()[0]).findings)
    assert found is not None
    return found


def rung(found: Ladder, name: str) -> Rung:
    return next(rung for rung in found.rungs if rung.name == name)


def test_8b_in_bf16_on_h100_makes_209_tokens_a_second_at_most() -> None:
    found = ladder_of(REPLAYS, weights=16_000_000_000)
    assert found.floor_ns == pytest.approx(16e9 / 3.35e12 * 1e9, abs=1)
    assert rung(found, "floor").passes_per_s[0] == pytest.approx(209.4, abs=0.1)
    assert (found.passes, found.pass_ns) == (3, 10_000_000)
    assert found.share == pytest.approx(0.4776, abs=1e-4)
    assert rung(found, "this trace").passes_per_s == (100.0, 100.0)
    assert "--weights" in found.why
    assert found.devices_needed == 1


def test_weights_and_cache_of_the_recorded_shapes() -> None:
    found = ladder_of(SHAPES)
    assert found.weights == 4096 * 57344 * 2
    assert found.cache == 2 * 8 * 4096 * 128 * 2 + 2 * 32 * 128 * 2  # keys and values; a query and a result
    assert found.floor_ns == pytest.approx((469_762_048 + 16_793_600) / 3.35e12 * 1e9, abs=1)
    assert found.tokens_per_s == pytest.approx(1e9 / 210_000)


def test_without_weights_there_is_no_floor_and_the_reason_is_given() -> None:
    found = ladder_of(REPLAYS)
    assert (found.floor_ns, found.share) == (None, None)
    assert "--weights" in found.why
    assert rung(found, "this trace").share is None


def test_weights_that_do_not_fit_need_more_devices() -> None:
    assert ladder_of(REPLAYS, weights=140_000_000_000).devices_needed == 2


def test_weights_that_cannot_be_read_in_a_pass_give_no_floor() -> None:
    found = ladder_of(REPLAYS, weights=140_000_000_000)
    assert (found.floor_ns, found.share) == (None, None)
    assert found.why.startswith("reading 140 GB takes at least 41.8 ms, and passes take 10.0 ms")
    assert [rung.name for rung in found.rungs] == ["this trace"]


def test_each_finding_moves_the_passes_on_top_of_those_before() -> None:
    view = view_of(SHAPES)
    findings = [f for f in judge(view, find_rules()[0]).findings if f.saving_ns]
    found = ladder(view, findings)
    assert found is not None
    assert [f.rule for f in findings if f.rule == "weight-quantization"]
    low, high = (sum(f.saving_ns[i] for f in findings if f.saving_ns) for i in (0, 1))
    last = rung(found, f"with {findings[-1].rule}")
    assert last.passes_per_s == pytest.approx((3e9 / (630_000 - low), 3e9 / (630_000 - high)))


def finding(rule: str, saving: tuple[int, int]) -> Finding:
    return Finding(
        rule,
        "",
        "",
        "drawing",
        None,
        None,
        0,
        1,
        (),
        saving,
        saving,
        (1.0, 1.0),
        "",
        "assumed",
        "high",
        (),
        (),
        "",
        (),
        (),
        "",
        "",
    )


def test_no_step_goes_beyond_the_floor() -> None:
    view = view_of(REPLAYS, weights=16_000_000_000)
    found = ladder(view, [finding("cuda-graphs", (3_000_000, 29_000_000))])
    assert found is not None
    assert rung(found, "with cuda-graphs").passes_per_s == pytest.approx((3e9 / 27e6, 3.35e12 / 16e9))
    assert rung(found, "with cuda-graphs").share == pytest.approx((0.5307, 1.0), abs=1e-4)


def test_fewer_bytes_lower_the_floor() -> None:
    view = view_of(REPLAYS, weights=16_000_000_000)
    found = ladder(view, [finding("weight-quantization", (3_000_000, 29_000_000))])
    assert found is not None
    assert rung(found, "floor with weight-quantization").passes_per_s[0] == pytest.approx(3.35e12 / 8e9)
    assert rung(found, "with weight-quantization").passes_per_s[1] == pytest.approx(3.35e12 / 8e9)


@pytest.mark.parametrize(("weights", "shown"), [(2_480_000_000, True), (3_999_999_999, True), (4_000_000_000, False)])
def test_what_others_reached_stands_beside_small_models_only(weights: int, shown: bool) -> None:
    references = [rung for rung in ladder_of(REPLAYS, weights=weights).rungs if rung.grade == "reference"]
    assert [r.source for r in references] == [LABEL] * (3 if shown else 0)


def test_what_others_reached_by_hand() -> None:
    found = ladder_of(REPLAYS, weights=2_480_000_000)  # 1350 passes a second at most
    assert rung(found, "floor").passes_per_s[0] == pytest.approx(1350.8, abs=0.1)
    assert rung(found, "a megakernel").passes_per_s[0] == pytest.approx(1053.6, abs=0.1)
    assert rung(found, "eager PyTorch").share == (0.2, 0.35)
    assert rung(found, "vLLM and SGLang").share == pytest.approx((420 / 1350, 700 / 1350))


@pytest.mark.parametrize("phase", ["training", "prefill"])
def test_other_phases_have_no_ladder(phase: str) -> None:
    assert ladder(view_of(REPLAYS, phase=phase, weights=1), ()) is None


def test_what_a_pass_is() -> None:
    assert Decoding(view_of(REPLAYS)).passes.value == 3
    unmarked = REPLAYS.replace("step |.........\n", "").replace("repeat: 3", "repeat: 1")
    unmarked = unmarked.replace("host g.S=======", "host g.S=======").replace("ggggggggg", "gggg.gggg")
    assert Decoding(view_of(unmarked)).passes == (1, "graph replays, each a whole pass")
    assert Decoding(view_of(unmarked.replace("g: graph", "g:"))).passes.value is None


def test_speculation_by_hand() -> None:
    assert expected_tokens(5, 0.7) == pytest.approx(2.94, abs=0.005)
    assert expected_tokens(1, 0.5) == 1.5
    assert speculation(5, 0.7, 0.03) == pytest.approx(2.94 / 1.15, abs=0.005)
    assert speculation(5, 0.7, 0.08) == pytest.approx(2.94 / 1.4, abs=0.005)


def test_the_text_shows_it() -> None:
    advice = advise_traces([parse(REPLAYS)], Request(phase="decode", weights=2_480_000_000))
    text = render(advice, color=False, width=80)
    section = text[text.index("DECODE LADDER") :]
    assert "2.48 GB of weights: at least 740.3 µs" in section
    assert "20–35 %" in section
    assert "Llama-1B" in section
    assert max(map(len, text.splitlines())) <= 80
    quiet = dataclasses.replace(advice, ladders=())
    assert "LADDER" not in render(quiet, color=False, width=80)
