"""The split of kernel time: it adds up exactly on whatever timeline, and by hand on small ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.columns.intervals import total, union
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.reference.hardware import find, hardware
from gpu_trace_advisor.roofline.concurrency import shares
from gpu_trace_advisor.roofline.kernel_time import CAUSES, InKernel, device_of
from gpu_trace_advisor.roofline.points import roofline
from gpu_trace_advisor.timelines.device import COMPUTE, Timeline, exposed, timelines
from gpu_trace_advisor.timelines.host import read_host
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build import call, copy, kernel, op, timeline, timeline_of, trace

BF16 = "c10::BFloat16"
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85018279936, "computeMajor": 9,
        "computeMinor": 0, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 233472, "warpSize": 32}  # fmt: skip
FULL: dict[str, Any] = {"grid": [1320, 1, 1], "block": [128, 1, 1], "registers per thread": 64, "shared memory": 0}


def shaped(name: str, at: float, *dims: list[int], dtype: str = BF16) -> dict[str, Any]:
    return op(name, at, at + 9, **{"Input Dims": list(dims), "Input type": [dtype] * len(dims)})


def run(*kernels: tuple[str, tuple[list[int], ...], float, float, dict[str, Any]], dtype: str = BF16) -> InKernel:
    """One operator a kernel: (operator, shapes, start, end, geometry), times in µs."""
    events = []
    for i, (name, dims, start, end, geometry) in enumerate(kernels):
        at = 10 * i
        events += [shaped(name, at, *dims, dtype=dtype), call(at + 1, at + 3, i + 1)]
        events.append(kernel(start, end, i + 1, name=f"{name}_kernel", **geometry))
    one = timeline_of(trace(*events, deviceProperties=[H100]))
    return InKernel(one, find(device_of(one)))


def split(model: InKernel) -> dict[str, int]:
    return {part.cause: part.ns for part in model.split(*model.timeline.span_ns)}


intervals_ = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=25)


@given(intervals_)
def test_shares_add_up_to_the_union(spans: list[tuple[int, int]]) -> None:
    spans.sort()
    start = np.array([a for a, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    found = shares(start, end)
    assert found.sum() == total(union(start, end))
    assert (found >= 0).all() and (found <= end - start).all()


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10), (10, 30)], [10, 20]),
        ([(0, 10), (5, 15)], [5 + 3, 5 + 2]),  # 5 between two: 2 each, the odd one to the longest, here the first
        ([(0, 9), (0, 30)], [4, 4 + 1 + 21]),
        ([(0, 30), (10, 20), (10, 20)], [10 + 4 + 10, 3, 3]),
    ],
)
def test_shares_by_hand(spans: list[tuple[int, int]], expected: list[int]) -> None:
    start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    assert shares(start, end).tolist() == expected


operators_ = st.sampled_from(["aten::mm", "aten::add", "aten::relu", "aten::unheard_of"])
kernel_ = st.tuples(operators_, st.integers(0, 400), st.integers(0, 120), st.integers(1, 3), st.integers(1, 400))


@settings(max_examples=60, deadline=None)
@given(st.lists(kernel_, min_size=1, max_size=12), st.integers(0, 300), st.integers(1, 400), st.booleans())
def test_parts_add_up_on_random_timelines(rows: list[Any], at: int, length: int, known: bool) -> None:
    events: list[dict[str, Any]] = [copy(0, 50, 900, stream=9), call(0, 1, 900, "cudaMemcpyAsync")]
    for i, (name, start, duration, stream, blocks) in enumerate(rows):
        dims = [64, 64 * blocks]
        events += [shaped(name, 10 * i, [64, 64], dims) if name == "aten::mm" else shaped(name, 10 * i, dims, dims)]
        events += [call(10 * i + 1, 10 * i + 3, i + 1)]
        events.append(kernel(start, start + duration, i + 1, "sgemm" if name == "aten::mm" else name, stream=stream,
                             **{**FULL, "grid": [blocks, 1, 1]}))  # fmt: skip
    one = timeline_of(trace(*events, deviceProperties=[H100]))
    start_ns, end_ns = at * 1000, (at + length) * 1000
    parts = InKernel(one, hardware()["h100-sxm"] if known else None).split(start_ns, end_ns)
    assert sum(part.ns for part in parts) == dict(exposed(one, start_ns, end_ns)).get(COMPUTE, 0)
    assert all(part.ns > 0 and part.cause in CAUSES for part in parts)
    assert known or {part.cause for part in parts} <= {"unmodelled"}
    assert all(part.grade == ("measured" if part.cause == "unmodelled" else "modelled") for part in parts)


def test_a_product_bound_by_compute() -> None:
    """2 x 8192 x 8192 x 8192 FLOPs at 989.4 TFLOP/s are 1111.3 µs; of 1500 the rest is one µs of ramp and inefficiency."""
    size = [8192, 8192]
    found = split(run(("aten::mm", (size, size), 100, 1600, FULL)))
    ideal = round(2 * 8192**3 / 989.4e12 * 1e9)
    assert found == {"ideal": ideal, "ramp": 1000, "inefficiency": 1_500_000 - ideal - 1000}


def test_decode_reads_its_weights() -> None:
    """One row: 8192 x 8192 weights of two bytes at 0.9 x 3.35 TB/s, 44.5 µs; the row itself comes from the cache."""
    model = run(("aten::mm", ([1, 8192], [8192, 8192]), 100, 150, FULL))
    ideal = (2 * 8192**2 + 2 * 2 * 8192 / 3) / (0.9 * 3.35e12) * 1e9
    assert split(model)["ideal"] == round(ideal)
    (work,) = roofline(model, *model.timeline.span_ns)
    assert work.bound == "memory" and work.intensity == pytest.approx(1.0, rel=1e-3)
    assert work.bytes_per_s == pytest.approx((2 * 8192**2 + 4 * 8192) / 50e-6)


def test_idle_sms_of_the_last_wave() -> None:
    """66 blocks on 132 SMs: after the ramp half of the device is idle."""
    found = split(run(("aten::mm", ([64, 64], [64, 64]), 100, 201, {**FULL, "grid": [66, 1, 1]})))
    assert found["tail"] == 50_000 and found["ramp"] == 1000


def test_traffic_that_fusion_avoids() -> None:
    """relu, then gelu on its result of 256 MB: what the first writes and the second reads again."""
    dims = [1024, 131072]
    model = run(("aten::relu", (dims,), 100, 400, FULL), ("aten::gelu", (dims,), 401, 701, FULL))
    one_way = 2 * 1024 * 131072 / (0.9 * 3.35e12) * 1e9
    found = split(model)
    assert found["activation-traffic"] == pytest.approx(2 * one_way, abs=2)
    assert found["ideal"] == pytest.approx(2 * one_way, abs=2)
    other = run(("aten::relu", (dims,), 100, 400, FULL), ("aten::gelu", ([512, 131072],), 401, 701, FULL))
    assert "activation-traffic" not in split(other)


def test_what_autograd_keeps_must_be_written() -> None:
    """In training the first result is needed again: only reading it back is avoided."""
    dims = [1024, 131072]
    shapes = {"Input Dims": [dims], "Input type": [BF16]}
    events = [op("aten::relu", 0, 9, **{"Sequence number": 3}), op("aten::clamp_min", 1, 8, **shapes), call(2, 4, 1),
              op("aten::gelu", 10, 19, **{**shapes, "Sequence number": 4}), call(11, 13, 2),
              kernel(100, 400, 1, **FULL), kernel(401, 701, 2, **FULL)]  # fmt: skip
    one = timeline_of(trace(*events, deviceProperties=[H100]))
    one_way = 2 * 1024 * 131072 / (0.9 * 3.35e12) * 1e9
    assert split(InKernel(one, find(device_of(one))))["activation-traffic"] == pytest.approx(one_way, abs=2)


def test_no_ramp_when_the_predecessor_still_runs() -> None:
    """Programmatic dependent launch: the next kernel of the stream starts before the first one ends."""
    size = [8192, 8192]
    model = run(("aten::mm", (size, size), 100, 1600, FULL), ("aten::mm", (size, size), 1590, 3100, FULL))
    assert split(model)["ramp"] == 1000


def test_a_kernel_faster_than_the_device_is_flagged() -> None:
    size = [8192, 8192]
    model = run(("aten::mm", (size, size), 100, 600, FULL))
    assert split(model) == {"ideal": 500_000}
    (work,) = roofline(model, *model.timeline.span_ns)
    assert work.violated == 1 and model.violated.tolist() == [True]


def test_half_a_kernel_has_half_of_each_part() -> None:
    model = run(("aten::mm", ([8192, 8192], [8192, 8192]), 100, 1600, FULL))
    whole, half = split(model), {part.cause: part.ns for part in model.split(100_000, 850_000)}
    assert half["ideal"] == pytest.approx(whole["ideal"] / 2, abs=1)
    assert sum(half.values()) == 750_000


def test_without_peaks_nothing_is_modelled() -> None:
    one = timeline(shaped("aten::mm", 0, [64, 64], [64, 64]), call(1, 3, 1), kernel(10, 20, 1))
    assert find(device_of(one)) is None
    assert [tuple(part) for part in InKernel(one, None).split(0, 30_000)] == [("unmodelled", 10_000, "measured")]


def test_a_type_without_a_peak_is_not_modelled() -> None:
    """V100 has no bf16 tensor cores."""
    one = timeline(shaped("aten::mm", 0, [64, 64], [64, 64]), call(1, 3, 1), kernel(10, 20, 1))
    assert [part.cause for part in InKernel(one, hardware()["v100-sxm2"]).split(0, 30_000)] == ["unmodelled"]


def test_bandwidth_and_ramp_seen_in_the_trace() -> None:
    """Six sizes of one kernel at 2.68 TB/s (0.8 of the peak) and 2 µs: both are found, and used."""
    rows, at = [], 0.0
    for n in range(1, 7):
        moved = 4 * n * 2**26
        length = 2.0 + moved / 2.68e12 * 1e6
        rows.append(("aten::relu", ([n, 2**26],), at, at + length, FULL))
        at += length + 1.0
    model = run(*rows)
    assert model.attainable == pytest.approx(2.68e12, rel=1e-3)
    found = split(model)
    assert found["ramp"] == pytest.approx(12_000, abs=60) and found.get("inefficiency", 0) < 100


def real_timelines(folder: Path) -> Iterator[tuple[str, Timeline]]:
    for path in sorted(folder.glob("traces/**/*.json.gz")):
        recording = read(path)
        hosts = {process: read_host(recording, process) for process in range(len(recording.processes))}
        for one in timelines(recording, hosts):
            yield path.name, one


@pytest.mark.real
def test_real_traces_add_up_and_the_model_holds(real_traces: Path) -> None:
    for name, one in real_timelines(real_traces):
        model = InKernel(one, find(device_of(one)))
        start, end = one.span_ns
        middle = (start + end) // 2
        for low, high in ((start, end), (start, middle), (middle, end)):
            parts = model.split(low, high)
            assert sum(part.ns for part in parts) == dict(exposed(one, low, high)).get(COMPUTE, 0), name
        wrong = int(model.timeline.length[model.violated].sum())
        assert wrong <= 0.03 * int(model.timeline.length[model.modelled].sum()), name
