"""The terminal view of a decode: the ladder between this trace and its floor, and what serving costs."""

from __future__ import annotations

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice, said_of
from gpu_trace_advisor.decode.ladder import Ladder, Rung
from gpu_trace_advisor.decode.serving_cost import Choice, Serving
from gpu_trace_advisor.report.text.terminal import Page
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import duration


def decode(page: Page, advice: Advice, device: DeviceAdvice) -> None:
    """Both of one device, where there are any."""
    for ladder in said_of(device, advice.ladders):
        _ladder(page, ladder)
    for panel in said_of(device, advice.serving):
        _serving(page, panel)


def _ladder(page: Page, ladder: Ladder) -> None:
    page.head("DECODE LADDER", "passes a second, and the share of what the bandwidth allows")
    if ladder.floor_ns is None:
        page.prose(f"No floor: {clean(ladder.why)}.", "  ")
    else:
        cache = f" and {_gb(ladder.cache)} of cache" if ladder.cache else ""
        page.prose(
            f"A pass reads {_gb(ladder.weights)} of weights{cache}: at least {duration(ladder.floor_ns)} "
            f"({clean(ladder.why)}).",
            "  ",
        )
    if ladder.devices_needed and ladder.devices_needed > 1:
        page.prose(f"The weights do not fit into one device: {ladder.devices_needed} are needed.", "  ", "warn")
    if ladder.pass_ns is None:
        page.prose(f"The length of a pass is unknown: {clean(ladder.passes_why)}.", "  ")
    else:
        tokens = f", {ladder.tokens_per_s:,.0f} tokens/s at batch {ladder.batch:g}" if ladder.tokens_per_s else ""
        page.prose(f"A pass takes {duration(ladder.pass_ns)} here{tokens}.", "  ")
    page.table(
        [(clean(rung.name), _span(*rung.passes_per_s, "{:,.0f}"), _share(rung), rung.grade) for rung in ladder.rungs],
        ("", "passes/s", "of the floor", ""),
    )
    for source in dict.fromkeys(rung.source for rung in ladder.rungs if rung.grade == "reference"):
        page.prose(f"reference: the shares that others reached with {source}, here of this model's floor.", "  ", "dim")


def _share(rung: Rung) -> str:
    if not rung.share:
        return "unknown"
    low, high = rung.share
    return f"{_span(100 * low, 100 * high, '{:.0f}')} %"


def _span(low: float, high: float, form: str) -> str:
    """`420–700`, or one number where both are written alike."""
    ends = form.format(low), form.format(high)
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def _gb(count: int | None) -> str:
    return f"{(count or 0) / 1e9:.3g} GB"


def _serving(page: Page, panel: Serving) -> None:
    page.head("SERVING", f"price of one device: {panel.price_per_hour:g} an hour" if panel.price_per_hour else "")
    now = [
        ("first token", duration(panel.first_token_ns) if panel.first_token_ns else "unknown", panel.first_token_why),
        ("next token", duration(panel.next_token_ns) if panel.next_token_ns else "unknown", panel.next_token_why),
        ("batch", f"{panel.batch:g}" if panel.batch else "unknown", panel.batch_why),
        ("tokens/s", f"{panel.tokens_per_s:,.0f}" if panel.tokens_per_s else "unknown", "batch over next token"),
    ]
    if panel.request_ns:
        now.append(("whole answer", duration(panel.request_ns), "first token and all the next ones"))
    if panel.requests_per_s:
        now.append(("requests/s", f"{panel.requests_per_s:,.3g}", "batch over whole answer"))
    if panel.price_per_hour:
        price = f"{panel.price_per_million:,.3g}" if panel.price_per_million else "unknown"
        devices = f"{panel.devices} devices" if panel.devices > 1 else "one device"
        now.append(("per million", price, f"price of {devices} over tokens/s"))
    for name, number, why in now:
        page.prose(f"{number}  ({clean(why)})", " " * 16, first=f"  {name:<14}")
    page.table(
        [_choice(choice) for choice in panel.choices], ("modelled", "next token", "tokens/s", "per million", "fits")
    )
    for why in dict.fromkeys(choice.why for choice in panel.choices):
        page.prose(f"{clean(', '.join(c.name for c in panel.choices if c.why == why))}: {why}.", "  ", "dim")


def _choice(choice: Choice) -> tuple[str, str, str, str, str]:
    slow, fast = (duration(ns) for ns in choice.next_token_ns)
    return (
        choice.name,
        slow if slow == fast else f"{fast}–{slow}",
        _span(*choice.tokens_per_s, "{:,.0f}"),
        _span(choice.price_per_million[1], choice.price_per_million[0], "{:,.3g}") if choice.price_per_million else "",
        {True: "yes", False: "no", None: "unknown"}[choice.fits],
    )
