"""The attribution adds up, and its measured level equals a partition worked out instant by instant."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import DeviceAdvice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.build import (
    Event,
    annotation,
    call,
    copy,
    frame,
    kernel,
    memset,
    op,
    overhead,
    step,
    sync,
    trace,
)

US = 1000
DAMAGED = (
    {**kernel(1, 5, 901), "ts": 0, "dur": 0},
    {**kernel(30, 35, 902), "dur": None},
    {**kernel(30, 35, 903), "dur": -4},
    {**kernel(30, 35, 904), "dur": 8 * 86_400 * 10**6},
    {k: v for k, v in kernel(30, 35, 905).items() if k != "ts"},
)  # fmt: skip


@dataclasses.dataclass
class Operation:
    """A device operation in µs; `launch` is its call's start."""

    device: int
    stream: int
    start: int
    end: int
    what: str
    launch: int | None
    graph: bool


# random timelines


@st.composite
def device_work(draw: st.DrawFn, correlation: int) -> list[Event]:
    """One launch with its operations: one, or those of a graph replay."""
    nodes = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
    linked = draw(st.sampled_from([True, True, True, False]))
    device_ = draw(st.sampled_from([0, 0, 0, 1]))
    at = draw(st.integers(1, 90))
    events = []
    if linked:
        begun = max(1, at - draw(st.integers(-4, 25)))
        length = draw(st.integers(0, 15))
        name = "cudaGraphLaunch" if nodes > 1 else draw(st.sampled_from(["cudaLaunchKernel", "cudaMemcpyAsync"]))
        events.append(call(begun, begun + length, correlation, name, tid=draw(st.integers(1, 3))))
    for _ in range(nodes):
        length = draw(st.sampled_from([0, 1, 2, 5, 9, 14, 400]) if nodes == 1 else st.integers(0, 9))
        where: dict[str, Any] = {"stream": draw(st.sampled_from([7, 8, 9])), "device": device_}
        span = (at, at + length, correlation if linked or nodes > 1 else draw(st.sampled_from([0, correlation])))
        kind = draw(st.sampled_from("kkkkcxm"))
        if kind == "k":
            events.append(kernel(*span, **where))
        elif kind == "c":
            events.append(kernel(*span, "ncclDevKernel_AllReduce", **where))
        elif kind == "x":
            events.append(copy(*span, draw(st.sampled_from(["DtoH (Device -> Pinned)", "DtoD"])), **where))
        else:
            events.append(memset(*span, **where))
        at += draw(st.integers(0, 12))
    return events


@st.composite
def host_work(draw: st.DrawFn) -> Event:
    start, length, tid = draw(st.integers(1, 100)), draw(st.integers(0, 40)), draw(st.integers(1, 4))
    end = start + length
    return draw(
        st.sampled_from(
            [
                op("aten::mm", start, end, tid=tid),
                op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, end, tid=tid),
                frame("train.py(3): main", start, end, tid=tid),
                frame("threading.py(300): wait", start, end, tid=tid),
                annotation("forward", start, end, tid=tid),
                sync(start, end, tid=tid),
                call(start, end, 0, "cudaMalloc", tid=tid),
                overhead("Buffer Flush", start, end),
            ]
        )
    )


@st.composite
def recordings(draw: st.DrawFn) -> list[Event]:
    """Events of a recording of at most three devices' worth of streams, some of them damaged."""
    work = [draw(device_work(i + 1)) for i in range(draw(st.integers(1, 7)))]
    events = [event for group in work for event in group]
    events += draw(st.lists(host_work(), max_size=8))
    events += draw(st.lists(st.sampled_from(DAMAGED), max_size=2))
    at = draw(st.integers(1, 30))
    for number in range(draw(st.integers(0, 3))):
        length = draw(st.integers(5, 40))
        events.append(step(number, at, at + length))
        at += length + draw(st.integers(0, 5))
    return draw(st.permutations(events))


# the reference


def usable(events: list[Event]) -> list[tuple[Event, int, int]]:
    """Events with a usable time, with their start and end."""
    found = []
    for one in events:
        start, length = one.get("ts"), one.get("dur")
        if start is None or length is None or length < 0 or length > 7 * 86_400 * 10**6 or start == length == 0:
            continue
        found.append((one, round(start), round(start + length)))
    return found


def operations_of(events: list[Event]) -> list[Operation]:
    """Device operations in order, corrupt ends cut, with their launches."""
    sound = sorted(usable(events), key=lambda e: (e[1], -e[2]))
    launches: dict[int, int] = {}
    for one, start, _ in sound:
        if one["cat"] == "cuda_runtime" and one["args"]["correlation"] > 0:
            launches.setdefault(one["args"]["correlation"], start)
    rows = [(e, s, t) for e, s, t in sound if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    sharing = Counter(e["args"]["correlation"] for e, _, _ in rows)
    found = []
    for one, start, end in rows:
        what = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}[one["cat"]]
        if "nccl" in one["name"]:
            what = "communication"
        arguments = one["args"]
        correlation = arguments["correlation"]
        found.append(
            Operation(
                arguments["device"], arguments["stream"], start, end, what, launches.get(correlation),
                correlation > 0 and sharing[correlation] > 1,
            )
        )  # fmt: skip
    cut_corrupt_ends(found)
    return found


def cut_corrupt_ends(operations: list[Operation]) -> None:
    streams = defaultdict(list)
    for one in operations:
        if one.what != "copy" and not one.graph:
            streams[one.device, one.stream].append(one)
    for row in streams.values():
        row.sort(key=lambda o: (o.start, o.end))
        ends = [o.end for o in row]
        for i in range(len(row) - 2):
            if ends[i] > ends[i + 1] and ends[i] > ends[i + 2]:
                row[i].end = row[i + 1].start


def state(operations: list[Operation], t: int) -> str:
    """What the device does in [t, t + 1): for an idle one the side of the gap that the instant lies on."""
    running = {o.what for o in operations if o.start <= t < o.end}
    for what in ("compute", "communication", "copy"):
        if what in running:
            return what
    covering = [o for o in operations if o.end > o.start]
    before, after = [o.end for o in covering if o.end <= t], [o.start for o in covering if o.start > t]
    if not before or not after:
        if min(o.start for o in operations) <= t < max(o.end for o in operations):
            return "unlinked"  # only operations without length lie beyond
        if not after or min(after) > min(o.start for o in operations):
            return "host"  # before the first operation, or after the last one: no launch closes it
    gap_end = min(after)
    launches = [o.launch for o in covering if o.start == gap_end and o.launch is not None]
    if not launches:
        return "unlinked"
    return "host" if t < min(launches) else "submitted"


def window_of(kind: str, events: list[Event], operations: list[Operation]) -> tuple[int, int] | None:
    """[start, end) in µs; None when nothing is to be analysed."""
    spans = [(s, e) for one, s, e in usable(events)]
    origin = min(s for s, _ in spans)
    if kind == "gpu":
        return min(o.start for o in operations), max(o.end for o in operations)
    recorded = max(
        [o.end for o in operations_of(events)] + [e for one, _, e in usable(events) if one["cat"] not in DEVICE]
    )
    if kind == "all":
        return origin, recorded
    if kind == "steps":
        steps = steps_window(events, operations)
        return steps if steps and runs(operations, *steps) else None
    start, end = (round(float(part) * 1000) for part in kind.split(":"))
    window = origin + start, min(origin + end, recorded)
    if window[0] >= recorded:
        return None
    return window if runs(operations, *window) else None


def runs(operations: list[Operation], start: int, end: int) -> bool:
    """Whether an operation runs in [start, end), or one without length at its edge."""
    return any(o.start < end and o.end > start if o.end > o.start else start <= o.start <= end for o in operations)


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def steps_window(events: list[Event], operations: list[Operation]) -> tuple[int, int] | None:
    markers = sorted((s, e) for one, s, e in usable(events) if one["name"].startswith("ProfilerStep"))
    step_of: list[int | None] = []
    previous: dict[int, int | None] = {}
    for one in operations:
        if one.launch is not None:
            inside = [i for i, (s, e) in enumerate(markers) if s <= one.launch < e]
            previous[one.stream] = inside[0] if inside else None
        step_of.append(previous.get(one.stream))
    used = sorted({i for i in step_of if i is not None})
    if not used:
        return None
    ends = [markers[i][1] for i in used] + [o.end for o, i in zip(operations, step_of, strict=True) if i is not None]
    # Work that was queued before is not the first step's: it begins where that ends, at the latest with its own.
    own = min(o.start for o, i in zip(operations, step_of, strict=True) if i == used[0])
    queued = [min(o.end, own) for o in operations if o.start < own]
    return max([markers[used[0]][0], *queued]), max(ends)


# the comparison


def compare(found: DeviceAdvice, operations: list[Operation], window: tuple[int, int]) -> None:
    start, end = window
    expected = Counter(state(operations, t) for t in range(start, end))
    assert (found.start_ns, found.end_ns) == (start * US, end * US)
    assert sum(item.ns for item in found.attribution) == found.wall_ns == (end - start) * US
    assert all(item.ns > 0 for item in found.attribution)
    sums: Counter[str] = Counter()
    for item in found.attribution:
        sums[item.side or item.when] += item.ns
        assert (item.side is None) == (item.when != "idle")
    assert sums == Counter({what: n * US for what, n in expected.items()})
    fields = ("compute", "communication", "copy", "idle_host", "idle_submitted", "idle_unlinked")
    assert [getattr(found, f"{name}_ns") for name in fields] == [
        expected[name.removeprefix("idle_")] * US for name in fields
    ]
    busy = expected["compute"] + expected["communication"] + expected["copy"]
    assert (found.busy_ns, found.idle_ns) == (busy * US, (end - start - busy) * US)
    running = sum(
        any(o.what == "communication" and o.start <= t < o.end for o in operations) for t in range(start, end)
    )
    assert found.communication_total_ns == running * US


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([call(3, 5, 1), kernel(10, 20, 1), kernel(25, 25, 2)])
@example([kernel(2, 2), call(3, 5, 1), kernel(10, 20, 1)])
@example([op("aten::mm", 1, 9), kernel(2, 2)])
@given(recordings())
def test_level_by_level(events: list[Event]) -> None:
    """Random kernels, copies, replays, missing launches, zero lengths, corrupt ends, skewed clocks and host work."""
    recording = trace(*events)
    everything = operations_of(events)
    for kind in ("gpu", "all", "steps", "0:0.04", "0.02:0.07"):
        expected = {}
        for ordinal in sorted({o.device for o in everything}):
            mine = [o for o in everything if o.device == ordinal]
            if window := window_of(kind, events, mine):
                expected[ordinal] = (mine, window)
        try:
            advised = advise_traces([recording], Request(kind)).devices
            found = [d for d in advised if not (kind == "steps" and d.steps_from)]  # the reference infers no steps
        except BadUsage:
            assert ":" in kind
            assert not expected
            continue
        except NothingToAnalyse:
            assert not expected
            continue
        assert [d.device for d in found] == list(expected), kind
        for one in found:
            compare(one, *expected[one.device])


# Causes of the host's side


Maker = Callable[[int, int, int], Event]
RECORDS: dict[str, Maker] = {
    "framework": lambda a, b, tid: op("aten::mm", a, b, tid=tid),
    "dataloader": lambda a, b, tid: annotation("enumerate(DataLoader)#x", a, b, tid=tid),
    "garbage-collection": lambda a, b, tid: annotation("gc.collect", a, b, tid=tid),
    "compile": lambda a, b, tid: annotation("compile_fx_inner", a, b, tid=tid),
    "allocator": lambda a, b, tid: call(a, b, 0, "cudaMalloc", tid=tid),
    "launch-call": lambda a, b, tid: call(a, b, 0, "cudaEventRecord", tid=tid),
    "module-load": lambda a, b, tid: call(a, b, 0, "cudaStreamCreate", tid=tid),
    "range": lambda a, b, tid: annotation("forward", a, b, tid=tid),
}
FRAMES: dict[str, Maker] = {
    "python": lambda a, b, tid: frame("train.py(3): main", a, b, tid=tid),
    "waiting": lambda a, b, tid: frame("threading.py(300): wait", a, b, tid=tid),
}
ENCLOSING = ("garbage-collection", "dataloader", "compile")
HOLE = 1_000


@dataclasses.dataclass
class Record:
    """A host record in µs: what its thread does."""

    what: str
    start: int
    end: int
    tid: int


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Event], list[Record], list[tuple[int, int, Record]]]:
    """Events; the host records among them; (start, end, launch) of the device's operations in order."""
    with_frames = draw(st.booleans())
    makers = {**RECORDS, **FRAMES} if with_frames else RECORDS
    events, records, operations = [], [], []
    at = 1
    for i in range(draw(st.integers(1, 4))):
        at += draw(st.sampled_from([0, 3, 9, 30, 1_200]))
        begun = max(1, at - draw(st.integers(1, 8)))
        launch = Record("launch-call", begun, begun + draw(st.integers(0, 3)), draw(st.integers(1, 3)))
        events.append(call(launch.start, launch.end, 100 + i, tid=launch.tid))
        records.append(launch)
        end = at + draw(st.integers(1, 9))
        events.append(kernel(at, end, 100 + i))
        operations.append((at, end, launch))
        at = end
    for _ in range(draw(st.integers(0, 9))):
        what = draw(st.sampled_from(sorted(makers)))
        start = draw(st.integers(1, 60) | st.integers(1, at + 5))
        record = Record(what, start, start + draw(st.sampled_from([0, 2, 5, 12, 40])), draw(st.integers(1, 4)))
        events.append(makers[what](record.start, record.end, record.tid))
        records.append(record)
    return events, records, operations


def deciding(records: list[Record], tid: int, t: int) -> str | None:
    """What a thread does in [t, t + 1): nothing known, or the class of its deciding record."""
    mine = sorted((r for r in records if r.tid == tid), key=lambda r: (r.start, -r.end))
    running = [r for r in mine if r.start <= t < r.end]
    firm = [r for r in running if r.what != "range"]
    for what in ENCLOSING:
        if any(r.what == what for r in firm):
            return what
    return firm[-1].what if firm else "range" if running else None


def in_hole(records: list[Record], tid: int, t: int) -> bool:
    """Whether a thread that records operators has a hole of at most 1 ms at t, between two of its records."""
    mine = [r for r in records if r.tid == tid and r.end > r.start]
    before, after = [r.end for r in mine if r.end <= t], [r.start for r in mine if r.start > t]
    decides = {deciding(records, tid, r.start + i) for r in mine for i in range(r.end - r.start)}
    return bool(before and after) and min(after) - max(before) <= HOLE and "framework" in decides


def host_cause(records: list[Record], threads: list[int], frames: bool, t: int) -> str:
    for tid in threads:
        what = deciding(records, tid, t)
        if what not in (None, "waiting"):
            return "python" if what == "range" else str(what)
    if not frames and any(in_hole(records, tid, t) for tid in threads):
        return "python"
    return "host-unknown"


def one_gap(*records: Record) -> tuple[list[Event], list[Record], list[tuple[int, int, Record]]]:
    """An operation at 30 µs, launched at 28, and these records before it."""
    launch = Record("launch-call", 28, 29, 1)
    events = [call(28, 29, 100, tid=1), kernel(30, 35, 100), *(RECORDS[r.what](r.start, r.end, r.tid) for r in records)]
    return events, [launch, *records], [(30, 35, launch)]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(one_gap(Record("launch-call", 2, 20, 1), Record("module-load", 5, 9, 1)))
@example(one_gap(Record("launch-call", 2, 20, 1), Record("module-load", 2, 2, 1)))
@given(programs())
def test_causes_of_the_hosts_side(
    program: tuple[list[Event], list[Record], list[tuple[int, int, Record]]],
) -> None:
    """Which thread is asked, which record decides, and which holes are Python; nothing here blocks."""
    events, records, operations = program
    frames = any(r.what in FRAMES for r in records)
    counts = Counter(launch.tid for _, _, launch in operations)
    seen = list(dict.fromkeys(one["tid"] for one in events if one["pid"] == 100))
    by_launches = sorted(counts, key=lambda tid: (-counts[tid], seen.index(tid)))
    first = min([r.start for r in records] + [operations[0][0]])
    last = max([r.end for r in records] + [operations[-1][1]])
    expected: Counter[str] = Counter()
    free, previous = first, None
    for start, end, launch in [*operations, (last, last, None)]:
        if start > free:
            asked = [launch.tid] if launch else []
            asked += [previous] if previous is not None else []
            threads = list(dict.fromkeys(asked + by_launches))
            for t in range(free, min(start, launch.start) if launch else start):
                expected[host_cause(records, threads, frames, t)] += US
            previous = launch.tid if launch else previous
        free = max(free, end)
    (found,) = advise_traces([trace(*events)], Request("all")).devices
    sums: Counter[str] = Counter()
    for item in found.attribution:
        if item.side == "host":
            sums[item.cause] += item.ns
    assert sums == expected
