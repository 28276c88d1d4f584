"""One device's window, ready to be asked: its attribution, its steps, its graph and what a fix would save."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.captures import read_captures
from gpu_trace_advisor.analysis.health import unexplained
from gpu_trace_advisor.analysis.phase import Phase, detect
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.analysis.summary import inside
from gpu_trace_advisor.analysis.unrecorded import unrecorded
from gpu_trace_advisor.attribution import START_UP, Attribution, TimeSlice
from gpu_trace_advisor.attribution.build import attribute
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.compact import constant
from gpu_trace_advisor.columns.intervals import ascending, grouped
from gpu_trace_advisor.errors import NothingToAnalyse
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.graph.build import build_graph
from gpu_trace_advisor.ranks.model import RankSet
from gpu_trace_advisor.reference.hardware import Hardware, find
from gpu_trace_advisor.replay.critical_path import CriticalPath, critical_path
from gpu_trace_advisor.replay.fixes import Fix, Saving, saving
from gpu_trace_advisor.replay.sweep import Replay, Trust, error, replay
from gpu_trace_advisor.roofline.kernel_table import Kernels
from gpu_trace_advisor.roofline.kernel_time import InKernel, device_of
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.runtime.heap import give_back_small
from gpu_trace_advisor.timelines.device import COMMUNICATION, MOST_DEVICES, Timeline, timelines
from gpu_trace_advisor.timelines.host import MOST_THREADS, Host, read_host
from gpu_trace_advisor.timelines.inferred_steps import SEQUENCE, infer_steps
from gpu_trace_advisor.timelines.repetition import Repetition, repetition
from gpu_trace_advisor.timelines.steps import (
    WARM_UP_RATIO,
    Step,
    Window,
    choose_window,
    find_steps,
    lacking,
    marker_rows,
    period_ns,
    pick_steps,
)
from gpu_trace_advisor.trace.kernel_names import kernel_class as class_of_kernel
from gpu_trace_advisor.trace.model import NONE, Device, Index, Kind, Note, Process, Trace
from gpu_trace_advisor.trace.software import Use, uses
from gpu_trace_advisor.units import duration


@dataclass(frozen=True)
class TracedProcess:
    """One process of a recording, with the attributions of all its devices. Its graph is built when first asked for."""

    attributions: tuple[Attribution, ...]
    marker: re.Pattern[str] | None = None

    @cached_property
    def graph(self) -> Graph:
        """What each operation and call of the process waited for."""
        for attribution in self.attributions:
            attribution.timeline.forget()
        timeline = self.attributions[0].timeline
        families = marker_rows(timeline.trace, timeline.process, self.marker)
        graph = build_graph(self.attributions, ascending(np.concatenate(families)) if families else None)
        give_back_small()
        return graph

    @property
    def unchanged(self) -> Replay:
        """The graph replayed as it is; worked out anew each time."""
        return replay(self.graph)


class DeviceKey(NamedTuple):
    """Which device of which recording; no two views have the same."""

    file: str
    rank: int | None
    process: int | None
    """Process id in an Nsight recording: the devices of several processes may have one number."""
    device: int


@dataclass(frozen=True)
class DeviceWindow:
    """One device's window."""

    program: TracedProcess
    index: int
    """Of the device among the program's."""
    window: Window
    steps: tuple[Step, ...]
    of_step: Index
    """[m] index into `steps` of each operation of the timeline; -1 for none."""
    operations: Index
    """Operations of the timeline that run in the window."""
    steps_from: str = ""
    """What the steps are inferred from; empty where they are marked, or there are none."""
    notes: tuple[Note, ...] = field(default=())
    request: Request = field(default=Request())
    peers: tuple[DeviceWindow, ...] = field(default=(), repr=False, compare=False)
    """The views of all devices and ranks that are looked at together, this one among them."""
    run: RankSet | None = field(default=None, repr=False, compare=False)
    """What comes of looking at all ranks together; None where there is one."""

    @property
    def place(self) -> DeviceKey:
        rank = self.process.rank if self.process.rank is not None else self.trace.rank
        return DeviceKey(self.trace.name, rank, self.process.pid, self.timeline.device)

    @property
    def attribution(self) -> Attribution:
        return self.program.attributions[self.index]

    @property
    def timeline(self) -> Timeline:
        return self.attribution.timeline

    @property
    def trace(self) -> Trace:
        return self.timeline.trace

    @property
    def process(self) -> Process:
        return self.trace.processes[self.timeline.process]

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @cached_property
    def kept_steps(self) -> tuple[Step, ...]:
        """Steps in the window."""
        return tuple(step for step in self.steps if step.left_out is None)

    @cached_property
    def step_ns(self) -> int | None:
        """Median of the kept steps, each until the next one starts, the last one until it ends; None without steps."""
        return period_ns(self.steps)

    @cached_property
    def causes(self) -> dict[str, int]:
        """ns of the window by cause."""
        return self.attribution.by_cause(self.window.start_ns, self.window.end_ns)

    @cached_property
    def items(self) -> tuple[TimeSlice, ...]:
        """The parts of the wall time, most first, with the time in kernels split by what they had to do."""
        window = self.window
        whole = self.attribution.partition(window.start_ns, window.end_ns)
        inside = self.inkernel.split(window.start_ns, window.end_ns)
        kernels = [TimeSlice("compute", part.cause, part.grade, None, "", part.ns) for part in inside]
        kept = [*(item for item in whole if item.when != "compute"), *kernels]
        return tuple(sorted(kept, key=lambda item: -item.ns))

    @cached_property
    def device(self) -> Device:
        """What the recording says of the device."""
        return device_of(self.timeline)

    @cached_property
    def hardware(self) -> Hardware | None:
        """The device's peaks; None where it is not known."""
        return find(self.device, self.request.hardware)

    @cached_property
    def inkernel(self) -> InKernel:
        """The model of the device's kernels."""
        return InKernel(self.timeline, self.hardware, read_captures(self.request))

    def kernels(self, pattern: str = "", kernel_class: str = "") -> Index:
        """Kernels in the window, as indices into the timeline, whose name holds the regular expression `pattern` and whose
        class is `kernel_class` (both optional)."""
        wanted = re.compile(pattern)
        names = self.trace.name_code[self.timeline.row[self.operations]]
        fit = [
            code
            for code in present(names).tolist()
            if wanted.search(self.trace.names[code])
            and (not kernel_class or class_of_kernel(self.trace.names[code]) == kernel_class)
        ]
        is_kernel = self.timeline.op_class[self.operations] <= COMMUNICATION
        return np.asarray(self.operations[is_kernel & np.isin(names, fit)])

    def time_of(self, operations: Index) -> Index:
        """[k] ns of each of these operations that lie in the window."""
        timeline, window = self.timeline, self.window
        end = np.minimum(timeline.end[operations], window.end_ns)
        return np.asarray(np.maximum(end - np.maximum(timeline.start[operations], window.start_ns), 0), np.int64)

    @cached_property
    def kernel_table(self) -> Kernels:
        """The window's kernels with their work and rates."""
        return Kernels(self.inkernel, self.window.start_ns, self.window.end_ns)

    @cached_property
    def phase(self) -> Phase:
        """What the program does in the window: asked for, else as far as the recording tells."""
        steps = [(step.start_ns, step.end_ns) for step in self.kept_steps]
        found = detect(self.timeline, self.inkernel.costs, self.window.start_ns, self.window.end_ns, steps)
        return found._replace(name=self.request.phase, why="asked for with --phase") if self.request.phase else found

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Engines, compilers and libraries that the trace shows."""
        return tuple(uses(self.trace))

    @cached_property
    def operators_recorded(self) -> bool:
        """Of a thread that launches: what other threads did says nothing about what it did."""
        trace, host = self.trace, self.timeline.host
        operators = np.flatnonzero((trace.kind == Kind.OPERATOR) & (trace.process == self.timeline.process))
        return bool(np.isin(trace.thread[operators], host.launching).any())

    @cached_property
    def repetition(self) -> Repetition:
        """How often the work of the window repeats."""
        kept = [i for i, step in enumerate(self.steps) if step.left_out is None]
        by_step = grouped(self.of_step[self.operations], len(self.steps))
        steps = [self.operations[by_step[i]] for i in kept] if self.window.kind == "steps" else ()
        return repetition(
            self.timeline,
            self.operations,
            steps,
            inferred=bool(self.steps_from),
            alike=self.steps_from == SEQUENCE,
        )

    @cached_property
    def trust(self) -> Trust:
        """How far replays of this window can be believed."""
        found = error(self.program.unchanged, self.window, self.index)
        return Trust(found, unrecorded(self.attribution, self.graph, self.window, self.index))

    @property
    def critical_path(self) -> CriticalPath:
        """Worked out anew each time."""
        return critical_path(self.graph, self.window, self.index)

    def saving(self, *fixes: Fix) -> Saving:
        """What these fixes together take off the window's wall time."""
        return saving(self.graph, fixes, self.window, self.index)


def _left_out(trace: Trace, hosts: dict[int, Host], lanes: int) -> Iterator[Note]:
    """What there is more of than is looked at."""
    operations = trace.operations
    if lanes >= MOST_DEVICES:
        pairs = np.unique(np.stack([trace.process[operations], trace.device[operations]]), axis=1).shape[1]
        if pairs > lanes:
            text = f"{pairs - lanes:,} of {pairs:,} devices are left out: those with the fewest operations"
            yield Note("left-out", text, pairs - lanes)
    for host in hosts.values():
        if len(host.launching) >= MOST_THREADS:
            launches = trace.launch[operations[trace.process[operations] == host.process]]
            threads = len(present(trace.thread[launches[launches != NONE]]))
            if threads > MOST_THREADS:
                text = (
                    f"{threads:,} threads launch: what the {MOST_THREADS} that launch most did is told, not the others"
                )
                yield Note("left-out", text, threads - MOST_THREADS)


def views(trace: Trace, request: Request) -> tuple[list[DeviceWindow], list[Note]]:
    """A view of each device with operations that was asked for; notes of devices that have none in the window.

    Raises:
        NothingToAnalyse: a device, steps or a marker were asked for that the trace does not have.
    """
    if only_a_set(trace, request):
        return [], []
    marker = request.marker()
    hosts = {p: read_host(trace, p, marker) for p in present(trace.process[trace.operations]).tolist()}
    lanes = timelines(trace, hosts)
    found: list[DeviceWindow] = []
    notes = list(_left_out(trace, hosts, len(lanes)))
    without_steps: NothingToAnalyse | None = None
    for process in hosts:
        rank = trace.processes[process].rank
        if request.rank is not None and rank not in (None, request.rank):
            continue
        program = TracedProcess(tuple(attribute(lane) for lane in lanes if lane.process == process), marker)
        for index, attribution in enumerate(program.attributions):
            if request.device in (None, attribution.timeline.device):
                device = attribution.timeline.device
                try:
                    view = _device_window(program, index, request)
                except NothingToAnalyse as error:
                    without_steps = error
                    notes.append(Note("empty-window", f"device {device} has no such step and is left out", 1))
                    continue
                if len(view.operations):
                    found.append(view)
                else:
                    notes.append(Note("empty-window", f"device {device} ran nothing in the window and is left out", 1))
    if without_steps and not found:
        raise without_steps
    if not found and not notes and request.device is not None and len(trace.operations):
        known = sorted(set(trace.device[trace.operations].tolist()))
        raise NothingToAnalyse(f"{trace.name}: no operations on device {request.device}; it has devices {known}")
    return found, notes


def only_a_set(trace: Trace, request: Request) -> bool:
    """All GPU work is one memset, as when a program only creates its context: a recording of the host, unless a device, a
    window or steps were asked for."""
    asked = (request.window, request.steps, request.step_marker, request.device)
    return asked == (None,) * 4 and trace.kind[trace.operations].tolist() == [Kind.SET]


def _device_window(program: TracedProcess, index: int, request: Request) -> DeviceWindow:
    attribution = program.attributions[index]
    timeline, marker = attribution.timeline, program.marker
    steps, of_step = find_steps(timeline, marker)
    if marker is not None and not steps:
        raise NothingToAnalyse(
            f"{timeline.trace.name}: no range matching --step-marker {marker.pattern} launched work on device "
            f"{timeline.device}"
        )
    source = ""
    if not steps:
        steps, of_step, source = infer_steps(timeline)
    if request.steps:
        steps = pick_steps(steps, request.steps, timeline.trace.name)
    else:
        steps = leave_out(attribution, steps, inferred=bool(source))
    window = choose_window(timeline, steps, "steps" if request.steps else request.window, source)
    if request.steps:
        window = replace(window, why=window.why + lacking(steps, request.steps))
    operations = inside(timeline, window.start_ns, window.end_ns)
    return DeviceWindow(program, index, window, tuple(steps), of_step, operations, source, request=request)


def without_inferred_steps(view: DeviceWindow) -> DeviceWindow:
    """The view that ranks are compared in: what is inferred on one may begin elsewhere, or be counted otherwise, on another."""
    if not view.steps_from:
        return view
    window = choose_window(view.timeline, (), "gpu") if view.window.kind == "steps" else view.window
    return DeviceWindow(
        view.program,
        view.index,
        window,
        (),
        constant(NONE, len(view.of_step), np.int32),
        inside(view.timeline, window.start_ns, window.end_ns),
        request=view.request,
    )


def leave_out(attribution: Attribution, steps: list[Step], *, inferred: bool = False) -> list[Step]:
    """Mark first steps that are warm-up, and one whose front was cut away; a last step is kept whatever its length.

    Nobody began to record where inferred steps begin: their first one is left out for its length alone.
    """
    if not steps:
        return steps
    found, at = list(steps), 0
    if steps[0].left_out is not None:
        at = 1
    elif reason := _cut_front(attribution, steps[0]):
        found[0], at = steps[0].without(reason), 1
    # Warm-up may take several steps; of those behind it two at least are left.
    while at < max(len(steps) - 2, 1) and (reason := _warm_up(attribution, steps[at:], inferred and at == 0)):
        found[at], at = steps[at].without(reason), at + 1
    return found


def _cut_front(attribution: Attribution, step: Step) -> str | None:
    """The step begins with an operation that was submitted and waited for work the trace does not hold."""
    timeline = attribution.timeline
    if step.start_ns > timeline.span_ns[0]:
        return None
    found = unexplained(attribution, Window("", step.start_ns, timeline.span_ns[0], ""))
    cut = int(found.ns[found.cut].sum())
    if not cut:
        return None
    return f"its first operation waited {duration(cut)} for work that was cut away"


def _warm_up(attribution: Attribution, steps: list[Step], by_length: bool = False) -> str | None:
    """Longer than 1.5 times the median of the others, and start-up causes fill the excess; or `by_length`, longer than any
    of them by as much."""
    if len(steps) < 2:
        return None
    starts = [step.marker_ns[0] for step in steps]
    length = starts[1] - starts[0]
    others = [*np.diff(starts[1:]).tolist(), steps[-1].end_ns - steps[-1].start_ns]
    usual = float(np.median(others))
    if length <= WARM_UP_RATIO * usual:
        return None
    causes = attribution.by_cause(starts[0], starts[1])
    start_up = sum(causes.get(cause, 0) for cause in START_UP)
    longest = by_length and len(others) >= 2 and length > WARM_UP_RATIO * max(others)
    if start_up < (length - usual) / 2 and not longest:
        return None
    why = f"warm-up: {duration(length)} against a median of {duration(int(usual))}"
    return why + (f", {duration(start_up)} of it module loading, allocation or compiling" if start_up else "")
