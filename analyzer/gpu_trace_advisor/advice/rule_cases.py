"""Runs the cases of rules: what `advise --test-rules` prints, and what the tests of the built-in rules call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_trace_advisor.advice.ranking import Verdicts, attempted, judge
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.rulekit.drawing import BadDrawing, asked, parse
from gpu_trace_advisor.rulekit.rule import Rule
from gpu_trace_advisor.runtime.guarded import Failed
from gpu_trace_advisor.units import duration, read_size


def view_of(drawing: str) -> DeviceWindow:
    """The first device of a drawing, asked what the drawing asks.

    Raises:
        BadDrawing: the text is no drawing.
    """
    wanted = asked(drawing)
    weights = read_size(wanted["weights"]) if "weights" in wanted else None
    request = Request(phase=wanted.get("phase"), objective=wanted.get("objective"), weights=weights)
    return views(parse(drawing), request)[0][0]


def failures(rule: Rule) -> Iterator[str]:
    """What differs from what the rule's cases say, a line each."""
    if not rule.fires:
        yield "no case in which it fires"
    for kind, cases, wanted in (("fires", rule.fires, True), ("quiet", rule.quiet, False)):
        for number, drawing in enumerate(cases, 1):
            why = f" ({drawing.why.rstrip('.')})" if drawing.why else ""
            try:
                view = view_of(drawing)
                verdicts = judge(view, [rule])
            except (BadDrawing, AdviseError) as error:
                yield f"{kind} {number}{why}: {error}"
                continue
            if verdicts.errors:
                yield f"{kind} {number}{why}: {verdicts.errors[0]}"
            elif bool(verdicts.findings) != wanted:
                yield f"{kind} {number}{why}: {_told(verdicts, view)}"


def _told(verdicts: Verdicts, view: DeviceWindow) -> str:
    if verdicts.findings:
        return f"it fired: {verdicts.findings[0].message}"
    causes = ", ".join(
        f"{cause} {duration(ns)}" for cause, ns in sorted(view.causes.items(), key=lambda c: -c[1]) if ns
    )
    return f"it did not fire: {verdicts.skipped[0].why}; of {duration(view.window.wall_ns)}: {causes}"


def report(rules: Sequence[Rule]) -> tuple[str, bool]:
    """A line for each rule and each case that differs; whether all cases hold."""
    lines, good = [], True
    for rule in rules:
        wrong = list(failures(rule))
        good = good and not wrong
        count = len(rule.fires) + len(rule.quiet)
        lines += [f"{rule.id}: {'failed' if wrong else 'ok'}, {count} cases", *(f"  {line}" for line in wrong)]
    return "".join(f"{line}\n" for line in lines), good


def speaking_of(rules: Sequence[Rule], cause: str) -> list[Rule]:
    """The rules that name time of a cause in one of the cases in which they fire."""
    return [rule for rule in rules if any(cause in _named(rule, drawing) for drawing in rule.fires)]


def _named(rule: Rule, drawing: str) -> set[str]:
    try:
        view = view_of(drawing)
        return attempted(rule, lambda: {cause for claim in rule.check(view) for cause in claim.named})
    except (AdviseError, BadDrawing, Failed):  # --test-rules says what is wrong with somebody's own rule
        return set()
