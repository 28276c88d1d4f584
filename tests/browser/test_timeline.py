"""The timeline's canvas, pixel by pixel: it paints what is so at every zoom, and its texts can be read."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.columns.intervals import clip, total, union
from gpu_trace_advisor.drawing.model import Drawing, Lane
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.html import page as html
from numpy.typing import NDArray

from tests.browser.pages import Open, lanes_of, view
from tests.drawn import drawn

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]

ZOOMS = (1, 4, 20, 120, 700)
PIXELS = """([x, y, width, height]) => {
  const canvas = document.getElementById("lanes"), ratio = canvas.width / canvas.clientWidth;
  const box = [x, y, width, height].map((one) => Math.round(one * ratio));
  const { data } = canvas.getContext("2d").getImageData(...box);
  let text = "";
  for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
  return btoa(text);
}"""


def pixels(page: Any, x: float, y: float, width: float, height: float) -> NDArray[np.int64]:
    """[rows, columns, 3] of a part of the canvas, in CSS pixels."""
    ratio = page.evaluate("devicePixelRatio")
    flat = np.frombuffer(b64decode(page.evaluate(PIXELS, [x, y, width, height])), np.uint8).astype(np.int64)
    return flat.reshape(round(height * ratio), round(width * ratio), 4)[:, :, :3]


def style(page: Any, name: str) -> tuple[int, int, int]:
    """A colour of the page's style."""
    text = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


PAINTED = """(panel) => {
  const canvas = document.getElementById("lanes"), ratio = canvas.width / canvas.clientWidth;
  const left = Math.round(Number(canvas.dataset.gutter) * ratio), wide = canvas.width - left;
  return JSON.parse(canvas.dataset.lanes).map(([index, y, height]) => {
    const box = [left, Math.round(y * ratio), wide, Math.round(height * ratio)];
    const { data } = canvas.getContext("2d").getImageData(...box);
    let painted = 0;
    for (let i = 0; i < data.length; i += 4) painted += panel.some((part, at) => data[i + at] !== part);
    return [index, painted / (data.length / 4)];
  });
}"""


def painted(page: Any) -> dict[int, float]:
    """Of each lane that is shown the share of its pixels that are not its empty colour."""
    return dict(page.evaluate(PAINTED, list(style(page, "panel"))))


def truth(drawing: Drawing, lane: Lane, begin: float, end: float) -> float:
    """Share of [begin, end), ns from the window's start, that a lane's boxes cover."""
    low, high = drawing.start_ns + round(begin), drawing.start_ns + round(end)
    return total(clip(union(lane.start, lane.end), low, high)) / (high - low)


def hold_to_truth(page: Any, drawing: Drawing, zooms: tuple[int, ...]) -> int:
    """Compare every lane at every zoom around its fullest middle; how many were compared."""
    compared = 0
    middle = int(np.median(drawing.lanes[0].start)) - drawing.start_ns
    for zoom in zooms:
        page.evaluate("location.hash = ''")
        span = 1.04 * drawing.wall_ns / zoom
        origin = drawing.start_ns - drawing.origin_ns
        begin, end = ((middle + sign * span / 2 + origin) / 1e6 for sign in (-1, 1))
        page.evaluate(f"location.hash = '#t={begin:.6f}-{end:.6f}'")
        shown = view(page)
        for index, share in painted(page).items():
            lane = drawing.lanes[index]
            exact = truth(drawing, lane, *shown)
            assert share == pytest.approx(exact, abs=0.02), (zoom, lane.label, lane.depth)
            compared += 1
    return compared


@pytest.mark.real
@pytest.mark.parametrize(
    "name",
    [
        "kineto/resnet50-numworkers0-A-v100.json.gz", "kineto/dlrm-8rank-v100/rank5.json.gz",
        "nsys/cs336-2.7B-eager-fp32-a100-80g.sqlite",
    ],
)  # fmt: skip
def test_lanes_of_real_traces_are_as_full_as_they_were(
    page: Open, reports: dict[str, Path], real_traces: Path, name: str, tmp_path: Path
) -> None:
    advice, drawings = drawn(read(real_traces / "traces" / name))
    reports["real"] = tmp_path / "real.html"
    reports["real"].write_text(html.render(advice, drawings), encoding="utf-8")
    assert hold_to_truth(page("real", width=1440), drawings[0], ZOOMS) >= 3 * len(ZOOMS)


@pytest.mark.parametrize(("name", "zooms"), [("training-dataloader", ZOOMS), ("summed", (1, 4))])
def test_lanes_are_as_full_as_they_were(page: Open, sample: Any, name: str, zooms: tuple[int, ...]) -> None:
    drawing = drawn(read(sample("training-dataloader")))[1][0]
    hold_to_truth(page(name, device_scale_factor=2), drawing, zooms)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["training-dataloader", "cpu-mlp", "graph-decode-nsys"])
def test_texts_on_the_canvas_have_contrast(page: Open, name: str, scheme: str) -> None:
    """Names on boxes, lanes and the ruler: the text's pixels against those around it, 4.5 to 1 at least."""
    opened = page(name, scheme=scheme, device_scale_factor=3)
    view(opened)
    gutter = int(opened.eval_on_selector("#lanes", "canvas => canvas.dataset.gutter"))
    wide = opened.eval_on_selector("#lanes", "canvas => canvas.clientWidth")
    seen = 0
    for top, height in lanes_of(opened).values():
        part = pixels(opened, gutter, top, wide - gutter, height)
        for patch in named_boxes(part, style(opened, "panel")):
            assert contrast(patch) >= 4.5
            seen += 1
    labels = pixels(opened, 2, 38, gutter - 14, 36)
    assert contrast(labels) >= 4.5
    assert seen >= 3


def named_boxes(part: NDArray[np.int64], empty: tuple[int, int, int]) -> list[NDArray[np.int64]]:
    """Stretches of a lane that one box fills from top to bottom and that hold the pixels of a text."""
    ground = part[1]  # above the text
    edges = np.flatnonzero((ground[1:] != ground[:-1]).any(axis=1)) + 1
    found = []
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), part.shape[1]], strict=True):
        patch = part[:, begin:end]
        filled = (patch[[1, -2]] == ground[begin]).all() and tuple(ground[begin]) != empty
        if end - begin >= 105 and filled and (patch != ground[begin]).any():
            found.append(patch)
    return found


def contrast(patch: NDArray[np.int64]) -> float:
    """Of the most frequent colour and the one that is farthest from it in lightness."""
    colours, counts = np.unique(patch.reshape(-1, 3), axis=0, return_counts=True)
    light = luminance(colours)
    ground = light[np.argmax(counts)]
    return float(max((np.maximum(light, ground) + 0.05) / (np.minimum(light, ground) + 0.05)))


def luminance(colours: NDArray[np.int64]) -> NDArray[np.float64]:
    """WCAG's relative luminance of sRGB colours."""
    part = colours / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ np.array([0.2126, 0.7152, 0.0722]))


def test_the_legend_lists_what_is_drawn_and_nothing_else(page: Open) -> None:
    opened = page("training-dataloader")
    drawn_slots = opened.evaluate(
        """() => { const data = JSON.parse(document.getElementById("data").textContent);
        return [...new Set(data.devices.flatMap((one) => one.details.map((detail) => data.slots[detail[1]])))]; }"""
    )
    listed = opened.eval_on_selector_all("#legend li", "items => items.map((one) => one.dataset.slot)")
    overview = opened.eval_on_selector_all("#overview path", "paths => paths.map((one) => one.classList[0].slice(2))")
    assert sorted(listed) == sorted({*drawn_slots, *overview})
    colours = [style(opened, f"c-{slot}") for slot in listed]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("width", [390, 820, 1440, 2400])
def test_overview_and_lanes_share_an_axis(page: Open, width: int) -> None:
    """The overview begins and ends where the lanes do, and both use the width that there is."""
    opened = page("training-dataloader", width=width)
    view(opened)
    canvas = opened.locator("#lanes").bounding_box()
    overview = opened.locator("#overview").bounding_box()
    gutter = float(opened.eval_on_selector("#lanes", "canvas => canvas.dataset.gutter"))
    assert overview["x"] == pytest.approx(canvas["x"] + gutter, abs=2)
    assert overview["x"] + overview["width"] == pytest.approx(canvas["x"] + canvas["width"], abs=2)
    assert canvas["width"] >= min(width, 2400) - 80
