from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import memory_use
from gpu_trace_advisor.reference.facts import fact, span, value
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.training_passes import communicating, gradient_bytes, kinds_of, shards
from gpu_trace_advisor.units import duration, share

FULL = 0.85  # of the device's memory at the peak: below it nothing has to be made to fit
DOMINATES = 0.5  # of the peak in weights, gradients and optimizer states; else activations are what to cut
DEAR = 0.1  # of the wall that the additional traffic would cost at the speed measured here: a slow link, no bargain


@rule(
    title="Every rank holds all weights and optimizer states, and memory is nearly full",
    cites=("ai-train-mem-16", "ai-fsdp-mem", "ai-fsdp-comm", "tvi-lever-sharding"),
    needs=("operators", "launches", "hardware", "memory"),
    phases=("training",),
    because="tvi-lever-sharding",
    fires=(
        """
        step |.........................
        host abcnS====================.
        s7   .aaaaaaabbbbbbbccccccc....
        s9   ...............nnn........
        n: c10d::allreduce_ [65536,40960] f32 > ncclDevKernel_AllReduce_Sum_f32_RING_LL
        memory: 76GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
    ),
    quiet=(
        case(
            """
        step |.........................
        host abcnS====================.
        s7   .aaaaaaabbbbbbbccccccc....
        s9   ...............nnn........
        n: c10d::allreduce_ [65536,40960] f32 > ncclDevKernel_AllReduce_Sum_f32_RING_LL
        memory: 50GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
            "It fits.",
        ),
        case(
            """
        step |.........................
        host abcnS====================.
        s7   .aaaaaaabbbbbbbccccccc....
        s9   ...............nnn........
        n: c10d::allreduce_ [4096,32768] f32 > ncclDevKernel_AllReduce_Sum_f32_RING_LL
        memory: 76GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
            "A small model: activations fill the memory.",
        ),
        case(
            """
        step |.........................
        host abcnS====================.
        s7   .aaaaaaabbbbbbbccccccc....
        s9   ...............nnn........
        n: c10d::_allgather_base_ [65536,40960] f32 > ncclDevKernel_AllGather_RING_LL
        memory: 76GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
            "Sharded already.",
        ),
        case(
            """
        step |.........................
        host ancS=====================.
        s7   .aaaaaaa..........ccccccc.
        s9   ........nnnnnnnnnn........
        n: c10d::allreduce_ [65536,40960] f32 > ncclDevKernel_AllReduce_Sum_f32_RING_LL
        memory: 76GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
            "The link is slow: half as much traffic again would cost more than it helps.",
        ),
        case(
            """
        step |.........................
        host abcS=====================.
        s7   .aaaaaaabbbbbbbccccccc....
        memory: 76GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
            "One device: nobody to share with.",
        ),
    ),
    misses=(
        case(
            """
        step |.........................
        host abcnS====================.
        s7   .aaaaaaabbbbbbbccccccc....
        s9   ...............nnn........
        n: ncclDevKernel_AllReduce_Sum_f32_RING_LL
        memory: 76GB
        device: H100 SXM
        phase: training
        repeat: 4
        scale: 1ms
        """,
            "The sizes of the all-reduces are not recorded, so how large the model is cannot be told.",
        ),
    ),
)
def fsdp_sharding(view: DeviceWindow) -> Iterator[Claim]:
    """Data-parallel ranks each keep the whole model's states, and the device is nearly full.

    Why it costs: weights, gradients and Adam's states take 16 to 20 bytes a parameter on every rank, the same ones on all of
    them. What they take is missing for activations: a smaller batch, checkpointing, allocations in the loop.

    What to do: FSDP (`fully_shard`) or ZeRO: each of n ranks holds a part in n. It moves 1.5 times the bytes of DDP's
    all-reduce, behind compute where the link is fast; ZeRO stage 1 shards the optimizer's states alone, for no more traffic.

    How to verify: record again with memory; the peak falls by what was computed here, and communication stays hidden.

    When it must not fire: it fits easily, activations take most of the memory, weights are sharded already, the link is slow,
    or it is inference.
    """
    assert view.hardware is not None
    memory = view.hardware.memory_bytes
    device = view.timeline.device
    uses = [use for use in memory_use(view.trace.memory) if use.device == device]
    peak = max((use.peak_reserved or use.peak_allocated or 0 for use in uses), default=0)
    on, found, which = communicating(view)
    kinds = kinds_of(found, which)
    if peak < FULL * memory or "allreduce" not in kinds or shards(kinds):
        return
    gradient, width, reduces = gradient_bytes(view, on, found, which)
    low, high = span("ai-train-mem-16", "bytes")
    parameters = gradient / width if width else 0.0
    if parameters * low < DOMINATES * peak:
        return
    wall, spent = view.window.wall_ns, int(view.time_of(reduces).sum())
    more = value("ai-fsdp-comm", "ratio") - 1
    if more * spent > DEAR * wall:
        return
    sizes = {found.keys[key][2] for key in found.key[which].tolist()}
    ranks = max(sizes | {view.run.world or 0 if view.run else 0})
    each = f" Shared by {ranks} ranks it would be {parameters * low / ranks / 1e9:,.3g} GB." if ranks > 1 else ""
    yield Claim(
        message=f"Memory is {share(peak, memory)} full at the peak ({peak / 1e9:,.1f} of {memory / 1e9:,.1f} GB), and the "
        f"states of {parameters / 1e9:,.3g} billion parameters take about {parameters * low / 1e9:,.3g} GB of it on every "
        f"rank.{each}",
        ns=spent,
        how="Is memory what keeps the batch small? Then shard: FSDP (fully_shard), or ZeRO stage 1 for the optimizer's states "
        f"alone. FSDP moves {1 + more:g} times the bytes: {duration(int(more * spent))} more here, if nothing hides it.",
        evidence=(of_operations(view, reduces),),
        formula=f"{low:g} to {high:g} B a parameter, divided by the ranks; {gradient / 1e9:,.3g} GB of gradients a step at "
        f"{width} B ({fact('ai-fsdp-mem').values['bytes']})",
        grade="modelled",
        unpriced="a question: it gives memory, and what a larger batch would do with it is not in the timeline",
    )
