from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.health import cold as cold_start
from gpu_trace_advisor.attribution import START_UP
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.replay.changes import without_host
from gpu_trace_advisor.replay.fixes import FIXES, Fix
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_causes, stretches
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, share

FROM = 0.01  # of the wall: after warm-up nothing is loaded or compiled any more
OFTEN = 0.5  # of the steps: what compiles in more of them never gets warm


@rule(
    title="Start-up inside the window",
    cites=(),
    needs=("host",),
    cold=True,
    fires=(
        case(
            """
        host d.MMMMMMMMMMa.b.c
        s7   .d..........aabbcc
        scale: 1ms
        """,
            "A cold start: said, and nothing else is advised.",
        ),
        case(
            """
        step |...................|...................|...................|...................
        host a.b.S==============.a.M=====b.S======.a.b.S==============.a.b.S===============.
        s7   .aaaaaaabbbbbbbbbb...aaaa....bbbbbbbb..aaaaaaaaabbbbbbbbb..aaaaaaaaabbbbbbbbb..
        scale: 1ms
        """,
            "One late module load in an otherwise warm loop.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host a.b.MMMMM..........
        s7   .aaaaaaabbbbbbbbbb..
        repeat: 4
        scale: 1ms
        """,
            "Loading hides behind queued work.",
        ),
        case(
            """
        step |...................
        host PPPPPPPPa.b........
        s7   .........aabbbbbbbb.
        repeat: 4
        scale: 1ms
        """,
            "Idle, and nothing is loaded.",
        ),
        case(
            """
        step |...................
        host AA.a....F=.bS=====.
        s7   ....aaaaa...bbbbbbb.
        repeat: 4
        scale: 100us
        """,
            "Allocation in a warm loop has its own rule.",
        ),
    ),
)
def module_load(view: DeviceWindow) -> Iterator[Claim]:
    """Kernels, libraries or contexts are loaded, or code is compiled, while the device waits.

    Why it costs: the first use of a kernel loads its code, the first use of a library creates handles and workspaces, and
    `torch.compile` or Triton compile on first call. Each happens once; in a recording it looks like idle time for ever.

    What to do: run some warm-up steps before recording and before measuring. Where the start itself counts: load eagerly
    (`CUDA_MODULE_LOADING=EAGER`), keep compile caches between runs (`TORCHINDUCTOR_CACHE_DIR`), compile ahead of time.

    How to verify: record again after some warm-up steps; no loading is left in the window.

    When it must not fire: loading that queued work hides; memory allocation in a warm loop, which has its own rule.
    """
    wall = view.window.wall_ns
    start_up = sum(view.causes.get(cause, 0) for cause in START_UP)
    loads = sum(view.causes.get(cause, 0) for cause in ("module-load", "compile"))
    cold = cold_start(view.attribution, view.window, view.steps) is not None and loads > 0
    lost = start_up if cold else loads
    if lost < FROM * wall:
        return
    causes = START_UP if cold else ("module-load", "compile")
    evidence = of_causes(view, *causes)
    compiling = view.causes.get("compile", 0)
    again = 0 if cold or 2 * compiling < lost else _compiling_steps(view)
    if again > OFTEN * len(view.kept_steps):
        yield _recompiles(view, again, compiling, evidence)
        return
    gone = without_host(causes)
    yield Claim(
        message=f"{share(lost, wall)} of the wall ({duration(lost)}) the GPU waits for {evidence[0].what} and other start-up"
        + (
            ": a cold start. What the steady state would gain cannot be told from it, so nothing else is advised."
            if cold
            else "."
        ),
        named=wall_time.of_causes(view, *causes),
        how=_record_warm(view)
        if cold
        else "Warm up before the loop: run each shape once, load or compile ahead of time.",
        fix=None if cold else Fix("module-load", FIXES["module-load"].title, gone, gone),
        evidence=evidence,
        formula=f"idle time inside start-up calls: {lost / 1e6:,.3f} of {wall / 1e6:,.3f} ms",
        unpriced="withheld: a cold start" if cold else "",
        first=cold,
    )


def _compiling_steps(view: DeviceWindow) -> int:
    """Steps in which the device waits for a compiler."""
    begins = np.array([step.start_ns for step in view.kept_steps], np.int64)
    waits = np.concatenate([begins[:0], *(one.start for one in stretches(view, ["compile"]))])
    step = np.searchsorted(begins, waits, side="right")
    return len(present(step[step > 0])) if len(begins) > 1 else 0


def _recompiles(view: DeviceWindow, steps: int, ns: int, evidence: tuple[Evidence, ...]) -> Claim:
    gone = without_host(("compile",))
    return Claim(
        title="Code is compiled again and again",
        message=f"In {steps} of {len(view.kept_steps)} steps the GPU waits for {evidence[0].what}: "
        f"{share(ns, view.window.wall_ns)} of the wall ({duration(ns)}). That is no start-up.",
        named={"compile": ns},
        how="TORCH_LOGS=recompiles says which guard fails: pad to a few shapes or mark sizes dynamic (dynamic=True, "
        "torch._dynamo.mark_dynamic), and keep Python values that change out of what is compiled."
        if is_pytorch(view.trace)
        else "Pad to a few shapes, and keep what was compiled for each.",
        fix=Fix("module-load", "nothing is compiled in the loop", gone, gone),
        evidence=evidence,
        formula=f"idle time inside the compiler: {ns / 1e6:,.3f} ms",
        particular=True,
    )


def _record_warm(view: DeviceWindow) -> str:
    """How to leave the start out, with the recorder that was used."""
    if view.trace.format == "nsight":
        return (
            "Leave the start out: --window START:END behind it, or record warm steps only, nsys profile -c cudaProfilerApi "
            "with cudaProfilerStart and cudaProfilerStop around them."
        )
    return "Record after a few warm-up steps: schedule(wait=1, warmup=3, active=5, repeat=1)."
