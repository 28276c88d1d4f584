"""How fast ranks are compared, and how memory and time grow with their number. Run on demand; prints what it measured.

    python tests/benchmarks/bench_ranks.py large [--mb 100] [--ranks 8] [--hta PYTHON]
    python tests/benchmarks/bench_ranks.py dlrm FOLDER
    python tests/benchmarks/bench_ranks.py many [--ranks 16 1024] [--kill]

`large` compares generated ranks with Holistic Trace Analysis (load and breakdowns) run by another interpreter; `many` reads
small ranks on a Dask cluster of two workers and sums the memory of all its processes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traces.program import Program

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
t = time.perf_counter()
a = TraceAnalysis(trace_dir=sys.argv[1])
a.get_temporal_breakdown(visualize=False); a.get_comm_comp_overlap(visualize=False)
a.get_gpu_kernel_breakdown(visualize=False)
print(time.perf_counter() - t)
"""


def program(ranks: int, steps: int, layers: int) -> Program:
    """Data-parallel training with a slow loader on the last rank."""
    from traces.recipe import parse
    from traces.simulate import simulate

    recipe = f"""
device H100
ranks {ranks}
launch call=6us latency=5us gap=1us return=3us
trace shapes=1
kernel gemm 20us grid=528 block=384 "gemm_kernel"
kernel reduce 400us grid=24 block=512 "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
thread main:
  op aten::empty 4us
  steps {steps} from=1:
    loader 100us
    rank {ranks - 1}:
      loader 2ms
    repeat {layers}:
      op aten::linear 2us 1us in=[[64,64],[64,64]]:
        op aten::mm 4us 1us in=[[64,64],[64,64]]:
          launch gemm
    op c10d::allreduce_ 6us 2us:
      collective reduce 400us 16MiB
    op aten::item 3us 1us:
      copy d2h pinned 4B 1200ns
      sync stream=7
"""
    return simulate(parse(recipe, "bench"))


def write(folder: Path, ranks: int, steps: int, layers: int, base: int) -> None:
    """The ranks as files: `base` of them simulated, the last one slow; the others are copies of the usual ones."""
    from traces.write_kineto import text

    made = program(base, steps, layers)
    texts = [text(made, rank) for rank in range(base)]
    for rank in range(ranks):
        own = base - 1 if rank == ranks - 1 else rank % (base - 1)
        told = f'"rank": {own}, "world_size": {base}', f'"rank": {rank}, "world_size": {ranks}'
        (folder / f"rank{rank}.json").write_text(texts[own].replace(*told))


def memory(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append((int(entry.name), int(fields[21]) * 4096))
    own = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[21]) * 4096
    todo, total = [pid], own
    while todo:
        for child, resident in children.get(todo.pop(), []):
            total += resident
            todo.append(child)
    return total


def advise(folder: Path | str, *more: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "gpu_trace_advisor", str(folder), "-o", os.devnull, *more]
    subprocess.run(command, cwd=ROOT, check=True)
    return time.perf_counter() - start


def large(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        layers = 200
        steps = max(int(options.mb * 1e6 / (layers * 1500)), 1)
        write(folder, options.ranks, steps, layers, 2)
        sizes = [file.stat().st_size / 1e6 for file in folder.iterdir()]
        print(f"{options.ranks} ranks of {sum(sizes) / len(sizes):.0f} MB")
        own = min(advise(folder) for _ in range(options.runs))
        print(f"advise {own:.2f} s")
        if options.hta:
            done = subprocess.run([options.hta, "-c", HTA, name], capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr[-2000:])
                return
            theirs = float(done.stdout.split()[-1])
            print(f"HTA    {theirs:.2f} s, {theirs / own:.1f} times as long")


def dlrm(options: argparse.Namespace) -> None:
    print(f"{min(advise(options.folder) for _ in range(options.runs)):.2f} s")


def many(options: argparse.Namespace) -> None:
    from distributed import LocalCluster
    from gpu_trace_advisor.analysis.request import Request
    from gpu_trace_advisor.parallel.advise import look_at

    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, ranks, 4, 20, 16)
            with LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=2, threads_per_worker=1, dashboard_address=None
            ) as cluster:
                peak, stop = [0], threading.Event()

                def watch(peak: list[int] = peak, stop: threading.Event = stop) -> None:
                    while not stop.wait(0.05):
                        peak[0] = max(peak[0], memory(os.getpid()))

                watcher = threading.Thread(target=watch)
                watcher.start()
                if options.kill:
                    victim = next(iter(cluster.workers.values())).process.process._process
                    threading.Timer(3.0, victim.kill).start()
                start = time.perf_counter()
                found = look_at([name], Request(), scheduler=cluster.scheduler_address)
                took = time.perf_counter() - start
                stop.set()
                watcher.join()
            run = found.advice.ranks
            assert run is not None
            print(
                f"{ranks} ranks: {took:.2f} s, {1000 * took / ranks:.1f} ms each, peak {peak[0] / 1e6:.0f} MB, "
                f"{len(run.rows)} rows, stragglers {[s.ranks for s in run.stragglers]}, errors {len(found.advice.errors)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_subparsers(required=True)
    one = which.add_parser("large")
    one.add_argument("--mb", type=float, default=100)
    one.add_argument("--ranks", type=int, default=8)
    one.add_argument("--runs", type=int, default=2)
    one.add_argument("--hta")
    one.set_defaults(run=large)
    one = which.add_parser("dlrm")
    one.add_argument("folder", type=Path)
    one.add_argument("--runs", type=int, default=5)
    one.set_defaults(run=dlrm)
    one = which.add_parser("many")
    one.add_argument("--ranks", type=int, nargs="+", default=[16, 1024])
    one.add_argument("--kill", action="store_true")
    one.set_defaults(run=many)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
