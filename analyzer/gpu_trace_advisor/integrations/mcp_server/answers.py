"""What the tools answer: text in the words of the report, each number with its unit and grade, short unless asked for more."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.advice.verdict import device_label, focus
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.report.text import first_screen
from gpu_trace_advisor.report.wording import short_evidence
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import between, duration, faster, share

SHORT = 1_950  # tokens; with the last line at most 2,000
LONGEST_LINE = 4_000  # characters: names of kernels may be long
WIDTH = 100
PIECE = re.compile(r"[A-Za-z]+|  +|[^A-Za-z ]+")
BAR = re.compile(" *[█-▏]+ *")


def tokens(text: str) -> int:
    """How many tokens a text has, rather too many: four letters are one, a digit, a sign and a run of blanks each one, and
    what is not ASCII as many as it has bytes. Tokenizers differ, and most of them join more than that."""
    pieces = PIECE.findall(text)
    return sum(
        -(-len(p) // 4) if p.isascii() and p.isalpha() else 1 if p[0] == " " else len(p.encode()) for p in pieces
    )


def fitted(lines: Iterable[str], more: bool) -> str:
    """The lines, as many as an answer may have; `more` lifts the limit."""
    lines = list(lines)
    if more:
        return "\n".join(lines)
    kept, used = list[str](), 0
    for line in lines:
        line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
        used += tokens(line) + 1
        if used > SHORT:
            kept.append(f"… {len(lines) - len(kept)} more lines: ask with more=true")
            break
        kept.append(line)
    return "\n".join(kept)


def device_of(advice: Advice, number: int | None) -> DeviceAdvice:
    """The device asked for, by its place in the list; else the one to look at first.

    Raises:
        BadUsage: there is none.
    """
    if not advice.devices:
        raise BadUsage("no GPU work was recorded; the verdict says what to record")
    if number is None:
        return focus(advice.devices, advice.ranks)
    if not 0 <= number < len(advice.devices):
        raise BadUsage(f"device {number}: there are {len(advice.devices)}, numbered from 0")
    return advice.devices[number]


def verdict(advice: Advice) -> list[str]:
    """The first screen, without its bars: they are for eyes."""
    return [BAR.sub("  ", line).rstrip() for line in first_screen.render(advice, color=False, width=WIDTH).splitlines()]


def devices(advice: Advice) -> list[str]:
    """Each device with its number."""
    return [
        f"{number}: {clean(device_label(device, advice.devices))}, {duration(device.wall_ns)}, busy "
        f"{share(device.busy_ns, device.wall_ns)}"
        for number, device in enumerate(advice.devices)
    ]


def findings(advice: Advice, device: DeviceAdvice) -> list[str]:
    """All findings of a device, numbered, the best first."""
    found = advice.findings_of(device)
    if not found:
        return ["No rule has a change worth 1 % of the wall."]
    lines = [f"{number}. {_finding(one, device)}" for number, one in enumerate(found, 1)]
    if joint := advice.joint_of(device):
        lines.append(f"Together: saves {between(joint.saving_ns)}, {faster(joint.speedup)}.")
    return lines


def _finding(one: Finding, device: DeviceAdvice) -> str:
    saves = "no saving computed"
    if one.saving_ns:
        saves = (
            f"saves {between(one.saving_ns)} of {duration(device.wall_ns)} ({one.grade}, {one.confidence} confidence)"
        )
    return f"{clean(one.title)} [{one.rule}]: {saves}. {clean(one.message)} Do: {clean(one.how)}"


def finding(advice: Advice, device: DeviceAdvice, number: int) -> list[str]:
    """One finding with its evidence, its formula, and what it rests on.

    Raises:
        BadUsage: there is none of this number.
    """
    found = advice.findings_of(device)
    if not 1 <= number <= len(found):
        raise BadUsage(f"finding {number}: there are {len(found)}, numbered from 1")
    one = found[number - 1]
    lines = [_finding(one, device)]
    lines += [f"it names: {part.cause} {duration(part.ns)}" for part in one.named]
    for item in one.evidence:
        at = f", first at {', '.join(f'{ms:,.3f} ms' for ms in item.at_ms)} of the trace" if item.at_ms else ""
        took = f", {duration(item.ns)}" if item.ns is not None else ""
        line = f", from {short_evidence(item.python)}" if item.python else ""
        lines.append(f"event: {clean(item.what)} × {item.count:,}{took}{at}{line}")
    lines += [f"formula: {clean(one.formula)}"] * bool(one.formula)
    lines += [f"assumes: {clean(text)}" for text in one.assumes]
    lines += [f"doubt: {clean(text)}" for text in one.doubts]
    lines += [f"not priced: {clean(one.unpriced)}"] * bool(one.unpriced)
    sources = (f"source: {clean(source.title)} {clean(source.section)}".rstrip() for source in one.sources)
    lines += dict.fromkeys(sources)
    lines += [f"verify: {clean(one.verify)}"] * bool(one.verify)
    return lines


def causes(device: DeviceAdvice) -> list[str]:
    """The wall time by cause; the parts add up to it."""
    lines = [f"wall {duration(device.wall_ns)}: busy {duration(device.busy_ns)}, idle {duration(device.idle_ns)}"]
    for item in sorted(device.attribution, key=lambda item: -item.ns):
        side = f", {item.side}" if item.side else ""
        lines.append(
            f"{item.cause}: {duration(item.ns)}, {share(item.ns, device.wall_ns)} ({item.when}{side}; {item.grade}) {item.label}"
        )
    return lines


def at_least_one(name: str, number: int) -> None:
    """Refuse to list nothing.

    Raises:
        BadUsage: it is none.
    """
    if number < 1:
        raise BadUsage(f"{name}={number}: at least 1")


def kernels(device: DeviceAdvice, pattern: str, sort: str, limit: int) -> list[str]:
    """The kernels by name, those that hold `pattern`; sorted by `time`, `calls` or `name`.

    Raises:
        BadUsage: they cannot be sorted so.
    """
    at_least_one("limit", limit)
    orders = {"time": lambda k: (-k.ns, k.name), "calls": lambda k: (-k.calls, k.name), "name": lambda k: k.name}
    if sort not in orders:
        raise BadUsage(f"sort={sort}: expected {', '.join(orders)}")
    found = [kernel for kernel in device.kernels_by_name if pattern.lower() in kernel.name.lower()]
    whole = sum(kernel.ns for kernel in device.kernels_by_name)
    lines = [f"{len(found)} of {len(device.kernels_by_name)} kernels; time summed over streams, measured"]
    lines += [
        f"{clean(kernel.name)}: {kernel.kernel_class}, {kernel.calls:,} calls, {duration(kernel.ns)}, "
        f"{share(kernel.ns, whole)} of kernel time"
        for kernel in sorted(found, key=orders[sort])[:limit]
    ]
    return lines


def gaps(device: DeviceAdvice, count: int) -> list[str]:
    """The longest stretches without GPU work.

    Raises:
        BadUsage: none are asked for.
    """
    at_least_one("count", count)
    lines = [
        f"{len(device.gaps[:count])} largest gaps, from the trace's first event; idle {duration(device.idle_ns)} in all"
    ]
    for gap in device.gaps[:count]:
        did = ", ".join(f"{part.cause} {duration(part.ns)}" for part in gap.parts[:4])
        seen = next((short_evidence(part.evidence) for part in gap.parts if part.evidence), "")
        line = f"{duration(gap.ns)} at {gap.at_ms:,.3f} ms: {did}"
        line += f"; in {seen}" if seen else ""
        line += f"; then {clean(gap.closed_by)}" if gap.closed_by else ""
        lines.append(line + (f"; from {short_evidence(gap.python)}" if gap.python else ""))
    return lines


def what_if(advice: Advice) -> list[str]:
    """What the fixes asked for would save together."""
    lines = []
    for what in advice.what_if:
        saves = "unknown" if what.saving_ns is None or what.speedup is None else (
            f"saves {between(what.saving_ns)} (replayed, modelled), {faster(what.speedup)}"
        )  # fmt: skip
        lines.append(f"{clean(device_label(what))}: {', '.join(what.fixes) or 'nothing'}: {saves}")
        lines += [f"assumes: {clean(text)}" for text in what.assumes]
        lines += [f"not priced: {clean(fix)}: {clean(why)}" for fix, why in what.refused]
    return lines
