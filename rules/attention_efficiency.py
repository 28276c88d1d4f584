from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_rows import (
    Judged,
    beyond_cache,
    called,
    formula_of,
    judged_rows,
    operations,
    rate,
    too_few_blocks,
    toward,
)
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import percent, share

SLOW = 0.5  # of what products reach: fused kernels of version 2 get about that on long sequences
LONG = 512  # queries: on shorter sequences launch, ramp and the softmax weigh more than the products
FEW = 16  # queries of a decode: one a sequence, some more where tokens are guessed ahead
MUCH = 0.3  # of the wall, from which short sequences are worth a word
POWERS = (32, 64, 128, 256)


@rule(
    title="Attention below what its products could reach",
    cites=("gt-fa3", "gt-flash-tiles", "tvi-lever-flash", "https://github.com/Dao-AILab/flash-attention"),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::_scaled_dot_product_flash_attention [2,32,8192,128]x[2,32,8192,128]x[2,32,8192,128] bf16 > attn_fwd
            device: H100 SXM
            repeat: 3
            scale: 300us
            """,
            "Long sequences, and a fifth of what products reach.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::_flash_attention_forward [8,1,32,128]x[8,8192,32,128]x[8,8192,32,128] bf16 > attn_fwd
            device: H100 SXM
            repeat: 3
            scale: 60us
            """,
            "One query over 8,192 keys: 1.07 GB of cache in 1 ms, a third of the bandwidth.",
        ),
    ),
    quiet=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::_scaled_dot_product_flash_attention [2,32,8192,128]x[2,32,8192,128]x[2,32,8192,128] bf16 > attn_fwd
            device: H100 SXM
            repeat: 3
            scale: 100us
            """,
            "As fast as fused kernels get.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::_flash_attention_forward [8,1,32,128]x[8,8192,32,128]x[8,8192,32,128] bf16 > attn_fwd
            device: H100 SXM
            repeat: 3
            scale: 24us
            """,
            "The same cache read in 0.41 ms: 2.6 of 3.35 TB/s.",
        ),
        case(
            """
            step |........................................
            host ab.S===================================
            s7   .aabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb.
            a: aten::_scaled_dot_product_flash_attention [32,32,128,128]x[32,32,128,128]x[32,32,128,128] bf16 > attn_fwd
            b: aten::mm [8192,8192]x[8192,8192] bf16
            device: H100 SXM
            repeat: 3
            scale: 42us
            """,
            "Short sequences, beside much else: slow by nature, and little to gain.",
        ),
    ),
)
def attention_efficiency(view: DeviceWindow) -> Iterator[Claim]:
    """A fused attention kernel reaches a small part of what the device can: of its products over long sequences, of its
    bandwidth where few queries meet a long cache; or its sequences are so short that it cannot.

    Why it costs: its two products could run nearly as fast as others; the softmax between them, the mask, the head size
    and the number of blocks decide how near it gets. Kernels made for another generation, or another head size, stay far
    below.

    What to do: the kernel made for the device (FlashAttention 3 or cuDNN on Hopper, 4 on Blackwell, AITER or CK on AMD;
    `sdpa_kernel(SDPBackend.CUDNN_ATTENTION)`); head sizes of 64 or 128: others are padded; `is_causal=True` instead of a
    dense mask, where the model is causal. Short sequences: several in one call (packed, nested or variable-length), a larger
    batch; their launches may cost more than the kernels. Decode: keys split over blocks (Flash-Decoding), fewer bytes in the
    cache (grouped queries, 8 bits).

    How to verify: record again; another kernel stands there, and the TFLOP/s rise.

    When it must not fire: sequences below 512 beside other work, caches that fit into the device's, kernels that share the
    device, or unfused attention (another rule).
    """
    rows = [one for one in judged_rows(view) if one.row.family == "attention" and (one.row.of_reachable or 1.0) < SLOW]
    long = [one for one in rows if one.cost.queries >= LONG and one.row.bound == "compute"]
    if long:
        worst, ns = long[0], sum(one.row.ns for one in long)
        hopeful = min(span("gt-fa3", "speedup")[1] * SLOW, 1.0)
        yield Claim(
            message=f"{called(worst)}: {_sizes(worst)} at {rate(worst.row)}; such attention takes "
            f"{share(ns, view.window.wall_ns)} of the wall.{_padded(worst)}{too_few_blocks(view, worst)}",
            ns=ns,
            how="Try the kernel made for this device (FlashAttention 3, cuDNN, AITER or CK; sdpa_kernel chooses), head sizes of "
            "64 or 128, and no dense mask.",
            fix=toward(
                view, "attention-efficiency", "attention near what products reach", long, [hopeful] * len(long),
                f"optimistic: {percent(hopeful)} of what can be reached; pessimistic: no faster kernel exists for it",
            ),
            evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in long[:3]),
            formula=f"4 B H S S D FLOP, half of it causal; {formula_of(worst, view)}",
            grade="assumed",
        )  # fmt: skip
    cached = [one for one in rows if _over_cache(view, one)]
    if cached:
        worst, ns = cached[0], sum(one.row.ns for one in cached)
        yield Claim(
            title="Attention over a long cache below the bandwidth",
            message=f"{called(worst)}: {_sizes(worst)}, at {rate(worst.row)}: it has to read the cache once; such attention "
            f"takes {share(ns, view.window.wall_ns)} of the wall.{too_few_blocks(view, worst)}",
            ns=ns,
            how="Split the keys over more blocks (Flash-Decoding, split-KV paged attention), or make the cache smaller: grouped "
            "queries, 8 bits.",
            fix=toward(
                view, "attention-over-cache", "the cache at the bandwidth that can be reached", cached, [1.0] * len(cached),
                "optimistic: the cache's bytes at the bandwidth that can be reached; pessimistic: no faster kernel exists for it",
            ),
            evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in cached[:3]),
            formula=formula_of(worst, view),
            grade="modelled",
        )  # fmt: skip
    short = [one for one in rows if 1 < one.cost.queries < LONG and one not in cached]
    ns = sum(one.row.ns for one in short)
    if ns >= MUCH * view.window.wall_ns:
        worst = short[0]
        peak = (view.kernel_table.published(worst.at) or view.kernel_table.peak(worst.at)) or None
        of_peak = (
            f" and {worst.row.flops_per_s / 1e12:,.0f} TFLOP/s, {percent(worst.row.flops_per_s / peak)} of what products reach"
            if peak
            else ""
        )
        yield Claim(
            title="Attention over short sequences",
            message=f"{called(worst)}: {_sizes(worst)} at {rate(worst.row)}{of_peak} ({worst.row.flops_per_byte:,.0f} FLOP a "
            "byte): expected at this length.",
            ns=ns,
            how="More work a call: a larger batch, or sequences packed into one call (variable length, nested tensors). Gaps "
            "between such kernels are the launches', not theirs.",
            evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in short[:3]),
            formula=formula_of(worst, view),
            grade="modelled",
            unpriced="how fast a kernel can be at this length is not known",
        )  # fmt: skip


def _over_cache(view: DeviceWindow, one: Judged) -> bool:
    """Few queries over many keys, too many for the device's cache."""
    few = 0 < one.cost.queries <= FEW and one.cost.keys >= LONG
    return few and one.row.bound == "memory" and beyond_cache(view, one)


def _sizes(one: Judged) -> str:
    cost = one.cost
    keys = f" × {cost.keys:,}" if cost.keys != cost.queries else ""
    return f"S = {cost.queries:,}{keys}, head size {cost.head}"


def _padded(one: Judged) -> str:
    head = one.cost.head
    up = next((power for power in POWERS if power >= head), head)
    return f" Kernels that pad heads of {head} to {up} waste {percent(1 - head / up)}." if head and up != head else ""
