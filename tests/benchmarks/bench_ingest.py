"""How fast traces are read: MB/s and peak memory, each in a process of its own. Run on demand; prints a table.

    ADVISE_REAL_TRACES=folder python tests/benchmarks/bench_ingest.py [--sizes 100 500] [--trace NAME] [--runs 3]

A real trace is tiled to each size (times, correlations and ids shifted per tile) in a temporary folder. Compare the rows of
one run with each other; the figures of different runs or machines say little.
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
from pathlib import Path

_SHIFTED = re.compile(
    rb'("(?:correlation|External id|Ev Idx|Python id|Python parent id|Sequence number|id)"\s*:\s*)(\d+)'
    rb'|("ts"\s*:\s*)(\d+)'
)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')

_CHROME = "gpu_trace_advisor.ingest.chrome"
_READERS = {
    "read_events": f"import {_CHROME}.parallel_reader; from {_CHROME}.reader import read_events as read",
    "read_events, 1 thread": f"from {_CHROME}.parallel_reader import read as fast; read = lambda p: fast(p, threads=1)",
    "json.load": "import json; read = lambda p: json.load(open(p, encoding='utf-8'))",
}
_RUN = """
import resource, sys, time
start = time.perf_counter()
{reader}
imported = time.perf_counter()
found = read(sys.argv[1])
done = time.perf_counter()
print(done - imported, imported - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def tile(source: bytes, size: int, path: Path) -> None:
    """Write a trace of about `size` bytes that repeats the events of another."""
    head = _EVENTS.search(source)
    assert head, "the trace needs traceEvents"
    text = source.decode("latin-1")  # a character is a byte
    end = json.JSONDecoder(strict=False).raw_decode(text, head.end() - 1)[1] - 1
    events = source[head.end() : end].strip()
    with path.open("wb") as file:
        file.write(source[: head.end()] + b"\n  ")
        tiles = max(1, round(size / len(events)))
        for number in range(tiles):
            file.write((b",\n  " if number else b"") + _shift(events, number))
        file.write(b"\n" + source[end:])


def _shift(events: bytes, number: int) -> bytes:
    def moved(found: re.Match[bytes]) -> bytes:
        if found[3]:
            return found[3] + str(int(found[4]) + number * 10_000_000).encode()
        return found[1] + str(int(found[2]) + number * 10_000_000).encode()

    return _SHIFTED.sub(moved, events) if number else events


def measure(name: str, path: Path) -> tuple[float, float, float]:
    """Seconds to read the file, seconds of imports, and peak memory in bytes."""
    code = _RUN.format(reader=_READERS[name])
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    seconds, imports, peak = map(float, done.stdout.split())
    return seconds, imports, peak * 1024


def main() -> None:
    """Make the files, measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500], help="MB of text")
    parser.add_argument("--trace", default="qwen0.5b-prefill-h100.json.gz")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json-up-to", type=int, default=500, help="MB up to which json.load is measured")
    given = parser.parse_args()
    folder = Path(os.environ["ADVISE_REAL_TRACES"])
    source = gzip.decompress(next(folder.rglob(given.trace)).read_bytes())
    print(f"{'file':>12} {'reader':<22} {'MB/s':>6} {'lowest':>6} {'highest':>7} {'imports s':>9} {'peak/size':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for size in given.sizes:
            plain, packed = Path(scratch, f"{size}.json"), Path(scratch, f"{size}.json.gz")
            tile(source, size * 1_000_000, plain)
            with plain.open("rb") as text, gzip.open(packed, "wb", 6) as file:
                while block := text.read(1 << 20):
                    file.write(block)
            length = plain.stat().st_size
            jobs = [(name, plain) for name in _READERS if name != "json.load" or size <= given.json_up_to]
            jobs.append(("read_events", packed))
            measure("read_events", plain)  # compiles, and fills the page cache
            found: dict[tuple[str, Path], list[tuple[float, float, float]]] = {job: [] for job in jobs}
            for _ in range(given.runs):
                for job in jobs:
                    found[job].append(measure(*job))
            for (name, path), runs in found.items():
                rates = [length / 1e6 / seconds for seconds, _, _ in runs]
                imports, peak = statistics.median(r[1] for r in runs), statistics.median(r[2] for r in runs)
                print(
                    f"{path.name:>12} {name:<22} {statistics.median(rates):6.0f} {min(rates):6.0f} {max(rates):7.0f}"
                    f" {imports:9.2f} {peak / length:9.2f}",
                    flush=True,
                )
            plain.unlink()
            packed.unlink()


if __name__ == "__main__":
    main()
