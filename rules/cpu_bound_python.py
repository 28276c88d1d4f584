from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution import HOST
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.replay.fixes import host_fix
from gpu_trace_advisor.rulekit.evidence import mostly, of_causes
from gpu_trace_advisor.rulekit.host.capturing import how_to_capture
from gpu_trace_advisor.rulekit.host.long_functions import long_functions
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.model import NONE
from gpu_trace_advisor.units import duration, percent, share

FROM = 0.30  # of the wall before the launch: below, single causes say more than "the host is slow"
PYTHON = 0.5  # of that time in Python itself rather than in the framework or in runtime calls
MODEL = 0.5  # of Python's time inside modules: it is the model's own forward, not a loop around it
FEW = 0.5  # of Python's time in a few long functions: the rule about those speaks
STAYS = 0.5  # pessimistic part of Python's time that can be taken away: some of the loop is the program


@rule(
    title="Python runs between the launches",
    cites=("tvi-check-utilisation-first", "ai-lowutil-diagnosis", "ai-lowutil-target"),
    needs=("host", "launches"),
    fires=(
        """
        step |...................
        host PPPPP.a.PPPPPPPP.b.
        s7   .......aa.........bb
        repeat: 4
        scale: 5us
        """,
        """
        host PPPPPPPPaPPPPPPPPbPPPPPPPPc
        s7   .........a........b........c
        P: train.py(40): augment
        repeat: 4
        scale: 5us
        """,
    ),
    quiet=(
        case(
            """
        step |...................
        host PPPPPPPPPPPPPPP.a...
        s7   .................aaa
        P: serve.py(88): detokenize
        repeat: 4
        scale: 500us
        """,
            "One long function, which has a rule of its own.",
        ),
        case(
            """
        step |...................
        host OOOOO.a.OOOOOOOO.b.
        s7   .......aa.........bb
        repeat: 4
        scale: 100us
        """,
            "The framework, not Python.",
        ),
        case(
            """
        step |...................
        host a.b.PPPPPPPPPPPPPP.
        s7   .aaaaaaaaabbbbbbbbb.
        repeat: 4
        scale: 100us
        """,
            "Python runs while the device is busy.",
        ),
        case(
            """
        step |...................
        host DDDDD.a.DDDDDDDD.b.
        s7   .......aa.........bb
        repeat: 4
        scale: 100us
        """,
            "The data loader.",
        ),
        case(
            """
        step |...................
        host aS========PPPPb....
        s7   .aaaaaaaaa.....bbbb.
        repeat: 4
        scale: 100us
        """,
            "A synchronisation drains the queue; Python only refills it.",
        ),
    ),
)
def cpu_bound_python(view: DeviceWindow) -> Iterator[Claim]:
    """The device waits for the interpreter: Python code between the launches takes longer than the kernels.

    Why it costs: one thread of Python prepares every launch. Loops over tensors, logging, metrics, hooks and bookkeeping
    run there too, and the queue is empty while they do.

    What to do: look at the lines named here. Python of the model's own modules goes when they are captured or compiled
    (`torch.compile`, CUDA Graphs, an engine's option): a replay runs none of it. Loops and bookkeeping around them: vectorise,
    move out of the step or to another thread. Or give each launch more work (larger batch).

    How to verify: record again without stacks (they slow Python down); the device's idle time on the host's side is smaller.

    When it must not fire: the host waits for data or for the device, the framework itself takes the time, or a few long
    functions do.
    """
    window = view.window
    pieces = view.attribution.pieces.clipped(window.start_ns, window.end_ns)
    host = sum(int(ns[(ns > 0) & (part.side == HOST)].sum()) for part, ns in pieces)
    lost = view.causes.get("python", 0)
    if host < FROM * window.wall_ns or lost < PYTHON * host:
        return
    if sum(int(function.ns.sum()) for function in long_functions(view)) > FEW * lost:
        return
    evidence = of_causes(view, "python")
    low, high = span("ai-lowutil-target", "util")
    stacks = ("stacks were recorded, which slows Python down",) if view.trace.has_frames else ()
    yield Claim(
        message=f"For {share(lost, window.wall_ns)} of the wall ({duration(lost)}) the GPU has nothing to do because "
        f"Python runs, {mostly(evidence[0], lost)}; {percent(low)} to {percent(high)} busy is what such programs reach.",
        named={"python": lost},
        how=_how(view),
        fix=host_fix("python", "less Python between launches", "python", low_share=STAYS,
                     assumes=(f"pessimistic: {percent(STAYS)} of Python's time stays",)),
        evidence=evidence,
        formula=f"idle time whose deciding host record is Python: {lost / 1e6:,.3f} of {host / 1e6:,.3f} ms on the host's side",
        generic=True,
        doubts=stacks,
    )  # fmt: skip


def _how(view: DeviceWindow) -> str:
    of_modules = whole = 0
    pieces = view.attribution.pieces.clipped(view.window.start_ns, view.window.end_ns)
    for part, ns in pieces:
        mine = (ns > 0) & (part.cause == CODE["python"]) & (part.row != NONE)
        whole += int(ns[mine].sum())
        of_modules += int(ns[mine][view.timeline.host.module[part.row[mine]] != NONE].sum())
    if of_modules > MODEL * whole:
        return f"{how_to_capture(view)} A replay runs none of the model's Python; what is not captured, move out of the step."
    return "Vectorise or move out of the step what the lines named here do, then compile or capture the rest."
