import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.reference.facts import span, value
from gpu_trace_advisor.roofline.operator_costs import TRUE_FP32, dtype_of_kernel
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, running_time
from gpu_trace_advisor.rulekit.kernel_rows import least_ns
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.kernel_names import kernel_class, readable
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import Bool, Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import percent, share

FROM = 0.10  # of the wall in fp32 products: less does not pay for checking the results
PRODUCTS = frozenset({"gemm", "convolution"})
SINGLE = re.compile(r"(?<![a-z])sgemm|scudnn|cijk_\w+_SB_", re.IGNORECASE)
NARROW = (
    "bf16",
    "fp16",
    "half",
    "h884",
    "h1688",
    "hgemm",
    "tf32",
    "s1688",
    "s884",
    "f16",
    "fp8",
    "e4m3",
    "int8",
    "i8816",
    "double",
    "dgemm",
)
"""Words in names of kernels that are not true fp32."""
HALVED = 0.5  # pessimistic: at least the bytes halve, whatever else limits the kernel
EFFICIENT = 0.7  # optimistic: the part of the faster peak that such kernels reach, the low end of a good GEMM


@rule(
    title="Matrix products in fp32",
    cites=("tvi-lever-mixed-precision", "tvi-matrix-tensor-cores", "ai-precisions", "gt-fp16-underflow", "gt-mem-2x"),
    fires=(
        """
        step |...................
        host abS==============..
        s7   .aaaaaaaaaaaaabbbbbb
        a: ampere_sgemm_128x64_tn
        b: vectorized_elementwise_kernel_add
        device: a100-sxm4-80
        repeat: 4
        scale: 100us
        """,
        case(
            """
        step |...................
        host abS==============..
        s7   .aaaaaaaaaaaaabbbbbb
        a: volta_sgemm_128x64_tn
        b: vectorized_elementwise_kernel_add
        repeat: 4
        scale: 100us
        """,
            "An unknown device: less sure how much faster.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host abS==============..
        s7   .aaaaaaaaaaaaabbbbbb
        a: ampere_bf16_s16816gemm_bf16_128x64_tn
        b: vectorized_elementwise_kernel_add
        device: a100-sxm4-80
        repeat: 4
        scale: 100us
        """,
            "16-bit already.",
        ),
        case(
            """
        step |...................
        host abS==============..
        s7   .aaaaaaaaaaaaabbbbbb
        a: ampere_tf32_s1688gemm_128x64_tn
        b: vectorized_elementwise_kernel_add
        device: a100-sxm4-80
        repeat: 4
        scale: 100us
        """,
            "TF32 uses the tensor cores.",
        ),
        case(
            """
        step |...................
        host abS==============..
        s7   .aaaaaaaaaaaaabbbbbb
        a: gemv2T_kernel_val_float_sgemm
        phase: decode
        repeat: 4
        scale: 100us
        """,
            "Decode with a few rows is bound by bytes: the weights' type is another rule's matter.",
        ),
        case(
            """
        step |...................
        host abS==============..
        s7   .aaaaaaaaaaaaabbbbbb
        a: ampere_dgemm_64x64
        repeat: 4
        scale: 100us
        """,
            "Science in double precision needs it.",
        ),
    ),
)
def mixed_precision(view: DeviceWindow) -> Iterator[Claim]:
    """Matrix products run in fp32 on the ordinary units while the tensor cores stand idle.

    Why it costs: tensor cores multiply bf16 and fp16 many times as fast as fp32 units do, tf32 several times, and 16-bit
    tensors are half the bytes.

    What to do: first `torch.set_float32_matmul_precision("high")` (tf32, one line, on Ampere and later); then
    `torch.autocast(device_type="cuda", dtype=torch.bfloat16)`. Before Ampere fp16 with a `GradScaler`, as its small values
    underflow.

    How to verify: kernel names show tf32, bf16 or s16816; compare the loss or the outputs over some hundred steps.

    When it must not fire: 16-bit or tf32 already, double precision, and decode with few rows, which is bound by bytes.
    """
    if view.phase.name == "decode":
        return
    timeline, wall, trace = view.timeline, view.window.wall_ns, view.trace
    on = view.operations[timeline.is_kernel[view.operations]]
    mine = on[named(trace, trace.name_code[timeline.row[on]], is_fp32_product)]
    mine = mine[~_narrow(view, mine)]
    ns = running_time(view, mine)
    if ns < FROM * wall:
        return
    low, high, told = _factors(view)
    by_time = Counter[str]()
    for op in mine.tolist():
        by_time[readable(timeline.label(op))] += int(timeline.length[op])
    names = [name for name, _ in by_time.most_common(3)]
    what = _called({kernel_class(trace.names[code]) for code in present(trace.name_code[timeline.row[mine]]).tolist()})
    yield Claim(
        title=f"{what[0].upper()}{what[1:]} in fp32",
        message=f"{len(mine):,} {what} in true fp32 take {share(ns, wall)} of the wall ({ns / 1e6:,.1f} ms), "
        f"without the tensor cores: {', '.join(names)}.",
        ns=ns,
        how=_how(view),
        fix=faster(
            view, "mixed-precision", "products in 16 bit", mine, low, high, assumes=(told,),
            least_ns=least_ns(view, mine, _narrowest(view)),
        ),
        evidence=(of_operations(view, mine),),
        formula=f"{ns / 1e6:,.3f} ms × (1 − factor), factor {high:.2f} to {low:.2f}; bytes fall by "
        f"{span('gt-mem-2x', 'ratio')[0]:g}",
        grade="modelled",
        doubts=() if view.hardware else ("the device's peaks are not known (--hardware NAME)",),
    )  # fmt: skip


def _called(classes: set[str]) -> str:
    """What kernels of these classes are called."""
    if classes == {"convolution"}:
        return "convolutions"
    return "convolutions and matrix products" if "convolution" in classes else "matrix products"


def _how(view: DeviceWindow) -> str:
    """What this device can do, in PyTorch's words or in CUDA's; both generations' where the device is not known."""
    known = view.hardware is not None
    bf16 = view.hardware is not None and "bf16" in view.hardware.peaks
    if not is_pytorch(view.trace):
        tf32 = "CUBLAS_COMPUTE_32F_FAST_TF32 for tf32 (Ampere and later), or " if bf16 or not known else ""
        return f"{tf32}16-bit inputs with fp32 accumulation: cublasGemmEx, or cuBLASLt and cuDNN with such descriptors."
    new = 'torch.set_float32_matmul_precision("high") for tf32, or torch.autocast("cuda", dtype=torch.bfloat16)'
    old = "torch.autocast with fp16"
    if view.phase.name not in ("prefill", "decode"):  # only gradients are that small
        old += f" and a GradScaler (fp16 underflows below {value('gt-fp16-underflow', 'min'):.1g})"
    if not known:
        return f"{new}; before Ampere {old}."
    return f"{new}." if bf16 else f"{old}; this device has no bf16."


def is_fp32_product(name: str) -> bool:
    """A product of fp32 numbers on the ordinary units, by its kernel's name: `sgemm`, `scudnn`, rocBLAS's `_SB_`."""
    if kernel_class(name) not in PRODUCTS or any(word in name.lower() for word in NARROW):
        return False
    return bool(SINGLE.search(name) or (TRUE_FP32.search(name) and dtype_of_kernel(name) == "fp32"))


def _narrow(view: DeviceWindow, operations: Int64) -> Bool:
    """[k] the operator's recorded types say that the product is not of fp32 numbers."""
    costs = view.inkernel.costs
    other = np.array([*(kind.dtype != "fp32" for kind in costs.kinds), False], np.bool_)
    return other[costs.kind[operations]]


def _narrowest(view: DeviceWindow) -> str:
    """The 16-bit type that the device multiplies."""
    return "bf16" if view.hardware is None or "bf16" in view.hardware.peaks else "fp16"


def _factors(view: DeviceWindow) -> tuple[float, float, str]:
    """How long such kernels would take, as parts of now: pessimistic, optimistic, and what that assumes."""
    hardware = view.hardware
    fast = max((hardware.peaks.get(dtype, 0.0) for dtype in ("bf16", "fp16")), default=0.0) if hardware else 0.0
    slow = hardware.vector.get("fp32", 0.0) if hardware else 0.0
    if not fast or not slow:
        return HALVED, HALVED, "the bytes halve, and the time with them"
    best = min(slow / fast / EFFICIENT, HALVED)
    return (
        HALVED,
        best,
        f"pessimistic: half the time; optimistic: {percent(EFFICIENT)} of the 16-bit peak, {fast / slow:.1f} times fp32's",
    )
