from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.fusible_chains import operations_of, worth_fusing
from gpu_trace_advisor.rulekit.kernel_rows import (
    FAMILIES,
    Judged,
    beyond_cache,
    called,
    formula_of,
    is_cut_badly,
    judged_rows,
    operations,
    rate,
    too_few_blocks,
    toward,
)
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.unfused_attention import unfused_attention
from gpu_trace_advisor.units import share

SLOW = 0.5  # of the bandwidth that can be reached: a plain kernel over contiguous tensors gets most of it


@rule(
    title="Memory-bound kernels far below the bandwidth",
    cites=("gt-seq-random-bw", "gt-layernorm-5x"),
    needs=("shapes", "hardware"),
    fires=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::add [8192,8192]x[8192,8192] fp32
            device: H100 SXM
            repeat: 3
            scale: 50us
            """,
            "805 MB in 0.85 ms: a third of what the memory can do.",
        ),
    ),
    quiet=(
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::add [8192,8192]x[8192,8192] fp32
            device: H100 SXM
            repeat: 3
            scale: 17us
            """,
            "805 MB in 0.29 ms are 2.8 TB/s.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::add [2048,2048]x[2048,2048] fp32
            device: H100 SXM
            repeat: 3
            scale: 5us
            """,
            "50 MB fit into the cache, where other rates hold.",
        ),
        case(
            """
            step |...................
            host a.S================
            s7   .aaaaaaaaaaaaaaaaa..
            a: aten::add [8192,8192]x[8192,8192] fp32
            repeat: 3
            scale: 50us
            """,
            "A device without known peaks.",
        ),
        case(
            """
            step |....................
            host abS================.
            s7   .aaaaaaaaaaaaaaaaa..
            s9   .bbbbbbbbbbbbbbbbb..
            a: aten::add [8192,8192]x[8192,8192] fp32
            b: aten::mul [8192,8192]x[8192,8192] fp32
            device: H100 SXM
            repeat: 3
            scale: 50us
            """,
            "Two kernels share the memory.",
        ),
    ),
)
def slow_memory_kernel(view: DeviceWindow) -> Iterator[Claim]:
    """A kernel that only moves data reaches less than half of the bandwidth that can be reached.

    Why it costs: such a kernel takes as long as its bytes. What makes it slower is how it touches them: rows that do not lie
    together, one element at a time instead of sixteen bytes, too few blocks, a reduction over the wrong dimension, atomics.

    What to do: make the operands contiguous or channels-last where they are strided, sizes a multiple of 16 bytes, enough
    blocks; `torch.compile` or a fused kernel for norms, softmax and optimizers; a Triton kernel with a tuned block size.

    How to verify: record again; the same bytes take less time. Nsight Compute or rocprof tell the bytes that truly moved.

    When it must not fire: tensors that a cache holds, short kernels, those that share the device, chains that fusion would
    make one kernel of, or devices without known bandwidth.
    """
    slow = [one for one in judged_rows(view) if _slow(view, one)]
    other = operations_of(worth_fusing(view))
    runs = [one.operations for one in unfused_attention(view)]
    slow = [one for one in slow if not _claimed(view, one, [other, *runs])]
    if not slow:
        return
    worst, ns = slow[0], sum(one.row.ns for one in slow)
    yield Claim(
        message=f"{called(worst)} moves at {rate(worst.row)}.{too_few_blocks(view, worst)} {_count(slow)} below half of the "
        f"bandwidth take {share(ns, view.window.wall_ns)} of the wall.",
        ns=ns,
        how=_how(worst),
        fix=toward(
            view, "slow-memory-kernel", "bytes at the bandwidth that can be reached", slow, [1.0] * len(slow),
            "optimistic: the compulsory bytes at the bandwidth that can be reached; pessimistic: more bytes move than that, "
            "and no better kernel exists",
        ),
        evidence=tuple(of_operations(view, operations(view, [one]), called(one)) for one in slow[:3]),
        formula=formula_of(worst, view),
        grade="modelled",
    )  # fmt: skip


def _slow(view: DeviceWindow, one: Judged) -> bool:
    row = one.row
    if row.bound != "memory" or row.family in FAMILIES or not beyond_cache(view, one) or row.of_reachable is None:
        return False
    return row.of_reachable < SLOW and not is_cut_badly(view, one)


def _claimed(view: DeviceWindow, one: Judged, groups: list) -> bool:  # type: ignore[type-arg]
    mine = view.kernel_table.operations(one.at)
    return any(len(group) and 2 * int(among(mine, group).sum()) > len(mine) for group in groups)


def _count(slow: list[Judged]) -> str:
    return f"{len(slow)} such kernels" if len(slow) > 1 else "Such kernels"


def _how(one: Judged) -> str:
    if one.row.family in ("normalization", "softmax"):
        return "A fused kernel for it (torch.compile, Liger, Apex, Transformer Engine); a row for each block, 16 bytes a load."
    if one.row.family == "reduction":
        return "Reduce over the contiguous dimension, or in two steps with more blocks; torch.compile writes such a kernel."
    if one.row.family == "product":
        return "Few rows, so that it reads weights: a kernel for that (gemv, split-K), batched requests, or fewer bits a weight."
    if one.row.family == "copy":
        return "Avoid the copy: keep the layout that the next kernel reads, write into slices instead of concatenating."
    return (
        "Are the operands contiguous, aligned to 16 bytes and of one type? torch.compile, or a kernel with wider loads and "
        "more blocks."
    )
