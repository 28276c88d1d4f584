from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import readable_host
from gpu_trace_advisor.replay.fixes import host_fix
from gpu_trace_advisor.rulekit.evidence import at_ms, python_line
from gpu_trace_advisor.rulekit.host.long_functions import LongFunction, long_functions
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.units import duration, percent, share, times

STAYS = 0.5  # pessimistic part of their time that the program needs


@rule(
    title="Single functions of Python keep the GPU waiting",
    cites=("tvi-check-utilisation-first", "ai-lowutil-diagnosis"),
    needs=("host", "launches"),
    fires=(
        """
        step |...................
        host PPPa.b.cS==========
        s7   ....aaaabbbbcccccccc
        P: serve.py(88): detokenize
        repeat: 4
        scale: 500us
        """,
    ),
    quiet=(
        case(
            """
        step |...................
        host a.PPPPPPPPP.bS=====
        s7   .aaaaaaaaaaaaabbbbb.
        P: serve.py(88): detokenize
        repeat: 4
        scale: 500us
        """,
            "Queued work hides it.",
        ),
        case(
            """
        step |...................
        host PPPP.a.PPPPPP.b.....
        s7   ......aaa.....bbbbbb
        P: model.py(88): forward
        repeat: 4
        scale: 5us
        """,
            "A little before each launch: Python in general, which has a rule of its own.",
        ),
    ),
)
def python_block(view: DeviceWindow) -> Iterator[Claim]:
    """A function of the program itself runs for a while before the next launch, and the GPU has nothing to do.

    Why it costs: tokenising, sampling, logging, building metadata or a callback run in the thread that launches. All of
    Python together may be little, a single block is still time that the GPU waits.

    What to do: look at the functions named here: make them faster, do them in another thread or process, or after the
    next step has been launched.

    How to verify: record again; the functions named here take less of the GPU's idle time.

    When it must not fire: queued work hides them, or none takes 3 % of the wall, 50 µs at a time.
    """
    found = long_functions(view)
    if not found:
        return
    evidence = tuple(_evidence(view, function) for function in found)
    lost = sum(one.ns or 0 for one in evidence)
    functions = "; ".join(f"{one.what} for {duration(one.ns or 0)}, {times(one.count)}" for one in evidence)
    yield Claim(
        message=f"For {share(lost, view.window.wall_ns)} of the wall ({duration(lost)}) the GPU has nothing to do while Python "
        f"runs {functions}.",
        named={"python": lost},
        how=_how(found[0], evidence[0]),
        fix=host_fix(
            "python-block", "less of single functions of Python between launches", "python", low_share=STAYS,
            assumes=(f"pessimistic: {percent(STAYS)} of their time stays",),
        ),
        evidence=evidence,
        formula="idle time whose deciding host record is one of these frames: "
        + " + ".join(f"{(one.ns or 0) / 1e6:,.3f}" for one in evidence)
        + " ms",
        particular=True,
        at_most_ns=lost,
        doubts=("stacks were recorded, which slows Python down",) if view.trace.has_frames else (),
    )  # fmt: skip


def _how(function: LongFunction, most: Evidence) -> str:
    act = "faster, do it in another thread, or after the next step has been launched."
    if function.is_range:
        return f"Record Python stacks once (with_stack=True) to see what runs in {most.what}, then make it {act}"
    return f"Make {most.python or most.what} {act}"


def _evidence(view: DeviceWindow, function: LongFunction) -> Evidence:
    first = int(function.row[0])
    what = f"the range {readable_host(view.trace, first)}" if function.is_range else readable_host(view.trace, first)
    places = at_ms(view, function.start.tolist())
    return Evidence(what, len(function.row), int(function.ns.sum()), places, python_line(view, first))
