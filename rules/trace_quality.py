from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.health import CUT_NS, UNRECORDED_SHARE, Unexplained, unexplained
from gpu_trace_advisor.rulekit.evidence import at_ms
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.trace.model import Bool
from gpu_trace_advisor.units import duration, share

LATE = 0.03  # of the wall: less is not worth a line


@rule(
    title="Not all of the GPU's work was recorded",
    cites=(),
    cold=True,
    fires=(
        case(
            """
        step |...................................
        host g.h.S=============================..
        s7   .ggggg....................ggggg.hhh..
        g: graph
        h: graph
        repeat: 3
        scale: 100us
        """,
            "A replay of a graph, some of whose nodes are missing.",
        ),
        case(
            """
        host a.b.S==================================
        s7   .a..............................bbbbbb
        scale: 1ms
        """,
            "A launched kernel waits for work that was cut away.",
        ),
        case(
            """
        host a.S.b.S===============================
        s7   .a..............................bbbbbb
        scale: 1ms
        """,
            "The device was empty when it was launched: it began late.",
        ),
    ),
    quiet=(
        case(
            """
        step |..............
        host g.h.S========..
        s7   .gggggggggghhh..
        g: graph
        h: graph
        repeat: 3
        scale: 100us
        """,
            "Every node is there.",
        ),
        case(
            """
        step |...................................
        host OOOOOOOOOOOOOOOOOOOOOOOO.a.b.S=====..
        s7   ..........................aaaabbbbb..
        repeat: 3
        scale: 100us
        """,
            "The device waits, but for the host.",
        ),
        case(
            """
        step |..............
        host a.b.S========..
        s7   .aaaa.bbbbbb...
        repeat: 3
        scale: 10us
        """,
            "A short wait between two operations is the device's own.",
        ),
    ),
)
def trace_quality(view: DeviceWindow) -> Iterator[Claim]:
    """The device seems idle where it was not: work ran that the recording does not hold.

    Why it costs: it costs nothing at run time, but every share, and every saving that rests on this time, is wrong. Some
    recorders leave out nodes of CUDA graphs; recordings that were cut, or started while the device was busy, lack what the
    first operations waited for.

    What to do: graphs: a newer CUPTI (a newer PyTorch brings it), with Nsight `--cuda-graph-trace=node`. Cut recordings:
    start after a synchronise, stop after the device is done, and do not edit the file.

    How to verify: record again; this finding is gone, and the device is as busy as the kernels' own times say.

    When it must not fire: the device waits for the host, or short pauses between operations.
    """
    window = view.window
    waits = unexplained(view.attribution, window)
    holes = int(waits.ns[waits.in_graph].sum())
    if holes >= UNRECORDED_SHARE * window.wall_ns:
        yield Claim(
            message=f"{share(holes, window.wall_ns)} of the wall ({duration(holes)}) are holes inside "
            "submitted graph replays: kernels ran there that were not recorded. This is not idle time.",
            named={"device-unknown": holes},
            how="Record again with a newer CUPTI (PyTorch), or with nsys --cuda-graph-trace=node.",
            evidence=(_where("holes in graph replays", view, waits, waits.in_graph),),
            formula=f"waits of submitted operations inside replays that nothing explains: {holes / 1e6:,.3f} ms",
            grade="modelled",
            unpriced="what the trace does not hold cannot be saved",
            first=True,
        )
    lost = int(waits.ns[waits.cut].sum())
    if lost:
        yield Claim(
            message=f"{share(lost, window.wall_ns)} of the wall ({duration(lost)}) submitted operations waited for "
            "work that the trace does not hold: it was cut, or began while the device was busy.",
            named={"device-unknown": lost},
            how="Record from a synchronise to a synchronise; for these numbers choose a --window behind the cut.",
            evidence=(_where("waits for nothing recorded", view, waits, waits.cut),),
            formula=f"waits of submitted operations over {CUT_NS / 1e6:g} ms that nothing explains: {lost / 1e6:,.3f} ms",
            grade="modelled",
            unpriced="what the trace does not hold cannot be saved",
            first=True,
        )
    late = int(waits.ns[waits.late].sum())
    if late >= LATE * window.wall_ns:
        yield Claim(
            title="The GPU begins late",
            message=f"{share(late, window.wall_ns)} of the wall ({duration(late)}) submitted operations waited although the GPU "
            "had nothing else to do: what was launched before was done.",
            named={"device-unknown": late},
            how="A first launch loads code: record warm steps. WSL2 and Windows (WDDM) hand launches over in batches: measure "
            "on Linux itself. Else look for another process on this GPU (nvidia-smi), or for memory allocated just before.",
            evidence=(_where("late starts", view, waits, waits.late),),
            formula=f"waits of over {CUT_NS / 1e6:g} ms of operations submitted to a device that was empty: {late / 1e6:,.3f} ms",
            grade="modelled",
            unpriced="no change of the program is known to save it",
        )


def _where(what: str, view: DeviceWindow, waits: Unexplained, mask: Bool) -> Evidence:
    starts = waits.start[mask]
    return Evidence(what, len(starts), int(waits.ns[mask].sum()), at_ms(view, np.sort(starts).tolist()))
