"""An Advice in a notebook: its first screen as HTML, and its parts as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.roofline.kernel_table import KernelRow
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import between, duration, share

if TYPE_CHECKING:
    import pandas

    from gpu_trace_advisor.advice.model import Advice, DeviceAdvice

CHANGES = 3
ROWS = 8


def html(advice: Advice) -> str:
    """The verdict, what limits it, where the time went and the first changes. Everything from the recording is escaped; no
    script, no style sheet, nothing that is fetched."""
    from gpu_trace_advisor.advice.verdict import focus, limits  # which reads the model

    parts = [f"<p><b>{_text(advice.verdict)}</b></p>"]
    parts += [f"<p>Not read: {_text(error)}</p>" for error in advice.errors[:CHANGES]]
    parts += [f"<p>Limit: {_text(note.message)}</p>" for note in limits(advice.health)[:CHANGES]]
    if advice.devices:
        device = focus(advice.devices, advice.ranks)
        parts.append(_table(("where the time went", "time", "share", "grade"), _causes(device)))
        changes = [
            (
                f"{one.title} [{one.rule}]",
                between(one.saving_ns) if one.saving_ns else "no saving computed",
                one.grade,
                one.how,
            )
            for one in advice.findings_of(device)[:CHANGES]
        ]
        if changes:
            parts.append(_table(("what to change", "saves", "grade", "do"), changes))
    inside = "".join(parts)
    return f'<div class="tex2jax_ignore mathjax_ignore">{inside}</div>'  # a $ in a name begins no formula


def _causes(device: DeviceAdvice) -> Iterator[tuple[str, str, str, str]]:
    largest = sorted(device.attribution, key=lambda item: -item.ns)[:ROWS]
    for item in largest:
        yield item.label, duration(item.ns), share(item.ns, device.wall_ns), item.grade
    if rest := sum(item.ns for item in device.attribution) - sum(item.ns for item in largest):
        yield "everything else", duration(rest), share(rest, device.wall_ns), ""


def _table(heads: Sequence[str], rows: Any) -> str:
    head = "".join(f"<th>{_text(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: str) -> str:
    return escape(clean(text))


def frame(advice: Advice, what: str) -> pandas.DataFrame:
    """A part of the advice as a table; times in nanoseconds.

    Raises:
        BadUsage: there is no such part.
    """
    import pandas

    if what not in FRAMES:
        raise BadUsage(f"to_pandas({what!r}): expected {', '.join(FRAMES)}")
    columns, rows = FRAMES[what]
    if what == "findings":
        return pandas.DataFrame(list(rows(advice)), columns=list(columns))
    places = [(place, row) for place in advice.devices for row in rows(place)]
    table = [(place.file, place.rank, place.device, *row) for place, row in places]
    return pandas.DataFrame(table, columns=["file", "rank", "device", *columns])


def _findings(advice: Advice) -> Iterator[tuple[Any, ...]]:
    for one in advice.findings:
        low, high = one.saving_ns or (None, None)
        yield (
            one.file, one.rank, one.device, one.rule, one.title, one.ns, low, high, one.grade, one.confidence, one.message,
            one.how,
        )  # fmt: skip


FRAMES: dict[str, tuple[tuple[str, ...], Callable[[Any], Iterator[tuple[Any, ...]]]]] = {
    "findings": (
        ("file", "rank", "device", "rule", "title", "ns", "saving_low_ns", "saving_high_ns", "grade", "confidence", "message",
         "how"),
        _findings,
    ),
    "causes": (
        ("when", "cause", "category", "grade", "side", "detail", "ns"),
        lambda device: ((i.when, i.cause, i.category, i.grade, i.side, i.detail, i.ns) for i in device.attribution),
    ),
    "kernels": (
        tuple(KernelRow.__dataclass_fields__),
        lambda device: (
            tuple(getattr(row, name) for name in KernelRow.__dataclass_fields__)
            for row in (device.inside_kernels.rows if device.inside_kernels else ())
        ),
    ),
    "kernel_names": (
        ("name", "class", "calls", "ns"),
        lambda device: ((k.name, k.kernel_class, k.calls, k.ns) for k in device.kernels_by_name),
    ),
    "operators": (
        ("name", "calls", "kernels", "ns"),
        lambda device: ((o.name, o.calls, o.kernels, o.ns) for o in device.operators),
    ),
    "gaps": (
        ("start_ns", "at_ms", "ns", "closed_by", "causes", "python"),
        lambda device: (
            (g.start_ns, g.at_ms, g.ns, g.closed_by, ", ".join(dict.fromkeys(part.cause for part in g.parts)), g.python)
            for g in device.gaps
        ),
    ),
    "steps": (
        ("name", "start_ns", "end_ns", "gpu_ns", "operations", "left_out"),
        lambda device: ((s.name, s.start_ns, s.end_ns, s.gpu_ns, s.operations, s.left_out) for s in device.steps),
    ),
}  # fmt: skip
"""Part -> its columns, and what gives its rows: of the advice for findings, of each device for the others."""
