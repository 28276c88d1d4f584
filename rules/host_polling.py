from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_causes
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import duration, share

FROM = 0.03  # of the wall


@rule(
    title="The host polls for a result of the GPU before it launches on",
    cites=("tvi-cause-barrier",),
    needs=("host", "launches"),
    fires=(
        """
        step |...................
        host aPPPPPPPPPP.b......
        s7   .aaa.........bbbbbb.
        host .SSSSSSSSSS........
        S: cudaEventQuery
        repeat: 4
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |...................
        host abcPPPPPPPPPP.d....
        s7   .aaaaaabbbbbbcccddd.
        host ...SSSSSSSSSS......
        S: cudaEventQuery
        repeat: 4
        scale: 100us
        """,
            "Work is queued behind what it polls for.",
        ),
        case(
            """
        step |...................
        host aS====.b..........
        s7   .aaaa...bbbbbbbbbb.
        repeat: 4
        scale: 100us
        """,
            "A synchronisation, which has a rule of its own.",
        ),
    ),
)
def host_polling(view: DeviceWindow) -> Iterator[Claim]:
    """The host looks again and again whether the GPU is done, and launches the next work only then.

    Why it costs: it is a synchronisation without its name: `cudaEventQuery` in a loop, a spin on pinned memory that a
    kernel writes (DeepEP's notify, proxies of NCCL), a polled flag. The GPU has run empty until the host has seen it.

    What to do: launch what does not depend on the result first; let an event make the stream wait instead of the host
    (`stream.wait_event`); take sizes that are known at most (a low-latency or fixed-size mode) instead of asking for them.

    How to verify: record again; launches no longer follow the end of the same kernel by microseconds.

    When it must not fire: more work is queued behind what is polled for.
    """
    wall, lost = view.window.wall_ns, view.causes.get("host-poll", 0)
    if lost < FROM * wall:
        return
    evidence = of_causes(view, "host-poll")
    inside = f" in {evidence[0].what}" if evidence and evidence[0].count else ""
    yield Claim(
        message=f"The GPU has nothing to do for {share(lost, wall)} of the wall ({duration(lost)}) because the host polls for "
        f"its results{inside}.",
        named=wall_time.of_causes(view, "host-poll"),
        how="Launch first what does not depend on the result; let the stream wait for an event instead of the host; use sizes "
        "that are known in advance.",
        evidence=evidence,
        formula=f"idle time in which the host polls: {lost / 1e6:,.3f} of {wall / 1e6:,.3f} ms",
        grade="modelled",
        unpriced="what could be launched without the result is not in the timeline",
    )
