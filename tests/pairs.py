"""How well the replay holds, in two tables: `python -m tests.pairs FOLDER` prints them for the recordings in a folder.

The first is the error of replaying recordings with nothing changed. The second holds what a fix was said to give against
the recording of the program with it. A pair is two recordings of the same program, before and after a change; the
prediction is the measured time of A times what the replay leaves of it, as an interval.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.replay.fixes import FIXES, saving
from gpu_trace_advisor.units import percent


@dataclass(frozen=True)
class Pair:
    """Two recordings, the fix between them, and what is compared."""

    before: str
    after: str
    fix: str
    what: str
    """The program and the change, for people."""
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
    Pair(
        "resnet50-numworkers0-A-v100.json.gz", "resnet50-numworkers4-A-v100.json.gz", "dataloader",
        "ResNet-50 training, V100: four loader workers instead of none", "steps 2-6",
    ),
    Pair(
        "memcpy-pageable-sync-a100-40g.json.gz", "memcpy-pinned-overlap-a100-40g.json.gz", "pinned-memory",
        "copies to an A100: pinned and overlapped instead of pageable", "10 steps",
    ),
    Pair(
        "cs336-2.7B-eager-fp32-a100-80g.sqlite", "cs336-2.7B-compile-reduce-overhead-a100-80g.sqlite", "cuda-graphs",
        "2.7 B model, A100: compiled with CUDA graphs instead of eager", "10 iterations",
    ),
)  # fmt: skip


def measure(pair: Pair, folder: Path) -> Result:
    """The prediction and what came of it."""
    view = view_of(pair.before, folder)
    what = saving(view.graph, [FIXES[pair.fix]], view.window, view.index)
    before, after = time_ms(view, pair), time_ms(view_of(pair.after, folder), pair)
    low, high = (before * (1 - ns / what.wall_ns) for ns in (what.high_ns, what.low_ns))
    return Result(pair, before, low, high, after)


def view_of(name: str, folder: Path) -> DeviceWindow:
    """The view of a recording's first device, in its default window."""
    return views(read(next(folder.rglob(name))), Request())[0][0]


def time_ms(view: DeviceWindow, pair: Pair) -> float:
    """What one step took: the median of those named, else the window by the count."""
    if pair.unit.startswith("steps"):
        first, last = map(int, pair.unit.split()[1].split("-"))
        lengths = [step.end_ns - step.start_ns for step in view.steps]
        return float(np.median(lengths[first - 1 : last])) / 1e6
    return view.window.wall_ns / int(pair.unit.split()[0]) / 1e6


def unchanged(folder: Path) -> str:
    """Markdown: the replays' errors with nothing changed, by recorder."""
    found: dict[str, list[DeviceWindow]] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith((".json.gz", ".sqlite")):
            with suppress(AdviseError):
                for view in views(read(path), Request())[0]:
                    found.setdefault("Nsight Systems" if path.suffix == ".sqlite" else "torch.profiler", []).append(
                        view
                    )
    lines = [
        "| recorder | recordings | windows | median error | largest error | savings refused |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for recorder, mine in found.items():
        error = np.abs([view.trust.error for view in mine])
        files, refused = len({id(view.trace) for view in mine}), sum(not view.trust.enough for view in mine)
        median, largest = (percent(float(part), 2) for part in (np.median(error), error.max()))
        lines.append(f"| {recorder} | {files} | {len(mine)} | {median} | {largest} | {refused} |")
    return "\n".join(lines)


def pairs(folder: Path) -> str:
    """Markdown: each pair's prediction and what came of it."""
    lines = [
        "| change | A ms | predicted B ms: low, middle, high | B ms | error of the middle |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for pair in PAIRS:
        found = measure(pair, folder)
        inside = "" if found.holds else ", outside"
        lines.append(
            f"| {pair.what} | {found.before:.1f} | {found.low:.1f}, {found.middle:.1f}, {found.high:.1f} | "
            f"{found.after:.1f} | {percent(found.error, 1, '+')}{inside} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("python -m tests.pairs FOLDER: the folder that holds the recordings")
    print(unchanged(Path(sys.argv[1])), pairs(Path(sys.argv[1])), sep="\n\n")
