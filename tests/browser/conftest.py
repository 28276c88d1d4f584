"""Headless Chromium, and reports to open in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.html import page as html

from tests import build as b
from tests.browser.pages import FLAGS, SAMPLES, Open
from tests.drawn import drawn
from tests.report.test_html import EVIL, small


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=os.environ["ADVISE_BROWSER"], args=list(FLAGS))
        yield browser
        browser.close()


def run(loading: int) -> list[b.Event]:
    """Ten steps that fetch a batch for so many µs and compute for 400."""
    events = []
    for i in range(10):
        at = i * (loading + 500)
        events += [
            b.step(i, at, at + loading + 490),
            b.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, at + loading),
            b.op("aten::mm", at + loading + 5, at + loading + 40), b.call(at + loading + 10, at + loading + 30, i + 1),
            b.kernel(at + loading + 40, at + loading + 440, i + 1, "sgemm"),
        ]  # fmt: skip
    return events


A100 = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108}


def known() -> list[b.Event]:
    """A product of 1,024 by 1,024 matrices in fp32 that takes 200 µs, launched by a line of a module, with all that a
    recording can say of it; the GPU waits for the host before it."""
    product: dict[str, Any] = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"]}
    launch: dict[str, Any] = {"grid": [8, 16, 1], "block": [256, 1, 1]}
    return [
        b.frame("train.py(7): step", 0, 900), b.frame("nn.Module: Net_0", 10, 900), b.annotation("forward", 20, 890),
        b.op("aten::mm", 300, 360, **product), b.call(310, 330, 1), b.kernel(340, 540, 1, "sgemm_128x64", **launch),
        b.op("aten::relu", 800, 840), b.call(810, 820, 2), b.kernel(830, 880, 2, "relu_kernel"),
    ]  # fmt: skip


@pytest.fixture(scope="session")
def reports(sample: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The samples' reports, a comparison, one with evil names, and one whose timeline is summed up."""
    folder = tmp_path_factory.mktemp("reports")
    paths = {name: folder / f"{name}.html" for name in (*SAMPLES, "comparison", "evil", "summed", "known")}
    for name in SAMPLES:
        files = [f"{name}-rank0", f"{name}-rank1"] if name == "comm-bound-rank" else [name]
        made = html.render(*drawn(*(read(sample(file)) for file in files)))
        paths[name].write_text(made, encoding="utf-8")
    paths["evil"].write_text(html.render(*drawn(b.trace(*small(EVIL)))), encoding="utf-8")
    paths["known"].write_text(html.render(*drawn(b.trace(*known(), deviceProperties=[A100]))), encoding="utf-8")
    before, after = (b.written(folder / f"{name}.json", *run(ns)) for name, ns in (("before", 600), ("after", 300)))
    told = ["--html", str(paths["comparison"]), "--output", str(folder / "comparison.txt")]
    main([str(after), "--against", str(before), *told])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "BOXES", 400)
        made = html.render(*drawn(read(sample("training-dataloader"))))
        paths["summed"].write_text(made, encoding="utf-8")
    return paths


@pytest.fixture
def page(chromium: Any, reports: dict[str, Path]) -> Iterator[Open]:
    """Opens a report; at the end nothing may have been said on the console, and nothing asked for."""
    contexts, said, asked = list[Any](), list[str](), list[str]()

    def open_(name: str, *, width: int = 1280, scheme: str = "light", at: str = "", **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(reports[name].as_uri() + at)
        return opened

    yield open_
    for context in contexts:
        context.close()
    assert [text for text in said if "willReadFrequently" not in text] == []  # what reads pixels is told that
    assert [url for url in asked if not url.startswith(("file:", "data:,"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == len(contexts)
