from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.roofline.alignment import aligned, worth_padding
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_rows import (
    FILLED,
    Judged,
    called,
    formula_of,
    is_cut_badly,
    is_narrowed_first,
    judged_rows,
    operations,
    rate,
    toward,
)
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import share

SLOWER = 0.85  # of the best product of its kind in the recording
FAR = 0.7  # of what is published, where no better one was recorded: large products reach that much


@rule(
    title="Matrix products slower than others of their kind",
    cites=(
        "tvi-gemm-peak-share",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
        "https://docs.pytorch.org/docs/stable/cuda.tunable.html",
    ),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |........................
            host a.b.S===================
            s7   .aaaaaaaaaaabbbbbbb.....
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8256] bf16
            repeat: 3
            scale: 220us
            device: H100 SXM
            """,
            "454 TFLOP/s beside 720, of products as large.",
        ),
    ),
    quiet=(
        case(
            """
            step |........................
            host a.b.S===================
            s7   .aaaaaaaaaaaabbbbbbbbbbb
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8256] bf16
            repeat: 3
            scale: 130us
            device: H100 SXM
            """,
            "Alike, and near what is published.",
        ),
        case(
            """
            step |........................
            host a.b.S===================
            s7   .aaaaaaaaaaabbbbbbb.....
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8256] bf16
            repeat: 3
            scale: 220us
            """,
            "A device without known peaks.",
        ),
        case(
            """
            step |........................
            host a.b.S===================
            s7   .aaaaaaaaaaabbbbbbb.....
            a: aten::mm [1024,1024]x[1024,1024] bf16
            b: aten::mm [1024,1024]x[1024,1088] bf16
            repeat: 3
            scale: 1us
            device: H100 SXM
            """,
            "So short that launch and ramp decide.",
        ),
        case(
            """
            step |........................
            host a.b.S===================
            s7   .aaaaaaaaaaabbbbbbb.....
            a: aten::mm [16,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8256] bf16
            repeat: 3
            scale: 220us
            device: H100 SXM
            """,
            "A few rows are bound by memory: they have other siblings.",
        ),
    ),
)
def slow_sibling(view: DeviceWindow) -> Iterator[Claim]:
    """A matrix product runs well below the best of its type in the same recording, or below what such products are known
    to reach, although its tiles fill the device.

    Why it costs: the library chose a kernel by heuristics that do not know this shape, or the operands lie in an order that
    suits it badly. Products of the same type and fill can run alike.

    What to do: let the library try its kernels: TunableOp (`PYTORCH_TUNABLEOP_ENABLED=1`), `torch.compile(mode=
    "max-autotune")`, cuBLASLt's heuristics; try the other layout of an operand (the weight kept transposed), or merge
    products that share an input.

    How to verify: record again; another kernel stands there, and its TFLOP/s are those of its siblings.

    When it must not fire: short products, those bound by memory, badly cut ones (their tiles come first), odd sizes
    (padding comes first), true fp32 (its type comes first), or where no faster one is known.
    """
    slow, references = list[Judged](), list[float]()
    for one in judged_rows(view):
        best = _reference(view, one)
        if best:
            slow.append(one)
            references.append(best)
    if not slow:
        return
    worst, best = slow[0], references[0]
    ns = sum(one.row.ns for one in slow)
    beside = (
        f"{best / 1e12:,.0f} TFLOP/s by the best of its kind here"
        if best != worst.row.reachable or not worst.row.reachable_from.startswith("published")
        else f"{best / 1e12:,.0f} TFLOP/s that are published for this device"
    )
    rates = [
        min(reference / (one.row.reachable or reference), 1.0) for one, reference in zip(slow, references, strict=True)
    ]
    yield Claim(
        message=f"{len(slow)} kind{'s' * (len(slow) > 1)} of products below their type's best take "
        f"{share(ns, view.window.wall_ns)} of the wall. "
        f"{called(worst)} runs at {rate(worst.row)}, beside {beside}.",
        ns=ns,
        how="Let the library try its kernels for these shapes: TunableOp, torch.compile(mode=\"max-autotune\"), cuBLASLt's "
        "heuristics; or keep the weight in the other layout.",
        fix=toward(
            view, "slow-sibling", "products as fast as their siblings", slow, rates,
            "optimistic: each gets as fast as the best of its kind; pessimistic: no faster kernel exists for its shape",
        ),
        evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in slow[:3]),
        formula=formula_of(worst, view),
        grade="assumed",
    )  # fmt: skip


def _reference(view: DeviceWindow, one: Judged) -> float:
    """FLOP/s of the best other product of the type, else what is published; 0 where the row is near it, or not to be judged."""
    row = one.row
    if row.family != "product" or row.bound != "compute" or is_cut_badly(view, one) or is_narrowed_first(view, one):
        return 0.0
    if worth_padding(one.cost) and not aligned(one.cost):
        return 0.0
    if row.fill is not None and row.fill < FILLED:
        return 0.0
    best = view.kernel_table.best_like(one.at)
    if best and row.flops_per_s < SLOWER * best:
        return best
    if row.reachable and row.reachable_from.startswith("published") and row.flops_per_s < FAR * row.reachable:
        return row.reachable
    return 0.0
