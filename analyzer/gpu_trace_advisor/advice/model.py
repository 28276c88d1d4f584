"""The Advice: the one result value that every report reads, and its JSON form.

Times are integer nanoseconds on the file's clock, shares are fractions from 0 to 1, sizes are bytes. `None` means that the
trace cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_trace_advisor.advice import notebook
from gpu_trace_advisor.analysis.device_window import DeviceKey
from gpu_trace_advisor.analysis.summary import CopyTime, Gap, HostTime, KernelTime, Launches, MemoryUse, OwnerTime
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.decode.ladder import Ladder
from gpu_trace_advisor.decode.serving_cost import Serving
from gpu_trace_advisor.ranks.model import PHASES, RankSet
from gpu_trace_advisor.roofline.kernel_table import KernelRow, Missing
from gpu_trace_advisor.rulekit.rule import Finding, JointGain, Skipped
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Note

if TYPE_CHECKING:
    import pandas

Said = TypeVar("Said")
SCHEMA = 1


@dataclass(frozen=True)
class TraceInfo:
    """One recording that was read."""

    name: str
    format: str
    """`kineto` or `nsight`."""
    rank: int | None
    operations: int
    kernels: int
    events: int
    producer: str
    base_ns: int | None
    """What to add to times to get nanoseconds since the Unix epoch."""
    options: tuple[str, ...] = ()
    """What the profiler recorded besides events, at a cost to the host: `with_stack`, `record_shapes` …"""
    world: int | None = None
    """Ranks of the job, as the recording says."""


@dataclass(frozen=True)
class StepAdvice:
    """One marked step on one device."""

    name: str
    start_ns: int
    end_ns: int
    gpu_ns: int
    """Time with at least one of the operations that the step launched running, wherever they run."""
    operations: int
    left_out: str | None
    counts: dict[str, int] = field(default_factory=dict)
    """What happened how often: kernels, copies and launches of its operations; syncs, blocking copies and allocations
    between its start and the next step's. Empty of a recording without GPU work."""


@dataclass(frozen=True)
class ReplayAdvice:
    """How far a replay of the timeline can be believed."""

    error: float
    """(replayed − measured) / measured wall time, nothing changed."""
    unexplained: float
    """Share of the wall time that rests on what was not recorded: launches, waits, kernels, what the host did."""
    trusted: bool
    """Both together at most 5 %: savings may be shown."""


@dataclass(frozen=True)
class WhatIf:
    """The replay of one device's window with some fixes together."""

    file: str
    rank: int | None
    process: int | None
    device: int
    fixes: tuple[str, ...]
    saving_ns: tuple[int, int] | None
    """Pessimistic and optimistic; None when none of the fixes can be priced."""
    speedup: tuple[float, float] | None
    assumes: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    """(fix, why it is not priced)."""


@dataclass(frozen=True)
class InsideKernels:
    """What the kernels of a window do, as far as recorded shapes tell (`gpu_trace_advisor.roofline.kernel_table`)."""

    kernel_ns: int
    """Time in which kernels other than communication run."""
    covered_ns: int
    """Part of it by operators whose work is known."""
    captured_ns: int
    """Part of that whose operators recordings of captures tell."""
    mfu: float | None
    """FLOPs over the dense peak, of the wall time; None where `mfu_why` says what is missing."""
    mfu_why: str
    bandwidth: float | None
    """Bytes/s that can be reached; None where the device's peaks are not known."""
    rows: tuple[KernelRow, ...] = ()
    """Most time first."""
    missing: tuple[Missing, ...] = ()
    """Kernels whose work is not known, most time first."""

    @property
    def covered(self) -> float:
        return self.covered_ns / self.kernel_ns if self.kernel_ns else 0.0

    @property
    def above_ns(self) -> int | None:
        """Time above reachable of the rows that can be judged; None where there are none."""
        known = [row.above_ns for row in self.rows if row.above_ns is not None and not row.doubt]
        return sum(known) if known else None


@dataclass(frozen=True)
class DeviceAdvice:
    """Where the wall time of one device's window went."""

    file: str
    rank: int | None
    process: int | None
    device: int
    gpu: int | None
    name: str
    window: str
    window_why: str
    start_ns: int
    end_ns: int
    operations: int
    kernels: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_host_ns: int
    idle_submitted_ns: int
    idle_unlinked_ns: int
    communication_total_ns: int
    attribution: tuple[TimeSlice, ...]
    steps: tuple[StepAdvice, ...]
    step_ns: int | None
    """Median of the kept steps, each until the next one starts, the last one until it ends; None without steps."""
    kernels_by_name: tuple[KernelTime, ...]
    copies: tuple[CopyTime, ...]
    launches: Launches
    syncs: int
    blocking_copies: int
    allocations: int
    launch_latency_ns: int
    queued_gap_ns: int | None
    operators: tuple[OwnerTime, ...]
    modules: tuple[OwnerTime, ...]
    gaps: tuple[Gap, ...]
    memory: MemoryUse | None
    replay: ReplayAdvice
    critical_path: tuple[tuple[str, int], ...]
    """(cause, ns) of what made the window last as long as it did; they add up to the wall time."""
    peaks: str = ""
    """Whose peaks modelled numbers rest on, or that they are not known; empty where the device's name alone tells."""
    health: tuple[Note, ...] = ()
    """What makes this device's numbers doubtful; `Advice.health` has the notes of all devices and of the files."""
    flops: float | None = None
    """Of the window's kernels, as far as recorded shapes tell; None where they do not."""
    flops_kernels: int | None = None
    """How many matrix products, convolutions and attention kernels these FLOPs are of; None where nothing is known."""
    inside_kernels: InsideKernels | None = None
    """None where no kernel ran."""
    steps_from: str = ""
    """What the steps are inferred from; empty where they are marked, or there are none."""

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns

    def ns_of(self, *causes: str) -> int:
        """Wall time of these causes."""
        return sum(item.ns for item in self.attribution if item.cause in causes)


@dataclass(frozen=True)
class HostAdvice:
    """What can be said of a recording without GPU work."""

    file: str
    start_ns: int
    end_ns: int
    ranges: tuple[HostTime, ...]
    operators: tuple[HostTime, ...]
    calls: tuple[HostTime, ...]
    steps: tuple[StepAdvice, ...]
    step_ns: int | None
    to_record: str = ""
    """What the recording lacks, and how to record the GPU's work."""


@dataclass(frozen=True)
class Advice:
    """Everything that is said about the traces. `gpu_trace_advisor.attribution` defines the causes."""

    traces: tuple[TraceInfo, ...]
    window: str
    devices: tuple[DeviceAdvice, ...]
    host: HostAdvice | None
    memory: tuple[MemoryUse, ...]
    verdict: str
    health: tuple[Note, ...]
    what_if: tuple[WhatIf, ...] = ()
    phase: tuple[str, str] = ("unknown", "there is no GPU work")
    """The phase of the first device, and how that is known."""
    findings: tuple[Finding, ...] = ()
    """What to change, device after device, the best first."""
    joint: tuple[JointGain, ...] = ()
    """What the findings of a device give together."""
    ladders: tuple[Ladder, ...] = ()
    """Of each device that decodes: its floor, where it stands, and what the findings move."""
    serving: tuple[Serving, ...] = ()
    """Times and costs of serving, where they were asked for."""
    skipped: tuple[Skipped, ...] = ()
    """Rules that say nothing of a device, and why."""
    errors: tuple[str, ...] = ()
    ranks: RankSet | None = None
    """The ranks of one run beside each other; None where there are not two."""

    def __repr__(self) -> str:
        return f"<Advice on {', '.join(trace.name for trace in self.traces[:2])}: {self.verdict}>"

    def _repr_html_(self) -> str:
        """The first screen, in a notebook."""
        return notebook.html(self)

    def to_pandas(self, what: str = "findings") -> pandas.DataFrame:
        """`findings`, `causes`, `kernels` (each operator, shape and kernel with its rates), `kernel_names`, `operators`,
        `gaps` or `steps` as a table; times in nanoseconds, rates in FLOP/s and bytes/s.

        Raises:
            BadUsage: there is no such part.
        """
        return notebook.frame(self, what)

    def kernel_rows(self) -> list[tuple[Any, ...]]:
        """The rows of all devices' kernel tables: where, then the fields of `KernelRow`."""
        fields = tuple(KernelRow.__dataclass_fields__)
        return [
            (*place_of(device), *(getattr(row, name) for name in fields))
            for device in self.devices
            for row in (device.inside_kernels.rows if device.inside_kernels else ())
        ]

    def findings_of(self, device: DeviceAdvice) -> list[Finding]:
        """What to change on one of the devices, the best first."""
        return said_of(device, self.findings)

    def joint_of(self, device: DeviceAdvice) -> JointGain | None:
        """What these findings give together; None where none is priced."""
        return next(iter(said_of(device, self.joint)), None)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; `advice.schema.json` describes it."""
        return {
            "schema": SCHEMA,
            "traces": [_plain(trace) for trace in self.traces],
            "window": {
                "kind": self.window,
                "steps": [step.name for device in self.devices[:1] for step in device.steps if step.left_out is None]
                if self.window == "steps"
                else [],
            },
            "verdict": self.verdict,
            "devices": [_device(device) for device in self.devices],
            "host": None if self.host is None else _plain(self.host),
            "memory": [_plain(use) for use in self.memory],
            "phase": dict(zip(("name", "why"), self.phase, strict=True)),
            "replay": self._replay(),
            "what_if": [
                {**_plain(what), "refused": [{"fix": fix, "why": why} for fix, why in what.refused]}
                for what in self.what_if
            ],
            "ranks": None if self.ranks is None else _ranks(self.ranks),
            "findings": [_plain(finding) for finding in self.findings],
            "joint": [_plain(joint) for joint in self.joint],
            "ladders": [_plain(ladder) for ladder in self.ladders],
            "serving": [_plain(panel) for panel in self.serving],
            "skipped": [_plain(skipped) for skipped in self.skipped],
            "health": [_plain(note) for note in self.health],
            "errors": list(self.errors),
        }

    def _replay(self) -> dict[str, Any] | None:
        """The worst device's figures, and each device's."""
        if not self.devices:
            return None
        worst = max((d.replay for d in self.devices), key=lambda r: abs(r.error) + r.unexplained)
        return {
            "error": worst.error,
            "unexplained": worst.unexplained,
            "per_device": [{**place_of(d)._asdict(), **_plain(d.replay)} for d in self.devices],
        }


def place_of(one: Any) -> DeviceKey:
    """Of which device something is said."""
    return DeviceKey(one.file, one.rank, one.process, one.device)


def said_of(device: DeviceAdvice, values: Sequence[Said]) -> list[Said]:
    """Those of the values that are about this device."""
    return [one for one in values if place_of(one) == place_of(device)]


def _ranks(run: RankSet) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(run)
    plain["slowest"] = run.slowest
    plain["phases"] = list(PHASES)
    for row in plain["rows"]:
        row["causes"] = [{"cause": cause, "ns": ns} for cause, ns in row["causes"]]
    return plain


def _device(device: DeviceAdvice) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in _plain(device).items():
        plain[key] = value
        if key == "kernels":
            plain["wall_ns"] = device.wall_ns
    plain["attribution"] = [
        {
            "when": item.when, "cause": item.cause, "category": item.category, "grade": item.grade, "side": item.side,
            "detail": item.detail, "ns": item.ns,
        }
        for item in device.attribution
    ]  # fmt: skip
    plain["kernels_by_name"] = [
        {"name": k.name, "short": k.short, "class": k.kernel_class, "calls": k.calls, "ns": k.ns}
        for k in device.kernels_by_name
    ]
    plain["critical_path"] = [{"cause": cause, "ns": ns} for cause, ns in device.critical_path]
    plain["memory"] = (
        None
        if device.memory is None
        else {key: getattr(device.memory, key) for key in ("peak_allocated", "peak_reserved", "baseline")}
    )
    return plain


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists, everything else as it is."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
