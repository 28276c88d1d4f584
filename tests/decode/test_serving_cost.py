"""Costs of serving, against numbers worked out by hand."""

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.decode.serving_cost import Serving, price_per_million, serving
from gpu_trace_advisor.report.text.page import render
from gpu_trace_advisor.rulekit.drawing import parse

from tests.decode.test_ladder import REPLAYS, SHAPES

# A prefill of 7 ms, then decode steps of 3 ms each.
MIXED = """
step |...................
host O======.D=.D=.D=.D=
host2 a.......b..c..d..e.
s7   .aaaaaaa.bb.cc.dd.ee
O: execute_context_1(2048)_generation_0(0)
D: execute_context_0(0)_generation_4(4)
scale: 1ms
device: H100 SXM
"""


def view_of(text: str, **request: object) -> DeviceWindow:
    return views(parse(text), Request(**request))[0][0]  # type: ignore[arg-type]


def panel(text: str, **request: object) -> Serving:
    found = serving(view_of(text, **request))
    assert found is not None
    return found


def test_the_price_of_a_million_tokens() -> None:
    assert price_per_million(2.5, 800) == pytest.approx(0.868, abs=0.001)
    assert price_per_million(None, 800) is None
    assert price_per_million(2.5, None) is None


def test_nobody_asked() -> None:
    assert serving(view_of(REPLAYS, phase="decode")) is None
    assert serving(view_of(REPLAYS, phase="training", price=2.5)) is None


@pytest.mark.parametrize(("phase", "told"), [("training", 1), ("decode", 0)])
@pytest.mark.parametrize("request_", [{"price": 2.5}, {"batch": 8}, {"output_tokens": 500}, {}])
def test_one_who_asks_for_costs_of_what_serves_nothing_is_told(
    phase: str, told: int, request_: dict[str, float]
) -> None:
    asked = Request(phase=phase, **request_)  # type: ignore[arg-type]
    notes = [note for note in advise_traces([parse(REPLAYS)], asked).health if note.code == "not-served"]
    assert len(notes) == (told if request_ else 0)
    assert all("no decode (training)" in note.message for note in notes)


def test_measured_times_and_their_price() -> None:
    found = panel(REPLAYS, phase="decode", price=2.5, batch=8)
    assert found.next_token_ns == 10_000_000
    assert found.tokens_per_s == pytest.approx(800)
    assert found.price_per_million == pytest.approx(0.868, abs=0.001)
    assert found.batch_why == "as told with --batch"
    assert found.first_token_ns is None
    assert found.devices == 1


def test_a_prefill_among_the_steps_is_the_time_to_the_first_token() -> None:
    found = panel(MIXED, output_tokens=100)
    assert found.first_token_ns == 7_000_000
    assert found.batch == 4
    assert found.next_token_ns == 3_000_000
    assert found.request_ns == 7_000_000 + 100 * 3_000_000
    assert found.requests_per_s == pytest.approx(4 / 0.307)
    assert found.price_per_million is None


def test_without_a_prefill_its_arithmetic_is_estimated() -> None:
    found = panel(REPLAYS, phase="decode", weights=16_000_000_000, prompt_tokens=500)
    assert found.first_token_ns == pytest.approx(2 * 8e9 * 500 / 989.4e12 / 0.6 * 1e9, rel=1e-3)  # 13.5 ms
    assert found.first_token_why.startswith("modelled")


def test_a_larger_batch_adds_its_cache() -> None:
    found = panel(SHAPES, phase="decode", price=2.5)
    double = found.choices[0]
    attainable = 0.9 * 3.35e12
    assert double.name == "batch × 2"
    assert double.next_token_ns[0] == pytest.approx(210_000 + 16_793_600 / attainable * 1e9, rel=0.08)
    assert double.tokens_per_s[0] == pytest.approx(2e9 / double.next_token_ns[0], rel=1e-4)
    assert double.fits is True


def test_smaller_weights_save_at_most_their_bytes() -> None:
    found = panel(REPLAYS, phase="decode", weights=16_000_000_000, batch=1, price=2.5)
    eight = next(choice for choice in found.choices if choice.name == "weights in 8 bits")
    saved = 8e9 / (0.9 * 3.35e12) * 1e9
    assert eight.next_token_ns == pytest.approx((10e6 - 0.7 * saved, 10e6 - saved), rel=0.03)
    assert eight.price_per_million is not None
    assert eight.price_per_million[0] > eight.price_per_million[1]


def test_one_who_wants_latency_is_offered_no_batch() -> None:
    found = panel(SHAPES, phase="decode", price=2.5, objective="latency")
    assert [choice.name for choice in found.choices] == ["weights in 8 bits", "weights in 4 bits"]


def test_no_smaller_weights_while_the_host_is_the_bottleneck() -> None:
    slow = REPLAYS.replace("step |.........", "step |..........").replace("host g.S=======", "host OOOOOg.S===")
    slow = slow.replace("s7   .ggggggggg", "s7   ......ggggg")
    found = panel(slow, phase="decode", price=2.5, batch=1, weights=2_000_000_000)
    assert {choice.name for choice in found.choices} == {"batch × 2", "batch × 4", "batch × 8"}


def test_no_batch_above_the_ridge() -> None:
    found = panel(REPLAYS, phase="decode", price=2.5, batch=200, weights=16_000_000_000)
    assert not any(choice.name.startswith("batch") for choice in found.choices)


def test_the_text_shows_it() -> None:
    request = Request(phase="decode", price=2.5, batch=8, weights=16_000_000_000, output_tokens=10, prompt_tokens=100)
    text = render(advise_traces([parse(REPLAYS)], request), color=False, width=80)
    section = text[text.index("SERVING") :]
    assert "price of one device: 2.5 an hour" in section
    assert "per million   0.868" in section
    assert max(map(len, text.splitlines())) <= 80
