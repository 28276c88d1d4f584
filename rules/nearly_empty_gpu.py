from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import MATRIX_CLASSES
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster
from gpu_trace_advisor.rulekit.kernel_rows import units_of
from gpu_trace_advisor.rulekit.launch_size import launch_size, nearly_empty
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COMPUTE
from gpu_trace_advisor.trace.kernel_names import kernel_class, readable
from gpu_trace_advisor.units import count_of, duration, share

LONG_NS = 20_000  # shorter kernels last about as long however many blocks they have
FROM = 0.03  # of the wall in such kernels


@rule(
    title="Long kernels run on a nearly empty GPU",
    cites=("tvi-cause-barrier",),
    fires=(
        """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: find_path <<<10, 16>>>
        repeat: 3
        scale: 100us
        """,
        """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: saxpy <<<2, 512>>>
        repeat: 3
        scale: 100us
        device: a100-sxm4-80
        """,
    ),
    quiet=(
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel <<<1056, 256>>>
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "Blocks for every SM, several times.",
        ),
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: find_path <<<10, 16>>>
        repeat: 3
        """,
            "So short that the number of blocks does not decide.",
        ),
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel
        repeat: 3
        scale: 100us
        """,
            "The recording has no blocks.",
        ),
    ),
)
def nearly_empty_gpu(view: DeviceWindow) -> Iterator[Claim]:
    """Kernels that last have so few blocks, or so few threads, that most of the device has nothing to do.

    Why it costs: a block runs on one SM. Ten blocks keep ten SMs at work, on a device with a hundred or more; and an SM with
    a few warps waits for memory most of the time, because no other warp has work meanwhile.

    What to do: launch more blocks: one thread for each element instead of a loop over them, a grid as large as the data, a
    second dimension for the batch; several small problems in one launch, or side by side on streams of their own.

    How to verify: record again; the kernel has blocks for every SM, and takes a fraction of the time.

    When it must not fire: kernels of some µs, blocks for an eighth of the SMs and more, recordings without blocks.
    """
    timeline, wall = view.timeline, view.window.wall_ns
    on = view.operations[timeline.op_class[view.operations] == COMPUTE]
    on = on[view.time_of(on) > LONG_NS]
    on = on[nearly_empty(view, on)]
    named = wall_time.of_kernels(view, on) if len(on) else {}
    lost = sum(named.values())
    if not lost or lost < FROM * wall:
        return
    longest = on[np.argmax(view.time_of(on))]
    blocks, threads = launch_size(view, on)
    at = int(np.flatnonzero(on == longest)[0])
    sms = view.inkernel.sms
    units = units_of(view)
    there = f" on {sms} {units}" if sms else ""
    fill = np.minimum(blocks / sms, 1.0) if sms else np.minimum(blocks * threads / 2048, 1.0)
    name = readable(timeline.label(int(longest)))
    yield Claim(
        message=f"{count_of(len(on), 'kernel')}, {share(lost, wall)} of the wall ({duration(lost)}), most of the GPU empty: "
        f"{name} has {count_of(int(blocks[at]), 'block')} of {threads[at]:,} threads{there}.",
        named=named,
        how=_how(kernel_class(timeline.label(int(longest)))),
        fix=faster(
            view, "nearly-empty-gpu", f"as many blocks as there are {units}", on, 1.0, fill,
            assumes=("pessimistic: the work cannot be divided", f"optimistic: it can be, over all {units}"),
        ),
        evidence=(of_operations(view, on),),
        formula=f"blocks {blocks[at]:,} × threads {threads[at]:,}{there}; optimistic: their time × blocks / {units}",
        grade="assumed",
        doubts=() if sms else (f"how many {units} the device has is not known (--hardware NAME)",),
    )  # fmt: skip


def _how(kind: str) -> str:
    if kind in MATRIX_CLASSES:
        return (
            "Give the product more rows (a larger batch, several in one call), or split its inner dimension (split-K)."
        )
    return (
        "Launch more blocks: a grid as large as the data instead of a loop in each thread, a dimension for the batch, or several "
        "small problems in one launch."
    )
