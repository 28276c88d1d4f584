"""What a budget can limit: each name with how its number is found in the JSON form of an advice's device.

Times and counts are per marked step; of the whole window where no steps are marked. Any other number of a device can be
named by its path, such as `replay.error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_trace_advisor.attribution.causes import CATEGORIES, CAUSES
from gpu_trace_advisor.gate.run_record import counts
from gpu_trace_advisor.quantity import NUMBER, SHARE, SIZE, TIME
from gpu_trace_advisor.runtime.classes import dataclass

Device = Mapping[str, Any]
Evidence = Callable[[Device], str]

PARTS = {
    "idle": "idle_ns", "busy": "busy_ns", "compute": "compute_ns", "exposed-communication": "communication_ns",
    "copies": "copy_ns", "idle-host": "idle_host_ns", "idle-submitted": "idle_submitted_ns",
    "idle-unlinked": "idle_unlinked_ns", "communication-total": "communication_total_ns",
}  # fmt: skip
"""Parts of the wall time that a device tells as they are."""

RESTS_ON_KERNELS = ("lost-kernels", "partial", "unrecorded-graph-nodes")
"""Health codes under which idle time and numbers of kernels are not known."""


@dataclass(frozen=True)
class Getter:
    """How one number is found."""

    dimensions: tuple[str, ...]
    """In which it may be limited; a part of the wall as a share or as a time per step."""
    get: Callable[[Device], float | None]
    """In ns, bytes or plain; None where the trace cannot tell."""
    per_step: bool = False
    evidence: Evidence = lambda device: ""
    about: str = ""


def steps_of(device: Device) -> int:
    """Marked steps that the window is made of; 0 when it is made of something else."""
    if device["window"] != "steps" or device.get("steps_from"):
        return 0
    return sum(step["left_out"] is None for step in device["steps"])


def part(key: str) -> Getter:
    """A part of the wall time that the device names."""
    return Getter((SHARE, TIME), lambda device: device.get(key), True, _evidence_of(key))


def caused(names: frozenset[str], field: str) -> Getter:
    """Wall time of a cause or category."""

    def get(device: Device) -> float:
        return float(sum(item["ns"] for item in device["attribution"] if item[field] in names))

    causes = names if field == "cause" else {cause.name for cause in CAUSES.values() if cause.category in names}
    return Getter((SHARE, TIME), get, True, lambda device: gap_with(device, frozenset(causes)))


def counted(name: str) -> Getter:
    """A number of calls or operations."""
    return Getter((NUMBER,), lambda device: counts(device)[name], True, _counted_evidence(name))


def gap_with(device: Device, causes: frozenset[str]) -> str:
    """The gap in which one of these causes lasted longest; else the first copy or kernel."""
    pieces = [(piece["ns"], i, piece) for i, gap in enumerate(device["gaps"]) for piece in gap["parts"]]
    mine = [found for found in pieces if found[2]["cause"] in causes]
    if mine:
        _, i, piece = max(mine, key=lambda found: (found[0], -found[1]))
        return _gap(device, device["gaps"][i], piece)
    if "exposed-copy" in causes and device["copies"]:
        return _copy(device)
    if "exposed-communication" in causes:
        return _kernel(device, ("communication",))
    return _kernel(device) if "unmodelled" in causes else ""


def _gap(device: Device, gap: Mapping[str, Any], piece: Mapping[str, Any]) -> str:
    text = f"gap of {(gap['end_ns'] - gap['start_ns']) / 1e6:,.3f} ms at {gap['at_ms']:,.3f} ms of the trace"
    text += f" before {gap['closed_by']}" if gap["closed_by"] else ""
    why = f"{piece['cause']} {piece['ns'] / 1e6:,.3f} ms" + (f" in {piece['evidence']}" if piece["evidence"] else "")
    return f"{text}: {why}" + (f", {gap['python']}" if gap["python"] else "")


def _longest_gap(device: Device) -> str:
    return next((_gap(device, gap, gap["parts"][0]) for gap in device["gaps"] if gap["parts"]), "")


def _kernel(device: Device, classes: tuple[str, ...] = ()) -> str:
    for kernel in device["kernels_by_name"]:
        if not classes or kernel["class"] in classes:
            return f"{kernel['short']}: {kernel['calls']:,} calls, {kernel['ns'] / 1e6:,.3f} ms"
    return ""


def _most_launched(device: Device) -> str:
    most = max(device["kernels_by_name"], key=lambda kernel: kernel["calls"], default=None)
    return f"most often {most['short']}: {most['calls']:,} calls" if most else ""


def _copy(device: Device) -> str:
    copy = device["copies"][0] if device["copies"] else None
    return f"{copy['kind']}: {copy['calls']:,} copies, {copy['ns'] / 1e6:,.3f} ms" if copy else ""


def _evidence_of(key: str) -> Evidence:
    if key.startswith("idle"):
        return _longest_gap
    if key.startswith("communication"):
        return lambda device: _kernel(device, ("communication",))
    return _copy if key == "copy_ns" else _kernel


def _counted_evidence(name: str) -> Evidence:
    if name in ("kernels", "operations", "launches"):
        return _most_launched
    if name in ("copies", "blocking-copies"):
        return _copy
    causes = frozenset({"host-sync"} if name == "syncs" else {"allocator"})
    return lambda device: gap_with(device, causes)


def _memory(key: str) -> Getter:
    return Getter((SIZE,), lambda device: device["memory"] and device["memory"][key])


def _copied(device: Device) -> float | None:
    sizes = [copy["bytes"] for copy in device["copies"]]
    return None if None in sizes else float(sum(sizes))


GETTERS: dict[str, Getter] = {
    "step": Getter((TIME,), lambda device: device["step_ns"], evidence=_longest_gap),
    "wall": Getter((TIME,), lambda device: device["wall_ns"], evidence=_longest_gap),
    **{cause: caused(frozenset({cause}), "cause") for cause in CAUSES},
    **{category: caused(frozenset({category}), "category") for category in CATEGORIES},
    **{name: part(key) for name, key in PARTS.items()},
    **{
        name: counted(name) for name in ("kernels", "operations", "launches", "syncs", "blocking-copies", "allocations")
    },
    "graph-launches": Getter((NUMBER,), lambda device: device["launches"]["graph_launches"], True),
    "copy-calls": counted("copies"),
    "copied": Getter((SIZE,), _copied, True, _copy),
    "launch-latency-call": Getter((TIME,), lambda device: device["launch_latency_ns"]),
    "peak-allocated": _memory("peak_allocated"),
    "peak-reserved": _memory("peak_reserved"),
}


def paths(value: Any, before: str = "") -> Iterator[tuple[str, float | None]]:
    """Every number in a device's JSON, by its path; lists are left out."""
    for key, inner in value.items():
        path = f"{before}.{key}" if before else str(key)
        if isinstance(inner, Mapping):
            yield from paths(inner, path)
        elif inner is None or (isinstance(inner, (int, float)) and not isinstance(inner, bool)):
            yield path, inner


def by_path(path: str) -> Getter:
    """Any number of the device's JSON."""
    return Getter((NUMBER, SHARE, TIME, SIZE), lambda device: dict(paths(device)).get(path))
