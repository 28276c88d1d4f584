from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.replay.fixes import host_fix
from gpu_trace_advisor.rulekit.evidence import of_causes
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import duration, share, times

FROM = 0.01  # of the wall
SHOWN = 0.05  # of that time in one operator: others are not named
ELSEWHERE = 0.8  # of it is saved at least: on the GPU, or in the background, it still takes some time


@rule(
    title="The GPU waits for work on CPU tensors",
    cites=(),
    needs=("host",),
    fires=(
        case(
            """
        step |...................
        host OOOOOOOOOOa........
        s7   ...........aaaaaaaa.
        O: aten::normal_
        repeat: 4
        scale: 100us
        """,
            "The input is drawn on the CPU in each step.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host aOOOOOOOOOOOOOb....
        s7   .aaaaaaaaaaaaaaabbbb
        O: aten::normal_
        repeat: 4
        scale: 100us
        """,
            "It runs behind queued work.",
        ),
        case(
            """
        step |...................
        host O.a..O.b..O.c......
        s7   ...aa...bb...ccccccc
        repeat: 4
        scale: 10us
        """,
            "Short operators around launches: that is launching.",
        ),
        case(
            """
        step |...................
        host DDDDDDDDDDa........
        s7   ...........aaaaaaaa.
        repeat: 4
        scale: 100us
        """,
            "The data loader has its own rule.",
        ),
    ),
)
def cpu_compute(view: DeviceWindow) -> Iterator[Claim]:
    """An operator computes on the CPU, in the thread that launches, and the device has nothing to do meanwhile.

    Why it costs: random numbers, normalization, tokenizing, sorting or post-processing on CPU tensors take milliseconds that a
    GPU spends waiting; neither torch.compile nor a CUDA graph of the model touches them.

    What to do: create tensors on the GPU (`device="cuda"`), move the work there, prepare it ahead of time, or in the workers
    of a loader, so that it runs while the GPU is busy.

    How to verify: record again; the operators named here run on the GPU, or on another thread, and the gap is gone.

    When it must not fire: operators that launch GPU work, however slowly; the data loader; CPU work behind queued kernels.
    """
    wall, lost = view.window.wall_ns, view.causes.get("cpu-compute", 0)
    if lost < FROM * wall:
        return
    evidence = tuple(one for one in of_causes(view, "cpu-compute") if (one.ns or 0) >= SHOWN * lost)
    yield Claim(
        message=f"The GPU waits {share(lost, wall)} of the wall ({duration(lost)}) for work on CPU tensors: "
        + ", ".join(f"{one.what} {duration(one.ns or 0)} ({times(one.count)})" for one in evidence)
        + ".",
        named={"cpu-compute": lost},
        how='Run it on the GPU (create tensors with device="cuda"), or ahead of time in the workers of a loader.',
        fix=host_fix(
            "cpu-compute",
            "nothing computes on the CPU while the GPU waits",
            "cpu-compute",
            low_share=ELSEWHERE,
            assumes=("elsewhere it takes up to a fifth of its time, as data loaders in the background do",),
        ),
        particular=True,
        evidence=evidence,
        formula=f"idle time inside long operators that launch nothing, {lost / 1e6:,.3f} ms",
    )
