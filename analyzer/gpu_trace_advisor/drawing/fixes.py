"""Before and after: the window replayed with each subset of the first findings' fixes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from gpu_trace_advisor.advice.build import claims_of
from gpu_trace_advisor.advice.ranking import alone, distrust, together
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.drawing.coverage import strip
from gpu_trace_advisor.drawing.model import Coverage, FixedWindow, Fixes
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.replay.sweep import Replay, moved, replay, wall_ns
from gpu_trace_advisor.rulekit.rule import Claim, Finding, Rule
from gpu_trace_advisor.timelines.steps import Step

MOST = 4  # fixes whose subsets are replayed: fifteen of them
REPLAYED = 600_000  # operations of all subsets together, so that a large recording is drawn in seconds


def subsets(view: DeviceWindow, findings: Sequence[Finding], rules: Sequence[Rule]) -> Fixes | None:
    """What the first priced findings give in every combination; None where no saving is shown."""
    if distrust(view):
        return None
    known = {rule.id: rule for rule in rules}
    chosen: list[tuple[Finding, list[Claim]]] = []
    for finding in findings:
        claims, why = claims_of(view, known[finding.rule]) if finding.saving_ns and finding.rule in known else ([], "")
        refused = why or not claims or any(claim.fix and claim.fix.refuses(view.graph) for claim in claims)
        if not refused and all(finding.rule != other.rule for other, _ in chosen):
            chosen.append((finding, claims))
    while (2 ** len(chosen) - 1) * len(view.graph.row) > REPLAYED or len(chosen) > MOST:
        chosen.pop()
    if not chosen:
        return None
    step = usual_step(view)
    before = drawn_step(view.program.unchanged, view, step)
    priced = [alone(view, claims) for _, claims in chosen]
    variants = []
    for count in range(1, len(chosen) + 1):
        for which in combinations(range(len(chosen)), count):
            mine = [one for i in which for one in priced[i]]
            saves = together(view, mine)
            after = drawn_step(replay(_changed(view.graph, [one.fix for one in mine])), view, step)
            variants.append(FixedWindow(which, (saves.low_ns, saves.high_ns), saves.speedup, after))
    return Fixes(
        tuple(finding.rule for finding, _ in chosen), tuple(finding.title for finding, _ in chosen),
        step.name if step else "", view.window.wall_ns, before, tuple(variants),
    )  # fmt: skip


def usual_step(view: DeviceWindow) -> Step | None:
    """The kept step whose length is the median's; None where steps are not marked."""
    kept = view.kept_steps
    if len(kept) < 2 or not view.step_ns:
        return None
    starts = np.array([step.start_ns for step in kept])
    return kept[int(np.argmin(np.abs(np.diff(starts) - view.step_ns)))]


def drawn_step(done: Replay, view: DeviceWindow, step: Step | None) -> Coverage:
    """A step until the next one, or the window, where a replay has moved it."""
    if step is None:
        begin = int(done.operation_start[done.graph.device == view.index].min())
        return strip(
            done, view.index, view.timeline.op_class, begin, begin + max(wall_ns(done, view.window, view.index), 1)
        )
    kept = view.kept_steps
    after = kept[kept.index(step) + 1]
    begin, end = moved(done, step.start_ns, view.index), moved(done, after.start_ns, view.index)
    return strip(done, view.index, view.timeline.op_class, begin, max(end, begin + 1))


def _changed(graph: Graph, fixes: Sequence[Fix]) -> Graph:
    for fix in fixes:
        graph = fix.low(graph)
    return graph
