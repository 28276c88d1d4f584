from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.decode.passes import KEPT, USUAL, Decoding
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, less
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import duration, percent

FROM = 0.4  # of a pass goes to reading weights; below, halving them moves the pass by less than a fifth
FREE = 0.5  # of the ridge: a product with more rows begins to be bound by arithmetic, which fewer bytes do not help
ASKED = 0.5  # of the decode in matrix kernels, from which it is worth asking for the type of the weights


@rule(
    title="Every pass reads all weights in 16 bits",
    cites=(
        "tvi-matrix-weight-quant",
        "tvi-idea-quant",
        "tvi-floor-is-hard",
        "gt-int8",
        "gt-int4",
        "ai-quant-tpot",
        "ai-verify-after",
    ),
    needs=("hardware",),
    phases=("decode",),
    because="tvi-matrix-weight-quant",
    fires=(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [1,4096]x[4096,57344] bf16
        b: aten::add [1,4096]x[1,4096] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
        case(
            """
        step |....................
        host g.S==================
        s7   .gggggggggggggggggg..
        g: graph my_gemm_kernel
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        weights: 470MB
        """,
            "Inside graph replays no shapes are recorded, but the bytes of the weights were told.",
        ),
        case(
            """
        step |................................................................
        host O=======...D==================.D==================.D==================
        host2 a.S========b.S================.b.S================.b.S===============
        s7   ..aaaaaaaaa.bbbbbbbbbbbbbbbbb..bbbbbbbbbbbbbbbbb..bbbbbbbbbbbbbbbbb
        a: aten::mm [2048,4096]x[4096,57344] bf16
        b: aten::mm [1,4096]x[4096,57344] bf16
        O: execute_context_1(2048)_generation_0(0)
        D: execute_context_0(0)_generation_1(1)
        scale: 10us
        device: H100 SXM
        """,
            "Prefills among the decode steps: those are left out.",
        ),
        case(
            """
        step |...................
        host g..................
        s7   .gggggggggggggggggg
        g: graph my_gemm_kernel
        repeat: 3
        device: H100 SXM
        phase: decode
        """,
            "Nobody told: a question.",
        ),
    ),
    quiet=(
        case(
            """
        step |..........
        host a.........
        s7   .aaaaaaaaa
        a: aten::mm [1,4096]x[4096,57344] fp8
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "8 bits already.",
        ),
        """
        step |...................
        host g..................
        s7   .gggggggggggggggggg
        g: graph _matmul_ogs_bf16xbf16xmxfp4_16x128x256
        repeat: 3
        device: H100 SXM
        phase: decode
        """,
        case(
            """
        step |...................
        host a..................
        s7   .aaaaaaaaaaaaaaaaaa
        a: aten::mm [256,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "Enough rows to be bound by arithmetic.",
        ),
        case(
            """
        step |....................
        host g.S==================
        s7   .gggggggggggggggggg..
        g: graph my_gemm_kernel
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        weights: 2GB
        """,
            "The bytes that were told cannot be read in the time of a pass.",
        ),
        case(
            """
        host D===================.
        host2 g.S==================
        s7   .gggggggggggggggggg..
        g: graph my_gemm_kernel
        D: step[DECODE bs=256]
        repeat: 3
        scale: 10us
        device: H100 SXM
        weights: 470MB
        """,
            "They were told, but so many sequences share the reading that it is free.",
        ),
        case(
            """
        step |................................
        host OOOOOOOOOOOOa.S=================
        s7   .............aaaaaaaaaaaaaaaaa..
        a: aten::mm [1,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "The host is the bottleneck: the GPU would only wait longer.",
        ),
        case(
            """
        step |...................
        host a..................
        s7   .aaaaaaaaaaaaaaaaaa
        a: aten::mm [1,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: prefill
        """,
            "Prefill.",
        ),
    ),
)
def weight_quantization(view: DeviceWindow) -> Iterator[Claim]:
    """A decode pass reads every weight for the few tokens that it makes, and the weights have 16 bits.

    Why it costs: with few rows a matrix product takes as long as its weights take to arrive. Half the bytes are half
    the time of that part; cache, activations and launches stay as they are.

    What to do: weights in 8 bits (FP8 where the device has it, else INT8 for the weights only), then in 4 bits (AWQ,
    GPTQ, MXFP4 on Blackwell) if the quality holds. Compare the answers on your own tasks before and after.

    How to verify: record again; the matrix kernels should take about half as long, and the floor of a pass is lower.

    When it must not fire: the weights have 8 bits or fewer already, the batch makes the products bound by arithmetic,
    the GPU waits for the host more than 30 % of the time, or it is prefill or training.
    """
    decode = Decoding(view)
    if decode.quantized or decode.host_bound:
        return
    model, products, passes = view.inkernel, decode.products, decode.passes.value
    told = view.request.weights
    doubts: tuple[str, ...] = ()
    if told is not None and passes:
        ridge = (view.hardware.batch_ridge(*USUAL) if view.hardware else None) or 0.0
        if decode.floor_ns is None or (decode.rows.value or 0) > FREE * ridge:  # what was told cannot be, or is free
            return
        operations, each = decode.matrix, view.time_of(decode.matrix)
        read = told * passes * each / max(each.sum(), 1.0)
        doubts = ("that the weights have 16 bits is assumed", "which kernels read them is told by their names")
    else:
        chosen = (products.width >= 2) & (products.rows < FREE * products.ridge)
        operations, read = products.operation[chosen], products.bytes[chosen]
    reading = read.sum() / model.attainable * 1e9
    if reading > FROM * decode.ns:
        small = 1 / value("gt-int8", "ratio")
        saved = (1 - small) * read / model.attainable * 1e9
        floor = (read.sum() / passes / view.hardware.bandwidth * 1e9) if passes and view.hardware else None
        yield Claim(
            message=f"Reading weights takes {percent(reading / decode.ns)} of the decode: {read.sum() / 1e9:.3g} GB in "
            "the window"
            + (f", at least {duration(round(floor))} a pass and {duration(round(floor * small))} in 8 bits." if floor else "."),
            ns=int(np.minimum(view.time_of(operations), read / model.attainable * 1e9).sum()),
            how=f"Quantize the weights to {'FP8' if view.hardware and 'fp8' in view.hardware.peaks else 'INT8'}; "
            f"4 bits would divide their bytes by {value('gt-int4', 'ratio'):g}. Check the answers on your own tasks.",
            fix=faster(
                view, "weight-quantization", "weights in 8 bits", operations, less(view, operations, saved, KEPT),
                less(view, operations, saved),
                assumes=(f"pessimistic: {percent(KEPT)} of the bytes saved turn into time", "8 bits instead of 16"),
            ),
            evidence=(of_operations(view, operations),),
            formula=f"(1 - 1/2) × {read.sum() / 1e9:.3g} GB / {model.attainable / 1e12:.3g} TB/s, of each kernel's time",
            grade="modelled",
            doubts=doubts,
        )  # fmt: skip
        return
    time = view.time_of(decode.matrix).sum()
    if decode.weights.value is None and time > ASKED * decode.ns and not len(operations):
        yield Claim(
            message=f"Matrix kernels take {percent(time / decode.ns)} of the decode, and their weights show no smaller type "
            "than 16 bits.",
            ns=int(time),
            how="How many bits do the weights have? If 16, quantize them; --weights BYTES tells what it would give.",
            evidence=(of_operations(view, decode.matrix),),
            doubts=(decode.weights.why,),
        )
