from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import clipped_ns
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import MIGRATION
from gpu_trace_advisor.units import duration, share, size

FROM = 0.01  # of the wall


@rule(
    title="Managed memory migrates page by page",
    cites=(),
    fires=(
        case(
            """
        host a.S===============.b
        s7   .aaaaa..............b
        s8   .......u..u..u..u....
        u: Memcpy DtoH (Unified)
        scale: 20us
        """,
            "The CPU reads what a kernel wrote, fault by fault.",
        ),
    ),
    quiet=(
        case(
            """
        host a.c...............b
        s7   .aaacccc...........bb
        c: Memcpy DtoH (Device -> Pinned)
        scale: 20us
        """,
            "A copy that somebody asked for.",
        ),
        case(
            """
        host a.S===============.b
        s7   .aaaaaaaaaaaaaaaaa..b
        s8   ...u..u..u..u..u....
        u: Memcpy HtoD (Unified)
        scale: 20us
        """,
            "A kernel hides the migrations: what it waits for them is not in the timeline.",
        ),
        case(
            """
        host a.S===============.b
        s7   .aaaaaaaaaaaaaaaaa..b
        scale: 20us
        """,
            "Nothing migrates.",
        ),
    ),
)
def managed_memory(view: DeviceWindow) -> Iterator[Claim]:
    """Pages of managed memory move because somebody touches them, one page fault after the other.

    Why it costs: each fault stops the thread or the warp that touched the page until its few pages have moved, at a fraction
    of the link's rate; a kernel that faults runs many times as long.

    What to do: `cudaMemPrefetchAsync` before the kernel and before the CPU reads, `cudaMemAdvise` for what is read by both or
    stays on one side, or explicit copies from pinned memory.

    How to verify: record again with `--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true`; few large migrations
    stand where many small ones were.

    When it must not fire: explicit copies, and migrations that kernels hide.
    """
    window, timeline = view.window, view.timeline
    moved = view.operations[timeline.op_class[view.operations] == MIGRATION]
    named = wall_time.of_causes(view, "page-fault", "migration")
    lost = sum(named.values())
    if not len(moved) or lost < FROM * window.wall_ns:
        return
    sizes = timeline.trace.bytes[timeline.row[moved]]
    total = f", {size(int(sizes.sum()))} in pieces of {size(int(np.median(sizes)))}" if (sizes >= 0).all() else ""
    under = int(clipped_ns(timeline, moved, window.start_ns, window.end_ns).sum()) - named.get("migration", 0)
    hidden = f" Another {duration(under)} of it runs beside kernels, which wait for it inside." if under > 0 else ""
    yield Claim(
        message=f"{len(moved):,} migrations of managed memory{total} and the page faults between them take "
        f"{share(lost, window.wall_ns)} of the wall ({duration(lost)}).{hidden}",
        named=named,
        how="cudaMemPrefetchAsync to the GPU before the kernel and to the host before it is read, cudaMemAdvise for what both "
        "read, or explicit copies from pinned memory.",
        evidence=(of_operations(view, moved),),
        formula=f"gaps before migrations and migrations that nothing hides, {lost / 1e6:,.3f} ms",
        unpriced="how long one large transfer takes instead depends on what is touched, which the recording does not hold",
    )
