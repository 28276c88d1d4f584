"""How fast the graph of a trace is built and replayed, and how that grows. Run on demand; prints a table.

    python tests/benchmarks/bench_replay.py [--operations 100000 1000000 2000000] [--sample mlp-training] [--runs 3]

A sample is tiled in memory to each size, and every size is measured in a process of its own, in processor seconds.
Compare the rows of one run with each other; the figures of different runs or machines say little.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]


def tiled(path: Path, operations: int) -> Any:
    """The trace at `path`, one copy after the other, with at least so many operations."""
    from gpu_trace_advisor.ingest import read
    from gpu_trace_advisor.trace.model import NONE, Sparse

    one = read(path)
    n, tiles = len(one), -(-operations // len(one.operations))
    span = int(one.end_ns.max()) - one.origin_ns + 20_000
    number = np.repeat(np.arange(tiles), n)
    ids = int(one.correlation.max()) + 1

    def sparse(column: Sparse, by: int) -> Sparse:
        rows = (np.arange(tiles)[:, None] * n + column.rows).reshape(-1)
        return Sparse(rows, (np.arange(tiles)[:, None] * by + column.values).reshape(-1))

    def repeated(column: Any) -> Any:
        return np.tile(column, tiles)

    correlation, launch = repeated(one.correlation), repeated(one.launch)
    ids_of = {"wait_on_cuda_event_record_corr_id": ids}
    return replace(
        one,
        start_ns=repeated(one.start_ns) + number * span,
        end_ns=repeated(one.end_ns) + number * span,
        correlation=np.where(correlation == NONE, NONE, correlation + number * ids),
        launch=np.where(launch == NONE, NONE, launch + number * n),
        integers={key: sparse(column, ids_of.get(key, 0)) for key, column in one.integers.items()},
        texts={key: sparse(column, 0) for key, column in one.texts.items()},
        **{key: repeated(getattr(one, key)) for key in COLUMNS},
    )


COLUMNS = ("kind", "name_code", "process", "thread", "device", "stream", "bytes")


def measure(path: Path, operations: int, profile: bool) -> dict[str, float]:
    """Processor seconds of each stage, in this process; compiled code is made before the clock starts."""
    from gpu_trace_advisor.attribution.build import attribute
    from gpu_trace_advisor.graph.build import build_graph
    from gpu_trace_advisor.replay.sweep import replay
    from gpu_trace_advisor.timelines.device import timelines
    from gpu_trace_advisor.timelines.host import read_host
    from gpu_trace_advisor.timelines.steps import marker_rows

    def stages(trace: Any) -> dict[str, float]:
        times, then = {}, time.process_time()

        def lap(name: str) -> None:
            nonlocal then
            now = time.process_time()
            times[name], then = now - then, now

        host = read_host(trace, 0)
        lap("host")
        attribution = attribute(timelines(trace, {0: host})[0])
        lap("attribution")
        marks = marker_rows(trace, 0)
        graph = build_graph([attribution], np.unique(np.concatenate(marks)) if marks else None)
        lap("build")
        graph.first_edge, graph.total_ns  # noqa: B018
        lap("sums")
        replay(graph)
        lap("replay")
        return times | {"points": len(graph.point), "edges": len(graph.source), "operations": len(graph.row)}

    stages(tiled(path, 100_000))  # imports what it needs
    trace = tiled(path, operations)
    if profile:
        import cProfile

        cProfile.runctx("stages(trace)", {"stages": stages, "trace": trace}, {}, sort="cumulative")
    return stages(trace)


def main() -> None:
    """Measure each size in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, nargs="+", default=[100_000, 1_000_000, 2_000_000])
    parser.add_argument("--sample", nargs="+", default=["mlp-training", "graph-decode", "multi-stream-events"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, of the first size only")
    given = parser.parse_args()
    if given.one or given.profile:
        sample = given.one or given.sample[0]
        path = ROOT / "traces" / f"{sample}.json.gz"
        print(json.dumps(measure(path, given.operations[0], given.profile)))
        return
    print(f"{'sample':<20} {'operations':>10} {'points':>10} {'edges':>10} {'host s':>7} {'attr. s':>7} {'build s':>8} "
          f"{'replay s':>8} {'points/s':>11} {'replay x100k':>12}")  # fmt: skip
    for sample in given.sample:
        first = None
        for operations in given.operations:
            command = [sys.executable, str(Path(__file__)), "--one", sample, "--operations", str(operations)]
            runs = [
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
                for _ in range(given.runs)
            ]
            best = {key: min(run[key] for run in runs) for key in runs[0]}
            build, swept = best["build"], best["sums"] + best["replay"]
            both = (build + swept) / best["operations"]
            first = first or both
            print(f"{sample:<20} {best['operations']:>10,} {best['points']:>10,} {best['edges']:>10,} "
                  f"{best['host']:>7.2f} {best['attribution']:>7.2f} {build:>8.2f} {swept:>8.2f} "
                  f"{best['points'] / (build + swept):>11,.0f} {both / first:>12.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
