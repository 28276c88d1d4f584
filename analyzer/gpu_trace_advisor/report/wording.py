"""What causes, recorders, counts and times are called in every report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from gpu_trace_advisor.advice.model import DeviceAdvice
from gpu_trace_advisor.analysis.summary import CopyTime, KernelTime, OwnerTime
from gpu_trace_advisor.attribution.causes import CATEGORIES, CAUSES
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.trace.kernel_names import readable
from gpu_trace_advisor.units import count_of, share

SMALL = 0.001  # causes below this share of the wall share a line
FORMATS = {"kineto": "torch.profiler", "nsight": "Nsight Systems"}


def sides_of(device: DeviceAdvice) -> str:
    """Idle time by where the closing operation was: still to be launched, submitted, or launched by nothing known."""
    parts = (
        (device.idle_host_ns, "host-bound"),
        (device.idle_submitted_ns, "waiting on device"),
        (device.idle_unlinked_ns, "with no launch recorded"),
    )
    return ", ".join(f"{share(ns, device.idle_ns)} {what}" for ns, what in parts if ns)


def on_path(cause: str) -> str:
    """A cause on the critical path, where kernels are not held against a roofline."""
    return CATEGORIES["kernel-time"].label if cause == "unmodelled" else CAUSES[cause].label


def short_evidence(name: str) -> str:
    """A host record's name; of a path, the last folders."""
    name = clean(name)
    head, slash, tail = name.rpartition("/")
    if slash and ".py(" in tail:
        name = "/".join([*head.split("/")[-1:], tail])
    return cut(name.split("#")[-1] if "#_" in name else name, 60)


def cut(text: str, width: int) -> str:
    """The text in at most `width` characters; a cut one ends in `…`."""
    return text if len(text) <= width else text[: width - 1] + "…"


def by_class(modules: Sequence[OwnerTime]) -> list[OwnerTime]:
    """Modules of one class together: `Linear_0` and `Linear_1` are `Linear`."""
    merged: dict[str, list[OwnerTime]] = defaultdict(list)
    for module in modules:
        merged[re.sub(r"_\d+$", "", module.name)].append(module)
    found = [
        OwnerTime(name, sum(m.calls for m in same), sum(m.kernels for m in same), sum(m.ns for m in same))
        for name, same in merged.items()
    ]
    return sorted(found, key=lambda module: (-module.ns, module.name))


def variants(kernels: Sequence[KernelTime], width: int) -> list[tuple[str, KernelTime]]:
    """Kernels that differ in template arguments only, together, under a readable name."""
    alike: dict[tuple[str, str], list[KernelTime]] = defaultdict(list)
    for kernel in kernels:
        alike[clean(readable(kernel.name, width)), kernel.kernel_class].append(kernel)
    found = []
    for (name, cls), same in alike.items():
        more = f" ({len(same)} variants)" if len(same) > 1 else ""
        found.append((name + more, KernelTime(name, cls, sum(k.calls for k in same), sum(k.ns for k in same))))
    return sorted(found, key=lambda pair: (-pair[1].ns, pair[0]))


def moved(copy: CopyTime) -> str:
    """Bytes in decimal units, as bandwidth counts them."""
    if copy.bytes is None:
        return "unknown"
    for unit, one in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if copy.bytes >= one:
            return f"{copy.bytes / one:,.1f} {unit}"
    return f"{copy.bytes} B"


def bandwidth(copy: CopyTime) -> str:
    """GB/s, which are bytes/ns."""
    if copy.bytes is None or copy.ns <= 0:
        return "unknown"
    speed = copy.bytes / copy.ns
    return f"{speed:,.1f}" if speed >= 0.1 else "<0.1"


def waits_of(device: DeviceAdvice) -> str:
    """Calls that block the host, counted; continues "Blocking calls:"."""
    text = f"{count_of(device.syncs, 'sync')}, {count_of(device.blocking_copies, 'copy', 'copies')}"
    allocated = f"; {count_of(device.allocations, 'call')} allocated or freed memory" if device.allocations else ""
    return text + allocated


def decimals(whole_ns: int) -> int:
    """How many decimals of a millisecond say something beside this whole."""
    return 1 if whole_ns >= 100_000_000 else 2 if whole_ns >= 10_000_000 else 3


def ms(ns: int, places: int) -> str:
    """Milliseconds for a column; what is there is never 0."""
    if 0 < ns < 10 ** (6 - places) / 2:
        return f"<{10**-places:.{places}f}"
    return f"{ns / 1e6:,.{places}f}"


def share_of(part: float) -> str:
    """A share given as a fraction; several threads may exceed 100 %."""
    return share(round(part * 1_000_000), 1_000_000)


def shown_of(count: int, everything: Sequence[object]) -> str:
    """How a table says that it does not show everything."""
    return f"{count} of {len(everything)}; " if len(everything) > count else ""
