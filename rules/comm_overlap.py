from collections.abc import Iterator

import numpy as np

from analyzer.evidence import of_operations
from analyzer.facts import span
from analyzer.fixes import FIXES
from analyzer.intervals import clip, total
from analyzer.rule import Claim, Evidence, rule
from analyzer.study import Study
from analyzer.timeline import COMMUNICATION
from analyzer.units import share

FROM = 0.05  # of the wall: the low end of what training spends on communication at all
LATE = 0.7  # a rank that communicates less than this part of the others' median comes last to the collectives


@rule(
    title="Communication that no kernel hides",
    cites=("tvi-share-communication", "tvi-lever-overlap", "gt-overlap-hide", "ai-ring-allreduce"),
    phases=("training",),
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
        # Hidden behind the backward pass.
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
        # Tensor parallelism in decode: the collective is on the critical path, nothing is there to overlap with.
        """
        step |...................
        host a.n.b.c.S=========.
        s7   .aannnnnnbbbbcccc..
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: decode
        repeat: 4
        scale: 100us
        """,
        # No communication at all.
        """
        step |...................
        host a.b.c.d.S=========.
        s7   .aabbbbbbccccdddd..
        phase: training
        repeat: 4
        scale: 100us
        """,
    ),
)
def comm_overlap(study: Study) -> Iterator[Claim]:
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
    window, timeline = study.window, study.timeline
    lost = study.causes.get("exposed-communication", 0)
    if lost < FROM * window.wall_ns:
        return
    mine = study.operations[timeline.does[study.operations] == COMMUNICATION]
    whole = _communication_ns(study)
    low, high = span("tvi-share-communication", "share")
    yield Claim(
        message=f"{len(mine):,} collectives run for {whole / 1e6:,.2f} ms, of which {lost / 1e6:,.2f} ms "
        f"({share(lost, window.wall_ns)} of the wall) nothing hides; {100 * low:.0f} % to "
        f"{100 * high:.0f} % is usual in training.",
        ns=lost,
        how="Start each collective when its gradients are ready, on a stream of its own: DDP buckets, FSDP backward prefetch, "
        "async_op=True and a late wait.",
        fix=FIXES["communication-overlap"],
        evidence=(of_operations(study, mine),),
        formula=f"exposed {lost / 1e6:,.3f} ms of {whole / 1e6:,.3f} ms; a ring moves 2 (n-1)/n of the bytes over the link",
        at_most_ns=lost,
    )
    yield _ranks(study, mine, lost)


def _communication_ns(study: Study) -> int:
    timeline, window = study.timeline, study.window
    return total(clip(timeline.union_of(timeline.does == COMMUNICATION), window.start_ns, window.end_ns))


def _ranks(study: Study, mine: np.ndarray[tuple[int], np.dtype[np.int64]], lost: int) -> Claim:
    """Whether the time is travel or waiting for a rank that comes late: several ranks tell, one cannot."""
    longest = mine[np.argsort(-(study.timeline.end - study.timeline.start)[mine])[:1]]
    evidence: tuple[Evidence, ...] = (of_operations(study, longest),)
    ranks = {peer.process.rank if peer.process.rank is not None else peer.trace.rank: peer for peer in study.peers}
    if len(ranks) < 2:
        return Claim(
            message=f"Is it the network, or does another rank come late? A collective's {lost / 1e6:,.2f} ms hold the wait for "
            "the slowest rank, and one rank's trace cannot tell the two apart.",
            ns=lost,
            how="Record all ranks of the same step and give them together: advise FOLDER.",
            evidence=evidence,
            formula="a rank's collective = its transfer + the wait until the last rank has begun it",
            unpriced="a question: it needs the traces of several ranks",
        )
    spent = {rank: _communication_ns(peer) for rank, peer in ranks.items()}
    last = min(spent, key=lambda rank: spent[rank])
    others = float(np.median([ns for rank, ns in spent.items() if rank != last]))
    late = spent[last] < LATE * others
    return Claim(
        message=f"Of {len(ranks)} ranks, rank {last} communicates least, {spent[last] / 1e6:,.2f} ms against "
        f"{others / 1e6:,.2f} ms "
        + (
            "(median of the others): it comes last, and the others wait for it."
            if late
            else "(median): no rank stands out."
        ),
        ns=lost,
        how=f"Look at what rank {last} does before its collectives: its own work decides when the others may go on."
        if late
        else "The collectives themselves are what takes the time: look at their size and at the links.",
        evidence=evidence,
        formula=f"the last rank waits for nobody: its {spent[last] / 1e6:,.3f} ms are the transfer",
        unpriced="a question: which rank's work can be made shorter is not in this rank's timeline",
    )
