"""What `--against` and `--budget` add to a run: a comparison, checks, the exit code and one line on why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError, NothingToAnalyse
from gpu_trace_advisor.gate.baseline import load_runs, matching
from gpu_trace_advisor.gate.budget import BROKEN, Check, check, load
from gpu_trace_advisor.gate.compare import Comparison, compare, not_comparable
from gpu_trace_advisor.gate.run_record import Run, run_of
from gpu_trace_advisor.runtime.classes import dataclass


@dataclass(frozen=True)
class Outcome:
    """What the gates found."""

    comparison: Comparison | None = None
    checks: tuple[Check, ...] = ()
    source: str = ""
    """The budget's file."""

    @property
    def exit_code(self) -> int:
        """1 when something got worse or a limit is broken, 2 when it cannot be told, else 0."""
        codes = [0 if self.comparison is None else self.comparison.exit_code]
        codes += [1 if check.status == BROKEN else 2 for check in self.checks if check.fails]
        return 1 if 1 in codes else max(codes)

    @property
    def complaint(self) -> str:
        """Why it is not 0, in one line."""
        found = []
        if self.comparison is not None and self.comparison.exit_code:
            inconclusive = "inconclusive: " if self.comparison.exit_code == 2 else ""
            found.append(f"{inconclusive}{self.comparison.verdict}: {self.comparison.reason}")
        failed = [check for check in self.checks if check.fails]
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            found.append(f"budget {self.source} {failed[0].status}: {failed[0].line()}{more}")
        return "; ".join(found)

    def to_json(self) -> dict[str, Any]:
        """Keys beside those of the advice."""
        plain: dict[str, Any] = {}
        if self.comparison is not None:
            plain["comparison"] = self.comparison.to_json()
        if self.checks:
            plain["budget"] = {"source": self.source, "checks": [check.to_json() for check in self.checks]}
        return plain


def gates(advice: Mapping[str, Any], against: Sequence[Path], budget: Path | None, request: Request) -> Outcome:
    """Hold the JSON form of an advice against earlier runs and a budget.

    Raises:
        AdviseError: an earlier run or the budget cannot be read, or has nothing to compare.
    """
    wanted = load(budget) if budget is not None else None
    checks = tuple(check(advice, wanted)) if wanted is not None else ()
    comparison = None
    if against:
        after = run_of(advice)
        runs = [run for path in against for run in _before(path, request)]
        comparison = compare(matching(runs, after.hardware), after)
    return Outcome(comparison, checks, wanted.source if wanted else "")


def nothing_after(error: AdviseError, against: Sequence[Path]) -> Outcome:
    """The later run holds nothing: that is no improvement.

    Raises:
        AdviseError: the error itself, where nothing is compared or it is another one.
    """
    if not against or not isinstance(error, NothingToAnalyse):
        raise error
    return Outcome(not_comparable(f"after has no GPU kernels ({error})"))


def _before(path: Path, request: Request) -> list[Run]:
    try:
        return load_runs(path, request)
    except NothingToAnalyse as error:
        raise NothingToAnalyse(f"before: {error}") from None
