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
from gpu_trace_advisor.advice.model import Advice, StepAdvice
from gpu_trace_advisor.advice.verdict import DOUBT
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.drawing.model import Drawing
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.html import charts
from gpu_trace_advisor.report.html import page as html
from gpu_trace_advisor.report.html.environment import SCRIPTS, STYLES, interval
from gpu_trace_advisor.report.html.environment import read as template
from gpu_trace_advisor.report.html.palette import SLOTS
from gpu_trace_advisor.report.html.timeline import device_data
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.report.text import first_screen
from gpu_trace_advisor.trace.model import Note

from tests import build as b
from tests.advices import MS, advice, device, host
from tests.drawn import drawn

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
    return html.render(*drawn(b.trace(*events), **request))


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
def loader(sample: Callable[[str], Path]) -> tuple[Advice, list[Drawing]]:
    return drawn(read(sample("training-dataloader")))


@pytest.fixture(scope="module")
def report(loader: tuple[Advice, list[Drawing]]) -> str:
    return html.render(*loader)


def embedded(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_says_what_the_advice_says(report: str, loader: tuple[Advice, list[Drawing]]) -> None:
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


def test_scripts_and_styles_are_of_a_readable_size() -> None:
    """Each module is read in one go, and no line is packed to keep it short."""
    for name in (*SCRIPTS, *STYLES):
        lines = template(name).splitlines()
        assert len(lines) <= 300, name
        if name in SCRIPTS:
            assert max(map(len, lines)) <= 120, name
            assert not [line for line in lines if line.count(";") > 2 and "for (" not in line], name


def test_everything_that_is_drawn_has_a_colour_in_light_and_in_dark() -> None:
    css = str(template("base.css"))
    for slot in SLOTS:
        assert len(re.findall(rf"--c-{slot}: #[0-9a-f]{{6}};", css)) == 2, slot
        assert f".k-{slot} {{ fill: var(--c-{slot}); }}" in css, slot


@pytest.mark.parametrize("name", [EVIL, "a\x1b[31mb", "<!--<script>", "{{ 7 * 7 }}", "kernel\ud800x"])
def test_a_name_stays_text(name: str) -> None:
    text = page_of(*small(name))
    assert "<img" not in text
    assert "\x1b" not in text
    assert "49" not in re.findall(r'class="name">([^<]*)<', text)
    data = embedded(text)
    assert shareable(name)[:6] in " ".join(n for one in data["devices"] for n in one["texts"]) + Page(text).text
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
        ("C:\\Users\\Alice B\\my code\\t.py(1): f", "t.py(1): f"),
        ("C:\\Users\\Alice B", "~"),
        ("/home/John Smith/my code/train.py(7): main", "train.py(7): main"),
        ("/Users/john smith/x.py", "x.py"),
        ("/mnt/c/Users/Bob Q/x.py", "x.py"),
        ("/data/John Smith/x.py", "x.py"),
        ("in /home/alice, where", "in ~, where"),
        ("/home/alice/x.py and 4 ms/step of a/b", "x.py and 4 ms/step of a/b"),
        ("\\\\server\\share name\\d\\x.py(3): g", "x.py(3): g"),
        ("file:///home/eve/x.py", "x.py"),
        ("file://host/home/eve/x.py", "x.py"),
        ("file:///C:/Users/Eve X/x.py", "x.py"),
        ("C:\\Program Files\\Python\\site-packages\\torch\\m.py(1): f", "torch\\m.py(1): f"),
        ("node-7.corp.example_12345.1700000000000.pt.trace.json.gz", "worker_12345.pt.trace.json.gz"),
        ("node-7.corp.example_12345.async_llm.1700000000000.pt.trace.json.gz", "worker_12345.async_llm.pt.trace.json.gz"),
        ("dp0_pp0_tp0_rank0.1700000000000.pt.trace.json.gz", "dp0_pp0_tp0_rank0.1700000000000.pt.trace.json.gz"),
        ("../../../srv/a/b.py(1): x", "b.py(1): x"),
        ("~/proj/a.py", "a.py"),
        ("node7_gpu_rank3.1700000000000.pt.trace.json", "worker_3.pt.trace.json"),
        ("alice.1700000000000.pt.trace.json.gz", "worker.pt.trace.json.gz"),
        ("C:\\\\Users\\\\Alice B\\\\code\\\\train.py", "train.py"),
        ("\\\\\\\\node7\\\\home\\\\eve\\\\x.py", "x.py"),
        ("\\\\?\\UNC\\node7\\share\\eve\\x.py", "x.py"),
        ("//node7/share/John Smith/x.py(3): f", "x.py(3): f"),
        ("~eve/x.py", "x.py"),
        ("/scratch/John O'Neil/x.py", "x.py"),
        ("open('/scratch/eve/x.py') and '/scratch/eve/y.py'", "open('x.py') and 'y.py'"),
        ("s3://bucket/eve/x.json", "x.json"),
        ("ssh://eve@node7/data/x.json", "x.json"),
        ("vscode-remote://ssh-remote+node7/home/eve/x.py", "x.py"),
        ("https://eve:secret@example.org/x", "https://example.org/x"),
        ("eve@node7.corp:/scratch/x.py", "x.py"),
        ("file:///home/John%20Smith/x.py", "x.py"),
        ("%2Fhome%2Feve%2Fx.py", "x.py"),
        ("https://docs.pytorch.org/docs/stable/x.html", "https://docs.pytorch.org/docs/stable/x.html"),
        ("a // b", "a // b"),
        ("std::vector<int>::~vector()", "std::vector<int>::~vector()"),
        ("'/opt/conda/lib/python3.8/threading.py'", "'python3.8/threading.py'"),
        ("torch/nn/x.py(3): f", "torch/nn/x.py(3): f"),
        ("see https://docs.nvidia.com/cuda/x.html", "see https://docs.nvidia.com/cuda/x.html"),
        ("1 GB/s, 3/4/5, a / b", "1 GB/s, 3/4/5, a / b"),
        ("</script>", "</script>"),
    ],
)  # fmt: skip
def test_shareable(text: str, expected: str) -> None:
    assert shareable(text) == expected


def test_the_bar_covers_the_wall_exactly(loader: tuple[Advice, list[Drawing]]) -> None:
    one = loader[0].devices[0]
    parts = charts.bar(one)
    assert sum(part.ns for part in parts) == one.wall_ns
    assert parts[-1].x + parts[-1].width == pytest.approx(100, abs=0.01)
    assert len({part.id for part in parts}) == len(parts)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [((0, 2_130_000), "up to 2.13 ms"), ((0, 0), "0 ns"), ((12_300_000, 15_500_000), "12.3 to 15.5 ms")],
)
def test_an_interval_from_nothing_is_a_bound(ends: tuple[int, int], expected: str) -> None:
    assert interval(ends) == expected


def test_steps_that_are_longer_are_marked() -> None:
    steps = [StepAdvice(f"s{i}", i * 10 * MS, (i + 1) * 10 * MS, 5 * MS, 3, None) for i in range(4)]
    steps.append(StepAdvice("s4", 40 * MS, 55 * MS, 5 * MS, 3, None))
    bars = charts.step_bars(steps, 10 * MS)
    assert [one.odd for one in bars] == [False] * 4 + [True]
    assert max(one.height for one in bars) <= 100
    assert charts.step_bars([], None) == []


def test_an_advice_without_drawings_or_devices_makes_a_page() -> None:
    for made in (advice(device()), advice(host=host())):
        text = html.render(made)
        assert made.verdict in Page(text).text
        assert "<canvas" not in text


def test_data_gives_every_box_back(loader: tuple[Advice, list[Drawing]]) -> None:
    drawing = loader[1][0]
    data = device_data(drawing)
    assert data["whole"] is None
    for lane, sent in zip(drawing.lanes, data["lanes"], strict=True):
        start = np.cumsum(sent["t"]) + drawing.start_ns
        assert start.tolist() == lane.start.tolist()
        assert (start + sent["d"]).tolist() == lane.end.tolist()
        names = [data["texts"][data["details"][code][0]] for code in sent["n"]]
        assert names == [shareable(drawing.details[code].name) for code in lane.detail.tolist()]
        assert {SLOTS[data["details"][code][1]] for code in sent["n"]} <= set(SLOTS)
        if lane.launch is not None:
            assert [s - d for s, d in zip(start.tolist(), sent["l"], strict=True) if d >= 0] == lane.launch[
                lane.launch >= 0
            ].tolist()


@pytest.mark.parametrize("limit", [120, 400, 700])
def test_a_large_trace_is_summed_up_and_keeps_its_time(loader: tuple[Advice, list[Drawing]], limit: int) -> None:
    """Whatever is summed up, each lane keeps its count and its time by colour, and most of the limit is used."""
    drawing = loader[1][0]
    whole, data = device_data(drawing), device_data(drawing, limit=limit)
    assert data["whole"]
    assert limit // 2 <= data["boxes"] <= limit
    for before, after in zip(whole["lanes"], data["lanes"], strict=True):
        assert time_by_colour(whole, before) == time_by_colour(data, after)
        assert all(step >= 0 for step in after["t"][1:])


def time_by_colour(data: dict[str, Any], lane: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Boxes and ns of a lane by colour."""
    places = np.cumsum([ahead for ahead, _, _ in lane.get("sum", [])])
    sums = {int(i): (count, busy) for i, (_, count, busy) in zip(places, lane.get("sum", []), strict=True)}
    found: dict[int, tuple[int, int]] = {}
    for i, (ns, code) in enumerate(zip(lane["d"], lane["n"], strict=True)):
        count, busy = sums.get(i, (1, ns))
        slot = data["details"][code][1]
        found[slot] = found.get(slot, (0, 0))[0] + count, found.get(slot, (0, 0))[1] + busy
    return found


def test_what_the_page_promises_to_show_is_whole() -> None:
    """The first and the longest step are kept box by box, and overlapping wishes are charged once."""
    events = [e for i in range(40) for e in wide_step(i, 3 if i == 20 else 1)]
    drawing = drawn(b.trace(*events))[1][0]
    marks = [drawing.start_ns + 500_000] * 50
    data = device_data(drawing, marks, limit=1_000)
    for number in (0, 20):
        step = drawing.steps[number]
        for lane, sent in zip(drawing.lanes, data["lanes"], strict=True):
            inside = (lane.start >= step.start_ns) & (lane.start < step.end_ns)
            start = np.cumsum(sent["t"]) + drawing.start_ns
            shown = (start >= step.start_ns) & (start < step.end_ns)
            assert shown.sum() == inside.sum()


def wide_step(i: int, times: int) -> list[b.Event]:
    """A step of twenty small kernels with gaps, so many times as long."""
    at = i * 1_000 + (2_000 if i > 20 else 0)
    kernels = [
        event
        for k in range(20 * times)
        for event in (
            b.call(at + 50 * k + 1, at + 50 * k + 4, 1 + 100 * i + k),
            b.kernel(at + 50 * k + 10, at + 50 * k + 40, 1 + 100 * i + k),
        )
    ]
    return [b.step(i, at, at + 1_000 * times), *kernels]


def test_the_critical_path_is_one_way_through_the_window(loader: tuple[Advice, list[Drawing]]) -> None:
    path = device_data(loader[1][0])["path"]
    assert path
    for (_, _, end), (_, start, _) in pairwise(path):
        assert start >= end


def test_the_overview_adds_up(loader: tuple[Advice, list[Drawing]]) -> None:
    """Inside the window every part of it has its causes; outside it nothing is drawn."""
    for drawing in loader[1]:
        coverage = drawing.overview
        total = np.sum(list(coverage.shares.values()), axis=0)
        edges = np.linspace(coverage.start_ns, coverage.end_ns, len(total) + 1)
        inside = (edges[:-1] >= drawing.start_ns) & (edges[1:] <= drawing.end_ns)
        assert total[inside] == pytest.approx(np.ones(inside.sum()), abs=2e-3)
        assert not total[(edges[1:] <= drawing.start_ns) | (edges[:-1] >= drawing.end_ns)].any()


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


@pytest.mark.parametrize("code", DOUBT)
def test_what_makes_the_answer_doubtful_is_on_the_first_screen(code: str) -> None:
    """Of the text and of the page, before any number; in both the same words."""
    made = dataclasses.replace(advice(device()), health=(Note(code, "something is amiss with this recording", 1),))
    text = Page(html.render(made)).text
    assert text.index("something is amiss") < text.index("Where the time went")
    assert "something is amiss" in first_screen.render(made, color=False, width=100)


def test_twice_the_same(loader: tuple[Advice, list[Drawing]], report: str) -> None:
    assert html.render(*loader) == report


def test_no_savings_are_said_to_be_missing(loader: tuple[Advice, list[Drawing]]) -> None:
    made, drawings = loader
    one = dataclasses.replace(
        made.devices[0], replay=dataclasses.replace(made.devices[0].replay, trusted=False, error=0.2)
    )
    text = Page(html.render(dataclasses.replace(made, devices=(one,)), drawings)).text
    assert "no saving is shown" in text


def test_many_long_names_do_not_make_a_page_large() -> None:
    n = 1_500
    events = [b.kernel(i, i + 0.9, i + 1, f"kernel_{i:06}_" + "x" * 300) for i in range(n)]
    text = page_of(*events, window="gpu")
    assert len(text.encode()) <= 2_500_000


def test_many_devices_with_much_to_say_do_not_make_a_page_large() -> None:
    """Every box of sixteen devices has a name, an operator and a stack of its own."""
    events = []
    for gpu in range(16):
        for i in range(600):
            at, n = 20 * i, 600 * gpu + i
            events += [
                b.frame(f"module_{n}.py({n}): forward_{n}", at, at + 19),
                b.op(f"own::operator_{n}_{'y' * 60}", at + 1, at + 18), b.call(at + 2, at + 4, n + 1),
                b.kernel(at + 5, at + 17, n + 1, f"kernel_{n}_{'x' * 100}", device=gpu),
            ]  # fmt: skip
    text = page_of(*events, window="gpu")
    assert len(text.encode()) <= 2_500_000
    assert len(embedded(text)["devices"]) == 16


def test_a_flame_graph_of_many_small_parts_is_not_large() -> None:
    events = []
    for i in range(5_000):
        at = 10 * i
        events += [
            b.op(f"own::op_{i}", at, at + 9),
            b.call(at + 1, at + 2, i + 1),
            b.kernel(at + 3, at + 8 + i % 7, i + 1),
        ]
    (drawing,) = drawn(b.trace(*events), window="gpu")[1]
    for nodes in (drawing.by_time, drawing.by_idle):
        assert len(nodes) <= 800
        whole = sum(node.ns for node in nodes if node.depth == 0)
        assert all(node.start_ns + node.ns <= whole for node in nodes)


@pytest.mark.real
@pytest.mark.parametrize(
    "name",
    ["kineto/resnet50-numworkers0-A-v100.json.gz", "nsys/wan21-t2v-sp2-cpuoffload-h100.sqlite", "kineto/bert-small-h100.json.gz"],
)  # fmt: skip
def test_real_pages_are_small_and_keep_to_themselves(real_traces: Path, name: str) -> None:
    text = html.render(*drawn(read(real_traces / "traces" / name)))
    assert len(text.encode()) < 2_500_000
    assert not re.search(r"/(?:home|root|Users|opt|mnt|data)/\w+/", text)
