"""What a fix was said to give, against the recording of the program with it. `python -m tests.pairs FOLDER` prints a table.

A pair is two recordings of the same program, before and after a change. The prediction is the measured time of A times
what the replay leaves of it, as an interval.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyzer.fixes import FIXES, saving
from analyzer.ingest import read
from analyzer.study import Request, Study, studies


@dataclass(frozen=True)
class Pair:
    """Two recordings, the fix between them, and what is compared."""

    before: str
    after: str
    fix: str
    unit: str
    """`steps 2-6`: the median of their lengths; else so many iterations in the window, `10 steps`."""


@dataclass(frozen=True)
class Result:
    """ms: what A took, what was predicted for B, what B took."""

    pair: Pair
    before: float
    low: float
    high: float
    after: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """Of the middle."""
        return self.middle / self.after - 1

    @property
    def width(self) -> float:
        """Of the interval, as a share of A."""
        return (self.high - self.low) / self.before

    @property
    def holds(self) -> bool:
        """The interval contains B."""
        return self.low <= self.after <= self.high


PAIRS = (
    Pair("resnet50-numworkers0-A-v100.json.gz", "resnet50-numworkers4-A-v100.json.gz", "dataloader", "steps 2-6"),
    Pair("memcpy-pageable-sync-a100-40g.json.gz", "memcpy-pinned-overlap-a100-40g.json.gz", "pinned-memory", "10 steps"),
    Pair(
        "cs336-2.7B-eager-fp32-a100-80g.sqlite", "cs336-2.7B-compile-reduce-overhead-a100-80g.sqlite", "cuda-graphs",
        "10 iterations",
    ),
)  # fmt: skip


def measure(pair: Pair, folder: Path) -> Result:
    """The prediction and what came of it."""
    study = study_of(pair.before, folder)
    what = saving(study.graph, [FIXES[pair.fix]], study.window, study.index)
    before, after = time_ms(study, pair), time_ms(study_of(pair.after, folder), pair)
    low, high = (before * (1 - ns / what.wall_ns) for ns in (what.high_ns, what.low_ns))
    return Result(pair, before, low, high, after)


def study_of(name: str, folder: Path) -> Study:
    """The study of a recording's first device, in its default window."""
    return studies(read(next(folder.rglob(name))), Request())[0][0]


def time_ms(study: Study, pair: Pair) -> float:
    """What one step took: the median of those named, else the window by the count."""
    if pair.unit.startswith("steps"):
        first, last = map(int, pair.unit.split()[1].split("-"))
        lengths = [step.marker_end_ns - step.start_ns for step in study.steps]
        return float(np.median(lengths[first - 1 : last])) / 1e6
    return study.window.wall_ns / int(pair.unit.split()[0]) / 1e6


def table(folder: Path) -> str:
    """Markdown."""
    lines = [
        "| before → after | fix | A ms | predicted ms: low, middle, high | B ms | error of the middle |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for pair in PAIRS:
        found = measure(pair, folder)
        names = " → ".join(name.split(".json")[0].split(".sqlite")[0] for name in (pair.before, pair.after))
        inside = "" if found.holds else ", outside"
        lines.append(
            f"| {names} | {pair.fix} | {found.before:.1f} | {found.low:.1f}, {found.middle:.1f}, {found.high:.1f} | "
            f"{found.after:.1f} | {found.error:+.1%}{inside} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
