"""The whole of an Advice as text (`advise -v`): the verdict, where the time went, then what it is made of."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import numpy as np

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, HostAdvice, StepAdvice, TraceInfo
from gpu_trace_advisor.advice.verdict import (
    FIRST_WORDS,
    RECORD_DEVICE,
    device_label,
    focus,
    record_host,
    same_place,
)
from gpu_trace_advisor.analysis.largest_loss import largest_loss
from gpu_trace_advisor.analysis.summary import HostTime
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.attribution.causes import CATEGORIES
from gpu_trace_advisor.report.text.findings import SHOWN, findings
from gpu_trace_advisor.report.text.ranks import RANKS_SHOWN, ranks
from gpu_trace_advisor.report.text.serving import decode
from gpu_trace_advisor.report.text.tables import copies, gaps, inside_kernels, kernels, launches, memory, owners
from gpu_trace_advisor.report.text.terminal import Page, bar, columns, pad
from gpu_trace_advisor.report.wording import (
    FORMATS,
    SMALL,
    by_class,
    decimals,
    ms,
    on_path,
    share_of,
    shown_of,
    sides_of,
)
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.trace.model import Note
from gpu_trace_advisor.units import between, count_of, duration, faster, share

LABEL = 9  # columns of the labels at the left
NOT_RECORDED = 0.01  # above this share of the wall, how to record the rest is said
WORTH_WAITING = 0.05  # communication below this share of the wall keeps nobody
WAITS_LESS = 0.7  # a rank that communicates less than this part of the others' median comes last to the collectives


def render(advice: Advice, *, color: bool, width: int, top: int | None = None) -> str:
    """The advice as text, at most `width` columns wide; lists with `top` rows instead of as many as suit each."""
    page = Page(width, color)
    page.prose(clean(advice.verdict), style="bold")
    page.lines.append("")
    if advice.devices:
        device = focus(advice.devices, advice.ranks)
        _files(page, advice.traces)
        if len(advice.devices) > 1:
            _devices(page, advice, device)
            if advice.ranks is not None:
                ranks(page, advice.ranks, listed=len(advice.devices) >= len(advice.ranks.rows))
            page.head("DETAIL", "of the device to look at first")
        _device(page, device, advice, top)
        memory(page, advice, device)
    else:
        _files(page, advice.traces)
        if advice.host is not None:
            _host(page, advice.host)
        memory(page, advice, None)
        if advice.host is not None:
            how_to_record(page, advice)
    _caveats(page, advice)
    return page.text()


def _files(page: Page, traces: Sequence[TraceInfo]) -> None:
    """Which recordings, and what made them."""
    names = [clean(trace.name) for trace in traces]
    label = "File" if len(names) == 1 else "Files"
    shown = names if len(names) <= 3 else [names[0], "…", names[-1]]
    count = "" if len(names) <= 3 else f"{len(names)}: "
    _labelled(page, label, count + ", ".join(shown).replace(", …, ", " … "))
    recorders = dict.fromkeys(clean(trace.producer) or FORMATS.get(trace.format, trace.format) for trace in traces)
    events = sum(trace.events for trace in traces)
    _labelled(page, "Recorder", f"{', '.join(recorders)}, {events:,} events")


def _labelled(page: Page, label: str, text: str, style: str = "") -> None:
    page.prose(text, " " * LABEL, style, first=pad(label, LABEL))


def _device(page: Page, device: DeviceAdvice, advice: Advice, top: int | None) -> None:
    """Everything about one device, most important first."""
    _window(page, device, advice.devices)
    what_if(page, advice)
    _partition(page, device, advice.health)
    findings(page, advice, device, top or SHOWN)
    decode(page, advice, device)
    gaps(page, device, top or 3)
    owners(page, "OPERATORS", device.operators, top or 5)
    owners(page, "MODULES", by_class(device.modules), top or 4)
    kernels(page, device, top or 7)
    inside_kernels(page, device, top or 6)
    copies(page, device.copies)
    launches(page, device)


def _window(page: Page, device: DeviceAdvice, devices: Sequence[DeviceAdvice]) -> None:
    name = clean(device.name) or "name not recorded"
    _labelled(
        page,
        "Device",
        f"{clean(device_label(device, devices))}, {name}" + (f"; {clean(device.peaks)}" if device.peaks else ""),
    )
    why = clean(device.window_why)
    if device.window == "gpu" and not device.steps:
        why += "; no steps are marked"
    _labelled(page, "Window", f"{duration(device.wall_ns)}, {why}")
    for step in [step for step in device.steps if step.left_out is not None][:3]:
        page.prose(f"left out {clean(step.name)}: {clean(step.left_out or '')}", " " * LABEL)
    _steps(page, device.steps, device.step_ns, device.steps_from)


def period_text(steps: Sequence[StepAdvice], step_ns: int | None) -> str:
    """The rhythm of the kept steps: how many, their median period, the shortest and longest; empty without steps."""
    kept = [step for step in steps if step.left_out is None]
    if not kept or step_ns is None:
        return ""
    periods = [after.start_ns - before.start_ns for before, after in pairwise(kept)]
    if not periods:
        return f"1, {duration(step_ns)} long"
    return f"{len(kept)}, median {duration(step_ns)}, from {duration(min(periods))} to {duration(max(periods))}"


def _steps(page: Page, steps: Sequence[StepAdvice], step_ns: int | None, inferred_from: str = "") -> None:
    """The rhythm, and how long the GPU works for a step."""
    text = period_text(steps, step_ns)
    if not text:
        return
    if inferred_from:
        text += f"; inferred from {clean(inferred_from)}: none is marked"
    working = [step.gpu_ns for step in steps if step.left_out is None and step.gpu_ns]
    if working:
        text += f"; GPU work of one {duration(round(float(np.median(working))))}"
    _labelled(page, "Steps", text)


def _partition(page: Page, device: DeviceAdvice, health: Sequence[Note]) -> None:
    """The wall time as bars: what the GPU did, and what it waited for when it did nothing."""
    page.head("WHERE THE TIME WENT", f"of {duration(device.wall_ns)}; measured unless marked modelled")
    chart = _Chart(page, device.wall_ns)
    for title, ns, items, style in (
        ("GPU busy", device.busy_ns, [i for i in device.attribution if i.when != "idle"], "compute"),
        ("GPU idle", device.idle_ns, [i for i in device.attribution if i.when == "idle"], "idle"),
    ):
        chart.row(title, ns, style=style, strong=True)
        _groups(chart, items, style)
    chart.draw()
    if device.idle_ns:
        page.prose(f"Idle time: {sides_of(device)}.", "  ", "dim")
    if device.communication_total_ns:
        hidden = device.communication_total_ns - device.communication_ns
        page.prose(
            f"Communication ran for {duration(device.communication_total_ns)}, "
            f"{duration(hidden) if hidden else 'none'} of it behind other work.", "  ", "dim",
        )  # fmt: skip
    if device.critical_path and device.wall_ns:
        path = ", ".join(f"{on_path(cause)} {share(ns, device.wall_ns)}" for cause, ns in device.critical_path[:4])
        page.prose(f"Critical path: {path}.", "  ", "dim")
    _hints(page, device, health)


def what_if(page: Page, advice: Advice) -> None:
    """What the fixes asked for would save together."""
    if not advice.what_if:
        return
    page.head("WHAT IF", "replayed with the fixes together; pessimistic to optimistic")
    for what in advice.what_if:
        place = f"{clean(what.file)}, {device_label(what)}: " if len(advice.what_if) > 1 else ""
        if what.saving_ns is None or what.speedup is None:
            for fix, why in what.refused:
                page.prose(f"{place}{clean(fix)}: saving unknown, {clean(why)}", "    ", first="  ")
            continue
        saves = f"saves {between(what.saving_ns)}, {faster(what.speedup)}"
        page.prose(f"{place}{', '.join(what.fixes)}: {saves}", "    ", first="  ")
        for assumed in what.assumes:
            page.prose(f"assumes {clean(assumed)}", "      ", first="    ")
        for fix, why in what.refused:
            page.prose(f"{clean(fix)} is not priced: {clean(why)}", "      ", first="    ")


def _hints(page: Page, device: DeviceAdvice, health: Sequence[Note]) -> None:
    """How to record what the trace lacks, where that is worth it."""
    if device.ns_of("host-unknown") > NOT_RECORDED * device.wall_ns:
        page.prose(f"To see what the host did: {record_host(device)}.", "  ")
    explained = any(note.code in FIRST_WORDS for note in health)  # a caveat says how, and better
    if not explained and device.ns_of("device-unknown") > NOT_RECORDED * device.wall_ns:
        page.prose(f"To see what the GPU waited for: {RECORD_DEVICE}.", "  ")


@dataclass
class _Chart:
    """Rows of label, ms, share, bar, and a note."""

    page: Page
    wall_ns: int
    rows: list[tuple[str, int, str, str, bool]] = field(default_factory=list)

    def row(self, label: str, ns: int, style: str, note: str = "", *, strong: bool = False) -> None:
        self.rows.append((label, ns, style, note, strong))

    def draw(self) -> None:
        """All rows; the bars take what labels, numbers and notes leave, and go first where there is no room."""
        places = decimals(self.wall_ns)
        number = max(columns(ms(ns, places)) for _, ns, _, _, _ in self.rows)
        room = self.page.width - number - 13  # " ms", the share, and what stands between
        label_size = min(max(columns(label) for label, *_ in self.rows), room)
        room -= label_size
        room -= min(max(columns(note) for _, _, _, note, _ in self.rows) + 2, max(room, 0))
        size_ = 0 if room < 8 else min(room - 2, 40)
        for label, ns, style, note, strong in self.rows:
            numbers = f" {pad(ms(ns, places), number, right=True)} ms {pad(share(ns, self.wall_ns), 8, right=True)}"
            drawn = pad(bar(ns / self.wall_ns if self.wall_ns else 0, size_), size_)
            weight = "bold" if strong else ""
            self.page.line(
                (pad(label, label_size), weight), (numbers, weight),
                (f"  {drawn}" if size_ else "", style), (f"  {note}", "dim"),
            )  # fmt: skip


def _groups(chart: _Chart, items: Sequence[TimeSlice], style: str) -> None:
    """Causes by category, the largest first; what is too small for a line of its own shares one."""
    small = [item for item in items if item.ns < SMALL * chart.wall_ns]
    if len(small) < 3:
        small = []
    groups: dict[str, list[TimeSlice]] = defaultdict(list)
    for item in items:
        if item not in small:
            groups[item.category].append(item)
    for category, members in sorted(groups.items(), key=lambda pair: -_sum(pair[1])):
        causes: dict[str, list[TimeSlice]] = defaultdict(list)
        for item in members:
            causes[item.label].append(item)
        indent = "  "
        if len(causes) > 1:
            chart.row(indent + CATEGORIES[category].label, _sum(members), style)
            indent = "    "
        for label, same in sorted(causes.items(), key=lambda pair: -_sum(pair[1])):
            shown = label.replace("exposed copies ", "exposed ") if len(causes) > 1 else label
            chart.row(indent + shown, _sum(same), same[0].when, _note(same))
    if small:
        chart.row(f"  {len(small)} smaller causes", _sum(small), style)


def _sum(items: Iterable[TimeSlice]) -> int:
    return sum(item.ns for item in items)


def _note(items: Sequence[TimeSlice]) -> str:
    """The side, and the grade where it is not measured."""
    sides = list(dict.fromkeys(item.side for item in items if item.side))
    side = "" if not sides else sides[0] if len(sides) == 1 else "both sides"
    grades = {item.grade for item in items}
    if grades == {"measured"}:
        return side
    grade = next(iter(grades)) if len(grades) == 1 else f"part {'/'.join(sorted(grades - {'measured'}))}"
    return f"{side}, {grade}" if side else grade


def _devices(page: Page, advice: Advice, first: DeviceAdvice) -> None:
    """All devices in one table, and which rank the others wait for."""
    devices = advice.devices
    shown = list(devices)[:RANKS_SHOWN]
    if first not in shown:
        shown[-1] = first
    hidden = len(devices) - len(shown)
    page.head("DEVICES", "shares of each one's own window" + (f"; {hidden} more not shown" if hidden else ""))
    stepped = any(device.window == "steps" and device.step_ns for device in devices)
    rows = [_device_row(device, devices, stepped=stepped) for device in shown]
    heads = ["", "wall", *["step"] * stepped, "busy %", "comm %", "copies %", "idle %", "largest loss"]
    wide = page.width >= 70
    page.table([row if wide else row[:-1] for row in rows], heads if wide else heads[:-1])
    late = any(note.code == "collective-outlier" for note in advice.health)  # who began recording last waits least
    if advice.ranks is not None and advice.ranks.matched:
        return  # the section about the ranks says it
    if not late and (straggler := _straggler(devices)):
        page.prose(straggler, "  ")


def _device_row(device: DeviceAdvice, devices: Sequence[DeviceAdvice], *, stepped: bool) -> list[str]:
    loss = largest_loss(device.attribution, device.busy_ns)
    step = [duration(device.step_ns) if device.step_ns else "–"] if stepped else []
    parts = (device.busy_ns, device.communication_ns, device.copy_ns, device.idle_ns)
    return [
        _place(device, devices), duration(device.wall_ns), *step,
        *(share(ns, device.wall_ns).removesuffix(" %") for ns in parts),
        CATEGORIES[loss[0]].label if loss else "",
    ]  # fmt: skip


def _place(device: DeviceAdvice, devices: Sequence[DeviceAdvice]) -> str:
    """As short as it stays clear: the rank, or the process and the device."""
    ranks = [other.rank for other in devices]
    if device.rank is not None and ranks.count(device.rank) == 1:
        return f"rank {device.rank}"
    place = f"dev {device.device}"
    place = f"pid {device.process} {place}" if device.process is not None else place
    if same_place(device, devices):
        alone = sum(other.file == device.file for other in devices) == 1
        own = clean(_own_part(device.file, [other.file for other in devices]))
        place = own if alone else f"{own} {place}"
    return f"rank {device.rank} {place}" if device.rank is not None else place


def _own_part(file: str, files: Sequence[str]) -> str:
    """What tells a file's name from the others': `…b` of `run-a.json` and `run-b.json`."""
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*files, strict=False)))
    common = re.sub(r"[^\W_]*$", "", file[:alike])
    return ("…" if common else "") + file[len(common) :].split(".")[0]


def _straggler(devices: Sequence[DeviceAdvice]) -> str:
    """Who arrives last at the collectives: it communicates least, since it finds the others waiting."""
    if any(device.communication_total_ns == 0 for device in devices):
        return ""
    last = min(devices, key=lambda device: device.communication_total_ns)
    others = float(np.median([d.communication_total_ns for d in devices if d is not last]))
    if last.communication_total_ns > WAITS_LESS * others or others < WORTH_WAITING * last.wall_ns:
        return ""
    return (
        f"{device_label(last).capitalize()} spends {duration(last.communication_total_ns)} in communication, the others "
        f"{duration(round(others))} (median): it seems to come last, and the others to wait for it."
    )


def _host(page: Page, host: HostAdvice) -> None:
    """A recording without GPU work: what the host did."""
    span = host.end_ns - host.start_ns
    _labelled(page, "Window", f"{duration(span)}, first to last event")
    _steps(page, host.steps, host.step_ns)
    marked = {step.name for step in host.steps}
    for title, times, count in (
        ("RANGES", [time for time in host.ranges if time.name not in marked], 10),
        ("OPERATORS", host.operators, 10),
        ("CALLS", host.calls, 8),
    ):
        host_times(page, title, times, count)


def host_times(page: Page, title: str, times: Sequence[HostTime], count: int) -> None:
    """A table of what host threads did, the longest first."""
    if not times:
        return
    page.head(title, f"{shown_of(count, times)}summed over threads, what they call included")
    whole = max(time.ns for time in times)
    rows = [
        (
            clean(time.name),
            f"{time.calls:,}",
            ms(time.ns, decimals(whole)),
            share_of(time.share),
            duration(time.median_ns),
        )
        for time in times[:count]
    ]
    page.table(rows, ("name", "calls", "ms", "share", "median"))


def how_to_record(page: Page, advice: Advice) -> None:
    """How to record the GPU's work too."""
    page.head("TO RECORD THE GPU")
    page.prose(clean(advice.host.to_record if advice.host else ""), "  ")


def _caveats(page: Page, advice: Advice) -> None:
    """What makes the numbers doubtful, and what could not be read."""
    if not advice.health and not advice.errors:
        return
    page.head("CAVEATS")
    for error in advice.errors:
        page.prose(f"not read: {clean(error)}", "    ", "warn", first="  ")
    alike: dict[str, list[Note]] = defaultdict(list)
    for note in advice.health:
        alike[note.code].append(note)
    for code, notes in alike.items():
        count = sum(note.count for note in notes)
        more = f" (and {count_of(len(notes) - 1, 'note')} like it)" if len(notes) > 1 else ""
        number = f" ({count:,})" if count != 1 else ""
        page.prose(f"{clean(code)}{number}: {clean(notes[0].message)}{more}", "    ", first="  ")
