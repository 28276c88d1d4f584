"""From recordings to an advice: devices, ranks, refusals, and what is merged. Times are µs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces, merge_notes
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.trace.model import Note

from tests.build import Event, advice, annotation, call, event, kernel, op, step, trace

WORK = (call(0, 2, 1), kernel(5, 50, 1), call(60, 62, 2), kernel(65, 90, 2, device=1))


def test_every_device_has_a_part() -> None:
    found = advice(*WORK)
    assert [(d.device, d.wall_ns, d.operations) for d in found.devices] == [(0, 45_000, 1), (1, 25_000, 1)]
    assert (found.window, found.host, found.traces[0].operations, found.traces[0].kernels) == ("gpu", None, 2, 2)
    for one in found.devices:
        assert one.busy_ns + one.idle_ns == one.wall_ns == sum(i.ns for i in one.attribution)
        assert one.compute_ns + one.communication_ns + one.copy_ns == one.busy_ns
        assert one.idle_host_ns + one.idle_submitted_ns + one.idle_unlinked_ns == one.idle_ns


def test_one_device() -> None:
    assert [d.device for d in advice(*WORK, device=1).devices] == [1]
    with pytest.raises(NothingToAnalyse, match=r"device 4; it has devices \[0, 1\]"):
        advice(*WORK, device=4)


MI210_LIKE = {"numSms": 104, "totalGlobalMem": 64 * 2**30, "warpSize": 64}


@pytest.mark.parametrize(
    ("listed", "asked", "name", "peaks"),
    [
        ([{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}], None, "NVIDIA H100 80GB HBM3", ""),
        # Its work has another number than the only device listed.
        ([{"id": 2, "name": "AMD Instinct MI300X", "numSms": 304}], None, "AMD Instinct MI300X", ""),
        ([{"id": 0, "name": "NVIDIA A0"}], None, "NVIDIA A0", "its peaks are not known (--hardware NAME)"),
        ([], None, "", "its peaks are not known (--hardware NAME)"),
        ([], "l4", "", "peaks of NVIDIA L4, asked for with --hardware l4"),
        (
            [{"id": 0, "name": "AMD Radeon Graphics", **MI210_LIKE}], None, "AMD Radeon Graphics",
            "peaks of AMD Instinct MI210, inferred: AMD Instinct MI210 or AMD Instinct MI250, which are alike, are the "
            "only known devices with 104 CUs and 64 GiB",
        ),
    ],
)  # fmt: skip
def test_whose_peaks_the_model_takes_is_said(
    listed: list[dict[str, object]], asked: str | None, name: str, peaks: str
) -> None:
    recorded = trace(call(0, 2, 1), kernel(5, 50, 1), deviceProperties=listed)
    (found,) = advise_traces([recorded], Request(hardware=asked)).devices
    assert (found.name, found.peaks) == (name, peaks)


def test_device_that_ran_nothing_in_the_window() -> None:
    found = advice(*WORK, window="0.001:0.04")
    assert [d.device for d in found.devices] == [0]
    assert [n.message for n in found.health if n.code == "empty-window"] == [
        "device 1 ran nothing in the window and is left out"
    ]


def test_ranks() -> None:
    traces = [trace(*WORK, distributedInfo={"rank": rank}, name=f"{rank}.json") for rank in (0, 1)]
    assert [(d.file, d.rank) for d in advise_traces(traces).devices] == [
        ("0.json", 0), ("0.json", 0), ("1.json", 1), ("1.json", 1),
    ]  # fmt: skip
    assert {d.rank for d in advise_traces(traces, Request(rank=1)).devices} == {1}
    with pytest.raises(NothingToAnalyse, match="rank 7"):
        advise_traces(traces, Request(rank=7))


def test_rank_of_a_merged_file() -> None:
    events = [call(1, 2, 1, pid="[TP00] 4"), call(1, 2, 1, pid="[TP01] 5"), {**kernel(5, 6, 1), "pid": "[TP00] 0"}]
    with pytest.raises(NothingToAnalyse, match=r"rank 7.*\[0, 1\]"):
        advice(*events, rank=7)


def test_errors_stay_beside_the_result() -> None:
    assert advise_traces([trace(*WORK)], errors=["b.json: broken"]).errors == ("b.json: broken",)


def test_bad_window_is_refused_whatever_the_trace() -> None:
    for events in (WORK, (op("a", 0, 1),)):
        with pytest.raises(BadUsage, match="--window sideways"):
            advice(*events, window="sideways")


def test_merged_notes() -> None:
    notes = [Note("a", "x", 1), Note("b", "y", 2), Note("a", "x", 3), Note("a", "z", 4)]
    assert merge_notes(notes) == [Note("a", "x", 4), Note("b", "y", 2), Note("a", "z", 4)]


# Without GPU work


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "no events"),
        ([{**kernel(1, 2), "ts": 0, "dur": 0}], "no event with a usable time"),
        ([call(1, 2, 1), op("a", 0, 5)], "1 launches but no GPU operation"),
        ([call(1, 2, 1, "hipGraphLaunch")], "1 launches"),
        ([event("xpu_runtime", "urEnqueue", 1, 2)], "accelerator"),
    ],
)
def test_refusals(events: list[Event], says: str) -> None:
    with pytest.raises(NothingToAnalyse, match=says):
        advice(*events)


@pytest.mark.parametrize("request_", [{"window": "gpu"}, {"device": 0}])
def test_gpu_asked_for_and_not_there(request_: dict[str, object]) -> None:
    with pytest.raises(NothingToAnalyse, match="no GPU operation"):
        advice(op("aten::mm", 0, 10), **request_)


def test_view_of_the_host() -> None:
    events = [
        *(step(i, 100 * i, 100 * i + 90) for i in range(3)), op("aten::mm", 10, 60), call(70, 75, 0, "cudaMalloc"),
        annotation("forward", 5, 65),
    ]  # fmt: skip
    found = advice(*events)
    assert found.devices == ()
    host = found.host
    assert host is not None
    assert [s.name for s in host.steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert host.step_ns == 100_000
    assert [o.name for o in host.operators] == ["aten::mm"]
    assert [c.name for c in host.calls] == ["cudaMalloc"]
    assert "No GPU work" in found.verdict


def test_verdict_names_the_largest_loss() -> None:
    loader = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50, 950)
    found = advice(call(0, 2, 1), kernel(5, 50, 1), loader, call(960, 962, 2), kernel(965, 1000, 2))
    assert "data loader" in found.verdict
    assert "90.5 %" in found.verdict  # 900 of the 995 µs from the first kernel to the last


def test_steps_of_a_host_recording_are_picked(sample: Callable[[str], Path]) -> None:
    """The sample has steps 2 to 4."""
    trace = read(sample("cpu-mlp"))
    host = advise_traces([trace], Request(steps="3-4")).host
    assert host is not None and [step.name for step in host.steps] == ["ProfilerStep#3", "ProfilerStep#4"]
    with pytest.raises(BadUsage, match="no such step; it has 2 to 4"):
        advise_traces([trace], Request(steps="99"))
