"""Make the committed sample traces again: ``python -m traces [NAME…]`` from a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from traces import recipe
from traces.program import whole_graphs
from traces.simulate import simulate
from traces.truth import truths
from traces.write_kineto import OFFSET_NS as kineto_offset
from traces.write_kineto import write_kineto
from traces.write_nsight import MARKER, write_nsight
from traces.write_nsight import OFFSET_NS as nsight_offset

HERE = Path(__file__).parent


def generate(name: str, folder: Path) -> list[Path]:
    """Write the traces of one recipe, each with its truth beside it; what was written."""
    program = simulate(recipe.load(name))
    written = []
    for rank, truth in zip(program.ranks, truths(program), strict=True):
        stem = name if len(program.ranks) == 1 else f"{name}-rank{rank.rank}"
        path = folder / f"{stem}.json.gz"
        write_kineto(program, path, rank.rank)
        about = {"recipe": name, "trace": path.name, "offset_ns": kineto_offset, **truth}
        written += [path, write_truth(folder / f"{stem}.truth.json", about)]
    levels = program.options.get("nsight", "")
    for level, suffix in (("node", "nsys"), ("graph", "nsys-graph")):  # what a graph replay is recorded as
        if level in levels.split(","):
            shown = whole_graphs(program) if level == "graph" else program
            path = folder / f"{name}-{suffix}.sqlite"
            write_nsight(shown, path)
            (truth,) = truths(shown, frameless_host=True)
            about = {"recipe": name, "trace": path.name, "offset_ns": nsight_offset, "step_marker": MARKER, **truth}
            written += [path, write_truth(folder / f"{name}-{suffix}.truth.json", about)]
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
