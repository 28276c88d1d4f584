from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.decode.passes import Decoding, expected_tokens, speculation
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import percent

DRAFTS = 5  # tokens drafted for a pass; heads and draft models in use give three to seven
FREE = 0.5  # of the ridge: with more rows to verify the pass itself gets longer
BOUND = 0.5  # of the bandwidth in use: below, passes are long for other reasons, which verifying would keep


@rule(
    title="Passes bound by memory could verify several tokens at once",
    cites=("tvi-matrix-spec", "tvi-spec-mechanism", "tvi-spec-intensity", "tvi-spec-cost", "tvi-spec-gain", "tvi-spec-variants",
           "ai-spec-2-3"),
    needs=("hardware",),
    phases=("decode",),
    because="tvi-matrix-spec",
    fires=(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [1,4096]x[4096,57344] bf16
        b: aten::add [1,4096]x[1,4096] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
    ),
    quiet=(
        case(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [40,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "Too many rows for verification to be free.",
        ),
        case(
        """
        step |.............................................
        host OOOOOOOOOOOOOOOOOOOOOOOOOOa...S===============
        s7   ...........................aaaaaaaaaaaaaaaa...
        a: aten::mm [1,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "The pass is not bound by memory: it waits for the host.",
        ),
        case(
        """
        step |....................
        host a.P.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [1,4096]x[4096,57344] bf16
        P: sglang/srt/speculative/eagle_worker.py(12): forward_draft_extend
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "It speculates already.",
        ),
        case(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [1,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: prefill
        """,
            "Prefill makes many tokens a pass anyway.",
        ),
    ),
)  # fmt: skip
def speculative_decoding(view: DeviceWindow) -> Iterator[Claim]:
    """Each pass reads all weights for one token of each sequence, and could check several drafted ones in the same time.

    Why it costs: while reading the weights decides how long a pass takes, a few more rows are free. A small draft model
    or extra heads propose tokens, one pass verifies them, and the longest right prefix is kept.

    What to do: turn speculation on in the engine: EAGLE or Medusa heads trained for the model, its own multi-token
    prediction, or n-grams of the prompt. Measure how many drafted tokens your requests accept: the gain hangs on it.

    How to verify: compare tokens a second, not the length of a pass, which grows.

    When it must not fire: the batch times the drafts comes near the ridge, the pass is not bound by memory, it speculates
    already, or it is training or prefill.
    """
    decode = Decoding(view)
    rows, reach, ridges = decode.rows.value, decode.reach, decode.products.ridge
    if not rows or reach is None or reach < BOUND or decode.speculates or not len(ridges):
        return
    if rows * DRAFTS > FREE * float(ridges.min()):
        return
    (few, many), (cheap, dear) = span("tvi-spec-gain", "acceptance"), span("tvi-spec-gain", "draft_cost")
    low, high = speculation(DRAFTS, few, dear), speculation(DRAFTS, many, cheap)
    tokens = [expected_tokens(DRAFTS, acceptance) for acceptance in (few, many)]
    yield Claim(
        message=f"A pass uses {percent(reach)} of the bandwidth for {rows:g} row{'s' * (rows != 1)}; verifying "
        f"{DRAFTS} drafted tokens would make {tokens[0]:.2f} to {tokens[1]:.2f} tokens of each pass, {low:.1f} to {high:.1f} "
        "times as many a second.",
        ns=decode.ns,
        how="Is speculation possible here (EAGLE or Medusa heads, multi-token prediction, n-grams of the prompt)?",
        evidence=(of_operations(view, decode.matrix),),
        formula=f"(1 - a^(k+1)) / (1 - a) / (1 + k c) with k = {DRAFTS}, a = {few:g} to {many:g} of the drafts accepted and a "
        f"draft that costs c = {cheap:g} to {dear:g} of a pass",
        grade="assumed",
        doubts=("how many drafts your requests accept is not known",),
    )
