"""How the time of reading and advising grows with what a recording has more of: each is doubled, up to 100,000.

    python tests/benchmarks/bench_doubling.py [--most 100000] [--kinds threads,streams] [--seconds 120]

Prints CPU time by number, and the largest ratio between neighbours from 0.5 s on; the time below is mostly that of starting.
A kind ends where one number took more than `--seconds`. Each number is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.build import Event, annotation, call, kernel, op, step, written

Events = Iterator[Event]
NOTED = 0.5
"""Seconds from which on a ratio counts."""


def launched(i: int, **where: Any) -> Events:
    """An operator that launches a kernel, the i-th."""
    at, thread = 10 * i, where.pop("tid", 1)
    name = where.pop("name", "gemm")
    yield op("aten::mm", at, at + 8, tid=thread)
    yield call(at + 1, at + 3, i + 1, tid=thread)
    yield kernel(at + 4, at + 9, i + 1, name, **where)


def events(n: int) -> Events:
    for i in range(n // 3):
        yield from launched(i)


def threads(n: int) -> Events:
    for i in range(n):
        yield from launched(i, tid=i)


def streams(n: int) -> Events:
    for i in range(n):
        yield from launched(i, stream=i)


def devices(n: int) -> Events:
    for i in range(n):
        yield from launched(i, device=i)


def names(n: int) -> Events:
    for i in range(n):
        yield from launched(i, name=f"kernel_{i}")


def steps(n: int) -> Events:
    for i in range(n):
        yield step(i, 10 * i, 10 * i + 10)
        yield from launched(i)


def processes(n: int) -> Events:
    for i in range(n):
        for one in launched(i):
            yield one if one["cat"] == "kernel" else {**one, "pid": 1000 + i}


def overlap(n: int) -> Events:
    """Kernels that all run at once, each on a stream of its own."""
    for i in range(n):
        yield call(10 * i + 1, 10 * i + 3, i + 1)
        yield kernel(10 * n + 10 * i, 20 * n + 10 * i, i + 1, stream=i)


def ranges(n: int) -> Events:
    """Annotations inside each other."""
    for i in range(n):
        yield annotation(f"range {i}", i, 4 * n - i)
    for i in range(n // 10):
        yield op("aten::mm", n + 10 * i, n + 10 * i + 8)
        yield call(n + 10 * i + 1, n + 10 * i + 3, i + 1)
        yield kernel(n + 10 * i + 4, n + 10 * i + 9, i + 1)


def waits(n: int) -> Events:
    """Each kernel waits for an event that was recorded on the stream before its own."""
    for i in range(n):
        at = 20 * i
        yield call(at, at + 2, 4 * i + 1)
        yield kernel(at + 3, at + 12, 4 * i + 1, stream=i % 300)
        yield call(at + 13, at + 14, 4 * i + 2, "cudaEventRecord")
        yield call(at + 15, at + 16, 4 * i + 3, "cudaStreamWaitEvent")
        ids = {"wait_on_stream": i % 300, "wait_on_cuda_event_record_corr_id": 4 * i + 2, "wait_on_cuda_event_id": i}
        wait = kernel(at + 16, at + 17, 4 * i + 3, "Stream Wait Event", stream=(i + 1 + i // 300) % 300, **ids)
        yield {**wait, "cat": "cuda_sync"}


RECORDINGS: dict[str, Callable[[int], Events]] = {
    made.__name__: made
    for made in (events, threads, streams, devices, processes, names, steps, overlap, ranges, waits)
}  # fmt: skip
KINDS = (*RECORDINGS, "ranks")


def prepare(kind: str, n: int, folder: Path) -> list[Path]:
    """The recordings of a kind and number."""
    if kind in RECORDINGS:
        return [written(folder / "a.json", *RECORDINGS[kind](n))]
    collective: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "dtype": "Float",
        "Process Group Name": "0",
    }
    paths = []
    for rank in range(n):
        job = {"backend": "nccl", "rank": rank, "world_size": n}
        reduced = kernel(20, 40 + rank % 7, 1, "ncclDevKernel_AllReduce_Sum_f32", **collective)
        paths.append(written(folder / f"{rank}.json", call(1, 3, 1), reduced, distributedInfo=job))
    return paths


def measured(kind: str, n: int) -> float:
    """CPU seconds of reading and advising."""
    with TemporaryDirectory() as folder:
        paths = prepare(kind, n, Path(folder))
        listed = Path(folder) / "paths.txt"
        listed.write_text(json.dumps(list(map(str, paths))))
        done = subprocess.run([sys.executable, __file__, "--one", str(listed)], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-400:], file=sys.stderr)
    return float(done.stdout) if done.returncode == 0 else float("nan")


def one(listed: Path) -> None:
    from gpu_trace_advisor.analysis.request import Request
    from gpu_trace_advisor.parallel.advise import look_at

    began = time.process_time()
    found = look_at(json.loads(listed.read_text()), Request(), jobs=1, drawn=False)
    assert found.advice.devices
    print(time.process_time() - began)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--most", type=int, default=100_000)
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--seconds", type=float, default=120.0)
    p.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.one:
        one(options.one)
        return
    numbers = [options.most >> k for k in range(6, -1, -1)]
    print(f"| kind | {' | '.join(f'{n:,}' for n in numbers)} | largest ratio |")
    print(f"| --- |{' ---: |' * (len(numbers) + 1)}")
    for kind in options.kinds.split(","):
        seconds: list[float] = []
        for n in numbers:
            seconds.append(measured(kind, n))
            if not seconds[-1] < options.seconds:
                break
        ratios = [b / a for a, b in pairwise(seconds) if b > NOTED]
        told = [f"{s:.2f} s" for s in seconds] + [""] * (len(numbers) - len(seconds))
        print(f"| {kind} | {' | '.join(told)} | {max(ratios, default=1):.1f} |", flush=True)


if __name__ == "__main__":
    main()
