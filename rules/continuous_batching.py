from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.phase import product_rows
from gpu_trace_advisor.analysis.request import DECODE
from gpu_trace_advisor.decode.passes import Decoding, engines
from gpu_trace_advisor.rulekit.evidence import at_ms
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.trace.model import Int64

STEPS = 6  # fewer show no batch that drains and is filled again
EMPTY = 0.2  # of the slots on average: fewer lost are the end of any run


@rule(
    title="The batch drains before the next one is let in",
    cites=("tvi-matrix-batching", "tvi-continuous-batching", "gt-cb-2.5x"),
    phases=("decode",),
    because="tvi-matrix-batching",
    fires=(
        """
        step |...|...|...|...
        host a...b...c...d...
        s7   .aaa.bbb.ccc.ddd
        a: aten::mm [8,64]x[64,64] bf16
        b: aten::mm [6,64]x[64,64] bf16
        c: aten::mm [3,64]x[64,64] bf16
        d: aten::mm [1,64]x[64,64] bf16
        repeat: 3
        phase: decode
        """,
    ),
    quiet=(
        case(
            """
        step |...
        host a...
        s7   .aaa
        a: aten::mm [8,64]x[64,64] bf16
        repeat: 8
        phase: decode
        """,
            "Always full.",
        ),
        case(
            """
        step |...
        host a...
        s7   .aaa
        a: aten::mm [1,64]x[64,64] bf16
        repeat: 8
        phase: decode
        """,
            "One user.",
        ),
        case(
            """
        step |...|...|...|...|...|...
        host a...b...c...d...e...f...
        s7   .aaa.bbb.ccc.ddd.eee.fff
        a: aten::mm [8,64]x[64,64] bf16
        b: aten::mm [7,64]x[64,64] bf16
        c: aten::mm [5,64]x[64,64] bf16
        d: aten::mm [4,64]x[64,64] bf16
        e: aten::mm [2,64]x[64,64] bf16
        f: aten::mm [1,64]x[64,64] bf16
        phase: decode
        """,
            "It only drains: the end of the load.",
        ),
        case(
            """
        step |...|...
        host D==.O==.
        host2 a...b..
        s7   .aaa.bbb
        D: step[DECODE bs=8]
        O: step[DECODE bs=1]
        repeat: 4
        """,
            "An engine that lets requests in at every step: the load itself varies.",
        ),
        case(
            """
        step |...|...|...|...|...|...
        host a...a...a...a...a...b...
        s7   .aaa.aaa.aaa.aaa.aaa.bbb
        a: aten::mm [8,64]x[64,64] bf16
        b: aten::mm [4,64]x[64,64] bf16
        repeat: 3
        phase: decode
        """,
            "One request ends early now and then.",
        ),
        case(
            """
        step |...|...|...|...|...|...
        host b...b...b...b...a...a...
        s7   .bbb.bbb.bbb.bbb.aaa.aaa
        a: aten::mm [8,64]x[64,64] bf16
        b: aten::mm [1,64]x[64,64] bf16
        phase: decode
        """,
            "The load begins.",
        ),
        case(
            """
        step |...|...|...
        host a...b...a...
        s7   .aaa.bbb.aaa
        a: aten::mm [8,64]x[64,64] bf16
        b: aten::mm [1,64]x[64,64] bf16
        phase: decode
        """,
            "Too few steps to tell.",
        ),
    ),
)
def continuous_batching(view: DeviceWindow) -> Iterator[Claim]:
    """Sequences that are done leave their places empty until the whole batch is done.

    Why it costs: a pass over a half-empty batch reads the same weights as one over a full batch, and makes half the
    tokens.

    What to do: let new requests in as soon as others are done: serve through vLLM, SGLang or TensorRT-LLM, or use the
    continuous batching of your framework; sort requests by expected length where neither is possible.

    How to verify: record again under the same load; the rows of the passes should stay near their largest value.

    When it must not fire: the batch stays full, a single sequence runs, it drains once at the end, or an engine schedules
    requests at every step and the load itself varies.
    """
    if engines(view):
        return
    rows = _rows(view)
    if len(rows) < STEPS:
        return
    mean, most = float(rows.mean()), int(rows.max())
    falls, refills = int((np.diff(rows) < 0).sum()), int((np.diff(rows) >= most / 2).sum())
    if mean > (1 - EMPTY) * most or not falls or not refills:
        return
    starts = [step.start_ns for step in view.kept_steps]
    filled = [starts[i + 1] for i in np.flatnonzero(np.diff(rows) >= most / 2).tolist() if i + 1 < len(starts)]
    yield Claim(
        message=f"The batch falls from {most} to {rows.min()} rows and is filled up again {refills} times; on average "
        f"{mean:.3g} of {most} places are taken.",
        ns=int(Decoding(view).ns * (1 - mean / most)),
        how="Let new requests in at every pass (continuous batching: vLLM, SGLang, TensorRT-LLM).",
        evidence=(Evidence("batch filled again", refills, at_ms=at_ms(view, filled)),),
        formula=f"at most {most} / {mean:.3g} = {most / mean:.2f} times the tokens a second, with requests waiting",
    )


def _rows(view: DeviceWindow) -> Int64:
    """Sequences of each pass, in order."""
    batches = [s.batch for s in view.phase.stretches if s.name == DECODE and s.batch is not None]
    if batches:
        return np.array(batches, np.int64)
    found = []
    for step in view.kept_steps:
        rows, time = product_rows(view.timeline, view.inkernel.costs, step.start_ns, step.end_ns)
        if len(rows):
            found.append(int(rows[time.argmax()]))
    return np.array(found, np.int64)
