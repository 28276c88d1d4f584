from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.replay.fixes import FIXES
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import copy_classes, directions
from gpu_trace_advisor.trace.model import Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, share

FROM = 0.01  # of the wall
TINY = 64 * 1024  # bytes of a copy below which its fixed cost, not its memory, is what it costs
FAST = 0.5  # share of the link's rate from which pinning has nothing left to give
COHERENT = ("gh200", "gb200", "gb300", "orin")  # the GPU reads the host's memory itself: nothing to pin


@rule(
    title="Copies from pageable memory",
    cites=("ai-hierarchy", "ai-lowutil-diagnosis", "gt-nvlink-pcie"),
    fires=(
        """
        step |...................
        host cccccc.a............
        s7   ..c>>>..aaaaaaaaa...
        c: Memcpy HtoD (Pageable -> Device) 2MB
        repeat: 4
        scale: 100us
        """,
        case(
            """
        step |...................
        host c.ddddddddddddddddd.
        s7   .c>>>>>>>d>>>>>>>>..
        c: Memcpy HtoD (Pageable -> Device) 5MB
        d: Memcpy DtoH (Device -> Pageable) 5MB
        repeat: 4
        scale: 100us
        """,
            "non_blocking does not help: the driver stages pageable memory all the same.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host c.....a............
        s7   .c>>>>..aaaaaaaaa...
        c: Memcpy HtoD (Pinned -> Device) 2MB
        repeat: 4
        scale: 100us
        """,
            "Pinned already.",
        ),
        case(
            """
        step |...................
        host a.c................
        s7   .aaaaaaaaaaaaaaaaaa.
        s8   ...c>>>>............
        c: Memcpy HtoD (Pageable -> Device) 2MB
        repeat: 4
        scale: 100us
        """,
            "Hidden behind a kernel.",
        ),
        case(
            """
        step |...................
        host c.a................
        s7   .c>.aaaaaaaaaaaaaaa.
        c: Memcpy HtoD (Pageable -> Device) 1KB
        repeat: 4
        scale: 10us
        """,
            "Tiny: their number is the matter.",
        ),
        case(
            """
        step |...................
        host c.....a............
        s7   .c>>>>..aaaaaaaaa...
        c: Memcpy HtoD (Pageable -> Device) 25MB
        device: H100 SXM
        repeat: 4
        scale: 100us
        """,
            "As fast as the link: pinning has nothing to give.",
        ),
        case(
            """
        step |...................
        host cccccc.a............
        s7   ..c>>>..aaaaaaaaa...
        c: Memcpy HtoD (Pageable -> Device) 2MB
        device: gh200-96
        repeat: 4
        scale: 100us
        """,
            "The GPU reads this host's memory itself.",
        ),
    ),
)
def h2d_pageable(view: DeviceWindow) -> Iterator[Claim]:
    """Copies between host and device go through the driver's staging buffer, because their host memory is pageable.

    Why it costs: the device can only read memory that cannot be moved. From ordinary memory the driver copies piece by
    piece into a pinned buffer first; that is slower than the link, occupies the calling thread, makes `non_blocking=True`
    ineffective, and lets the two directions not overlap.

    What to do: `DataLoader(pin_memory=True)`, `tensor.pin_memory()` once for buffers that are used again, then
    `.to(device, non_blocking=True)`; results go back into a pinned buffer.

    How to verify: record again; the copies are called Pinned, their rate has gone up, and their calls return at once.

    When it must not fire: the copies are hidden behind kernels, tiny (send fewer of them), as fast as the link already, or
    the GPU shares its memory with the host.
    """
    window, timeline = view.window, view.timeline
    items = view.attribution.partition(window.start_ns, window.end_ns)
    exposed = sum(item.ns for item in items if item.cause == "exposed-copy" and item.detail.endswith("pageable"))
    if not exposed or exposed < FROM * window.wall_ns:
        return
    mine = view.operations[np.isin(timeline.op_class[view.operations], copy_classes(memory="pageable"))]
    size = view.trace.bytes[timeline.row[mine]]
    total, ns = int(size[size > 0].sum()), int(timeline.length[mine].sum())
    rate = total / ns * 1e9 if ns else 0.0
    link = view.hardware.pcie if view.hardware else value("gt-nvlink-pcie", "pcie")
    coherent = view.hardware is not None and any(word in view.hardware.key for word in COHERENT)
    if coherent or (total and (total / len(mine) < TINY or rate > FAST * link)):
        return
    moved = f"{total / 1e6:,.1f} MB at {rate / 1e9:.1f} GB/s" if total else "sizes not recorded"
    yield Claim(
        message=f"{directions(timeline.op_class[mine])} copies of pageable memory ({moved}) take "
        f"{share(exposed, window.wall_ns)} of the wall ({duration(exposed)}) that no kernel hides.",
        named={"exposed-copy": exposed}
        | wall_time.of_causes(view, "copy-staging")
        | {"host-sync": _blocked(view, mine)},
        how="Pin the host buffers: DataLoader(pin_memory=True) or tensor.pin_memory(), then .to(device, non_blocking=True); "
        "non_blocking without pinned memory does nothing."
        if is_pytorch(view.trace)
        else "Pin the host buffers (cudaMallocHost, or cudaHostRegister once), then cudaMemcpyAsync on a stream; without "
        "pinned memory it is no more asynchronous than cudaMemcpy.",
        fix=FIXES["pinned-memory"],
        evidence=(of_operations(view, mine),),
        doubts=(
            "the program registers host memory (cudaHostRegister): some recorders call that pageable although it is pinned",
        )
        if any("HostRegister" in name for name in view.trace.names)
        else (),
        formula=f"{total / 1e6:,.3f} MB in {ns / 1e6:,.3f} ms; the link carries {link / 1e9:g} GB/s a direction",
    )


def _blocked(view: DeviceWindow, copies: Int64) -> int:
    """ns that the device idles because the host was blocked in these copies."""
    calls = ascending(view.timeline.launch[copies])
    blocked = 0
    for part, ns in view.attribution.pieces.clipped(view.window.start_ns, view.window.end_ns):
        mine = (part.cause == CODE["host-sync"]) & (ns > 0)
        blocked += int(ns[mine & among(part.row, calls)].sum())
    return blocked
