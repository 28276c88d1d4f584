"""The answer in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.advice import DeviceAdvice, HostAdvice
from analyzer.trace import Note

SAYS = {
    "kernel-time": "kernels keep the GPU busy",
    "communication": "communication that no compute hides",
    "copies": "copies",
    "dataloader-gaps": "the GPU waits for the data loader",
    "implicit-barriers": "the GPU drains at synchronisations",
    "launch-overhead": "the GPU waits for the host to launch work",
    "host-stalls": "the GPU waits for module loading, allocation or compiling",
    "profiler": "the GPU waits for the profiler",
}
BUSY_ENOUGH = 0.95
FIRST_WORDS = ("unrecorded-graph-nodes", "cut")  # what the trace lacks comes before any number


def verdict(devices: Sequence[DeviceAdvice], host: HostAdvice | None, health: Sequence[Note]) -> str:
    """One sentence: how busy the GPU was and the largest thing to change, or what was not recorded."""
    if not devices:
        span = (host.end_ns - host.start_ns) / 1e6 if host else 0
        return f"No GPU work was recorded in these {span:,.1f} ms; what follows is the host's side alone."
    device = max(devices, key=lambda d: d.wall_ns)
    missing = next((note for note in health if note.code in FIRST_WORDS), None)
    if missing is not None and device.ns_of("device-unknown") > 0.2 * device.wall_ns:
        return f"The trace does not hold all GPU work: {missing.message}."
    busy = f"GPU busy {share(device.busy_ns, device.wall_ns)} of {device.wall_ns / 1e6:,.1f} ms"
    if len(devices) > 1:
        busy = f"{where(device)}: {busy}"
    cause = largest_loss(device)
    if cause is None:
        return f"{busy}: nothing but kernels and copies to speak of."
    category, ns = cause
    per_step = ""
    kept = [step for step in device.steps if step.left_out is None]
    if device.window == "steps" and device.step_ns and len(kept) > 1:
        per_step = f", {ns / len(kept) / 1e6:,.1f} ms of each {device.step_ns / 1e6:,.1f} ms step"
    if category == "unattributed":
        return f"{busy}; {share(ns, device.wall_ns)}{per_step} {not_recorded(device)}."
    if category == "kernel-time":
        return f"{busy}: {SAYS[category]}; what to gain lies inside them."
    return f"{busy}: {SAYS[category]} ({share(ns, device.wall_ns)}{per_step})."


def largest_loss(device: DeviceAdvice) -> tuple[str, int] | None:
    """The category with the most time besides kernels; kernels where they fill the wall."""
    sums: dict[str, int] = {}
    for item in device.attribution:
        sums[item.category] = sums.get(item.category, 0) + item.ns
    kernels = sums.pop("kernel-time", 0)
    if kernels >= BUSY_ENOUGH * device.wall_ns:
        return "kernel-time", kernels
    named = {category: ns for category, ns in sums.items() if category != "unattributed"}
    best = max(named.items(), key=lambda pair: pair[1], default=None)
    unknown = sums.get("unattributed", 0)
    if best is None or unknown > 2 * best[1]:
        return ("unattributed", unknown) if unknown else None
    return best


def not_recorded(device: DeviceAdvice) -> str:
    """What would have to be recorded to name the unattributed time."""
    if device.ns_of("device-unknown") > device.ns_of("host-unknown"):
        return (
            "passes with work submitted and nothing recorded on the GPU: record the whole run of it, warm-up included"
        )
    if not device.operators:
        return (
            "passes with the host doing what was not recorded: record operators (ProfilerActivity.CPU; with nsys add "
            "NVTX or --pytorch=autograd-nvtx)"
        )
    return "passes with the host doing what was not recorded: record Python stacks (with_stack=True) once to see it"


def share(ns: int, wall_ns: int) -> str:
    """A percentage that never rounds a part to all or nothing."""
    if not wall_ns:
        return "0 %"
    value = 100 * ns / wall_ns
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.1f} %"


def where(device: DeviceAdvice) -> str:
    """A device's place: rank, process and ordinal as far as they say something."""
    parts = []
    if device.rank is not None:
        parts.append(f"rank {device.rank}")
    if device.process is not None:
        parts.append(f"process {device.process}")
    parts.append(f"device {device.device}")
    if device.gpu is not None and device.gpu != device.device:
        parts.append(f"(GPU {device.gpu})")
    return " ".join(parts)
