"""Make the committed sample traces again: ``python -m traces [NAME…]`` from a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from traces import recipe
from traces.simulate import simulate
from traces.truth import truths
from traces.write_kineto import OFFSET_NS, write_kineto

HERE = Path(__file__).parent


def generate(name: str, folder: Path) -> list[Path]:
    """Write the traces of one recipe, each with its truth beside it; what was written."""
    program = simulate(recipe.load(name))
    written = []
    for rank, truth in zip(program.ranks, truths(program), strict=True):
        stem = name if len(program.ranks) == 1 else f"{name}-rank{rank.rank}"
        path = folder / f"{stem}.json.gz"
        write_kineto(program, path, rank.rank)
        written += [
            path,
            write_truth(
                folder / f"{stem}.truth.json", {"recipe": name, "trace": path.name, "offset_ns": OFFSET_NS, **truth}
            ),
        ]
    return written


def write_truth(path: Path, truth: dict[str, object]) -> Path:
    path.write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    return path


def main(names: list[str]) -> None:
    for name in names or recipe.names():
        for path in generate(name, HERE):
            print(f"{path.stat().st_size:8d}  {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
