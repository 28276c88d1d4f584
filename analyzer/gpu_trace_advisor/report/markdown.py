"""The advice as Markdown for a pull request: the verdict, the findings, where the time went; details folded."""

from __future__ import annotations

import re

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.advice.verdict import device_label, focus
from gpu_trace_advisor.gate.compare import Comparison
from gpu_trace_advisor.report.html.charts import bar
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.report.wording import decimals, ms
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.units import between, duration, faster, percent, share

FINDINGS = 8  # in full; the others are named
MARKS = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&$])")
"""What means something in Markdown, `@` (a mention) among them."""


def render(advice: Advice, comparison: Comparison | None = None) -> str:
    """The advice as GitHub-flavoured Markdown; a comparison with an earlier run comes first."""
    lines = [f"**{escaped(advice.verdict)}**", ""]
    if comparison is not None:
        lines = [*_comparison(comparison), *lines]
    if advice.devices:
        device = focus(advice.devices, advice.ranks)
        lines += [f"<sub>{escaped(_about(advice, device))}</sub>", ""]
        lines += _findings(advice, device)
        lines += _partition(device)
    if advice.health or advice.errors:
        parts = [f"- not done: {escaped(error)}" for error in advice.errors]
        parts += [f"- {escaped(note.code.replace('-', ' '))}: {escaped(note.message)}" for note in advice.health]
        lines += ["<details><summary>What limits this</summary>", "", *parts, "", "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    """A text that Markdown leaves as it is."""
    return MARKS.sub(r"\\\1", shareable(text))


def code(text: str) -> str:
    """A name in code, whatever it holds."""
    text = shareable(text).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _comparison(comparison: Comparison) -> list[str]:
    """The verdict, and the times of the devices that can be compared."""
    lines = [f"**{escaped(comparison.verdict.capitalize())}**: {escaped(comparison.reason)}", ""]
    timed = [(lane.key, lane.step) for lane in comparison.lanes if lane.step is not None]
    if timed:
        lines += ["| step, ms | before | after | change |", "| --- | --: | --: | --: |"]
        for key, step in timed:
            change = percent((step.after_ns - step.before_ns) / step.before_ns, 1, "+") if step.before_ns else ""
            before, after = (f"{ns / 1e6:,.3f}" for ns in (step.before_ns, step.after_ns))
            lines.append(f"| {escaped(key)} | {before} | {after} | {change} |")
        lines.append("")
    return lines


def _about(advice: Advice, device: DeviceAdvice) -> str:
    name = "".join(f", {text}" for text in (device.name, device.peaks) if text)
    files = device.file if len(advice.traces) == 1 else f"{device.file} of {len(advice.traces)} traces"
    return f"{files} · {device_label(device)}{name} · {duration(device.wall_ns)}, {device.window_why}"


def _findings(advice: Advice, device: DeviceAdvice) -> list[str]:
    findings = advice.findings_of(device)
    if not findings:
        return ["No rule found anything that is worth 1 % of the wall.", ""]
    lines = ["| | what to change | saves | |", "| --: | --- | --- | --- |"]
    for number, finding in enumerate(findings, start=1):
        saves = (
            f"{between(finding.saving_ns)} ({between(finding.saving_ns, lambda ns: share(ns, device.wall_ns))})"
            if finding.saving_ns
            else "to check"
        )
        marks = finding.grade + (", low confidence" if finding.confidence == "low" else "")
        lines.append(f"| {number} | **{escaped(finding.title)}** | {saves} | {marks} |")
    joint = advice.joint_of(device)
    if joint and sum(f.saving_ns is not None for f in findings) > 1:
        lines += ["", f"Together: {between(joint.saving_ns)}, {faster(joint.speedup)}."]
    lines.append("")
    for number, finding in enumerate(findings[:FINDINGS], start=1):
        lines += _details(number, finding)
    return lines


def _details(number: int, finding: Finding) -> list[str]:
    lines = [
        f"<details><summary>{number}. {escaped(finding.title)}</summary>", "", escaped(finding.message), "",
        f"**Do:** {escaped(finding.how)}", "",
    ]  # fmt: skip
    for item in finding.evidence:
        at = f" at {', '.join(f'{t:,.3f}' for t in item.at_ms)} ms of the trace" if item.at_ms else ""
        line = f", from {code(item.python)}" if item.python and item.python != item.what else ""
        took = f", {duration(item.ns)}" if item.ns is not None else ""
        lines.append(f"- {code(item.what)} × {item.count:,}{took}{at}{line}")
    if finding.formula:
        lines.append(f"- formula: {escaped(finding.formula)}")
    if finding.doubts:
        lines.append(f"- doubtful: {escaped('; '.join(finding.doubts))}")
    if finding.verify:
        lines.append(f"- verify: {escaped(finding.verify)}")
    sources = "; ".join(dict.fromkeys(f"{s.title}, {s.section}" for s in finding.sources))
    if sources:
        lines.append(f"- sources: {escaped(sources)}")
    return [*lines, "", "</details>", ""]


def _partition(device: DeviceAdvice) -> list[str]:
    """The wall time by cause; it adds up."""
    lines = [
        "<details><summary>Where the time went</summary>", "", "| cause | ms | share | |", "| --- | --: | --: | --- |",
        f"| **GPU busy** | {ms(device.busy_ns, decimals(device.wall_ns))} | {share(device.busy_ns, device.wall_ns)} | |",
    ]  # fmt: skip
    idle = False
    for part in sorted(bar(device), key=lambda part: (part.when == "idle", -part.ns)):
        if part.when == "idle" and not idle:
            idle = True
            lines.append(
                f"| **GPU idle** | {ms(device.idle_ns, decimals(device.wall_ns))} | {share(device.idle_ns, device.wall_ns)} | |"
            )
        grade = "" if part.grade == "measured" else part.grade
        lines.append(f"| {escaped(part.label)} | {ms(part.ns, decimals(device.wall_ns))} | {part.share} | {grade} |")
    return [*lines, "", "</details>", ""]
