"""What is said of a recording without GPU work: what it lacks, and how to record it."""

from typing import Any

import pytest
from gpu_trace_advisor.advice.build import advise_traces

from tests.build import Event, advice, call, event, memset, op, trace

A_GPU = [{"id": 0, "name": "NVIDIA A100", "numSms": 108}]


def told(*events: Event, **metadata: Any) -> str:
    host = advise_traces([trace(*events, **metadata)]).host
    assert host is not None
    return host.to_record


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([op("aten::mm", 0, 100)], "move the model and its inputs there"),
        ([op("aten::mm", 0, 100), call(10, 20, 0, "cudaGetDeviceCount")], "move the model and its inputs there"),
        ([op("aten::mm", 0, 100), call(10, 20, 0, "cudaStreamSynchronize")], "profile the process that computes"),
        ([op("aten::mm", 0, 100), event("cuda_profiler_range", "aten::mm", 0, 90)], "without experimental_config"),
    ],
)
def test_what_is_missing(events: list[Event], words: str) -> None:
    assert words in told(*events, deviceProperties=A_GPU)


def test_no_gpu_is_listed() -> None:
    assert "ProfilerActivity.CUDA" in told(op("aten::mm", 0, 100))


def test_one_memset_is_a_recording_of_the_host() -> None:
    events = [op("aten::mm", 0, 100), call(100, 103, 1, "cudaMemsetAsync"), memset(110, 111, 1)]
    found = advice(*events)
    assert found.devices == () and found.host is not None
    assert found.verdict.startswith("No GPU work but one memset was recorded in these 111.0 µs")
    assert [device.operations for device in advice(*events, window="gpu").devices] == [1]
