"""The drawing model: what a report draws of one device, so that it needs neither trace nor graph.

Times are integer nanoseconds on the recording's own clock, as in the Advice; `origin_ns` is its first event, from which all
times that people read count. Texts are as recorded; a report makes them shareable.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_trace_advisor.advice.model import DeviceAdvice, place_of
from gpu_trace_advisor.analysis.device_window import DeviceKey
from gpu_trace_advisor.reference.hardware import Hardware
from gpu_trace_advisor.roofline.points import Work
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.steps import Step
from gpu_trace_advisor.trace.model import Index, Int64


@dataclass(frozen=True)
class Detail:
    """What is known of a box; boxes alike share one. Texts are empty and numbers None where nothing was recorded."""

    name: str
    """For people: a kernel's readable name, a host record's, or an idle cause with the record that decided."""
    colour: str
    """A kernel class, an idle cause, `copies`, or what a host thread does: names of colours in the page's style."""
    full_name: str = ""
    """Where it differs from `name`."""
    operator: str = ""
    """The innermost operator around the launch."""
    stack: tuple[str, ...] = ()
    """Modules, ranges and the user's own Python lines around it, the outermost first."""
    shapes: str = ""
    grid: str = ""
    block: str = ""
    reachable: float | None = None
    """Roofline time over measured time, of all boxes that share this; modelled."""
    cause: str = ""
    """Of idle time; `side` and `grade` likewise."""
    side: str = ""
    grade: str = ""


@dataclass(frozen=True)
class Lane:
    """Boxes of one row, by start."""

    kind: str
    """`idle`, `stream` or `host`."""
    label: str
    depth: int
    """Of a host lane: how many records of its thread are around these boxes."""
    start: Int64
    end: Int64
    detail: Index
    """Index into the drawing's details."""
    launch: Int64 | None = None
    """Of a stream: start of the launch call; NONE where it is not recorded or its thread is not drawn."""
    thread: Index | None = None
    """Of a stream: number of the launch's thread among those drawn, NONE likewise."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Path:
    """The critical path: where it runs when."""

    start: Int64
    end: Int64
    lane: Index
    """Index into the lanes; NONE where the lane is not drawn."""
    name: Index
    """Index into `names`: the operation that runs, or what is waited for."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """Shares of equal parts of [start_ns, end_ns) by colour."""

    start_ns: int
    end_ns: int
    shares: dict[str, list[float]]


@dataclass(frozen=True)
class HeatRow:
    """Time of one cause in each step, ns."""

    cause: str
    ns: tuple[int, ...]


@dataclass(frozen=True)
class Flame:
    """A node of a flame graph; the children of a node follow it."""

    name: str
    kind: str
    """`module`, `python`, `operator`, `range`, `kernel`, `cause` or `others`."""
    colour: str
    """As of a detail: a kernel's class, an idle cause, or what a host record is."""
    depth: int
    start_ns: int
    """Where it begins when siblings stand side by side."""
    ns: int


@dataclass(frozen=True)
class FixedWindow:
    """The window replayed with some fixes together."""

    fixes: tuple[int, ...]
    """Index into `Fixes.rules`."""
    saving_ns: tuple[int, int]
    """Pessimistic and optimistic, as `--what-if` with the same rules has it."""
    speedup: tuple[float, float]
    strip: Coverage
    """One step, in the pessimistic form; its end says how long the step has become."""


@dataclass(frozen=True)
class Fixes:
    """What each subset of the first findings gives."""

    rules: tuple[str, ...]
    titles: tuple[str, ...]
    step: str
    """The step that is drawn; empty for the whole window."""
    wall_ns: int
    """The window's, of which the savings are."""
    before: Coverage
    variants: tuple[FixedWindow, ...]


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes in the caching allocator over time; the largest of each stretch."""

    time_ns: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]


@dataclass(frozen=True)
class Roofline:
    """The kernels whose work is known."""

    work: tuple[Work, ...]
    hardware: Hardware
    kernel_ns: int
    """Time of all compute kernels of the window, modelled or not."""


@dataclass(frozen=True)
class Drawing:
    """One device's window; of a recording without GPU work its host threads, with `place` None."""

    place: DeviceKey | None
    ranked: bool
    """The recording says its rank."""
    base_ns: int | None
    """What to add to times to get nanoseconds since the Unix epoch."""
    origin_ns: int
    start_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    details: tuple[Detail, ...]
    threads: tuple[str, ...]
    steps: tuple[Step, ...]
    path: Path | None
    overview: Coverage
    heat: tuple[HeatRow, ...] = ()
    by_time: tuple[Flame, ...] = ()
    """GPU time by module, operator and kernel; likewise `by_idle`, the idle time that each of them caused."""
    by_idle: tuple[Flame, ...] = ()
    fixes: Fixes | None = None
    memory: MemoryCurve | None = None
    roofline: Roofline | None = None

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns


def drawing_of(device: DeviceAdvice, drawings: Sequence[Drawing]) -> Drawing | None:
    """The drawing of one of an advice's devices."""
    return next((one for one in drawings if one.place == place_of(device)), None)
