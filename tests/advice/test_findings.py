"""Findings on the samples: what comes first, that savings add up, and how they are shown."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.text.page import render

from tests import nsight_export as nsight
from tests.test_cases import advise as command

FIRST = {
    "training-dataloader": "dataloader",
    "eager-decode": "cuda-graphs",
    "mlp-training": "cuda-graphs",
    "sync-storm": "host-sync",
    "pageable-copies": "h2d-pageable",
    "comm-bound-rank-rank0": "comm-overlap",
    "nothing-to-do": "nothing-to-do",
}
QUIET = ("gpu-bound-training", "pinned-overlap", "multi-stream-events")


@pytest.fixture(scope="module")
def advised(sample: Callable[[str], Path]) -> Callable[[str], Advice]:
    return lambda name: advise_traces([read(sample(name))])


@pytest.mark.parametrize(("name", "rule"), FIRST.items())
def test_what_comes_first(name: str, rule: str, advised: Callable[[str], Advice]) -> None:
    assert advised(name).findings[0].rule == rule


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_saved_where_nothing_is_lost(name: str, advised: Callable[[str], Advice]) -> None:
    """What lies inside kernels may always be nothing: such savings begin at nothing."""
    assert [f.rule for f in advised(name).findings if f.saving_ns and f.saving_ns[0]] == []


@pytest.mark.parametrize("name", FIRST)
def test_savings_together_are_never_more_than_the_wall(name: str, advised: Callable[[str], Advice]) -> None:
    advice = advised(name)
    wall = advice.devices[0].wall_ns
    savings = [f.saving_ns for f in advice.findings if f.saving_ns]
    assert sum(high for _, high in savings) <= wall
    assert all(0 <= low <= high for low, high in savings)
    for finding in advice.findings:
        assert finding.ns >= 0.01 * wall or finding.unpriced
        assert finding.how and finding.verify and finding.evidence and finding.formula


def test_the_text_shows_the_interval_the_grade_and_what_to_do(advised: Callable[[str], Advice]) -> None:
    text = render(advised("training-dataloader"), color=False, width=100)
    words = " ".join(text.split())
    assert "1. The data loader does not keep up: saves 18.9 % to 47.2 %" in words
    assert "(assumed)" in words
    assert "Do: Batches are made in the training process" in words
    assert "Together:" in words
    assert "rules did not fire" in words
    assert text.index("WHERE THE TIME WENT") < text.index("WHAT TO CHANGE") < text.index("LARGEST GAPS")


def test_the_text_says_why_there_is_no_saving(advised: Callable[[str], Advice]) -> None:
    words = " ".join(render(advised("comm-bound-rank-rank0"), color=False, width=100).split())
    assert "Not priced: a question: it needs the traces of several ranks." in words


def test_with_all_ranks_it_is_said_who_comes_late_and_what_is_waiting(sample: Callable[[str], Path]) -> None:
    advice = advise_traces([read(sample(f"comm-bound-rank-rank{rank}")) for rank in (0, 1)])
    assert advice.verdict.startswith("rank 1 device 1, which the other ranks wait for: ")
    titles = {f.rank: f for f in advice.findings if f.rule == "comm-overlap" and f.saving_ns is None}
    assert titles[0].title == "Waiting for a rank that comes late"
    assert titles[1].title == "The other ranks wait for this one"
    assert "Rank 1 comes last to 3 of 6 collectives, which begin 9.00 ms later for it" in titles[0].message
    assert "waits 4.89 ms for others to come and moves bytes for 11.4 ms" in titles[0].message
    assert "what takes it longer is loading data" in titles[0].message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu-bound-training", "Kernels run 99.7 % of the wall: no idle time is worth a change."),
        ("multi-stream-events", "1. The largest loss: waiting at synchronizations"),
        (
            "pageable-copies",
            "Range: pinned copies return at once; they run 1.1 to 2 times as fast; optimistic: both directions",
        ),
    ],
)
def test_the_text_says_what_is_left_and_why_a_range_is_wide(
    name: str, words: str, advised: Callable[[str], Advice]
) -> None:
    assert words in " ".join(render(advised(name), color=False, width=100).split())


def two_processes_on_one_number(path: Path) -> Path:
    """Two processes, each with a device 0 of its own: one spends half its time in a blocking wait, the other in copies."""
    rows: dict[str, list[dict[str, Any]]] = {"KERNEL": [], "RUNTIME": [], "MEMCPY": []}
    for i in range(40):
        t = 1_000_000 * i
        rows["RUNTIME"] += [
            nsight.call(t, t + 5_000, 2 * i + 1, 2, pid=500),
            nsight.call(t + 6_000, t + 505_000, 2 * i + 2, 3, pid=500),
            nsight.call(t, t + 5_000, 2 * i + 1, 4, pid=600, tid=601),
        ]
        rows["KERNEL"].append(nsight.kernel(t + 10_000, t + 500_000, 2 * i + 1))
        copied = {"deviceId": 0, "streamId": 7, "correlationId": 2 * i + 1, "globalPid": nsight.process(600)}
        rows["MEMCPY"].append(
            {
                **copied,
                "start": t + 10_000,
                "end": t + 900_000,
                "copyKind": 1,
                "srcKind": 0,
                "dstKind": 2,
                "bytes": 9_000_000,
            }
        )
    strings = {1: "gemm", 2: "cudaLaunchKernel_v7000", 3: "cudaDeviceSynchronize_v3020", 4: "cudaMemcpyAsync_v3020"}
    return nsight.write(path, strings, **{nsight.CUPTI + name: found for name, found in rows.items()})


def test_each_device_has_its_own_findings_where_processes_number_theirs_alike(tmp_path: Path) -> None:
    advice = gpu_trace_advisor.advise(two_processes_on_one_number(tmp_path / "two.sqlite"))
    assert [(device.process, device.device) for device in advice.devices] == [(500, 0), (600, 0)]
    waits, copies = ({finding.rule for finding in advice.findings_of(device)} for device in advice.devices)
    assert "host-sync" in waits and "h2d-pageable" not in waits
    assert "h2d-pageable" in copies and "host-sync" not in copies
    for device in advice.devices:
        joint = advice.joint_of(device)
        assert joint is None or joint.process == device.process
    assert {(one.process, one.rule) for one in advice.skipped} >= {(500, "h2d-pageable"), (600, "host-sync")}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_recordings_of_one_name_keep_their_findings_apart(jobs: str, root: Path, tmp_path: Path) -> None:
    for folder, name in (("loading", "training-dataloader"), ("waiting", "sync-storm")):
        (tmp_path / folder).mkdir()
        shutil.copy(root / f"traces/{name}.json.gz", tmp_path / folder / "trace.json.gz")
    done = command(tmp_path / "loading/trace.json.gz", str(tmp_path / "waiting/trace.json.gz"), "--jobs", jobs)
    said = json.loads(done.out)
    assert done.code == 0
    assert [device["file"] for device in said["devices"]] == ["loading/trace.json.gz", "waiting/trace.json.gz"]
    by_file = {(finding["file"], finding["rule"]) for finding in said["findings"]}
    assert ("loading/trace.json.gz", "dataloader") in by_file
    assert ("waiting/trace.json.gz", "host-sync") in by_file
    assert ("waiting/trace.json.gz", "dataloader") not in by_file
