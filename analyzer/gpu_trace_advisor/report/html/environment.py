"""The templates, the style and the script of the page, and how values are put into them."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from gpu_trace_advisor.advice.verdict import device_label
from gpu_trace_advisor.report.html import charts, figures
from gpu_trace_advisor.report.html.palette import labels, slot_of
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.report.text.terminal import UNITS
from gpu_trace_advisor.report.wording import (
    FORMATS,
    bandwidth,
    by_class,
    decimals,
    moved,
    ms,
    on_path,
    share_of,
    sides_of,
    waits_of,
)
from gpu_trace_advisor.units import duration, percent, share, size

STYLES = ("base.css", "first_screen.css", "tables.css", "timeline.css", "figures.css", "narrow.css", "print.css")
SCRIPTS = (
    "page.js", "tables.js", "copying.js", "bar.js", "fixes.js", "flame.js", "heat.js", "timeline_model.js", "timeline_view.js",
    "timeline_paint.js", "timeline_frame.js", "selection.js", "search.js", "places.js", "links.js", "controls.js", "start.js",
)  # fmt: skip
"""Concatenated in this order: each may use what those before it declare."""


@cache
def read(name: str) -> Markup:
    """A template file as it is; our own, so it is not escaped."""
    return Markup(resources.files("gpu_trace_advisor.templates").joinpath(name).read_text(encoding="utf-8"))


@cache
def style() -> Markup:
    """All styles."""
    return Markup("\n").join(map(read, STYLES))


@cache
def script() -> Markup:
    """All scripts, in one scope of their own."""
    return Markup('"use strict";\n(() => {{\n{}\n}})();\n').format(Markup("\n").join(map(read, SCRIPTS)))


def digest(text: str) -> str:
    """What the page's policy calls an inline style or script."""
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()


def escaped_json(data: Any) -> Markup:
    """JSON that means the same inside a script element, whatever the names in it say."""
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def environment() -> jinja2.Environment:
    """Templates of the package. Every text that is put into one is made shareable, then escaped."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: str(read(name))),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters.update(
        shareable=shareable,
        duration=lambda ns: duration(int(ns)), size=size, count=lambda n: f"{n:,}", share_of=share_of, bandwidth=bandwidth,
        moved=moved, interval=interval, percent=lambda part: percent(part, 1, "+"), n3=lambda x: f"{x:.3g}",
        capitalise=lambda text: text[:1].upper() + text[1:], si=_si, speedup=speedup, colour=slot_of,
        whole=lambda part: percent(part, 1), bytes_axis=size,
    )  # fmt: skip
    made.globals.update(
        share=share, ms=ms, decimals=decimals, device_label=device_label, labels=labels, formats=FORMATS, by_class=by_class,
        sides_of=sides_of, waits_of=waits_of, on_path=on_path, made_of=charts.MADE_OF, charts=charts,
        figures=figures,
    )  # fmt: skip
    return made


def _finalize(value: Any) -> Any:
    """A text made shareable; blanks at its ends stay, they are the template's."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    inside = value.strip(" ")
    lead = len(value) - len(value.lstrip(" ")) if inside else len(value)
    text = UNITS.sub("\\1\u00a0\\2", shareable(inside))  # a number stays with its unit
    return " " * lead + text + " " * (len(value) - lead - len(inside))


def interval(ends: tuple[int, int], form: Callable[[int], str] = duration) -> str:
    """`12.3 to 15.5 ms`, `up to 15.5 ms`; one number where both are alike."""
    low, high = form(ends[0]), form(ends[1])
    if low == high:
        return high
    if not ends[0]:
        return f"up to {high}"
    number, _, unit = low.rpartition(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def speedup(ends: tuple[float, float]) -> str:
    """`1.4× to 1.5×`."""
    low, high = (f"{end:.2f}" if end < 10 else f"{end:.0f}" for end in ends)
    return f"{low}×" if low == high else f"{low}× to {high}×"


def _si(value: float) -> str:
    for unit, one in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= one:
            return f"{value / one:.3g} {unit}"
    return f"{value:.3g} "
