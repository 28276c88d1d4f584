from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.ranks.collective_kinds import kind_of
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.units import duration, share

SHORT_NS = 60_000  # 8 MB take about this long over NVLink; a shorter all-reduce is mostly latency
FEWEST = 8  # short ones a step; fewer are the loss, a norm, a flag
FROM = 0.02  # of the wall in exposed communication; less is not worth other buckets
TOGETHER = 8  # so many short ones become one
STAYS = 0.5  # pessimistic: half of their time is bytes, which travel as before


@rule(
    title="Gradients are reduced in many small pieces",
    cites=("ai-ring-optimal", "ai-bucket-effect", "ai-allreduce-latency", "gt-tree-vs-ring"),
    phases=("training",),
    in_doubt=True,
    because="ai-bucket-effect",
    fires=(
        """
        step |............................
        host a.n.n.n.n.n.n.n.n.n.nS=====..
        s7   .aaaa.n.n.n.n.n.n.n.n.n.n....
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 20us
        """,
    ),
    quiet=(
        case(
            """
        step |............................
        host a.n.nS===================....
        s7   .aaaa.nnnnnnnn.nnnnnnn.......
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 20us
        """,
            "Few and long.",
        ),
        case(
            """
        step |............................
        host a.n.n.n.n.n.n.n.n.n.nS=====..
        s7   .aaaaaaaaaaaaaaaaaaaaaaaaa...
        s9   ......n.n.n.n.n.n.n.n.n.n....
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 20us
        """,
            "Hidden behind compute.",
        ),
        case(
            """
        step |............................
        host a.n.n.n.n.n.n.n.n.n.nS=====..
        s7   .aaaa.n.n.n.n.n.n.n.n.n.n....
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: decode
        repeat: 4
        scale: 20us
        """,
            "Small ones, but no gradients: tensor parallelism in decode.",
        ),
    ),
)
def ddp_bucket(view: DeviceWindow) -> Iterator[Claim]:
    """Every step reduces its gradients in many all-reduces so short that most of their time is latency.

    Why it costs: a ring of n ranks needs 2 (n - 1) messages for every all-reduce, whatever its size. Many small ones pay
    that many times over; one bucket of the same bytes pays it once.

    What to do: DDP with a larger `bucket_cap_mb` (25 by default; 50 to 100 where links are fast), `static_graph=True` and
    `gradient_as_bucket_view=True`; reduce by hand only flattened gradients. Keep several buckets: the first has to start
    while the backward pass goes on.

    How to verify: record again; there are fewer all-reduces a step, and communication that nothing hides is shorter.

    When it must not fire: FSDP, whose units are chosen for memory; all-reduces behind compute; a few small ones for the loss
    or a norm.
    """
    timeline = view.timeline
    exposed = view.causes.get("exposed-communication", 0)
    if exposed < FROM * view.window.wall_ns:
        return
    mine = view.operations[timeline.op_class[view.operations] == COMMUNICATION]
    kinds = np.array([kind_of(timeline.label(int(i))) for i in mine], dtype=object)
    length = view.time_of(mine)
    reduces = kinds == "allreduce"
    short = reduces & (length < SHORT_NS)
    small = mine[short]
    steps = max(len(view.kept_steps), 1)
    if len(small) < FEWEST * steps or np.isin(kinds, ("allgather", "reducescatter")).any():
        return
    ns = int(length[short].sum())
    spare = np.delete(small, np.s_[::TOGETHER])
    yield Claim(
        message=f"{len(small) / steps:,.0f} of {int(reduces.sum()) / steps:,.0f} all-reduces a step last under "
        f"{SHORT_NS / 1e3:.0f} µs, {duration(ns)} in all; {duration(exposed)} "
        f"({share(exposed, view.window.wall_ns)} of the wall) of communication is not hidden.",
        named={"exposed-communication": min(ns, exposed)},
        how="Larger buckets: DistributedDataParallel(bucket_cap_mb=100, static_graph=True), or flatten what is reduced by hand.",
        fix=faster(
            view, "ddp-bucket", "short all-reduces in buckets", spare, STAYS, 0.0,
            assumes=(f"{TOGETHER} short all-reduces become one; half of their time to none of it stays",),
        ),
        evidence=(of_operations(view, small),),
        formula=f"{len(spare):,} all-reduces less, each {np.median(length[short]) / 1e3:,.1f} µs (median)",
        at_most_ns=exposed,
        particular=True,
    )  # fmt: skip
