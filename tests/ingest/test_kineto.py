"""What the events of torch.profiler mean. Times are µs."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.trace.model import NONE, Kind, Trace

from tests.build import Event, advice, annotation, call, event, frame, kernel, op, overhead, trace, written


def kinds(*events: Event) -> list[Kind]:
    return [Kind(k) for k in trace(*events).kind.tolist()]


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", Kind.OPERATOR), ("Operator", Kind.OPERATOR), ("operator", Kind.OPERATOR),
        ("cuda_runtime", Kind.CALL), ("cuda_driver", Kind.CALL), ("Runtime", Kind.CALL), ("runtime", Kind.CALL),
        ("python_function", Kind.PYTHON), ("user_annotation", Kind.RANGE), ("overhead", Kind.OVERHEAD),
        ("kernel", Kind.KERNEL), ("Kernel", Kind.KERNEL), ("gpu_op", Kind.KERNEL),
        ("gpu_memcpy", Kind.COPY), ("Memcpy", Kind.COPY), ("gpu_memset", Kind.SET), ("Memset", Kind.SET),
        ("cuda_sync", Kind.SYNC), ("gpu_user_annotation", Kind.PROJECTION),
        ("mtia_runtime", Kind.ACCELERATOR), ("xpu_runtime", Kind.ACCELERATOR),
    ],
)  # fmt: skip
def test_categories(category: str, kind: Kind) -> None:
    assert kinds(event(category, "x", 1, 2)) == [kind]


@pytest.mark.parametrize("category", ["Trace", "ac2g", "async", "fwdbwd", "something new", ""])
def test_unknown_categories_are_no_rows(category: str) -> None:
    assert kinds(event(category, "x", 1, 2), kernel(3, 4)) == [Kind.KERNEL]


@pytest.mark.parametrize("phase", ["B", "E", "i", "M", "s", "f", "C", ""])
def test_only_complete_events_are_rows(phase: str) -> None:
    assert kinds({**kernel(1, 2), "ph": phase}) == []


def test_what_is_drawn_on_the_device_is_no_work() -> None:
    """Waits and projected annotations lie on device rows, and neither is work."""
    drawn = [
        event("cuda_sync", "Stream Sync", 0, 500, pid=0, tid=7, stream=7, device=0),
        event("cuda_sync", "Event Sync", 0, 600, pid=0, tid=7, stream=4294967295, device=0),
        event("gpu_user_annotation", "step", 0, 700, pid=0, tid=7),
    ]
    found = trace(*drawn, kernel(100, 180))
    assert [found.label(row) for row in found.operations] == ["kernel"]
    assert NONE in found.stream[found.rows(Kind.SYNC)].tolist()
    (device,) = advice(*drawn, kernel(100, 180)).devices
    assert (device.wall_ns, device.busy_ns, device.operations) == (80_000, 80_000, 1)


def test_device_and_stream_from_labels() -> None:
    """Where the arguments are missing, the row's own labels tell; arguments come first."""
    bare = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {}}
    found = trace(
        {**bare, "pid": 2, "tid": 9}, {**bare, "pid": "GPU 3", "tid": "stream 21"},
        {**bare, "pid": 4, "tid": 5, "args": {"device": 0, "stream": "7"}},
    )  # fmt: skip
    assert sorted(zip(found.device.tolist(), found.stream.tolist(), strict=True)) == [(0, 7), (2, 9), (3, 21)]


def test_host_rows_have_no_device() -> None:
    found = trace(op("triton", 1, 2, stream="7", device=0), call(3, 4, 1, pid=0, tid=7), kernel(5, 6, 1))
    host = found.kind < Kind.KERNEL
    assert set(found.device[host].tolist()) == set(found.stream[host].tolist()) == {NONE}
    assert set(found.thread[~host].tolist()) == {NONE}


def test_threads_are_pairs_of_ids() -> None:
    """The same thread number in two processes, and names as the file gives them."""
    naming: Event = {"ph": "M", "name": "thread_name", "pid": 5, "tid": 1, "args": {"name": "main"}}
    found = trace(op("a", 1, 2, pid=5, tid=1), op("b", 3, 4, pid=6, tid=1), op("c", 5, 6, pid=5, tid="1"), naming)
    assert [(t.pid, t.tid, t.name) for t in found.threads] == [("5", "1", "main"), ("6", "1", "")]
    assert found.thread.tolist() == [0, 1, 0]


def test_overhead_names_no_thread() -> None:
    found = trace(overhead("Buffer Flush", 1, 2), event("overhead", "Unrecognized", 3, 4, pid=5, tid=1))
    assert [t == NONE for t in found.thread.tolist()] == [True, False]


def test_metadata() -> None:
    found = trace(
        kernel(1, 2), baseTimeNanoseconds=5, distributedInfo={"rank": 3, "world_size": 8},
        cupti_version=28, cuda_runtime_version=12090,
        deviceProperties=[
            {"id": 1, "name": "NVIDIA B200", "numSms": 148, "totalGlobalMem": 9, "computeMajor": 10, "computeMinor": 0},
            {"name": ""}, "broken",
        ],
    )  # fmt: skip
    assert (found.rank, found.base_ns) == (3, 5)
    assert "CUDA 12090" in found.producer
    assert [(d.ordinal, d.name, d.sms, d.memory_bytes, d.compute_capability) for d in found.devices] == [
        (1, "NVIDIA B200", 148, 9, (10, 0)), (1, "", None, None, None),
    ]  # fmt: skip


def test_what_no_gpu_can_have_is_unknown() -> None:
    """Numbers that do not fit a column, none, less than none, or not numbers at all."""
    found = trace(
        kernel(1, 2),
        deviceProperties=[
            {"numSms": 1e30, "totalGlobalMem": -1, "computeMajor": 8, "computeMinor": -2, "l2CacheSize": 1e40},
            {"numSms": 0, "totalGlobalMem": 1e300, "computeMajor": 1e9, "computeMinor": 0, "memoryBandwidth": -5},
            {"numSms": 108, "totalGlobalMem": 8e10, "computeMajor": 8, "computeMinor": 0, "l2CacheSize": 4e7},
        ],
    )
    assert [(d.sms, d.memory_bytes, d.compute_capability) for d in found.devices] == [
        (None, None, None), (None, None, None), (108, 80_000_000_000, (8, 0)),
    ]  # fmt: skip
    assert [d.properties.get("l2CacheSize") for d in found.devices] == [None, None, 4e7]
    assert "memoryBandwidth" not in found.devices[1].properties


@pytest.mark.parametrize(
    ("name", "info", "rank"),
    [
        ("rank12_trace.json", {"rank": 3}, 3),
        ("rank12_trace.json", None, 12),
        ("worker.rank-4.json", {"backend": "nccl"}, 4),
        ("rank.json", None, None),
        ("rank12345678.json", {"rank": "x"}, None),
        ("trace.json", [], None),
    ],
)
def test_rank(name: str, info: object, rank: int | None, tmp_path: Path) -> None:
    assert read(written(tmp_path / name, kernel(1, 2), distributedInfo=info)).rank == rank


def test_memory_events() -> None:
    """By time; the CPU is device -1, and so is a number that no device has; what is not told is -1."""
    instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    found = trace(
        {**instant, "ts": 9, "args": {"Bytes": -5, "Device Type": 1, "Device Id": 0, "Total Allocated": 3}},
        {**instant, "ts": 4, "args": {"Bytes": 8, "Device Type": 0, "Device Id": 0, "Total Allocated": 8}},
        {**instant, "ts": None, "args": {"Bytes": 1}}, {**instant, "name": "other", "ts": 5},
        {**instant, "ts": 11, "args": {"Bytes": 2, "Device Type": 1, "Device Id": -7}},
    ).memory  # fmt: skip
    assert (found.time_ns.tolist(), found.device.tolist(), found.bytes.tolist()) == (
        [4_000, 9_000, 11_000], [-1, 0, -1], [8, -5, 2],
    )  # fmt: skip
    assert (found.allocated.tolist(), found.reserved.tolist()) == ([8, 3, -1], [-1, -1, -1])


def test_span_of_the_recording() -> None:
    span = event("Trace", "PyTorch Profiler (0)", 5, 95, pid="Spans", tid="PyTorch Profiler")
    assert trace(kernel(10, 20), span).captured_ns == (5_000, 95_000)
    assert trace(kernel(10, 20)).captured_ns is None


# Several ranks in one file


def links(found: Trace) -> list[tuple[str, str]]:
    """(operation, pid of its launch) in order."""
    return [
        (found.label(row), found.threads[found.thread[found.launch[row]]].pid if found.launch[row] != NONE else "")
        for row in found.operations.tolist()
    ]


def test_ranks_by_labels() -> None:
    """Labels in the pids, on host and device rows: the same ids in both, and nothing crosses."""
    events = []
    for rank in range(2):
        host, device = f"[TP0{rank}] 4{rank}", f"[TP0{rank}] 0"
        events += [
            call(10, 12, 1, pid=host), {**kernel(20 + 100 * (1 - rank), 30 + 100 * (1 - rank), 1, f"k{rank}"), "pid": device},
        ]  # fmt: skip
    found = trace(*events)
    assert [(p.rank, p.label) for p in found.processes] == [(0, "TP00"), (1, "TP01")]
    assert links(found) == [("k1", "[TP01] 41"), ("k0", "[TP00] 40")]
    assert [(d.rank, d.device) for d in advice(*events).devices] == [(0, 0), (1, 0)]
    assert [d.rank for d in advice(*events, rank=1).devices] == [1]


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        (["TP02", "TP10"], [2, 10]),
        (["TP10", "TP2"], [10, 2]),
        (["DP0-TP00", "DP0-TP01", "DP1-TP00"], [0, 1, 2]),
        (["DP0-TP10", "DP0-TP2"], [1, 0]),
        (["TP0", "EP0"], [1, 0]),
        (["TP" + "9" * 5000, "TP1"], [1, 0]),
    ],
)
def test_ranks_by_labels_of_several_numbers(labels: list[str], ranks: list[int]) -> None:
    """Where the numbers are no ranks, the labels are counted in their order: no two ranks look alike."""
    events = [
        one
        for i, label in enumerate(labels)
        for one in (
            {**call(10 + i, 12 + i, 1), "pid": f"[{label}] 4{i}"},
            {**kernel(20 + i, 30 + i, 1, f"k{i}"), "pid": f"[{label}] 0"},
        )
    ]
    found = trace(*events)
    assert {p.label: p.rank for p in found.processes} == dict(zip(labels, ranks, strict=True))


def test_ranks_by_repeated_ids() -> None:
    """Each pid launches on a device of its own, which other ids tell."""
    events = [
        call(1, 2, 1, pid=10), call(3, 4, 2, pid=10), call(1, 2, 1, pid=11), call(3, 4, 3, pid=11),
        kernel(20, 21, 1, "a0"), kernel(22, 23, 2, "b0"), kernel(10, 11, 1, "a1", device=1),
        kernel(12, 13, 3, "b1", device=1),
    ]  # fmt: skip
    found = trace(*events)
    assert len(found.processes) == 2
    assert links(found) == [("a1", "11"), ("b1", "11"), ("a0", "10"), ("b0", "10")]
    assert [n.count for n in found.health if n.code == "duplicate-ids"] == [1]


def test_a_device_stays_one_ranks_whatever_ids_coincide() -> None:
    """What rank 1 launched before the recording has the id of a call of rank 0: tied to none, and no second device."""
    calls = [call(1, 2, 1, pid=10), call(3, 4, 99, pid=10), call(1, 2, 1, pid=11)]
    calls += [call(10 * i, 10 * i + 2, i, pid=11) for i in range(2, 12)]
    kernels = [kernel(10 * i + 5, 10 * i + 8, i, f"k{i}", device=1) for i in range(1, 12)]
    events = [*calls, *kernels, kernel(5, 8, 99, "earlier", device=1)]
    found = trace(*events)
    assert links(found) == [("earlier", ""), *((f"k{i}", "11") for i in range(1, 12))]
    assert [(d.rank, d.device, d.operations, d.busy_ns) for d in advice(*events).devices] == [(1, 1, 12, 36_000)]


@pytest.mark.parametrize("rows", [1, -1])
def test_ranks_with_the_same_ids_alone(rows: int) -> None:
    """Two devices, on which every id is ambiguous: device 0 ran before rank 1 had launched, so device 1 is that one's."""
    events = [
        call(1, 2, 1, pid=10), call(3, 4, 2, pid=10), call(21, 22, 1, pid=11), call(23, 24, 2, pid=11),
        kernel(5, 9, 1, "a0"), kernel(9, 12, 2, "b0"), kernel(25, 29, 1, "a1", device=1), kernel(29, 32, 2, "b1", device=1),
    ]  # fmt: skip
    found = trace(*events[::rows])
    pids = {"a0": "10", "b0": "10", "a1": "11", "b1": "11"}
    assert dict(links(found)) == pids
    said = [n.message for n in found.health if n.code == "duplicate-ids"]
    assert len(said) == 1
    assert "; 4 operations were told apart" in said[0]


def test_what_was_not_told_apart_is_counted() -> None:
    """Both ranks may have launched either kernel: neither is tied to a call."""
    calls = [call(1, 2, 1, pid=10), call(3, 4, 1, pid=11)]
    found = trace(*calls, kernel(20, 21, 1, "a"), kernel(22, 23, 1, "b", device=1))
    assert links(found) == [("a", ""), ("b", "")]
    assert [n.message.partition("; ")[2] for n in found.health if n.code == "duplicate-ids"] == [
        "0 operations were told apart by device and time order, 2 could not be and are not tied to a call"
    ]


def test_ambiguous_ids_pair_in_order_or_not_at_all() -> None:
    calls = [call(1, 2, 1, pid=10), call(3, 4, 1, pid=11)]
    assert links(trace(*calls, kernel(20, 21, 1, "a"), kernel(22, 23, 1, "b"))) == [("a", "10"), ("b", "11")]
    assert links(trace(*calls, kernel(20, 21, 1, "a"))) == [("a", "")]


def test_two_pids_without_a_repeated_id_are_one_scope() -> None:
    found = trace(call(1, 2, 1, pid=10), call(3, 4, 2, pid=11), kernel(20, 21, 1, "a"), kernel(22, 23, 2, "b"))
    assert len(found.processes) == 1
    assert links(found) == [("a", "10"), ("b", "11")]


def test_names_that_are_missing() -> None:
    found = trace({k: v for k, v in op("x", 1, 2).items() if k != "name"}, frame("f", 3, 4), annotation("", 5, 6))
    assert [found.label(row) for row in range(3)] == ["", "f", ""]


def test_without_correlations_the_external_id_ties_an_operation_to_its_call() -> None:
    """Where one call alone has it; several, or a number that is a correlation too, tell nothing."""

    def launch(start: int, **ids: int) -> Event:
        return event("cuda_runtime", "cudaLaunchKernel", start, start + 5, **ids)

    operation = event("kernel", "k", 30, 35, pid=0, tid=7, device=0, stream=7, **{"External id": 100})
    own = {"External id": 100}
    calls = {
        "one": [launch(10, **own)],
        "two": [launch(10, **own), launch(16, **own)],
        "a correlation": [launch(10, **own), launch(16, correlation=100)],
        "another": [launch(10, **{"External id": 7})],
    }
    found = {what: trace(*these, operation) for what, these in calls.items()}
    linked = {what: bool((t.launch[t.operations] != NONE).all()) for what, t in found.items()}
    assert linked == {"one": True, "two": False, "a correlation": False, "another": False}
