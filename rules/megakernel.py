from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import union
from gpu_trace_advisor.decode.passes import Decoding
from gpu_trace_advisor.reference.facts import span, value
from gpu_trace_advisor.replay.changes import scaled, together, without_gaps
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.roofline.kernel_time import CAUSES
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import Floats, in_graph, less
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import duration, percent

LOST = 0.15  # of the decode between and at the ends of kernels: less does not pay for a kernel written for one model
NEAR = 0.75  # of the bandwidth in use: the best published megakernel reaches little more
HEAVY = 20e9  # bytes of weights on one device: kernels are so long that their ends are less than a tenth of the pass


@rule(
    title="Kernel boundaries inside graph replays",
    cites=("tvi-matrix-megakernel", "tvi-megakernel-not-training", "tvi-megakernel-mechanism", "tvi-bw-megakernel",
           "tvi-objective-latency", "tvi-objective-throughput", "tvi-spec-megakernel"),
    phases=("decode",),
    because="tvi-matrix-megakernel",
    fires=(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g..S====================
        s7   .gg.gg.gg.gg.gg.gg.gg.gg.
        g: graph
        D: step[DECODE bs=1]
        repeat: 4
        device: H100 SXM
        weights: 30MB
        """,
        case(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g..S====================
        s7   .gg.gg.gg.gg.gg.gg.gg.gg.
        g: graph
        D: step[DECODE bs=1]
        repeat: 4
        """,
            "The bytes of the weights are not known: a question.",
        ),
    ),
    quiet=(
        case(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g..S====================
        s7   .gg.gg.gg.gg.gg.gg.gg.gg.
        g: graph
        D: step[DECODE bs=32]
        repeat: 4
        device: H100 SXM
        weights: 30MB
        """,
            "A batch of 32.",
        ),
        case(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g.h.i.j.k.l.m.n........
        s7   .gg.hh.ii.jj.kk.ll.mm.nn.
        D: step[DECODE bs=1]
        repeat: 4
        device: H100 SXM
        weights: 30MB
        """,
            "No graphs yet: those come first.",
        ),
        case(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g..S====================
        s7   .gg.gg.gg.gg.gg.gg.gg.gg.
        g: graph
        D: step[DECODE bs=1]
        repeat: 4
        device: H100 SXM
        weights: 66MB
        """,
            "Near the bandwidth.",
        ),
        case(
        """
        step |........................
        host g..S====================
        s7   .gg.gg.gg.gg.gg.gg.gg.gg.
        g: graph
        repeat: 4
        phase: training
        """,
            "Training, whatever its graphs.",
        ),
        case(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g..S====================
        s7   .gg.gg.gg.gg.gg.gg.gg.gg.
        g: graph fused_moe_kernel
        D: step[DECODE bs=1]
        repeat: 4
        """,
            "Experts: which of them work changes from pass to pass.",
        ),
        case(
        """
        host DDDDDDDDDDDDDDDDDDDDDDDDD
        host2 g..S====================
        s7   .gggggggg.gggggggggggggg.
        g: graph
        D: step[DECODE bs=1]
        repeat: 4
        """,
            "Hardly anything is lost between the kernels.",
        ),
    ),
)  # fmt: skip
def megakernel(view: DeviceWindow) -> Iterator[Claim]:
    """Graphs replay the pass already, and what is left between its kernels and at their ends is a large part of it.

    Why it costs: at each boundary the last blocks of a kernel run alone, the memory pipe drains, and the next kernel fills
    it again. One persistent kernel for the whole pass starts loading the next weights before the last product is done. It
    computes nothing faster; it only takes away the time in which nothing flows.

    What to do: for one user at a time and a model that has one, a megakernel (Hazy Research's for Llama, Mirage's
    persistent kernel); otherwise fewer and larger kernels (fused projections, programmatic dependent launch).

    How to verify: compare the length of a pass with its floor (weights and cache over the bandwidth).

    When it must not fire: training and prefill (hard), launches not captured yet, a larger batch, more than three quarters
    of the bandwidth in use, weights above 20 GB on the device, or experts, whose work changes from pass to pass.
    """
    decode = Decoding(view)
    rows, weights, nodes = decode.rows.value, decode.weights.value, decode.graph_nodes
    crowd = rows is not None and rows > span("tvi-objective-latency", "b")[1]
    if not len(nodes) or crowd or decode.experts or decode.host_bound or (weights or 0) > HEAVY:
        return
    if decode.reach is not None and decode.reach > NEAR:
        return
    gaps, ends = _gaps(view, nodes), _ends(view, nodes)
    lost = int(gaps.sum() + ends.sum())
    if lost < LOST * decode.ns:
        return
    fix = Fix(
        "megakernel", "one kernel for the whole pass",
        lambda graph: without_gaps(in_graph(view, nodes))(graph),
        lambda graph: together(
            without_gaps(at := in_graph(view, nodes)), scaled(at, less(view, nodes, ends))
        )(graph),
        assumes=("pessimistic: only the gaps go; optimistic: also last waves and ramps", "the megakernel is as fast in between"),
    )  # fmt: skip
    claim = Claim(
        message=f"{percent(lost / decode.ns)} of the decode goes to the gaps between {len(nodes):,} kernels of graph replays "
        f"({duration(int(gaps.sum()))}) and to their ends ({duration(int(ends.sum()))})"
        + (f"; {percent(decode.reach)} of the bandwidth is used." if decode.reach is not None else "."),
        named=_named(view, nodes, gaps, ends),
        how="If one user's latency counts and the model has one, try a megakernel; otherwise fuse into fewer kernels.",
        evidence=(of_operations(view, nodes, "kernels inside graph replays"),),
        formula="gaps, last waves and ramps of the replays' kernels",
        grade="modelled",
        doubts=tuple(_doubts(view, decode)),
    )
    if decode.floor_ns is None or not decode.passes.value:
        yield replace(claim, how=f"How many bytes do the weights have ({decode.weights.why})? {claim.how}")
        return
    best = decode.passes.value * decode.floor_ns / value("tvi-bw-megakernel", "mbu")
    yield replace(
        claim, fix=fix, at_most_ns=max(int(decode.ns - best), 0),
        formula=f"{claim.formula}, and never below the floor of {decode.floor_ns / 1e6:.3g} ms a pass over "
        f"{percent(value('tvi-bw-megakernel', 'mbu'))}, what the best published one reached",
    )  # fmt: skip


def _named(view: DeviceWindow, nodes: Int64, gaps: Int64, ends: Floats) -> dict[str, int]:
    """The gaps by what they are, the ends as last waves and ramps."""
    before = union(view.timeline.start[nodes] - gaps, view.timeline.start[nodes])
    idle = wall_time.of_idle(view, before)
    lost = wall_time.of_kernels(view, nodes, ends / np.maximum(view.time_of(nodes), 1.0))
    return idle | {"tail": lost.get("tail", 0), "ramp": lost.get("ramp", 0)}


def _gaps(view: DeviceWindow, nodes: Int64) -> Int64:
    """ns before each node in which nothing runs."""
    timeline = view.timeline
    ended = np.maximum.accumulate(timeline.end)
    before: Int64 = np.maximum(timeline.start[nodes] - ended[np.maximum(nodes - 1, 0)], 0)
    return before


def _ends(view: DeviceWindow, nodes: Int64) -> Floats:
    """ns of each node that its last wave and its ramp take, as far as they are modelled."""
    window = view.window
    on, table = view.inkernel.parts(window.start_ns, window.end_ns)
    lost = np.zeros(len(view.timeline.row))
    lost[on] = table[:, CAUSES.index("tail")] + table[:, CAUSES.index("ramp")]
    return np.minimum(lost[nodes], view.time_of(nodes))


def _doubts(view: DeviceWindow, decode: Decoding) -> Iterator[str]:
    if decode.rows.value is None:
        yield decode.rows.why
    if decode.speculates:
        yield "it speculates: the number of accepted tokens changes the work, which a static kernel does not like"
    if view.request.objective != "latency":
        yield "whether latency counts is not known (--objective)"
