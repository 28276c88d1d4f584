from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.collectives import collectives
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.ranks.collective_kinds import POINT_TO_POINT
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.units import duration, share

FROM = 0.10  # of the wall in exchanges that nothing hides; a bubble of 16 microbatches in 3 stages is 11 %
FEWEST = 4  # exchanges a step: two microbatches there and back


@rule(
    title="Pipeline stages wait for each other",
    cites=("ai-pipeline-bubble", "ai-pipeline-4p", "ai-1f1b"),
    phases=("training",),
    because="ai-pipeline-bubble",
    fires=(
        """
        step |............................
        host n.a.n.n.a.n.n.a.nS=========..
        s7   ..nnnn.aa.nnnn.aa.nnnn.aa.n..
        n: ncclDevKernel_SendRecv
        phase: training
        repeat: 4
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |............................
        host n.a.n.n.a.n.n.a.nS=========..
        s7   ..naaaaaa.naaaaaa.naaaaaaaa..
        n: ncclDevKernel_SendRecv
        phase: training
        repeat: 4
        scale: 100us
        """,
            "Short exchanges between long stages.",
        ),
        case(
            """
        step |............................
        host n.a.n.n.a.n.n.a.nS=========..
        s7   ..nnnn.aa.nnnn.aa.nnnn.aa.n..
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "All-reduces of data parallelism.",
        ),
        case(
            """
        step |............................
        host n.a.n.n.a.n.n.a.nS=========..
        s7   ..nnnn.aa.nnnn.aa.nnnn.aa.n..
        n: ncclDevKernel_SendRecv
        phase: decode
        repeat: 4
        scale: 100us
        """,
            "Inference: no microbatches to have more of.",
        ),
    ),
)
def pipeline_bubble(view: DeviceWindow) -> Iterator[Claim]:
    """The device waits in exchanges with the neighbouring stages, which have nothing to hand on yet.

    Why it costs: with p stages and m microbatches, the first microbatch has to reach the last stage before that can begin,
    and the last one has to come back: every stage idles (p - 1) / (m + p - 1) of the time.

    What to do: more microbatches for the same batch, an interleaved schedule (v parts a stage make the bubble v times
    smaller, for v times the exchanges), or stages of equal length where one keeps the others waiting.

    How to verify: record all ranks again; the share of waiting in exchanges is near (p - 1) / (m + p - 1).

    When it must not fire: exchanges of expert or sequence parallelism, which are all-to-alls, and inference.
    """
    found, _ = collectives(view, len(view.timeline.row))
    exchanges = np.array([kind in POINT_TO_POINT for _, kind, _ in found.keys], np.bool_)
    if not len(found) or not exchanges.any():
        return
    mine = exchanges[found.key] & found.inside
    lost = int(found.exposed_ns[mine].sum())
    if lost < FROM * view.window.wall_ns or int(mine.sum()) < FEWEST * max(len(view.kept_steps), 1):
        return
    timeline = view.timeline
    at = view.operations[timeline.op_class[view.operations] == COMMUNICATION]
    at = at[np.isin(timeline.start[at], found.start_ns[mine])]
    pipeline = view.run.pipeline if view.run else None
    text, formula = "", "bubble = (p - 1) / (m + p - 1)"
    if pipeline is not None:
        p, m = pipeline.stages, pipeline.microbatches
        text = f" {p} stages and {m} microbatches make {share(round(1e6 * pipeline.expected), 10**6)} without any other loss."
        formula = f"({p} - 1) / ({m} + {p} - 1) = {pipeline.expected:.3f}"
        formula += f"; with {2 * m} microbatches {(p - 1) / (2 * m + p - 1):.3f}"
    yield Claim(
        message=f"{int(mine.sum()):,} exchanges with other ranks run for {duration(lost)} "
        f"({share(lost, view.window.wall_ns)} of the wall) with no compute beside them.{text}",
        named={"exposed-communication": lost},
        how="More microbatches a step, an interleaved schedule, or stages of equal length.",
        evidence=(of_operations(view, at),),
        formula=formula,
        unpriced="a question: what other microbatches would do is not in the timeline",
    )
