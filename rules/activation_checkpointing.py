import re
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import allocation_calls, memory_use
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_causes, of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, running_time
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.model import NONE, Int64
from gpu_trace_advisor.units import percent

ROOM = 0.3  # of the device's memory free at the peak, from which some of the activations could stay
FULL = 0.9  # of it in use, from which an allocator that frees and allocates in the loop is short of it
KEPT = 0.5  # pessimistic: half of the layers go on recomputing, as the memory holds no more
RECOMPUTES = re.compile(
    r"CheckpointFunctionBackward|torch/utils/checkpoint\.py\(\d+\): (?:unpack_hook|recompute_fn|inner_unpack|backward)"
)
BACKWARD = re.compile(r"autograd::engine::evaluate_function: (?!CheckpointFunction)")


@rule(
    title="Activations are recomputed, or could be",
    cites=("tvi-checkpoint-cost", "tvi-matrix-checkpointing"),
    needs=("memory", "hardware"),
    phases=("training",),
    because="tvi-matrix-checkpointing",
    fires=(
        case(
            """
        step |.....................
        host a..b....c.S=========..
        host ..O===................
        s7   .aaaaaaabbbbbbccccc...
        O: CheckpointFunctionBackward
        repeat: 3
        memory: 40GB
        device: H100 SXM
        phase: training
        """,
            "The forward of a layer again, within its backward, and half of the memory is free.",
        ),
        case(
            """
        step |.....................
        host a.F=.A=.b.S==========.
        s7   .aa......bbbbbbbbbbb..
        repeat: 3
        memory: 82GB
        device: H100 SXM
        phase: training
        """,
            "No room: the allocator frees and allocates in every step.",
        ),
    ),
    quiet=(
        case(
            """
        step |.....................
        host a..b....c.S=========..
        host ..O===................
        s7   .aaaaaaabbbbbbccccc...
        O: CheckpointFunctionBackward
        repeat: 3
        memory: 78GB
        device: H100 SXM
        phase: training
        """,
            "Recomputed, and the memory is needed.",
        ),
        case(
            """
        step |.....................
        host a..b....c.S=========..
        host ..O===................
        s7   .aaaaaaabbbbbbccccc...
        O: autograd::engine::evaluate_function: AddmmBackward0
        repeat: 3
        memory: 40GB
        device: H100 SXM
        phase: training
        """,
            "Nothing is recomputed.",
        ),
        case(
            """
        step |.....................
        host a..b....c.S=========..
        host ..O===................
        s7   .aaaaaaabbbbbbccccc...
        O: CheckpointFunctionBackward
        repeat: 3
        device: H100 SXM
        phase: training
        """,
            "Memory was not recorded: nothing is guessed.",
        ),
        case(
            """
        step |.....................
        host a.F=.A=.b.S==========.
        s7   .aa......bbbbbbbbbbb..
        repeat: 3
        memory: 40GB
        device: H100 SXM
        phase: training
        """,
            "The allocator works in the loop, but memory is not what it lacks.",
        ),
        case(
            """
        step |.....................
        host a..b....F=A=S=======..
        host ..O===................
        s7   .aaaaaaabbbbbbccccc...
        O: CheckpointFunctionBackward
        repeat: 3
        memory: 82GB
        device: H100 SXM
        phase: training
        """,
            "Recomputed and full: that is what it is for.",
        ),
    ),
)
def activation_checkpointing(view: DeviceWindow) -> Iterator[Claim]:
    """Layers run forward a second time during backward although memory is free, or memory is short and none does.

    Why it costs: recomputing the activations of all layers adds a third of the step's arithmetic. It pays where it lets a
    model or a batch fit, not beside free memory.

    What to do: with room, checkpoint fewer layers, or only the cheap ones (selective checkpointing), or use the room for a
    larger batch. Without room, checkpoint some layers (`torch.utils.checkpoint`, `use_reentrant=False`).

    How to verify: record again with memory; the peak stays below the device's, the recomputed kernels are gone.

    When it must not fire: memory was not recorded, the memory is needed, nothing is recomputed, or it is inference.
    """
    assert view.hardware is not None
    memory, wall = view.hardware.memory_bytes, view.window.wall_ns
    peaks = [use.peak_reserved or use.peak_allocated or 0 for use in memory_use(view.trace.memory) if use.device >= 0]
    used = max(peaks, default=0) / memory
    again = _recomputed(view)
    if len(again) and 0 < used < 1 - ROOM:
        time = running_time(view, again)
        yield Claim(
            message=f"Recomputing activations takes {percent(time / wall, 1)} of the wall ({len(again):,} operations) while "
            f"{percent(1 - used)} of the memory is free at the peak.",
            ns=time,
            how="Checkpoint fewer layers, as many as the free memory holds, or use the memory for a larger batch.",
            fix=faster(
                view, "activation-checkpointing", "activations kept", again, KEPT, 0.0,
                assumes=(f"pessimistic: {percent(KEPT)} of the layers go on recomputing; optimistic: none",),
            ),
            evidence=(of_operations(view, again),),
            formula=f"peak {used * memory / 1e9:.3g} GB of {memory / 1e9:.3g} GB",
            grade="modelled",
            doubts=("how much memory the activations would take is not recorded",),
        )  # fmt: skip
    calls = allocation_calls(view.timeline, view.window.start_ns, view.window.end_ns)
    if not len(again) and used > FULL and calls >= max(len(view.kept_steps), 1):
        yield Claim(
            message=f"{percent(used)} of the memory is in use at the peak, and the allocator frees and allocates in the loop "
            f"({calls} calls).",
            named=wall_time.of_causes(view, "allocator"),
            how="Would checkpointing some layers make room? It costs about "
            f"{percent(value('tvi-checkpoint-cost', 'extra_flop'))} more arithmetic where all layers do it; a smaller "
            "batch is the other way.",
            evidence=of_causes(view, "allocator"),
        )


def _recomputed(view: DeviceWindow) -> Int64:
    """Operations launched by the forward of a checkpoint within backward."""
    trace, timeline, host = view.trace, view.timeline, view.timeline.host
    codes = np.array(
        [1 if RECOMPUTES.search(name) else 2 if BACKWARD.match(name) else 0 for name in trace.names], np.int8
    )
    mine = view.operations[timeline.linked[view.operations]]
    calls, which = np.unique(timeline.launch[mine], return_inverse=True)
    found, at = np.zeros(len(calls), np.int8), host.parent[calls].astype(np.int64)
    while ((at != NONE) & (found == 0)).any():  # upwards, until the first record that says which
        open_ = np.flatnonzero((at != NONE) & (found == 0))
        found[open_] = codes[trace.name_code[at[open_]]]
        at[open_] = host.parent[at[open_]]
    again: Int64 = mine[found[which] == 1]
    return again
