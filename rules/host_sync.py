from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.intervals import Intervals
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.replay.changes import Change, synchronisations, without_waits
from gpu_trace_advisor.replay.fixes import FIXES, plain_synchronisations
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_rows, running
from gpu_trace_advisor.rulekit.host.measurement_syncs import measures
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.timelines.device import SKEW_NS
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, share, times

REFILLING = ("framework", "python", "launch-call")  # what a queue behind the call would have hidden
RUNNING = ("python", "cpu-compute")  # what the host does by itself, with a name
FROM = 0.01  # of the wall: the engine's own limit; a synchronisation that only waits for work costs nothing here


@rule(
    title="Synchronisations drain the GPU",
    cites=("tvi-cause-barrier", "ai-serial-culprits", "ai-serial-fraction"),
    needs=("host", "launches"),
    fires=(
        case(
            """
        step |.............................
        host a.S==========OOOObOOOOc......
        s7   .aaaaaaaaaaa......bbbb..cccc.
        repeat: 4
        scale: 10us
        """,
            "The value is read in the middle of the step; until the next launch the device has nothing to do.",
        ),
        """
        step |.........................
        host aS====PPPPPbS====PPPPPc..
        s7   .aaaa......bbbb......ccc.
        repeat: 4
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |...................
        host abcdS========......
        s7   .aaaabbbbcccccdddddd
        repeat: 4
        scale: 10us
        """,
            "Work was queued before the wait: the device goes on while the host waits.",
        ),
        case(
            """
        step |...................
        host aOObS============cO
        s7   .aaaaaaabbbbbbbbb.cc
        repeat: 4
        scale: 10us
        """,
            "A long wait for useful work at the end of the step, and the next launch at once.",
        ),
        case(
            """
        step |...................
        host a.S===DDDDDDDDDb...
        s7   .aaaaa..........bbbb
        repeat: 4
        scale: 10us
        """,
            "The device waits as long, but for the data loader.",
        ),
        case(
            """
        step |...................
        host a.OOOOOOOOb.OOOOOc.
        s7   .a.........b......c.
        repeat: 4
        scale: 10us
        """,
            "Nothing waits; the host is just slow.",
        ),
        case(
            """
        step |.................
        host ..abcS=======PPPP
        s7   ...aaabbbccc.....
        repeat: 4
        scale: 100us
        """,
            "A harness waits for the device between two steps: nothing of either step is launched on its other side.",
        ),
        case(
            """
        step |.........................
        host PPPPPPPPPPPPPPPPPPPPPPPPPP
        host aS====.....bS====......c..
        s7   .aaaa.......bbbb.......cc.
        P: tools/profiling.py(34): run_profiler
        repeat: 4
        scale: 100us
        """,
            "The profiler's own, in the middle of what it records.",
        ),
    ),
)
def host_sync(view: DeviceWindow) -> Iterator[Claim]:
    """The host waits for the device, and then the device waits for the host.

    Why it costs: `.item()`, `.cpu()`, `print(tensor)`, a boolean test of a tensor, `nonzero`, or an explicit synchronise
    returns only when the queue is empty. Until the host has prepared and launched the next kernels, the device stands
    still: it drained, and has to be refilled.

    What to do: keep the value on the device, read it every N steps, or copy it with `non_blocking=True` into pinned memory
    and read it a step later. Replace data-dependent shapes (`nonzero`, boolean masks) by `torch.where`. Remove
    synchronisations that were put in to measure time.

    How to verify: record again; the calls named here are gone or come once in many steps, and launches run ahead of the
    device.

    When it must not fire: a wait for running work with more work queued behind it, however long. Only drained and refilled
    time counts, never the length of the call. Nor on who measures: a synchronisation from a file or function named for
    profiling, benchmarking or timing, or between two steps, with no launch of either on its other side, reading nothing.
    """
    window, attribution, trace = view.window, view.attribution, view.trace
    blocking = attribution.blocking
    measuring = blocking.row[~blocking.is_copy & measures(view, blocking.row)]
    reads = blocking.row[blocking.reads]
    left_out = np.concatenate([measuring, blocking.row[blocking.is_copy & ~blocking.reads]])
    drained = 0
    for part, ns in attribution.pieces.clipped(window.start_ns, window.end_ns):
        mine = np.flatnonzero((part.cause == CODE["host-sync"]) & (ns > 0))
        drained += int(ns[mine[~among(part.row[mine], left_out)]].sum())
    refills = _refills(view, left_out)
    named = {"host-sync": drained, **wall_time.of_idle(view, refills, REFILLING)}
    lost = sum(named.values())
    if lost < FROM * window.wall_ns:
        return
    ends = trace.end_ns[blocking.row]
    rows = blocking.row[(ends >= window.start_ns) & (ends < window.end_ns) & ~among(blocking.row, left_out)]
    if not len(rows):
        return
    evidence = of_rows(view, rows)
    operator = int(view.timeline.host.operator[rows[0]])
    inside = f" in {trace.label(operator)}" if operator >= 0 else ""
    steps = view.repetition.count
    unit = "repeat" if view.repetition.inferred else "step"
    rate = f", {len(rows) / steps:.3g} a {unit}," if 1 < steps < 2 * len(rows) else ""
    meanwhile = running(view, RUNNING, refills, lost // 2)
    runs = f"; meanwhile the host runs {meanwhile}" if meanwhile else ""
    yield Claim(
        message=f"The host waits for the GPU {times(len(rows))} ({evidence.what}{inside}){rate} and leaves it without work "
        f"for {share(lost, window.wall_ns)} of the wall ({duration(lost)}){runs}.",
        named=named,
        how=_how(view, evidence),
        fix=replace(
            FIXES["host-sync"],
            low=_without(plain_synchronisations, measuring),
            high=_without(lambda graph: np.concatenate([synchronisations(graph), reads]), measuring),
        ),
        particular=True,
        evidence=(evidence,),
        formula=f"idle time inside the calls and until the next operation, no longer than they waited, "
        f"{lost / 1e6:,.3f} ms; a serial part of 1 % alone "
        f"limits 64 GPUs to {value('ai-serial-fraction', 's1'):g} times one",
    )


def _how(view: DeviceWindow, evidence: Evidence) -> str:
    if is_pytorch(view.trace):
        return (
            f"Remove or postpone the wait{' at ' + evidence.python if evidence.python else ''}: keep the value on the GPU, "
            "read it every N steps, or copy it non_blocking into pinned memory and read it one step later."
        )
    return (
        "Remove the wait where the host reads nothing: operations of a stream run in order, and cudaStreamWaitEvent orders "
        "streams. Read results later, from pinned memory, after cudaEventSynchronize."
    )


def _refills(view: DeviceWindow, left_out: Int64) -> Intervals:
    """From the return of each of these calls to the end of the gap that it left, no longer than it had waited: with a queue
    behind it the host would have prepared the next operations meanwhile."""
    blocking, gaps = view.attribution.blocking, view.timeline.gaps
    mine = np.flatnonzero((blocking.busy_ns > 0) & ~among(blocking.row, left_out))
    returned = view.trace.end_ns[blocking.row[mine]]
    order = np.argsort(returned, kind="stable")
    mine, returned = mine[order], returned[order]
    gap = np.searchsorted(gaps.end, returned, side="right")  # the first that is not over
    mine, returned, gap = (one[gap < len(gaps.end)] for one in (mine, returned, gap))
    # By the clocks' skew the copy of one that reads may end after it returned, and the gap begin.
    begin = np.where(blocking.reads[mine], np.clip(gaps.start[gap], returned, returned + SKEW_NS), returned)
    end = np.minimum(gaps.end[gap], returned + blocking.busy_ns[mine])
    end[:-1] = np.minimum(end[:-1], returned[1:])
    keep = (gaps.start[gap] <= begin) & (end > begin)
    return Intervals(begin[keep], end[keep])


def _without(which: Callable[[Graph], Int64], stay: Int64) -> Change:
    """These synchronisations are gone, but for those that stay."""

    def change(graph: Graph) -> Graph:
        rows = which(graph)
        return without_waits(rows[~among(rows, stay)].tolist())(graph)

    return change
