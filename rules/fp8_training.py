import re
from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.reference.facts import span, value
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, of_kinds, running_time
from gpu_trace_advisor.rulekit.kernel_rows import least_ns
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import percent

FROM = 0.5  # of the wall in 16-bit products: with less, the rest of the step bounds the gain to less than a third
LARGE = 2048  # of each dimension: below it the casts take what the faster product gives
KEPT = 0.5  # pessimistic share of the gain that is left beside casts, scales and layers kept in 16 bits
EIGHT_BITS = re.compile(r"e4m3|e5m2|fp8|float8", re.IGNORECASE)


@rule(
    title="Matrix products in 16 bits on a device with FP8",
    cites=(
        "tvi-matrix-weight-quant",
        "tvi-gemm-peak-share",
        "gt-fp8-2x",
        "gt-libs",
        "ai-amdahl",
        "ai-mixed-precision-refs",
        "ai-verify-after",
    ),
    needs=("shapes", "hardware"),
    phases=("training",),
    because="tvi-matrix-weight-quant",
    fires=(
        """
        step |.....................
        host a.b.S==================
        s7   .aaaaaaaaaaaaaaabbb...
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::add [8192,8192]x[8192,8192] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: training
        """,
    ),
    quiet=(
        case(
            """
        step |.........................................
        host a.b.S=====================================
        s7   .aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbb...
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::add [8192,8192]x[8192,8192] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: training
        """,
            "The products are far from the peak: that comes first.",
        ),
        case(
            """
        step |.........................................
        host a.b.S=====================================
        s7   .aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...
        a: aten::mm [8192,8192]x[8192,8192] bf16
        repeat: 3
        scale: 100us
        device: A100 SXM4 80GB
        phase: training
        """,
            "The device has no FP8.",
        ),
        case(
            """
        step |.....................
        host a.b.S==================
        s7   .aaaaaaaaaaaaaaabbb...
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: nvjet_qqtst_128x256_64x5_e4m3
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: training
        """,
            "FP8 already, but for one product.",
        ),
        case(
            """
        step |.......................................
        host a.b.S===================================
        s7   .aaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb....
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::add [8192,8192]x[8192,8192] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: training
        """,
            "Half of the step is something else.",
        ),
        case(
            """
        step |.....................
        host a.b.S==================
        s7   .aaaaaaaaaaaaaaabbb...
        a: aten::mm [1024,8192]x[8192,65536] bf16
        b: aten::add [8192,8192]x[8192,8192] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        phase: training
        """,
            "Small products: casting takes what they gain.",
        ),
    ),
)
def fp8_training(view: DeviceWindow) -> Iterator[Claim]:
    """Large matrix products run in 16 bits, near the peak of that type, on a device that multiplies 8 bits twice as fast.

    Why it costs: near their own peak only a smaller type makes the products faster. What is not a product keeps its time,
    so a step gains far less than twice.

    What to do: Transformer Engine (`fp8_autocast`), torchao's `convert_to_float8_training`, or the framework's FP8 recipe,
    for the linear layers; keep the first and last layers, norms and softmax in 16 bits. Compare the loss with a 16-bit run.

    How to verify: record again; kernels with e4m3 stand where bf16 ones were, and the step is shorter by a part of that.

    When it must not fire: the products are far from their peak (their shapes and launches come first), they are small,
    FP8 is used already, the device has none, or it is inference.
    """
    hardware, model, wall = view.hardware, view.inkernel, view.window.wall_ns
    if hardware is None or "fp8" not in hardware.peaks:
        return
    on = view.operations
    if any(
        EIGHT_BITS.search(view.trace.names[c]) for c in present(view.trace.name_code[view.timeline.row[on]]).tolist()
    ):
        return
    kinds, kind = model.costs.kinds, model.costs.kind
    fit = [k.family == "product" and k.dtype in ("bf16", "fp16") and min(k.m, k.n, k.k) >= LARGE for k in kinds]
    products = of_kinds(view, on, fit)
    time = view.time_of(products)
    if (taken := running_time(view, products)) < FROM * wall:
        return
    rate = float((model.needs[0][kind[products]] * model.costs.share[products]).sum() / time.sum())
    if rate < span("tvi-gemm-peak-share", "gemm")[0]:
        return
    gain = min(value("gt-fp8-2x", "gemm"), hardware.peaks["fp8"] / hardware.peaks["bf16"])
    share = taken / wall
    yield Claim(
        message=f"Products in 16 bits take {percent(share)} of the wall at {percent(rate)} of their peak; "
        f"{hardware.name} multiplies FP8 {gain:g} times as fast.",
        ns=taken,
        how="Train the linear layers in FP8 (Transformer Engine, torchao) and compare the loss with a 16-bit run.",
        fix=faster(
            view, "fp8-training", "linear layers in FP8", products, 1 - KEPT * (1 - 1 / gain), 1 / gain,
            assumes=(f"optimistic: {gain:g} times as fast; pessimistic: {percent(KEPT)} of that gain",),
            least_ns=least_ns(view, products, "fp8"),
        ),
        evidence=(of_operations(view, products),),
        formula=f"at most 1 / (1 - {share:.2f} × (1 - 1/{gain:g})) = {1 / (1 - share * (1 - 1 / gain)):.2f} times as fast",
        grade="modelled",
        doubts=("whether the model trains well in FP8 is not known",),
    )  # fmt: skip
