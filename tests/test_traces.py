"""The sample traces and the simulator that makes them: what it computes is what a person computes by hand."""

import gzip
import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from traces import __main__ as samples
from traces import recipe as language
from traces.machine import ORIGIN
from traces.program import Program, Rank
from traces.recipe import RecipeError, parse
from traces.simulate import simulate
from traces.truth import Truth, truths
from traces.write_kineto import OFFSET_NS, text, us, write_kineto
from traces.write_nsight import write_nsight

FOLDER = Path(samples.__file__).parent
NAMES = language.names()
TRUTHS = sorted(FOLDER.glob("*.truth.json"))
HEAD = "launch call=6us latency=5us gap=1us return=2us event_call=800ns event_latency=1.5us\nkernel k 10us\n"
CHANGES: dict[str, dict[str, Any]] = {
    "as written": {},
    "jitter": {"jitter": 0.2, "seed": 3},
    "no loader": {"loader": False},
    "no syncs": {"syncs": False},
    "pinned": {"pinned": True},
    "half kernels": {"scale": {"kernel": 0.5}},
    "few in flight": {"depth": 8},
}


def tiny(body: str, **changes: Any) -> Program:
    """A program of one thread, written down without its thread line."""
    lines = "\n".join(f"  {line}" for line in body.strip("\n").splitlines())
    return simulate(parse(f"{HEAD}thread main:\n{lines}\n"), **changes)


def spans(program: Program, rank: int = 0) -> list[tuple[float, float]]:
    """Start and end of every operation in microseconds since the program's begin, in order of submission."""
    return [((op.start - ORIGIN) / 1000, (op.end - ORIGIN) / 1000) for op in program.ranks[rank].operations]


def idle(program: Program, window: str = "gpu", rank: int = 0) -> dict[str, float]:
    """Idle microseconds of a window by cause."""
    out: dict[str, float] = defaultdict(float)
    for item in windows(program, rank)[window]["idle"]:
        out[item["cause"]] += item["ns"] / 1000
    return dict(out)


def windows(program: Program, rank: int = 0) -> dict[str, Any]:
    found = truths(program)[rank]["windows"]
    assert isinstance(found, dict)
    return found


# -- worked out by hand ----------------------------------------------------------------------------------------------


def test_a_launch_into_an_idle_device_starts_after_the_launch_latency() -> None:
    program = tiny("op a 3us 2us:\n  launch k\npython 4us\nop b 1us:\n  launch k")
    # a: 0 to 3, its launch 3 to 9, so k runs 8 to 18; b opens at 15, launches at 16: k from 21.
    assert spans(program) == [(8, 18), (21, 31)]
    assert idle(program) == {"launch-latency": 3}


def test_launch_latency_goes_on_after_the_call_has_returned() -> None:
    program = tiny("op a 3us 2us:\n  launch k latency=9us\npython 40us\nop b 1us:\n  launch k latency=9us")
    assert spans(program) == [(12, 22), (61, 71)]
    assert idle(program) == {"python": 29, "framework": 1, "launch-latency": 9}


def test_host_time_after_the_last_operation_is_the_hosts() -> None:
    program = tiny("steps 1:\n  op a 3us 2us:\n    launch k\n  python 30us\n  op b 4us")
    # k 8 to 18, the step ends at 45: python 11 to 41, framework to 45.
    assert idle(program, "steps") == {"framework": 3 + 4, "python": 23, "launch-latency": 5}


def test_host_time_before_the_launch_is_python_and_framework() -> None:
    program = tiny("op a 3us 2us:\n  launch k\npython 40us\nop b 1us:\n  launch k")
    # k 8 to 18; python 11 to 51, b launches at 52, k from 57: of the gap 18 to 57 the host has 34, the launch 5.
    assert spans(program)[1] == (57, 67)
    assert idle(program) == {"python": 33, "framework": 1, "launch-latency": 5}


def test_a_queued_kernel_follows_its_predecessor_after_the_gap() -> None:
    program = tiny("op a 3us:\n  launch k 50us\n  launch k\n")
    assert spans(program) == [(8, 58), (59, 69)]
    assert idle(program) == {"queued-gap": 1}


SYNC = """
op a 3us:
  launch k 30us
sync stream=7
python 10us
op b 1us:
  launch k 30us
python 40us
op c 1us:
  launch k 30us
python 50us
op d 1us:
  launch k
"""


def test_a_drain_lasts_one_launch_latency_beyond_the_sync() -> None:
    program = tiny(SYNC)
    # k 8 to 38, the sync 9 to 40. Gaps: 38 to 56 (2 in the call, 5 more until anything could have run, 5 python, 1 framework,
    # 5 latency), 86 to 103 (11 python, 1 framework, 5), 133 to 160 (21 python, 1 framework, 5).
    assert spans(program) == [(8, 38), (56, 86), (103, 133), (160, 170)]
    assert idle(program) == {"host-sync": 2 + 5, "python": 5 + 11 + 21, "framework": 3, "launch-latency": 15}


def test_without_the_sync_the_host_runs_ahead() -> None:
    program = tiny(SYNC, syncs=False)
    # b launches at 20, c at 67, d at 124.
    assert spans(program) == [(8, 38), (39, 69), (72, 102), (129, 139)]
    assert idle(program) == {"queued-gap": 1, "launch-latency": 3 + 5, "python": 21, "framework": 1}


def test_a_loader_after_a_sync_is_the_loader() -> None:
    program = tiny("op a 3us:\n  launch k 30us\nsync stream=7\nloader 70us\nop b 1us:\n  launch k")
    assert idle(program) == {"host-sync": 2, "dataloader": 70, "framework": 1, "launch-latency": 5}


def test_a_stream_that_waits_for_an_event_starts_after_it() -> None:
    program = tiny("launch k\nrecord e stream=7\nwait e stream=20\nlaunch k stream=20")
    assert spans(program) == [(5, 15), (16.5, 26.5)]
    assert idle(program) == {"dependency-wait": 1.5}


def test_a_graph_is_one_launch_with_gaps_between_its_nodes() -> None:
    program = tiny("replay g:\n  repeat 3:\n    launch k")
    assert spans(program) == [(13, 23), (23.8, 33.8), (34.6, 44.6)]
    assert len({op.correlation for op in program.ranks[0].operations}) == 1
    assert idle(program) == {"queued-gap": 1.6}


def test_a_full_queue_holds_the_launch_call_and_costs_nothing() -> None:
    program = tiny("repeat 4:\n  launch k 100us", depth=2)
    assert spans(program) == [(5, 105), (106, 206), (207, 307), (308, 408)]
    calls = [(event.start - ORIGIN, event.end - ORIGIN) for event in program.ranks[0].events]
    assert calls == [(0, 6000), (6000, 12000), (12000, 18000), (18000, 106000)]
    assert idle(program) == {"queued-gap": 3}


def test_the_thread_that_launches_is_the_one_that_is_asked() -> None:
    program = tiny(
        "op a 3us 1us:\n  launch k\nhandover autograd:\n  op b 20us 30us:\n    launch k\nop c 2us:\n  launch k"
    )
    # a 0 to 10, k 8 to 18; b from 10 launches at 30, k 35 to 45; b ends at 66; c launches at 68, k from 73.
    assert spans(program) == [(8, 18), (35, 45), (73, 83)]
    assert idle(program) == {"framework": 12 + 23, "launch-latency": 10}
    assert len({op.call.thread for op in program.ranks[0].operations}) == 2


def test_a_pageable_copy_is_staged_and_blocks() -> None:
    program = tiny("launch k\npython 20us\nlaunch k\npython 20us\ncopy h2d pageable 1MiB 100us staging=80us\nlaunch k")
    # Launches at 0 and 26; the copy's call at 52 starts it at 137, it ends at 237, the call returns at 239.
    assert spans(program) == [(5, 15), (31, 41), (137, 237), (244, 254)]
    # The copy waited 100 for itself, so what follows would be its refill: there is nothing but its own 2.
    assert idle(program) == {"python": 11 + 11, "launch-latency": 5 * 3, "copy-staging": 80, "host-sync": 2}


def test_the_same_copy_pinned_blocks_nothing() -> None:
    program = tiny("copy h2d pageable 1MiB 100us staging=80us pinned=60us\nlaunch k stream=20", pinned=True)
    assert spans(program) == [(5, 65), (11, 21)]
    assert windows(program)["gpu"]["copy_ns"] == 50_000


def test_the_first_launch_of_a_kernel_loads_its_module() -> None:
    program = simulate(parse(HEAD.replace("k 10us", "k 10us first=1ms") + "kernel w 10us\nthread main:\n"
                             "  launch w\n  python 20us\n  launch w\n"
                             "  python 20us\n  launch k\n  launch k\n"))  # fmt: skip
    # w 5 to 15 and 31 to 41; k's call at 52 starts it at 1057.
    assert spans(program) == [(5, 15), (31, 41), (1057, 1067), (1068, 1078)]
    assert idle(program) == {"python": 11 + 11, "launch-latency": 5 + 5, "module-load": 1000, "queued-gap": 1}


def test_freeing_memory_waits_for_the_device_and_a_first_call_is_start_up() -> None:
    program = tiny("launch k\nfree 3us\ncall cudaStreamCreateWithFlags 20us cause=module-load\nlaunch k")
    # k 5 to 15, cudaFree waits for it and takes until 18, the other call until 38.
    assert spans(program) == [(5, 15), (43, 53)]
    assert idle(program) == {"allocator": 3, "module-load": 20, "launch-latency": 5}


def test_a_host_may_wait_for_one_event() -> None:
    program = tiny("launch k\nrecord e\nlaunch k 60us stream=20\nsync event e\nlaunch k 5us\nsync device\nlaunch k")
    # The second launch is at 6.8, so its k runs 11.8 to 71.8; the event is over at 15, the host knows at 17.
    assert spans(program) == [(5, 15), (11.8, 71.8), (22, 27), (78.8, 88.8)]
    assert [(wait.kind, wait.stream) for wait in program.ranks[0].waits] == [("Event Sync", -1), ("Context Sync", -1)]
    first = program.ranks[0].waits[0]
    assert (first.source_stream, first.record_correlation, first.event) == (7, 102, 1)


def test_a_collective_ends_on_all_ranks_together() -> None:
    program = simulate(parse(HEAD + "ranks 2\nthread main:\n  rank 1:\n    python 50us\n"
                             "  collective k 20us 1MiB stream=20\n  launch k\n"))  # fmt: skip
    assert spans(program, 0) == [(5, 75), (11, 21)]
    assert spans(program, 1) == [(55, 75), (61, 71)]
    assert windows(program)["gpu"]["communication_ns"] == 60_000
    assert windows(program)["gpu"]["communication_total_ns"] == 70_000


def test_a_host_that_waits_for_a_collective_waits_for_the_other_rank() -> None:
    program = simulate(parse(HEAD + "ranks 2\nthread main:\n  rank 1:\n    python 50us\n"
                             "  collective k 20us 1MiB\n  sync stream=7\n  launch k\n"))  # fmt: skip
    assert spans(program, 0) == [(5, 75), (82, 92)]


@pytest.mark.parametrize("wait", ["", "    sync stream=7\n"])
def test_a_collective_without_its_peer_is_an_error(wait: str) -> None:
    with pytest.raises(RuntimeError, match="collective"):
        simulate(parse(HEAD + f"ranks 2\nthread main:\n  rank 1:\n    collective k 20us 1MiB\n{wait}"))


def test_a_captured_block_is_replayed_only_when_asked() -> None:
    body = "op a 9us:\n  capture g:\n    op b 30us:\n      launch k\n    op c 30us:\n      launch k"
    assert spans(tiny(body)) == [(44, 54), (80, 90)]
    assert spans(tiny(body, graphs=True)) == [(22, 32), (32.8, 42.8)]


def test_factors_apply_to_times_of_their_kind() -> None:
    body = "python 20us\nop a 10us:\n  launch k"
    assert spans(tiny(body, scale={"kernel": 2.0})) == [(35, 55)]
    assert spans(tiny(body, scale={"python": 0.5, "framework": 0.0})) == [(15, 25)]


def test_a_first_step_that_is_start_up_is_left_out() -> None:
    program = tiny("steps 3:\n  once a:\n    malloc 900us\n  op a 3us:\n    launch k 30us")
    truth = truths(program)[0]
    steps = truth["steps"]
    assert isinstance(steps, list)
    assert [step["left_out"] for step in steps] == [True, False, False]
    assert truth["step_median_ns"] == 9_000


@pytest.mark.parametrize(
    ("name", "cause", "change"),
    [
        ("training-dataloader", "dataloader", {"loader": False}),
        ("comm-bound-rank", "dataloader", {"loader": False}),
        ("sync-storm", "host-sync", {"syncs": False}),
        ("graph-decode", "host-sync", {"syncs": False}),
        ("eager-decode", "python", {"scale": {"python": 0.0}}),
        ("eager-decode", "framework", {"graphs": True}),
        ("mlp-training", "framework", {"scale": {"framework": 0.0}}),
    ],
)
def test_without_a_cause_a_program_is_faster_by_its_share_at_least(
    name: str, cause: str, change: dict[str, Any]
) -> None:
    before, after = windows(simulate(name))["steps"], windows(simulate(name, **change))["steps"]
    share = sum(item["ns"] for item in before["idle"] if item["cause"] == cause)
    assert before["wall_ns"] - after["wall_ns"] >= share - before["wall_ns"] // 200


# -- every recipe ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", NAMES)
def test_programs_keep_the_order_of_cause_and_effect(name: str, change: str) -> None:
    program = simulate(name, **CHANGES[change])
    for rank in program.ranks:
        streams = defaultdict(list)
        for op in rank.operations:
            assert op.call.start < op.start <= op.end
            streams[op.stream].append(op)
        for ops in streams.values():
            assert all(a.end < b.start for a, b in pairwise(ops)), "a stream runs one operation at a time, in order"
        for activities in rank.activities.values():
            assert all(a.end == b.start for a, b in pairwise(activities)), "a thread always does one thing"
        nested(rank)
        adds_up(Truth(rank))


def nested(rank: Rank) -> None:
    """Records of one thread lie inside each other or apart."""
    for tid in rank.threads.values():
        open_until: list[int] = []
        events = [event for event in rank.events if event.thread == tid]
        for event in sorted(events, key=lambda event: (event.start, -event.end)):
            while open_until and open_until[-1] <= event.start:
                open_until.pop()
            assert event.start <= event.end
            assert not open_until or event.end <= open_until[-1]
            open_until.append(event.end)


def adds_up(truth: Truth) -> None:
    found = truth.to_dict()["windows"]
    assert isinstance(found, dict)
    for window in found.values():
        parts = window["compute_ns"] + window["communication_ns"] + window["copy_ns"]
        assert parts == window["busy_ns"]
        assert parts + sum(item["ns"] for item in window["idle"]) == window["wall_ns"]
        assert window["idle_ns"] == sum(window[f"idle_{side}_ns"] for side in ("host", "submitted", "unlinked"))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_recipe_gives_the_same_program(name: str) -> None:
    assert text(simulate(name)) == text(simulate(name))
    jittered = text(simulate(name, jitter=0.1, seed=1))
    assert jittered == text(simulate(name, jitter=0.1, seed=1))
    assert jittered != text(simulate(name, jitter=0.1, seed=2))


@pytest.mark.parametrize("name", NAMES)
def test_the_records_show_what_the_simulator_meant(name: str) -> None:
    """Who reads the host's records at any instant of a gap finds the cause that the simulator wrote down."""
    program = simulate(name)
    for rank in program.ranks:
        truth = Truth(rank)
        reader = Reader(rank, frames=program.options.get("stack") == "1")
        before = rank.threads["main"]
        for a, b, op in truth.gaps:
            for part in truth.explained:
                if part.side == "host" and a <= part.start < part.end <= b:
                    for time in reader.instants(part.start, part.end):
                        assert reader.cause([op.call.thread, before], time) == part.cause, (
                            f"{(time - ORIGIN) / 1000} us"
                        )
            before = op.call.thread


class Reader:
    """Reads causes off the records of host threads, as who has only a recording must."""

    def __init__(self, rank: Rank, *, frames: bool) -> None:
        self.frames = frames
        self.waited = {op.correlation for op in rank.operations if op.kind == "memcpy" and op.end <= op.call.end}
        kinds = {"cpu_op", "user_annotation", "cuda_runtime"} | ({"python_function"} if frames else set())
        self.records = defaultdict(list)
        for event in rank.events:
            if event.kind in kinds and not event.name.startswith("ProfilerStep#"):
                self.records[event.thread].append(event)
        self.edges = sorted({t for events in self.records.values() for e in events for t in (e.start, e.end)})

    def instants(self, a: int, b: int) -> list[int]:
        """One instant of every stretch between a and b in which no record begins or ends."""
        edges = [a, *(t for t in self.edges if a < t < b), b]
        return [(c + d) // 2 for c, d in pairwise(edges)]

    def cause(self, threads: list[int], time: int) -> str:
        return next((cause for tid in threads if (cause := self.record(tid, time))), "host-unknown")

    def record(self, tid: int, time: int) -> str:
        around = [e for e in self.records[tid] if e.start <= time < e.end]
        if any("DataLoader" in e.name for e in around):
            return "dataloader"
        if not around:
            ends = [e.end for e in self.records[tid] if e.end <= time]
            starts = [e.start for e in self.records[tid] if e.start > time]
            hole = min(starts) - max(ends) if starts and ends and not self.frames else 10**9
            return "python" if hole <= 1_000_000 else ""
        inner = max(around, key=lambda e: (e.start, -e.end))
        if inner.kind == "cuda_runtime":
            if "Synchronize" in inner.name or (inner.correlation in self.waited and inner.end - inner.start >= 20_000):
                return "host-sync"
            return "allocator" if inner.name in ("cudaMalloc", "cudaFree") else "launch-call"
        if inner.kind == "cpu_op":
            return "framework"
        return "" if "run_backward" in inner.name else "python"


# -- the committed samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.name.removesuffix(".truth.json"))
def test_the_truth_of_a_sample_leaves_no_room(path: Path) -> None:
    """What the simulator meant and what the definitions say agree everywhere, and every gap has a cause."""
    truth = json.loads(path.read_text())
    assert truth["ambiguous_ns"] == 0
    for window in truth["windows"].values():
        assert window["idle_unlinked_ns"] == 0
        assert "device-unknown" not in {item["cause"] for item in window["idle"]}


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_what_the_recipes_make(name: str, tmp_path: Path) -> None:
    for path in samples.generate(name, tmp_path):
        committed = FOLDER / path.name
        assert contents(path) == contents(committed), f"python -m traces {name}"
        assert committed.stat().st_size < 150_000


def test_every_sample_has_a_recipe(tmp_path: Path) -> None:
    made = {path.name for name in NAMES for path in samples.generate(name, tmp_path)}
    assert {path.name for path in TRUTHS} <= made
    lying = {path.name for suffix in ("*.json.gz", "*.sqlite") for path in FOLDER.glob(suffix)}
    assert lying - {"cpu-mlp.json.gz"} <= made


def contents(path: Path) -> object:
    """What a file says, apart from how it is packed."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    return path.read_text()


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.name.removesuffix(".truth.json"))
def test_the_measured_level_of_a_sample_is_its_truth(path: Path) -> None:
    """Computed from the file alone, interval by interval between any two starts or ends."""
    truth = json.loads(path.read_text())
    trace = FOLDER / truth["trace"]
    operations = from_nsight(trace) if trace.suffix == ".sqlite" else from_kineto(trace)
    measured = brute_force(operations, truth["offset_ns"])
    window = truth["windows"]["gpu"]
    assert measured == {key: window[key] for key in measured}
    assert len(operations) == truth["operations"]


Operation = tuple[int, int, str, int]  # start, end, kind, start of the launch call


def from_kineto(path: Path) -> list[Operation]:
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)["traceEvents"]
    calls = {e["args"]["correlation"]: ns(e["ts"]) for e in events if e.get("cat") == "cuda_runtime"}
    kinds = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
    out = []
    for e in events:
        if e.get("cat") in kinds:
            kind = "communication" if e["name"].startswith("nccl") else kinds[e["cat"]]
            out.append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), kind, calls[e["args"]["correlation"]]))
    return out


def ns(decimal: str) -> int:
    whole, fraction = decimal.split(".")
    assert len(fraction) == 3
    return int(whole + fraction)


def from_nsight(path: Path) -> list[Operation]:
    out: list[Operation] = []
    with closing(sqlite3.connect(path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for table, kind in (("KERNEL", "compute"), ("GRAPH_TRACE", "compute"), ("MEMCPY", "copy"), ("MEMSET", "copy")):
            if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
                out += db.execute(
                    f"SELECT op.start, op.end, '{kind}', call.start FROM CUPTI_ACTIVITY_KIND_{table} op "
                    "JOIN CUPTI_ACTIVITY_KIND_RUNTIME call ON op.correlationId = call.correlationId "
                    "AND op.globalPid >> 24 = call.globalTid >> 24"
                ).fetchall()
    return out


def brute_force(operations: list[Operation], offset: int) -> dict[str, int]:
    edges = sorted({t for start, end, _, _ in operations for t in (start, end)})
    out = dict.fromkeys(("busy", "idle", "compute", "communication", "copy", "idle_host", "idle_submitted"), 0)
    for a, b in pairwise(edges):
        kinds = {kind for start, end, kind, _ in operations if start <= a and end >= b}
        if kinds:
            out["busy"] += b - a
            out[min(kinds, key=["compute", "communication", "copy"].index)] += b - a
        else:
            launch = min(call for start, _, _, call in operations if start == b)
            out["idle"] += b - a
            out["idle_host"] += max(0, launch - a)
            out["idle_submitted"] += b - max(a, launch)
    found = {f"{key}_ns": value for key, value in out.items()}
    return {**found, "start_ns": edges[0] - offset, "end_ns": edges[-1] - offset, "wall_ns": edges[-1] - edges[0]}


# -- the files -------------------------------------------------------------------------------------------------------


def test_kineto_files_are_printed_in_its_style(tmp_path: Path) -> None:
    assert us(1_234_005) == "1234.005"
    program = tiny("op a 3us in=[[2,2],[2]]:\n  launch k\nrange r:\n  copy d2h pinned 4B 1us")
    path = tmp_path / "t.json"
    write_kineto(program, path)
    trace = json.loads(path.read_text())
    assert list(trace)[:2] == ["schemaVersion", "deviceProperties"]
    assert list(trace)[-4:] == ["displayTimeUnit", "baseTimeNanoseconds", "traceEvents", "traceName"]
    events = trace["traceEvents"]
    kernel = next(e for e in events if e.get("cat") == "kernel")
    assert list(kernel) == ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
    assert kernel["ts"] * 1000 == OFFSET_NS + ORIGIN + 8000
    flows = [(e["ph"], e["id"], e["ts"]) for e in events if e.get("cat") == "ac2g"]
    assert len(flows) == 4
    assert ("f", kernel["args"]["correlation"], kernel["ts"]) in flows
    projected = [e["name"] for e in events if e.get("cat") == "gpu_user_annotation"]
    assert projected == ["r"]
    assert events[-1]["name"] == "Record Window End"
    packed = tmp_path / "t.json.gz"
    write_kineto(program, packed)
    assert gzip.decompress(packed.read_bytes()) == path.read_bytes()
    assert packed.read_bytes()[4:8] == bytes(4), "no time of writing in it"


def test_both_formats_tell_the_same_program(tmp_path: Path) -> None:
    program = simulate("pinned-overlap")
    kineto, nsight = tmp_path / "t.json.gz", tmp_path / "t.sqlite"
    write_kineto(program, kineto)
    write_nsight(program, nsight)
    one, two = sorted(from_kineto(kineto)), sorted(from_nsight(nsight))
    shift = two[0][0] - one[0][0]
    assert two == [(start + shift, end + shift, kind, call + shift) for start, end, kind, call in one]


def test_the_cpu_recording_names_no_machine() -> None:
    trace = json.loads(gzip.decompress((FOLDER / "cpu-mlp.json.gz").read_bytes()))
    assert not {"host_name", "traceName"} & set(trace)
    frames = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "python_function"]
    assert frames
    assert not [name for name in frames if name.startswith("/")]


# -- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("kernel k 1us\n", "needs a thread"),
        ("frobnicate\n", "line 1: frobnicate: not one of"),
        ("thread main:\n  dance 3us\n", "line 2: dance: no such verb"),
        ("thread main:\n  python 3us\n    python 3us\n", "line 3: unexpected indentation"),
        ("thread main:\n", "line 1: an empty block"),
        ("thread main:\n  launch k\n", "line 2: launch: no such kernel"),
        ("kernel k\nthread main:\n  launch k\n", "line 3: launch: how long"),
        ("thread main:\n  python 0.5ns\n", "not whole nanoseconds"),
        ("thread main:\n  memset 3KB 1us\n", "not a size"),
        ("define d x:\n  python 1us\nthread main:\n  d\n", "line 4: d: needs x"),
    ],
)
def test_a_recipe_that_cannot_be_read_says_where(recipe: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        simulate(parse(recipe))


def test_definitions_take_words_and_comments_are_skipped() -> None:
    program = simulate(parse("kernel k 2us # two\ndefine twice kernel time:\n  repeat 2:\n    launch $kernel $time\n"
                             "thread main:\n  # nothing\n  twice k 7us\n"))  # fmt: skip
    assert [op.duration for op in program.ranks[0].operations] == [7000, 7000]
