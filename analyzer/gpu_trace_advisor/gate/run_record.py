"""A Run: what of one recording's advice is worth keeping to compare later ones with; and its JSON form in baselines.

It is made from the JSON form of an Advice, so that a saved one serves as well as a trace. Times are nanoseconds, numbers
per window unless they say per step. Kernels go by their readable names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from statistics import median
from typing import Any

from gpu_trace_advisor.analysis.summary import MATRIX_CLASSES
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.gate.saved import decoded
from gpu_trace_advisor.runtime.classes import dataclass

FEWEST_STEPS = 5  # the fewest that times are compared of
SLOW_START = 1.1  # the first of more steps, longer than this times the median of the others, is left out of times
KERNELS_KEPT = 40  # by time, in a baseline


@dataclass(frozen=True)
class DeviceRun:
    """One device in a run; without GPU work the host alone, as device -1."""

    key: str
    """`rank 0 process 0 device 1`: what matches between runs. The process is a position, not an id."""
    name: str
    window: str
    steps: int
    """Kept steps that the window consists of; 0 when it is made of something else."""
    wall_ns: int
    periods_ns: tuple[int, ...]
    """Start-to-start times of settled steps, in order."""
    gpu_ns: tuple[int, ...]
    """GPU time of each settled step."""
    causes: dict[str, int]
    """Wall time of the window by cause; adds up to `wall_ns`."""
    kernels: dict[str, tuple[int, int]]
    """Calls and ns in the window by readable name."""
    counts: dict[str, int]
    """Operations in the window: kernels, launches, syncs …"""
    matrix_kernels: int | None
    """Matrix products, convolutions and attention; None where whole graphs hide them."""
    identity: tuple[int, ...] = ()
    """Times of the recording's clock that no other recording shares."""
    flops: float | None = None
    """Of the window's kernels, as far as recorded shapes tell; None where they do not."""
    flops_kernels: int | None = None
    """Of how many of the matrix kernels these FLOPs are; None where nothing is known."""
    step_counts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """`counts` of each kept step; empty where the advice or baseline is too old to hold them."""

    @property
    def units(self) -> int:
        """What window totals are divided by: the steps, or the one window."""
        return self.steps or 1


@dataclass(frozen=True)
class Run:
    """One recording."""

    name: str
    """File name."""
    lanes: tuple[DeviceRun, ...]
    options: tuple[str, ...]
    """Profiler options that cost host time."""
    health: dict[str, str] = field(default_factory=dict)
    """Codes that forbid or qualify comparisons, with their messages."""
    world: int | None = None
    """Ranks of the job, recorded or not; None where no recording says."""
    producers: tuple[str, ...] = ()
    """Profilers and their versions."""

    @property
    def hardware(self) -> str:
        """Names of the distinct GPUs, or `unknown`, or `cpu` when nothing ran on one."""
        if self.lanes and all(lane.key == HOST for lane in self.lanes):
            return "cpu"
        return ", ".join(sorted({lane.name for lane in self.lanes if lane.name})) or "unknown"

    def to_json(self) -> dict[str, Any]:
        """For a baseline file: kernels by time, the longest ones only."""
        plain = dataclasses.asdict(self)
        for lane in plain["lanes"]:
            longest = sorted(lane["kernels"].items(), key=lambda item: -item[1][1])[:KERNELS_KEPT]
            lane["kernels"] = {name: list(pair) for name, pair in longest}
            for key in ("periods_ns", "gpu_ns", "identity"):
                lane[key] = list(lane[key])
            lane["step_counts"] = {name: list(each) for name, each in lane["step_counts"].items()}
        plain["options"], plain["producers"] = list(self.options), list(self.producers)
        plain["lanes"] = list(plain["lanes"])
        return plain

    @classmethod
    def from_json(cls, plain: object, source: str) -> Run:
        """Read back what `to_json` wrote.

        Raises:
            BadUsage: it is not that.
        """
        run = decoded(plain, cls, f"{source}: not a run of a baseline")
        for lane in run.lanes:
            if min(lane.steps, lane.wall_ns, *lane.periods_ns, *lane.gpu_ns, *lane.counts.values()) < 0:
                raise BadUsage(f"{source}: not a run of a baseline: {lane.key}: a length or number below zero")
        return run


HOST = "host"
KEPT_CODES = ("cold", "partial", "cut", "lost-kernels", "unrecorded-graph-nodes")


def run_of(advice: Mapping[str, Any], source: str = "") -> Run:
    """The Run of an Advice's JSON form.

    Raises:
        BadUsage: it is no such JSON.
    """
    try:
        traces = advice["traces"]
        lanes = _lanes(advice["devices"]) if advice["devices"] else _host_lanes(advice.get("host"))
        options = sorted({option for trace in traces for option in trace.get("options", ())})
        health = {note["code"]: note["message"] for note in advice["health"] if note["code"] in KEPT_CODES}
        name = ", ".join(trace["name"] for trace in traces)
        world = max((trace.get("world") or 0 for trace in traces), default=0) or None
        producers = tuple(sorted({trace["producer"] for trace in traces}))
    except (AttributeError, KeyError, TypeError) as error:
        raise BadUsage(f"{source}: not an advice in JSON ({type(error).__name__}: {error})") from None
    return Run(name, tuple(lanes), tuple(options), health, world, producers)


def _lanes(devices: Sequence[Mapping[str, Any]]) -> list[DeviceRun]:
    """Devices under keys that another recording of the same program gives too."""
    pids: dict[Any, list[int]] = {}
    for device in devices:
        if device["process"] is not None:
            pids.setdefault((device["file"], device["rank"]), []).append(device["process"])
    positions = {place: sorted(set(found)) for place, found in pids.items()}
    lanes = []
    for device in devices:
        parts = [] if device["rank"] is None else [f"rank {device['rank']}"]
        known = positions.get((device["file"], device["rank"]), [])
        if len(known) > 1:
            parts.append(f"process {known.index(device['process'])}")
        lanes.append(_lane(device, " ".join([*parts, f"device {device['device']}"])))
    return lanes


def _lane(device: Mapping[str, Any], key: str) -> DeviceRun:
    inferred = bool(device.get("steps_from"))  # steps that nobody marked are no ground for a verdict
    in_steps = device["window"] == "steps" and not inferred
    kept = [step for step in device["steps"] if step["left_out"] is None] if in_steps else []
    causes: Counter[str] = Counter()
    for item in device["attribution"]:
        causes[item["cause"]] += item["ns"]
    kernels: dict[str, tuple[int, int]] = {}
    for kernel in device["kernels_by_name"]:
        calls, ns = kernels.get(kernel["short"], (0, 0))
        kernels[kernel["short"]] = (calls + kernel["calls"], ns + kernel["ns"])
    whole_graphs = any(kernel["class"] == "graph" for kernel in device["kernels_by_name"])
    matrix = sum(k["calls"] for k in device["kernels_by_name"] if k["class"] in MATRIX_CLASSES)
    return DeviceRun(
        key=key,
        name=device["name"],
        window="inferred" if inferred and device["window"] == "steps" else device["window"],
        steps=len(kept),
        wall_ns=device["wall_ns"],
        periods_ns=periods(kept),
        gpu_ns=tuple(step["gpu_ns"] for step in settled(kept)),
        causes=dict(causes),
        kernels=kernels,
        counts=counts(device),
        matrix_kernels=None if whole_graphs else matrix,
        identity=(device["start_ns"], device["end_ns"], device["busy_ns"], device["operations"]),
        flops=device.get("flops"),
        flops_kernels=device.get("flops_kernels"),
        step_counts=step_counts(kept),
    )


def counts(device: Mapping[str, Any]) -> dict[str, int]:
    """What is counted in a device's window."""
    return {
        "kernels": device["kernels"],
        "operations": device["operations"],
        "launches": device["launches"]["calls"],
        "copies": sum(copy["calls"] for copy in device["copies"] if copy["kind"] != "memset"),
        "syncs": device["syncs"],
        "blocking-copies": device["blocking_copies"],
        "allocations": device["allocations"],
    }


def step_counts(kept: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """What is counted, for each of the steps."""
    each = [step.get("counts", {}) for step in kept]
    return {name: tuple(counts[name] for counts in each) for name in each[0]} if all(each) and each else {}


def settled(kept: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The steps whose times count: all but a slow first one, which is lazy loading, filling workers or cold clocks."""
    if len(kept) <= FEWEST_STEPS:
        return kept
    first, *others = _between(kept)
    return kept[1:] if first > SLOW_START * median(others) else kept


def periods(kept: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Start-to-start times of neighbours among the settled steps."""
    return tuple(_between(settled(kept)))


def _between(kept: Sequence[Mapping[str, Any]]) -> list[int]:
    return [after["start_ns"] - before["start_ns"] for before, after in pairwise(kept)]


def _host_lanes(host: Mapping[str, Any] | None) -> list[DeviceRun]:
    if host is None:
        return []
    kept = [step for step in host["steps"] if step["left_out"] is None]
    wall = host["end_ns"] - host["start_ns"]
    return [
        DeviceRun(HOST, "", "steps" if kept else "all", len(kept), wall, periods(kept), (), {}, {}, {}, None,
             (host["start_ns"], host["end_ns"]))
    ]  # fmt: skip


def middle(values: Sequence[int]) -> float | None:
    """The median; None of nothing."""
    return float(median(values)) if values else None
