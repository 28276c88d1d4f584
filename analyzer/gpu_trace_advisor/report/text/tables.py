"""Tables of the terminal view: what the wall time is made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.analysis.summary import MIGRATIONS, CopyTime, Gap, MemoryUse, OwnerTime
from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.report.text.terminal import Page, columns, pad
from gpu_trace_advisor.report.wording import (
    SMALL,
    bandwidth,
    cut,
    decimals,
    moved,
    ms,
    share_of,
    short_evidence,
    shown_of,
    variants,
    waits_of,
)
from gpu_trace_advisor.roofline.kernel_table import KernelRow
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import count_of, duration, share, size


def gaps(page: Page, device: DeviceAdvice, count: int = 3) -> None:
    """The longest stretches without work, what the host did in them, and the line of Python behind it."""
    gaps = [gap for gap in device.gaps if gap.ns > SMALL * device.wall_ns][:count]
    if not gaps:
        return
    page.head("LARGEST GAPS", "and where they are, from the trace's first event")
    lengths = [duration(gap.ns) for gap in gaps]
    size = max(map(columns, lengths))
    for gap, length in zip(gaps, lengths, strict=True):
        page.prose(_gap(gap, device), " " * (size + 4), first=f"  {pad(length, size, right=True)}  ")


def _gap(gap: Gap, device: DeviceAdvice) -> str:
    parts = [part for part in gap.parts if part.ns >= 0.1 * gap.ns][:2]
    did = ", ".join(f"{CAUSES[part.cause].label} {duration(part.ns)}" for part in parts)
    seen = next((short_evidence(part.evidence) for part in parts if part.evidence), "")
    text = f"at {gap.at_ms:,.{decimals(device.wall_ns)}f} ms: {did}"
    text += f"; in {seen}" if seen else ""
    text += f"; then {cut(clean(gap.closed_by), 40)}" if gap.closed_by else ""
    if gap.python and gap.python != next((part.evidence for part in parts if part.evidence), ""):
        text += f"; from {short_evidence(gap.python)}"
    return text


def owners(page: Page, title: str, owners: Sequence[OwnerTime], count: int) -> None:
    """GPU time by what launched it."""
    if not owners:
        return
    whole = sum(owner.ns for owner in owners)
    page.head(title, f"{shown_of(count, owners)}GPU time of what they launch, summed over streams")
    page.table(
        [
            (clean(o.name), f"{o.calls:,}", f"{o.kernels:,}", f"{ms(o.ns, decimals(whole))}", share(o.ns, whole))
            for o in owners[:count]
        ],
        ("name", "calls", "operations", "ms", "share"),
    )


def kernels(page: Page, device: DeviceAdvice, count: int = 7) -> None:
    """The kernels with the most time, and the time by class."""
    kernels = device.kernels_by_name
    if not kernels:
        page.head("KERNELS", "none in the window: the GPU only copied or set memory")
        return
    whole = sum(kernel.ns for kernel in kernels)
    merged = variants(kernels, page.width)
    page.head("KERNELS", f"{shown_of(count, merged)}time summed over streams")
    rows = [
        (name, k.kernel_class, f"{k.calls:,}", ms(k.ns, decimals(whole)), share(k.ns, whole))
        for name, k in merged[:count]
    ]
    page.table(rows, ("name", "class", "calls", "ms", "share"))
    classes: dict[str, int] = defaultdict(int)
    for kernel in kernels:
        classes[kernel.kernel_class] += kernel.ns
    if len(classes) > 1:
        ranked = sorted(classes.items(), key=lambda pair: -pair[1])[:5]
        text = ", ".join(f"{cls} {share(ns, whole)}" for cls, ns in ranked)
        page.prose(f"By class: {text}.", "  ", "dim")
    page.prose("A timeline does not show what happens inside a kernel, such as warps waiting.", "  ", "dim")


WIDE = 116  # columns of a page with room for kernel and calls


def inside_kernels(page: Page, device: DeviceAdvice, count: int = 6) -> None:
    """What the longest kernels reach of two ceilings, and how much of the time is known."""
    inside = device.inside_kernels
    if inside is None:
        return
    rows = inside.rows
    page.head("INSIDE THE KERNELS", f"{shown_of(count, rows)}modelled from recorded shapes")
    if rows:
        whole, wide = sum(row.ns for row in rows), page.width >= WIDE
        heads = [
            "operator and shapes",
            *(("kernel", "calls") if wide else ()),
            "ms",
            "TFLOP/s",
            "TB/s",
            "sheet",
            "reach",
            "above",
        ]
        page.table([_inside(row, decimals(whole), wide) for row in rows[:count]], heads)
        page.prose(
            "Shares of the datasheet's peak and of what can be reached, of compute (c) or memory (m); above: ms above what can "
            "be reached, the most that a better kernel could give; ? not judged (short, beside others, or faster than the "
            "device allows).", "  ", "dim",
        )  # fmt: skip
    text = f"{share(inside.covered_ns, inside.kernel_ns)} of the kernels' time has known work"
    if inside.captured_ns:
        text += f" ({share(inside.captured_ns, inside.kernel_ns)} by --capture)"
    if inside.missing:
        unknown = (f"{clean(m.operator or m.kernel)} {share(m.ns, inside.kernel_ns)}" for m in inside.missing[:3])
        text += f"; the largest unknown: {', '.join(unknown)}"
    if inside.above_ns is not None:
        text += f"; {duration(inside.above_ns)} above what can be reached"
    page.prose(f"{text}.", "  ")
    mfu = f"MFU {share_of(inside.mfu)}" if inside.mfu is not None else "MFU unknown"
    page.prose(f"{mfu}: {clean(inside.mfu_why)}.", "  ")


def _inside(row: KernelRow, places: int, wide: bool) -> list[str]:
    """A row of the table."""
    what = clean(f"{row.operator.removeprefix('aten::')} {row.shape} {row.dtype}".strip())
    letter = row.bound[:1]
    shares = [
        f"{letter} {100 * part:.0f} %" if part is not None else "–" for part in (row.of_datasheet, row.of_reachable)
    ]
    above = "–" if row.above_ns is None else ms(row.above_ns, places)
    if row.doubt:
        shares[1], above = f"{shares[1]}?", "?"
    return [
        cut(what, 60 if wide else 36), *((cut(clean(row.kernel), 30), f"{row.calls:,}") if wide else ()), ms(row.ns, places),
        f"{row.flops_per_s / 1e12:,.1f}", f"{row.bytes_per_s / 1e12:,.2f}", shares[0], shares[1].removeprefix(f"{letter} "),
        above,
    ]  # fmt: skip


def copies(page: Page, copies: Sequence[CopyTime]) -> None:
    """Copies by kind, with the bandwidth they reached."""
    if not copies:
        return
    whole = sum(copy.ns for copy in copies)
    page.head("COPIES", "time summed over streams; GB = 10^9 bytes")
    rows = [
        (clean(copy.kind), f"{copy.calls:,}", ms(copy.ns, decimals(whole)), moved(copy), bandwidth(copy))
        for copy in copies
    ]
    page.table(rows, ("kind", "calls", "ms", "size", "GB/s"))


def launches(page: Page, device: DeviceAdvice) -> None:
    """How the work was submitted, and what the host waited for."""
    page.head("LAUNCHES")
    launches = device.launches
    migrations = sum(copy.calls for copy in device.copies if copy.kind == MIGRATIONS)
    linked = device.operations - launches.operations_without_launch - migrations
    text = f"{count_of(launches.linked, 'call')} launched {count_of(linked, 'operation')}"
    if launches.without_operation:
        text += f"; {launches.without_operation:,} more calls have no operation in the trace"
    if launches.operations_without_launch:
        text += f"; {count_of(launches.operations_without_launch, 'operation')} without a call"
    page.prose(f"{text}.", "  ")
    if launches.graph_launches:
        page.prose(
            f"{launches.graph_launches:,} of them replayed a graph, {launches.graph_operations:,} operations in all.",
            "  ",
        )
    page.prose(f"Blocking calls: {waits_of(device)}.", "  ")
    latency = duration(device.launch_latency_ns) if device.launch_latency_ns else "unknown"
    queued = "unknown" if device.queued_gap_ns is None else duration(device.queued_gap_ns)
    page.prose(f"Medians: launch to start on an idle GPU {latency}, gap in a full queue {queued}.", "  ")


def memory(page: Page, advice: Advice, device: DeviceAdvice | None) -> None:
    """Peaks of the allocator; 1 GiB = 2^30 bytes."""
    uses = [use for use in advice.memory if use.peak_allocated is not None or use.peak_reserved is not None]
    if device is not None and len(advice.devices) > 1:
        uses = [device.memory] if device.memory is not None and device.memory.peak_allocated is not None else []
    if not uses:
        return
    page.head("MEMORY", "of the allocator; GiB = 2^30 bytes")
    for use in uses[:4]:
        page.prose(_use(use), "  ")


def _use(use: MemoryUse) -> str:
    place = "CPU" if use.device < 0 else f"Device {use.device}"
    parts = [f"peak {size(use.peak_allocated)} allocated"]
    if use.peak_reserved:
        parts.append(f"{size(use.peak_reserved)} reserved")
    if use.baseline is not None:
        parts.append(f"{size(use.baseline)} at the start")
    return f"{place}: {', '.join(parts)}."
