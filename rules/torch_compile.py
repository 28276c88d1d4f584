from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import Intervals
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_causes
from gpu_trace_advisor.rulekit.fusible_chains import operations_of, worth_fusing
from gpu_trace_advisor.rulekit.kernel_fixes import running_time
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import percent, share

FUSIBLE = 0.10  # of the wall in chains of memory-bound kernels: enough for fusion to show
LAUNCHES = ("framework", "python", "launch-call", "launch-latency")
LAUNCHING = 0.10  # of the wall to launching: enough for fewer launches to show


@rule(
    title="The model runs eagerly",
    cites=("gt-compile-gain", "ai-compile-1.5-4", "ai-verify-after"),
    needs=("operators", "launches"),
    fires=(
        """
        step |...................
        host OO.a.OO.b.OO.c.OO.d
        s7   ....a.....b....c...d
        repeat: 4
        scale: 10us
        """,
        """
        step |.........................
        host mabcOS==================..
        s7   .mmmmmmmaaaaaabbbbbbcccccc
        m: ampere_bf16_gemm
        a: vectorized_elementwise_kernel_mul
        b: vectorized_elementwise_kernel_add
        c: layer_norm_kernel
        repeat: 4
        scale: 10us
        """,
    ),
    quiet=(
        case(
            """
        step |.........................
        host aaaS==================..
        s7   .aaaaaaaaaaaaaaaaaaaaaaa
        a: vectorized_elementwise_kernel_add
        repeat: 4
        scale: 10us
        """,
            "Memory-bound, but one kernel again and again: there is nothing to fuse, and the launches wait for the device.",
        ),
        case(
            """
        step |...................
        host OO.a.OO.b.OO.c.OO.d
        s7   ....a.....b....c...d
        a: triton_poi_fused_add_mul_0
        repeat: 4
        scale: 10us
        """,
            "Compiled: Triton's kernels say so.",
        ),
        case(
            """
        step |.........................
        host mOn.S===================..
        s7   .mmmmmmmmmmmmmnnnnnnnnnnnn
        m: ampere_bf16_gemm
        n: ampere_bf16_gemm
        repeat: 4
        scale: 10us
        """,
            "Large matrix products, queued.",
        ),
        case(
            """
        step |...................
        host OOOOOO.g...........
        s7   ........gg.gg.gg.gg.
        g: graph
        repeat: 4
        """,
            "Graphs replay it.",
        ),
    ),
)
def torch_compile(view: DeviceWindow) -> Iterator[Claim]:
    """Every operator of the model is looked up, checked and launched by itself, though the same ones come in every step.

    Why it costs: eager execution pays for each operator on the host and for each intermediate in memory. A compiler sees
    the whole graph once, fuses what belongs together and launches less.

    What to do: `torch.compile(model)` for the hot part, `mode="reduce-overhead"` where launches are the matter;
    `dynamic=False` and padded shapes against recompiles. It takes minutes at first: worth it for long runs.

    How to verify: compare outputs with the eager model, then record again after warm-up: `Torch-Compiled Region` and
    `triton_` kernels are there, no compile frames inside the steps.

    When it must not fire: it is compiled already, graphs replay it, a serving engine runs it, or big matrix products fill
    the time.
    """
    wall = view.window.wall_ns
    if not is_pytorch(view.trace):
        return
    if any(use.role in ("compiler", "graphs", "engine") for use in view.uses):
        return
    chains = worth_fusing(view)
    fusible = running_time(view, operations_of(chains))
    window = Intervals(*(np.array([instant]) for instant in (view.window.start_ns, view.window.end_ns)))
    host = wall_time.of_launching(view, window, LAUNCHES)
    launching = sum(host.values())
    launches, fuses = launching >= LAUNCHING * wall, fusible >= FUSIBLE * wall
    if not fuses and not launches:
        return
    low, high = span("gt-compile-gain", "gain")
    reasons = [f"{share(launching, wall)} of the wall goes to launching operators one by one"] * launches
    reasons += [f"{share(fusible, wall)} of the wall goes to chains of memory-bound kernels that could be one"] * fuses
    priced = " and ".join(["cuda-graphs"] * launches + ["fuse-elementwise"] * fuses)
    yield Claim(
        message=f"Nothing is compiled, and {' and '.join(reasons)}.",
        named=host if launching >= fusible else {},
        ns=fusible,
        how='torch.compile(model), mode="reduce-overhead" for many small kernels; check the outputs, count recompiles.',
        evidence=(
            *of_causes(view, "framework", "python"),
            *([Evidence("chains of memory-bound kernels", len(chains), fusible)] if fuses else []),
        ),
        formula=f"context only: {percent(low)} to {percent(high)} faster after minutes of compiling "
        "was claimed for training",
        unpriced=f"it is one way to what {priced} would give, which is not counted again",
    )
