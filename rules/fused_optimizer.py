from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.intervals import union
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import one_each
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.training_passes import optimizer_steps
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.units import duration, percent, share

MANY = 50  # kernels of one optimizer step: a fused one has a handful, a loop over parameters hundreds
STAYS = 0.35  # of what many launches take, with foreach: Adam 10.2 of 42.7 ms, AdamW 15.6 of 51.4 (pytorch#45299)
FEW_AT_ONCE = ("multi_tensor_apply", "fused", "foreach")

IDLE_FROM = 0.03  # of the wall: a smaller part of the step is not worth another optimizer


@rule(
    title="The optimizer goes through the parameters one by one",
    cites=("tvi-share-optimizer",),
    needs=("operators", "launches"),
    phases=("training",),
    because="tvi-share-optimizer",
    fires=(
        """
        step |.........................................................................................
        host m.OOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOO.S==
        host ..ababababababababababababababababababababababababababababababababababababababababab.......
        s7   .mmababababababababababababababababababababababababababababababababababababababababababab...
        O: Optimizer.step#SGD.step
        phase: training
        repeat: 3
        scale: 10us
        """,
        """
        step |........................
        host m.OOOOOOOOOOOOOOOOOO....
        host ....a.....b......c......
        s7   .mm..a.....b......c.....
        a: multi_tensor_apply_kernel_norm
        b: multi_tensor_apply_kernel_adam
        c: multi_tensor_apply_kernel_add
        O: Optimizer.step#AdamW.step
        phase: training
        repeat: 3
        scale: 100us
        """,
    ),
    quiet=(
        case(
            """
        step |.........................................................................................
        host m.OOOOOOOO.a.b.cS=================================================================......
        s7   .mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmaaabbbccc.......
        a: multi_tensor_apply_kernel_adam
        phase: training
        repeat: 3
        scale: 10us
        """,
            "A handful of kernels for all parameters.",
        ),
        case(
            """
        step |.............................................................................
        host m.abababababababababababababababababababababababababababababababababababab....
        s7   .mmabababababababababababababababababababababababababababababababababababab...
        phase: training
        repeat: 3
        scale: 10us
        """,
            "Many kernels, but nothing of an optimizer.",
        ),
        case(
            """
        step |...................
        host m.aOOb.S===========
        s7   .mmaaabbbbbbb.......
        phase: decode
        repeat: 3
        scale: 10us
        """,
            "Inference has none.",
        ),
    ),
)
def fused_optimizer(view: DeviceWindow) -> Iterator[Claim]:
    """The optimizer launches some kernels for each parameter tensor instead of a few for all of them.

    Why it costs: a model has hundreds of parameter tensors, most of them small. A step of kernels for each costs launches
    on the host and pauses on the device, and reads and writes parameters, gradients and states several times.

    What to do: `torch.optim.AdamW(…, fused=True)` (SGD and Adagrad have it too), else `foreach=True`; Apex `FusedAdam`;
    `zero_grad(set_to_none=True)`.

    How to verify: record again; the optimizer's part of the step is a few `multi_tensor_apply` kernels.

    When it must not fire: it is fused or foreach already, or takes no more of the step than it has to.
    """
    trace, wall = view.trace, view.window.wall_ns
    rows = optimizer_steps(view)
    rows = rows[(trace.start_ns[rows] < view.window.end_ns) & (trace.end_ns[rows] > view.window.start_ns)]
    runs = [run for run in _launched(view, rows) if len(run)]
    if runs and _together(view, runs):
        yield from _idle(view, rows, runs)
        return
    runs = [run for run in runs if len(run) >= MANY]
    if not runs:
        return
    named = _named(view, rows, runs)
    lost = sum(named.values())
    _, usual = span("tvi-share-optimizer", "share")
    if lost < usual * wall:
        return
    count = sum(map(len, runs))
    whole = _ns(view, runs)
    parts = [part for run in runs for part in np.array_split(run, max(round(STAYS * len(run)), 1))]
    yield Claim(
        message=f"The optimizer launches {count / len(runs):,.0f} kernels a step, and {share(lost, wall)} of the "
        f"wall ({duration(lost)}) goes to it; up to {percent(usual)} is usual.",
        named=named,
        how="fused=True (or foreach=True) in the optimizer's constructor, zero_grad(set_to_none=True).",
        fix=Fix(
            "fused-optimizer", "one kernel a step for the optimizer", one_each(view, parts, _ns(view, parts)),
            one_each(view, runs, whole // 2),
            assumes=(f"pessimistic: the same bytes move as now, and {percent(STAYS)} of the launches stay",
                     "optimistic: one launch, and half of the bytes"),
        ),
        evidence=(of_operations(view, np.concatenate(runs)),),
        formula=f"its kernels and the idle time between and before them, {lost / 1e6:,.3f} ms in {len(runs)} steps",
        grade="modelled",
    )  # fmt: skip


def _ns(view: DeviceWindow, runs: list[Int64]) -> Int64:
    """[runs] time of the kernels of each."""
    return np.array([view.timeline.length[run].sum() for run in runs], np.int64)


def _named(view: DeviceWindow, rows: Int64, runs: list[Int64]) -> dict[str, int]:
    """What the optimizer takes of the wall: its kernels, and the time the device idles between them or while the host
    launches them."""
    timeline, trace = view.timeline, view.trace
    start = np.concatenate([trace.start_ns[rows], [timeline.start[run].min() for run in runs]])
    end = np.concatenate([trace.end_ns[rows], [timeline.end[run].max() for run in runs]])
    return wall_time.of_kernels(view, np.concatenate(runs)) | wall_time.of_idle(view, union(start, end))


def _idle(view: DeviceWindow, rows: Int64, runs: list[Int64]) -> Iterator[Claim]:
    """Its kernels update many tensors at once, but the host takes long to prepare them."""
    trace, wall = view.trace, view.window.wall_ns
    spans = union(trace.start_ns[rows], trace.end_ns[rows])
    named = wall_time.of_idle(view, spans)
    lost, whole = sum(named.values()), int((spans.end - spans.start).sum())
    if lost < IDLE_FROM * wall or 2 * lost < whole:
        return
    yield Claim(
        title="The optimizer keeps the GPU waiting",
        message=f"In {share(lost, whole)} of the optimizer's {duration(whole)} the GPU is idle ({share(lost, wall)} of the "
        "wall), although its kernels update many tensors at once: the host prepares lists of them.",
        named=named,
        how="fused=True in the optimizer's constructor (one call for all tensors), or torch.compile of its step, or a graph "
        "of it (capturable=True).",
        evidence=(of_operations(view, np.concatenate(runs)),),
        formula=f"idle time inside {len(rows)} steps of the optimizer: {lost / 1e6:,.3f} of {whole / 1e6:,.3f} ms",
        unpriced="how much of it a fused step needs is not in the timeline",
    )


def _launched(view: DeviceWindow, rows: Int64) -> list[Int64]:
    """For each of these host records the kernels of the window that are launched within it."""
    timeline, trace, mine = view.timeline, view.trace, view.operations
    kernels = mine[timeline.linked[mine] & timeline.is_kernel[mine]]
    begun = timeline.launch_start[kernels]
    order = np.argsort(begun, kind="stable")
    first, last = (np.searchsorted(begun, times[rows], sorter=order) for times in (trace.start_ns, trace.end_ns))
    return [kernels[np.sort(order[a:b])] for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def _together(view: DeviceWindow, runs: list[Int64]) -> bool:
    """Most of the kernels update several tensors at once already."""
    labels = [view.timeline.label(op).lower() for op in runs[0].tolist()]
    return sum(any(word in label for word in FEW_AT_ONCE) for label in labels) > len(labels) / 2
