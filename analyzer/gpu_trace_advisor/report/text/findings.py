"""The terminal view of the findings: what to change first, and what it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, said_of
from gpu_trace_advisor.advice.verdict import called, not_recorded
from gpu_trace_advisor.analysis.largest_loss import largest_loss
from gpu_trace_advisor.report.text.terminal import Page
from gpu_trace_advisor.report.wording import cut
from gpu_trace_advisor.rulekit.rule import SKIPPED, Evidence, Finding, Skipped
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import between, faster, share

FEW_KERNELS = 0.05  # of the wall
WIDE = 3  # an interval whose ends are so many times apart is explained
SHOWN = 8  # findings in full; a longer list is read by nobody, and the JSON has them all


def findings(page: Page, advice: Advice, device: DeviceAdvice, count: int = SHOWN) -> None:
    """The findings of one device, ranked, each with its saving, the reason, and what to do."""
    mine = advice.findings_of(device)
    skipped = said_of(device, advice.skipped)
    if not mine and not skipped:
        return
    page.head(
        "WHAT TO CHANGE", "each on top of the ones before it; --explain RULE says more" if mine else "nothing found"
    )
    told: set[str] = set()
    if not mine:
        page.prose(f"No rule has a change worth 1 % of the wall. {left_to_gain(device)}", "  ")
    for number, finding in enumerate(mine[:count], start=1):
        _finding(page, number, finding, device.wall_ns, told)
    if len(mine) > count:
        page.prose(f"and {len(mine) - count} more: {', '.join(f.rule for f in mine[count:])}", "  ", "dim")
    joint = advice.joint_of(device)
    if joint and sum(finding.saving_ns is not None for finding in mine) > 1:
        page.prose(f"Together: {_span(joint.saving_ns, device.wall_ns)}, {faster(joint.speedup)}.", "  ", "bold")
    if skipped:
        silent = len({one.rule for one in skipped})
        words = f"{silent} rule{'s' * (silent > 1)} did not fire ({_reasons(skipped)}); --format json has the reasons."
        page.prose(words, "  ", "dim")


def _finding(page: Page, number: int, finding: Finding, wall: int, told: set[str]) -> None:
    """One finding; reasons that hold for several (`told`) are given once."""
    saves = f"saves {_span(finding.saving_ns, wall)}" if finding.saving_ns else "no saving computed"
    marks = [finding.grade] if finding.saving_ns else []
    if finding.confidence == "low":
        marks.append("low confidence")
    page.prose(
        f"{finding.title}: {saves}" + (f" ({', '.join(marks)})" if marks else ""),
        "     ",
        "bold",
        first=f"  {number}. ",
    )
    page.prose(f"{clean(finding.message)} [{finding.rule}]", "     ")
    page.prose(f"Do: {clean(finding.how)}", "     ")
    if finding.saving_ns and finding.assumes and finding.saving_ns[1] > WIDE * finding.saving_ns[0]:
        page.prose(f"Range: {clean('; '.join(finding.assumes))}.", "     ", "dim")
    if place := _where(finding.evidence):
        page.prose(f"See: {place}", "     ", "dim")
    if finding.unpriced and finding.unpriced not in told and not finding.unpriced.startswith("no change"):
        page.prose(f"Not priced: {finding.unpriced}.", "     ", "dim")
    if doubts := [clean(doubt) for doubt in finding.doubts if doubt not in told]:
        page.prose(f"Doubtful: {'; '.join(doubts)}.", "     ", "dim")
    told.update((finding.unpriced, *finding.doubts))


def left_to_gain(device: DeviceAdvice) -> str:
    """What the time goes to where no rule has anything to say."""
    loss = largest_loss(device.attribution, device.busy_ns)
    if loss is None:
        return "Kernels and copies fill the time."
    category, ns = loss
    if category == "unattributed":
        return f"In {share(ns, device.wall_ns)} {not_recorded(device)}."
    if category == "kernel-time":
        known = device.compute_ns - device.ns_of("unmodelled")
        if not known:
            return "Kernels fill the time: what to gain lies inside them."
        ideal = share(device.ns_of("ideal"), known)
        return (
            "Kernels fill the time: what to gain lies inside them. At the device's peaks those of known work would need "
            f"{ideal} of their time."
        )
    if category == "copies" and device.compute_ns < FEW_KERNELS * device.wall_ns:
        return f"Copies take {share(ns, device.wall_ns)}, and there are hardly any kernels to hide them behind."
    words, ns = called(device, category)
    return f"The largest loss is {words}, {share(ns, device.wall_ns)}."


def _where(evidence: Sequence[Evidence]) -> str:
    """The first events that have a place."""
    parts = []
    for item in [e for e in evidence if e.at_ms][:2]:
        at = f"at {item.at_ms[0]:,.3f} ms of the trace" + (" and later" if item.count > 1 else "")
        line = f", {clean(item.python)}" if item.python and item.python != item.what else ""
        parts.append(f"{cut(clean(item.what), 60)} × {item.count:,} ({at}{line})")
    return "; ".join(parts)


def _span(saving: tuple[int, int], wall: int) -> str:
    """`12.0 % to 15.1 % (12.3 ms to 15.5 ms)`; one number where both are alike."""
    return f"{between(saving, lambda ns: share(ns, wall))} ({between(saving)})"


def _reasons(skipped: Sequence[Skipped]) -> str:
    """How many for what kind of reason."""
    kinds = Counter(SKIPPED[s.code] for s in skipped)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
