"""What is advised for every sample trace, kept in golden.json: the findings in order, each with its saving in % of the wall.

`python -m tests.golden` writes the file anew and shows what changed: to be run, and its difference read, when a rule or a
price is meant to change.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.ingest import read

FILE = Path(__file__).with_name("golden.json")
TRACES = Path(__file__).parents[1] / "traces"
SUFFIXES = (".json.gz", ".sqlite")
TOGETHER = {"comm-bound-rank": ("comm-bound-rank-rank0.json.gz", "comm-bound-rank-rank1.json.gz")}
"""Ranks of one run, looked at together as well as each by itself."""


def samples() -> dict[str, tuple[Path, ...]]:
    """What is advised about, by name: each trace of the folder, and the ranks together."""
    alone = {path.name: (path,) for path in sorted(TRACES.iterdir()) if path.name.endswith(SUFFIXES)}
    return alone | {name: tuple(TRACES / file for file in files) for name, files in TOGETHER.items()}


def advised(paths: Sequence[Path]) -> list[str]:
    """The findings of these traces in one line each."""
    return lines(advise_traces([read(path) for path in paths]))


def lines(advice: Advice) -> list[str]:
    """`rank 1: dataloader 25 to 31 %, low`; a finding without a saving has its name alone."""
    walls = {(device.file, device.device): device.wall_ns for device in advice.devices}
    told = []
    for finding in advice.findings:
        line = f"rank {finding.rank}: " if len(advice.devices) > 1 else ""
        line += finding.rule
        if finding.saving_ns is not None:
            low, high = (round(100 * ns / walls[finding.file, finding.device]) for ns in finding.saving_ns)
            line += f" {low} to {high} %"
        told.append(line + ", low" * (finding.confidence == "low"))
    return told


def written(golden: dict[str, list[str]]) -> str:
    """The file's text."""
    return json.dumps(golden, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the file, and show the difference."""
    before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    after = written({name: advised(paths) for name, paths in samples().items()})
    FILE.write_text(after, encoding="utf-8")
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=1):
        print(line)


if __name__ == "__main__":
    main()
