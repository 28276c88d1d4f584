"""How often the comparison cries wolf, and how often it sees the wolf.

    python tests/benchmarks/bench_gate.py [--pairs 1000] [--table-only]

First runs of one generated program, from simulation to verdict: 3 runs before and one after, 10 steps each with 2 %
noise (standard deviation) between steps. Equal programs that are called improved or regressed are false alarms. The spread
between runs is how far the medians of 40 of them lie apart; programs made slower by three times that which are called
regressed are found. Then a table over noise between steps and between runs, of times drawn from normal distributions.
`bench_repeats.py` does the same with recordings of real programs.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.gate.compare import IMPROVED, REGRESSED, compare
from gpu_trace_advisor.gate.run_record import DeviceRun, Run, periods, run_of
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
NOISES, BETWEEN = (0.005, 0.01, 0.02, 0.05), (0, 0.01, 0.03)
BEFORE, STEPS, MANY = (1, 2, 3, 5), 10, 40


def recorded(seed: int, noise: float, slower: float, folder: Path) -> Run:
    """One run of the program: simulated, written, read, analysed. Uniform jitter of ±√3 noise has that deviation."""
    scale = {"dataloader": 1 + (slower - 1) * STEP_PER_LOADER}
    program = simulate(RECIPE, jitter=noise * 3**0.5 * STEP_PER_LOADER, seed=seed, scale=scale)
    path = folder / "run.json"
    write_kineto(program, path)
    return run_of(advise_traces([read(path)]).to_json())


def drawn(random: np.random.Generator, noise: float, between: float, slower: float) -> Run:
    """A run of steps of 10 ms whose times are drawn, and its own speed."""
    speed = slower * random.normal(1, between)
    starts = np.concatenate([[0], np.cumsum(1e7 * speed * random.normal(1, noise, STEPS - 1))]).astype(np.int64)
    kept = [{"start_ns": int(start)} for start in starts]
    wall = int(starts[-1]) + 10_000_000
    lane = DeviceRun(
        "device 0", "H100", "steps", STEPS, wall, periods(kept), (), {"framework": wall}, {}, {}, None, (wall,)
    )
    return Run("drawn", (lane,), ())


def rate(verdicts: Counter[str], *names: str) -> float:
    return sum(verdicts[name] for name in names) / max(sum(verdicts.values()), 1)


def spread(runs: Sequence[Run]) -> float:
    """How far the medians of runs lie apart, largest and smallest, as a share."""
    medians = [float(np.median(run.lanes[0].periods_ns)) for run in runs]
    return float((max(medians) - min(medians)) / np.median(medians))


def table(pairs: int) -> None:
    """False alarms among equal programs, by how many runs come before, and found with three of them, in percent."""
    random = np.random.default_rng(1)
    print("| between steps | between runs | false alarms, 1 / 2 / 3 / 5 before | three spreads | found, 3 before |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for noise in NOISES:
        for between in BETWEEN:
            slower = 3 * spread([drawn(random, noise, between, 1) for _ in range(MANY)])
            alarms = []
            for before in BEFORE:
                equal = Counter(
                    compare(
                        [drawn(random, noise, between, 1) for _ in range(before)], drawn(random, noise, between, 1)
                    ).verdict
                    for _ in range(pairs)
                )
                alarms.append(percent(rate(equal, IMPROVED, REGRESSED), 1))
            slow = Counter(
                compare(
                    [drawn(random, noise, between, 1) for _ in range(3)], drawn(random, noise, between, 1 + slower)
                ).verdict
                for _ in range(pairs)
            )
            print(
                f"| {percent(noise, 1)} | {percent(between, 0)} | {' / '.join(alarms)} | {percent(slower, 1)} | "
                f"{percent(rate(slow, REGRESSED), 1)} |",
                flush=True,
            )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pairs", type=int, default=1000)
    options.add_argument("--table-only", action="store_true")
    chosen = options.parse_args()
    if not chosen.table_only:
        with tempfile.TemporaryDirectory() as name:
            made = [recorded(seed, 0.02, 1, Path(name)) for seed in range(MANY)]
            apart = spread(made)
            slower = [recorded(MANY + seed, 0.02, 1 + 3 * apart, Path(name)) for seed in range(MANY)]
        random, equal, slow = np.random.default_rng(1), Counter[str](), Counter[str]()
        for _ in range(chosen.pairs):
            *before, after = random.choice(MANY, 4, replace=False).tolist()
            equal[compare([made[i] for i in before], made[after]).verdict] += 1
            slow[compare([made[i] for i in before], slower[after]).verdict] += 1
        print(
            f"{MANY} generated runs, whose medians lie {percent(apart, 1)} apart; {chosen.pairs} draws, 3 runs before:"
        )
        print(f"  false alarms {percent(rate(equal, IMPROVED, REGRESSED), 1)}  {dict(equal)}")
        print(f"  {percent(3 * apart, 1)} slower found {percent(rate(slow, REGRESSED), 1)}  {dict(slow)}")
    table(chosen.pairs)


if __name__ == "__main__":
    main()
