"""What browser tests ask of an open report."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SAMPLES = ("training-dataloader", "graph-decode-nsys", "cpu-mlp", "comm-bound-rank")

Open = Callable[..., Any]


def view(page: Any) -> tuple[float, float]:
    """From where to where the timeline shows, ns."""
    page.wait_for_timeout(60)  # a frame is drawn
    data = page.eval_on_selector("#lanes", "canvas => [canvas.dataset.from, canvas.dataset.to]")
    return float(data[0]), float(data[1])


def lanes_of(page: Any) -> dict[int, tuple[float, float]]:
    """By number of a lane its top and height on the canvas."""
    found = json.loads(page.eval_on_selector("#lanes", "canvas => canvas.dataset.lanes"))
    return {index: (top, height) for index, top, height in found}


def click_box(page: Any, number: int, box: int) -> None:
    """Click the middle of a box of a lane."""
    begin, end = view(page)
    lane = data_of(page)["devices"][0]["lanes"][number]
    at = sum(lane["t"][: box + 1]) + lane["d"][box] / 2
    gutter = float(page.eval_on_selector("#lanes", "canvas => canvas.dataset.gutter"))
    wide = page.eval_on_selector("#lanes", "canvas => canvas.clientWidth")
    top, height = lanes_of(page)[number]
    x = gutter + (at - begin) / (end - begin) * (wide - gutter)
    page.click("#lanes", position={"x": x + 1, "y": top + height / 2 + 1})


def data_of(page: Any) -> Any:
    return json.loads(page.text_content("#data"))
