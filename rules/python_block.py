from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import readable_host
from gpu_trace_advisor.attribution import HOST
from gpu_trace_advisor.columns.codes import numbered
from gpu_trace_advisor.replay.fixes import host_fix
from gpu_trace_advisor.rulekit.evidence import at_ms, python_line, stretches
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import NONE, Index, Int64
from gpu_trace_advisor.units import duration, percent, share, times

FROM = 0.03  # of the wall in one frame: less is not worth a line of its own
IN_RANGE_NS = 100_000  # of a range that nothing in it explains, on average
IN_MODULE_NS = 50_000  # of a function inside a module of the model, on average
FRAMES = 3  # named at most
STAYS = 0.5  # pessimistic part of their time that the program needs
ALL_OF_PYTHON = 0.5, 0.3  # of the host's idle time, and of the wall: then the rule about Python as a whole speaks


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
        host PPPPPPPPPPPPPPP.a...
        s7   .................aaa
        P: serve.py(88): detokenize
        repeat: 4
        scale: 500us
        """,
            "Most of the wall is Python: that has a rule of its own.",
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

    When it must not fire: queued work hides them, none takes 3 % of the wall, or Python as a whole is the matter.
    """
    window, trace, doing = view.window, view.trace, view.timeline.host.doing
    pieces = view.attribution.pieces.clipped(window.start_ns, window.end_ns)
    host = sum(int(ns[(ns > 0) & (part.side == HOST)].sum()) for part, ns in pieces)
    found = [
        (one.row[mine], one.start[mine], one.ns[mine])
        for one in stretches(view, ["python"])
        if len(mine := np.flatnonzero(one.runs & np.isin(doing[one.row], (HostActivity.PYTHON, HostActivity.RANGE))))
    ]
    python = view.causes.get("python", 0)
    if not found or (python >= ALL_OF_PYTHON[0] * host and host >= ALL_OF_PYTHON[1] * window.wall_ns):
        return
    row, start, ns = (np.concatenate(columns) for columns in zip(*found, strict=True))
    names, of = numbered(trace.name_code[row])
    total = np.zeros(len(names), np.int64)
    np.add.at(total, of, ns)
    most = np.argsort(-total, kind="stable")[:FRAMES]
    blocks = [of == name for name in most.tolist() if total[name] >= FROM * window.wall_ns]
    ranges = [doing[row[block][0]] == HostActivity.RANGE for block in blocks]
    # Between the operators of a range short holes are the framework's dispatch, no function's; between the launches of a
    # module short stretches are its calls.
    modules = [view.timeline.host.module[row[block][0]] != NONE for block in blocks]
    least = [
        IN_RANGE_NS if is_range else IN_MODULE_NS if within else 0
        for is_range, within in zip(ranges, modules, strict=True)
    ]
    blocks = [block for block, usual in zip(blocks, least, strict=True) if ns[block].mean() >= usual]
    if not blocks:
        return
    evidence = tuple(_evidence(view, row[block], start[block], ns[block]) for block in blocks)
    lost = sum(one.ns or 0 for one in evidence)
    functions = "; ".join(f"{one.what} for {duration(one.ns or 0)}, {times(one.count)}" for one in evidence)
    yield Claim(
        message=f"For {share(lost, window.wall_ns)} of the wall ({duration(lost)}) the GPU has nothing to do while Python runs "
        f"{functions}.",
        named={"python": lost},
        how=_how(view, int(row[blocks[0]][0]), evidence[0]),
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
        doubts=("stacks were recorded, which slows Python down",) if trace.has_frames else (),
    )  # fmt: skip


def _how(view: DeviceWindow, row: int, most: Evidence) -> str:
    act = "faster, do it in another thread, or after the next step has been launched."
    if view.timeline.host.doing[row] == HostActivity.RANGE:
        return f"Record Python stacks once (with_stack=True) to see what runs in {most.what}, then make it {act}"
    return f"Make {most.python or most.what} {act}"


def _evidence(view: DeviceWindow, row: Index, start: Int64, ns: Int64) -> Evidence:
    """What one function costs, or what no operator did in a range."""
    first = int(row[0])
    what, line = readable_host(view.trace, first), python_line(view, first)
    if view.timeline.host.doing[first] == HostActivity.RANGE:
        what = f"the range {what}"
    return Evidence(what, len(row), int(ns.sum()), at_ms(view, start.tolist()), line)
