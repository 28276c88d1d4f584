"""What `advise` prints by default: one screen, in the order in which a reader asks.

The verdict; what it rests on and what limits it; where the time went; the first changes with what to do; what to run next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.advice.verdict import device_label, focus, limits
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.report.text.findings import left_to_gain
from gpu_trace_advisor.report.text.page import host_times, how_to_record, period_text, what_if
from gpu_trace_advisor.report.text.ranks import lines as rank_lines
from gpu_trace_advisor.report.text.terminal import Page, bar, columns, pad
from gpu_trace_advisor.report.wording import FORMATS, decimals, ms
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import between, duration, faster, percent, share

CHANGES = 3  # shown by default
ROWS = 7  # causes with a row of their own
SMALL = 0.01  # causes below this share of the wall share a row
LIMITS = 3  # caveats shown; -v has all
RANK_LINES = 2
ROWS_BESIDE_RANKS = 4
WIDE = 3  # an interval whose ends are so many times apart is explained


def render(advice: Advice, *, color: bool, width: int, top: int = CHANGES) -> str:
    """The first screen of an advice, at most `width` columns wide: about 40 lines with the first `top` changes."""
    page = Page(width, color)
    page.prose(clean(advice.verdict), style="bold")
    page.lines.append("")
    device = focus(advice.devices, advice.ranks) if advice.devices else None
    page.prose(" · ".join(_recording(advice, device)), "  ", "dim")
    for limit in _limits(advice):
        page.prose(limit, "    ", "warn", first="  ")
    if device is None:
        if advice.host is not None:
            how_to_record(page, advice)
            marked = {step.name for step in advice.host.steps}
            host_times(page, "RANGES", [time for time in advice.host.ranges if time.name not in marked], 5)
            host_times(page, "OPERATORS", advice.host.operators, 5)
        page.lines.append("")
        page.prose("Next: -v shows everything; --html report.html draws it.", "  ", first="")
        return page.text()
    if advice.ranks is not None:
        page.head("RANKS", f"{len(advice.ranks.rows)}; {advice.ranks.matched:,} collectives matched")
        for line in islice(rank_lines(advice.ranks), RANK_LINES):
            page.prose(line, "    ", first="  ")
    what_if(page, advice)
    _where_the_time_went(page, device, advice.devices, ROWS if advice.ranks is None else ROWS_BESIDE_RANKS)
    _changes(page, advice, device, top, facts=advice.ranks is None)
    page.lines.append("")
    page.prose(f"Next: {_next(advice, device)}", "  ", first="")
    return page.text()


def _recording(advice: Advice, device: DeviceAdvice | None) -> Iterator[str]:
    """Recorder, device, phase, steps and window, as far as they are known."""
    if len(advice.traces) > 1:
        yield f"{len(advice.traces)} recordings"
    yield ", ".join(dict.fromkeys(FORMATS.get(trace.format, trace.format) for trace in advice.traces))
    if device is None:
        if advice.host is not None:
            yield f"window {duration(advice.host.end_ns - advice.host.start_ns)}"
        return
    yield clean(device.name) or "device name not recorded"
    if device.peaks:
        yield clean(device.peaks)
    name, why = advice.phase
    yield name if name != "unknown" else f"phase unknown ({clean(why)}; --phase tells it)"
    if steps := period_text(device.steps, device.step_ns):
        yield f"{'inferred ' if device.steps_from else ''}steps: {steps}"
    yield f"window {duration(device.wall_ns)}: {clean(device.window_why)}"
    yield from (clean(note.message) for note in device.health if note.code == "outside-window")


def _limits(advice: Advice) -> Iterator[str]:
    """What was not read, what makes numbers doubtful, and whether savings can be trusted."""
    parts = [f"Not read: {clean(error)}" for error in advice.errors]
    seen: set[str] = set()
    for note in limits(advice.health):
        if note.code not in seen:
            seen.add(note.code)
            parts.append(f"Limit: {clean(note.message)}")
    yield from parts[:LIMITS]
    left = len(parts) - LIMITS + len({note.code for note in advice.health} - seen)
    if len(parts) > LIMITS:
        yield f"and {left} more: -v"
    untrusted = [device for device in advice.devices if not device.replay.trusted]
    if untrusted and len(untrusted) == len(advice.devices):  # where some are trusted, findings of the others say so
        replay = max((device.replay for device in untrusted), key=lambda r: abs(r.error) + r.unexplained)
        yield (
            f"Trust: no savings are shown; the unchanged replay is off by {percent(replay.error, 1, '+')}, and "
            f"{percent(replay.unexplained, 1)} of the wall rests on what was not recorded."
        )


def _where_the_time_went(page: Page, device: DeviceAdvice, devices: Sequence[DeviceAdvice], most: int) -> None:
    place = f" on {clean(device_label(device, devices))}" if len(devices) > 1 else ""
    page.head("WHERE THE TIME WENT", f"{duration(device.wall_ns)}{place}; measured unless marked")
    rows: list[tuple[str, int, str, str]] = []
    for title, ns, style in (("GPU busy", device.busy_ns, "compute"), ("GPU idle", device.idle_ns, "idle")):
        items = [item for item in device.attribution if (item.when == "idle") == (style == "idle")]
        rows.append((title, ns, "", style))
        rows += _causes(items, device.wall_ns, most)
    places = decimals(device.wall_ns)
    number = max(columns(ms(ns, places)) for _, ns, _, _ in rows)
    label = min(max(columns(text) for text, *_ in rows), page.width - number - 15)
    room = page.width - label - number - 15 - max(columns(note) for _, _, note, _ in rows)
    size = min(room, 30) if room >= 8 else 0
    for text, ns, note, style in rows:
        numbers = f" {pad(ms(ns, places), number, right=True)} ms {pad(share(ns, device.wall_ns), 8, right=True)}"
        strong = "" if text.startswith(" ") else "bold"
        drawn = f" {pad(bar(ns / device.wall_ns if device.wall_ns else 0, size), size)}" if size else ""
        page.line((pad(text, label), strong), (numbers, strong), (drawn, style), (f" {note}", "dim"))


def _causes(items: Sequence[TimeSlice], wall: int, most: int) -> list[tuple[str, int, str, str]]:
    """Label, ns, grade and style of the largest causes; the others together."""
    sums: dict[str, tuple[int, set[str], str]] = {}
    for item in items:
        ns, grades, when = sums.get(item.label, (0, set(), item.when))
        sums[item.label] = ns + item.ns, grades | {item.grade}, when
    ranked = sorted(sums.items(), key=lambda pair: -pair[1][0])
    large = [pair for pair in ranked if pair[1][0] >= SMALL * wall][:most] or ranked[:1]
    rows = [(f"  {label}", ns, _grade(grades), when) for label, (ns, grades, when) in large]
    rest = ranked[len(large) :]
    if len(rest) == 1:
        label, (ns, grades, when) = rest[0]
        rows.append((f"  {label}", ns, _grade(grades), when))
    elif rest:
        rows.append((f"  {len(rest)} smaller causes", sum(ns for _, (ns, _, _) in rest), "", "dim"))
    return rows


def _grade(grades: set[str]) -> str:
    return "" if grades == {"measured"} else "modelled" if len(grades) == 1 else "part modelled"


def _changes(page: Page, advice: Advice, device: DeviceAdvice, top: int, *, facts: bool) -> None:
    found = advice.findings_of(device)
    page.head("WHAT TO CHANGE", "each on top of the ones before it" if found else "nothing found")
    if not found:
        page.prose(f"No rule has a change worth 1 % of the wall. {left_to_gain(device)}", "  ")
    reasons: set[str] = set()
    for number, finding in enumerate(found[:top], start=1):
        _change(page, number, finding, device, facts=facts, again=finding.unpriced in reasons)
        reasons.add(finding.unpriced)
    rest = found[top:]
    joint = advice.joint_of(device)
    parts = []
    if joint and sum(finding.saving_ns is not None for finding in found) > 1:
        parts.append(f"Together: saves {_saving(joint.saving_ns, device.wall_ns)}, {faster(joint.speedup)}.")
    if rest:
        parts.append(
            f"{len(rest)} more ({', '.join(finding.rule for finding in rest[:4])}{' …' * (len(rest) > 4)}): -v."
        )
    if parts:
        page.prose(" ".join(parts), "  ")


def _change(page: Page, number: int, finding: Finding, device: DeviceAdvice, *, facts: bool, again: bool) -> None:
    """Title and rule, what it saves, what is so, what to do; why it has no price only where that is not said `again`."""
    page.prose(f"{clean(finding.title)} [{finding.rule}]", "     ", "bold", first=f"  {number}. ")
    doubt = ", low confidence" if finding.confidence == "low" else ""
    if finding.saving_ns and finding.speedup:
        low, high = finding.saving_ns
        saves = f"Saves {_saving(finding.saving_ns, device.wall_ns)} ({finding.grade}{doubt})."
        if finding.assumes and high > WIDE * low:
            saves += f" Wide: {clean(finding.assumes[-1])}."
        page.prose(saves, "     ")
    elif finding.unpriced and not finding.unpriced.startswith("no change"):
        why = "for the same reason" if again else clean(finding.unpriced)
        page.prose(f"No saving computed{doubt}: {why}.", "     ", "dim")
    if facts:
        page.prose(clean(first_sentence(finding.message)), "     ", "dim")
    page.prose(f"Do: {clean(finding.how)}", "     ")


def _saving(saving: tuple[int, int], wall: int) -> str:
    """The middle as a best guess, and the range beside it."""
    low, high = saving
    middle = (low + high) // 2
    guess = f"{share(middle, wall)} ({duration(middle)})"
    return guess if duration(low) == duration(high) else f"about {guess}; range {between(saving)}"


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    head, stop, _ = text.partition(". ")
    return head + "." if stop else head


def _next(advice: Advice, device: DeviceAdvice) -> str:
    """What to run for more."""
    found = advice.findings_of(device)
    parts = ["-v shows everything", "--html report.html draws it"]
    if found:
        parts.append(f"--explain {found[0].rule} says why")
    priced = list(dict.fromkeys(finding.rule for finding in found if finding.saving_ns))
    if priced and not advice.what_if:
        parts.append(f"--what-if {','.join(priced[:3])} replays {'them' if len(priced) > 1 else 'it'}")
    return "; ".join(parts) + "."


def summary(advice: Advice) -> list[str]:
    """Three lines: the verdict, the first change with what to do, and what else there is."""
    device = focus(advice.devices, advice.ranks) if advice.devices else None
    found = advice.findings_of(device) if device else []
    if device is None or not found:
        do = f"Do: {clean(advice.host.to_record)}" if advice.host else "No change is worth 1 % of the wall."
        return [clean(advice.verdict), do, "advise TRACE -v shows everything."]
    first = found[0]
    saves = f" saves {_saving(first.saving_ns, device.wall_ns)} ({first.grade})" if first.saving_ns else ""
    more = f"{len(found) - 1} more: {', '.join(one.rule for one in found[1:4])}; " if len(found) > 1 else ""
    return [
        clean(advice.verdict),
        f"{clean(first.title)} [{first.rule}]{saves}. Do: {clean(first.how)}",
        f"{more}advise TRACE -v shows everything.",
    ]
