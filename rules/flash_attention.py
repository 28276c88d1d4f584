import re
from collections.abc import Iterator, Sequence

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, merged, running_time
from gpu_trace_advisor.rulekit.kernel_rows import least_ns
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.unfused_attention import Unfused, unfused_attention
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Int64
from gpu_trace_advisor.trace.operator_shapes import BYTES
from gpu_trace_advisor.units import percent

FROM = 0.05  # of the wall in attention: a smaller part gains less than a run's noise
MASKS = re.compile(
    r"^aten::(?:masked_fill|where|add|_masked_softmax)_?$|^triton_\w*softmax\w*(?:masked_fill|where)|^triton_\w*(?:masked_fill|where)\w*softmax"
)  # operators that add a mask to the scores
RUNS_ASKED = 16  # of one model the layers are alike
RATES = (0.35, 0.7)  # of the peak that fused kernels reach: version 2 on Hopper, and versions 3 and 4 as published
OLDER = re.compile(r"(?:pytorch_)?flash::flash_(?:fwd|bwd)_")
HOPPER = (9, 0)


@rule(
    title="Attention is not the fused kernel that fits this device",
    cites=(
        "tvi-lever-flash",
        "tvi-matrix-flash",
        "tvi-prefill-attention-quadratic",
        "gt-fa3",
        "gt-flash-tiles",
        "gt-flash-traffic",
        "tvi-idea-fa4",
    ),
    needs=("hardware",),
    fires=(
        """
        step |..................
        host a.b.c.S===========
        s7   ..aaabbbbbbccc.....
        a: aten::bmm [32,2048,128]x[32,128,2048] bf16
        b: aten::_softmax [32,2048,2048] bf16
        c: aten::bmm [32,2048,2048]x[32,2048,128] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
        case(
            """
        step |..................
        host a.b.S=============
        s7   ..aaaaaaaabbbb.....
        a: void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>
        b: my_gemm_kernel
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
            "Fused, but by the version for the generation before.",
        ),
    ),
    quiet=(
        case(
            """
        step |..................
        host a.b.S=============
        s7   ..aaaaaaaabbbb.....
        a: void cutlass::device_kernel<flash::FlashAttnFwdSm90<128>>
        b: my_gemm_kernel
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
            "Fused by the version for the device.",
        ),
        case(
            """
        step |..................
        host a.b.S=============
        s7   ..aaaaaaaabbbb.....
        a: void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>
        b: my_gemm_kernel
        repeat: 3
        scale: 100us
        device: A100 SXM4 80GB
        phase: prefill
        """,
            "The older version is the right one on the older device.",
        ),
        case(
            """
        step |..................
        host a.b.c.S===========
        s7   ..aaabbbbbbccc.....
        a: aten::bmm [512,128,64]x[512,64,128] bf16
        b: aten::_softmax [512,128,128] bf16
        c: aten::bmm [512,128,128]x[512,128,64] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: prefill
        """,
            "Short sequences: the scores are small.",
        ),
        case(
            """
        step |..................
        host a.b.c.S===========
        s7   ..aaabbbbbbccc.....
        a: aten::mm [2048,128]x[128,2048] bf16
        b: aten::_softmax [2048,2048] bf16
        c: aten::add [2048,2048]x[2048,2048] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
            "A softmax over classes is no attention.",
        ),
        case(
            """
        step |..................
        host a.b.c.S===========
        s7   ..aaabbbbbbccc.....
        a: aten::bmm [512,1,128]x[512,128,8192] bf16
        b: aten::_softmax [512,1,8192] bf16
        c: aten::bmm [512,1,8192]x[512,8192,128] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "Decode has one query: another kernel helps there.",
        ),
        case(
            """
        step |..................
        host a.b.c.S===========
        s7   ..aaabbbbbbccc.....
        a: aten::mm [2048,128]x[128,2048] bf16
        b: aten::gelu [2048,2048] bf16
        c: aten::mm [2048,2048]x[2048,128] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
            "Two linear layers with an activation between them have the same shapes.",
        ),
        case(
            """
        step |..............................
        host ab..S=========================
        s7   ..abbbbbbbbbbbbbbbbbbbbbbbbbbb.
        a: void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>
        b: my_gemm_kernel
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
            "The older version, but it takes next to nothing.",
        ),
    ),
    misses=(
        case(
            """
        step |..................
        host a.b.c.S===========
        s7   ..aaabbbbbbccc.....
        a: aten::bmm
        b: aten::_softmax
        c: aten::bmm
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: prefill
        """,
            "Without shapes nothing tells that the softmax is one of attention.",
        ),
    ),
)
def flash_attention(view: DeviceWindow) -> Iterator[Claim]:
    """Attention writes the scores of all pairs to memory and reads them back, or uses a kernel made for another device.

    Why it costs: the scores grow with the square of the sequence. Unfused, they are written and read about four times,
    forward and again backward; a fused kernel keeps them on the chip and moves queries, keys, values and the result only.

    What to do: `torch.nn.functional.scaled_dot_product_attention` or FlashAttention (`is_causal=True`
    instead of a dense mask, only where the model is causal: a bidirectional encoder computes something else with it);
    `attn_implementation="sdpa"` in Transformers. On Hopper version 3, on Blackwell version 4 or cuDNN's kernel.

    How to verify: record again; one attention kernel stands where product, softmax and product were, and memory is lower.

    When it must not fire: a fused kernel for the device is used, short sequences, or decode, where one query meets a long
    cache and splitting the keys (Flash-Decoding) is what counts.
    """
    wall = view.window.wall_ns
    found = list(unfused_attention(view))
    runs = [one.operations for one in found]
    time = running_time(view, np.concatenate(runs)) if runs else 0
    if time > FROM * wall:
        masked = _masked(view, runs)
        low, high = ([_fused_ns(view, one, rate) for one in found] for rate in (RATES[0], RATES[1] * (1 + masked)))
        queries, keys = found[0].scores
        backward = sum(one.backward for one in found)
        yield Claim(
            message=f"{len(runs)} times attention is products and a softmax over {queries} × {keys} scores in memory"
            f"{f' ({backward} of them backward)' if backward else ''}: {percent(time / wall, 1)} of the wall.",
            ns=int(time),
            how=_how(masked),
            fix=merged(
                view, "flash-attention", "attention in one kernel", runs, low, high,
                assumes=(
                    f"a fused kernel reaches {percent(RATES[0])} to {percent(RATES[1])} of the peak"
                    + (", optimistic: and skips the half that a causal mask hides" if masked else ""),
                ),
            ),
            evidence=(of_operations(view, np.concatenate(runs), "operations of attention"),),
            formula="max(4 b h S² d FLOP over the rate, bytes of Q, K, V and O over the bandwidth) for each of them; backward "
            "2.5 times the FLOP and twice the bytes",
            grade="modelled",
        )  # fmt: skip
    old = _older(view)
    if view.device.compute_capability == HOPPER and running_time(view, old) > FROM * wall:
        low_gain, high_gain = span("gt-fa3", "speedup")
        yield Claim(
            message=f"FlashAttention 2 takes {percent(running_time(view, old) / wall, 1)} of the wall; it does not use "
            f"what Hopper added, and version 3 is {low_gain:g} to {high_gain:g} times as fast on long sequences.",
            ns=running_time(view, old),
            how="Use FlashAttention 3 or cuDNN's attention on this device.",
            fix=faster(
                view, "flash-attention-3", "attention made for the device", old, 1 / low_gain, 1 / high_gain,
                assumes=(f"version 3 is {low_gain:g} to {high_gain:g} times as fast as version 2",),
                least_ns=least_ns(view, old),
            ),
            evidence=(of_operations(view, old),),
            grade="assumed",
        )  # fmt: skip


def _older(view: DeviceWindow) -> Int64:
    names = view.trace.name_code[view.timeline.row[view.operations]]
    found: Int64 = view.operations[named(view.trace, names, lambda name: OLDER.search(name) is not None)]
    return found


def _fused_ns(view: DeviceWindow, one: Unfused, rate: float) -> int:
    """What a fused kernel takes that reaches this share of the peak. Unfused, backward has four products of which the run
    holds two at least; fused, five."""
    model, hardware = view.inkernel, view.hardware
    kinds = [model.costs.kinds[kind] for kind in model.costs.kind[one.operations].tolist() if kind != NONE]
    products = [kind for kind in kinds if kind.family == "product"]
    scores, flops = products[0], float(sum(kind.flops for kind in products))
    peak = hardware.peaks.get(scores.dtype, 0.0) if hardware else 0.0
    depth = flops / (2.0 * scores.batch * one.scores[0] * one.scores[1])  # head sizes of all products together
    depth *= 2 / len(products)
    moved = scores.batch * BYTES.get(scores.dtype, 4) * sum(one.scores) * depth
    if one.backward:
        flops, moved = flops * 5 / max(len(products), 2), 2 * moved
    compute = flops / (rate * peak) * 1e9 if peak else float(view.time_of(one.operations).sum())
    return int(max(compute, model.memory_ns(moved)))


def _how(masked: bool) -> str:
    """`is_causal` is for masks: where none is added between the products it changes results."""
    how = "Use torch.nn.functional.scaled_dot_product_attention, or FlashAttention."
    if not masked:
        return how
    return (
        how + " Where the mask added here is causal, is_causal=True takes its place; in a bidirectional model it stays."
    )


def _masked(view: DeviceWindow, runs: Sequence[Int64]) -> bool:
    """A mask is added to the scores, as far as the first runs show."""
    timeline, host = view.timeline, view.timeline.host
    masked = False
    for run in runs[:RUNS_ASKED]:
        between = np.arange(int(run.min()), int(run.max()) + 1)
        launches = timeline.launch[between[timeline.linked[between]]]
        rows = host.operator[launches]
        labels = [view.trace.label(row) for row in present(rows[rows != NONE]).tolist()]
        masked = masked or any(MASKS.search(label) for label in labels)
    return masked
