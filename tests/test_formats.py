"""The same program recorded by torch.profiler and by Nsight Systems: the same advice, but for what a format cannot hold."""

from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest

from traces.simulate import simulate
from traces.write_kineto import write_kineto
from traces.write_nsight import write_nsight

RECIPES = (
    "eager-decode", "graph-decode", "training-dataloader", "sync-storm", "pageable-copies", "pinned-overlap",
    "gpu-bound-training", "multi-stream-events", "cold-start", "mlp-training",
)  # fmt: skip

MEASURED = (
    "device", "name", "operations", "kernels", "wall_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "copy_ns",
    "idle_host_ns", "idle_submitted_ns", "idle_unlinked_ns", "communication_total_ns", "step_ns", "kernels_by_name", "copies",
    "launches", "syncs", "blocking_copies", "allocations", "launch_latency_ns", "queued_gap_ns",
)  # fmt: skip
"""Fields of a device that both formats hold in full."""

HOST_RECORDS = {"framework", "python", "host-unknown", "garbage-collection", "compile"}
"""Idle causes that rest on operators and Python frames. Nsight has none: what they cover is `host-unknown` there, and so is
the step's own edge. A data loader is an NVTX range in both."""


def both(recipe: str, window: str, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one device of each recording of the same simulated program, as JSON."""
    program = simulate(recipe)
    write_kineto(program, tmp_path / "run.json.gz")
    write_nsight(program, tmp_path / "run.sqlite")
    kineto = gpu_trace_advisor.Request(window=window)
    nsight = gpu_trace_advisor.Request(window=window, step_marker="iteration ")
    devices = [
        gpu_trace_advisor.advise(tmp_path / name, request=request).to_json()["devices"]
        for name, request in (("run.json.gz", kineto), ("run.sqlite", nsight))
    ]
    return devices[0][0], devices[1][0]


def idle(device: dict[str, Any]) -> dict[tuple[str, str], int]:
    """ns of idle time by (cause, side), what rests on host records put together."""
    sums: dict[tuple[str, str], int] = {}
    for item in device["attribution"]:
        if item["when"] == "idle":
            cause = "host-records" if item["cause"] in HOST_RECORDS else item["cause"]
            sums[cause, item["side"]] = sums.get((cause, item["side"]), 0) + item["ns"]
    return sums


@pytest.mark.parametrize("window", ["gpu", "steps"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_same_program_same_numbers(recipe: str, window: str, tmp_path: Path) -> None:
    kineto, nsight = both(recipe, window, tmp_path)
    for field in MEASURED:
        assert nsight[field] == kineto[field], field
    assert idle(nsight) == idle(kineto)


@pytest.mark.parametrize("recipe", RECIPES)
def test_same_steps(recipe: str, tmp_path: Path) -> None:
    kineto, nsight = both(recipe, "steps", tmp_path)

    def sizes(device: dict[str, Any]) -> list[tuple[int, int, int]]:
        return [(s["gpu_ns"], s["operations"], s["end_ns"] - s["start_ns"]) for s in device["steps"]]

    assert sizes(nsight) == sizes(kineto)
    assert [s["left_out"] is None for s in nsight["steps"]] == [s["left_out"] is None for s in kineto["steps"]]


def test_what_nsight_cannot_hold(tmp_path: Path) -> None:
    """Operators, modules, Python lines and allocator events are torch.profiler's; the process id is Nsight's."""
    kineto, nsight = both("mlp-training", "gpu", tmp_path)
    assert kineto["operators"] and not nsight["operators"]
    assert kineto["memory"] is not None and nsight["memory"] is None
    assert any(gap["python"] for gap in kineto["gaps"]) and not any(gap["python"] for gap in nsight["gaps"])
    assert kineto["process"] is None and isinstance(nsight["process"], int)
    assert {i["cause"] for i in nsight["attribution"]}.isdisjoint({"framework", "python"})
