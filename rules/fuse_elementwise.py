from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.fusible_chains import Chain, operations_of, operators_of, worth_fusing
from gpu_trace_advisor.rulekit.kernel_fixes import one_each, running_time
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.trace.lookup import distinct_rows
from gpu_trace_advisor.trace.model import NONE, Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import count_of, duration, percent, share

STAYS = 0.5  # pessimistic, without shapes: of what the other kernels of a chain take this part stays


@rule(
    title="Chains of memory-bound kernels that could be one",
    cites=(
        "tvi-idea-fusion-traffic",
        "tvi-share-elementwise",
        "tvi-lever-fusion",
        "tvi-matrix-fusion",
        "gt-layernorm-5x",
    ),
    needs=("launches",),
    fires=(
        """
        step |.........................
        host mabcS===================..
        s7   .mmmmmmmaaaaaabbbbbbcccccc
        m: aten::mm [4096,4096]x[4096,4096] bf16
        a: aten::mul [4096,4096]x[4096,4096] bf16
        b: aten::add [4096,4096]x[4096,4096] bf16
        c: aten::silu [4096,4096] bf16
        device: H100 SXM
        repeat: 4
        scale: 10us
        """,
        case(
            """
        step |.........................
        host mabcS===================..
        s7   .mmmmmmmaaaaaabbbbbbcccccc
        m: ampere_bf16_gemm
        a: vectorized_elementwise_kernel_mul
        b: vectorized_elementwise_kernel_add
        c: layer_norm_kernel
        repeat: 4
        scale: 10us
        """,
            "Without shapes: less sure, and said to be.",
        ),
    ),
    quiet=(
        case(
            """
        step |.........................
        host mabcS===================..
        s7   .mmmmmmmaaaaaabbbbbbcccccc
        m: ampere_bf16_gemm
        a: triton_poi_fused_add_mul_0
        b: triton_per_fused_layer_norm_1
        c: triton_poi_fused_silu_2
        repeat: 4
        scale: 10us
        """,
            "One kernel did it: compiled already.",
        ),
        case(
            """
        step |.........................
        host manbS===================..
        s7   .mmmmmmmaaaaannnnnnnnbbbbb
        m: ampere_bf16_gemm
        n: ampere_bf16_gemm
        a: vectorized_elementwise_kernel_mul
        b: vectorized_elementwise_kernel_add
        repeat: 4
        scale: 10us
        """,
            "A matrix product after each: there is no chain.",
        ),
        case(
            """
        step |................................................................................
        host mabcS==========================================================================..
        s7   .mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmabc
        m: ampere_bf16_gemm
        a: vectorized_elementwise_kernel_mul
        b: vectorized_elementwise_kernel_add
        c: layer_norm_kernel
        repeat: 4
        scale: 10us
        """,
            "Short against the rest.",
        ),
    ),
)
def fuse_elementwise(view: DeviceWindow) -> Iterator[Claim]:
    """Several kernels in a row read and write the same data, each from and to the device's memory.

    Why it costs: elementwise operations, norms, casts and reductions take as long as their bytes take to move. Run one by
    one, each intermediate is written and read again; one kernel for all of them moves only what goes in and what comes out.

    What to do: `torch.compile`, or fused kernels for the spots named here (Liger Kernel, Apex, Transformer Engine, an own
    Triton kernel); `fused=True` where an operator offers it.

    How to verify: record again; one kernel (`triton_…fused…`) stands where the chain was, and results agree to the
    tolerance of the type.

    When it must not fire: kernels that are fused already, single kernels between matrix products, chains that take next to
    nothing.
    """
    found = worth_fusing(view)
    if not found:
        return
    runs = [chain.places for chain in found]
    lost, time = running_time(view, operations_of(found)), sum(chain.ns for chain in found)
    low, high = (np.concatenate(ns) for ns in zip(*(_priced(view, chain.places) for chain in found), strict=True))
    avoided = time - int(low.sum())
    best = found[0]
    shapes = bool(view.inkernel.avoidable.any())
    operators = operators_of(view, best.places[0])
    yield Claim(
        message=f"{sum(map(len, runs)):,} chains of {count_of(len(found), 'kind')} take {share(lost, view.window.wall_ns)} of "
        f"the wall ({duration(lost)}). The costliest, {len(best.places)} times, {duration(best.ns)}: {' → '.join(best.names)}"
        + (f" (from {', '.join(operators)})." if operators else "."),
        ns=lost,
        how="torch.compile the module, or a fused kernel (Liger, Apex, own Triton) for the chains named here."
        if is_pytorch(view.trace)
        else "One kernel for each of the chains named here.",
        fix=Fix(
            "fuse-elementwise", "chains of memory-bound kernels are one kernel each",
            one_each(view, runs, low, host=False), one_each(view, runs, high),
            assumes=("optimistic: a fused kernel takes as long as the longest of its chain, or as what comes in and leaves takes "
                     "where that is less, and one launch",
                     "pessimistic: only the intermediates' own traffic goes away" if shapes
                     else f"pessimistic: {percent(STAYS)} of what the others take stays"),
        ),
        evidence=tuple(_evidence(view, chain) for chain in found[:3]),
        formula=f"sum of the chains {time / 1e6:,.3f} ms; intermediates that need not move {avoided / 1e6:,.3f} ms",
        grade="modelled",
        doubts=() if shapes else ("without shapes or peaks, that the kernels of a chain pass data on is a guess",),
    )  # fmt: skip


def _evidence(view: DeviceWindow, chain: Chain) -> Evidence:
    return of_operations(view, np.concatenate(chain.places), " → ".join(chain.names))


def _priced(view: DeviceWindow, places: Int64) -> tuple[Int64, Int64]:
    """[k] ns that one kernel for each occurrence of a chain ([k, kernels]) would take: pessimistic, optimistic."""
    length = view.time_of(places)
    whole, longest = length.sum(axis=1), length.max(axis=1)
    avoidable = np.minimum(view.inkernel.avoidable[places], length)
    without = whole - avoidable.sum(axis=1).astype(np.int64)
    guess = longest + (STAYS * (whole - longest)).astype(np.int64)
    low = np.where(avoidable.any(axis=1), without, guess)
    return np.maximum(low, longest), np.minimum(np.minimum(longest, _outside_ns(view, places, whole)), low)


def _outside_ns(view: DeviceWindow, places: Int64, whole: Int64) -> Int64:
    """[k] what of the chain's time goes to bytes that come in or leave, at the rate of now; all of it where that is not
    known. Intermediates may be wider than both, as of a softmax in fp32 between tensors of 16 bits."""
    model = view.inkernel
    columns = model.costs.kind[places].T
    rows, which = distinct_rows(list(columns))
    part = np.ones(len(rows))
    for i, row in enumerate(rows):
        if NONE in row or model.hardware is None:
            continue
        chain = [model.costs.kinds[kind] for kind in row]
        inner = 0.0
        for first, second in pairwise(chain):
            if any(shape == first.result and read == first.written for shape, read in second.reads):
                inner += 2 * first.written
        total = sum(kind.bytes for kind in chain)
        part[i] = 1 - inner / total if total else 1.0
    return (part[which] * whole).astype(np.int64)
