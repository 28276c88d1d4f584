from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.phase import MIXED
from gpu_trace_advisor.analysis.request import DECODE, PREFILL
from gpu_trace_advisor.rulekit.evidence import at_ms
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.units import duration

LATE = 2.0  # times the median distance of two decode steps, from which a user sees a pause
DECODES = 4  # steps of each kind of distance needed to speak of a median


@rule(
    title="Prefills hold up the decode",
    cites=("tvi-prefill-blocks-decode",),
    fires=(
        """
        host D=.O=====...D=.D=.D=.
        host2 a..b.......c..d..e..
        s7   .aa.bbbbbbb..cc.dd.ee
        D: execute_context_0(0)_generation_8(8)
        O: execute_context_1(2048)_generation_0(0)
        repeat: 4
        """,
    ),
    quiet=(
        case(
            """
        host D=.D=.D=.D=.D=.D=.D=.
        host2 a..b..c..d..e..f..g.
        s7   .aa.bb.cc.dd.ee.ff.gg
        D: execute_context_0(0)_generation_8(8)
        """,
            "Decode only.",
        ),
        case(
            """
        host D=.O=.D=.O=.D=.O=.D=.O=.D=.
        host2 a..b..c..d..e..f..g..h..i.
        s7   .aa.bb.cc.dd.ee.ff.gg.hh.ii
        D: execute_context_0(0)_generation_8(8)
        O: execute_context_1(64)_generation_8(8)
        """,
            "Prefill in pieces beside the decode.",
        ),
        case(
            """
        host D=.O=.D=.D=.D=.O=.D=.D=.D=.
        host2 a..b..c..d..e..f..g..j..k.
        s7   .aa.b..cc.dd.ee.f..gg.jj.kk
        D: execute_context_0(0)_generation_8(8)
        O: execute_context_1(16)_generation_0(0)
        """,
            "A short prompt that delays nobody for long.",
        ),
        case(
            """
        host a..b.......c..d..e..
        s7   .aa.bbbbbbb..cc.dd.ee
        repeat: 4
        """,
            "Nothing tells the steps apart.",
        ),
        case(
            """
        step |..................
        host D=.O=====...D=.D=.
        host2 a..b.......c..d..
        s7   .aa.bbbbbbb..cc.dd
        D: execute_context_0(0)_generation_8(8)
        O: execute_context_1(2048)_generation_0(0)
        """,
            "Too few steps to know what is usual.",
        ),
    ),
)
def prefill_decode_interference(view: DeviceWindow) -> Iterator[Claim]:
    """Requests that are being answered wait while the prompt of another one is processed.

    Why it costs: a prefill is bound by arithmetic and takes as long as many decode steps; in the meantime no token comes
    out. The median time between tokens hides it, the slowest twentieth shows it.

    What to do: process prompts in pieces beside the decode (`--enable-chunked-prefill` and a smaller
    `--max-num-batched-tokens` in vLLM, `--chunked-prefill-size` in SGLang), or on GPUs of their own.

    How to verify: record again under the same load; the longest distance of two decode steps is near the median.

    When it must not fire: one phase only, prompts in pieces already, or prompts so short that nobody notices.
    """
    steps = sorted(s for s in view.phase.stretches if s.name in (PREFILL, DECODE, MIXED))
    decodes = [i for i, step in enumerate(steps) if step.name in (DECODE, MIXED)]
    pairs = list(pairwise(decodes))
    apart = np.array([steps[b].start_ns - steps[a].start_ns for a, b in pairs], np.int64)
    held = np.array([b > a + 1 for a, b in pairs], np.bool_)
    if held.sum() < 1 or (~held).sum() < DECODES:
        return
    usual = float(np.median(apart[~held]))
    late = held & (apart > LATE * usual)
    if not late.any():
        return
    waited = int((apart[late] - usual).sum())
    begun = [steps[a + 1].start_ns for (a, _), is_late in zip(pairs, late.tolist(), strict=True) if is_late]
    yield Claim(
        message=f"{int(late.sum())} of {len(apart)} times a prefill came between two decode steps and the next token took "
        f"{np.median(apart[late]) / usual:.1f} times as long as usual ({duration(int(np.median(apart[late])))}, not "
        f"{duration(int(usual))}).",
        ns=waited,
        how="Process prompts in smaller pieces beside the decode (chunked prefill), or on GPUs of their own.",
        evidence=(Evidence("prefill between decode steps", int(late.sum()), waited, at_ms(view, begun)),),
        formula="distance of the starts of two decode steps with a prefill in between, less the median without",
    )
