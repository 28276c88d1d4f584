from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_rows import (
    Judged,
    called,
    formula_of,
    judged_rows,
    operations,
    rate,
    toward,
    units_of,
)
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import percent, share

SLOW = 0.5  # of what can be reached
NARROW = 8  # channels in or out: fewer leave most of a matrix instruction empty
SMALL = 256  # rows of the product: places of the result in the batch


@rule(
    title="Convolutions whose shape the device handles badly",
    cites=(
        "gt-layout-4x",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html",
        "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    ),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::convolution_backward [4,2048,4,4]x[4,2048,4,4]x[2048,2048,3,3] bf16 > sm80_xmma_dgrad_implicit_gemm_bf16
            device: A100 SXM4 80GB
            repeat: 3
            scale: 100us
            """,
            "Sixty-four places to compute: hardly any of the device is used.",
        ),
    ),
    quiet=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::mm [64,2048]x[2048,2048] bf16
            device: A100 SXM4 80GB
            repeat: 3
            scale: 100us
            """,
            "No convolution.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::convolution_backward [256,256,56,56]x[256,256,56,56]x[256,256,3,3] bf16 > sm80_xmma_dgrad_implicit_gemm_bf16
            device: A100 SXM4 80GB
            repeat: 3
            scale: 300us
            """,
            "Near what products reach.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::convolution_backward [1,64,8,8]x[1,64,8,8]x[64,64,3,3] bf16 > sm80_xmma_dgrad_implicit_gemm_bf16
            device: A100 SXM4 80GB
            repeat: 3
            scale: 1us
            """,
            "A short kernel.",
        ),
    ),
)
def convolution_shapes(view: DeviceWindow) -> Iterator[Claim]:
    """Convolutions run far below what the device can do because of their shape: depthwise, few channels, few places, dilated,
    transposed, or in an order of dimensions that does not suit the kernel.

    Why it costs: as a matrix product a convolution has a row for each place of the result, a column for each filter, and
    channels times window in depth. Depthwise ones have depth 9 and are bound by memory, three channels fill a fraction of an
    instruction, small images in small batches give too few blocks, dilation and strides touch rows that lie far apart.

    What to do: `torch.channels_last` and 16-bit types; depthwise: fuse it with its neighbours, or larger groups; few channels:
    pad them to 8 or fold space into channels; small images: a larger batch; 1 x 1: it is a product, and follows products'
    rules; dilated and transposed: let the library try its kernels (`torch.backends.cudnn.benchmark = True`, MIOpen's find
    mode), or resize and convolve instead of transposing.

    How to verify: record again; another kernel stands there, and its TFLOP/s or TB/s rise.

    When it must not fire: kernels near what can be reached, short ones, or those that share the device.
    """
    rows = [
        one for one in judged_rows(view) if one.row.family == "convolution" and (one.row.of_reachable or 1.0) < SLOW
    ]
    if not rows:
        return
    worst, ns = rows[0], sum(one.row.ns for one in rows)
    kind, how = _kind(worst)
    yield Claim(
        message=f"{called(worst)} runs at {rate(worst.row)}{_other(view, worst)}; {kind}{_product(view, worst)}. "
        f"{len(rows)} kind{'s' * (len(rows) > 1)} of convolutions below half of what can be reached take{'s' * (len(rows) == 1)} "
        f"{share(ns, view.window.wall_ns)} of the wall.",
        ns=ns,
        how=how,
        fix=toward(
            view, "convolution-shapes", "convolutions as fast as can be reached", rows, [1.0] * len(rows),
            "optimistic: as fast as can be reached; pessimistic: no better kernel exists for the shape",
        ),
        evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in rows[:3]),
        formula=f"2 × results × weights of a channel's window; {formula_of(worst, view)}",
        grade="assumed",
    )  # fmt: skip


def _kind(one: Judged) -> tuple[str, str]:
    """What is special about the convolution, and what helps."""
    window, row, cost = one.cost.window, one.row, one.cost
    tuned = "let the library try its kernels (torch.backends.cudnn.benchmark = True, MIOpen's find mode)"
    if window is None:
        return "a gradient", f"Use torch.channels_last and 16-bit types, and {tuned}."
    if window.depthwise:
        return (
            f"depthwise, so that it is bound by {row.bound}: {row.flops_per_byte:,.1f} FLOP a byte",
            "Fuse it with its neighbours, use torch.channels_last with a kernel for depthwise windows, or fewer, larger groups.",
        )
    if window.transposed:
        return "transposed", f"Resize and convolve instead of transposing, or {tuned}."
    if min(window.channels, window.filters) < NARROW:
        return (
            f"{window.channels} channels in, {window.filters} out: most of a matrix instruction is empty",
            "Pad the channels to 8, or fold space into channels (space-to-depth) in the first layer.",
        )
    if window.dilated:
        return (
            "dilated: its reads lie far apart",
            f"{tuned[0].upper()}{tuned[1:]}; a smaller dilation on a downsampled image.",
        )
    if window.pointwise:
        return "1 × 1, a matrix product", f"Use torch.channels_last, so that it is a plain product, and {tuned}."
    if cost.m < SMALL:
        return (
            "few places",
            f"A larger batch, so that there are more rows; torch.channels_last; split-K kernels: {tuned}.",
        )
    if window.groups > 1:
        return (
            f"{window.groups} groups of {window.channels // window.groups} channels",
            "Fewer, larger groups; torch.channels_last.",
        )
    return "plain", f"Use torch.channels_last and 16-bit types, and {tuned}."


def _product(view: DeviceWindow, one: Judged) -> str:
    cost, row, sms = one.cost, one.row, view.kernel_table.sms
    if not cost.m:
        return ""
    groups = f", {cost.batch:,} times" if cost.batch > 1 else ""
    text = f"; as a product it has {cost.m:,} rows, {cost.n:,} column{'s' * (cost.n > 1)} and depth {cost.k:,}{groups}"
    if row.blocks and sms and row.blocks < sms:
        text += f"; {row.blocks} blocks on {sms} {units_of(view)}"
    return text


def _other(view: DeviceWindow, one: Judged) -> str:
    """The other of the two rates."""
    row, peak = one.row, view.kernel_table.peak(one.at)
    if row.bound == "memory":
        return (
            f"; {row.flops_per_s / 1e12:,.1f} TFLOP/s, {percent(row.flops_per_s / peak, 1)} of the peak" if peak else ""
        )
    return f"; {row.bytes_per_s / 1e12:,.2f} TB/s"
