from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.health import in_graph_replay
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.columns.intervals import Intervals, ascending
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.replay.changes import regions
from gpu_trace_advisor.replay.fixes import FIXES
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_causes, of_rows
from gpu_trace_advisor.rulekit.host.capturing import how_to_capture, in_engine
from gpu_trace_advisor.rulekit.host.measurement_syncs import measures
from gpu_trace_advisor.rulekit.repeats import repeats
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.rulekit.wall_time import LAUNCH_SCALE_NS
from gpu_trace_advisor.trace.model import Kind
from gpu_trace_advisor.units import duration, share

LOST = 0.10  # of the wall to launching: a capture constrains the program, less does not pay for that
BUSY = 0.95  # busy above this share: what is left between kernels is no graph's to give
REPLAYED = 0.5  # share of operations that graphs replay already
CAPTURED = 0.7  # pessimistic part of the saving: input copies, logging and the odd branch stay outside the graph
INFLATED = 0.30  # of the wall to launching: from here the cost of recording stacks may be what is seen
LAUNCHING = ("framework", "python", "launch-call", "launch-latency", "queued-gap")
ALIKE = 0.9  # share of steps with the very same launches; the others would run outside the graph


@rule(
    title="Launch-bound: use CUDA Graphs",
    cites=("tvi-matrix-cuda-graphs", "tvi-launch-graph", "tvi-cause-launch", "tvi-launch-sensitivity"),
    needs=("host", "launches"),
    fires=(
        """
        step |...................
        host OO.a.OO.b.OO.c.OO.d
        s7   ....a.....b....c...d
        repeat: 4
        scale: 10us
        """,
        case(
            """
        host OO.a.OO.b.OO.c.OO.d.S==
        s7   ....a.....b....c....dd.
        repeat: 5
        scale: 10us
        """,
            "No markers: the sequence itself repeats. A synchronisation ends each round and stays outside the graphs.",
        ),
        case(
            """
        step |...................
        host OO.a.OO.b.OO.c.OO.d
        s7   ....a.....b....c...d
        scale: 10us
        """,
            "One step only: advised with low confidence.",
        ),
    ),
    quiet=(
        case(
            """
        step |.........|.........|.........|.........
        host OO.a.OO.b.OO.c.OO.dOO.e.OO.f.OO.g.OO.h
        s7   ....a.....b....c...d...e.....f....g...h
        """,
            "Every step launches something else.",
        ),
        case(
            """
        step |...................
        host O.aO.bO.cO.d.......
        s7   ...aaaaabbbbbcccccdd
        repeat: 4
        """,
            "The device is busy; launching hides behind it.",
        ),
        case(
            """
        step |...................
        host OOOOOO.g...........
        s7   ........gg.gg.gg.gg.
        g: graph
        repeat: 4
        """,
            "A graph already.",
        ),
        case(
            """
        step |...................
        host DDDDDDDDDDDDDDDDa..
        s7   .................aa.
        repeat: 4
        """,
            "Idle, but for the data loader.",
        ),
        case(
            """
        step |...................
        host a.S===b.S===c.S===.
        s7   .aaaa..bbbb..cccc..
        repeat: 4
        """,
            "Idle, but for blocking synchronisations between all launches: there is nothing to capture.",
        ),
    ),
)
def cuda_graphs(view: DeviceWindow) -> Iterator[Claim]:
    """The host launches kernels one by one more slowly than the device runs them, and always the same ones.

    Why it costs: each launch takes the host several microseconds of framework code and one runtime call. Kernels shorter
    than that leave the device waiting for the next one. A graph replays all of them with a single call.

    What to do: `torch.compile(mode="reduce-overhead")`, `torch.cuda.graph` or `torch.cuda.make_graphed_callables`, in an
    inference server its CUDA-graph option. Shapes have to be fixed (pad to a few sizes), inputs have to stay at the same
    addresses, and nothing inside may synchronise or allocate with cudaMalloc.

    How to verify: record again; one graph launch stands where the launches were, and the idle time between kernels is
    gone.

    When it must not fire: the device is busy anyway, graphs replay the work already, the sequence changes from step to
    step, or synchronisations between the launches leave nothing to capture.
    """
    wall = view.window.wall_ns
    found = repeats(view)
    spans = (
        found.spans if len(found) else Intervals(*(np.array([t]) for t in (view.window.start_ns, view.window.end_ns)))
    )
    named = wall_time.of_launching(view, spans, LAUNCHING)
    lost = sum(named.values())
    idle = sum(ns for cause, ns in view.causes.items() if cause in IDLE)
    if lost < LOST * wall or wall - idle > BUSY * wall or _replayed(view) > REPLAYED:
        return
    repetition = view.repetition
    if repetition.count > 1 and repetition.identical < ALIKE * repetition.count:
        return
    if not len(regions(view.graph)):  # no two launches without a wait between them
        return
    rows = ascending(view.timeline.launch[view.operations[view.timeline.linked[view.operations]]])
    calls, steps = len(rows), max(repetition.count, 1)
    unit = "repeats" if repetition.inferred else "steps"
    forbids = tuple(_forbids(view))
    yield Claim(
        message=f"{share(lost, wall)} of the wall ({duration(lost)}) the GPU waits for the host to launch: {calls:,} launches"
        + (f", {calls / steps:,.0f} in each of {steps} {unit}, the same ones every time." if steps > 1 else ", recorded once."),
        named=named,
        how=_how(view, forbids),
        fix=replace(FIXES["cuda-graphs"], low_share=CAPTURED),
        evidence=(of_rows(view, rows, "launch calls"), *of_causes(view, *LAUNCHING), *forbids),
        formula=f"gaps of up to {duration(LAUNCH_SCALE_NS)} between the first and the last launch of a region go away, at most "
        f"{duration(found.idle_ns)} a repeat (the median from GPU end to GPU end, less its GPU work); between its operations "
        f"at most {value('tvi-launch-graph', 't') * 1e6:g} µs stay",
        at_most_ns=found.idle_ns * len(found),
        generic=True,
        unpriced="" if len(found) else "nothing repeats in the window, and a graph gives nothing to what runs once",
        doubts=tuple(_doubts(view, lost)),
    )  # fmt: skip


def _how(view: DeviceWindow, forbids: Sequence[Evidence]) -> str:
    """What captures it, and what has to go before that; in an engine that is an option alone."""
    how = how_to_capture(view)
    if in_engine(view) or not forbids:
        return how
    return f"{how} First move out of it what forbids capture: {', '.join(e.what for e in forbids)}."


def _replayed(view: DeviceWindow) -> float:
    """The share of operations that graphs replay."""
    timeline, mine = view.timeline, view.operations
    inside = timeline.by_graph[mine] | (view.trace.kind[timeline.row[mine]] == Kind.GRAPH)
    holes = in_graph_replay(timeline, timeline.start[mine])
    return float((inside | holes).mean())


def _forbids(view: DeviceWindow) -> Iterator[Evidence]:
    """Blocking calls inside the window: each ends what can be captured."""
    blocking, trace, window = view.attribution.blocking, view.trace, view.window
    inside = (trace.end_ns[blocking.row] >= window.start_ns) & (trace.end_ns[blocking.row] < window.end_ns)
    inside &= blocking.is_copy | ~measures(view, blocking.row)
    for copies, one, many in (
        (False, "synchronisation", "synchronisations"),
        (True, "blocking copy", "blocking copies"),
    ):
        if len(rows := blocking.row[inside & (blocking.is_copy == copies)]):
            what = one if len(rows) == 1 else many
            yield of_rows(view, rows, f"{len(rows):,} {what} ({trace.label(int(rows[0]))})")


def _doubts(view: DeviceWindow, lost: int) -> Iterator[str]:
    if view.trace.has_frames and lost > INFLATED * view.window.wall_ns:
        yield "recorded with Python stacks, which slow the host down: the true share is smaller"
    if not view.operators_recorded:
        yield "no operators of the launching threads were recorded, so what the host did between launches is not known"
    if view.attribution.queued_gap_ns == 0:
        yield "this recorder counts launch costs into the kernels (gaps of queued kernels are exactly 0)"
