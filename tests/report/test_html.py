"""The HTML report: one file that holds, explains and gives away only what it should."""

import dataclasses
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.advice.build import examine
from gpu_trace_advisor.advice.model import Advice, StepAdvice
from gpu_trace_advisor.analysis.device_window import DeviceWindow, Request
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.html import charts
from gpu_trace_advisor.report.html import page as html
from gpu_trace_advisor.report.html.timeline import COLOURS, device_data, overview
from gpu_trace_advisor.report.redaction import shareable

from tests import build as b
from tests.advices import MS, advice, device

EVIL = "</script><img src=x onerror=alert(1)>&\u2028'\""


class Page(HTMLParser):
    """The elements of a page, with the text of those that were asked for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\u00a0", " ").split())


def page_of(*events: b.Event, **request: Any) -> str:
    return html.render(*examine([b.trace(*events)], Request(**request)))


def small(name: str = "kernel") -> list[b.Event]:
    """Three steps of a launch and a kernel, with a data loader in front."""
    events = []
    for i in range(3):
        at = i * 1000
        events += [
            b.step(i, at, at + 990),
            b.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, at + 500),
            b.op("aten::mm", at + 510, at + 540), b.call(at + 515, at + 530, i + 1),
            b.kernel(at + 540, at + 900, i + 1, name),
        ]  # fmt: skip
    return events


@pytest.fixture(scope="module")
def loader(sample: Callable[[str], Path]) -> tuple[Advice, list[DeviceWindow]]:
    return examine([read(sample("training-dataloader"))])


@pytest.fixture(scope="module")
def report(loader: tuple[Advice, list[DeviceWindow]]) -> str:
    return html.render(*loader)


def embedded(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_says_what_the_advice_says(report: str, loader: tuple[Advice, list[DeviceWindow]]) -> None:
    text, one = Page(report).text, loader[0].devices[0]
    assert loader[0].verdict in text
    assert "every nanosecond" in text.lower()
    for finding in loader[0].findings:
        assert finding.title in text
        assert finding.how.split(". ")[0] in text
        for source in finding.sources:
            assert source.says.split(". ")[0] in text
    for kernel in one.kernels_by_name:
        assert kernel.short in text
    for skipped in loader[0].skipped:
        assert skipped.rule in text


def test_the_page_asks_nobody_for_anything(report: str) -> None:
    page = Page(report)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:,")), (tag, value)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", report)


def test_the_policy_allows_the_style_and_script_and_nothing_else(report: str) -> None:
    policy = (
        next(a["content"] for t, a in Page(report).elements if a.get("http-equiv") == "Content-Security-Policy") or ""
    )
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", report, re.DOTALL)
        digest = b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not [a for _, a in Page(report).elements if "style" in a or any(name.startswith("on") for name in a)]


def test_the_script_is_short() -> None:
    assert html._text("report.js").count("\n") <= 300


@pytest.mark.parametrize("name", [EVIL, "a\x1b[31mb", "<!--<script>", "{{ 7 * 7 }}", "kernel\ud800x"])
def test_a_name_stays_text(name: str) -> None:
    text = page_of(*small(name))
    assert "<img" not in text
    assert "\x1b" not in text
    assert "49" not in re.findall(r'class="name">([^<]*)<', text)
    data = embedded(text)
    assert shareable(name)[:6] in " ".join(n for one in data["devices"] for n in one["names"]) + Page(text).text
    text.encode("utf-8")


def test_no_place_on_a_machine_leaves_with_the_page() -> None:
    frames = [
        b.frame("/home/alice/secret/train.py(7): main", 0, 3000),
        b.frame("/opt/c/lib/python3.11/site-packages/torch/x.py(1): f", 505, 545),
    ]
    text = page_of(*small(), *frames)
    assert "alice" not in text
    assert "/opt/" not in text
    assert "train.py(7): main" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/p/train.py(7): main", "train.py(7): main"),
        ("/usr/lib/python3.10/site-packages/torch/nn/m.py(15): f", "torch/nn/m.py(15): f"),
        ("C:\\Users\\bob\\t.py(1): f", "t.py(1): f"),
        ("../../../root/a/b.py(1): x", "b.py(1): x"),
        ("~/proj/a.py", "a.py"),
        ("'/opt/conda/lib/python3.8/threading.py'", "'python3.8/threading.py'"),
        ("torch/nn/x.py(3): f", "torch/nn/x.py(3): f"),
        ("see https://docs.nvidia.com/cuda/x.html", "see https://docs.nvidia.com/cuda/x.html"),
        ("1 GB/s, 3/4/5, a / b", "1 GB/s, 3/4/5, a / b"),
        ("</script>", "</script>"),
    ],
)  # fmt: skip
def test_shareable(text: str, expected: str) -> None:
    assert shareable(text) == expected


def test_the_bar_covers_the_wall_exactly(loader: tuple[Advice, list[DeviceWindow]]) -> None:
    one = loader[0].devices[0]
    parts = charts.bar(one)
    assert sum(part.ns for part in parts) == one.wall_ns
    assert parts[-1].x + parts[-1].width == pytest.approx(100, abs=0.01)
    assert len({part.id for part in parts}) == len(parts)


def test_steps_that_are_longer_are_marked() -> None:
    steps = [StepAdvice(f"s{i}", i * 10 * MS, (i + 1) * 10 * MS, 5 * MS, 3, None) for i in range(4)]
    steps.append(StepAdvice("s4", 40 * MS, 55 * MS, 5 * MS, 3, None))
    bars = charts.step_bars(steps, 10 * MS)
    assert [one.odd for one in bars] == [False] * 4 + [True]
    assert max(one.height for one in bars) <= 100
    assert charts.step_bars([], None) == []


def test_an_advice_without_studies_or_devices_makes_a_page() -> None:
    from tests.advices import host

    for made in (advice(device()), advice(host=host())):
        text = html.render(made, [])
        assert made.verdict in Page(text).text
        assert "<canvas" not in text


def test_data_gives_every_box_back(loader: tuple[Advice, list[DeviceWindow]]) -> None:
    view = loader[1][0]
    data = device_data(view)
    assert data["whole"] is None
    stream = next(lane for lane in data["lanes"] if lane["kind"] == "stream")
    start = np.cumsum(stream["t"]) + view.window.start_ns
    timeline = view.timeline
    mine = timeline.start[timeline.stream == int(stream["label"].split()[1])]
    assert set(start.tolist()) <= set(mine.tolist())
    assert all(0 <= ord(c) - ord("a") < len(COLOURS) for c in stream["c"])
    assert max(stream["n"]) < len(data["names"])
    linked = [at - delay for at, delay in zip(start.tolist(), stream["l"], strict=True) if delay >= 0]
    assert set(linked) <= set(view.trace.start_ns.tolist())


@pytest.mark.parametrize("limit", [50, 200, 400])
def test_a_large_trace_is_summed_up_and_keeps_its_time(loader: tuple[Advice, list[DeviceWindow]], limit: int) -> None:
    view = loader[1][0]
    whole, data = device_data(view), device_data(view, limit=limit)
    assert data["whole"]
    assert data["boxes"] < whole["boxes"]
    for before, after in zip(whole["lanes"], data["lanes"], strict=True):
        sums = {i: (count, busy) for i, count, busy in after.get("sum", [])}
        assert sum(sums[i][0] if i in sums else 1 for i in range(len(after["d"]))) == len(before["d"])
        assert sum(sums[i][1] if i in sums else d for i, d in enumerate(after["d"])) == sum(before["d"])


def test_the_critical_path_is_one_way_through_the_window(loader: tuple[Advice, list[DeviceWindow]]) -> None:
    path = device_data(loader[1][0])["path"]
    assert path
    for (_, _, end), (_, start, _) in pairwise(path):
        assert start >= end


def test_the_overview_adds_up(loader: tuple[Advice, list[DeviceWindow]]) -> None:
    for view in loader[1]:
        shares = overview(view, 100)
        total = np.sum(list(shares.values()), axis=0)
        assert total == pytest.approx(np.ones(100), abs=2e-3)


def test_a_comparison_comes_first(sample: Callable[[str], Path], tmp_path: Path) -> None:
    before, after = sample("training-dataloader"), sample("gpu-bound-training")
    main([str(after), "--against", str(before), "--format", "html", "-o", str(tmp_path / "r.html")])
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'id="h-against"' in text
    assert text.index('id="h-against"') < text.index('id="h-time"')


def test_the_command_writes_it_beside_the_text(
    sample: Callable[[str], Path], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "report.html"
    assert main([str(sample("training-dataloader")), "--html", str(path)]) == 0
    assert b"WHERE THE TIME WENT" in capsysbinary.readouterr().out
    assert list(tmp_path.iterdir()) == [path]
    assert main([str(sample("training-dataloader")), "--format", "html"]) == 0
    assert capsysbinary.readouterr().out.decode("utf-8") == path.read_text(encoding="utf-8")
    assert str(tmp_path) not in path.read_text(encoding="utf-8")


def test_twice_the_same(loader: tuple[Advice, list[DeviceWindow]], report: str) -> None:
    assert html.render(*loader) == report


def test_no_savings_are_said_to_be_missing(loader: tuple[Advice, list[DeviceWindow]]) -> None:
    made, views = loader
    one = dataclasses.replace(
        made.devices[0], replay=dataclasses.replace(made.devices[0].replay, trusted=False, error=0.2)
    )
    text = Page(html.render(dataclasses.replace(made, devices=(one,)), views)).text
    assert "no saving is shown" in text


def test_many_long_names_do_not_make_a_page_large() -> None:
    n = 1_500
    events = [b.kernel(i, i + 0.9, i + 1, f"kernel_{i:06}_" + "x" * 300) for i in range(n)]
    text = page_of(*events, window="gpu")
    assert len(text.encode()) < 3_000_000


@pytest.mark.real
@pytest.mark.parametrize(
    "name",
    ["kineto/resnet50-numworkers0-A-v100.json.gz", "nsys/wan21-t2v-sp2-cpuoffload-h100.sqlite", "kineto/bert-small-h100.json.gz"],
)  # fmt: skip
def test_real_pages_are_small_and_keep_to_themselves(real_traces: Path, name: str) -> None:
    text = html.render(*examine([read(real_traces / "traces" / name)]))
    assert len(text.encode()) < 3_000_000
    assert not re.search(r"/(?:home|root|Users|opt|mnt|data)/\w+/", text)
