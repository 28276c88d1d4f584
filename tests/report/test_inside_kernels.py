"""The table of kernels in every form: text, JSON, CSV, report and pandas frame say the same."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.report import csv_table
from gpu_trace_advisor.report.text import page

from tests.build import call, kernel, op, trace

SQUARE = [[4096, 4096], [4096, 4096]]


@pytest.fixture
def advice() -> Advice:
    """Three products of 250 µs on an H100 (137.4 GFLOP: 550 TFLOP/s, 69 % of 794), and a kernel of unknown work."""
    events: list[dict[str, Any]] = []
    for i in range(3):
        at = 300 * i
        events += [
            op("aten::mm", at, at + 10, **{"Input Dims": SQUARE, "Input type": ["c10::BFloat16"] * 2}),
            call(at + 1, at + 5, i + 1), kernel(at + 20, at + 270, i + 1, "bf16_gemm_kernel"),
        ]  # fmt: skip
    events += [op("my::op", 900, 910), call(901, 905, 9), kernel(920, 1170, 9, "=secret")]
    return advise_traces([trace(*events)], Request(hardware="h100-sxm"))


def test_the_text(advice: Advice) -> None:
    words = " ".join(page.render(advice, color=False, width=80).split())
    assert "INSIDE THE KERNELS" in words
    assert "mm 4096×4096, 4096×4096 bf16 0.750 549.8 0.40 c 56 % 69 % 0.231" in words
    assert "75.0 % of the kernels' time has known work; the largest unknown: my::op 25.0 %" in words
    assert "230.7 µs above what can be reached" in words  # 750 - 3 × 137.4 GFLOP / 794 TFLOP/s
    assert "MFU 36.2 %" in words  # 3 × 137.4 GFLOP / 989.4 TFLOP/s of 1150 µs


def test_json_and_the_frame(advice: Advice) -> None:
    inside = json.loads(json.dumps(advice.to_json()))["devices"][0]["inside_kernels"]
    assert (inside["kernel_ns"], inside["covered_ns"]) == (1_000_000, 750_000)
    (row,) = inside["rows"]
    assert (row["calls"], row["ns"], row["bound"]) == (3, 750_000, "compute")
    pandas = pytest.importorskip("pandas")
    frame = advice.to_pandas("kernels")
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 1
    assert frame.loc[0, "flops"] == row["flops"] == 2 * 4096**3
    with pytest.raises(BadUsage, match="kernels"):
        advice.to_pandas("frames")


def test_csv(advice: Advice) -> None:
    (row,) = csv.DictReader(io.StringIO(csv_table.render(advice)))
    assert row["operator"] == "aten::mm" and row["shape"] == "4096×4096, 4096×4096"
    assert float(row["of_reachable"]) == pytest.approx(2 * 4096**3 / 250e-6 / 794e12)


def test_a_cell_is_no_formula_of_a_spreadsheet(advice: Advice) -> None:
    inside = advice.devices[0].inside_kernels
    assert inside
    changed = replace(inside, rows=(replace(inside.rows[0], kernel="=HYPERLINK()\x1b[2J"),))
    told = csv_table.render(replace(advice, devices=(replace(advice.devices[0], inside_kernels=changed),)))
    (row,) = csv.DictReader(io.StringIO(told))
    assert row["kernel"].startswith("'=HYPERLINK") and "\x1b" not in row["kernel"]


def test_the_report_has_the_table(sample: Callable[[str], Path], tmp_path: Path) -> None:
    from gpu_trace_advisor.cli import main

    out = tmp_path / "report.html"
    assert main([str(sample("pinned-overlap")), "--html", str(out), "-o", str(tmp_path / "t.txt")]) == 0
    html = out.read_text(encoding="utf-8")
    assert 'id="t-inside"' in html and "of reachable" in html
