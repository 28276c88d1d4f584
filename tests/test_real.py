"""What recordings of others show, against numbers worked out here from the raw events, apart from the tool's own code."""

from __future__ import annotations

import gzip
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.test_cases import Json, Result, advise

pytestmark = pytest.mark.real

Span = tuple[int, int]
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
MS = 1_000_000


# The raw events


@lru_cache(maxsize=2)
def events(path: Path) -> list[Json]:
    """Complete events, times in whole nanoseconds, categories in lower case."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        document = json.load(file, strict=False, parse_float=str)
    found = []
    for one in document["traceEvents"] if isinstance(document, dict) else document:
        if one.get("ph") == "X" and one.get("ts") is not None and one.get("dur") is not None:
            start, length = nanoseconds(one["ts"]), nanoseconds(one["dur"])
            cat = str(one.get("cat") or "").lower()
            found.append({**one, "cat": cat, "start": start, "end": start + length, "args": one.get("args") or {}})
    return found


def nanoseconds(us: Any) -> int:
    whole, _, part = str(us).partition(".")
    assert len(part) <= 3
    return int(whole) * 1000 + int(part.ljust(3, "0"))


def joined(spans: Iterable[Span]) -> list[Span]:
    out: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def within(spans: list[Span], others: list[Span]) -> list[Span]:
    found, at = [], 0
    for start, end in spans:
        while at < len(others) and others[at][1] <= start:
            at += 1
        i = at
        while i < len(others) and others[i][0] < end:
            found.append((max(start, others[i][0]), min(end, others[i][1])))
            i += 1
    return found


def of(path: Path, *categories: str) -> list[Json]:
    return [one for one in events(path) if one["cat"] in categories]


def work(path: Path) -> list[Json]:
    return of(path, *DEVICE)


def spans(rows: Iterable[Json]) -> list[Span]:
    return joined((one["start"], one["end"]) for one in rows)


def launches(path: Path) -> dict[int, Json]:
    """The earliest call with each correlation."""
    found: dict[int, Json] = {}
    for one in sorted(of(path, *CALLS), key=lambda e: e["start"]):
        if int(one["args"].get("correlation") or 0) > 0:
            found.setdefault(int(one["args"]["correlation"]), one)
    return found


def launch_of(calls: dict[int, Json], operation: Json) -> Json | None:
    return calls.get(int(operation["args"].get("correlation") or 0))


def host_sides(path: Path, start: int) -> list[Span]:
    """From the end of what ran before to the launch of what ran next, for every gap from `start` on."""
    calls = launches(path)
    opens: dict[int, int] = {}
    for one in work(path):
        call = launch_of(calls, one)
        if one["end"] > one["start"] and call:
            opens[one["start"]] = min(opens.get(one["start"], call["start"]), call["start"])
    found, idle_from = [], start
    for begin, end in spans(work(path)):
        if begin in opens and begin > idle_from:
            found.append((idle_from, max(idle_from, min(opens[begin], begin))))
        idle_from = max(idle_from, end)
    return [(a, b) for a, b in found if b > a]


def loader(path: Path) -> list[Span]:
    return spans(one for one in events(path) if "DataLoader" in one["name"])


def steps(path: Path) -> list[Json]:
    return sorted(
        (o for o in events(path) if o["name"].startswith("ProfilerStep") and o["cat"] not in ("gpu_user_annotation",)),
        key=lambda o: o["start"],
    )  # fmt: skip


# What the tool says


@pytest.fixture
def kineto(real_traces: Path) -> Callable[[str], Path]:
    return lambda name: real_traces / "traces" / "kineto" / f"{name}.json.gz"


def ns(device: Json, **match: str) -> int:
    return sum(i["ns"] for i in device["attribution"] if all(i[key] == value for key, value in match.items()))


def per_wall(device: Json, **match: str) -> float:
    return 100 * ns(device, **match) / float(device["wall_ns"])


def test_loader_of_resnet(kineto: Callable[[str], Path]) -> None:
    """The loader runs on the launching thread: what of it lies on the host's side of gaps is the loader's cost."""
    path = kineto("resnet50-numworkers0-A-v100")
    first = steps(path)[0]["start"]
    by_hand = length(within(host_sides(path, first), loader(path)))
    in_steps, in_gpu = advise(path).device, advise(path, "--window", "gpu").device
    assert ns(in_steps, cause="dataloader") == by_hand
    assert by_hand / 6 == pytest.approx(58.7 * MS, abs=0.05 * MS)
    assert in_steps["step_ns"] == pytest.approx(177.4 * MS, abs=0.1 * MS)  # the last step counts too
    assert len(in_steps["steps"]) == 6
    span = spans(work(path))
    assert in_gpu["busy_ns"] == length(span)
    assert ns(in_gpu, cause="dataloader") == length(within(host_sides(path, span[0][0]), loader(path)))
    assert ns(in_gpu, cause="dataloader") == pytest.approx(283.7 * MS, abs=0.05 * MS)
    assert "loader" in advise(path).json["verdict"]


def test_loader_of_resnet_with_workers(kineto: Callable[[str], Path]) -> None:
    """Nearly no loader, but a pageable copy whose call runs for 36 ms before the copy starts."""
    path = kineto("resnet50-numworkers4-A-v100")
    device = advise(path).device
    calls = launches(path)
    slow = [(o, call) for o in work(path) if (call := launch_of(calls, o)) and "pageable" in o["name"].lower()]
    longest = max(o["start"] - call["start"] for o, call in slow)
    assert longest == pytest.approx(36.4 * MS, abs=0.1 * MS)
    by_hand = length(within(host_sides(path, steps(path)[0]["start"]), loader(path)))
    assert ns(device, cause="dataloader") == by_hand < 1.2 * MS * len(device["steps"])
    assert ns(advise(path, "--window", "gpu").device, cause="dataloader") < 3 * MS
    assert ns(device, cause="copy-staging") == pytest.approx(36.4 * MS, abs=1.5 * MS)
    assert "loader" not in advise(path).json["verdict"]


def test_small_bert_waits_for_the_host(kineto: Callable[[str], Path]) -> None:
    path = kineto("bert-small-h100")
    device = advise(path).device
    (marker,) = steps(path)
    busy = length(within(spans(work(path)), [(marker["start"], marker["end"])]))
    assert device["busy_ns"] == busy == length(spans(work(path)))
    assert device["wall_ns"] == marker["end"] - marker["start"]
    assert per_wall(device, when="idle") == pytest.approx(93.0, abs=0.1)
    gpu = advise(path, "--window", "gpu").device
    assert per_wall(gpu, when="idle") == pytest.approx(92.1, abs=0.1)
    for found in (device, gpu):
        assert per_wall(found, category="launch-overhead") > 85
    assert "launch" in advise(path).json["verdict"]


def test_full_graph_decode(kineto: Callable[[str], Path]) -> None:
    """One graph launch, its front cut away: the default window leaves the cut step out."""
    path = kineto("vllm-decode-fullgraph-mi300x")
    device = advise(path).device
    operations = work(path)
    busy, wall = spans(operations), max(o["end"] for o in operations) - min(o["start"] for o in operations)
    assert (device["window"], device["busy_ns"], device["wall_ns"]) == ("gpu", length(busy), wall)
    assert 100 * length(busy) / wall == pytest.approx(99.8, abs=0.05)
    shared = Counter(o["args"]["correlation"] for o in operations).most_common(1)[0][1]
    assert shared == 421
    assert (device["launches"]["graph_launches"], device["launches"]["graph_operations"]) == (1, shared)
    assert all("cut away" in step["left_out"] for step in device["steps"])


@pytest.mark.parametrize(
    ("name", "memory", "step_ms"),
    [
        ("memcpy-pageable-sync-a100-40g", "pageable", 67.54),
        ("memcpy-pageable-nonblocking-a100-40g", "pageable", 67.91),
        ("memcpy-pinned-overlap-a100-40g", "pinned", 30.75),
    ],
)
def test_copies_are_the_work(kineto: Callable[[str], Path], name: str, memory: str, step_ms: float) -> None:
    path = kineto(name)
    result = advise(path)
    device = result.device
    assert (device["kernels"], device["operations"], ns(device, when="compute")) == (0, 20, 0)
    assert device["busy_ns"] == device["copy_ns"] == length(spans(work(path)))
    assert device["busy_ns"] > 0.985 * device["wall_ns"]
    both = {direction: length(spans(o for o in work(path) if direction in o["name"])) for direction in ("HtoD", "DtoH")}
    assert {copy["kind"]: copy["ns"] for copy in device["copies"]} == {f"{d} {memory}": t for d, t in both.items()}
    exposed = {i["detail"]: i["ns"] for i in device["attribution"] if i["cause"] == "exposed-copy"}
    assert exposed[f"HtoD {memory}"] == both["HtoD"]  # of two at once the one to the device counts
    assert exposed[f"DtoH {memory}"] == device["busy_ns"] - both["HtoD"]
    marks = [*(o["start"] for o in steps(path)), device["end_ns"]]  # the last step counts too
    assert device["step_ns"] == statistics.median(b - a for a, b in pairwise(marks))
    assert device["step_ns"] == pytest.approx(step_ms * MS, abs=0.05 * MS)
    assert "cop" in result.json["verdict"]


def test_operations_from_before_the_window(kineto: Callable[[str], Path]) -> None:
    """509 kernels of a prefill were launched before the recording: kept, counted as device time, and labelled."""
    path = kineto("qwen0.5b-prefill-h100")
    calls = launches(path)
    orphans = [o for o in work(path) if launch_of(calls, o) is None]
    assert len(orphans) == 509
    start = steps(path)[0]["start"]
    in_steps, in_gpu = advise(path), advise(path, "--window", "gpu")
    assert in_gpu.device["launches"]["operations_without_launch"] == 509
    assert (
        sum(o["end"] > start for o in orphans) == 502
    )  # the step begins when these have ended: they are no part of it
    assert in_steps.device["launches"]["operations_without_launch"] == 0
    assert in_gpu.health()["orphan-operations"] == 509 and "orphan-operations" not in in_steps.health()
    assert in_gpu.device["busy_ns"] == length(spans(work(path)))
    assert per_wall(in_gpu.device, when="compute") == pytest.approx(91.5, abs=0.5)


def test_cut_decode_is_not_launch_overhead(kineto: Callable[[str], Path]) -> None:
    """The prefill that ran for 463 ms was cut away: a submitted operation waits for nothing that is recorded."""
    path = kineto("sglang-qwen3-8b-decode-graph-mi300x")
    busy = spans(work(path))
    holes = [b - a for (_, a), (b, _) in pairwise(busy)]
    assert max(holes) == pytest.approx(463 * MS, abs=1 * MS)
    for window in ("gpu", "steps"):
        result = advise(path, "--window", window)
        assert ns(result.device, cause="device-unknown") == pytest.approx(463.3 * MS, abs=0.5 * MS)
        assert ns(result.device, category="launch-overhead") < 1 * MS
        assert "cut" in result.health()
        assert not result.json["verdict"].startswith("GPU busy")
        assert "not" in result.json["verdict"].lower()


def test_unrecorded_graph_nodes_come_first(kineto: Callable[[str], Path]) -> None:
    path = kineto("torchrec-graph-rank0of16-a100-80g")
    result = advise(path)
    busy = spans(work(path))
    window = (result.device["start_ns"], result.device["end_ns"])
    assert window[1] == max(steps(path)[-1]["end"], max(o["end"] for o in work(path)))
    assert result.device["busy_ns"] == length(within(busy, [window]))
    holes = sorted((b - a for (_, a), (b, _) in pairwise(busy)), reverse=True)
    assert per_wall(result.device, cause="device-unknown") == pytest.approx(60.5, abs=0.5)
    assert sum(holes[:12]) <= ns(result.device, cause="device-unknown") + 12 * 200_000
    assert "unrecorded-graph-nodes" in result.health()
    assert "cut" not in result.health()
    (message,) = [n["message"] for n in result.json["health"] if n["code"] == "unrecorded-graph-nodes"]
    assert message.split(" (")[0] in result.json["verdict"]
    assert not result.json["verdict"].startswith("GPU busy")


def test_cold_start(kineto: Callable[[str], Path]) -> None:
    """5.6 s in first launches and 4.0 s in cudaFree, which lie between the first kernel and the last."""
    path = kineto("shiftvit-cold-a4000")
    result = advise(path)
    first = spans(work(path))[0][0]
    freed = sum(o["end"] - o["start"] for o in events(path) if o["name"] == "cudaFree" and o["start"] > first)
    assert freed == pytest.approx(3_978 * MS, abs=1 * MS)
    assert ns(result.device, cause="allocator") == pytest.approx(freed, rel=0.01)
    longest = sorted((o["end"] - o["start"] for o in events(path) if o["name"] == "cudaLaunchKernel"), reverse=True)
    assert sum(longest[:20]) == pytest.approx(5_560 * MS, abs=60 * MS)
    assert ns(result.device, cause="module-load") > sum(longest[:20])
    assert result.health()["cold"] == 1
    assert per_wall(result.device, category="host-stalls") == pytest.approx(84.6, abs=0.5)


def test_dependent_launches_overlap(kineto: Callable[[str], Path]) -> None:
    """Kernels that start before their predecessor on the stream ends are sound: nothing is cut."""
    path = kineto("vllm-gptoss-mxfp4-eager-tp8-b200")
    result = advise(path, "--window", "gpu")
    by_stream: dict[Any, list[Json]] = {}
    for one in sorted(work(path), key=lambda o: o["start"]):
        by_stream.setdefault(one["args"]["stream"], []).append(one)
    early = [b["start"] - a["end"] for row in by_stream.values() for a, b in pairwise(row)]
    assert sum(gap < 0 for gap in early) >= 70
    assert min(early) == pytest.approx(-3_700, abs=100)
    assert "impossible-duration" not in result.health()
    assert "clock-skew" not in result.health()
    assert result.health()["profiler-stacks"] > 15_000
    assert result.device["busy_ns"] == length(spans(work(path)))
    assert per_wall(result.device, side="host") > 70
    assert "launch" in result.json["verdict"]


def test_slow_rank_shows_its_own_work(kineto: Callable[[str], Path]) -> None:
    """Rank 7 of eight is the one the others wait for: least communication, most host work."""
    found = {rank: advise(kineto(f"dlrm-8rank-v100/rank{rank}")).device for rank in (0, 1, 3, 7)}
    share = {rank: per_wall(device, when="communication") for rank, device in found.items()}
    assert min(share, key=lambda rank: share[rank]) == 7
    assert share == {0: pytest.approx(38.3, abs=0.1), 1: pytest.approx(59.5, abs=0.1), 3: pytest.approx(50.5, abs=0.1),
                     7: pytest.approx(12.6, abs=0.1)}  # fmt: skip
    assert {rank: device["rank"] for rank, device in found.items()} == {rank: rank for rank in found}


def test_other_accelerator(real_traces: Path) -> None:
    assert "MTIA" in refused(real_traces / "traces" / "kineto" / "mtia-inference-mtia.json.gz")


@pytest.mark.parametrize(
    "name",
    [
        "kineto/cpuonly-gloo-rank34-cpu.json.gz", "nsys/centerformer-baseline-A-titanrtx.sqlite",
        "nsys/cs336-badutf8-nocuda-4070ti.sqlite", "nsys/dynamicvit-a2000.sqlite", "nsys/python-c-4090.sqlite",
        "nsys/gemm-5060ti.sqlite",
    ],
)  # fmt: skip
def test_no_gpu_work_under_the_gpu_window(real_traces: Path, name: str) -> None:
    assert refused(real_traces / "traces" / name, "--window", "gpu")


def refused(path: Path, *options: str) -> str:
    result: Result = advise(path, *options)
    return result.refusal


# Shares of the wall, %, that a second implementation of the same rules gave.
SHARES = {
    "nsys/cs336-2.7B-compile-reduce-overhead-a100-80g.sqlite": {"compute": 100.0},
    "nsys/cs336-2.7B-eager-fp32-a100-80g.sqlite": {"compute": 99.8, "queued-gap": 0.2},
    "nsys/cs336-small-windows-rtx5000ada.sqlite": {"host-unknown": 51.5, "module-load": 26.0},
    "nsys/saxpy-mpi-a100-40g.sqlite": {"host-unknown": 65.5, "copy": 25.9},
    "kineto/qwen0.5b-prefill-h100.json.gz": {"compute": 90.3, "queued-gap": 5.0, "python": 2.0},
    "kineto/resnet50-numworkers4-A-v100.json.gz": {"compute": 70.3, "framework": 13.6, "copy-staging": 4.6},
    "kineto/resnet50-workers0-2021-02-list-v100q.json.gz": {"compute": 48.8, "dataloader": 22.0},
    "kineto/minitoy-train-mi250.json.gz": {"module-load": 69.7, "framework": 17.1, "python": 6.1},
    "kineto/mlp-train-2080ti.json.gz": {"compute": 36.6, "framework": 34.8, "launch-latency": 12.8},
    "kineto/eventsync-multistream-a100.json.gz": {"host-unknown": 94.6, "allocator": 2.1, "compute": 1.9},
    "kineto/shiftvit-warm-a4000.json.gz": {"compute": 53.8, "host-unknown": 37.8, "launch-latency": 6.1},
    "kineto/inductor-mlp-mi300x.json.gz": {"compute": 100.0},
    "kineto/triton-example-a100.json.gz": {"host-unknown": 100.0},
    "kineto/vllm-gptoss-mxfp4-eager-tp8-b200.json.gz": {"python": 45.6, "framework": 30.0},
    "kineto/dlrm-8rank-v100/rank4.json.gz": {"communication": 36.4, "framework": 24.6, "launch-latency": 9.7},
}


@pytest.mark.parametrize("name", SHARES)
def test_shares(real_traces: Path, name: str) -> None:
    whole = ("--window", "gpu") if name.startswith("nsys/") else ()
    device = advise(real_traces / "traces" / name, *whole).json["devices"][0]
    busy = ("compute", "communication", "copy")
    found = {what: per_wall(device, **{"when" if what in busy else "cause": what}) for what in SHARES[name]}
    assert found == {cause: pytest.approx(share, abs=1.5) for cause, share in SHARES[name].items()}


@pytest.mark.slow
def test_measured_level_of_every_trace(real_traces: Path) -> None:
    """The reference program of the recordings agrees to the nanosecond on all of them."""
    command = [sys.executable, str(real_traces / "tools" / "check_traces.py"), str(real_traces / "traces")]
    done = subprocess.run(
        [*command, "--advise", f"{sys.executable} -m gpu_trace_advisor"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 failed" in done.stdout
