"""How often the comparison cries wolf, and how often it sees the wolf.

    python tests/benchmarks/bench_gate.py [--pairs 1000] [--table-only]

First runs of one generated program, from simulation to verdict: 10 steps a side with 2 % noise (standard deviation)
between steps. Equal programs that are called improved or regressed are false alarms; programs made 5 % slower that are
called regressed are found. Then a table over noise and numbers of steps, of step times drawn from a normal distribution.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.gate.compare import IMPROVED, REGRESSED, compare
from gpu_trace_advisor.gate.run_record import Lane, Run, periods, run_of
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.units import percent

from traces.recipe import parse
from traces.simulate import simulate
from traces.write_kineto import write_kineto

RECIPE = parse(
    """
device H100
launch call=5us latency=4us gap=1us return=2us
kernel mm 400us grid=264 block=256 regs=64 "ampere_sgemm_128x64_tn"
thread main:
  steps 10 from=1:
    loader 9ms
    op aten::mm 8us 2us in=[[64,64],[64,64]] type=float:
      launch mm
    op aten::item 2us 2us:
      sync stream
""",
    "bench",
)
STEP_PER_LOADER = 9.44 / 9  # what has to change for the whole step to change so much
NOISES, STEPS, SLOWER = (0.01, 0.02, 0.05), (5, 10, 20, 50), 1.05


def recorded(seed: int, noise: float, slower: float, folder: Path) -> Run:
    """One run of the program: simulated, written, read, analysed. Uniform jitter of ±√3 noise has that deviation."""
    scale = {"dataloader": 1 + (slower - 1) * STEP_PER_LOADER}
    program = simulate(RECIPE, jitter=noise * 3**0.5 * STEP_PER_LOADER, seed=seed, scale=scale)
    path = folder / "run.json"
    write_kineto(program, path)
    return run_of(advise_traces([read(path)]).to_json())


def drawn(random: np.random.Generator, steps: int, noise: float, slower: float) -> Run:
    """A run of steps of 10 ms whose times are drawn."""
    starts = np.concatenate([[0], np.cumsum(1e7 * slower * random.normal(1, noise, steps - 1))]).astype(np.int64)
    kept = [{"start_ns": int(start)} for start in starts]
    wall = int(starts[-1]) + 10_000_000
    lane = Lane("device 0", "H100", "steps", steps, wall, periods(kept), (), {"framework": wall}, {}, {}, None, (wall,))
    return Run("drawn", (lane,), ())


def rate(verdicts: Counter[str], *names: str) -> float:
    return sum(verdicts[name] for name in names) / max(sum(verdicts.values()), 1)


def table(pairs: int) -> None:
    """False alarms among equal programs, and found among those 5 % slower, in percent."""
    random = np.random.default_rng(1)
    print("| steps a side | " + " | ".join(f"{percent(noise)} noise" for noise in NOISES) + " |")
    print("| ---: |" + " ---: |" * len(NOISES))
    for steps in STEPS:
        cells = []
        for noise in NOISES:
            equal, slow = Counter[str](), Counter[str]()
            for _ in range(pairs):
                before = drawn(random, steps, noise, 1)
                equal[compare([before], drawn(random, steps, noise, 1)).verdict] += 1
                slow[compare([before], drawn(random, steps, noise, SLOWER)).verdict] += 1
            cells.append(f"{percent(rate(equal, IMPROVED, REGRESSED), 1)} / {percent(rate(slow, REGRESSED), 1)}")
        print(f"| {steps} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pairs", type=int, default=1000)
    options.add_argument("--table-only", action="store_true")
    chosen = options.parse_args()
    if not chosen.table_only:
        equal, slow, spread = Counter[str](), Counter[str](), []
        with tempfile.TemporaryDirectory() as name:
            for seed in range(chosen.pairs):
                before, same, slower = (
                    recorded(3 * seed + i, 0.02, by, Path(name)) for i, by in enumerate((1, 1, SLOWER))
                )
                equal[compare([before], same).verdict] += 1
                slow[compare([before], slower).verdict] += 1
                spread.append(np.std(before.lanes[0].periods_ns, ddof=1) / np.mean(before.lanes[0].periods_ns))
        print(
            f"{chosen.pairs} pairs of generated runs, 10 steps, noise {percent(float(np.mean(spread)), 2)} as measured:"
        )
        print(f"  false alarms {percent(rate(equal, IMPROVED, REGRESSED), 1)}  {dict(equal)}")
        print(f"  5 % slower found {percent(rate(slow, REGRESSED), 1)}  {dict(slow)}")
    table(chosen.pairs)


if __name__ == "__main__":
    main()
