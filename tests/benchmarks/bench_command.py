"""The whole command against others on the same file: seconds and peak memory, each in a process of its own.

    ADVISE_REAL_TRACES=folder python tests/benchmarks/bench_command.py [--sizes 100 500] [--trace NAME] [--layout line] [--runs 3]

A real trace is tiled to each size in a temporary folder. Holistic Trace Analysis loads the trace and makes its temporal
and idle-time breakdowns; `json.load` only parses. Compare the rows of one run with each other.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_ingest import tile  # type: ignore[import-not-found]

JOBS = {
    "advise": "from gpu_trace_advisor.cli import main; main([path, '-o', '/dev/null'])",
    "json.load": "import json; json.load(open(path, encoding='utf-8'))",
    "HTA": (
        "from hta.trace_analysis import TraceAnalysis; a = TraceAnalysis(trace_files={0: path}, trace_dir='.'); "
        "a.get_temporal_breakdown(visualize=False); a.get_idle_time_breakdown(visualize=False)"
    ),
}
LAYOUTS: dict[str, Callable[[bytes], bytes]] = {
    "recorded": lambda source: source,
    "indented": lambda source: json.dumps(json.loads(source, strict=False), indent=2).encode(),
    "line": lambda source: json.dumps(json.loads(source, strict=False)).encode(),
    "event a line": lambda source: re.sub(
        rb'}, (?={"(?:ph|name)")', b"},\n", json.dumps(json.loads(source, strict=False)).encode()
    ),
}
"""How a writer prints it: as the trace is, by json.dumps indented, on one line, and with a line for each event."""

RUN = "import sys, resource; path = sys.argv[1]; {job}; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def measure(job: str, path: Path) -> tuple[float, float] | None:
    """Seconds from start to exit, and peak memory in bytes; None when it fails, as others do on some repeated traces."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN.format(job=JOBS[job]), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{path.name:>14} {job:<12} fails: {done.stderr.strip().splitlines()[-1][:100]}", flush=True)
        return None
    return time.perf_counter() - began, float(done.stdout.split()[-1]) * 1024


def main() -> None:
    """Make the files, measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.1, 100, 500], help="MB of text")
    parser.add_argument("--trace", default="vllm-gptoss-mxfp4-eager-tp8-b200.json.gz")
    parser.add_argument("--layout", choices=LAYOUTS, default="recorded")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--others-up-to", type=float, default=500, help="MB up to which the others are measured")
    given = parser.parse_args()
    source = gzip.decompress(next(Path(os.environ["ADVISE_REAL_TRACES"]).rglob(given.trace)).read_bytes())
    source = LAYOUTS[given.layout](source)
    print(f"{'file':>14} {'':<12} {'s':>7} {'advise is':>10} {'peak/size':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for size in given.sizes:
            plain, packed = Path(scratch, f"{size:g}.json"), Path(scratch, f"{size:g}.json.gz")
            tile(source, int(size * 1_000_000), plain)
            packed.write_bytes(b"")
            with plain.open("rb") as text, gzip.open(packed, "wb", 6) as file:
                while block := text.read(1 << 20):
                    file.write(block)
            length = plain.stat().st_size
            others = [(name, plain) for name in JOBS if name != "advise" and size <= given.others_up_to]
            jobs = [("advise", plain), ("advise", packed), *others]
            measure("advise", plain)  # fills the page cache
            found: dict[tuple[str, Path], list[tuple[float, float]]] = {job: [] for job in jobs}
            for number in range(given.runs):
                for job in [job for job in jobs if len(found[job]) == number]:
                    if result := measure(*job):
                        found[job].append(result)
            ours = statistics.median(seconds for seconds, _ in found["advise", plain])
            for (name, path), runs in ((job, runs) for job, runs in found.items() if runs):
                seconds, peak = (statistics.median(column) for column in zip(*runs, strict=True))
                print(
                    f"{path.name:>14} {name:<12} {seconds:7.2f} {seconds / ours:9.1f}x {peak / length:9.2f}", flush=True
                )
            plain.unlink()
            packed.unlink()


if __name__ == "__main__":
    main()
