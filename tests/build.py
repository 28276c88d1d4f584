"""Small traces for tests: Chrome events given by their start and end in µs, and the attribution of their device.

    one = device(op("aten::mm", 0, 20), call(5, 10, 1), kernel(15, 40, 1))

Host events lie on thread 1 unless `tid` says otherwise, operations on device 0, stream 7. A launch and its operation
share a correlation, the third argument of both.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.attribution import Attribution
from gpu_trace_advisor.attribution.build import attribute
from gpu_trace_advisor.ingest.chrome.reader import parse
from gpu_trace_advisor.ingest.kineto import to_trace
from gpu_trace_advisor.timelines.device import Timeline, timelines
from gpu_trace_advisor.timelines.host import read_host
from gpu_trace_advisor.trace.model import Trace

Event = dict[str, Any]
Time = int | float

HOST = 100  # process id of host events


def event(category: str, name: str, start: Time, end: Time, **more: Any) -> Event:
    """One complete event; further keys are its arguments, but for `pid` and `tid`."""
    pid, tid = more.pop("pid", HOST), more.pop("tid", 1)
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": round(end - start, 3),
        "args": more,
    }  # fmt: skip


def op(name: str, start: Time, end: Time, **more: Any) -> Event:
    return event("cpu_op", name, start, end, **more)


def frame(name: str, start: Time, end: Time, **more: Any) -> Event:
    return event("python_function", name, start, end, **more)


def annotation(name: str, start: Time, end: Time, **more: Any) -> Event:
    return event("user_annotation", name, start, end, **more)


def step(number: int, start: Time, end: Time, **more: Any) -> Event:
    return annotation(f"ProfilerStep#{number}", start, end, **more)


def call(start: Time, end: Time, correlation: int = 0, name: str = "cudaLaunchKernel", **more: Any) -> Event:
    return event("cuda_runtime", name, start, end, correlation=correlation, **more)


def sync(start: Time, end: Time, name: str = "cudaDeviceSynchronize", **more: Any) -> Event:
    return call(start, end, 0, name, **more)


def overhead(name: str, start: Time, end: Time) -> Event:
    """The profiler's own time, which names no thread."""
    return event("overhead", name, start, end, pid=-1, tid=0)


def operation(
    category: str, name: str, start: Time, end: Time, correlation: int, stream: int, device: int, **more: Any
) -> Event:
    ids = {"correlation": correlation, "stream": stream, "device": device, "pid": device, "tid": stream}
    return event(category, name, start, end, **ids, **more)


def kernel(
    start: Time, end: Time, correlation: int = 0, name: str = "kernel", *, stream: int = 7, device: int = 0, **more: Any
) -> Event:
    return operation("kernel", name, start, end, correlation, stream, device, **more)


def copy(
    start: Time, end: Time, correlation: int = 0, what: str = "HtoD (Pageable -> Device)", *, stream: int = 7,
    device: int = 0, **more: Any,
) -> Event:  # fmt: skip
    return operation("gpu_memcpy", f"Memcpy {what}", start, end, correlation, stream, device, **more)


def memset(start: Time, end: Time, correlation: int = 0, *, stream: int = 7, device: int = 0) -> Event:
    return operation("gpu_memset", "Memset (Device)", start, end, correlation, stream, device)


def trace(*events: Event, name: str = "test.json", **metadata: Any) -> Trace:
    """The Trace of these events."""
    text = json.dumps({**metadata, "traceEvents": events})
    return to_trace(parse(text.encode(), name), Path(name))


def written(path: Path, *events: Event, **metadata: Any) -> Path:
    """The events as a file."""
    path.write_text(json.dumps({**metadata, "traceEvents": events}), encoding="utf-8")
    return path


def timeline(*events: Event, at: int = 0) -> Timeline:
    """The timeline of the one device, or of device number `at`."""
    return timeline_of(trace(*events), at)


def timeline_of(recording: Trace, at: int = 0) -> Timeline:
    hosts = {process: read_host(recording, process) for process in range(len(recording.processes))}
    return timelines(recording, hosts)[at]


def attribution(*events: Event, at: int = 0) -> Attribution:
    return attribute(timeline(*events, at=at))


def advice(*events: Event, **request: Any) -> Advice:
    return advise_traces([trace(*events)], Request(**request))


def device(*events: Event, window: str | None = None, **request: Any) -> DeviceAdvice:
    """What is said about the one device."""
    found = advice(*events, window=window, **request).devices
    assert len(found) == 1
    return found[0]


def idle(*events: Event, window: str | None = "gpu", **request: Any) -> dict[str, float]:
    """Idle µs by `side cause`."""
    return idle_of(device(*events, window=window, **request))


def idle_of(of: DeviceAdvice) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for item in of.attribution:
        if item.when == "idle":
            sums[f"{item.side} {item.cause}"] += item.ns
    return {key: ns / 1000 for key, ns in sums.items()}


def causes(of: DeviceAdvice) -> dict[str, int]:
    """ns by cause."""
    sums: Counter[str] = Counter()
    for item in of.attribution:
        sums[item.cause] += item.ns
    return dict(sums)


class Nsight:
    """Writes an SQLite export with the tables and columns that are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")

    def name(self, text: str) -> int:
        """The id of a text in StringIds."""
        if text not in self.names:
            self.names.append(text)
            with closing(sqlite3.connect(self.path)) as db, db:
                db.execute("INSERT INTO StringIds VALUES (?, ?)", (len(self.names), text))
        return self.names.index(text) + 1

    def table(self, name: str, columns: str, rows: Sequence[Sequence[Any]] = ()) -> None:
        """A table; `columns` are separated by blanks, text columns end with `$`."""
        spelt = ", ".join(c[:-1] + " TEXT" if c.endswith("$") else c + " INT" for c in columns.split())
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(f"CREATE TABLE {name} ({spelt})")
            for row in rows:
                db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)


def nsight_id(pid: int, tid: int = 0) -> int:
    """globalTid, or globalPid without a thread, with the bits of a virtual machine set."""
    return 1 << 48 | pid << 24 | tid
