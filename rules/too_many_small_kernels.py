from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import one_each
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, share

SMALL_NS = 10_000  # a kernel this short costs about as much to launch as it runs
GAPS = 0.05  # of the wall between small kernels
BUSY = 0.95  # busy above this share: their number is no matter
FEWER = 2  # of neighbours, so many become one: what merging operators by hand reaches easily


@rule(
    title="Many kernels too small to be worth their launch",
    cites=("tvi-kernels-per-layer", "tvi-cause-launch"),
    needs=("launches",),
    fires=(
        """
        step |.......................................
        host abcdefghS==============================.
        s7   .aa..bb..cc..dd..ee..ff..gg..hh.........
        repeat: 4
        """,
        """
        step |.......................................
        host abcdefghS==============================.
        s7   ...a..bb.cc.d..ee.ff..g..hh.aa..bb.cc..d
        repeat: 3
        """,
    ),
    quiet=(
        case(
            """
        step |.......................................
        host OOaOObOOcOOdOOeOOfOOgOOhS==============.
        s7   ...a..b..c..d..e..f..g..hhhhhhhhhhhhhhhh
        repeat: 3
        """,
            "Pauses, but because the host is slow: graphs are what helps.",
        ),
        case(
            """
        step |.......................................
        host abcdS==================================.
        s7   .aaaaaaaa..bbbbbbbb..cccccccc..ddddddd..
        repeat: 4
        scale: 10us
        """,
            "Long ones.",
        ),
        case(
            """
        step |.......................................
        host abcdefghS==============================.
        s7   .aaaabbbbbccccdddddeeeefffffgggghhhhhhhh
        repeat: 4
        """,
            "Small, but without pauses.",
        ),
        case(
            """
        step |.......................................
        host g.......S==============================.
        s7   .gg..gg..gg..gg..gg..gg..gg..gg.........
        g: graph
        repeat: 4
        """,
            "Nodes of a graph: another rule's matter.",
        ),
    ),
)
def too_many_small_kernels(view: DeviceWindow) -> Iterator[Claim]:
    """Half of the kernels run for less than 10 µs, and the pauses between them add up.

    Why it costs: between two kernels the device empties and fills again, however early they were queued. The shorter the
    kernels, the larger the part of the time that goes to it.

    What to do: merge: one projection for Q, K and V, foreach or fused variants of optimizers, grouped matrix products for
    experts, `torch.compile`; larger batches; a graph makes the pauses shorter.

    How to verify: record again; there are fewer kernels, their median is longer, the pauses take less of the wall.

    When it must not fire: the device is busy all the same, or graphs replay the kernels.
    """
    timeline, wall = view.timeline, view.window.wall_ns
    on = view.operations[timeline.is_kernel[view.operations] & ~timeline.node[view.operations]]
    length = timeline.length[on]
    if not len(on) or float(np.median(length)) >= SMALL_NS or view.causes.get("unmodelled", 0) > BUSY * wall:
        return
    pairs = _pairs(view, on[length < SMALL_NS])
    between = int((timeline.start[pairs[:, 1]] - timeline.end[pairs[:, 0]]).sum())
    gaps = min(between, view.causes.get("queued-gap", 0))
    if gaps < GAPS * wall:
        return
    apart = pairs[::FEWER]
    merged = one_each(view, [apart], timeline.length[apart].sum(axis=1), host=False)
    low, high = span("tvi-kernels-per-layer", "kernels")
    steps = max(view.repetition.count, 1)
    yield Claim(
        message=f"{len(on):,} kernels, {len(on) / steps:,.0f} a step, run for {np.median(length) / 1e3:.1f} µs "
        f"(median); the pauses between small ones take {share(gaps, wall)} of the wall ({duration(gaps)})."
        + (f" A layer needs {low:.0f} to {high:.0f} kernels." if is_pytorch(view.trace) else ""),
        named={"queued-gap": gaps},
        how="Merge operators (one QKV projection, fused or foreach optimizers, torch.compile), or give each kernel more work."
        if is_pytorch(view.trace)
        else "Make one kernel of those that follow each other on the same data, or give each more work.",
        fix=Fix(
            "fewer-kernels", "neighbouring small kernels are merged", merged, merged,
            assumes=(f"every {FEWER} neighbouring small kernels become one that takes as long as both",), low_share=0.5,
        ),
        evidence=(of_operations(view, on[length < SMALL_NS], f"kernels under {SMALL_NS / 1e3:g} µs"),),
        formula=f"pauses between {len(pairs):,} pairs of neighbours, {between / 1e6:,.3f} ms",
        grade="modelled",
    )  # fmt: skip


def _pairs(view: DeviceWindow, small: Int64) -> Int64:
    """[k, 2] neighbours on a stream that are both small and merge: no communication, no copies."""
    timeline = view.timeline
    names = view.trace.name_code[timeline.row[small]]
    merges = small[named(view.trace, names, lambda name: kernel_class(name) != "communication")]
    order = merges[np.lexsort((timeline.start[merges], timeline.stream[merges]))]
    a, b = order[:-1], order[1:]
    pause = timeline.start[b] - timeline.end[a]
    close = (timeline.stream[a] == timeline.stream[b]) & (pause > 0) & (pause < 20 * SMALL_NS)
    return np.stack([a[close], b[close]], axis=1)
