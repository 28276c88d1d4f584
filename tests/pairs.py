"""How well the replay holds, in two tables: `python -m tests.pairs FOLDER` prints them for the recordings in a folder.

The first is the error of replaying recordings with nothing changed. The second holds what findings said a change would give
against the recording of the program with it. A pair is two recordings of the same program, before and after a change; the
prediction is the measured time of A times what is left of it, as an interval, for a usual step and for the whole window.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gpu_trace_advisor.advice.build import claims_of
from gpu_trace_advisor.advice.ranking import alone, together
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.units import percent


@dataclass(frozen=True)
class Pair:
    """Two recordings of as many steps, and the rules whose change lies between them."""

    before: str
    after: str
    rules: tuple[str, ...]
    what: str
    """The program and the change, for people."""
    usual: str
    """`2-6`: the steps whose median is compared."""


@dataclass(frozen=True)
class Result:
    """ms: what A took, what was predicted for B, what B took."""

    what: str
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
        "resnet50-numworkers0-A-v100.json.gz", "resnet50-numworkers4-A-v100.json.gz", ("dataloader",),
        "ResNet-50 training, V100: four loader workers instead of none", "2-6",
    ),
    Pair(
        "memcpy-pageable-sync-a100-40g.json.gz", "memcpy-pinned-overlap-a100-40g.json.gz", ("h2d-pageable",),
        "copies to an A100: pinned and overlapped instead of pageable", "2-10",
    ),
    Pair(
        "memcpy-pageable-nonblocking-a100-40g.json.gz", "memcpy-pinned-overlap-a100-40g.json.gz", ("h2d-pageable",),
        "the same, from copies that were called non-blocking", "2-10",
    ),
    Pair(
        "cs336-2.7B-eager-fp32-a100-80g.sqlite", "cs336-2.7B-compile-reduce-overhead-a100-80g.sqlite",
        ("cuda-graphs", "fuse-elementwise"), "2.7 B model, A100: compiled with CUDA graphs instead of eager", "2-10",
    ),
)  # fmt: skip


def measure(pair: Pair, folder: Path) -> tuple[Result, Result]:
    """The prediction and what came of it: of a usual step, and of the whole window."""
    a, b = view_of(pair.before, folder), view_of(pair.after, folder)
    rules = {rule.id: rule for rule in find_rules()[0]}
    claims = [claim for name in pair.rules for claim in claims_of(a, rules[name])[0]]
    what = together(a, alone(a, claims))
    left = [1 - ns / what.wall_ns for ns in (what.high_ns, what.low_ns)]
    return (
        _result(f"{pair.what}; a step", usual_ms(a, pair), left, usual_ms(b, pair)),
        _result(f"{pair.what}; the window", a.window.wall_ns / 1e6, left, b.window.wall_ns / 1e6),
    )


def _result(what: str, before: float, left: list[float], after: float) -> Result:
    low, high = (before * share for share in left)
    return Result(what, before, low, high, after)


def view_of(name: str, folder: Path) -> DeviceWindow:
    """The view of a recording's first device, in its default window."""
    return views(read(next(folder.rglob(name))), Request())[0][0]


def usual_ms(view: DeviceWindow, pair: Pair) -> float:
    """The median of the steps that are compared."""
    first, last = map(int, pair.usual.split("-"))
    return float(np.median([step.end_ns - step.start_ns for step in view.steps][first - 1 : last])) / 1e6


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
    for found in (result for pair in PAIRS for result in measure(pair, folder)):
        inside = "" if found.holds else ", outside"
        lines.append(
            f"| {found.what} | {found.before:.1f} | {found.low:.1f}, {found.middle:.1f}, {found.high:.1f} | "
            f"{found.after:.1f} | {percent(found.error, 1, '+')}{inside} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("python -m tests.pairs FOLDER: the folder that holds the recordings")
    print(unchanged(Path(sys.argv[1])), pairs(Path(sys.argv[1])), sep="\n\n")
