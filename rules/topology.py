from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.ranks.collective_kinds import bus_factor
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, running_time
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.rulekit.training_passes import all_reduces, communicating, in_backward
from gpu_trace_advisor.timelines.device import copy_classes
from gpu_trace_advisor.trace.model import NONE, Int64
from gpu_trace_advisor.units import duration, share, size

FAST = 100e9
"""Bytes/s: every NVLink since the V100 carries more (150 GB/s in one direction), no PCIe slot or network port does."""
LARGE = 1 << 20  # bytes: below it latency decides, and a slow collective says nothing about the link
OFTEN = 8  # in a step, outside of backward: fewer are the loss or a norm, not layers that are split
FROM = 0.02  # of the wall in these transfers


@rule(
    title="GPUs that exchange much are not joined by a fast link",
    cites=("gt-placement-5x", "ai-tp-intra-node", "ai-infiniband", "ai-tp-latency"),
    needs=("launches", "hardware"),
    fires=(
        case(
            """
        step |..........................................
        host anbncndneanbncndneS=====================.
        s7   .anbncndnenanbncndnen.....................
        n: c10d::allreduce_ [4096,4096] bf16 > ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        device: H100 SXM
        phase: prefill
        repeat: 3
        scale: 1ms
        """,
            "32 MB in 1 ms: 64 GB/s at best.",
        ),
        case(
            """
        step |...................
        host apbS==============.
        s7   .aaaapppppppppbbbb.
        p: Memcpy PtoP (Device -> Device) 128MB
        device: H100 SXM
        repeat: 3
        scale: 1ms
        """,
            "Pipeline stages that copy over PCIe.",
        ),
    ),
    quiet=(
        case(
            """
        step |..........................................
        host anbncndneanbncndneS=====================.
        s7   .anbncndnenanbncndnen.....................
        n: c10d::allreduce_ [4096,4096] bf16 > ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        device: H100 SXM
        phase: prefill
        repeat: 3
        scale: 200us
        """,
            "As many and as large, over NVLink.",
        ),
        case(
            """
        step |..........................................
        host anbncndneanbncndneS=====================.
        s7   .anbncndnenanbncndnen.....................
        n: c10d::allreduce_ [64,4096] bf16 > ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        device: H100 SXM
        phase: decode
        repeat: 3
        scale: 1ms
        """,
            "Small: latency decides.",
        ),
        case(
            """
        step |..........................................
        host OOOOOOOOOOOOOOOOOOS=====================.
        host anbncndneanbncndne.......................
        s7   .anbncndnenanbncndnen.....................
        O: autograd::engine::evaluate_function: MmBackward0
        n: c10d::allreduce_ [4096,4096] bf16 > ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        device: H100 SXM
        phase: training
        repeat: 3
        scale: 1ms
        """,
            "Data parallelism alone: gradients may cross nodes.",
        ),
        case(
            """
        step |..........................................
        host anbncndneanbncndneS=====================.
        s7   .anbncndnenanbncndnen.....................
        n: c10d::allreduce_ [4096,4096] bf16 > ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        device: L4
        phase: prefill
        repeat: 3
        scale: 1ms
        """,
            "A device without a fast link of its own: there is nowhere better to place it.",
        ),
        case(
            """
        step |...................
        host apbS==============.
        s7   .aaaapppppppppbbbb.
        p: Memcpy PtoP (Device -> Device) 2.4GB
        device: H100 SXM
        repeat: 3
        scale: 1ms
        """,
            "Copies between devices at NVLink's speed.",
        ),
    ),
    misses=(
        case(
            """
        step |..........................................
        host anbncndneanbncndneS=====================.
        s7   .anbncndnenanbncndnen.....................
        n: c10d::_allgather_base_ [4096,4096] bf16 > ncclDevKernel_AllGather_RING_LL
        device: H100 SXM
        phase: prefill
        repeat: 3
        scale: 1ms
        """,
            "Sequence parallelism gathers instead of reducing; sharded weights look the same.",
        ),
    ),
)
def topology(view: DeviceWindow) -> Iterator[Claim]:
    """Ranks that split layers, or stages that hand on activations, exchange data over PCIe or a network.

    Why it costs: tensor parallelism needs two collectives a layer, each on the critical path. Over NVLink they take
    microseconds; over PCIe or InfiniBand several times as long, and nothing is there to hide them behind.

    What to do: keep tensor parallelism within a node and on GPUs that NVLink joins (`nvidia-smi topo -m`, the order of
    CUDA_VISIBLE_DEVICES, the scheduler's placement); let data and pipeline parallelism cross nodes. Where GPUs are joined and
    it is slow all the same, look at NCCL_DEBUG=INFO: peer access may be off (NCCL_P2P_DISABLE, a virtual machine, IOMMU).

    How to verify: record again; the bus bandwidth of the collectives is near the link's.

    When it must not fire: data parallelism, whose collectives hide behind the backward pass; small messages, which are bound
    by latency; devices without NVLink.
    """
    assert view.hardware is not None
    link = view.hardware.nvlink
    if link <= FAST:
        return
    for on, speed, what in filter(None, (_split_layers(view), _copies(view))):
        wall = view.window.wall_ns
        spent = running_time(view, on)
        if spent < FROM * wall or not 0 < speed < FAST:
            continue
        network = value("ai-infiniband", "bw")
        yield Claim(
            message=f"{len(on):,} {what} run for {duration(spent)} ({share(spent, wall)} of the wall) at "
            f"{speed / 1e9:,.0f} GB/s at best; this device's NVLink carries {link / 1e9:,.0f} GB/s in one direction"
            + (f", a network port {network / 1e9:,.0f} GB/s." if speed < network else "."),
            named={"exposed-communication" if what.startswith("all-reduces") else "exposed-copy": spent},
            how="Which link is between these GPUs (nvidia-smi topo -m)? Put ranks that split layers on GPUs that NVLink joins, "
            "and check with NCCL_DEBUG=INFO that peer access is on.",
            fix=faster(
                view, "topology", "exchanges over NVLink", on,
                max(speed / FAST, 1 / value("gt-placement-5x", "ratio")), speed / link,
                assumes=(f"pessimistic: {FAST / 1e9:g} GB/s, optimistic: all of the link; waiting for others shrinks alike",),
            ),
            evidence=(of_operations(view, on),),
            formula=f"time x (1 - speed / link) = {spent / 1e6:,.3f} ms x (1 - {speed / 1e9:,.0f} / {link / 1e9:,.0f})",
            grade="modelled",
            doubts=() if view.run else ("one rank's trace cannot tell a slow link from waiting for another rank",),
        )  # fmt: skip


def _split_layers(view: DeviceWindow) -> tuple[Int64, float, str] | None:
    """Large collectives outside of backward that come several times a step, and the speed of the fastest of them."""
    on, found, which = communicating(view)
    sizes = found.bytes[which]
    steps = max(view.repetition.count, 1)
    wanted = all_reduces(found, which) & (sizes >= LARGE)
    if view.phase.name not in ("prefill", "decode"):
        wanted &= ~in_backward(view, on) & (view.timeline.launch[on] != NONE)
    mine = np.flatnonzero(wanted)
    if len(mine) < OFTEN * steps:
        return None
    length = view.timeline.length[on[mine]]
    ranks = [found.keys[key][2] or None for key in found.key[which[mine]].tolist()]
    factor = np.array([bus_factor("allreduce", n) if n else 2.0 for n in ranks])
    speed = float(np.quantile(sizes[mine] * factor / length, 0.9)) * 1e9
    return on[mine], speed, f"all-reduces of {size(int(np.median(sizes[mine])))}"


def _copies(view: DeviceWindow) -> tuple[Int64, float, str] | None:
    """Large copies between devices, and the speed of the fastest of them."""
    timeline = view.timeline
    copies = view.operations[np.isin(timeline.op_class[view.operations], copy_classes("PtoP"))]
    moved = view.trace.bytes[timeline.row[copies]]
    copies, moved = copies[moved >= LARGE], moved[moved >= LARGE]
    if not len(copies):
        return None
    speed = float(np.quantile(moved / np.maximum(timeline.length[copies], 1), 0.9)) * 1e9
    return copies, speed, f"copies of {size(int(np.median(moved)))} between devices"
