"""The profiler's hook: a trace of each cycle with its advice beside it, and never the end of a training run."""

import json
import re
from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*Profiler clears events")]


def trained(handler: Any, cycles: int = 2) -> None:
    """A small model trained under the profiler's own schedule."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = schedule(wait=1, warmup=1, active=3, repeat=cycles)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler) as run:
        for _ in range(5 * cycles):
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
            run.step()


def test_each_cycle_leaves_a_trace_three_lines_and_a_report(tmp_path: Path) -> None:
    trained(gpu_trace_advisor.trace_handler(tmp_path / "out", html=True))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [re.sub(r"\d{15,}", "TIME", name) for name in names] == [
        f"worker0.TIME.pt.trace.{kind}" for _ in range(2) for kind in ("html", "json.gz", "txt")
    ]
    lines = next((tmp_path / "out").glob("*.txt")).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and lines[0].startswith("No GPU work was recorded")
    assert "<html" in next((tmp_path / "out").glob("*.html")).read_text(encoding="utf-8")
    trace = gpu_trace_advisor.read(next((tmp_path / "out").glob("*.json.gz")))
    assert sum(name.startswith("ProfilerStep#") for name in trace.names) == 3


def test_the_rank_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    trained(gpu_trace_advisor.trace_handler(tmp_path, use_gzip=False), cycles=1)
    (trace,) = tmp_path.glob("rank3.*.pt.trace.json")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]


def test_a_name_of_ones_own(tmp_path: Path) -> None:
    trained(gpu_trace_advisor.trace_handler(tmp_path, "mine"), cycles=1)
    assert len(list(tmp_path.glob("mine.*.pt.trace.json.gz"))) == 1


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="no trace was written"):
        trained(gpu_trace_advisor.trace_handler(tmp_path / "file"), cycles=1)


def test_advice_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **more: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("gpu_trace_advisor.integrations.beside.look_at", broken)
    with pytest.warns(UserWarning, match="no advice: ZeroDivisionError: no"):
        trained(gpu_trace_advisor.trace_handler(tmp_path), cycles=1)
    assert len(list(tmp_path.glob("*.json.gz"))) == 1
