"""The answer in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_trace_advisor.advice.model import DeviceAdvice, HostAdvice, WhatIf
from gpu_trace_advisor.analysis.largest_loss import BUSY_ENOUGH, KERNELS, largest_loss
from gpu_trace_advisor.attribution.causes import CATEGORIES, SYSTEM_CALL, WAITING
from gpu_trace_advisor.ranks.model import RankRow, RankSet
from gpu_trace_advisor.trace.model import Note
from gpu_trace_advisor.units import duration, share

SPEAKS_FOR_ITSELF = ("copies", "implicit-barriers", "communication")  # the cause alone names the category
MOSTLY = 0.6  # a cause with this share of its category names it
ALIKE = 0.9  # devices whose walls reach this share of the longest are compared by what they lose
BEFORE_ANYTHING = ("failed-calls", "recorder-errors")
FIRST_WORDS = ("unrecorded-graph-nodes", "cut")  # what the trace lacks comes before any number
LACKING = 0.2  # … when so much of the wall is unexplained
DOUBT = (
    "partial", "failed-call", "failed-calls", "lost-kernels", "unrecorded-graph-nodes", "cut", "empty-window",
    "dropped-event", "quarantined-time", "impossible-duration", "duplicate-ranks", "thinned", "cold",
)  # fmt: skip
"""Codes of notes that a reader has to know before the numbers, the worst first."""


def limits(health: Sequence[Note]) -> list[Note]:
    """Notes that make the answer itself doubtful, the worst first."""
    return sorted((note for note in health if note.code in DOUBT), key=lambda note: DOUBT.index(note.code))


def verdict(
    devices: Sequence[DeviceAdvice], host: HostAdvice | None, run: RankSet | None = None, recordings: int = 1,
    health: Sequence[Note] = (),
) -> str:  # fmt: skip
    """One sentence: how busy the GPU was and the largest thing to change, or what was not recorded. What failed comes
    before it."""
    failed = "".join(f"{note.message.split(';')[0].rstrip('.')}. " for note in health if note.code in BEFORE_ANYTHING)
    if any(note.code == "lone-memset" for note in health) and host and recordings == 1:
        span = duration(host.end_ns - host.start_ns)
        return (
            f"{failed}No GPU work but one memset was recorded in these {span}; what follows is the host's side alone."
        )
    return failed + _verdict(devices, host, run, recordings)


def _verdict(
    devices: Sequence[DeviceAdvice], host: HostAdvice | None, run: RankSet | None, recordings: int
) -> str:  # fmt: skip
    if not devices:
        span = host.end_ns - host.start_ns if host else 0
        if host and recordings > 1:
            return (
                f"No GPU work was recorded in any of {recordings} recordings; what follows is the host's side of {host.file} "
                f"alone, {duration(span)}: look at the others one by one."
            )
        return f"No GPU work was recorded in these {duration(span)}; what follows is the host's side alone."
    device = focus(devices, run)
    missing = next((note for note in device.health if note.code in FIRST_WORDS), None)
    if missing is not None and device.ns_of("device-unknown") > LACKING * device.wall_ns:
        return f"Not all GPU work was recorded: {missing.message.split(';')[0].rstrip('.')}."
    busy = f"GPU busy {share(device.busy_ns, device.wall_ns)} of {duration(device.wall_ns)}"
    if len(devices) > 1:
        late = ", which the other ranks wait for" if run and late_row(device, run) else ""
        busy = f"{device_label(device, devices)}{late}: {busy}"
    loss = largest_loss(device.attribution, device.busy_ns)
    if loss is None:
        return f"{busy}: nothing but kernels and copies to speak of."
    category, ns = loss
    if category == "unattributed":
        return f"{busy}; in {share(ns, device.wall_ns)} {not_recorded(device)}."
    if category == KERNELS:
        most = "nearly all" if device.compute_ns >= BUSY_ENOUGH * device.busy_ns else "most"
        return f"{busy}, {most} of it in kernels: what to gain lies inside them."
    words, ns = called(device, category)
    loss_in_words = f"{words}: {share(ns, device.wall_ns)}{_of_steps(device, ns)}"
    outlier = next((note for note in device.health if note.code == "collective-outlier"), None)
    if category == "communication" and outlier is not None:
        loss_in_words += f", but {outlier.message.split(';')[0].rstrip('.')}"
    return f"{busy}; the largest loss is {loss_in_words}."


def focus(devices: Sequence[DeviceAdvice], run: RankSet | None = None) -> DeviceAdvice:
    """The device to look at first: the rank that the others wait for; else, of those with about the longest wall, the one
    that loses most.

    Communication is no loss here: a rank that waits for a slower one spends the wait in its collectives, and the slower
    one is to be looked at.
    """
    for device in devices:
        if run and late_row(device, run):
            return device
    longest = max(device.wall_ns for device in devices)
    alike = [device for device in devices if device.wall_ns >= ALIKE * longest]
    return max(alike, key=lambda device: device.wall_ns - device.compute_ns - device.communication_ns)


def late_row(device: DeviceAdvice, run: RankSet) -> RankRow | None:
    """The device's row where it is the rank that the others wait for most."""
    if not run.stragglers:
        return None
    row = run.row_of(device.file, device.process, device.device, device.rank)
    return row if row and row.rank == run.slowest else None


def called(device: DeviceAdvice, category: str) -> tuple[str, int]:
    """A category in words, with the one or two causes that make up most of it, and the time that these words stand for."""
    items = [item for item in device.attribution if item.category == category and item.when != "compute"]
    sums: dict[str, int] = {}
    for item in items:
        words = item.phrase
        sums[words] = sums.get(words, 0) + item.ns
    ranked = sorted(sums, key=lambda words: -sums[words])
    if sums[ranked[0]] >= MOSTLY * sum(sums.values()):
        ranked = ranked[:1]
    if len(ranked) > 1 and category == "copies":
        return "copies that no kernel hides", sum(item.ns for item in items if item.when == "copy")
    name, words = CATEGORIES[category].phrase, " and ".join(ranked[:2])
    if len(ranked) == 1 and (len(sums) == 1 or category in SPEAKS_FOR_ITSELF):
        return words, sums[words]
    return f"{name}, mostly {words}", sum(sums.values())


def _of_steps(device: DeviceAdvice, ns: int) -> str:
    """How much that is over how many steps; an average per step would hide the uneven ones."""
    kept = sum(step.left_out is None for step in device.steps)
    if device.window != "steps" or not device.step_ns or kept < 2:
        return ""
    inferred = "inferred " if device.steps_from else ""
    return f" ({duration(ns)} over {kept} {inferred}steps of {duration(device.step_ns)})"


def not_recorded(device: DeviceAdvice) -> str:
    """What would have to be recorded to name the unattributed time; continues "in … % of the time"."""
    if device.ns_of("device-unknown") > device.ns_of("host-unknown"):
        codes = {note.code for note in device.health}
        if "late-start" in codes and not codes.intersection(FIRST_WORDS):
            late = "the GPU began late although it had nothing else to do (a first launch, WSL2, another process on it)"
            if 10 * device.ns_of("host-unknown") < device.ns_of("device-unknown"):
                return late
            return f"{late}, or the host did what was not recorded: {record_host(device)}"
        return f"the GPU waited for what was not recorded: {RECORD_DEVICE}"
    called, waited = (sum(i.ns for i in device.attribution if i.detail == detail) for detail in (SYSTEM_CALL, WAITING))
    if 2 * called > device.ns_of("host-unknown"):
        return f"the host was inside system calls: look at them, and {record_host(device)}"
    if 2 * waited > device.ns_of("host-unknown"):
        return "the host waited for something else (a queue, a lock, a request): see what it waits for"
    return f"the host did what was not recorded: {record_host(device)}"


RECORD_DEVICE = "record from before the first launch until the GPU is done"


def record_host(device: DeviceAdvice) -> str:
    """How to record what the host did."""
    if device.operators:
        return "record Python stacks once (with_stack=True; with nsys --python-sampling=true)"
    if device.process is not None:  # recorded with Nsight Systems
        return "add NVTX ranges to the program, or for PyTorch record with nsys --pytorch=autograd-nvtx"
    return "record operators (ProfilerActivity.CPU)"


def device_label(device: DeviceAdvice | WhatIf, others: Sequence[DeviceAdvice] = ()) -> str:
    """A device's place: rank, process and ordinal as far as they say something, and its file where others are alike."""
    parts = []
    if device.rank is not None:
        parts.append(f"rank {device.rank}")
    if device.process is not None:
        parts.append(f"process {device.process}")
    parts.append(f"device {device.device}")
    if isinstance(device, DeviceAdvice) and device.gpu not in (None, device.device):
        parts.append(f"(GPU {device.gpu})")
    if same_place(device, others):
        parts.append(f"of {device.file}")
    return " ".join(parts)


def same_place(device: DeviceAdvice | WhatIf, others: Sequence[DeviceAdvice]) -> bool:
    """A device of another file has this rank, process and ordinal."""
    place = (device.rank, device.process, device.device)
    return any(other.file != device.file and (other.rank, other.process, other.device) == place for other in others)
