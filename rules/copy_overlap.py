from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.replay.changes import scaled
from gpu_trace_advisor.replay.fixes import FIXES, Fix
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import in_graph
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import copy_classes, directions
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, moved_at, share

FROM = 0.05  # of the wall: a stream of its own and double buffers are work
FAST = 0.5  # share of the link's rate from which pinning alone gives nothing
OFFLOAD = 0.5  # of the wall in copies to the device: more than inputs ever need
BACK = 0.25  # of what was fetched: whoever brings more back works on data, not with weights
SEVERAL = 3  # copies to the device a repeat: fewer are its inputs
RECUR = 0.5  # share of distinct sizes among the copies; the same tensors come again and again below it


@rule(
    title="Copies that no kernel hides",
    cites=("ai-hierarchy", "gt-nvlink-pcie"),
    fires=(
        case(
            """
        step |...................
        host c.aS===============
        s7   .c>>>>>>aaaaaaaaaa..
        c: Memcpy HtoD (Pinned -> Device) 20MB
        repeat: 4
        scale: 100us
        """,
            "The next input could be copied while this one is worked on.",
        ),
        case(
            """
        host cd.a.ef.b.gh.k
        s7   .c>>>>>>>>d>>>>>>>>ae>>>>>>>>f>>>>>>>>bg>>>>>>>>h>>>>>>>>k
        c: Memcpy HtoD (Pinned -> Device) 40MB
        d: Memcpy HtoD (Pinned -> Device) 10MB
        e: Memcpy HtoD (Pinned -> Device) 40MB
        f: Memcpy HtoD (Pinned -> Device) 10MB
        g: Memcpy HtoD (Pinned -> Device) 40MB
        h: Memcpy HtoD (Pinned -> Device) 10MB
        scale: 100us
        """,
            "Weights are fetched for every layer: keep them on the device.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host a.c................
        s7   .aaaaaaaaaaaaaaaaaa.
        s8   ...c>>>>>>>.........
        c: Memcpy HtoD (Pinned -> Device) 20MB
        repeat: 4
        scale: 100us
        """,
            "On a stream of its own, behind a kernel.",
        ),
        case(
            """
        step |...................
        host c.d................
        s7   .c>>>>>>>d>>>>>>>>..
        c: Memcpy HtoD (Pinned -> Device) 20MB
        d: Memcpy HtoD (Pinned -> Device) 20MB
        repeat: 4
        scale: 100us
        """,
            "Nothing runs that could hide them.",
        ),
        case(
            """
        step |...................
        host c.a................
        s7   .c>>>>>>aaaaaaaaaa..
        c: Memcpy HtoD (Pageable -> Device) 2MB
        repeat: 4
        scale: 100us
        """,
            "Slow and pageable: that comes first, a pageable copy cannot overlap.",
        ),
    ),
)
def copy_overlap(view: DeviceWindow) -> Iterator[Claim]:
    """The device waits for copies over the link to the host although kernels could run meanwhile.

    Why it costs: copies have engines of their own, but on one stream they take their turn with the kernels. The link is a
    fraction as fast as the device's memory; weights that are fetched again for every layer keep it busy all the time.

    What to do: inputs: copy the next batch on a second stream while this one is worked on (pinned, `non_blocking=True`, an
    event instead of a synchronise). Weights: keep them on the device if they fit, offload fewer layers, or at least fetch the
    next layer while this one computes.

    How to verify: record again; copies run beside kernels, or are gone.

    When it must not fire: copies hidden behind kernels, programs that do nothing but copy, pageable memory (pin it first).
    """
    window, timeline = view.window, view.timeline
    items = view.attribution.partition(window.start_ns, window.end_ns)
    memories = ("pinned", "", "pageable") if _fast_pageable(view) else ("pinned", "")
    kinds = [(way, memory) for way in ("HtoD", "DtoH") for memory in memories]
    links = [" ".join(kind).strip() for kind in kinds]
    exposed = sum(item.ns for item in items if item.cause == "exposed-copy" and item.detail in links)
    kernels = timeline.is_kernel[view.operations].any()
    if exposed < FROM * window.wall_ns or not kernels:
        return
    classes = [copies for kind in kinds for copies in copy_classes(*kind)]
    mine = view.operations[np.isin(timeline.op_class[view.operations], classes)]
    size, ns = view.trace.bytes[timeline.row[mine]], int(timeline.length[mine].sum())
    total = int(size[size > 0].sum())
    weights = _offloaded(view, exposed, mine)
    yield Claim(
        message=f"{directions(timeline.op_class[mine])}, {moved_at(total, ns)}: {share(exposed, window.wall_ns)} of the wall "
        f"({duration(exposed)}) that no kernel hides"
        + (
            ", and the same sizes come again and again: weights are offloaded to the host and fetched for each use."
            if weights
            else "."
        ),
        named={"exposed-copy": exposed},
        how="Keep the weights on the device (stop CPU offload, offload fewer layers), or fetch the next layer on a second stream "
        "while this one computes. The memory is pinned already."
        if weights
        else "Copy the next input on a stream of its own while this one is worked on: "
        + ("non_blocking=True" if is_pytorch(view.trace) else "cudaMemcpyAsync")
        + ", an event, two pinned buffers.",
        fix=_resident(in_graph(view, mine)) if weights else FIXES["copy-overlap"],
        evidence=(of_operations(view, mine),),
        formula=f"exposed copy time {exposed / 1e6:,.3f} ms of {ns / 1e6:,.3f} ms",
        doubts=("that the copied data are weights is inferred from their recurring sizes",) if weights else (),
    )


def _fast_pageable(view: DeviceWindow) -> bool:
    """Pageable copies run at the link's rate already: what is left to gain is overlap, for which they must be pinned."""
    timeline = view.timeline
    mine = view.operations[np.isin(timeline.op_class[view.operations], copy_classes(memory="pageable"))]
    size, ns = view.trace.bytes[timeline.row[mine]], int(timeline.length[mine].sum())
    link = view.hardware.pcie if view.hardware else value("gt-nvlink-pcie", "pcie")
    return ns > 0 and int(size[size > 0].sum()) / ns * 1e9 > FAST * link


def _offloaded(view: DeviceWindow, exposed: int, copies: Int64) -> bool:
    """The copies fill the wall and are of few sizes, several come each time, hardly anything goes back, and nothing trains."""
    timeline, size = view.timeline, view.trace.bytes[view.timeline.row[copies]]
    recurs = len(size) >= 4 and len(ascending(size)) <= RECUR * len(size) and bool((size > 0).all())
    fetched = np.isin(timeline.op_class[copies], copy_classes("HtoD"))
    one_way = size[~fetched].sum() <= BACK * size[fetched].sum()
    several = fetched.sum() >= SEVERAL * max(view.repetition.count, 1)
    fills = exposed > OFFLOAD * view.window.wall_ns
    return bool(recurs and fills and one_way and several) and view.phase.name != "training"


def _resident(copies: Int64) -> Fix:
    """Pessimistic: they overlap with kernels; optimistic: they are gone."""
    overlap = FIXES["copy-overlap"]

    def gone(graph: Graph) -> Graph:
        return scaled(copies, 0.0)(graph)

    return replace(
        overlap, name="resident-weights", title="weights stay on the device", high=gone,
        assumes=("pessimistic: the next layer is fetched while this one computes", "optimistic: all weights fit on the device"),
    )  # fmt: skip
