from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import union
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COPIES, FIRST_COPY
from gpu_trace_advisor.units import duration, share

FEWEST = 8  # copies before a replay, in the median: some inputs are always copied
FROM = 0.02  # of the wall

ON_DEVICE = [FIRST_COPY + i for i, (direction, _) in enumerate(COPIES) if direction == "DtoD"]


@rule(
    title="Inputs are copied before each replay of a graph",
    cites=("https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html",),
    needs=("host", "launches"),
    fires=(
        """
        step |..............................................
        host c.d.e.f.h.i.j.k.l.g.S=====================....
        s7   .c>d>e>f>h>i>j>k>l>..gggggggggggggggggggggg....
        g: graph
        c: Memcpy DtoD (Device -> Device) 1MB
        d: Memcpy DtoD (Device -> Device) 1MB
        e: Memcpy DtoD (Device -> Device) 1MB
        f: Memcpy DtoD (Device -> Device) 1MB
        h: Memcpy DtoD (Device -> Device) 1MB
        i: Memcpy DtoD (Device -> Device) 1MB
        j: Memcpy DtoD (Device -> Device) 1MB
        k: Memcpy DtoD (Device -> Device) 1MB
        l: Memcpy DtoD (Device -> Device) 1MB
        repeat: 3
        scale: 10us
        """,
    ),
    quiet=(
        case(
            """
        step |..............................................
        host c.d.g.S==================================....
        s7   .c>d>.gggggggggggggggggggggggggggggggggggg....
        g: graph
        c: Memcpy DtoD (Device -> Device) 1MB
        d: Memcpy DtoD (Device -> Device) 1MB
        repeat: 3
        scale: 10us
        """,
            "A few inputs.",
        ),
        case(
            """
        step |..............................................
        host c.d.e.f.h.i.j.k.l.g.S=====================....
        s7   .c>d>e>f>h>i>j>k>l>..gggggggggggggggggggggg....
        c: Memcpy DtoD (Device -> Device) 1MB
        repeat: 3
        scale: 10us
        """,
            "No graph.",
        ),
    ),
)
def graph_inputs(view: DeviceWindow) -> Iterator[Claim]:
    """Before each replay of a CUDA graph many tensors are copied to the addresses that it was captured with.

    Why it costs: a graph reads fixed addresses. What lives elsewhere is copied there first, one small copy after the other,
    each with its launch; parameters and caches that count as inputs are copied whole.

    What to do: keep inputs at static addresses: write into the tensors that the graph was captured with, allocate them once;
    `torch._dynamo.mark_static_address` for buffers and caches, parameters as attributes of the module and not as arguments.

    How to verify: record again; replays follow each other with a few copies between them.

    When it must not fire: a few inputs a replay, or copies that belong to no graph.
    """
    timeline, wall = view.timeline, view.window.wall_ns
    mine = view.operations
    copies = mine[np.isin(timeline.op_class[mine], ON_DEVICE) & timeline.linked[mine] & ~timeline.by_graph[mine]]
    replays = mine[timeline.by_graph[mine] & ~timeline.later_node[mine]]
    if not len(copies) or len(replays) < 2:
        return
    begins = np.sort(timeline.start[replays])
    before = np.searchsorted(begins, timeline.start[copies])
    inputs = copies[before < len(begins)]
    each = np.bincount(before[before < len(begins)], minlength=len(begins))
    if np.median(each) < FEWEST:
        return
    number = np.searchsorted(begins, timeline.start[inputs])
    first = np.full(len(begins), np.iinfo(np.int64).max)
    np.minimum.at(first, number, timeline.launch_start[inputs])
    some = np.flatnonzero(each >= FEWEST)
    spans = union(np.minimum(first[some], begins[some]), begins[some])
    named = wall_time.of_idle(view, spans, ("framework", "python", "launch-call", "launch-latency", "queued-gap"))
    exposed = int(view.time_of(inputs).sum())
    named["exposed-copy"] = min(exposed, view.causes.get("exposed-copy", 0))
    lost = sum(named.values())
    if lost < FROM * wall:
        return
    yield Claim(
        message=f"{np.median(each):,.0f} copies on the device come before each of {len(begins):,} graph replays: "
        f"{share(lost, wall)} of the wall ({duration(lost)}) with the time to launch them.",
        named=named,
        how="Keep the graph's inputs at static addresses: write into the captured tensors, or mark buffers and caches with "
        "torch._dynamo.mark_static_address.",
        evidence=(of_operations(view, inputs),),
        formula=f"copies {exposed / 1e6:,.3f} ms and the idle time between the first of them and the replay",
        unpriced="which of the inputs could stay where they are is not in the timeline",
        particular=True,
    )
