from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import among, present
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, less, running_time
from gpu_trace_advisor.rulekit.kernel_rows import is_cut_badly, judged_rows, least_ns, operations, units_of
from gpu_trace_advisor.rulekit.launch_size import nearly_empty
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COMPUTE
from gpu_trace_advisor.trace.kernel_names import readable
from gpu_trace_advisor.units import percent

FROM = 0.05  # of the wall that idle SMs of last waves cost: the model is a bound, the truth may be half of it
FILLED = 0.8  # of the device's places that a kernel's blocks fill: better filled ones are no tail
MANY = 10  # waves: the last of so many is less than a tenth of the kernel
LONG_NS = 10_000  # a kernel; the time of shorter ones is mostly latency, whatever their blocks
KERNELS = 3  # named in the message


@rule(
    title="Kernels end with most of the device idle",
    cites=("tvi-cause-barrier", "tvi-mfu-excluded"),
    needs=("hardware",),
    fires=(
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel <<<272, 1024>>>
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "264 places on 132 SMs for blocks of 1024 threads; a last wave of 8 blocks, and the SMs beside them idle.",
        ),
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel <<<26, 1024>>>
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "One wave that fills a fifth of the device.",
        ),
    ),
    quiet=(
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel <<<528, 1024>>>
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "Two full waves.",
        ),
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel <<<5288, 1024>>>
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "Many waves: the last one hardly counts.",
        ),
        case(
            """
        step |...............................
        host a.b.S==========================
        s7   .abbbbbbbbbbbbbbbbbbbbbbbbbbbb..
        a: my_kernel <<<26, 1024>>>
        b: other_kernel <<<528, 1024>>>
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "A small kernel beside a large one.",
        ),
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel <<<26, 1024>>>
        repeat: 3
        device: H100 SXM
        """,
            "Kernels so short that their blocks do not decide.",
        ),
        case(
            """
        step |............
        host a.S=========
        s7   .aaaaaaaaaa..
        a: my_kernel
        repeat: 3
        scale: 100us
        device: H100 SXM
        """,
            "The recording has no blocks.",
        ),
    ),
)
def low_occupancy_tail(view: DeviceWindow) -> Iterator[Claim]:
    """The blocks of long kernels do not fill the device's last wave, and the next kernel waits for it.

    Why it costs: a kernel lasts as many rounds as its blocks need, and in the last round some SMs have none. The next
    kernel of the stream begins when all are done.

    What to do: sizes that fill whole waves (batch, heads, tiles), smaller tiles or split-K and stream-K for products,
    persistent kernels; independent small kernels on streams of their own, or programmatic dependent launch.

    How to verify: record again; the kernel takes less time with the same work. Nsight Compute shows the waves.

    When it must not fire: ten waves or more, well-filled waves, small kernels, or recordings without blocks and registers.
    """
    timeline, tails, wall = view.timeline, view.inkernel.tails, view.window.wall_ns
    idle = np.nan_to_num(tails.idle)
    on = view.operations[timeline.op_class[view.operations] == COMPUTE]
    on = on[view.time_of(on) > LONG_NS]
    filled = 1 - np.nan_to_num(tails.bound)
    on = on[~nearly_empty(view, on)]
    on = on[(idle[on] > 0) & (filled[on] < FILLED) & (np.nan_to_num(tails.waves[on], nan=MANY) < MANY)]
    on = on[~among(on, operations(view, [one for one in judged_rows(view) if is_cut_badly(view, one)]))]
    modelled = np.where(view.inkernel.modelled[on], view.inkernel.claims[0][on], 0.0)
    time = view.time_of(on)
    lost = np.minimum(idle[on] * time, np.maximum(time - modelled, 0.0))
    lost *= running_time(view, on) / max(int(time.sum()), 1)  # what several streams run at once counts once
    if lost.sum() < FROM * wall:
        return
    names = view.trace.name_code[timeline.row[on]]
    sums = sorted(((float(lost[names == code].sum()), code) for code in present(names).tolist()), reverse=True)[
        :KERNELS
    ]
    worst = on[names == sums[0][1]][0]
    yield Claim(
        message=f"As much as {percent(lost.sum() / wall, 1)} of the wall goes to last waves that do not fill the device, most in "
        f"{', '.join(f'{readable(view.trace.names[code])} ({percent(ns / wall, 1)})' for ns, code in sums)}.",
        ns=int(lost.sum()),
        how="Choose sizes that fill whole waves, smaller tiles or split-K; run independent small kernels side by side.",
        fix=faster(
            view, "low-occupancy-tail", "last waves filled", on, 1.0, less(view, on, lost),
            assumes=("pessimistic: blocks of unlike length fill the last wave already; optimistic: all are equally long",),
            least_ns=least_ns(view, on),
        ),
        evidence=(of_operations(view, on[names == sums[0][1]]),),
        formula=f"the first: {tails.waves[worst]:g} × {tails.resident[worst]:g} blocks on each of the {units_of(view)}, "
        f"{percent(idle[worst])} of its time lost to idle ones",
        grade="modelled",
        doubts=("that all blocks of a kernel take equally long is assumed",),
    )  # fmt: skip
