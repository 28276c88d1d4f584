"""The profiler's hook: a trace of each cycle with its advice beside it, and never the end of a training run."""

import gzip
import inspect
import json
import os
import re
import subprocess
import sys
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
        f"worker0.TIME.pt.trace.{kind}" for _ in range(2) for kind in ("html", "json", "txt")
    ]
    lines = next((tmp_path / "out").glob("*.txt")).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and lines[0].startswith("No GPU work was recorded")
    assert lines[1].startswith("Do: ") and "ProfilerActivity.CUDA" in lines[1]
    assert "<html" in next((tmp_path / "out").glob("*.html")).read_text(encoding="utf-8")
    trace = gpu_trace_advisor.read(next((tmp_path / "out").glob("*.json")))
    assert sum(name.startswith("ProfilerStep#") for name in trace.names) == 3


def test_it_takes_what_pytorch_s_own_handler_takes() -> None:
    from torch.profiler import tensorboard_trace_handler

    theirs = inspect.signature(tensorboard_trace_handler).parameters
    ours = inspect.signature(gpu_trace_advisor.trace_handler).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert [ours[name].default for name in theirs] == [one.default for one in theirs.values()]


def test_ranks_of_a_job_leave_files_that_are_read_together(tmp_path: Path) -> None:
    """Two processes of torch.distributed, each with its own name, without RANK in the environment."""
    program = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile, schedule
import gpu_trace_advisor

def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    handler = gpu_trace_advisor.trace_handler(dir_name=folder + "/out")
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler) as run:
        for _ in range(3):
            dist.all_reduce(torch.ones(8))
            run.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""
    (tmp_path / "job.py").write_text(program, encoding="utf-8")
    bare = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    subprocess.run([sys.executable, str(tmp_path / "job.py"), str(tmp_path)], check=True, env=bare, capture_output=True)
    traces = sorted((tmp_path / "out").glob("*.pt.trace.json"))
    assert [trace.name.partition(".")[0] for trace in traces] == ["rank0", "rank1"]
    assert [gpu_trace_advisor.read(trace).rank for trace in traces] == [0, 1]
    assert len(list((tmp_path / "out").glob("*.txt"))) == 2


def test_the_rank_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    trained(gpu_trace_advisor.trace_handler(tmp_path, use_gzip=True), cycles=1)
    (trace,) = tmp_path.glob("rank3.*.pt.trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_a_name_of_ones_own(tmp_path: Path) -> None:
    trained(gpu_trace_advisor.trace_handler(tmp_path, "mine"), cycles=1)
    assert len(list(tmp_path.glob("mine.*.pt.trace.json"))) == 1


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
    assert len(list(tmp_path.glob("*.json"))) == 1
