"""Baselines: what earlier runs were, from traces, saved advice or the small files that tests keep in the repository.

    {"baseline": 1, "hardware": {"NVIDIA H100 80GB HBM3": [run, …], "Tesla V100-SXM2-16GB": [run, …]}}

A run is what `gpu_trace_advisor.gate.run_record.Run.to_json` gives: reviewed as text, the newest last.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from pathlib import Path

from gpu_trace_advisor.advice import model
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import BadUsage, UnreadableTrace
from gpu_trace_advisor.gate.comparability import distinct
from gpu_trace_advisor.gate.run_record import Run, run_of
from gpu_trace_advisor.gate.saved import first_violation, load_json
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.runtime.files import write_whole
from gpu_trace_advisor.sanitize import json_text

SCHEMA = 1
ADVICE_SCHEMA = Path(model.__file__).with_name("advice.schema.json")
RUNS_KEPT = 5  # for each hardware: enough to see how much runs differ
ANEW = "delete it and write it anew with pytest --efficiency-update"
SAVED = re.compile(rb'\s*\{\s*"(?P<kind>schema|baseline)"\s*:')
"""How the JSON of this project begins; a trace begins otherwise, or with schemaVersion."""


@dataclass(frozen=True)
class Baseline:
    """Runs of one program by the names of the GPUs they ran on."""

    hardware: dict[str, tuple[Run, ...]] = field(default_factory=dict)

    def with_run(self, run: Run) -> Baseline:
        """One run more on its hardware, a recording that is there already once; of many the oldest goes."""
        kept = distinct((*self.hardware.get(run.hardware, ()), run))[-RUNS_KEPT:]
        return Baseline({**self.hardware, run.hardware: tuple(kept)})

    def write(self, path: Path) -> None:
        """Write it as text that can be reviewed: one number, list or name a line, the same bytes for the same runs."""
        plain = {
            "baseline": SCHEMA,
            "hardware": {name: [run.to_json() for run in runs] for name, runs in sorted(self.hardware.items())},
        }
        text = json_text(plain)
        flat = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadUsage(f"{path.parent}: cannot be made: {error.strerror or error}") from None
        write_whole(path, flat + "\n")

    @classmethod
    def load(cls, path: Path) -> Baseline:
        """Read it back.

        Raises:
            BadUsage: the file cannot be read or is no baseline.
        """
        return cls.of(load_json(path), str(path))

    @classmethod
    def of(cls, plain: object, source: str) -> Baseline:
        """From the JSON of its file; raises as `load`."""
        if (
            not isinstance(plain, dict)
            or plain.get("baseline") != SCHEMA
            or not isinstance(plain.get("hardware"), dict)
            or not all(isinstance(runs, list) for runs in plain["hardware"].values())
        ):
            raise BadUsage(f"{source}: not a baseline of version {SCHEMA}; {ANEW}")
        if not any(plain["hardware"].values()):
            raise BadUsage(f"{source}: a baseline without runs; {ANEW}")
        return cls(
            {
                name: tuple(Run.from_json(run, f"{source}: {' '.join(name.split())}") for run in runs)
                for name, runs in plain["hardware"].items()
            }
        )


def load_runs(path: Path, request: Request) -> list[Run]:
    """The runs that a path stands for: a trace of either format or a folder with the ranks of one run, a saved advice,
    or a baseline with the runs of every hardware.

    Raises:
        UnreadableTrace: it is none of these.
        NothingToAnalyse: a trace with nothing in it to compare.
        BadUsage: a saved advice or baseline of another version.
    """
    kind = _saved(path)
    if kind == "baseline":
        return [run for runs in Baseline.load(path).hardware.values() for run in runs]
    if kind == "schema":
        plain = load_json(path)
        if not isinstance(plain, dict) or plain.get("schema") != 1:
            raise BadUsage(f"{path}: an advice of another version; this one reads schema 1")
        schema = json.loads(ADVICE_SCHEMA.read_text(encoding="utf-8"))
        if wrong := first_violation(plain, schema):
            raise BadUsage(f"{path}: not an advice in JSON: {wrong}")
        return [run_of(plain, str(path))]
    advice = look_at([str(path)], request, jobs=1).advice
    if advice.errors:
        raise UnreadableTrace(advice.errors[0])
    return [run_of(advice.to_json())]


def matching(runs: list[Run], hardware: str) -> list[Run]:
    """The runs on this hardware, or all where there are none."""
    return [run for run in runs if run.hardware == hardware] or runs


def _saved(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            match = SAVED.match(file.read(100))
    except OSError:  # whoever reads it as a trace says so
        return None
    return match["kind"].decode() if match else None
