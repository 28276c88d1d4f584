from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.roofline.tiles import Tiling
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_rows import (
    FILLED,
    INSIDE,
    Judged,
    at_best_cut,
    called,
    formula_of,
    is_cut_badly,
    judged_rows,
    operations,
    rate,
    toward,
    units_of,
)
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import percent, share


@rule(
    title="Tiles of a matrix product do not fill the device",
    cites=(
        "tvi-cause-barrier",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
        "https://github.com/ROCm/Tensile/wiki/Kernel-Parameters",
    ),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [256,131072]x[131072,512] bf16 > sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x64_cublas
            repeat: 3
            scale: 100us
            device: H100 SXM
            """,
            "Four tiles on 132 SMs: splitting the long K would use the others.",
        ),
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [4097,4097]x[4097,4097] bf16 > Cijk_Ailk_Bljk_BBS_BH_MT256x112x64_MI16x16x16x1_SN
            repeat: 3
            scale: 40us
            device: MI300X
            """,
            "629 tiles on 304 CUs: three waves, the last nearly empty.",
        ),
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [65536,16384]x[16384,8] bf16 > Cijk_Ailk_Bljk_BBS_BH_MT256x448x64_MI16x16x16x1_SN
            repeat: 3
            scale: 400us
            device: MI300X
            """,
            "Eight columns in a tile of 256.",
        ),
    ),
    quiet=(
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [8192,8192]x[8192,8192] bf16 > sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas
            repeat: 3
            scale: 200us
            device: H100 SXM
            """,
            "4096 tiles are 31 waves.",
        ),
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [2048,8192]x[8192,2112] bf16 > sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas
            repeat: 3
            scale: 10us
            device: H100 SXM
            """,
            "272 tiles in three waves would be empty, but 264 fill two: 8 are left, and it still runs at what can be reached.",
        ),
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [256,131072]x[131072,512] bf16 > my_gemm_kernel
            repeat: 3
            scale: 100us
            device: H100 SXM
            """,
            "The name does not tell the tile.",
        ),
        case(
            """
            step |............
            host a.S=========
            s7   .aaaaaaaaaa..
            a: aten::mm [256,1024]x[1024,512] bf16 > sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x64_cublas
            repeat: 3
            scale: 1us
            device: H100 SXM
            """,
            "A short kernel.",
        ),
    ),
)
def tiles_and_waves(view: DeviceWindow) -> Iterator[Claim]:
    """A matrix product is cut into too few tiles, or into a number that leaves the last wave nearly empty, or into tiles of
    which most lies outside the result.

    Why it costs: each block computes one tile on one SM. Four tiles keep four SMs busy whatever the others could do; 2.07
    waves take as long as three; a tile of 256 columns computes 256 also where the result has 8.

    What to do: few tiles with a long K: split-K or stream-K (cuBLASLt and hipBLASLt have such kernels: let them be tried with
    TunableOp or max-autotune), or a larger batch. A last wave nearly empty: a size a little smaller or padded, another tile,
    a persistent kernel. Narrow results: a kernel for few columns, or merge several products into one.

    How to verify: record again; the kernel's name has another tile, and blocks over SMs is near a whole number or above four.

    When it must not fire: four waves or more, products bound by memory with narrow tiles, short kernels, names without a
    tile, or products that run near what can be reached all the same.
    """
    bad = [one for one in judged_rows(view) if is_cut_badly(view, one) and (one.row.of_reachable or 1.0) < FILLED]
    cuts = [(one, cut) for one in bad if (cut := view.kernel_table.tiling(one.at))]
    if not cuts:
        return
    (worst, cut), ns = cuts[0], sum(one.row.ns for one, _ in cuts)
    yield Claim(
        message=f"{called(worst)}: {_cut(view, worst, cut)}; it runs at {rate(worst.row)}. Such products take "
        f"{share(ns, view.window.wall_ns)} of the wall.",
        ns=ns,
        how=_how(cut, worst),
        fix=toward(
            view, "tiles-and-waves", "tiles that fill the device", [one for one, _ in cuts],
            [at_best_cut(one, c) for one, c in cuts],
            "optimistic: with all of the device at work it keeps its rate for each busy part, as far as can be reached; "
            "pessimistic: no better cut exists for the shape",
        ),
        evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one, _ in cuts[:3]),
        formula=f"fill {cut.fill:.2f}, {percent(cut.inside)} of the tiles inside the result; {formula_of(worst, view)}",
        grade="modelled",
        doubts=("that all blocks take equally long is assumed",),
    )  # fmt: skip


def _cut(view: DeviceWindow, one: Judged, cut: Tiling) -> str:
    units, sms = units_of(view), view.kernel_table.sms
    split = f" × split {cut.splits}" if cut.splits > 1 else ""
    text = f"{cut.tiles:,} tiles of {one.row.tile}{split}"
    if cut.blocks <= sms:
        busy = (
            one.row.flops_per_s / (view.kernel_table.peak(one.at) * cut.blocks / sms)
            if view.kernel_table.peak(one.at)
            else None
        )
        text += f" = {cut.blocks} of {sms} {units}" if split else f" on {sms} {units}"
        text += f", each at {percent(busy)} of its peak: few tiles" if busy and busy <= 1 else ": few tiles"
    elif cut.fill < FILLED:
        text += f" on {sms} {units} are {cut.waves:.2f} waves: the device is {percent(cut.fill)} full"
    else:
        text += f", of which {percent(cut.inside)} lies within the result"
    odd = [size for size in (one.cost.m, one.cost.n, one.cost.k) if size % 8]
    return text + (f"; its sizes ({', '.join(map(str, dict.fromkeys(odd)))}) are odd as well" if odd else "")


def _how(cut: Tiling, one: Judged) -> str:
    if cut.waves <= 1 and one.cost.k > 4 * max(one.cost.m, one.cost.n):
        return "Split the long K: let cuBLASLt or hipBLASLt try split-K and stream-K kernels (TunableOp, max-autotune)."
    if cut.waves <= 1:
        return (
            "Larger batches, smaller tiles, or several such products as one batched product; split-K where K is long."
        )
    if cut.inside < INSIDE:
        return "Merge products with the same input into one, or let the library try narrower tiles (TunableOp, max-autotune)."
    return (
        "Choose sizes that fill whole waves (pad or trim to multiples of the tile), or let the library try other tiles and "
        "stream-K (TunableOp, max-autotune)."
    )
