from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.training_passes import (
    all_reduces,
    communicating,
    in_backward,
    in_optimizer,
    kinds_of,
    optimizer_steps,
    shards,
)
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import duration, share

FROM = 0.02  # of the wall in exposed communication, as for buckets; less is not worth the change
FULL = 0.5  # as many all-reduces as the last pass has, of at least half their length: the same gradient, not statistics
WAITS = 0.5  # pessimistic: half of a collective's time is waiting for slower ranks, who are waited for at the last one


@rule(
    title="Gradients are reduced at every micro-step",
    cites=("gt-grad-accum",),
    needs=("operators", "launches"),
    phases=("training",),
    because="gt-grad-accum",
    fires=(
        """
        step |..........................
        host fOOOfOOOfOOODDS==========.
        host .bn..bn..bn..u............
        s7   .ffbbnnnffbbnnnffbbnnnuu..
        O: autograd::engine::evaluate_function: MmBackward0
        D: Optimizer.step#AdamW.step
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |.............
        host fOOODDS====.
        host .bn..u......
        s7   .ffbbnnnuu..
        O: autograd::engine::evaluate_function: MmBackward0
        D: Optimizer.step#AdamW.step
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "One backward pass for each step of the optimizer.",
        ),
        case(
            """
        step |..........................
        host fOOOfOOOfOOODDS==========.
        host .b...b...bn..u............
        s7   .ffbbffbbffbbnnnuu........
        O: autograd::engine::evaluate_function: MmBackward0
        D: Optimizer.step#AdamW.step
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "Accumulated with no_sync: only the last pass reduces.",
        ),
        case(
            """
        step |..........................
        host fOOOfOOOfOOODDS==========.
        host .bn..bn..bn..u............
        s7   .ffbbnffbbnffbbnnnnnnuu...
        O: autograd::engine::evaluate_function: MmBackward0
        D: Optimizer.step#AdamW.step
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "The passes before the last one reduce something small, such as statistics.",
        ),
        case(
            """
        step |..........................
        host fOOOfOOOfOOODDS==========.
        host .bn..bn..bn..u............
        s7   .ffbbnnnffbbnnnffbbnnnuu..
        O: autograd::engine::evaluate_function: MmBackward0
        D: Optimizer.step#AdamW.step
        n: ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "Sharded: gradients that are not scattered would have to fit whole.",
        ),
        case(
            """
        step |..........................
        host fOOOfOOOfOOODDDS=========.
        host .b...b...b...nu...........
        s7   .ffbbffbbffbb.nnnuu.......
        O: autograd::engine::evaluate_function: MmBackward0
        D: Optimizer.step#AdamW.step
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "The optimizer itself reduces, once.",
        ),
    ),
    misses=(
        case(
            """
        step |..........................
        host fOOOfOOOfOOOu.S==========.
        host .bn..bn..bn...............
        s7   .ffbbnnnffbbnnnffbbnnnuu..
        O: autograd::engine::evaluate_function: MmBackward0
        n: ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        phase: training
        repeat: 4
        scale: 100us
        """,
            "No record says where the optimizer's step is.",
        ),
    ),
)
def grad_accum_nosync(view: DeviceWindow) -> Iterator[Claim]:
    """Between two steps of the optimizer several backward passes each reduce the whole gradient over the ranks.

    Why it costs: only the sum over all micro-steps is needed. Reduced once for N of them, a sample costs a part in N of the
    traffic; reduced every time, accumulating saves no communication.

    What to do: with DDP run all micro-steps but the last under `model.no_sync()`; Accelerate's `accumulate()` and Lightning's
    `accumulate_grad_batches` do so. A loop of one's own reduces after the last backward pass only.

    How to verify: record several steps of the optimizer; each has the all-reduces of one backward pass, after the last one.

    When it must not fire: one backward pass a step, small all-reduces between (a loss, statistics), and FSDP, where without
    scattering the whole gradient has to fit on every rank.
    """
    exposed = view.causes.get("exposed-communication", 0)
    if exposed < FROM * view.window.wall_ns:
        return
    on, found, which = communicating(view)
    reduces = on[all_reduces(found, which)]
    if not len(reduces) or shards(kinds_of(found, which)):
        return
    groups = [passes for passes in _passes(view, reduces) if len(passes) > 1]
    extra = [one for passes in groups for one in passes[:-1]]
    if not extra:
        return
    spare = np.concatenate(extra)
    length = view.timeline.length
    micro = 1 + len(extra) / len(groups)
    ns = min(int(length[spare].sum()), exposed)
    yield Claim(
        message=f"{micro:.3g} backward passes for each step of the optimizer all reduce the gradient: {len(spare):,} "
        f"all-reduces, {duration(length[spare].sum())}, come before the last pass; {duration(exposed)} "
        f"({share(exposed, view.window.wall_ns)} of the wall) of communication is not hidden.",
        named={"exposed-communication": ns},
        how="Run all micro-steps but the last one under model.no_sync(), so that gradients are reduced once.",
        fix=faster(
            view, "grad-accum-nosync", "gradients reduced once for all micro-steps", spare, WAITS, 0.0,
            assumes=("pessimistic: half of the time of an all-reduce is waiting for other ranks, at the last one instead",),
        ),
        evidence=(of_operations(view, spare),),
        formula=f"(N - 1)/N of the all-reduces, N = {micro:.3g}; accumulating {value('gt-grad-accum', 'steps'):g} "
        f"batches of {value('gt-grad-accum', 'micro'):g} is one of {value('gt-grad-accum', 'global'):g}",
        at_most_ns=ns,
        particular=True,
    )  # fmt: skip


def _passes(view: DeviceWindow, reduces: Int64) -> list[list[Int64]]:
    """For each interval between two steps of the optimizer the all-reduces of each of its backward passes that has all of
    them; a pass ends where the program launches something else for the next one."""
    timeline, trace = view.timeline, view.trace
    updates = trace.start_ns[optimizer_steps(view)]
    kept = view.operations[timeline.linked[view.operations]]
    kept = kept[~in_optimizer(view, kept)]
    begun = trace.start_ns[timeline.launch[kept]]
    kept, begun = kept[np.argsort(begun, kind="stable")], np.sort(begun)
    backward = in_backward(view, kept) | np.isin(kept, reduces)
    number = np.cumsum(np.concatenate([[False], backward[1:] & ~backward[:-1]])) if len(kept) else kept
    reduces = reduces[timeline.linked[reduces]]
    reduces = reduces[~in_optimizer(view, reduces)]  # those are of no pass
    starts = trace.start_ns[timeline.launch[reduces]]
    of_pass = number[np.searchsorted(begun, starts, side="left")] if len(kept) else starts
    interval = np.searchsorted(updates, starts)
    length = timeline.length
    found = []
    for k in range(1, len(updates)) if not len(view.kept_steps) else range(len(updates)):
        mine = reduces[interval == k]
        passes = [mine[of_pass[interval == k] == n] for n in ascending(of_pass[interval == k]).tolist()]
        if len(passes) < 2:
            continue
        last = passes[-1]
        least = FULL * float(np.median(length[last]))
        found.append([one for one in passes if len(one) == len(last) and np.median(length[one]) >= least])
    return found
