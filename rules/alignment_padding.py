from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.roofline.alignment import aligned, best_multiple, width, worth_padding
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, of_kinds, running_time
from gpu_trace_advisor.rulekit.kernel_rows import least_ns, left_by_tiles
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import percent

FROM = 0.05  # of the wall in such products: a fifth of them is then a percent


@rule(
    title="Matrix products with odd sizes",
    cites=("gt-pad-128b", "gt-tile-16", "gt-127-128"),
    needs=("shapes", "hardware"),
    fires=(
        """
        step |.....................
        host a.b.S=================
        s7   .aaaaaaaaaaabbbbbbb...
        a: aten::mm [4096,4096]x[4096,50257] bf16
        b: aten::add [4096,4096]x[4096,4096] bf16
        repeat: 3
        scale: 1ms
        device: H100 SXM
        """,
    ),
    quiet=(
        case(
            """
        step |.....................
        host a.b.S=================
        s7   .aaaaaaaaaaabbbbbbb...
        a: aten::mm [4096,4096]x[4096,50264] bf16
        repeat: 3
        scale: 1ms
        device: H100 SXM
        """,
            "A multiple of 16 bytes.",
        ),
        case(
            """
        step |.....................
        host a.b.S=================
        s7   .aaaaaaaaaaabbbbbbb...
        a: aten::mm [1,4096]x[4096,50257] bf16
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "One row: reading the weights decides.",
        ),
        case(
            """
        step |.....................
        host a.b.S=================
        s7   .aaaaaaaaaaabbbbbbb...
        a: aten::mm [65536,33]x[33,33] bf16
        repeat: 3
        scale: 1us
        device: H100 SXM
        """,
            "Padding would add more than it gives.",
        ),
        case(
            """
        step |.....................
        host a.b.S=================
        s7   .aaaaaaaaaaabbbbbbbbbb
        a: aten::mm [4096,4096]x[4096,50257] bf16
        b: aten::mm [4096,4096]x[4096,45056] bf16
        repeat: 3
        scale: 1ms
        device: H100 SXM
        """,
            "As fast as the aligned ones beside it.",
        ),
    ),
)
def alignment_padding(view: DeviceWindow) -> Iterator[Claim]:
    """Columns or depth of large matrix products are no multiple of 16 bytes.

    Why it costs: tensor cores want rows that begin at multiples of 16 bytes, better 128. Libraries fall back on kernels
    that load less at a time; newer ones lose little, which is why products of aligned sizes in the same recording decide.

    What to do: pad the odd size to a multiple of 64 elements (a vocabulary of 50257 to 50304), once, in the model.

    How to verify: record again; the product's kernel has another name (no `align1`, `align2`) and takes less time.

    When it must not fire: few rows, sizes that are multiples already, padding that adds more than 15 % of work, or aligned
    products of this type that are no faster.
    """
    costs, wall = view.inkernel.costs, view.window.wall_ns
    odd, even = (
        of_kinds(view, view.operations, [worth_padding(kind) and aligned(kind) == which for kind in costs.kinds])
        for which in (False, True)
    )
    time = view.time_of(odd)
    if (taken := running_time(view, odd)) < FROM * wall:
        return
    most = 1 - value("gt-pad-128b", "before") / value("gt-pad-128b", "after")
    if len(even):
        most = min(most, 1 - _rate(view, odd) / _rate(view, even))
    if most <= 0:
        return
    worst = costs.kinds[costs.kind[odd[time.argmax()]]]
    yield Claim(
        message=f"{len(odd)} products take {percent(taken / wall, 1)} of the wall with sizes that are no multiple of "
        f"{value('gt-tile-16', 'align'):g} bytes, such as {worst.m} × {worst.k} × {worst.n} in {worst.dtype}.",
        ns=taken,
        how=f"Pad {' and '.join(_odd(worst))} to a multiple of {best_multiple(worst)} elements.",
        fix=faster(
            view, "alignment-padding", "sizes padded", odd, 1.0, np.maximum(1 - most, left_by_tiles(view, odd)),
            assumes=(f"optimistic: padded products take {percent(most)} less time; pessimistic: the library loses nothing",),
            least_ns=least_ns(view, odd),
        ),
        evidence=(of_operations(view, odd),),
        formula=f"{percent(_rate(view, odd))} of the peak"
        + (f" against {percent(_rate(view, even))} of aligned products" if len(even) else ", no aligned ones to compare"),
        grade="modelled",
        doubts=() if len(even) else ("no aligned product of this recording shows what padding gives",),
    )  # fmt: skip


def _odd(kind: Cost) -> list[str]:
    sizes = (("the columns", kind.n), ("the depth", kind.k))
    return [f"{what} ({size})" for what, size in sizes if size * width(kind) % value("gt-tile-16", "align")]


def _rate(view: DeviceWindow, products: Int64) -> float:
    """Share of the peak."""
    model = view.inkernel
    compute = model.needs[0][model.costs.kind[products]] * model.costs.share[products]
    return float(compute.sum() / max(view.time_of(products).sum(), 1.0))
