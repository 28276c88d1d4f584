"""How often the comparison cries wolf about repeats of real programs, and how often it sees the wolf among them.

    python tests/benchmarks/bench_repeats.py FOLDER record [--repeats 40]    needs torch; continues what is there
    python tests/benchmarks/bench_repeats.py FOLDER table [--draws 2000]

`record` runs each program in a process of its own, as often as asked for, and keeps what comparisons keep of the recording
that `gpu_trace_advisor.record` makes: 10 steps on the CPU. Nothing differs between repeats of a program but chance: its data,
what the allocator finds, and what else the machine does, a neighbour that comes and goes among it.

`table` compares runs drawn from these. A false alarm is a later run of the same program that is called improved or
regressed. The spread of a program is how far the medians of its runs lie apart, largest and smallest; a slower program is
one whose steps all take three of these spreads longer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.gate.baseline import load_runs
from gpu_trace_advisor.gate.compare import IMPROVED, REGRESSED, compare
from gpu_trace_advisor.gate.run_record import Run, middle
from gpu_trace_advisor.units import percent

STEPS = 10
Step = Callable[[], object]


# The programs


def train(torch: Any) -> Step:
    """A small multilayer perceptron: the same work every step."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(512, 256), torch.randint(64, (512,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def convolutions(torch: Any) -> Step:
    """A small convolutional network in evaluation."""
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3), torch.nn.AdaptiveAvgPool2d(1)]
    model, images = torch.nn.Sequential(*layers), torch.randn(16, 3, 64, 64)
    return lambda: model(images)


def sentences(torch: Any) -> Step:
    """A transformer layer on batches whose sentences are as long as the longest among them, which differs."""
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)

    def step() -> None:
        longest = max(random.randint(40, 80) for _ in range(16))
        layer(torch.randn(8, longest, 128)).sum().backward()

    return step


def loader(torch: Any) -> Step:
    """Batches made in the process itself, each sample augmented at random, and a small model."""

    class Images(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> Any:
            image = torch.rand(3, 40, 40)
            return torch.roll(image, random.randint(0, 39), 2) if random.random() < 0.5 else image.flip(2)

    batches: Iterator[Any] = iter(torch.utils.data.DataLoader(Images(), batch_size=32, shuffle=True))
    model = torch.nn.Conv2d(3, 8, 3)
    return lambda: model(next(batches)).sum().backward()


def allocations(torch: Any) -> Step:
    """Tensors of random sizes, kept for a while: what the allocator finds differs from step to step."""
    kept: list[Any] = []

    def step() -> None:
        for _ in range(150):
            kept.append(torch.zeros(random.randint(1_000, 400_000)))
            if len(kept) > 60:
                kept.pop(random.randrange(len(kept)))

    return step


def decode(torch: Any) -> Step:
    """Many small operations one after the other: the interpreter and the dispatcher are the time."""
    weights = [torch.randn(96, 96) / 10 for _ in range(600)]

    def step() -> None:
        token = torch.randn(1, 96)
        for weight in weights:
            token = torch.nn.functional.silu(token @ weight) + token

    return step


def unique(torch: Any) -> Step:
    """Work that depends on the data: sorting, and as many rows as there are distinct values."""
    table = torch.randn(5_000, 64)

    def step() -> None:
        keys = torch.unique(torch.randint(0, random.randint(2_000, 5_000), (80_000,)))
        torch.sort(table[keys].sum(1))

    return step


def neighbour(torch: Any) -> Step:
    """As `train`, while another process computes for some tens of ms now and then."""
    process = multiprocessing.get_context("fork").Process(target=_burn, args=(os.getpid(),), daemon=True)
    process.start()
    return train(torch)


def _burn(parent: int) -> None:
    chance, numbers = random.Random(os.getpid()), np.random.default_rng(0).normal(size=(200, 200))
    while os.getppid() == parent:
        until = time.monotonic() + chance.uniform(0.01, 0.08)
        while time.monotonic() < until:
            numbers @ numbers
        time.sleep(chance.uniform(0.01, 0.2))


PROGRAMS: dict[str, Callable[[Any], Step]] = {
    made.__name__: made
    for made in (train, convolutions, sentences, loader, allocations, decode, unique, neighbour)
}  # fmt: skip


# Recording


def one(program: str, path: Path) -> None:
    """One run, recorded, in a process that no other has run in."""
    import gpu_trace_advisor
    import torch

    random.seed()
    torch.seed()
    torch.set_num_threads(1)
    step = PROGRAMS[program](torch)
    trace = path.with_suffix(".trace.json")
    with gpu_trace_advisor.record(trace, steps=STEPS, warmup=3, device="cpu", shapes=False) as steps:
        for _ in steps:
            step()
    (run,) = load_runs(trace, Request())
    trace.unlink()
    path.write_text(json.dumps(run.to_json()), encoding="utf-8")


def record(folder: Path, repeats: int) -> None:
    """Every program in turn, so that what the machine does besides hits all of them."""
    import torch  # noqa: F401  the children have it then

    folder.mkdir(parents=True, exist_ok=True)
    forked = multiprocessing.get_context("fork")
    for number in range(repeats):
        for program in PROGRAMS:
            path = folder / f"{program}-{number:03}.json"
            if not path.exists():
                child = forked.Process(target=one, args=(program, path))
                child.start()
                child.join()


# What comparisons make of them


def slowed(run: Run, by: float) -> Run:
    """The run as it would have been with every step so much longer."""
    lanes = []
    for lane in run.lanes:
        times = tuple(round(ns * by) for ns in lane.periods_ns)
        lanes.append(dataclasses.replace(lane, periods_ns=times, wall_ns=round(lane.wall_ns * by)))
    return dataclasses.replace(run, lanes=tuple(lanes))


def table(folder: Path, draws: int) -> None:
    """Markdown: for each program, its time and spread, false alarms by the number of runs before, and what is found."""
    chance = np.random.default_rng(1)
    print(
        "| program | runs | step ms | spread of runs | false alarms, 1 / 2 / 3 / 5 before | slower by | found, 3 before |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for program in PROGRAMS:
        paths = sorted(folder.glob(f"{program}-*.json"))
        runs = [Run.from_json(json.loads(path.read_text(encoding="utf-8")), path.name) for path in paths]
        if len(runs) < 7:
            continue
        medians = np.array([middle(run.lanes[0].periods_ns) for run in runs], float)
        spread = float(np.ptp(medians) / np.median(medians))
        slower = 3 * spread
        alarms = [percent(_rate(runs, draws, n, 0, chance, (IMPROVED, REGRESSED)), 1) for n in (1, 2, 3, 5)]
        found = _rate(runs, draws, 3, slower, chance, (REGRESSED,))
        print(
            f"| {program} | {len(runs)} | {np.median(medians) / 1e6:.1f} | {percent(spread, 1)} | {' / '.join(alarms)} | "
            f"{percent(slower, 1)} | {percent(found, 1)} |",
            flush=True,
        )


def _rate(
    runs: list[Run], draws: int, before: int, slower: float, chance: np.random.Generator, verdicts: tuple[str, ...]
) -> float:
    """Share of draws in which a later run, made slower, gets one of the verdicts against so many earlier ones."""
    count = 0
    for _ in range(draws):
        *earlier, later = chance.choice(len(runs), before + 1, replace=False).tolist()
        after = slowed(runs[later], 1 + slower) if slower else runs[later]
        count += compare([runs[i] for i in earlier], after).verdict in verdicts
    return count / draws


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("what", choices=("record", "table"))
    options.add_argument("--repeats", type=int, default=40)
    options.add_argument("--draws", type=int, default=2000)
    chosen = options.parse_args()
    if chosen.what == "record":
        record(chosen.folder, chosen.repeats)
    else:
        table(chosen.folder, chosen.draws)


if __name__ == "__main__":
    main()
