"""How fast a large Nsight Systems export is read, against pandas.read_sql of the same columns, each in its own process.

    python tests/benchmarks/bench_nsight.py [--rows 5000000] [--runs 3] [--command [EXPORT …]] [--mb 1000]

With --command what the whole command takes instead: its CPU time, and its peak memory beside the size of the export. Either
of kernels alone and of kernels with the calls that launched them, or of the exports named, each repeated until it has --mb.

Writes an export with a kernel table as wide as the recorder's, times every way in turn, and prints the best run of each.
Compare the rows of one run with each other; the figures of different machines say little.
"""

import argparse
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

# Columns of the kernel table and what stands in row i.
COLUMNS = {
    "start": "1000000000 + i * 5000", "end": "1000000000 + i * 5000 + 2000 + i % 2000", "deviceId": "i % 2",
    "contextId": "1", "greenContextId": "0", "streamId": "7 + i % 4", "correlationId": "i + 1",
    "globalPid": "322757514493952", "demangledName": "1 + i % 200", "shortName": "201 + i % 200",
    "mangledName": "NULL", "launchType": "1", "cacheConfig": "0", "registersPerThread": "32 + i % 64",
    "gridX": "128 + i % 97", "gridY": "1", "gridZ": "1", "blockX": "256", "blockY": "1", "blockZ": "1",
    "staticSharedMemory": "0", "dynamicSharedMemory": "1024 * (i % 5)", "localMemoryPerThread": "0",
    "localMemoryTotal": "0", "gridId": "i", "sharedMemoryExecuted": "32768", "graphNodeId": "NULL",
    "sharedMemoryLimitConfig": "0", "qmdBulkReleaseDone": "NULL", "qmdPreexitDone": "NULL", "qmdLastCtaDone": "NULL",
    "graphId": "NULL", "clusterX": "0", "clusterY": "0", "clusterZ": "0", "clusterSchedulingPolicy": "0",
    "maxPotentialClusterSize": "0", "maxActiveClusters": "0",
}  # fmt: skip
READ = (
    "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory", "graphNodeId", "graphId",
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
)  # fmt: skip
TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
CALL_COLUMNS = {
    "start": "1000000000 + i * 5000 - 4000", "end": "1000000000 + i * 5000 - 1000 - i % 500", "eventClass": "0",
    "globalTid": "322757514493952 + 19238", "correlationId": "i + 1", "nameId": "401", "returnValue": "0",
    "callchainId": "NULL",
}  # fmt: skip
CALL_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"

WAYS = {
    "pandas.read_sql": f"""
import pandas, sqlite3
read = lambda path: pandas.read_sql("SELECT {", ".join(READ)} FROM {TABLE}", sqlite3.connect(path))
""",
    "these columns": f"""
from pathlib import Path
from gpu_trace_advisor.ingest.nsight.tables import BLOCK, GRID, RESOURCES
from gpu_trace_advisor.ingest.nsight.sqlite_source import Database
columns = (*{READ[:7] + READ[10:12]!r}, RESOURCES, GRID, BLOCK)
def read(path):
    with Database(Path(path)) as database:
        return database.integers("{TABLE}", columns)
""",
    "the whole trace": """
from pathlib import Path
from gpu_trace_advisor.ingest.nsight.reader import read_nsight
read = lambda path: read_nsight(Path(path))
""",
}
RUN = """
import resource, sys, time
{way}
start = time.perf_counter()
kept = read(sys.argv[1])
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def make(path: Path, rows: int, *, calls: bool = False) -> None:
    """An export with so many kernels, and as many launch calls if wished."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute(f"CREATE TABLE {TABLE} ({', '.join(f'{name} INTEGER' for name in COLUMNS)})")
    db.execute(
        f"WITH RECURSIVE count(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM count WHERE i < {rows - 1}) "
        f"INSERT INTO {TABLE} SELECT {', '.join(COLUMNS.values())} FROM count"
    )
    if calls:
        db.execute(f"CREATE TABLE {CALL_TABLE} ({', '.join(f'{name} INTEGER' for name in CALL_COLUMNS)})")
        db.execute(
            f"WITH RECURSIVE count(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM count WHERE i < {rows - 1}) "
            f"INSERT INTO {CALL_TABLE} SELECT {', '.join(CALL_COLUMNS.values())} FROM count"
        )
    db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, f"void kernel<{i}>(float*)") for i in range(1, 401)])
    db.execute("INSERT INTO StringIds VALUES (401, 'cudaLaunchKernel_v7000')")
    db.commit()
    db.close()


def measure(way: str, path: Path) -> tuple[float, float]:
    """Seconds to read, imports aside, and peak memory in MB."""
    command = [sys.executable, "-c", RUN.format(way=way), str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout
    seconds, peak = out.split()
    return float(seconds), int(peak) / 1024


COMMAND = """
import resource, sys
from gpu_trace_advisor.cli import main
main([sys.argv[1], "-o", sys.argv[2]])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def repeated(source: Path, path: Path, mb: float) -> None:
    """An export whose events are those of another one, again and again, until it takes about so many MB."""
    shutil.copyfile(source, path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = OFF")
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {name: [row[1] for row in db.execute(f'PRAGMA table_info("{name}")')] for name in names}
    events = {name: have for name, have in columns.items() if "start" in have}
    first, last, most = 1 << 62, -(1 << 62), 0
    for name, have in events.items():
        end = 'coalesce("end", start)' if "end" in have else "start"
        ids = "correlationId" if "correlationId" in have else "0"
        low, high, number = db.execute(f'SELECT min(start), max({end}), max({ids}) FROM "{name}"').fetchone()
        if low is not None:
            first, last, most = min(first, low), max(last, high), max(most, number or 0)
    period, times = last - first + 1_000_000, max(1, round(mb * 1e6 / source.stat().st_size))
    later = {
        "start": f'start + {period} * i', "end": f'"end" + {period} * i',
        "correlationId": f"CASE WHEN correlationId > 0 THEN correlationId + {most + 1} * i ELSE correlationId END",
    }  # fmt: skip
    for name, have in events.items():
        wanted = ", ".join(later.get(column, f'"{column}"') for column in have)
        db.execute(
            f"WITH RECURSIVE count(i) AS (SELECT 1 WHERE {times} > 1 UNION ALL SELECT i + 1 FROM count WHERE i < {times - 1}) "
            f'INSERT INTO "{name}" SELECT {wanted} FROM count CROSS JOIN (SELECT * FROM "{name}")'
        )
    db.commit()
    db.close()


def whole_command(rows: int, runs: int, exports: list[Path], mb: float) -> None:
    """Measure and print what the command takes on each export."""
    made: dict[str, Callable[[Path], None]] = {
        f"{export.name} repeated": partial(repeated, export, mb=mb) for export in exports
    } or {
        f"{rows:,} kernels": partial(make, rows=rows),
        f"{rows:,} kernels and launches": partial(make, rows=rows, calls=True),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, write in made.items():
            path = Path(folder) / "export.sqlite"
            write(path)
            size = path.stat().st_size
            command = [sys.executable, "-c", COMMAND, str(path), str(Path(folder) / "advice.txt")]
            found = []
            for _ in range(runs):
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
                )
                seconds, peak = done.stdout.split()
                found.append((float(seconds), int(peak) * 1024))
            best, least = min(seconds for seconds, _ in found), min(peak for _, peak in found)
            print(
                f"{name}, {size / 1e6:,.0f} MB: {best:.1f} s of CPU time, {least / 1e6:,.0f} MB of memory at the "
                f"peak, {least / size:.2f} times the export"
            )
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--command", type=Path, nargs="*", metavar="EXPORT", help="measure the whole command instead")
    parser.add_argument("--mb", type=float, default=1000, help="size to which the exports named are repeated")
    options = parser.parse_args()
    if options.command is not None:
        whole_command(options.rows, options.runs, options.command, options.mb)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        make(path, options.rows)
        print(f"{options.rows:,} kernels, {len(COLUMNS)} columns, {path.stat().st_size / 1e6:,.0f} MB")
        # In turn, so that a busy moment of the machine meets all of them.
        runs = [{name: measure(way, path) for name, way in WAYS.items()} for _ in range(options.runs)]
    best = {name: (min(run[name][0] for run in runs), min(run[name][1] for run in runs)) for name in WAYS}
    slowest, largest = best["pandas.read_sql"]
    print(f"{'':18}{'seconds':>9}{'times as fast':>15}{'peak MB':>10}{'of the memory':>15}")
    for name, (seconds, peak) in best.items():
        print(f"{name:18}{seconds:9.2f}{slowest / seconds:15.1f}{peak:10,.0f}{peak / largest:15.0%}")


if __name__ == "__main__":
    main()
