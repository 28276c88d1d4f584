from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_rows import Judged, called, formula_of, judged_rows, operations, rate, toward
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import duration, share

SLOW = 0.5  # of what can be reached
FEW = 16  # tokens an expert: a tile of a tensor core is hardly filled, and the weights' bytes are the floor
TILE = 128  # tokens an expert that fill a tile


@rule(
    title="Experts of a mixture have few tokens each, or their kernel is slow",
    cites=("tvi-matrix-moe", "gt-case-moe", "https://arxiv.org/abs/2211.15841"),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: vllm::fused_experts [16,4096]x[64,22016,4096]x[64,4096,11008]x[16,2] bf16 > fused_moe_kernel
            device: H100 SXM
            repeat: 3
            scale: 300us
            """,
            "Half a token an expert: reading weights is all that the kernel does.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: vllm::fused_experts [8192,4096]x[8,28672,4096]x[8,4096,14336]x[8192,2] bf16 > fused_moe_kernel
            device: H100 SXM
            repeat: 3
            scale: 1500us
            """,
            "Two thousand tokens an expert, at a sixth of what products reach.",
        ),
    ),
    quiet=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: vllm::fused_experts [8192,4096]x[8,28672,4096]x[8,4096,14336]x[8192,2] bf16 > fused_moe_kernel
            device: H100 SXM
            repeat: 3
            scale: 500us
            """,
            "Near what products reach.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::mm [8192,4096]x[4096,14336] bf16
            device: H100 SXM
            repeat: 3
            scale: 100us
            """,
            "A dense product.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: vllm::fused_experts [16,4096]x[64,22016,4096]x[64,4096,11008]x[16,2] bf16 > fused_moe_kernel
            repeat: 3
            scale: 300us
            """,
            "A device without known peaks.",
        ),
    ),
)
def experts_efficiency(view: DeviceWindow) -> Iterator[Claim]:
    """The experts of a mixture get so few tokens that reading their weights takes all the time, or a kernel with enough tokens
    runs far below what products reach.

    Why it costs: each touched expert's weights are read once a call whatever its tokens. With fewer than about a hundred
    tokens an expert the tensor cores wait for weights; below one, most of the weights that are read serve a single token.

    What to do: more tokens a call (larger batches, continuous batching, expert parallelism, which gathers the tokens of
    many ranks at each expert), weights in fewer bits, a grouped kernel tuned for these sizes (vLLM's and SGLang's
    `benchmark_moe` write such configurations, AITER on AMD).

    How to verify: record again; tokens an expert have risen, or the kernel's TB/s or TFLOP/s.

    When it must not fire: dense models, kernels near what can be reached, short kernels.
    """
    rows = [one for one in judged_rows(view) if one.cost.routed is not None]
    few = [one for one in rows if one.cost.routed and one.cost.routed.tokens_an_expert < FEW]
    if few:
        yield _few(view, few)
    slow = [one for one in rows if one not in few and (one.row.of_reachable or 1.0) < SLOW]
    if slow:
        worst, ns = slow[0], sum(one.row.ns for one in slow)
        routed = worst.cost.routed
        assert routed is not None
        short = f" That is less than a tile of {TILE} rows." if routed.tokens_an_expert < TILE else ""
        yield Claim(
            title="Experts far below what products reach",
            message=f"{called(worst)}: {routed.tokens_an_expert:,.4g} tokens an expert at {rate(worst.row)}; such kernels take "
            f"{share(ns, view.window.wall_ns)} of the wall.{short}",
            ns=ns,
            how="Tune the grouped kernel for these sizes (vLLM's and SGLang's benchmark_moe, AITER), or use a grouped product "
            "made for the device (torch._grouped_mm, CUTLASS, DeepGEMM).",
            fix=toward(
                view, "experts-efficiency", "experts near what products reach", slow, [1.0] * len(slow),
                "optimistic: as fast as can be reached; pessimistic: no faster kernel exists, or the tokens lie unevenly",
            ),
            evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in slow[:3]),
            formula=f"2 FLOP a weight of each token's experts; {formula_of(worst, view)}",
            grade="assumed",
        )  # fmt: skip


def _few(view: DeviceWindow, rows: list[Judged]) -> Claim:
    """Reading weights is the floor: how many experts were touched is not recorded, and how many could be read is."""
    worst, hardware = rows[0], view.hardware
    routed = worst.cost.routed
    assert hardware is not None and routed is not None
    ns = sum(one.row.ns for one in rows)

    def floor(experts: float) -> str:
        return duration(round(experts * routed.expert_bytes / hardware.bandwidth * 1e9))

    most = worst.row.median_ns / 1e9 * hardware.bandwidth / routed.expert_bytes
    read = f"{duration(worst.row.median_ns)} read at most {most:,.1f} experts"
    return Claim(
        message=f"{called(worst)}: {routed.tokens_an_expert:,.2g} tokens an expert; its weights are "
        f"{routed.expert_bytes / 1e6:,.1f} MB, so that reading them takes {floor(routed.fewest)} ({routed.fewest} experts "
        f"touched) to {floor(routed.most)} ({routed.most}); {floor(routed.expected)} at the {routed.expected:,.1f} that an even "
        f"choice touches; {read}, at {rate(worst.row)} for {routed.fewest}.",
        ns=ns,
        how="More tokens a call: larger batches, or expert parallelism, which gathers the tokens of many ranks at each expert; "
        "fewer bits a weight.",
        evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in rows[:3]),
        formula="experts touched × bytes of an expert ÷ bandwidth of the datasheet; E (1 − (1 − k/E)^T) experts, within k and "
        f"min(E, T k); {worst.row.flops / 1e9:,.4g} GFLOP",
        grade="modelled",
        unpriced="which experts the tokens chose is not recorded, and more tokens a call are a choice of the server",
    )
