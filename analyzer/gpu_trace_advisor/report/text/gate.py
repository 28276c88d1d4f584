"""Comparisons and budgets as text for people and as annotations for GitHub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.gate.budget import BROKEN, OK, UNKNOWN, Check
from gpu_trace_advisor.gate.compare import TOO_FEW, Change, Comparison, LaneChange, Timing, ms
from gpu_trace_advisor.quantity import shown
from gpu_trace_advisor.report.text.terminal import Page
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import percent

CAUSES_SHOWN = 8
KERNELS_SHOWN = 6
MARKS = {OK: "ok", BROKEN: "BROKEN", UNKNOWN: "UNKNOWN"}


def render_comparison(comparison: Comparison, *, color: bool, width: int) -> str:
    """The verdict, then what changed on the device that changed most."""
    page = Page(width, color)
    page.prose(f"{comparison.verdict}: {clean(comparison.reason)}", style="bold")
    page.lines.append("")
    page.prose(clean(", ".join(comparison.before)), " " * 8, first="Before  ")
    page.prose(clean(comparison.after), " " * 8, first="After   ")
    for note in comparison.notes:
        page.prose(clean(note), " " * 8, first="Note    ")
    if len(comparison.lanes) > 1:
        page.head("DEVICES", "median step, ms")
        page.table([_device_row(lane) for lane in comparison.lanes], ("device", "before", "after", "change"))
    if (lane := most_changed(comparison)) is not None:
        _lane(page, lane)
    return page.text()


def most_changed(comparison: Comparison) -> LaneChange | None:
    """The device whose step changed most; None where none could be compared."""

    def change_ns(lane: LaneChange) -> float:
        return abs(lane.step.after_ns - lane.step.before_ns) if lane.step else 0

    return max(comparison.lanes, key=change_ns, default=None)


def _device_row(lane: LaneChange) -> tuple[str, str, str, str]:
    if lane.step is None:
        return lane.key, "", "", "not compared"
    return lane.key, ms(lane.step.before_ns), ms(lane.step.after_ns), _change(lane.step)


def _change(timing: Timing) -> str:
    return percent((timing.after_ns - timing.before_ns) / timing.before_ns, 1, "+") if timing.before_ns else ""


def _lane(page: Page, lane: LaneChange) -> None:
    unit = "per step" if min(lane.steps) else "in the window"
    if lane.step or lane.gpu:
        page.head("TIMES", f"{clean(lane.key)}, {lane.steps[0]} steps before, {lane.steps[1]} after; ms, medians")
        rows = [
            (label, ms(timing.before_ns), ms(timing.after_ns), _change(timing), _noise(timing))
            for label, timing in (("step", lane.step), ("GPU work of a step", lane.gpu))
            if timing is not None
        ]
        page.table(rows, ("", "before", "after", "change", "noise"))
    causes = [  # another version may have saved causes that this one does not know
        replace(change, name=CAUSES[change.name].label) if change.name in CAUSES else change
        for change in lane.causes[:CAUSES_SHOWN]
    ]
    _changes(page, f"CAUSES  ms {unit}, mean", causes)
    _changes(page, f"KERNELS  ms {unit}, calls", lane.kernels[:KERNELS_SHOWN])
    if lane.counts:
        page.head("COUNTS", f"{unit}, those that differ")
        rows_ = [(c.name, f"{c.before:,.6g}", f"{c.after:,.6g}", f"{c.after - c.before:+,.6g}") for c in lane.counts]
        page.table(rows_, ("", "before", "after", "change"))


def _noise(timing: Timing) -> str:
    return "not known" if timing.noise_ns is None else f"±{ms(timing.noise_ns)}"


def _changes(page: Page, head: str, changes: Sequence[Change]) -> None:
    shown_ = [change for change in changes if change.delta_ns]
    if not shown_:
        return
    title, _, note = head.partition("  ")
    page.head(title, note)
    rows = []
    for change in shown_:
        calls = change.calls
        last = f"{calls[0]:g} → {calls[1]:g}" if calls else "" if change.beyond_noise is not False else "within noise"
        rows.append(
            (clean(change.name), ms(change.before_ns), ms(change.after_ns), f"{change.delta_ns / 1e6:+.3f}", last)
        )
    page.table(rows, ("", "before", "after", "change", ""))


def render_checks(checks: Sequence[Check], source: str, *, color: bool, width: int) -> str:
    """Every limit in a table, then a line for each that is not kept."""
    page = Page(width, color)
    page.head("BUDGET", clean(source))
    rows = []
    for check in checks:
        found = "unknown" if check.found is None else shown(check.found, check.dimension)
        limit = f"{check.sign} {shown(check.limit, check.dimension)}"
        mark = MARKS[check.status] if check.level == "error" or check.status == OK else "warning"
        rows.append((f"{check.name}{' per ' + check.per if check.per else ''}", check.where, found, limit, mark))
    page.table(rows, ("", "where", "found", "limit", ""))
    for check in checks:
        if check.status != OK:
            page.prose(clean(check.line()), "    ", first="  ")
    return page.text()


def github(comparison: Comparison | None, checks: Sequence[Check], file: str) -> str:
    """Workflow commands: an error, warning or notice for each thing to be seen beside the change."""
    lines = []
    if comparison is not None:
        level = "warning" if comparison.verdict == TOO_FEW else "error" if comparison.exit_code else "notice"
        lines.append(_command(level, f"{file}: {comparison.verdict}", comparison.reason))
    for check in checks:
        if check.status != OK:
            level = "error" if check.fails else "warning"
            lines.append(_command(level, f"{file}: budget {check.status}: {check.name}", check.line()))
    if checks and all(check.status == OK for check in checks):
        lines.append(_command("notice", f"{file}: within budget", f"{len(checks)} limits kept"))
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
