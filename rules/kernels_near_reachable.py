from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.rulekit.kernel_rows import COVERED, rate
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.units import percent, share

NEAR = 0.85  # of what can be reached, over the time whose work is known
MOST = 0.9  # of the wall in kernels: else what lies between them comes first


@rule(
    title="Kernels are near what can be had",
    cites=("tvi-gemm-peak-share", "tvi-floor-is-hard", "tvi-mfu-good"),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |...................
            host ab.S==============.
            s7   .aaaaaaaaaabbbbbbbbb
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8192] bf16
            device: H100 SXM
            repeat: 4
            scale: 150us
            """,
            "Products at more than nine tenths of what is published.",
        ),
    ),
    quiet=(
        case(
            """
            step |...................
            host ab.S==============.
            s7   .aaaaaaaaaabbbbbbbbb
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8192] bf16
            device: H100 SXM
            repeat: 4
            scale: 250us
            """,
            "Products at half of it.",
        ),
        case(
            """
            step |...................
            host ab.S==============.
            s7   .aaaaaaaabbbbbbbbbbb
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: my_kernel
            device: H100 SXM
            repeat: 4
            scale: 180us
            """,
            "Of most of the time nothing is known.",
        ),
        case(
            """
            step |...................
            host ab.S==============.
            s7   .aaaaaaaaaabbbbbbbbb
            a: aten::mm [8192,8192]x[8192,8192] bf16
            b: aten::mm [8192,8192]x[8192,8192] bf16
            device: H100 SXM
            repeat: 4
            scale: 50us
            """,
            "Faster than the device allows: the data is in doubt.",
        ),
    ),
)
def kernels_near_reachable(view: DeviceWindow) -> Iterator[Claim]:
    """The kernels whose work is known run at what such kernels are known to reach: a better one would give little.

    Why it costs: it does not. A program at half of the datasheet may stand at nine tenths of what can be reached.

    What to do: stop tuning kernels. Less work is what is left: fewer FLOPs (a smaller or sparser model, narrower types,
    less recomputation, shorter sequences) or fewer bytes (fusion, quantization, smaller states), or another device.

    How to verify: compare the shares of what can be reached in the table of kernels with a second recording.

    When it must not fire: much of the time is of unknown work, kernels below what can be reached, or faster than the device
    allows, which puts the data in doubt.
    """
    table, wall = view.kernel_table, view.window.wall_ns
    if view.hardware is None or (table.covered or 0.0) < COVERED or table.kernel_ns < MOST * wall:
        return
    good, _ = span("tvi-gemm-peak-share", "gemm")
    needed, known, best = 0.0, 0, None
    for index in table.ranked:
        row = table.rows[index]
        if row.doubt.startswith("faster"):
            return
        known += row.ns
        # What shows itself as the best proves nothing, unless it is near the datasheet.
        if row.above_ns is not None and not (table.own(index) and (row.of_datasheet or 0.0) < good):
            needed += max(row.ns - row.above_ns, 0)
            best = best if best is not None else index
    if not known or needed < NEAR * known or best is None:
        return
    row = table.rows[best]
    yield Claim(
        message=f"Kernels whose work is known take {share(known, wall)} of the wall, {percent(needed / known)} of it needed at "
        f"what can be reached. The longest, {row.operator} {row.shape} {row.dtype}, runs at {rate(row)}: kernels are near what "
        "can be had.",
        ns=known,
        how="Stop tuning kernels: only fewer FLOPs (smaller model, narrower types, less recomputation) or fewer bytes (fusion, "
        "quantization) are left.",
        evidence=(Evidence("kernels whose work is known", sum(r.calls for r in table.rows), known),),
        formula=f"time that the work needs at what can be reached {needed / 1e6:,.3f} ms of {known / 1e6:,.3f} ms",
        grade="modelled",
        unpriced="there is nothing to save",
    )  # fmt: skip
