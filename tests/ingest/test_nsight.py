"""Nsight Systems exports: what each trait of a schema means, and what cannot be read."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.nsight import sqlite_source as sqlite_columns
from gpu_trace_advisor.ingest.nsight.reader import read_nsight
from gpu_trace_advisor.trace.model import NONE, Kind, Trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nsight_export import CUPTI, NO_ID, call, kernel, nvtx, process, thread, write


@pytest.fixture(params=["standard library", "adbc"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with both ways of reading."""
    if request.param == "adbc":
        monkeypatch.setattr(sqlite_columns, "SMALL_BYTES", 0)


def read(tmp_path: Path, strings: dict[int, str | bytes] | None = None, **tables: Any) -> Trace:
    tables = {CUPTI + name.removeprefix("_") if name.startswith("_") else name: rows for name, rows in tables.items()}
    return read_nsight(write(tmp_path / "report.sqlite", strings, **tables))


def labels(trace: Trace, *kinds: Kind) -> list[str]:
    return [trace.label(row) for row in trace.rows(*kinds).tolist()]


def integer(trace: Trace, row: int, argument: str) -> int:
    return trace.integers[argument].get(row) if argument in trace.integers else NONE


def test_a_kernel_with_its_launch(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {1: "void k<float>(float*)", 2: "cudaLaunchKernel_v7000", 3: "main thread", 4: "other"},
        _RUNTIME=[call(1000, 1500, 9, 2)],
        _KERNEL=[
            kernel(
                3000, 5000, 9, registersPerThread=32, staticSharedMemory=100, dynamicSharedMemory=28, graphNodeId=None,
                gridX=2147483647, gridY=65535, gridZ=1, blockX=256, blockY=2, blockZ=1,
            )
        ],
        ThreadNames=[
            {"globalTid": thread(500, 501), "nameId": 3, "priority": 20},
            {"globalTid": thread(500, 501), "nameId": 4, "priority": 10},
        ],
        PROCESSES=[{"globalPid": process(500), "pid": 500, "name": "/home/someone/bin/train"}],
    )  # fmt: skip
    assert labels(trace, Kind.CALL, Kind.KERNEL) == ["cudaLaunchKernel", "void k<float>(float*)"]
    assert trace.start_ns.tolist() == [1000, 3000]
    assert trace.end_ns.tolist() == [1500, 5000]
    assert trace.launch.tolist() == [NONE, 0]
    assert (trace.device.tolist(), trace.stream.tolist(), trace.thread.tolist()) == ([NONE, 0], [NONE, 7], [0, NONE])
    assert integer(trace, 1, "registers per thread") == 32
    assert integer(trace, 1, "shared memory") == 128
    assert "graph node id" not in trace.integers
    assert trace.text(1, "grid") == "[2147483647, 65535, 1]"
    assert trace.text(1, "block") == "[256, 2, 1]"
    assert trace.text(0, "block") is None
    (the_thread,), (the_process,) = trace.threads, trace.processes
    assert (the_thread.pid, the_thread.tid, the_thread.name) == ("500", "501", "main thread")
    assert (the_process.pid, the_process.label) == (500, "train")
    assert (trace.format, trace.producer) == ("nsight", "Nsight Systems (export schema unknown)")
    assert not trace.health


def test_only_runtime_and_driver_events_are_calls(tmp_path: Path) -> None:
    rows = [call(10, 20, 1, 2), call(11, 19, 1, 3, eventClass=67), call(30, 40, 2, 4, eventClass=1)]
    trace = read(tmp_path, {2: "cudaMemcpy_v3020", 3: "cudaMemcpy", 4: "cuMemcpyHtoDAsync_v2"}, _RUNTIME=rows)
    assert labels(trace, Kind.CALL) == ["cudaMemcpy", "cuMemcpyHtoDAsync_v2"]


def test_calls_named_by_a_text_column(tmp_path: Path) -> None:
    rows = [call(10, 20, 1, 0) | {"nameId": None, "name": "cudaFree_v3020"}, call(30, 40, 2, 2) | {"name": "not this"}]
    assert labels(read(tmp_path, {2: "cudaMalloc_v3020"}, _RUNTIME=rows), Kind.CALL) == ["cudaFree", "cudaMalloc"]


def test_a_kernel_without_a_demangled_name_has_its_short_name(tmp_path: Path) -> None:
    rows = [kernel(0, 10, demangledName=None, shortName=2), kernel(20, 30)]
    assert labels(read(tmp_path, {1: "void k()", 2: "k"}, _KERNEL=rows), Kind.KERNEL) == ["k", "void k()"]


def test_correlations_join_within_a_process(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {1: "k", 2: "cudaLaunchKernel_v7000"},
        _RUNTIME=[call(3000, 3100, 77, 2, 501), call(9000, 9100, 77, 2, 502)],
        _KERNEL=[kernel(5000, 15000, 77, 501), kernel(20000, 50000, 77, 502)],
        TARGET_INFO_CUDA_DEVICE=[
            {"gpuId": 0, "cudaId": 0, "pid": 501, "uuid": "GPU-aa", "numMultiprocessors": 132},
            {"gpuId": 1, "cudaId": 0, "pid": 502, "uuid": "GPU-bb", "numMultiprocessors": 132},
        ],
    )
    kernels = trace.rows(Kind.KERNEL)
    assert trace.start_ns[trace.launch[kernels]].tolist() == [3000, 9000]
    assert [process.pid for process in trace.processes] == [501, 502]
    assert [(d.process, d.ordinal, d.gpu, d.sms) for d in trace.devices] == [(0, 0, 0, 132), (1, 0, 1, 132)]


def test_times_before_the_recording_are_negative_and_real(tmp_path: Path) -> None:
    trace = read(tmp_path, {1: "k"}, _KERNEL=[kernel(-5000, -1), kernel(-1, 7)])
    assert (trace.start_ns.tolist(), trace.end_ns.tolist()) == ([-5000, -1], [-1, 7])
    assert not trace.health


def test_rows_without_times_are_set_aside(tmp_path: Path) -> None:
    rows = [kernel(0, 0), kernel(10, 5), {**kernel(0, 0), "end": None}, kernel(1, 8 * 86_400 * 10**9)]
    trace = read(tmp_path, {1: "k"}, _KERNEL=rows)
    assert trace.end_ns.tolist() == [0]
    assert [(note.code, note.count) for note in trace.health] == [("quarantined-time", 3)]


def test_whole_graph_replays(tmp_path: Path) -> None:
    row = {"deviceId": 0, "streamId": 7, "globalPid": process(500), "graphId": 4, "graphExecId": 5}
    rows = [
        {**row, "start": 100, "end": 900, "correlationId": 3},
        {**row, "start": 1000, "end": 1800, "correlationId": 4},
    ]
    trace = read(tmp_path, {2: "cudaGraphLaunch_v10000"}, _RUNTIME=[call(0, 50, 3, 2)], _GRAPH_TRACE=rows)
    graphs = trace.rows(Kind.GRAPH)
    assert labels(trace, Kind.GRAPH) == ["CUDA graph 4"] * 2
    assert integer(trace, int(graphs[0]), "graph id") == 4
    assert trace.launch[graphs].tolist() == [0, NONE]
    (note,) = trace.health
    assert (note.code, note.count) == ("unrecorded-graph-nodes", 2)
    assert "--cuda-graph-trace=node" in note.message


@pytest.mark.parametrize(
    ("kind", "source", "target", "name"),
    [
        (1, 0, 2, "Memcpy HtoD (Pageable -> Device)"),
        (1, 1, 2, "Memcpy HtoD (Pinned -> Device)"),
        (2, 2, 1, "Memcpy DtoH (Device -> Pinned)"),
        (8, 2, 2, "Memcpy DtoD (Device -> Device)"),
        (10, 2, 2, "Memcpy PtoP (Device -> Device)"),
        (9, 1, 0, "Memcpy HtoH (Pinned -> Pageable)"),
        (1, 0, 4, "Memcpy HtoD (Pageable -> Managed)"),
        (3, 0, 3, "Memcpy HtoA (Pageable -> Array)"),
        (11, None, None, "Memcpy HtoD (Unified)"),
        (8, None, None, "Memcpy DtoD"),
        (99, 2, 99, "Memcpy (Device -> Unknown)"),
        (None, None, None, "Memcpy"),
    ],
)
def test_copies_are_named_as_kineto_names_them(tmp_path: Path, kind: Any, source: Any, target: Any, name: str) -> None:
    copy = {**kernel(0, 10), "bytes": 4096, "copyKind": kind, "srcKind": source, "dstKind": target}
    trace = read(tmp_path, {}, _MEMCPY=[copy])
    assert labels(trace, Kind.COPY) == [name]
    assert trace.bytes.tolist() == [4096]


def test_the_numbers_of_an_enumeration_are_the_exports_own(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {},
        _MEMCPY=[{**kernel(0, 10), "bytes": 1, "copyKind": 21, "srcKind": 31, "dstKind": 32}],
        _MEMSET=[{**kernel(20, 30), "bytes": 8, "memKind": 33}],
        ENUM_CUDA_MEMCPY_OPER=[{"id": 21, "name": "CUDA_MEMCPY_KIND_DTOH", "label": "Device-to-Host"}],
        ENUM_CUDA_MEM_KIND=[
            {"id": 31, "name": "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "label": "Device"},
            {"id": 32, "name": "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "label": "Pageable"},
            {"id": 33, "name": "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC", "label": "Device Static"},
        ],
    )
    assert labels(trace, Kind.COPY, Kind.SET) == ["Memcpy DtoH (Device -> Pageable)", "Memset (Device Static)"]


def test_an_enumeration_without_names_changes_nothing(tmp_path: Path) -> None:
    copy = {**kernel(0, 10), "bytes": 1, "copyKind": 1, "srcKind": 0, "dstKind": 2}
    trace = read(tmp_path, {}, _MEMCPY=[copy], ENUM_CUDA_MEMCPY_OPER=[{"id": 1, "label": "?"}])
    assert labels(trace, Kind.COPY) == ["Memcpy HtoD (Pageable -> Device)"]


def test_a_copy_between_devices_names_them(tmp_path: Path) -> None:
    copy = {**kernel(0, 10), "bytes": 1, "copyKind": 10, "srcKind": 2, "dstKind": 2, "srcDeviceId": 0, "dstDeviceId": 3}
    trace = read(tmp_path, {}, _MEMCPY=[copy, {**copy, "start": 20, "end": 30, "dstDeviceId": 0}])
    assert [integer(trace, row, "toDevice") for row in (0, 1)] == [3, NONE]


def sync(start: int, correlation: int, kind: int, stream: int = NO_ID, event: int = NO_ID) -> dict[str, Any]:
    row = {"start": start, "end": start + 5, "deviceId": 0, "streamId": stream, "correlationId": correlation}
    return {**row, "globalPid": process(500), "syncType": kind, "eventId": event}


def test_waits_are_named_by_their_call_and_not_by_their_number(tmp_path: Path) -> None:
    apis = [
        "cudaStreamSynchronize_v3020", "cuCtxSynchronize", "cudaEventSynchronize_v3020", "cudaStreamWaitEvent_v3020",
        "cudaEventQuery_v3020", "cudaDeviceSynchronize_v3020", "cudaFree_v3020",
    ]  # fmt: skip
    trace = read(
        tmp_path,
        dict(enumerate(apis, 10)),
        _RUNTIME=[call(100 * i, 100 * i + 9, i, 9 + i) for i in range(1, 8)],
        _SYNCHRONIZATION=[sync(100 * i + 1, i, 0, 7 if i == 1 else NO_ID) for i in range(1, 9)],
    )
    assert labels(trace, Kind.SYNC) == [
        "Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event", "Event Query", "Context Sync", "Sync", "Sync",
    ]  # fmt: skip
    assert trace.stream[trace.rows(Kind.SYNC)].tolist() == [7] + [NONE] * 7
    assert not len(trace.operations)


def test_a_wait_names_the_latest_record_of_its_event(tmp_path: Path) -> None:
    event = {"deviceId": 0, "globalPid": process(500)}
    trace = read(
        tmp_path,
        {},
        _SYNCHRONIZATION=[sync(10, 8, 2, 20, 6), sync(20, 9, 2, 20, 5), sync(30, 3, 2, 20, 6), sync(40, 10, 3)],
        _CUDA_EVENT=[
            {**event, "streamId": 13, "correlationId": 4, "eventId": 6},
            {**event, "streamId": 14, "correlationId": 7, "eventId": 6},
            {**event, "streamId": 15, "correlationId": 12, "eventId": 6},
            {**event, "streamId": 16, "correlationId": 7, "eventId": 5, "globalPid": process(600)},
        ],
    )
    assert [integer(trace, row, "wait_on_cuda_event_id") for row in range(4)] == [6, 5, 6, NONE]
    assert [integer(trace, row, "wait_on_cuda_event_record_corr_id") for row in range(4)] == [7, NONE, NONE, NONE]
    assert [integer(trace, row, "wait_on_stream") for row in range(4)] == [14, NONE, NONE, NONE]


def test_overhead_has_kinetos_names_and_its_thread(tmp_path: Path) -> None:
    row = {"eventClass": 0, "globalTid": thread(500, 501), "correlationId": 1}
    trace = read(
        tmp_path,
        {1: "CUPTI Buffer flush", 2: "by name"},
        PROFILER_OVERHEAD=[{"start": 0, "end": 5, "globalTid": thread(500, 502), "nameId": 1, "overheadType": 7}],
        _OVERHEAD=[
            {**row, "start": 10, "end": 15, "nameId": 2, "overheadType": 8},
            {**row, "start": 20, "end": 25, "nameId": 2, "overheadType": 1},
            {**row, "start": 30, "end": 35, "nameId": None, "overheadType": 6},
            {**row, "start": 40, "end": 45, "nameId": None, "overheadType": 2},
        ],
    )
    assert labels(trace, Kind.OVERHEAD) == [
        "CUPTI Buffer flush", "Command Buffer Full", "by name", "Runtime Triggered Module Loading", "Driver Compiler",
    ]  # fmt: skip
    assert [trace.threads[t].tid for t in trace.thread.tolist()] == ["502", "501", "501", "501", "501"]


def test_operating_system_calls(tmp_path: Path) -> None:
    row = {"start": 0, "end": 5, "eventClass": 27, "globalTid": thread(500, 501), "nameId": 1}
    assert labels(read(tmp_path, {1: "pthread_cond_wait"}, OSRT_API=[row]), Kind.OS) == ["pthread_cond_wait"]


def test_ranges_of_both_kinds_and_their_domains(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {5: "ncclSend"},
        NVTX_EVENTS=[
            nvtx(0, None, "NCCL", 75, domainId=1),
            nvtx(1, None, "a mark", 34),
            nvtx(10, 90, "step"),
            nvtx(20, 30, None, textId=5, domainId=1),
            nvtx(25, 80, "request", 60, rangeId=3),
        ],
    )
    assert labels(trace, Kind.RANGE) == ["step", "ncclSend"]
    assert labels(trace, Kind.SPAN) == ["request"]
    assert [trace.text(row, "domain") for row in range(3)] == [None, "NCCL", None]
    assert not trace.health


def test_a_domain_is_known_in_its_process_only(tmp_path: Path) -> None:
    other = {"domainId": 1, "globalTid": thread(600, 601)}
    rows = [nvtx(0, None, "NCCL", 75, domainId=1), nvtx(10, 20, "here", domainId=1), nvtx(30, 40, "there", **other)]
    trace = read(tmp_path, NVTX_EVENTS=rows)
    assert [trace.text(row, "domain") for row in (0, 1)] == ["NCCL", None]


def test_ranges_that_never_closed_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, NVTX_EVENTS=[nvtx(0, None, "run"), nvtx(1, None, "step"), nvtx(2, 5, "done")])
    assert labels(trace, Kind.RANGE) == ["done"]
    assert [(note.code, note.count) for note in trace.health] == [("dropped-event", 2)]


@pytest.mark.parametrize(
    ("text", "kind", "name", "sequence", "dims"),
    [
        ("aten::mul, seq = 46174, op_id = 993406", Kind.OPERATOR, "aten::mul", 46174, None),
        ("detach_, op_id = 993405", Kind.OPERATOR, "detach_", NONE, None),
        ("aten::mm, op_id = 3, sizes = [[2], []], input_op_ids = [(1)]", Kind.OPERATOR, "aten::mm", NONE, "[[2], []]"),
        ("aten::mm, seq = 1, op_id = 3, sizes = [[2, 3]]", Kind.OPERATOR, "aten::mm", 1, "[[2, 3]]"),
        ("aten::mm", Kind.OPERATOR, "aten::mm", NONE, None),
        ("ProfilerStep#4, op_id = 12", Kind.RANGE, "ProfilerStep#4", NONE, None),
        ("forward, seq = 3", Kind.RANGE, "forward, seq = 3", NONE, None),
        ("forward", Kind.RANGE, "forward", NONE, None),
        ("", Kind.RANGE, "", NONE, None),
    ],
)  # fmt: skip
def test_operators_emitted_as_ranges(
    tmp_path: Path, text: str, kind: Kind, name: str, sequence: int, dims: str | None
) -> None:
    trace = read(tmp_path, NVTX_EVENTS=[nvtx(0, 10, text)])
    assert (Kind(int(trace.kind[0])), trace.label(0)) == (kind, name)
    assert integer(trace, 0, "Sequence number") == sequence
    assert trace.text(0, "Input Dims") == dims


def test_ranges_of_an_export_without_registered_strings(tmp_path: Path) -> None:
    row = {k: v for k, v in nvtx(0, 10, "range").items() if k not in ("textId", "domainId")}
    assert labels(read(tmp_path, NVTX_EVENTS=[row]), Kind.RANGE) == ["range"]


def gpu(id_: int, name: str, sms: int = 108, major: int = 8, **more: Any) -> dict[str, Any]:
    facts = {
        "id": id_,
        "name": name,
        "smCount": sms,
        "totalMemory": 1000 * sms,
        "computeMajor": major,
        "computeMinor": 0,
    }
    return {**facts, "cuDevice": 0, "threadsPerWarp": 32 if major else 0, **more}


def test_the_only_gpu_needs_no_mapping(tmp_path: Path) -> None:
    gpus = [
        gpu(0, "Intel(R) Iris(R) Xe Graphics", 0, 0),
        gpu(1, "NVIDIA RTX 5000"),
        gpu(2, "Microsoft Basic Render Driver", 0, 0),
    ]
    trace = read(tmp_path, {1: "k"}, _KERNEL=[kernel(0, 10)], TARGET_INFO_GPU=gpus)
    (device,) = trace.devices
    assert (device.name, device.gpu, device.sms, device.memory_bytes) == ("NVIDIA RTX 5000", 1, 108, 108000)
    assert device.compute_capability == (8, 0)
    assert device.properties == {"warpSize": 32}


@pytest.mark.parametrize(("second", "name"), [("A100", "A100"), ("L40S", "")])
def test_gpus_that_cannot_be_told_apart_have_no_index(tmp_path: Path, second: str, name: str) -> None:
    rows = [kernel(0, 10), kernel(0, 10, deviceId=1)]
    trace = read(tmp_path, {1: "k"}, _KERNEL=rows, TARGET_INFO_GPU=[gpu(0, "A100"), gpu(1, second)])
    assert [(d.ordinal, d.name, d.gpu) for d in trace.devices] == [(0, name, None), (1, name, None)]


def test_a_mapped_gpu_is_the_one_that_it_is_mapped_to(tmp_path: Path) -> None:
    mapping = [{"gpuId": 1, "cudaId": 0, "pid": 500}, {"gpuId": 0, "cudaId": 0, "pid": 600}]
    gpus = [gpu(0, "A100"), gpu(1, "L40S", 142)]
    trace = read(tmp_path, {1: "k"}, _KERNEL=[kernel(0, 10)], TARGET_INFO_GPU=gpus, TARGET_INFO_CUDA_DEVICE=mapping)
    assert [(d.ordinal, d.name, d.gpu, d.sms) for d in trace.devices] == [(0, "L40S", 1, 142)]


def test_an_export_says_who_recorded_it_and_when_but_not_where(tmp_path: Path) -> None:
    captured = {
        "PROCESS_0:COMMAND": "/home/someone/secret.py", "PROCESS_0:ARGUMENT_0": "--token=abc", "ENVIRONMENT": "KEY=abc",
        "HOST_NAME": "node17", "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": "Node", "RUN_DURATION_MS": "12",
    }  # fmt: skip
    trace = read(
        tmp_path,
        META_DATA_EXPORT=[
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2026.2.1.210"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"},
        ],
        META_DATA_CAPTURE=[{"name": name, "value": value} for name, value in captured.items()],
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": 1_700_000_000_000_000_123}],
        DIAGNOSTIC_EVENT=[
            {"timestamp": -5, "severity": 1, "text": "log in /home/someone/x/pid_7.log,\nfine"},
            {"timestamp": 1, "severity": 2, "text": r"see C:\Users\someone\y.txt and /proc/sys/kernel/z"},
            {"timestamp": 2, "severity": 3, "text": "no privilege"},
            {"timestamp": 3, "severity": 3, "text": "no privilege"},
        ],
    )  # fmt: skip
    assert trace.producer == "Nsight Systems 2026.2.1.210 (export schema 3.25.0)"
    assert trace.base_ns == 1_700_000_000_000_000_123
    assert trace.metadata == {
        "EXPORT_PRODUCT_VERSION": "2026.2.1.210",
        "EXPORT_SCHEMA_VERSION": "3.25.0",
        "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": "Node",
        "RUN_DURATION_MS": "12",
        "diagnostics": ["no privilege", "see y.txt and /proc/sys/kernel/z", "log in pid_7.log, fine"],
    }
    json.dumps(trace.metadata)


def test_the_older_name_of_the_metadata(tmp_path: Path) -> None:
    trace = read(tmp_path, EXPORT_META_DATA=[{"name": "EXPORT_PRODUCT_VERSION", "value": "2022.4.2.1"}])
    assert trace.producer == "Nsight Systems 2022.4.2.1 (export schema unknown)"


def test_text_that_is_no_utf8(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {1: b"k\xff\xc0rnel"},
        _KERNEL=[kernel(0, 10)],
        NVTX_EVENTS=[nvtx(0, 10, None) | {"text": b"\xcf\xf0\xe8"}],
        META_DATA_EXPORT=[{"name": "EXPORT_PLATFORM", "value": b"\xcf\xf0"}],
    )
    assert labels(trace, Kind.KERNEL) == ["k\ufffd\ufffdrnel"]
    assert labels(trace, Kind.RANGE) == ["\ufffd\ufffd\ufffd"]
    assert trace.metadata["EXPORT_PLATFORM"] == "\ufffd\ufffd"


@pytest.mark.parametrize(
    "tables",
    [
        {"NVTX_EVENTS": [nvtx(0, 10, "range")]},
        {"_RUNTIME": [call(0, 10, 1, 1)]},
        {"_KERNEL": [], "_RUNTIME": []},
        {"TARGET_INFO_GPU": [gpu(0, "A100")]},
        {"META_DATA_EXPORT": []},
    ],
)
def test_an_export_without_gpu_work_is_a_trace(tmp_path: Path, tables: dict[str, Any]) -> None:
    trace = read(tmp_path, {}, **tables)
    assert not len(trace.operations)


def test_ids_that_are_missing_everywhere(tmp_path: Path) -> None:
    row = {"start": 0, "end": 10, "deviceId": 0, "streamId": NO_ID, "correlationId": None, "globalPid": None}
    trace = read(tmp_path, _KERNEL=[row], _RUNTIME=[{"start": 0, "end": 1, "correlationId": 0, "globalTid": None}])
    kernels = trace.rows(Kind.KERNEL)
    assert (trace.stream[kernels].tolist(), trace.correlation[kernels].tolist()) == ([NONE], [NONE])
    assert trace.launch[kernels].tolist() == [NONE]
    assert trace.processes[0].pid == 0


def test_numbers_written_as_text(tmp_path: Path) -> None:
    trace = read(tmp_path, {1: "k"}, _KERNEL=[{**kernel(0, 10), "start": "5x", "deviceId": "1"}])
    assert (trace.start_ns.tolist(), trace.device.tolist()) == ([5], [1])


def test_the_rank_in_the_name(tmp_path: Path) -> None:
    assert read_nsight(write(tmp_path / "run_rank3.sqlite", {})).rank == 3


def test_a_table_of_unknown_gpu_work_is_named(tmp_path: Path) -> None:
    trace = read(tmp_path, {1: "k"}, _KERNEL=[kernel(0, 10)], _MEMCPY2=[kernel(0, 10)], _KERNEL_NEW=[])
    (note,) = trace.health
    assert (note.code, note.message.rpartition(" ")[2]) == ("partial", CUPTI + "MEMCPY2")


def test_a_later_version_of_a_table(tmp_path: Path) -> None:
    assert labels(read(tmp_path, {1: "k"}, _KERNEL_V2=[kernel(0, 10)]), Kind.KERNEL) == ["k"]


def refusal(path: Path) -> str:
    with pytest.raises(UnreadableTrace) as caught:
        read_nsight(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_what_is_no_export_is_refused_with_what_was_found(tmp_path: Path) -> None:
    assert "tables: a_table" in refusal(write(tmp_path / "a.sqlite", a_table=[{"x": 1}]))
    none = write(tmp_path / "none.sqlite", a=[])
    with sqlite3.connect(none) as db:
        db.execute("DROP TABLE a")
    db.close()
    assert "its tables: none" in refusal(none)
    assert "nvprof" in refusal(write(tmp_path / "nvprof.sqlite", {}, **{CUPTI + "CONCURRENT_KERNEL": []}))
    lacking = write(tmp_path / "b.sqlite", None, **{CUPTI + "KERNEL": [{"start": 1, "name": "k"}]})
    assert "no column end" in refusal(lacking)
    assert "nsys export" in refusal(write(tmp_path / "c.sqlite", a_table=[{"x": 1}]))


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    for name, content, part in [
        ("empty.sqlite", b"", "empty"),
        ("text.sqlite", b"not a database at all", "no SQLite database"),
        ("header.sqlite", b"SQLite format 3\0", "cut short"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert part in refusal(tmp_path / name)
    assert "cannot be read" in refusal(tmp_path / "missing.sqlite")
    (tmp_path / "folder").mkdir()
    assert "folder" in refusal(tmp_path / "folder")


def test_a_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "report.sqlite", {1: "k"}, **{CUPTI + "KERNEL": [kernel(0, 10)]})
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    assert "locked" in refusal(path)
    writer.execute("ROLLBACK")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(f"DELETE FROM {CUPTI}KERNEL")
    assert "wal_checkpoint" in refusal(path)
    writer.close()
    assert not len(read_nsight(path).operations)
    shutil.copy(path, tmp_path / "copy.sqlite")
    (tmp_path / "copy.sqlite-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(600))
    assert "interrupted" in refusal(tmp_path / "copy.sqlite")


def test_nothing_is_created_beside_it_and_nothing_is_changed(tmp_path: Path) -> None:
    folder = tmp_path / "a #1 100% ? é"
    folder.mkdir()
    path = write(folder / "my report?.sqlite", {1: "k"}, **{CUPTI + "KERNEL": [kernel(0, 10)]})
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
    db.close()
    before = path.read_bytes(), path.stat().st_mtime_ns
    folder.chmod(0o555)
    try:
        assert len(read_nsight(path).operations) == 1
        assert [file.name for file in folder.iterdir()] == [path.name]
    finally:
        folder.chmod(0o755)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_small_export_does_not_load_the_driver(tmp_path: Path) -> None:
    path = write(tmp_path / "report.sqlite", {1: "k"}, **{CUPTI + "KERNEL": [kernel(0, 10)]})
    code = (
        "import sys, pathlib; from gpu_trace_advisor.ingest.nsight.reader import read_nsight; "
        f"assert len(read_nsight(pathlib.Path({str(path)!r}))) == 1; "
        "sys.exit(' '.join(m for m in ('adbc_driver_manager', 'pyarrow', 'pandas') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def full_export(path: Path) -> Path:
    strings: dict[int, str | bytes] = {i: f"name {i} " * 20 for i in range(60)}
    return write(
        path,
        strings,
        **{CUPTI + "RUNTIME": [call(100 * i, 100 * i + 50, i, i % 60) for i in range(1, 80)]},
        **{CUPTI + "KERNEL": [kernel(100 * i + 60, 100 * i + 90, i, gridX=i, gridY=1, gridZ=1) for i in range(1, 80)]},
        **{CUPTI + "MEMCPY": [{**kernel(1, 2), "bytes": 1, "copyKind": 1, "srcKind": 0, "dstKind": 2}]},
        **{CUPTI + "SYNCHRONIZATION": [sync(i, i, 1) for i in range(5)]},
        NVTX_EVENTS=[nvtx(i, i + 10, f"range {i % 7}, op_id = {i}") for i in range(80)],
        TARGET_INFO_GPU=[gpu(0, "A100")],
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_export(tmp_path_factory.mktemp("whole") / "report.sqlite")


quiet = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quiet
@given(length=st.integers(0, 1 << 20))
def test_a_truncated_database_is_refused(tmp_path: Path, whole: Path, length: int) -> None:
    content = whole.read_bytes()
    path = tmp_path / "report.sqlite"
    path.write_bytes(content[: length % len(content)])
    refusal(path)


@quiet
@given(pieces=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=200)), min_size=1, max_size=8))
def test_a_damaged_database_is_read_or_refused(tmp_path: Path, whole: Path, pieces: list[tuple[int, bytes]]) -> None:
    damaged = bytearray(whole.read_bytes())
    size = len(damaged)
    for at, piece in pieces:
        damaged[at % size : at % size + len(piece)] = piece
    path = tmp_path / "report.sqlite"
    path.write_bytes(damaged[:size])
    try:
        trace = read_nsight(path)
    except UnreadableTrace as error:
        assert "\n" not in str(error)
    else:
        assert (trace.end_ns >= trace.start_ns).all()


def by_hand(path: Path) -> Counter[tuple[Any, ...]]:
    """Operations as (kind, process, device, stream, start, end, start of the launch), read row by row."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    launches: dict[tuple[int, int], int] = {}
    if CUPTI + "RUNTIME" in tables:
        for start, tid, correlation in db.execute(
            f"SELECT start, globalTid, correlationId FROM {CUPTI}RUNTIME WHERE eventClass IN (0, 1) ORDER BY start DESC"
        ):
            launches[tid >> 24 & 0xFFFFFF, correlation] = start
    found: Counter[tuple[Any, ...]] = Counter()
    for table, kind in (("KERNEL", "KERNEL"), ("GRAPH_TRACE", "GRAPH"), ("MEMCPY", "COPY"), ("MEMSET", "SET")):
        if CUPTI + table in tables:
            for start, end, device, stream, pid, correlation in db.execute(
                f"SELECT start, end, deviceId, streamId, globalPid, correlationId FROM {CUPTI}{table}"
            ):
                pid = pid >> 24 & 0xFFFFFF
                launch = launches.get((pid, correlation)) if correlation else None
                found[kind, pid, device, stream, start, end, launch] += 1
    db.close()
    return found


@pytest.mark.real
def test_operations_of_real_exports_are_those_of_their_tables(real_traces: Path) -> None:
    paths = sorted((real_traces / "traces" / "nsys").glob("*.sqlite"))
    assert paths
    for path in paths:
        trace = read_nsight(path)
        rows = trace.operations
        starts = np.append(trace.start_ns, 0)[trace.launch[rows]].tolist()
        read_rows = Counter(
            (Kind(kind).name, trace.processes[at].pid, device, stream, start, end, launched if launch != NONE else None)
            for kind, at, device, stream, start, end, launch, launched in zip(
                trace.kind[rows].tolist(), trace.process[rows].tolist(), trace.device[rows].tolist(),
                trace.stream[rows].tolist(), trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist(),
                trace.launch[rows].tolist(), starts, strict=True,
            )
        )  # fmt: skip
        assert read_rows == by_hand(path), path.name
