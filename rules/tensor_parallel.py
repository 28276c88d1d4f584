import re
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.training_passes import all_reduces, communicating
from gpu_trace_advisor.units import duration, share

FROM = 0.05  # of the wall in exposed all-reduces: below, another kernel for them is not worth a look
OFTEN = 4  # a step; a model of two layers has as many, fewer are for sampling or a barrier
SHORT_NS = 60_000  # 8 MB take about this long over NVLink; a shorter all-reduce is mostly latency
ONE_SHOT = re.compile(r"cross_device_reduce|multimem|one_?shot|lamport", re.IGNORECASE)

RING = (
    "A one-shot all-reduce in place of the ring, where the GPUs reach each other's memory (the engine's custom all-reduce, "
    "symmetric memory), fused with the addition and the norm behind it."
)
FUSE = "Fuse them with the addition and the norm behind them (the engine's all-reduce fusion), or split layers over fewer GPUs."
LARGE = (
    "Split the batch in two, so that one half computes while the other communicates, or the products into pieces that "
    "send what is ready (async tensor parallelism); split layers over fewer GPUs where the model fits."
)


@rule(
    title="Each layer waits for its all-reduce",
    cites=("ai-tp-latency", "ai-allreduce-latency"),
    phases=("prefill", "decode"),
    because="ai-tp-latency",
    fires=(
        """
        step |...................
        host anbncndnS=========.
        s7   .anbncndn..........
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: decode
        repeat: 4
        scale: 20us
        """,
        case(
            """
        step |...................
        host anbncndnS=========.
        s7   .anbncndn..........
        n: c10d::allreduce_ [4096] bf16 > ncclDevKernel_Generic_1
        phase: decode
        repeat: 4
        scale: 20us
        """,
            "NCCL's kernel does not say what it does, the operator does.",
        ),
        case(
            """
        step |...................
        host anbncndnS=========.
        s7   .anbncndn..........
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: prefill
        repeat: 4
        scale: 1ms
        """,
            "Large ones, in a prefill.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host anbncndnS=========.
        s7   .anbncndn..........
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 20us
        """,
            "Training: what to do there is another rule's matter.",
        ),
        case(
            """
        step |...................
        host abcdnS============.
        s7   .abcdnn............
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: decode
        repeat: 4
        scale: 20us
        """,
            "One a step, for the logits.",
        ),
        case(
            """
        step |...................
        host anananaS==========.
        s7   .aaaaaaaaaaaaaaaaa.
        s9   ..n.n.n............
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: decode
        repeat: 4
        scale: 20us
        """,
            "Hidden behind the other half of the batch.",
        ),
        case(
            """
        step |...................
        host anbncndnS=========.
        s7   .anbncndn..........
        n: deep_ep::intranode::dispatch
        phase: decode
        repeat: 4
        scale: 20us
        """,
            "Tokens that go to experts are no sums of layers.",
        ),
    ),
)
def tensor_parallel(view: DeviceWindow) -> Iterator[Claim]:
    """Layers are split over several GPUs, and each one's sum is on the critical path: nothing is there to hide it behind.

    Why it costs: tensor parallelism adds up the parts of a layer twice a layer, and the next kernel needs the sum. In decode
    the messages are small, so that the steps of a ring are what they take; in prefill they are large.

    What to do: small messages: a one-shot all-reduce, in which each GPU reads what the others have (custom all-reduce of
    vLLM and SGLang, symmetric memory, NVLS), fused with the addition and the norm behind it. Large ones: two halves of the
    batch that take turns, products that send pieces. Where the model fits, fewer GPUs a layer and more replicas.

    How to verify: record again; the all-reduces are fewer or shorter, and communication that nothing hides is less.

    When it must not fire: training, whose gradients can be reduced beside the backward pass; collectives that run beside
    kernels; a few a step; tokens that travel to experts.
    """
    timeline, wall = view.timeline, view.window.wall_ns
    exposed = view.causes.get("exposed-communication", 0)
    if exposed < FROM * wall:
        return
    on, found, which = communicating(view)
    mine = on[all_reduces(found, which)]
    spent = int(view.time_of(mine).sum())
    lost = min(spent, exposed)
    if lost < FROM * wall or len(mine) < OFTEN * max(view.repetition.count, 1):
        return
    usual = int(np.median(timeline.length[mine]))
    one_shot = any(ONE_SHOT.search(timeline.label(int(operation))) for operation in mine)
    yield Claim(
        message=f"{len(mine):,} all-reduces, half of them of {duration(usual)} or less, keep everything else waiting for "
        f"{share(lost, wall)} of the wall ({duration(lost)}): the next kernel needs each one's sum.",
        named={"exposed-communication": lost},
        how=LARGE if usual >= SHORT_NS else FUSE if one_shot else RING,
        evidence=(of_operations(view, mine),),
        formula=f"the smaller of {spent / 1e6:,.3f} ms in all-reduces and {exposed / 1e6:,.3f} ms of "
        "exposed communication",
        unpriced="other kernels would run, and how long they take is not in the recording",
        doubts=() if view.run else ("one rank's trace cannot tell a slow all-reduce from waiting for another rank",),
    )
