import re
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import Intervals, ascending, union
from gpu_trace_advisor.ranks.collective_kinds import kind_of
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations, of_rows
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind
from gpu_trace_advisor.units import duration, share

FROM = 0.03  # of the wall in idle time of one kind: less is not worth a setting
MANY = 30  # all-reduces a step: a bucket of 25 MB a time gives a model of 7 B parameters no more of them in 16 bit
TOGETHER = 8  # that many would become one: what is left of the calls
BUCKET_COPY = re.compile(r"copy_bucket_to_grad|reducer::mul_out|copy_grad_to_bucket")
"""Ranges that DistributedDataParallel records around its copies between gradients and buckets."""


@rule(
    title="DistributedDataParallel costs the host",
    cites=("ai-bucket-effect", "https://docs.pytorch.org/docs/stable/notes/ddp.html"),
    needs=("host", "launches"),
    phases=("training",),
    because="ai-bucket-effect",
    in_doubt=True,
    fires=(
        """
        step |...................................
        host OOOnOOOnOOOnOOOnOOOnOOOna.S=====....
        s7   ....n...n...n...n...n...naaaaaaa....
        n: ncclDevKernel_Broadcast_RING_LL
        O: c10d::broadcast_
        phase: training
        repeat: 4
        scale: 20us
        """,
        case(
            """
        step |......................................................................................................
        host OOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOnOOna.S====
        s7   ...n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..n..naaaaaa
        n: ncclDevKernel_AllReduce_Sum_f32_RING_LL
        O: c10d::allreduce_
        phase: training
        repeat: 4
        scale: 20us
        """,
            "An all-reduce for each of 32 parameters.",
        ),
        case(
            """
        step |....................................
        host a.S====OOOcOOOcOOOcOOOcOOOcOOOcb.S===
        s7   .aaaaaa....c...c...c...c...c...cbbbbb
        O: torch.distributed.ddp.reducer::copy_bucket_to_grad
        phase: training
        repeat: 4
        scale: 20us
        """,
            "Gradients are copied out of their buckets.",
        ),
    ),
    quiet=(
        case(
            """
        step |......................................................................................................
        host OOnOOnOOnOOnOOnOOnOOnOOnOOnOOna.S======================================================================
        s7   ...n..n..n..n..n..n..n..n..n..naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        n: ncclDevKernel_AllReduce_Sum_f32_RING_LL
        O: c10d::allreduce_
        phase: training
        repeat: 4
        scale: 20us
        """,
            "Ten all-reduces a step are those of buckets.",
        ),
        case(
            """
        step |...................................
        host a.OOOnOOOnOOOnOOOnOOOnOOOn.S====....
        s7   .aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.....
        s9   ......n...n...n...n...n...n.........
        n: ncclDevKernel_Broadcast_RING_LL
        O: c10d::broadcast_
        phase: training
        repeat: 4
        scale: 20us
        """,
            "Queued work hides them.",
        ),
        case(
            """
        step |....................................................................................................
        host na.S=============================================================================================....
        s7   .naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa....
        n: ncclDevKernel_Broadcast_RING_LL
        phase: training
        repeat: 4
        scale: 20us
        """,
            "One of them, little beside the step.",
        ),
    ),
)
def ddp_host(view: DeviceWindow) -> Iterator[Claim]:
    """Wrapping a model in DistributedDataParallel makes the host do work that the GPU waits for.

    Why it costs: buffers, such as the statistics of batch normalisation, are broadcast before each forward pass; gradients
    are copied into buckets and out of them again; gradients reduced one by one cost the host a call for each parameter.

    What to do: `broadcast_buffers=False` where the buffers need not be rank 0's, `gradient_as_bucket_view=True`, buckets of
    many parameters (`bucket_cap_mb`), `static_graph=True`; reduce by hand only what was flattened.

    How to verify: record again; the broadcasts and copies are gone, and all-reduces a step are few.

    When it must not fire: queued work hides these calls, or they are a few.
    """
    timeline = view.timeline
    mine = view.operations[timeline.op_class[view.operations] == COMMUNICATION]
    mine = mine[timeline.linked[mine]]
    kinds = np.array([kind_of(timeline.label(int(i))) for i in mine], dtype=object)
    yield from _broadcasts(view, mine[kinds == "broadcast"])
    yield from _reduces(view, mine[kinds == "allreduce"])
    yield from _bucket_copies(view)


def _broadcasts(view: DeviceWindow, operations: Int64) -> Iterator[Claim]:
    if len(operations) < max(len(view.kept_steps), 1):
        return
    named = wall_time.of_idle(view, _around(view, operations))
    named |= _exposed(view, operations)
    lost = sum(named.values())
    if lost < FROM * view.window.wall_ns:
        return
    yield Claim(
        title="Buffers are broadcast before each forward pass",
        message=f"{_a_step(view, len(operations))} a broadcast and the host's work for it: "
        f"{share(lost, view.window.wall_ns)} of the wall ({duration(lost)}) in which the GPU computes nothing.",
        named=named,
        how="DistributedDataParallel(broadcast_buffers=False), where buffers (BatchNorm's statistics) need not be rank 0's.",
        evidence=(of_operations(view, operations),),
        formula="idle time inside the operators around the broadcasts, and broadcasts that nothing hides",
        unpriced="no change of the timeline stands for calls of a library that are gone",
        particular=True,
    )


def _reduces(view: DeviceWindow, operations: Int64) -> Iterator[Claim]:
    steps = max(len(view.kept_steps), 1)
    if len(operations) < MANY * steps:
        return
    idle = wall_time.of_idle(view, _around(view, operations))
    spared = 1 - 1 / TOGETHER
    named = {cause: int(ns * spared) for cause, ns in idle.items()}
    lost = sum(named.values())
    if lost < FROM * view.window.wall_ns:
        return
    each = sum(idle.values()) / len(operations)
    yield Claim(
        title="An all-reduce for each parameter costs the host",
        message=f"{_a_step(view, len(operations))} an all-reduce, each with {duration(round(each))} of the host's work in "
        f"which the GPU is idle: an eighth as many would leave it idle for {share(lost, view.window.wall_ns)} of the wall "
        f"({duration(lost)}) less.",
        named=named,
        how="Reduce gradients in buckets: DistributedDataParallel (bucket_cap_mb) instead of a hook for each parameter, or "
        "flatten what is reduced by hand.",
        evidence=(of_operations(view, operations),),
        formula=f"idle time inside the operators around them × (1 − 1/{TOGETHER})",
        grade="assumed",
        unpriced="no change of the timeline stands for calls of a library that are gone",
        particular=True,
    )


def _bucket_copies(view: DeviceWindow) -> Iterator[Claim]:
    trace, window = view.trace, view.window
    wanted = np.array([BUCKET_COPY.search(name) is not None for name in trace.names], np.bool_)
    if not wanted.any():
        return
    rows = np.flatnonzero(trace.name_mask(wanted) & np.isin(trace.kind, (Kind.OPERATOR, Kind.RANGE)))
    rows = rows[(trace.start_ns[rows] < window.end_ns) & (trace.end_ns[rows] > window.start_ns)]
    if not len(rows):
        return
    spans = union(trace.start_ns[rows], trace.end_ns[rows])
    mine = view.operations[_launched_in(view, spans)]
    named = wall_time.of_idle(view, spans) | (wall_time.of_kernels(view, mine) if len(mine) else {})
    lost = sum(named.values())
    if lost < FROM * window.wall_ns:
        return
    yield Claim(
        title="Gradients are copied between parameters and buckets",
        message=f"{_a_step(view, len(rows))} a copy between gradients and the buckets that are reduced: "
        f"{share(lost, window.wall_ns)} of the wall ({duration(lost)}).",
        named=named,
        how="DistributedDataParallel(gradient_as_bucket_view=True): gradients then live in the buckets.",
        evidence=(of_rows(view, rows),),
        formula="idle time inside these ranges, and the kernels launched in them",
        unpriced="no change of the timeline stands for calls of a library that are gone",
        particular=True,
    )


def _a_step(view: DeviceWindow, count: int) -> str:
    steps = len(view.kept_steps)
    return f"{count / steps:,.0f} times a step" if steps > 1 else f"{count:,} times"


def _around(view: DeviceWindow, operations: Int64) -> Intervals:
    """What the host spends on these operations: the outermost operator around each launch that names a collective, else the
    launch itself, and the operators right before it of such a name."""
    timeline, trace, host = view.timeline, view.trace, view.timeline.host
    rows = ascending(timeline.launch[operations])
    names = np.array([_of_library(name) for name in trace.names], np.bool_)
    outer, at = rows.astype(np.int64), rows.astype(np.int64)
    while (at != NONE).any():
        known = at != NONE
        found = known & names[trace.name_code[np.maximum(at, 0)]]
        outer[found] = at[found]
        at = np.where(known, host.parent[np.maximum(at, 0)], NONE)
    before = np.flatnonzero(trace.name_mask(names) & (trace.kind == Kind.OPERATOR))
    every = np.concatenate([outer, before])
    return union(trace.start_ns[every], trace.end_ns[every])


def _of_library(name: str) -> bool:
    return bool(re.search(r"c10d::|^nccl:|record_param_comms|ProcessGroup|_broadcast_coalesced", name))


def _exposed(view: DeviceWindow, operations: Int64) -> dict[str, int]:
    """The part of the exposed communication that these are, by their share of all communication."""
    timeline = view.timeline
    every = view.operations[timeline.op_class[view.operations] == COMMUNICATION]
    part = int(timeline.length[operations].sum()) / max(int(timeline.length[every].sum()), 1)
    ns = int(part * view.causes.get("exposed-communication", 0))
    return {"exposed-communication": ns} if ns else {}


def _launched_in(view: DeviceWindow, spans: Intervals) -> Bool:
    timeline = view.timeline
    begun = np.where(timeline.linked[view.operations], timeline.launch_start[view.operations], -1)
    at = np.searchsorted(spans.start, begun, side="right") - 1
    return np.asarray((at >= 0) & (begun < spans.end[np.maximum(at, 0)]), np.bool_)
