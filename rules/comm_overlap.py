from collections import Counter
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import communication_ns
from gpu_trace_advisor.ranks.collective_kinds import POINT_TO_POINT
from gpu_trace_advisor.ranks.model import RankRow, RankSet
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.replay.fixes import FIXES
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.rulekit.training_passes import communicating, kinds_of
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.units import count_of, duration, percent, share

FROM = 0.05  # of the wall: the low end of what training spends on communication at all

PHASES_IN_WORDS = {
    "dataloader": "loading data", "compute": "its kernels", "communication": "other communication", "copies": "copies",
    "host": "launching and other host work", "stalls": "allocating, loading or compiling", "profiler": "the profiler",
    "unknown": "what was not recorded",
}  # fmt: skip


@rule(
    title="Communication that no kernel hides",
    cites=("tvi-share-communication", "tvi-lever-overlap", "gt-overlap-hide", "ai-ring-allreduce"),
    phases=("training",),
    in_doubt=True,
    because="tvi-share-communication",
    fires=(
        """
        step |...................
        host a.b.c.nS==========.
        s7   .aabbcc.............
        s9   .......nnnnnnnnn....
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
        """
        step |...................
        host a.n.b.c.S=========.
        s7   .aannnnnnbbbbcccc..
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |...................
        host a.n.b.cS=========.
        s7   .aabbbbbbbbbbbbbbbb.
        s9   ...nnnnnnnnn........
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "Hidden behind the backward pass.",
        ),
        case(
            """
        step |...................
        host a.n.b.c.S=========.
        s7   .aannnnnnbbbbcccc..
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: decode
        repeat: 4
        scale: 100us
        """,
            "Tensor parallelism in decode: the collective is on the critical path, nothing is there to overlap with.",
        ),
        case(
            """
        step |...................
        host a.b.c.d.S=========.
        s7   .aabbbbbbccccdddd..
        phase: training
        repeat: 4
        scale: 100us
        """,
            "No communication at all.",
        ),
    ),
)
def comm_overlap(view: DeviceWindow) -> Iterator[Claim]:
    """The device waits in collectives that could run beside the backward pass.

    Why it costs: gradients of the last layers are ready long before the first layers are done. A collective that starts
    only at the end, or on the compute stream, leaves the SMs idle while bytes travel; one that waits for a slower rank
    does so too.

    What to do: DDP with buckets (`bucket_cap_mb`, `gradient_as_bucket_view=True`, `static_graph=True`), FSDP with
    `BackwardPrefetch.BACKWARD_PRE` and `limit_all_gathers`, collectives with `async_op=True` waited for as late as
    possible. First find out whether a slow rank is what the others wait for.

    How to verify: record again; collectives run beside kernels, and the exposed part of the wall is smaller.

    When it must not fire: one GPU, communication hidden already, and tensor parallelism in inference, where the next kernel
    needs the result (a fused or one-shot all-reduce helps there).
    """
    window, timeline = view.window, view.timeline
    lost = view.causes.get("exposed-communication", 0)
    if lost < FROM * window.wall_ns:
        return
    mine = view.operations[timeline.op_class[view.operations] == COMMUNICATION]
    whole = communication_ns(timeline, window.start_ns, window.end_ns)
    low, high = span("tvi-share-communication", "share")
    row = _row(view)
    moving = min(row.moving_ns, lost) if row else lost
    yield Claim(
        message=f"{count_of(len(mine), 'collective')}, {duration(whole)} in all, of which nothing hides {duration(lost)} "
        f"({share(lost, window.wall_ns)} of the wall); {percent(low)} to {percent(high)} is usual in "
        "training." + (f" Bytes move in {duration(moving)} of it." if row else ""),
        named={"exposed-communication": moving},
        how=_how(view),
        fix=FIXES["communication-overlap"],
        evidence=(of_operations(view, mine),),
        formula=f"exposed {lost / 1e6:,.3f} ms of {whole / 1e6:,.3f} ms; a ring moves 2 (n-1)/n of the bytes over the link",
        at_most_ns=moving,
        generic=True,
    )
    longest = of_operations(view, mine[np.argsort(-timeline.length[mine])[:1]])
    yield _late(view.run, row, longest) if view.run and row else _question(lost, longest)


def _how(view: DeviceWindow) -> str:
    """By the kind that most of its time goes to: neighbours exchange their data, groups sum up gradients or gather weights."""
    on, found, which = communicating(view)
    time = Counter[str]()
    for kind, ns in zip(kinds_of(found, which), view.time_of(on).tolist(), strict=True):
        time[kind] += ns
    most = max(time, key=lambda kind: time[kind], default="")
    if most in POINT_TO_POINT:
        return (
            "Exchange the next block while this one is worked on: a second buffer, batch_isend_irecv on a stream of its own, "
            "waited for late; between the stages of a pipeline more micro-batches."
        )
    return (
        "Start each collective when its gradients are ready, on a stream of its own: DDP buckets, FSDP backward prefetch, "
        "async_op=True and a late wait."
    )


def _row(view: DeviceWindow) -> RankRow | None:
    """This device among the ranks of its run, where their collectives could be matched."""
    if view.run is None or not view.run.matched:
        return None
    rank = view.process.rank if view.process.rank is not None else view.trace.rank
    return view.run.row_of(view.trace.name, view.process.pid, view.timeline.device, rank)


def _question(lost: int, longest: Evidence) -> Claim:
    """Travel or waiting for a rank that comes late: several ranks tell, one cannot."""
    return Claim(
        title="Moving bytes, or waiting for another rank?",
        message=f"Is it the network, or does another rank come late? A collective's {duration(lost)} hold the wait for "
        "the slowest rank, and one rank's trace cannot tell the two apart.",
        named={"exposed-communication": lost},
        how="Record all ranks of the same step and give them together: advise FOLDER.",
        evidence=(longest,),
        formula="a rank's collective = its transfer + the wait until the last rank has begun it",
        unpriced="a question: it needs the traces of several ranks",
    )


def _late(run: RankSet, row: RankRow, longest: Evidence) -> Claim:
    """Whom this rank waits for, or that the others wait for it."""
    found = run.stragglers[0] if run.stragglers else None
    waits = f"waits {duration(row.waiting_ns)}" if row.waiting_ns else "does not wait"
    split = f"Of its exposed communication rank {row.rank} {waits} for others to come and moves bytes for "
    split += f"{duration(row.moving_ns)}."
    formula = f"waiting {row.waiting_ns / 1e6:,.3f} ms + moving {row.moving_ns / 1e6:,.3f} ms"
    formula += f", from the arrivals of {len(run.rows)} ranks"
    if found is None:
        return Claim(
            title="Waiting for other ranks",
            message=f"{split} No rank keeps the others waiting much longer than they keep it: they take turns.",
            named={"exposed-communication": row.waiting_ns},
            how="Even out what varies from step to step: sizes of batches, input, garbage collection.",
            evidence=(longest,),
            formula=formula,
            unpriced="a question: whose work could be made even is not in this rank's timeline",
        )
    one, itself = len(found.ranks) == 1, row.rank in found.ranks
    who = f"rank {found.ranks[0]}" if one else f"ranks {', '.join(map(str, found.ranks[:8]))}"
    longer = f"; what takes {'it' if one else 'them'} longer is {PHASES_IN_WORDS[found.phase]}" if found.phase else ""
    return Claim(
        title="The other ranks wait for this one" if itself else "Waiting for a rank that comes late",
        message=f"{split} {who.capitalize()} {'comes' if one else 'come'} last to {found.times:,} of {found.of:,} collectives, "
        f"which begin {duration(found.cost_ns)} later for {'it' if one else 'them'}{longer}.",
        named={"exposed-communication": max(row.waiting_ns, found.cost_ns if itself else 0)},
        how=f"Look at what {who} {'does' if one else 'do'} before the collectives (--rank {found.ranks[0]}): the findings "
        "there are those that shorten the whole job.",
        evidence=(longest,),
        formula=formula,
        unpriced="what the whole job gains stands with the ranks: no change of this rank's own timeline gives it",
    )
