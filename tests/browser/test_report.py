"""The report in a real browser: what a person does with it, and what it must not do.

`make check-browser` runs these with Debian's Chromium; ADVISE_BROWSER names the program.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from tests.browser.pages import SAMPLES, Open, click_box, data_of, view

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]

LOOKS = (
    *((name, 1280, "light") for name in (*SAMPLES, "evil", "comparison")),
    ("training-dataloader", 1280, "dark"), ("training-dataloader", 400, "light"), ("comm-bound-rank", 400, "dark"),
    ("comparison", 400, "light"), ("cpu-mlp", 820, "dark"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "width", "scheme"), LOOKS)
def test_everybody_can_read_it(page: Open, name: str, width: int, scheme: str) -> None:
    """axe-core finds nothing, everything opened; the page is never wider than the screen."""
    opened = page(name, width=width, scheme=scheme)
    opened.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = opened.evaluate("axe.run({ resultTypes: ['violations'] })")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def test_names_of_a_trace_run_nothing(page: Open) -> None:
    opened = page("evil")
    assert opened.query_selector("img") is None
    assert opened.evaluate("[...document.scripts].length") == 2
    assert "</script><img" in opened.text_content("#t-kernels")


def test_buttons_keys_and_wheel_zoom_and_pan(page: Open) -> None:
    opened = page("training-dataloader")
    whole = view(opened)
    opened.click("[data-do=in]")
    first = view(opened)
    assert first[1] - first[0] == pytest.approx((whole[1] - whole[0]) / 2)
    opened.click("[data-do=right]")
    assert view(opened)[0] > first[0]
    opened.click("#lanes", position={"x": 500, "y": 120})
    before = view(opened)
    opened.mouse.wheel(0, -400)
    assert view(opened)[1] - view(opened)[0] < before[1] - before[0]
    opened.keyboard.press("0")
    assert view(opened) == whole
    opened.keyboard.press("+")
    opened.keyboard.press("ArrowLeft")
    assert view(opened)[1] - view(opened)[0] == pytest.approx((whole[1] - whole[0]) / 2)
    opened.keyboard.press("Home")
    box = opened.query_selector("#lanes").bounding_box()
    opened.keyboard.press("+")
    before = view(opened)
    opened.mouse.move(box["x"] + 700, box["y"] + 60)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 500, box["y"] + 60, steps=4)
    opened.mouse.up()
    assert view(opened)[0] > before[0]


def test_a_page_that_scrolls_goes_on_scrolling(page: Open) -> None:
    opened = page("training-dataloader")
    opened.locator("#lanes").scroll_into_view_if_needed()
    before, at = view(opened), opened.evaluate("scrollY")
    box = opened.query_selector("#lanes").bounding_box()
    opened.mouse.move(box["x"] + 400, box["y"] + 40)
    opened.mouse.wheel(0, 200)
    assert view(opened) == before
    assert opened.evaluate("scrollY") > at


def test_fingers_pan_and_pinch(page: Open) -> None:
    opened = page("training-dataloader", width=400, has_touch=True, is_mobile=True)
    opened.locator("#lanes").scroll_into_view_if_needed()
    whole = view(opened)
    opened.evaluate(
        """() => {
      const canvas = document.getElementById("lanes"), box = canvas.getBoundingClientRect();
      canvas.setPointerCapture = () => {};
      const send = (type, id, x) => canvas.dispatchEvent(new PointerEvent(type,
        { pointerId: id, pointerType: "touch", clientX: box.left + x, clientY: box.top + 60, bubbles: true }));
      send("pointerdown", 1, 180); send("pointerdown", 2, 220);
      for (let i = 1; i <= 8; i++) { send("pointermove", 1, 180 - 8 * i); send("pointermove", 2, 220 + 8 * i); }
      send("pointerup", 1, 116); send("pointerup", 2, 284);
    }"""
    )
    after = view(opened)
    assert after[1] - after[0] < 0.7 * (whole[1] - whole[0])


def test_a_finding_shows_its_evidence(page: Open) -> None:
    opened = page("training-dataloader")
    whole = view(opened)
    finding = opened.locator("details.finding").first
    marks = [float(mark) for mark in finding.get_attribute("data-marks").split(",")]
    finding.locator("summary").first.click()
    finding.locator(".show").click()
    begin, end = view(opened)
    assert end - begin < whole[1] - whole[0]
    assert begin <= marks[0] <= end
    assert opened.inner_text("#box").startswith(f"Place 1 of {len(marks)}")
    assert opened.evaluate("document.activeElement.id") == "lanes"
    opened.click("[data-do=next]")
    assert view(opened)[0] <= marks[1] <= view(opened)[1]
    assert opened.locator("#lanes").bounding_box()["y"] < 900


def test_opening_a_finding_moves_the_timeline(page: Open) -> None:
    opened = page("training-dataloader")
    whole = view(opened)
    opened.locator("details.finding > summary").first.click()
    assert view(opened) != whole


def test_boxes_by_keyboard_and_their_launches(page: Open) -> None:
    opened = page("training-dataloader")
    opened.focus("#lanes")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("n")
    kernel = opened.inner_text("#box")
    assert "stream" in kernel
    assert "launched" in kernel
    opened.keyboard.press("Enter")
    begin, end = view(opened)
    assert end - begin < 1e7
    opened.keyboard.press("n")
    assert opened.inner_text("#box") != kernel
    opened.keyboard.press("ArrowDown")
    assert "thread" in opened.inner_text("#box")
    opened.keyboard.press("Escape")
    assert opened.inner_text("#box") == ""


def test_a_click_selects_the_box_below_it(page: Open) -> None:
    opened = page("training-dataloader")
    opened.locator("#lanes").scroll_into_view_if_needed()
    data = data_of(opened)["devices"][0]
    number = next(i for i, lane in enumerate(data["lanes"]) if lane["kind"] == "stream")
    lane = data["lanes"][number]
    longest = lane["d"].index(max(lane["d"]))
    click_box(opened, number, longest)
    assert data["texts"][data["details"][lane["n"][longest]][0]] in opened.inner_text("#box")


def test_the_critical_path_and_another_device(page: Open) -> None:
    opened = page("comm-bound-rank")
    before = opened.locator("#lanes").screenshot()
    opened.check("#critical")
    view(opened)
    assert opened.locator("#lanes").screenshot() != before
    opened.select_option("#device", "1")
    assert opened.eval_on_selector("#viewport", "port => port.hasAttribute('hidden')")
    assert view(opened)[1] > 0


def test_tables_sort_and_filter(page: Open) -> None:
    opened = page("training-dataloader")

    def column(number: int) -> list[float]:
        query = f"#t-kernels tbody tr:not([hidden]) td:nth-child({number})"
        found: list[float] = opened.eval_on_selector_all(query, "cells => cells.map((cell) => Number(cell.dataset.v))")
        return found

    calls = opened.locator("#t-kernels th button").nth(2)
    calls.click()
    assert column(3) == sorted(column(3), reverse=True)
    calls.focus()
    opened.keyboard.press("Enter")
    assert column(3) == sorted(column(3))
    assert opened.locator("#t-kernels th").nth(2).get_attribute("aria-sort") == "ascending"
    opened.locator("#t-kernels th button").nth(0).click()
    names = opened.eval_on_selector_all(
        "#t-kernels tbody td:first-child", "cells => cells.map((cell) => cell.innerText.toLowerCase())"
    )
    assert names == sorted(names)
    everything = len(column(3))
    opened.fill("[data-filter=t-kernels]", "no such kernel")
    assert column(3) == []
    opened.fill("[data-filter=t-kernels]", names[0][:6])
    assert 0 < len(column(3)) <= everything


def test_the_bar_tells_its_parts(page: Open) -> None:
    opened = page("training-dataloader")
    part = opened.locator(".bar g").first
    assert not part.locator(".tip").is_visible()
    part.focus()
    assert part.locator(".tip").is_visible()
    assert part.locator(".tip").text_content() == part.get_attribute("aria-label")
    part.locator("rect").hover()
    assert opened.locator(".causes tr.lit").count() == 1


def test_it_can_be_read_without_a_script(page: Open, reports: dict[str, Path]) -> None:
    opened = page("training-dataloader", java_script_enabled=False)
    text = opened.inner_text("body")
    for words in ("What to change", "Where the time went", "GPU idle", "Why to believe it", "needs JavaScript"):
        assert words in text
    assert not opened.locator("#lanes").is_visible()
    assert not opened.locator(".filter").first.is_visible()
    opened.locator("details.finding > summary").last.click()
    assert opened.locator(".bar rect").count() > 3


def test_print_is_light_and_without_controls(page: Open) -> None:
    opened = page("training-dataloader", scheme="dark")
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.locator(".tools").is_visible()
    assert not opened.locator(".filter").first.is_visible()
    assert len(opened.pdf()) > 10_000
