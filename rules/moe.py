import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, of_kinds, running_time
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.training_passes import communicating, kinds_of
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import duration, percent, share

MOVING = 0.1  # of the wall in moving tokens to experts and back: fused kernels take a few percent
KEPT = 0.5  # pessimistic: of the moving half stays, as some of it is traffic that no kernel avoids
FEW = 16  # tokens of an expert: fewer leave the tensor cores idle, and each launch reads a whole expert's weights
SMALL = 0.3  # of the wall in products of experts one by one, from which grouping them pays
ROUTING = re.compile(
    r"topk_?gating|routing(?!\w*loss)|expert|fused_moe|grouped_?(?:gemm|mm)|matmul_ogs|(?<![a-z])moe", re.I
)
MOVES = re.compile(r"gather|scatter|index_?(?:select|add|put|copy|elementwise)|permute|sort|nonzero", re.I)
SENT = 0.05  # of the wall in tokens on their way between devices that no kernel hides
SENDS = re.compile(r"deep_ep(?![a-z])|dispatch|combine", re.I)
GROUPED = re.compile(r"fused_moe|grouped_?(?:gemm|mm)|matmul_ogs|bmm_\w*Mx|cutlass_moe", re.I)


@rule(
    title="Tokens travel to experts and back",
    cites=("tvi-matrix-moe", "gt-case-moe"),
    fires=(
        case(
            """
        step |.................
        host a.b.c.d.S=======
        s7   .abbbbccccccdddd..
        a: topkGatingSoftmax
        b: void at::native::vectorized_gather_kernel<16, long>
        c: fused_moe_kernel
        d: void at::native::index_elementwise_kernel<128, 4>
        repeat: 3
        """,
            "Gathering and scattering beside a grouped product.",
        ),
        case(
            """
        step |.................
        host anbncndncS=======
        s7   .anbbnccndbnccd...
        a: topkGatingSoftmax
        b: fused_moe_kernel
        n: c10d::alltoall_base_ [64,4096] bf16 > ncclDevKernel_SendRecv
        phase: decode
        repeat: 3
        """,
            "Experts on other devices.",
        ),
        """
        step |.................
        host anbncndncS=======
        s7   .anbbnccndbnccd...
        a: topkGatingSoftmax
        b: fused_moe_kernel
        n: void deep_ep::internode_ll::dispatch<true, 7, 5120>
        phase: decode
        repeat: 3
        """,
        case(
            """
        step |.................
        host a.b.b.b.b.S=======
        s7   .abbbb.bbbb.bbbb..
        a: topkGatingSoftmax
        b: aten::mm [4,4096]x[4096,14336] bf16
        repeat: 3
        """,
            "One expert after the other.",
        ),
    ),
    quiet=(
        case(
            """
        step |.................
        host a.b.c.d.S=======
        s7   .abbbbccccccdddd..
        a: softmax_warp_forward
        b: void at::native::vectorized_gather_kernel<16, long>
        c: my_gemm_kernel
        d: void at::native::index_elementwise_kernel<128, 4>
        repeat: 3
        """,
            "A dense model.",
        ),
        case(
            """
        step |.................
        host a.b.c.S=========
        s7   .abcccccccccccccc.
        a: topkGatingSoftmax
        b: moe_align_block_size_kernel
        c: fused_moe_kernel
        repeat: 3
        """,
            "Fused: hardly anything is moved.",
        ),
        case(
            """
        step |.................
        host anbncndnS=======.
        s7   .abbbbbbbbbbbbbb..
        s9   ...nn..nn..nn.....
        a: topkGatingSoftmax
        b: fused_moe_kernel
        n: void deep_ep::internode_ll::dispatch<true, 7, 5120>
        phase: decode
        repeat: 3
        """,
            "Tokens travel while the other half of the batch computes.",
        ),
        case(
            """
        step |.................
        host anbncndncS=======
        s7   .anbbnccndbnccd...
        a: softmax_warp_forward
        n: c10d::alltoall_base_ [64,4096] bf16 > ncclDevKernel_SendRecv
        repeat: 3
        """,
            "An all-to-all without experts is another program's.",
        ),
        case(
            """
        step |.................
        host anbncndncS=======
        s7   .anbbnccndbnccd...
        a: topkGatingSoftmax
        b: fused_moe_kernel
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        repeat: 3
        """,
            "Sums of layers are no tokens.",
        ),
        case(
            """
        step |.................
        host a.b.b.b.b.S=======
        s7   .abbbb.bbbb.bbbb..
        a: topkGatingSoftmax
        b: aten::mm [512,4096]x[4096,14336] bf16
        repeat: 3
        """,
            "Experts with many tokens each.",
        ),
        case(
            """
        step |.................
        host a.b.b.c.S=======
        s7   .abbb.bbb.ccccccc.
        a: topkGatingSoftmax
        b: aten::mm [4,4096]x[4096,4096] bf16
        c: fused_moe_kernel
        repeat: 3
        """,
            "Small products of the shared layers beside grouped experts.",
        ),
        case(
            """
        step |.................
        host a.b.c.d.S=======
        s7   .abbbbccccddddd...
        a: topkGatingSoftmax
        b: aten::mm [4,4096]x[4096,4096] bf16
        c: aten::mm [4,4096]x[4096,8192] bf16
        d: aten::mm [4,8192]x[8192,4096] bf16
        repeat: 3
        """,
            "Small products of many sizes are layers, not experts.",
        ),
    ),
)
def moe(view: DeviceWindow) -> Iterator[Claim]:
    """A mixture of experts spends its time on moving tokens, on one device or between several, or multiplies one expert after
    the other.

    Why it costs: each layer sorts the tokens by expert, copies them together, multiplies, and adds them back. As separate
    kernels that is traffic without work; one product for each expert reads its weights for a handful of tokens. With experts on
    other devices every layer waits twice for tokens on their way.

    What to do: a fused or grouped kernel (`torch._grouped_mm`, vLLM's and SGLang's fused_moe, MegaBlocks, Transformer
    Engine's permute), which gathers while it loads. Across devices, send the tokens while the shared layers or the other half
    of the batch compute, in decode with kernels made for low latency (DeepEP).

    How to verify: record again; one grouped kernel a layer, and gather, scatter and index kernels nearly gone.

    When it must not fire: a dense model (becoming a mixture is a choice of the model, not a saving), fused kernels that move
    little, or experts with enough tokens each.
    """
    trace, timeline, wall = view.trace, view.timeline, view.window.wall_ns
    routing = next(filter(_routes, _names(view)), None)
    if routing is None:
        return
    moving = _named(view, [name for name in _names(view) if MOVES.search(name) and not _routes(name)])
    time = running_time(view, moving)
    if time > MOVING * wall:
        yield Claim(
            message=f"Sorting, gathering and scattering take {percent(time / wall, 1)} of the wall beside {routing[:60]}.",
            ns=time,
            how="Use a fused mixture-of-experts kernel that gathers while it loads and adds while it stores.",
            fix=faster(
                view, "moe", "tokens moved inside the experts' kernel", moving, KEPT, 0.0,
                assumes=(f"pessimistic: {percent(KEPT)} of the moving stays; optimistic: none",),
            ),
            evidence=(of_operations(view, moving),),
            formula="time of the kernels that sort, gather and scatter",
            doubts=("some of them may move something else",),
        )  # fmt: skip
    yield from _sent(view)
    costs = view.inkernel.costs
    few = [kind.family == "product" and kind.weight_bytes > 0 and 0 < kind.m < FEW for kind in costs.kinds]
    experts = of_kinds(view, view.operations, few)
    grouped = any(GROUPED.search(name) for name in _names(view))
    small = running_time(view, experts)
    alike = len(experts) > len(present(costs.kind[experts])) and _in_a_row(view, experts)
    if not grouped and alike and small > SMALL * wall:
        yield Claim(
            message=f"{len(experts):,} products with fewer than {FEW} rows take {percent(small / wall, 1)} of the wall, "
            "one expert after the other.",
            ns=small,
            how="Can the experts of a layer be one grouped product (torch._grouped_mm, a fused mixture-of-experts kernel)?",
            evidence=(of_operations(view, experts),),
            formula=f"{small / 1e6:,.3g} ms in {len(experts):,} products of {trace.label(int(timeline.row[experts[0]]))[:40]}",
        )


def _sent(view: DeviceWindow) -> Iterator[Claim]:
    """Tokens on their way between devices, and nothing else runs."""
    wall, exposed = view.window.wall_ns, view.causes.get("exposed-communication", 0)
    if exposed < SENT * wall:
        return
    on, found, which = communicating(view)
    kinds = kinds_of(found, which)
    sends = [
        kind == "alltoall" or SENDS.search(view.timeline.label(int(at))) is not None
        for at, kind in zip(on, kinds, strict=True)
    ]
    mine = on[np.array(sends, np.bool_)]
    time = int(view.time_of(mine).sum())
    lost = min(time, exposed)
    if lost < SENT * wall:
        return
    yield Claim(
        title="Every layer waits for tokens on their way",
        message=f"{len(mine):,} exchanges of tokens between devices keep everything else waiting for {share(lost, wall)} of the "
        f"wall ({duration(lost)}).",
        named={"exposed-communication": lost},
        how="Send tokens while something else computes: the other half of the batch (two-batch overlap, DualPipe) or the shared "
        "experts; in decode with low-latency kernels (DeepEP). Are the experts' loads even?",
        evidence=(of_operations(view, mine),),
        formula=f"the smaller of {time / 1e6:,.3f} ms in exchanges and {exposed / 1e6:,.3f} ms of exposed communication",
        unpriced="what could run meanwhile is not known, nor how long a device waits for another's tokens",
        doubts=() if view.run else ("one rank's trace cannot tell travelling from waiting for another rank",),
    )


@lru_cache(maxsize=10_000)
def _routes(name: str) -> bool:
    """A kernel that sends tokens to experts, or works on them."""
    return ROUTING.search(name) is not None


def _names(view: DeviceWindow) -> list[str]:
    codes = present(view.trace.name_code[view.timeline.row[view.operations]])
    return [
        view.trace.names[code] for code in codes.tolist() if kernel_class(view.trace.names[code]) != "communication"
    ]


def _named(view: DeviceWindow, names: list[str]) -> Int64:
    wanted = np.isin(np.array(view.trace.names, dtype=object), names)
    found: Int64 = view.operations[wanted[view.trace.name_code[view.timeline.row[view.operations]]]]
    return found


def _in_a_row(view: DeviceWindow, experts: Int64) -> bool:
    """The same product several times in a row: what a loop over experts looks like."""
    kind = view.inkernel.costs.kind
    order = experts[np.argsort(view.timeline.start[experts], kind="stable")]
    return bool((kind[order[1:]] == kind[order[:-1]]).any())
