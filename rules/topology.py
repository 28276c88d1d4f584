from collections.abc import Iterator

import numpy as np

from analyzer.collectives import bus_factor
from analyzer.device_timeline import copy_classes
from analyzer.evidence import of_operations
from analyzer.facts import value
from analyzer.passes import all_reduces, communicating, in_backward
from analyzer.pricing import faster
from analyzer.rule import Claim, rule
from analyzer.study import Study
from analyzer.trace import NONE, Int64
from analyzer.units import duration, share, size

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
        # 32 MB in 1 ms: 64 GB/s at best.
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
        # Pipeline stages that copy over PCIe.
        """
        step |...................
        host apbS==============.
        s7   .aaaapppppppppbbbb.
        p: Memcpy PtoP (Device -> Device) 128MB
        device: H100 SXM
        repeat: 3
        scale: 1ms
        """,
    ),
    quiet=(
        # As many and as large, over NVLink.
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
        # Small: latency decides.
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
        # Data parallelism alone: gradients may cross nodes.
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
        # A device without a fast link of its own: there is nowhere better to place it.
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
        # Copies between devices at NVLink's speed.
        """
        step |...................
        host apbS==============.
        s7   .aaaapppppppppbbbb.
        p: Memcpy PtoP (Device -> Device) 2.4GB
        device: H100 SXM
        repeat: 3
        scale: 1ms
        """,
    ),
    misses=(
        # Sequence parallelism gathers instead of reducing; sharded weights look the same.
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
    ),
)
def topology(study: Study) -> Iterator[Claim]:
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
    assert study.hardware is not None
    link = study.hardware.nvlink
    if link <= FAST:
        return
    for on, speed, what in filter(None, (_split_layers(study), _copies(study))):
        timeline, wall = study.timeline, study.window.wall_ns
        spent = int(timeline.length[on].sum())
        if spent < FROM * wall or not 0 < speed < FAST:
            continue
        network = value("ai-infiniband", "bw")
        yield Claim(
            message=f"{len(on):,} {what} run for {duration(spent)} ({share(spent, wall)} of the wall) at "
            f"{speed / 1e9:,.0f} GB/s at best; this device's NVLink carries {link / 1e9:,.0f} GB/s in one direction"
            + (f", a network port {network / 1e9:,.0f} GB/s." if speed < network else "."),
            ns=spent,
            how="Which link is between these GPUs (nvidia-smi topo -m)? Put ranks that split layers on GPUs that NVLink joins, "
            "and check with NCCL_DEBUG=INFO that peer access is on.",
            fix=faster(
                study, "topology", "exchanges over NVLink", on,
                max(speed / FAST, 1 / value("gt-placement-5x", "ratio")), speed / link,
                assumes=(f"pessimistic: {FAST / 1e9:g} GB/s, optimistic: all of the link; waiting for others shrinks alike",),
            ),
            evidence=(of_operations(study, on),),
            formula=f"time x (1 - speed / link) = {spent / 1e6:,.3f} ms x (1 - {speed / 1e9:,.0f} / {link / 1e9:,.0f})",
            grade="modelled",
            doubts=() if study.run else ("one rank's trace cannot tell a slow link from waiting for another rank",),
        )  # fmt: skip


def _split_layers(study: Study) -> tuple[Int64, float, str] | None:
    """Large collectives outside of backward that come several times a step, and the speed of the fastest of them."""
    on, found, which = communicating(study)
    sizes = found.bytes[which]
    steps = max(study.repetition.count, 1)
    wanted = all_reduces(found, which) & (sizes >= LARGE)
    if study.phase.name not in ("prefill", "decode"):
        wanted &= ~in_backward(study, on) & (study.timeline.launch[on] != NONE)
    mine = np.flatnonzero(wanted)
    if len(mine) < OFTEN * steps:
        return None
    length = study.timeline.length[on[mine]]
    ranks = [found.keys[key][2] or None for key in found.key[which[mine]].tolist()]
    factor = np.array([bus_factor("allreduce", n) if n else 2.0 for n in ranks])
    speed = float(np.quantile(sizes[mine] * factor / length, 0.9)) * 1e9
    return on[mine], speed, f"all-reduces of {size(int(np.median(sizes[mine])))}"


def _copies(study: Study) -> tuple[Int64, float, str] | None:
    """Large copies between devices, and the speed of the fastest of them."""
    timeline = study.timeline
    copies = study.operations[np.isin(timeline.does[study.operations], copy_classes("PtoP"))]
    moved = study.trace.bytes[timeline.row[copies]]
    copies, moved = copies[moved >= LARGE], moved[moved >= LARGE]
    if not len(copies):
        return None
    speed = float(np.quantile(moved / np.maximum(timeline.length[copies], 1), 0.9)) * 1e9
    return copies, speed, f"copies of {size(int(np.median(moved)))} between devices"
