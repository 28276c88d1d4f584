"""What the page answers: selections, searches, addresses, fixes, flame graphs, copies."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.advice.build import examine
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.ingest import read

from tests.browser.pages import Open, click_box, data_of, lanes_of, view

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]


def stream_lane(page: Any) -> int:
    """The number of the first stream's lane."""
    lanes = data_of(page)["devices"][0]["lanes"]
    return next(i for i, lane in enumerate(lanes) if lane["kind"] == "stream")


def longest_box(page: Any, lane: int) -> int:
    """The longest box of a lane."""
    lengths = data_of(page)["devices"][0]["lanes"][lane]["d"]
    return int(lengths.index(max(lengths)))


def facts(page: Any) -> dict[str, str]:
    """The selection panel."""
    names = page.eval_on_selector_all("#selection dt", "all => all.map((one) => one.textContent)")
    values = page.eval_on_selector_all("#selection dd", "all => all.map((one) => one.textContent)")
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("name", ["training-dataloader", "comm-bound-rank", "comparison", "graph-decode-nsys"])
def test_the_first_finding_is_three_tab_stops_away(page: Open, name: str) -> None:
    opened = page(name)
    for _ in range(3):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.matches('details.finding > summary')"):
            return
    pytest.fail("no finding after three tab stops")


@pytest.mark.parametrize("name", ["training-dataloader", "comm-bound-rank", "comparison", "graph-decode-nsys"])
def test_what_to_do_is_on_the_first_screen_and_with_every_finding(page: Open, name: str) -> None:
    opened = page(name, width=1440)
    answer = opened.locator(".answer").last
    assert answer.inner_text().startswith("Do")
    assert answer.bounding_box()["y"] < 900
    for do in opened.locator("section > .findings > li .do").all():
        assert do.is_visible()
        assert len(do.inner_text()) > 10


def test_a_selected_box_says_what_is_known_of_it_and_leads_to_its_finding(page: Open) -> None:
    opened = page("training-dataloader")
    idle = data_of(opened)["devices"][0]["lanes"][0]
    assert idle["kind"] == "idle"
    click_box(opened, 0, longest_box(opened, 0))
    told = facts(opened)
    assert told["cause"].startswith("data loader")
    assert told["length"] == "22 ms"  # the first batch of the sample takes 22.000 ms
    opened.click("#selection .to-finding")
    finding = opened.locator("details.finding[open]")
    assert "dataloader" in finding.locator("code").last.inner_text()
    assert opened.evaluate("document.activeElement.closest('details.finding') !== null")
    click_box(opened, stream_lane(opened), longest_box(opened, stream_lane(opened)))
    assert facts(opened)["kind"] == "copies"


def test_the_panel_has_all_that_a_recording_says_of_a_kernel_and_of_a_wait(page: Open) -> None:
    opened = page("known")
    click_box(opened, stream_lane(opened), 0)
    told = facts(opened)
    assert told["kind"] == "matrix products"
    assert (
        told["at"] == "0.340 ms" and told["length"] == "200 µs" and told["launched"].startswith("30 µs before it began")
    )
    assert told["operator"] == "aten::mm"
    assert told["stack"].splitlines() == ["train.py(7): step", "Net_0", "forward"]
    assert "1024" in told["shapes"] and re.sub(r"[^0-9]+", " ", told["grid"]).split() == [
        "8",
        "16",
        "1",
        "256",
        "1",
        "1",
    ]
    # 2 × 1,024³ FLOP at 19.5 TFLOP/s, the A100's peak in fp32, take 110 µs; what can be reached is somewhat less
    assert 0.5 <= float(told["of reachable"].split()[0]) / 100 <= 0.75
    click_box(opened, 0, longest_box(opened, 0))
    told = facts(opened)
    assert "host side" in told["cause"] and told["length"] in ("290 µs", "260 µs", "0.26 ms", "0.29 ms")


def test_hovering_goes_on_after_a_selection(page: Open) -> None:
    opened = page("training-dataloader")
    lane = stream_lane(opened)
    click_box(opened, lane, longest_box(opened, lane))
    before = opened.inner_text("#box")
    top, height = lanes_of(opened)[0]
    box = opened.locator("#lanes").bounding_box()
    opened.mouse.move(box["x"] + 200, box["y"] + top + height / 2)
    assert opened.inner_text("#box") != before
    assert opened.locator("#selection").is_visible()


def test_an_address_brings_everything_back(page: Open) -> None:
    opened = page("training-dataloader")
    opened.locator("details.finding > summary").nth(1).click()
    lane = stream_lane(opened)
    opened.click("[data-do=all]")
    click_box(opened, lane, longest_box(opened, lane))
    opened.click("[data-do=in]")
    shown, panel = view(opened), facts(opened)
    address = opened.evaluate("location.hash")
    assert {part.split("=")[0] for part in address[1:].split("&")} == {"t", "sel", "finding"}
    opened.goto("about:blank")
    again = page("training-dataloader", at=address)
    assert view(again) == pytest.approx(shown, abs=2)
    assert facts(again) == panel
    assert again.locator("details.finding[open] .rank").inner_text() == "2"


@pytest.mark.parametrize(
    "address", ["#t=5-x", "#sel=99.99", "#finding=77", "#t=9-1&sel=a.b", "#device=9", "#main", "#%E0%A4"]
)
def test_an_address_that_says_nonsense_does_no_harm(page: Open, address: str) -> None:
    opened = page("training-dataloader", at=address)
    begin, end = view(opened)
    assert end > begin


def test_search_finds_and_goes_from_match_to_match(page: Open) -> None:
    opened = page("training-dataloader")
    opened.fill("#search", "memcpy")
    assert re.fullmatch(r"[1-9][0-9,]* boxes, .* ms", opened.inner_text("#matches"))
    seen = []
    for _ in range(2):
        opened.press("#search", "Enter")
        seen.append((opened.inner_text("#selection"), facts(opened)["at"]))
    assert all("emcpy" in text for text, _ in seen)
    assert seen[0] != seen[1]
    opened.fill("#search", "no such kernel")
    assert opened.inner_text("#matches") == "nothing found"
    opened.fill("#search", "")
    assert opened.inner_text("#matches") == ""


def test_each_choice_of_fixes_says_what_what_if_says(page: Open, sample: Callable[[str], Path]) -> None:
    opened = page("training-dataloader")
    rules = [code.inner_text() for code in opened.locator(".choices code").all()]
    trace = read(sample("training-dataloader"))
    assert len(rules) >= 2
    for mask in range(1, 2 ** len(rules)):
        chosen = [rule for i, rule in enumerate(rules) if mask >> i & 1]
        for i in range(len(rules)):
            opened.set_checked(f"[data-fix='{i}']", bool(mask >> i & 1))
        expected = examine([trace], Request(what_if=",".join(chosen)))[0].what_if[0].saving_ns
        shown = opened.get_attribute("#after", "data-saves")
        assert [int(ns) for ns in shown.split(",")] == list(expected or ())
        assert f"--what-if {','.join(chosen)}" in opened.inner_text("#after-text")
    for i in range(len(rules)):
        opened.set_checked(f"[data-fix='{i}']", False)
    assert "nothing is replayed" in opened.inner_text("#after-text")


def test_a_flame_graph_looks_into_a_box_and_back(page: Open) -> None:
    opened = page("training-dataloader")
    graph = opened.locator("#by-time")
    whole = graph.bounding_box()["width"]
    box = graph.locator("svg").nth(1)
    assert box.bounding_box()["width"] < whole
    box.locator("rect").click()
    assert box.bounding_box()["width"] == pytest.approx(whole, rel=0.01)
    opened.keyboard.press("Escape")
    assert box.bounding_box()["width"] < whole


def test_copies_for_an_issue_and_a_spreadsheet(page: Open) -> None:
    opened = page("training-dataloader")
    finding = opened.locator("details.finding").first
    finding.locator("summary").first.click()
    finding.locator("button.issue").click()
    opened.wait_for_selector("button.issue[data-copied]")
    text = finding.locator("button.issue").get_attribute("data-copied")
    title = finding.locator(".title").inner_text()
    assert text.startswith(f"### {title}\n")
    for part in ("**Do:**", "**Saves:**", "**Evidence**", "training-dataloader.json.gz"):
        assert part in text
    opened.click("[data-csv=t-kernels]")
    opened.wait_for_selector("[data-csv=t-kernels][data-copied]")
    rows = list(csv.reader(io.StringIO(opened.get_attribute("[data-csv=t-kernels]", "data-copied"))))
    assert rows[0][:3] == ["kernel", "class", "calls"]
    assert len({len(row) for row in rows}) == 1
    assert all(row[2].isdigit() for row in rows[1:])


def test_a_recording_without_gpu_work_has_steps_threads_and_how_to_record(page: Open) -> None:
    opened = page("cpu-mlp")
    text = opened.inner_text("body")
    for words in ("To record the GPU", "ProfilerActivity.CUDA", "Steps", "Timeline", "Operators"):
        assert words in text
    lanes = data_of(opened)["devices"][0]["lanes"]
    assert {lane["kind"] for lane in lanes} == {"host"}
    opened.focus("#lanes")
    opened.keyboard.press("n")
    assert "thread" in facts(opened)["where"]


def test_a_comparison_gives_a_step_one_length(page: Open) -> None:
    """The headline, the table and the answer speak of the same step."""
    opened = page("comparison")
    assert "a step takes 800.0 µs instead of 1.10 ms" in opened.inner_text("h1").replace("\u00a0", " ")
    row = opened.locator(".times tbody tr").first.inner_text().replace("\u00a0", " ")
    assert "1.10 ms" in row and "800.0 µs" in row
    assert "a step of 800.0 µs takes" in opened.locator(".answer").first.inner_text().replace("\u00a0", " ")


def test_print_keeps_the_shape_of_the_timeline(page: Open) -> None:
    opened = page("training-dataloader")
    view(opened)
    shape = opened.eval_on_selector("#lanes", "canvas => canvas.width / canvas.height")
    opened.emulate_media(media="print")
    opened.set_viewport_size({"width": 700, "height": 900})
    opened.wait_for_timeout(100)
    box = opened.locator("#lanes").bounding_box()
    drawn_shape = opened.eval_on_selector("#lanes", "canvas => canvas.width / canvas.height")
    assert box["width"] / box["height"] == pytest.approx(drawn_shape, rel=0.03)
    assert shape > 0


@pytest.mark.parametrize("name", ["training-dataloader", "comm-bound-rank", "comparison", "known"])
def test_print_fits_the_paper(page: Open, name: str) -> None:
    """Nothing is wider than an A4 page between its margins, or all of it would be printed smaller."""
    opened = page(name)
    opened.emulate_media(media="print")
    opened.set_viewport_size({"width": 690, "height": 1000})  # 210 mm less twice 14, at 96 points an inch
    assert opened.evaluate("document.documentElement.scrollWidth") <= 690


def test_the_page_asks_for_nothing_and_says_one_clock(page: Open) -> None:
    """Gaps, findings, ruler and readout count from the recording's first event."""
    opened = page("training-dataloader")
    device = data_of(opened)["devices"][0]
    lane = device["lanes"][0]
    longest = longest_box(opened, 0)
    click_box(opened, 0, longest)
    at = (sum(lane["t"][: longest + 1]) + device["origin"]) / 1e6
    assert facts(opened)["at"] == f"{at:,.3f} ms" or json.dumps(at)[:5] in facts(opened)["at"]
    gap = opened.locator(".gaps tbody tr").first.locator("td").nth(1).inner_text()
    assert gap.split()[0] == f"{at:,.3f}"


def test_a_flame_graph_by_keyboard_says_and_names_what_it_looks_into(page: Open) -> None:
    """A box too narrow for a name has one once it is as wide as the graph."""
    opened = page("training-dataloader")
    graph = opened.locator("#by-time")
    whole = graph.bounding_box()["width"]
    graph.focus()
    opened.keyboard.press("ArrowRight")
    first = opened.inner_text("#by-time-box")
    for _ in range(30):
        opened.keyboard.press("ArrowRight")
    told = opened.inner_text("#by-time-box")
    assert told != first and re.search(r": .* [nµm]?s, [0-9.<]+ %$", told.replace("\u00a0", " "))
    opened.keyboard.press("Enter")
    box = graph.locator("svg.current")
    assert box.bounding_box()["width"] == pytest.approx(whole, rel=0.01)
    assert box.locator("text").text_content() == told.rsplit(": ", 1)[0]
    opened.keyboard.press("Escape")
    assert box.bounding_box()["width"] < whole / 2


def test_each_cell_of_the_heat_strip_says_what_it_is(page: Open, sample: Callable[[str], Path]) -> None:
    """By pointer and by keyboard: the step, the cause, its time, as the drawing has them."""
    opened = page("training-dataloader")
    device = examine([read(sample("training-dataloader"))], Request())[0].devices[0]
    strip = opened.locator("#heat svg").first
    box = strip.bounding_box()
    count = len(device.steps)
    strip.hover(position={"x": box["width"] * 2.5 / count, "y": box["height"] / 2})
    told = opened.inner_text("#cell").replace("\u00a0", " ")
    assert told.startswith(f"{device.steps[2].name}: data loader ")
    assert strip.locator("title").text_content().replace("\u00a0", " ") == told
    opened.focus("#heat")
    opened.keyboard.press("ArrowRight")
    assert opened.inner_text("#cell").startswith(f"{device.steps[3].name}: data loader ")
    opened.keyboard.press("ArrowDown")
    below = opened.inner_text("#cell")
    assert below.startswith(f"{device.steps[3].name}: ") and "data loader" not in below
    total = sum(item.ns for item in device.attribution if item.cause == "dataloader")
    row = next(row for row in data_of(opened)["heat"]["causes"] if row[0] == "data loader")
    assert sum(row[1:]) == pytest.approx(total, rel=1e-6)
    assert data_of(opened)["heat"]["steps"] == [step.name for step in device.steps]


def test_what_is_expected_is_what_the_findings_promise(page: Open) -> None:
    """The mark under the strips ends where the step does with the saving that is said."""
    opened = page("training-dataloader")
    found = data_of(opened)["fixes"]
    for fix in found:
        fast, slow = fix["ends"]
        assert fast <= slow <= 100
    opened.uncheck("[data-fix='0']")
    alone = next(fix for fix in found if fix["fixes"] == list(range(1, len(found).bit_length())))
    assert opened.get_attribute("#promise", "x") == f"{alone['ends'][0]:g}%"
