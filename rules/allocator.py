from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.replay.fixes import FIXES
from gpu_trace_advisor.rulekit.evidence import of_causes
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, percent, share, times

FROM = 0.01  # of the wall: in a warm loop the caching allocator asks the driver for nothing at all


@rule(
    title="Device memory is allocated inside the loop",
    cites=("gt-prealloc", "gt-dynamic-batching"),
    needs=("host",),
    fires=(
        """
        step |...................
        host AA.a....F=.bS=====.
        s7   ....aaaaa...bbbbbbb.
        repeat: 4
        scale: 100us
        """,
        """
        host aAA=b...c
        s7   .aa..bbb.ccccccccccc
        repeat: 4
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |...................
        host a.AAA==............
        s7   .aaaaaaaaaaaaaaaaaa.
        repeat: 4
        scale: 100us
        """,
            "Allocation while queued work runs.",
        ),
        case(
            """
        step |...............................................................................................................
        host Aa........................................................................................................S=====
        s7   ..aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.
        repeat: 4
        """,
            "Hardly any.",
        ),
        case(
            """
        step |...................
        host OOO.a....O==.b.....
        s7   .....aaaa.....bbbb..
        repeat: 4
        scale: 100us
        """,
            "Idle, but without allocations.",
        ),
    ),
)
def allocator(view: DeviceWindow) -> Iterator[Claim]:
    """The device waits while the host allocates or frees device memory.

    Why it costs: `cudaMalloc` and `cudaFree` take long, and freeing waits for all running work. In a warm loop PyTorch's
    caching allocator needs neither; it does when sizes grow from step to step, when the cache is emptied or nearly full.

    What to do: no `torch.cuda.empty_cache()` in the loop; pad or bucket variable lengths; run the largest batch once first;
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; leave memory headroom; outside PyTorch allocate before the loop or
    use `cudaMallocAsync`.

    How to verify: record again after warm-up; no allocation calls are left inside the steps.

    What is allocated in a window where nothing repeats has no price: it may be start-up.

    When it must not fire: start-up (said as a cold start), or allocations that queued work hides.
    """
    wall, lost = view.window.wall_ns, view.causes.get("allocator", 0)
    if lost < FROM * wall:
        return
    evidence = of_causes(view, "allocator")
    low, high = span("gt-dynamic-batching", "gain")
    once = view.repetition.count < 2
    yield Claim(
        title="Device memory is allocated" if once else "",
        message=f"The GPU waits {share(lost, wall)} of the wall ({duration(lost)}) for {evidence[0].what} and the like, "
        f"{times(sum(item.count for item in evidence))}.",
        named={"allocator": lost},
        how=_how(view, once),
        fix=FIXES["allocator"],
        unpriced="nothing repeats in the window: whether it comes again is not known, and once is start-up"
        if once
        else "",
        particular=True,
        evidence=evidence,
        formula=f"idle time inside allocation calls, {lost / 1e6:,.3f} ms; context: packing variable lengths was seen to give "
        f"{percent(low)} to {percent(high)}",
    )


def _how(view: DeviceWindow, once: bool) -> str:
    if once:
        return "Record several steps after warm-up, to see whether they allocate too."
    if is_pytorch(view.trace):
        return (
            "Keep sizes fixed (pad, bucket), drop torch.cuda.empty_cache() from the loop, run the largest batch first."
        )
    return "Allocate once before the loop, or with cudaMallocAsync from a pool that keeps its memory."
