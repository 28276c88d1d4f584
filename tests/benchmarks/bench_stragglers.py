"""How often equal ranks are accused, and how often a slow one is found. Run on demand; prints the tables of docs/ranks.md.

    python tests/benchmarks/bench_stragglers.py [--seeds 1000]

Arrivals are drawn here rather than recorded: each rank's work before every collective varies as named, nobody leaves a
collective before all have come, and 1 % of the wall is what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2] / "analyzer"))

from gpu_trace_advisor.ranks.stragglers import Arrivals, late_ones, late_ranks

Work = NDArray[np.float64]
"""[steps, collectives, ranks] ns of work before each collective."""
TRANSFER_NS = 400_000
KERNELS = 8  # before each collective, of
KERNEL_NS = 400_000


def arrivals(work: Work) -> tuple[Arrivals, int]:
    """Everybody's arrivals, and how long all of it takes."""
    steps, collectives, ranks = work.shape
    each = work.reshape(-1, ranks)
    took = each.max(axis=1) + TRANSFER_NS
    begin = np.concatenate([[0], np.cumsum(took)[:-1]])
    start = np.rint(begin[:, None] + each).astype(np.int64)
    end = np.rint(begin + took).astype(np.int64)
    count = len(each)
    rank, instance = np.tile(np.arange(ranks), count), np.repeat(np.arange(count), ranks)
    found = Arrivals(
        rank, instance, start.ravel(), np.repeat(end, ranks), start.ravel(), np.repeat(np.arange(steps), collectives * ranks),
        np.ones(count, np.bool_), np.arange(count) * ranks, np.ones(count, np.bool_),
    )  # fmt: skip
    return found, int(took.sum())


def accused(work: Work) -> set[int]:
    """Ranks that are called late, over steps or in a single one."""
    found, wall = arrivals(work)
    return {rank for late in late_ranks(found, late_ones(found), work.shape[2], wall) for rank in late.ranks}


Random = np.random.Generator
Noise = Callable[[Random], Work]


def kernels(steps: int, ranks: int, spread: float, collectives: int = 2, tail: float = 0.0) -> Noise:
    """Kernels that vary evenly by so much; a share of them takes ten times as long."""

    def drawn(random: Random) -> Work:
        shape = (steps, collectives, ranks, KERNELS)
        ns = KERNEL_NS * random.uniform(1 - spread, 1 + spread, shape)
        return np.asarray((ns * np.where(random.random(shape) < tail, 10, 1)).sum(axis=3))

    return drawn


def once_a_step(
    steps: int, ranks: int, drawn: Callable[[Random, tuple[int, ...]], Work], collectives: int = 2
) -> Noise:
    """What varies comes before a step's first collective."""

    def work(random: Random) -> Work:
        ns = np.full((steps, collectives, ranks), float(KERNELS * KERNEL_NS))
        ns[:, 0] += drawn(random, (steps, ranks))
        return ns

    return work


def exponential(random: Random, shape: tuple[int, ...]) -> Work:
    return random.exponential(500_000, shape)


def lognormal(random: Random, shape: tuple[int, ...]) -> Work:
    return random.lognormal(12, 1.5, shape)


def wandering(random: Random, shape: tuple[int, ...]) -> Work:
    walk: Work = np.cumsum(random.normal(0, 100_000, shape), axis=0)
    return np.asarray(walk - walk.min())


def by_node(random: Random, shape: tuple[int, ...]) -> Work:
    steps, ranks = shape
    nodes: Work = random.exponential(500_000, (steps, -(-ranks // 4)))
    return np.asarray(np.repeat(nodes, 4, axis=1)[:, :ranks])


def lasting(kept: float) -> Callable[[Random, tuple[int, ...]], Work]:
    """Each rank's load keeps so much of what it was in the step before."""

    def drawn(random: Random, shape: tuple[int, ...]) -> Work:
        load = random.normal(0, 200_000, shape)
        for step in range(1, shape[0]):
            load[step] = kept * load[step - 1] + (1 - kept**2) ** 0.5 * load[step]
        return np.asarray(load - load.min())

    return drawn


def pareto(random: Random, shape: tuple[int, ...]) -> Work:
    return np.asarray(200_000 * random.pareto(1.2, shape))


def rare(random: Random, shape: tuple[int, ...]) -> Work:
    """5 ms in one step of twenty, as a collection of garbage takes."""
    return np.asarray(np.where(random.random(shape) < 0.05, 5_000_000, 0) + random.normal(50_000, 5_000, shape))


def nodes_that_wander(random: Random, shape: tuple[int, ...]) -> Work:
    steps, ranks = shape
    walk = np.cumsum(random.normal(0, 150_000, (steps, -(-ranks // 4))), axis=0)
    return np.asarray(np.repeat(walk - walk.min(), 4, axis=1)[:, :ranks] + random.exponential(50_000, shape))


def cauchy(random: Random, shape: tuple[int, ...]) -> Work:
    return np.asarray(np.minimum(np.abs(random.standard_cauchy(shape)) * 100_000, 1e9))


def every_fifth(random: Random, shape: tuple[int, ...]) -> Work:
    """3 ms in every fifth step, on each rank in steps of its own."""
    due = (np.arange(shape[0])[:, None] + random.integers(0, 5, shape[1])) % 5 == 0
    return np.asarray(due * 3_000_000 + random.exponential(50_000, shape))


def trends(random: Random, shape: tuple[int, ...]) -> Work:
    """Up to some hundred microseconds more or less from the first step to the last, on each rank its own."""
    load: Work = np.linspace(-1, 1, shape[0])[:, None] * random.normal(0, 400_000, shape[1]) + random.normal(
        0, 100_000, shape
    )
    return np.asarray(load - load.min())


def by_node_of_8(random: Random, shape: tuple[int, ...]) -> Work:
    nodes: Work = random.exponential(500_000, (shape[0], -(-shape[1] // 8)))
    return np.asarray(np.repeat(nodes, 8, axis=1)[:, : shape[1]] + random.exponential(50_000, shape))


def own_load(steps: int, ranks: int, collectives: int = 14) -> Noise:
    """All kernels of a rank in a step take longer by one factor (15 % apart), as with sequences of its own lengths."""

    def work(random: Random) -> Work:
        factor = random.lognormal(0, 0.15, (steps, 1, ranks))
        return np.asarray(KERNELS * KERNEL_NS * factor * random.uniform(0.99, 1.01, (steps, collectives, ranks)))

    return work


EQUAL: dict[str, Noise] = {
    "8 ranks, 8 steps, kernels ±2 %": kernels(8, 8, 0.02),
    "8 ranks, 8 steps, kernels ±5 %": kernels(8, 8, 0.05),
    "8 ranks, 8 steps, kernels ±2 %, 1 % take ten times as long": kernels(8, 8, 0.02, tail=0.01),
    "8 ranks, 6 steps, kernels ±5 %, 14 collectives": kernels(6, 8, 0.05, 14),
    "8 ranks, 3 steps, kernels ±10 %, 14 collectives": kernels(3, 8, 0.1, 14),
    "8 ranks, 1 step, kernels ±10 %, 14 collectives": kernels(1, 8, 0.1, 14),
    **{
        f"{ranks} ranks, {steps} step{'s' * (steps > 1)}, exponential 0.5 ms a step": once_a_step(
            steps, ranks, exponential
        )
        for ranks, steps in ((2, 8), (4, 8), (8, 8), (8, 3), (8, 1), (16, 5), (64, 8))
    },
    "8 ranks, 10 steps, lognormal": once_a_step(10, 8, lognormal),
    "8 ranks, 20 steps, load that wanders": once_a_step(20, 8, wandering),
    "16 ranks, 10 steps, noise of nodes of 4": once_a_step(10, 16, by_node),
    "16 ranks, 20 steps, nodes of 4 that wander": once_a_step(20, 16, nodes_that_wander),
    **{
        f"{ranks} ranks, {steps} steps, load that lasts": once_a_step(steps, ranks, lasting(0.8))
        for ranks, steps in ((2, 8), (4, 8), (8, 20), (64, 8))
    },
    **{f"{ranks} ranks, 8 steps, Pareto": once_a_step(8, ranks, pareto) for ranks in (2, 8, 64)},
    "8 ranks, 8 steps, 5 ms in one step of twenty": once_a_step(8, 8, rare),
    **{f"{ranks} ranks, 1 step with a load of their own": own_load(1, ranks) for ranks in (2, 4, 8, 64)},
    "8 ranks, 3 steps with loads of their own": own_load(3, 8),
    **{f"{ranks} ranks, 8 steps, Cauchy": once_a_step(8, ranks, cauchy) for ranks in (2, 8, 32)},
    "4 ranks, 20 steps, collected garbage every 5 steps": once_a_step(20, 4, every_fifth),
    "8 ranks, 10 steps, loads that grow or shrink": once_a_step(10, 8, trends),
    "64 ranks, 10 steps, noise of nodes of 8": once_a_step(10, 64, by_node_of_8),
}


BEYOND: dict[str, Noise] = {
    **{
        f"{ranks} ranks, 1 step, kernels ±2 %, 1 % take ten times as long": kernels(1, ranks, 0.02, 14, 0.01)
        for ranks in (2, 4, 8, 16)
    },
    **{
        f"{ranks} ranks, 8 steps, load of which 0.95 is left a step later": once_a_step(8, ranks, lasting(0.95))
        for ranks in (2, 4, 8)
    },
}
"""Where so few steps do not tell."""


def slow(noise: Noise, share: float, ranks: int = 1) -> Noise:
    """The last ranks work longer by a share of the wall, before each step's first collective."""

    def work(random: Random) -> Work:
        ns = noise(random)
        wall = ns.max(axis=2).sum(axis=1).mean() + TRANSFER_NS * ns.shape[1]
        ns[:, 0, -ranks:] += share * wall
        return ns

    return work


SLOW: dict[str, tuple[Noise, int]] = {
    f"{ranks} ranks, 8 steps, {late} of them 3 % of the wall slower, kernels ±2 %": (
        slow(kernels(8, ranks, 0.02), 0.03, late),
        late,
    )
    for ranks, late in ((2, 1), (4, 1), (8, 1), (8, 2), (16, 1), (64, 1))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    seeds = parser.parse_args().seeds
    for what, noises in (("equal ranks", EQUAL), ("equal ranks beyond what it can tell", BEYOND)):
        print(f"| {what}, {seeds:,} runs each | accused |\n| --- | --- |")
        for name, noise in noises.items():
            wrong = sum(bool(accused(noise(np.random.default_rng(seed)))) for seed in range(seeds))
            print(f"| {name} | {100 * wrong / seeds:.1f} % |", flush=True)
        print()
    print(f"| a slow rank, {seeds:,} runs each | found, nobody else |\n| --- | --- |")
    for name, (noise, late) in SLOW.items():
        right = 0
        for seed in range(seeds):
            work = noise(np.random.default_rng(seed))
            right += accused(work) == set(range(work.shape[2] - late, work.shape[2]))
        print(f"| {name} | {100 * right / seeds:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
