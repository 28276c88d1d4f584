from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import memory_use
from gpu_trace_advisor.decode.passes import Decoding, engines
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule

FAR = 0.25  # of the ridge: with more rows the batch can at most be quadrupled, and the cache grows with it
WORTH = 2.0  # times the batch: less is tuning, not another way to serve


@rule(
    title="A larger batch would share each reading of the weights",
    cites=("tvi-matrix-batching", "tvi-batch-table", "tvi-batch-limit-kv", "tvi-batch-limit-latency", "ai-thm-batch",
           "ai-batch-free", "ai-decode-batch", "ai-service-model", "gt-prefill-latency-first"),
    needs=("hardware",),
    phases=("decode",),
    because="tvi-matrix-batching",
    fires=(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [4,4096]x[4096,57344] bf16
        b: aten::add [4,4096]x[4,4096] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [1,4096]x[4096,57344] bf16
        b: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,4096,128]x[1,8,4096,128] bf16 > flash_fwd_splitkv
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        objective: throughput
        """,
    ),
    quiet=(
        case(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [4,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        objective: latency
        """,
            "Latency is what counts.",
        ),
        case(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [200,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "Nearly as many rows as are free.",
        ),
        case(
        """
        step |...............................
        host a.b.S===========================
        s7   .aaaaaaaaaaaaaaaaaaabbbbbbbbbb..
        a: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,131072,128]x[1,8,131072,128] bf16 > flash_fwd_splitkv
        b: aten::mm [1,4096]x[4096,28672] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "The cache outweighs the weights: each further sequence brings its own bytes.",
        ),
        case(
        """
        step |....................
        host a.b.S===============
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [4,4096]x[4096,57344] bf16
        repeat: 3
        scale: 10us
        memory: 79GB
        device: H100 SXM
        phase: decode
        """,
            "The memory is full.",
        ),
        case(
        """
        step |....................
        host D==============S====
        host2 a.b................
        s7   .aaaaaaaaaaaaaaaabb.
        a: aten::mm [4,4096]x[4096,57344] bf16
        D: step[DECODE bs=4]
        repeat: 3
        scale: 10us
        device: H100 SXM
        """,
            "An engine that batches what arrives.",
        ),
        case(
        """
        step |.......................
        host a.b.S==================
        s7   .aaaaaaaaaabbbbbbbbbb.
        a: aten::mm [1,4096]x[4096,57344] bf16
        b: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,7000000,128]x[1,8,7000000,128] bf16 > flash_fwd_splitkv
        repeat: 3
        scale: 1ms
        device: H100 SXM
        phase: decode
        weights: 40GB
        """,
            "A second cache of this size would not fit.",
        ),
    ),
)  # fmt: skip
def larger_batch(view: DeviceWindow) -> Iterator[Claim]:
    """A decode pass reads all weights for a few sequences; many more could use the same reading.

    Why it costs: below the ridge batch P p / (2 BW) a matrix product takes as long as its weights take to arrive, however
    many rows it has. Tokens a second grow with the batch until then, as far as the cache fits.

    What to do: decode more sequences together: raise the batch, or serve through an engine that batches what arrives.
    Each sequence adds its cache to what a pass reads, so the time between tokens grows: decide by your objective
    (`--objective latency` silences this rule).

    How to verify: record again with the larger batch; the matrix kernels take about as long, tokens a second have grown.

    When it must not fire: latency is the objective, the rows come near the ridge, the cache outweighs the weights, the
    memory is nearly full, an engine batches already, or it is training or prefill.
    """
    decode, hardware = Decoding(view), view.hardware
    rows, weights, cache = decode.rows.value, decode.weights.value, decode.cache.value or 0.0
    if view.request.objective == "latency" or engines(view) or not rows or hardware is None:
        return
    ridge = decode.ridge
    peak = max((use.peak_reserved or 0 for use in memory_use(view.trace.memory)), default=0)
    full = peak > value("ai-service-model", "mem") * hardware.memory_bytes
    if not 0 < rows < FAR * ridge or full or (weights is not None and cache >= weights):
        return
    room = decode.room(weights, cache) if weights is not None else None
    most = min(ridge / rows, room) if room is not None else ridge / rows
    if most < WORTH:
        return
    later = f"; each adds {cache / rows / hardware.bandwidth * 1e6:.3g} µs of cache to a pass" if cache else ""
    yield Claim(
        message=f"{_rows(rows)} each reading of the weights; up to {ridge:.0f} would take about as long: as many as "
        f"{most:.3g} times the tokens a second{later}.",
        ns=int(view.time_of(decode.matrix).sum()),
        how="If throughput counts, decode more sequences together; the time between two tokens of one sequence will grow.",
        evidence=(of_operations(view, decode.matrix),),
        formula=f"min(B*/M, what fits) with B* = P p / (2 BW) = {ridge:.0f}, M = {rows:g}"
        + (f", {room:.3g} times the cache fits" if room is not None else ""),
        grade="modelled",
        doubts=tuple(
            doubt for doubt, holds in (
                ("16-bit weights are assumed", not len(decode.products.ridge)),
                ("whether a larger cache fits is not recorded", room is None),
                ("whether latency or throughput counts is not known (--objective)", view.request.objective is None),
            ) if holds
        ),
    )  # fmt: skip


def _rows(rows: float) -> str:
    return f"{rows:g} rows share" if rows > 1 else "One row has"
