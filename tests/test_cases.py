"""Traces with a known defect or peculiarity, and what has to be said about each.

Every case is built here; with recordings of others at hand, the same checks run on the files they are modelled on.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.trace.model import Kind, Trace

from tests.build import (
    Event,
    Nsight,
    annotation,
    call,
    copy,
    event,
    frame,
    kernel,
    memset,
    nsight_id,
    op,
    step,
    timeline_of,
)

Json = dict[str, Any]


@dataclass
class Result:
    """What `advise` made of a file."""

    path: Path
    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        assert self.code == 0, self.err
        found: Json = json.loads(self.out)
        return found

    @property
    def device(self) -> Json:
        devices = self.json["devices"]
        assert len(devices) == 1
        found: Json = devices[0]
        return found

    @property
    def refusal(self) -> str:
        """The one line on standard error, when there was nothing to analyse."""
        assert (self.code, self.out) == (2, "")
        assert len(self.err.splitlines()) == 1
        assert "Traceback" not in self.err
        assert self.path.name in self.err
        return self.err

    @property
    def trace(self) -> Trace:
        return read(self.path)

    def health(self) -> dict[str, int]:
        return {note["code"]: note["count"] for note in self.json["health"]}


def advise(path: Path, *options: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(path), "--format", "json", *options])
    return Result(path, code, out.getvalue(), err.getvalue())


@dataclass
class Case:
    """A file of a case: how to write one like it, and what must be said about it."""

    name: str
    write: Callable[[Path], None]
    check: Callable[[Result], None]
    options: tuple[str, ...] = ()


CASES: list[Case] = []


def case(name: str, write: Callable[[Path], None], *options: str) -> Callable[[Callable[[Result], None]], None]:
    def add(check: Callable[[Result], None]) -> None:
        CASES.append(Case(name, write, check, options))

    return add


def chrome(*events: Event, **metadata: Any) -> Callable[[Path], None]:
    document = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, **metadata, "traceEvents": events}
    return text_file(json.dumps({key: value for key, value in document.items() if value is not None}))


BASE = 1_767_189_312_000_000_000


def measured(device: Json, **us: float) -> None:
    """The device's totals, in µs; idle is what the others leave of the wall."""
    fields = {"wall": 0, "busy": 0, "compute": 0, "communication": 0, "copy": 0, "idle": us["wall"] - us["busy"], **us}
    assert {name: device[f"{name}_ns"] / 1000 for name in fields} == fields
    assert sum(item["ns"] for item in device["attribution"]) == device["wall_ns"]


def queue_delays(trace: Trace) -> dict[str, list[float]]:
    """µs from the end of each launch call to its operation's start, by the operation's name."""
    line = timeline_of(trace)
    delays: dict[str, list[float]] = {}
    for i in range(len(line.row)):
        if line.linked[i]:
            delays.setdefault(line.label(i), []).append((int(line.start[i]) - int(line.launch_end[i])) / 1000)
    return delays


# Damaged text


def having(one: Event, key: str, value: Any) -> Event:
    """The event with one more argument."""
    return {**one, "args": {**one["args"], key: value}}


OK = [
    op("aten::relu", 100, 130, **{"External id": 1}),
    having(call(110, 115, 11), "External id", 1),
    kernel(120, 130, 11, "relu_kernel", **{"External id": 1}),
    frame("train.py(12): run", 90, 150, **{"Python id": 1}),
]
TEXT = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": OK, "traceName": "t.json"}, indent=1)


def text_file(text: str | bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def sound(result: Result, events: int = 4) -> None:
    """The kernel's numbers are whole, whatever became of the damaged event."""
    measured(result.device, wall=10, busy=10, compute=10)
    assert (result.device["operations"], result.device["kernels"]) == (1, 1)
    assert result.json["traces"][0]["events"] == events
    assert queue_delays(result.trace) == {"relu_kernel": [5]}


def damage(result: Result) -> list[Json]:
    """What is said of the file's text; that it holds a Python frame is no damage."""
    return [note for note in result.json["health"] if note["code"] != "profiler-stacks"]


def renamed(to: str) -> str:
    return TEXT.replace("train.py(12): run", to)


def members(text: str) -> bytes:
    return b"".join(gzip.compress(part.encode()) for part in (text[:300], text[300:]))


BIG = TEXT.replace('"Python id": 1', '"Comms Id": 18446744073709551615')
for name, write in {
    "ok.json": text_file(TEXT),
    "bom.json": text_file(b"\xef\xbb\xbf" + TEXT.encode()),
    "bigint.json": text_file(BIG),
    "bare_list.json": text_file(json.dumps(OK)),
    "multi_member.json.gz": text_file(members(TEXT)),
    "no_closing_bracket.json": text_file(json.dumps(OK)[:-1]),
}.items():

    @case(f"01-malformed-json/{name}", write)
    def whole(result: Result) -> None:
        sound(result)
        assert damage(result) == []
        listed = result.path.name in ("bare_list.json", "no_closing_bracket.json")
        assert result.json["traces"][0]["base_ns"] == (None if listed else BASE)
        if result.path.name == "bigint.json":
            ids = result.trace.texts["Comms Id"]
            assert [result.trace.strings[code] for code in ids.values] == ["18446744073709551615"]


@case("01-malformed-json/ctrl.json", text_file(renamed("a\x01b")))
def control_character(result: Result) -> None:
    sound(result)
    assert any("\x01" in name or "\\u0001" in name for name in result.trace.names)


for name, write, cause in (
    ("badutf8.json", text_file(renamed("name ?").encode().replace(b"?", b"\xff\xfe")), "UTF-8"),
    ("quote.json", text_file(renamed('{"device": "cpu"}(12): run')), "quote"),
    ("winpath.json", text_file(renamed(r"C:\Users\x\train.py(12): run")), "backslash"),
    ("trailing_comma.json", text_file(TEXT.replace('"Python id": 1', '"Python id": 1,')), "comma"),
    ("bare_inf.json", text_file(TEXT.replace('"stream": 7', '"warps per SM": inf, "stream": 7')), "inf"),
):

    @case(f"01-malformed-json/{name}", write)
    def repaired(result: Result, cause: str = cause) -> None:
        whole = result.path.name in ("badutf8.json", "bare_inf.json")
        events = result.json["traces"][0]["events"]
        assert events == 4 or (not whole and events == 3)
        sound(result, events)
        (note,) = damage(result)
        assert (note["code"], note["count"]) == ("repaired-event" if events == 4 else "dropped-event", 1)
        assert "line" in note["message"]
        assert cause in note["message"]


CUT = TEXT[: TEXT.index('"train.py') + 8]


@case("01-malformed-json/truncated.json", text_file(CUT))
def truncated(result: Result) -> None:
    sound(result, 3)
    (note,) = damage(result)
    assert note["code"] == "partial"
    assert "3 complete events" in note["message"]


@case("01-malformed-json/truncated.json.gz", text_file(gzip.compress(TEXT.encode())[:-60]))
def truncated_gzip(result: Result) -> None:
    """How much decompresses is the codec's matter: what is said is partial, or nothing is left to say."""
    if result.code == 2:
        assert result.refusal
    else:
        assert "partial" in result.health()


@case("01-malformed-json/empty.json", text_file(""))
def empty(result: Result) -> None:
    assert "empty" in result.refusal


@case("01-malformed-json/not_a_trace.json", text_file('{"a": 1}'))
def not_a_trace(result: Result) -> None:
    assert "traceEvents" in result.refusal


# Damaged times


def lost(one: Event, **fields: Any) -> Event:
    return {**one, **fields}


ZERO = {"ts": 0, "dur": 0}


@case(
    "02-zero-timestamps/trace.json",
    chrome(
        *(call(1000 + 100 * i, 1005 + 100 * i, 1 + i) for i in range(3)),
        *(kernel(1020 + 100 * i, 1070 + 100 * i, 1 + i, f"k{i}") for i in range(3)),
        lost(op("aten::add", 1, 2), **ZERO), call(1290, 1295, 4), lost(kernel(1, 2, 4, "k3"), **ZERO),
        lost(kernel(1, 2, 5, "k4"), **ZERO), event("Trace", "PyTorch Profiler (0)", 990, 1390, pid="Spans"),
    ),
)  # fmt: skip
def zero_timestamps(result: Result) -> None:
    measured(result.device, wall=250, busy=150, compute=150)
    assert (result.device["start_ns"], result.device["end_ns"]) == (1_020_000, 1_270_000)
    assert result.device["kernels"] == 3
    assert result.health()["quarantined-time"] == 3
    (message,) = [n["message"] for n in result.json["health"] if n["code"] == "quarantined-time"]
    assert "2 kernel" in message
    assert "1 operator" in message
    assert {k: result.device["launches"][k] for k in ("calls", "linked", "without_operation")} == {
        "calls": 4, "linked": 3, "without_operation": 1,
    }  # fmt: skip
    assert queue_delays(result.trace) == {"k0": [15], "k1": [15], "k2": [15]}
    assert result.trace.captured_ns == (990_000, 1_390_000)


@case(
    "03-duration-overflow/trace.json",
    chrome(
        kernel(100, 150, 1, "gemm", stream=0), kernel(150, 3_400_150, 2, "elementwise", stream=0),
        kernel(200, 240, 3, "gemm", stream=0), kernel(240, 300, 4, "norm", stream=0),
    ),
)  # fmt: skip
def duration_overflow(result: Result) -> None:
    measured(result.device, wall=200, busy=200, compute=200)
    assert result.health()["impossible-duration"] == 1
    assert any("3,399,950" in note["message"] for note in result.json["health"])
    kernels = [(k["name"], k["calls"], k["ns"]) for k in result.device["kernels_by_name"]]
    assert kernels == [("gemm", 2, 90_000), ("norm", 1, 60_000), ("elementwise", 1, 50_000)]


@case(
    "22-bad-durations/trace.json",
    chrome(
        lost(op("neg", 100, 101), dur=-5), op("unfinished", 110, 400, finished="false"), kernel(120, 150, 1, "k"),
        kernel(150, 150, 2, "zero"), kernel(150, 170, 3, "k"), kernel(200, 604_800_000_201, 4, "huge", stream=9),
        lost(kernel(180, 181, 5, "nodur"), dur=None), {k: v for k, v in kernel(185, 186, 6, "m").items() if k != "dur"},
        lost(kernel(1, 2, 7, "string_ts"), ts="190.500", dur="4.5"),
    ),
)  # fmt: skip
def bad_durations(result: Result) -> None:
    measured(result.device, wall=75, busy=54.5, compute=54.5)
    assert result.device["kernels"] == 4
    assert result.health()["quarantined-time"] == 4
    calls = {k["name"]: (k["calls"], k["ns"]) for k in result.device["kernels_by_name"]}
    assert calls == {"k": (2, 50_000), "zero": (1, 0), "string_ts": (1, 4_500)}


# What is device work


@case(
    "04-stream-overlap/trace.json",
    chrome(
        kernel(0, 100, 1, "gemm_a"), kernel(100, 180, 2, "gemm_b"),
        kernel(60, 160, 3, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=20),
        copy(190, 200, 4, "DtoH (Device -> Pinned)", stream=21, bytes=4096),
    ),
)  # fmt: skip
def stream_overlap(result: Result) -> None:
    measured(result.device, wall=200, busy=190, compute=180, communication=0, copy=10)
    assert result.device["communication_total_ns"] == 100_000
    assert sum(k["ns"] for k in result.device["kernels_by_name"] + result.device["copies"]) == 290_000


@case(
    "06-gpu-annotation-envelope/trace.json",
    chrome(
        step(5, 50, 470), annotation("forward", 60, 160),
        event("gpu_user_annotation", "ProfilerStep#5", 99.999, 600.001, pid=0, tid=7),
        event("gpu_user_annotation", "forward", 99.999, 300.001, pid=0, tid=7),
        kernel(100, 150, 1), kernel(250, 300, 2), kernel(550, 600, 3),
    ),
)  # fmt: skip
def annotation_envelope(result: Result) -> None:
    measured(result.device, wall=500, busy=150, compute=150)
    assert (result.device["start_ns"], result.device["kernels"]) == (100_000, 3)
    assert result.device["idle_unlinked_ns"] == 350_000
    (marker,) = [r for r in result.trace.rows(Kind.RANGE) if result.trace.label(r) == "ProfilerStep#5"]
    assert result.trace.end_ns[marker] - result.trace.start_ns[marker] == 420_000
    (drawn,) = [r for r in result.trace.rows(Kind.PROJECTION) if result.trace.label(r) == "ProfilerStep#5"]
    assert result.trace.end_ns[drawn] - result.trace.start_ns[drawn] == 500_002


@case(
    "07-copy-filled-gap/trace.json",
    chrome(kernel(0, 100, 1), copy(100, 350, 2, "HtoD (Pageable -> Device)", bytes=2_500_000), kernel(360, 400, 3)),
)
def copy_filled_gap(result: Result) -> None:
    measured(result.device, wall=400, busy=390, compute=140, copy=250)
    assert result.device["copies"] == [{"kind": "HtoD pageable", "calls": 1, "ns": 250_000, "bytes": 2_500_000}]
    (exposed,) = [i for i in result.device["attribution"] if i["when"] == "copy"]
    assert (exposed["cause"], exposed["detail"]) == ("exposed-copy", "HtoD pageable")
    assert "cop" in result.json["verdict"].lower()
    assert "loader" not in result.json["verdict"].lower()


def replay(at: float, correlation: int) -> list[Event]:
    on_branch = {"stream": 33}
    return [
        memset(at, at + 2, correlation), kernel(at + 2, at + 20, correlation, "kA"),
        kernel(at + 5, at + 35, correlation, "kB", **on_branch), kernel(at + 20, at + 40, correlation, "kC"),
        kernel(at + 40, at + 50, correlation, "kD", **on_branch),
        copy(at + 50, at + 55, correlation, "DtoD (Device -> Device)", bytes=1024),
    ]  # fmt: skip


@case(
    "08-cuda-graph/trace.json",
    chrome(
        call(10, 30, 500, "cudaGraphLaunch"), call(100, 118, 501, "cudaGraphLaunch"), *replay(40, 500),
        *replay(130, 501),
    ),
)  # fmt: skip
def cuda_graph(result: Result) -> None:
    measured(result.device, wall=145, busy=110, compute=96, copy=14)
    assert (result.device["operations"], result.device["kernels"]) == (12, 8)
    assert result.device["launches"] == {
        "calls": 2, "linked": 2, "without_operation": 0, "operations_without_launch": 0, "graph_launches": 2,
        "graph_operations": 12, "queue_delay_ns": [11_000, 12_000],
    }  # fmt: skip
    assert (result.device["idle_host_ns"], result.device["idle_submitted_ns"]) == (5_000, 30_000)
    line = timeline_of(result.trace)
    rows = sorted(set(line.launch.tolist()))
    assert [int(result.trace.end_ns[r] - result.trace.start_ns[r]) for r in rows] == [20_000, 18_000]
    first = [int(line.start[line.launch == r].min() - result.trace.end_ns[r]) for r in rows]
    assert first == [10_000, 12_000]
    assert [int((line.launch == r).sum()) for r in rows] == [6, 6]
    assert not [f for f in result.json["findings"] if "graph" in f["rule"]]


@case(
    "10-driver-launches/trace.json",
    chrome(
        op("triton_poi_fused_0", 0, 20), event("cuda_driver", "cuLaunchKernelEx", 5, 11, correlation=11),
        kernel(30, 40, 11, "triton_poi_fused_0"), op("aten::mm", 30, 55), call(35, 45, 20),
        event("cuda_driver", "cuLaunchKernel", 37, 43, correlation=21), kernel(50, 70, 20, "gemm"),
        call(60, 65, 30, "cudaLaunchKernelExC"), kernel(75, 100, 30, "ncclDevKernel_SendRecv", stream=20),
    ),
)  # fmt: skip
def driver_launches(result: Result) -> None:
    measured(result.device, wall=70, busy=55, compute=30, communication=25)
    counts = result.device["launches"]
    assert (counts["calls"], counts["linked"], counts["without_operation"]) == (3, 3, 0)
    assert queue_delays(result.trace) == {
        "triton_poi_fused_0": [19], "gemm": [5], "ncclDevKernel_SendRecv": [10],
    }  # fmt: skip
    owners = {o["name"]: (o["kernels"], o["ns"]) for o in result.device["operators"]}
    assert owners == {"triton_poi_fused_0": (1, 10_000), "aten::mm": (1, 20_000)}


def old(category: str, one: Event, tid: str) -> Event:
    return {**one, "cat": category, "tid": tid, "ts": one["ts"] + 1_615_207_264_000_000}


@case(
    "12-torch18-vocabulary/trace.json",
    chrome(
        old("Operator", op("aten::mm", 0, 60, **{"External id": 7}), "3239786240"),
        old("Runtime", having(call(10, 16, 55), "external id", 7), "3239786240"),
        old("Kernel", kernel(30, 70, 55, "volta_sgemm_64x64_nt", **{"external id": 7}), "stream 7"),
        old("Runtime", call(70, 78, 56, "cudaMemcpyAsync"), "3239786240"),
        old("Memcpy", having(copy(90, 100, 56, "HtoD (Pinned -> Device)", bytes=1000), "memory bandwidth (GB/s)", "N/A"),
            "stream 7"),
        {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 1_615_207_263_999_995, "pid": "Traces", "tid": ""},
        baseTimeNanoseconds=None,
    ),
)  # fmt: skip
def torch18(result: Result) -> None:
    measured(result.device, wall=70, busy=50, compute=40, copy=10)
    assert result.json["traces"][0]["base_ns"] is None
    assert result.device["start_ns"] == 1_615_207_264_000_030_000
    assert result.device["copies"] == [{"kind": "HtoD pinned", "calls": 1, "ns": 10_000, "bytes": 1000}]
    delays = queue_delays(result.trace)
    assert delays == {"volta_sgemm_64x64_nt": [14], "Memcpy HtoD (Pinned -> Device)": [12]}
    assert [o["name"] for o in result.device["operators"]] == ["aten::mm"]
    trace = result.trace
    assert set(trace.stream[trace.operations].tolist()) == {7}
    ids = trace.integers["External id"]
    assert {trace.label(r) for r, v in zip(ids.rows.tolist(), ids.values.tolist(), strict=True) if v == 7} == {
        "aten::mm", "cudaLaunchKernel", "volta_sgemm_64x64_nt",
    }  # fmt: skip


@case(
    "13-rocm-stream-zero/trace.json",
    chrome(
        op("triton_fused", 0, 10, stream="7"), op("aten::copy_", 20, 30), call(2, 7, 1, "hipModuleLaunchKernel"),
        call(12, 17, 2, "hipLaunchKernel"), call(32, 37, 4, "hipExtModuleLaunchKernel"),
        kernel(20, 30, 1, "triton_fused", stream=0, device=2), kernel(30, 50, 2, "Cijk_Ailk_Bljk", stream=0, device=2),
        event("kernel", "attn_fwd", 60, 75, pid=2, tid="0", stream="0", device=2, correlation=4),
        event("gpu_memcpy", "CopyHostToDevice", 50, 55, pid=2, tid=0, **{"External id": 3}),
    ),
)  # fmt: skip
def rocm_stream_zero(result: Result) -> None:
    measured(result.device, wall=55, busy=50, compute=45, copy=5)
    assert (result.device["device"], result.device["kernels"], result.device["operations"]) == (2, 3, 4)
    assert set(result.trace.stream[result.trace.operations].tolist()) == {0}
    assert result.device["copies"][0]["kind"] == "HtoD"
    assert queue_delays(result.trace) == {"triton_fused": [13], "Cijk_Ailk_Bljk": [13], "attn_fwd": [23]}
    assert result.device["launches"]["operations_without_launch"] == 1


@case(
    "19-exposed-comm/trace.json",
    chrome(
        annotation("nccl:all_reduce", 70, 210),
        event("gpu_user_annotation", "nccl:all_reduce", 79.999, 170.001, pid=0, tid=13),
        kernel(0, 100, 1, "gemm"), kernel(150, 200, 2, "gemm"),
        kernel(80, 170, 3, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", stream=13),
        kernel(160, 190, 4, "ncclKernel_AllGather_RING_LL_Sum_int8_t", stream=14),
    ),
)  # fmt: skip
def exposed_communication(result: Result) -> None:
    measured(result.device, wall=200, busy=200, compute=150, communication=50)
    total = result.device["communication_total_ns"]
    assert total == 110_000
    assert (total - result.device["communication_ns"]) / total == 60 / 110


# Time and steps


def epoch(ts: str, rank: int, base: int | None) -> Callable[[Path], None]:
    """One kernel of 10 µs whose timestamp is this very text."""
    one = json.dumps(kernel(1, 11, 1)).replace('"ts": 1,', f'"ts": {ts},')
    head = f'"baseTimeNanoseconds": {base}, ' if base else ""
    return text_file(
        f'{{{head}"distributedInfo": {{"rank": {rank}}}, "displayTimeUnit": "ms", "traceEvents": [{one}]}}'
    )


for rank, (ts, base, absolute) in enumerate(
    (
        ("7889237500000.000", BASE, 1_775_078_549_500_000_000),
        ("500000.000", 1_775_078_550_000_000_000, 1_775_078_550_500_000_000),
        ("1775078550600000.123", None, 1_775_078_550_600_000_123),
    )
):

    @case(f"16-time-bases/rank{rank}.json", epoch(ts, rank, base))
    def time_base(result: Result, rank: int = rank, absolute: int = absolute) -> None:
        (about,) = result.json["traces"]
        assert about["rank"] == result.device["rank"] == rank
        assert (about["base_ns"] or 0) + result.device["start_ns"] == absolute
        measured(result.device, wall=10, busy=10, compute=10)


LAGGING = [
    call(20, 25, 1),
    call(120, 125, 2),
    call(220, 225, 3),
    kernel(80, 150, 1),
    kernel(150, 240, 2),
    kernel(240, 330, 3),
]


@case(
    "17-step-attribution/trace.json",
    chrome(
        *(step(10 + i, 100 * i, 100 + 100 * i) for i in range(3)), *LAGGING,
        *(event("gpu_user_annotation", f"ProfilerStep#{10 + i}", 80 + 80 * i, 150 + 90 * i, pid=0, tid=7) for i in range(3)),
    ),
    "--window", "steps",
)  # fmt: skip
def step_attribution(result: Result) -> None:
    found = result.device
    steps = [(s["name"], s["gpu_ns"], s["end_ns"] - s["start_ns"], s["left_out"]) for s in found["steps"]]
    assert steps == [
        ("ProfilerStep#10", 70_000, 150_000, None),
        ("ProfilerStep#11", 90_000, 90_000, None),
        ("ProfilerStep#12", 90_000, 90_000, None),
    ]
    assert found["step_ns"] == 90_000  # the GPU works without a pause, whatever the host's markers say
    measured(found, wall=330, busy=250, compute=250)
    assert [delay for delays in queue_delays(result.trace).values() for delay in delays] == [55, 25, 15]
    assert result.json["window"] == {"kind": "steps", "steps": [s["name"] for s in found["steps"]]}


@case("17-step-attribution/nosteps.json", chrome(*LAGGING))
def no_steps(result: Result) -> None:
    measured(result.device, wall=250, busy=250, compute=250)
    assert (result.device["kernels"], result.device["steps"], result.device["step_ns"]) == (3, [], None)
    assert (result.device["start_ns"], result.device["end_ns"]) == (80_000, 330_000)


# Nothing on the GPU


@case("18-no-gpu-events/cpu_only.json", chrome(op("aten::mm", 0, 100), op("aten::relu", 100, 120)))
def cpu_only(result: Result) -> None:
    assert result.json["devices"] == []
    assert "No GPU work" in result.json["verdict"]
    operators = {o["name"]: o["ns"] for o in result.json["host"]["operators"]}
    assert operators == {"aten::mm": 100_000, "aten::relu": 20_000}
    assert "no GPU operation" in advise(result.path, "--window", "gpu").refusal


@case(
    "18-no-gpu-events/metadata_only.json", chrome({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}})
)
def metadata_only(result: Result) -> None:
    assert "no events" in result.refusal


@case(
    "18-no-gpu-events/kernels_lost.json",
    chrome(op("aten::mm", 0, 100), call(10, 15, 1), call(30, 35, 2), call(50, 55, 3)),
)
def kernels_lost(result: Result) -> None:
    assert "3 launches" in result.refusal
    assert "missing" in result.refusal


def memory(number: int, device: int, kind: int, size: int, allocated: int, reserved: int) -> Event:
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": number,
        "args": {
            "Total Reserved": reserved, "Total Allocated": allocated, "Bytes": size, "Addr": 4096, "Device Id": device,
            "Device Type": kind, "Ev Idx": number,
        },
    }  # fmt: skip


MEMORY = [
    memory(1, 0, 1, 1000, 6000, 8000), memory(2, 0, 1, 500, 6500, 8000), memory(3, 0, 1, -5000, 1500, 8000),
    memory(4, 1, 1, 3000, 3000, 4000), memory(5, -1, 0, 256, 256, 256), memory(6, -1, 0, -256, 0, 256),
]  # fmt: skip


@case("23-memory-events/trace.json", chrome(*MEMORY))
def memory_events(result: Result) -> None:
    found = {m["device"]: (m["peak_allocated"], m["peak_reserved"], m["baseline"]) for m in result.json["memory"]}
    assert found == {0: (6500, 8000, 5000), 1: (3000, 4000, 0), -1: (256, 256, 0)}
    assert result.json["devices"] == []
    assert advise(result.path, "--window", "gpu").refusal


# Nsight Systems

RUNTIME = "start end eventClass globalTid correlationId nameId"
KERNEL = "start end deviceId contextId streamId correlationId globalPid demangledName shortName"
DRIVER_CALL = "cudaLaunchKernel_v7000"


def nsight(path: Path, *, meta: bool = True) -> Nsight:
    export = Nsight(path)
    if meta:
        export.table("META_DATA_EXPORT", "name$ value$", [("EXPORT_SCHEMA_VERSION", "3.25.0")])
    return export


def launched_only(path: Path) -> None:
    export = nsight(path)
    name, thread = export.name(DRIVER_CALL), nsight_id(501, 501)
    rows = [(1000 * i, 1000 * i + 500, 0, thread, 1 + i, name) for i in range(5)]
    export.table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, rows)
    text = "Synthetic: GPU activity could not be collected (insufficient privilege)."
    export.table("DIAGNOSTIC_EVENT", "timestamp timestampType source severity text$ globalPid", [(0, 0, 0, 3, text, 0)])


@case("31-nsys-no-gpu-tables/report.sqlite", launched_only)
def no_gpu_tables(result: Result) -> None:
    assert "5 launches" in result.refusal
    assert "GPU activity could not be collected (insufficient privilege)" in result.refusal
    assert "--trace=cuda" in result.refusal
    assert "privilege" in result.refusal


def empty_tables(path: Path) -> None:
    export = nsight(path)
    export.table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME)
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL)


for name in ("31-nsys-no-gpu-tables/empty_kernel_table.sqlite", "36-gate-empty-after/after_empty.sqlite"):

    @case(name, empty_tables)
    def no_rows(result: Result) -> None:
        assert "--trace=cuda" in result.refusal


def two_processes(path: Path) -> None:
    export = nsight(path)
    name = export.name(DRIVER_CALL)
    calls = [(1000, 3000, 0, nsight_id(501, 501), 77, name), (2000, 9000, 0, nsight_id(502, 502), 77, name)]
    export.table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, calls)
    a, b = export.name("k_a"), export.name("k_b")
    kernels = [
        (5000, 15000, 0, 1, 7, 77, nsight_id(501), a, a), (20000, 50000, 0, 1, 7, 77, nsight_id(502), b, b),
    ]  # fmt: skip
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, kernels)
    export.table("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", [(0, 0, 501), (1, 0, 502)])


@case("32-nsys-two-processes/report.sqlite", two_processes)
def processes(result: Result) -> None:
    found = [(d["process"], d["device"], d["gpu"], d["busy_ns"]) for d in result.json["devices"]]
    assert found == [(501, 0, 0, 10_000), (502, 0, 1, 30_000)]
    assert [d["launches"]["linked"] for d in result.json["devices"]] == [1, 1]
    for at, delay in ((0, 2_000), (1, 11_000)):
        line = timeline_of(result.trace, at)
        assert (line.start - line.launch_end).tolist() == [delay]


def kernels_every_us(devices: int, count: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        export = nsight(path)
        export.table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME)
        name = export.name("k")
        rows = [(1000 * i, 1000 * i + 600, i % devices, 1, 7, i, nsight_id(900), name, name) for i in range(count)]
        export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, rows)

    return make


for name, devices, count in (("before", 1, 10), ("before_two_devices", 2, 10), ("after_lost_device", 1, 5)):

    @case(f"36-gate-empty-after/{name}.sqlite", kernels_every_us(devices, count))
    def comparable(result: Result, devices: int = devices, count: int = count) -> None:
        each = count // devices
        assert [(d["kernels"], d["busy_ns"]) for d in result.json["devices"]] == [(each, 600 * each)] * devices


def old_schema(path: Path) -> None:
    export = nsight(path, meta=False)
    calls = [(0, 500, 0, nsight_id(900, 900), 1, export.name("cudaLaunchKernel"))]
    export.table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, calls)
    name = export.name("k")
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, [(1000, 3000, 0, 1, 7, 1, nsight_id(900), name, name)])
    export.table(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind dstKind",
        [(3000, 4000, 0, 1, 7, 2, nsight_id(900), 4096, 1, 0, 2)],
    )


@case("37-nsys-old-schema/report.sqlite", old_schema)
def old_nsight(result: Result) -> None:
    measured(result.device, wall=3, busy=3, compute=2, copy=1)
    assert result.device["copies"] == [{"kind": "HtoD pageable", "calls": 1, "ns": 1000, "bytes": 4096}]
    line = timeline_of(result.trace)
    assert int((line.start - line.launch_end)[line.linked][0]) == 500
    assert result.device["launches"]["operations_without_launch"] == 1


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.name)
def test_case(one: Case, tmp_path: Path) -> None:
    path = tmp_path / Path(one.name).name
    one.write(path)
    one.check(advise(path, *one.options))


@pytest.mark.real
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.name)
def test_case_as_published(one: Case, real_traces: Path) -> None:
    one.check(advise(real_traces / "cases" / one.name, *one.options))


@pytest.mark.real
def test_no_published_case_is_left_out(real_traces: Path) -> None:
    folder = real_traces / "cases"
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".md"}
    files = {name for name in files if int(name[:2]) < 40}  # those from 40 on: tests/test_published_cases.py
    assert files == {one.name for one in CASES}
