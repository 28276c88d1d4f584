from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import CODE
from gpu_trace_advisor.columns.codes import among
from gpu_trace_advisor.columns.intervals import Intervals, ascending, clip, subtract, total
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.replay.fixes import FIXES
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.repeats import repeats
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.timelines.device import COMMUNICATION, copy_classes, covered, directions
from gpu_trace_advisor.timelines.host import HostActivity
from gpu_trace_advisor.trace.model import Bool, Int64
from gpu_trace_advisor.trace.software import is_pytorch
from gpu_trace_advisor.units import duration, moved_at, share

FROM = 0.01  # of the wall
TINY = 64 * 1024  # bytes of a copy below which its fixed cost, not its memory, is what it costs
FAST = 0.5  # share of the link's rate from which pinning has nothing left to give
LOADS = 4  # a repeat with so many times the usual time in copies loads something beside its input
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

    What is copied once (weights, a result) gains nothing: page-locking memory costs about as much as the copy. Create it on
    the device, or load it piece by piece beside other work.

    How to verify: record again; the copies are called Pinned, their rate has gone up, and their calls return at once.

    When it must not fire: the copies are hidden behind kernels, tiny (send fewer of them), as fast as the link already, or
    the GPU shares its memory with the host.
    """
    window, timeline = view.window, view.timeline
    copies = view.operations[np.isin(timeline.op_class[view.operations], copy_classes(memory="pageable"))]
    if _exposed(view, copies) < FROM * window.wall_ns or not len(copies) or not _pinning_helps(view, copies):
        return
    mine, spans = _recurring(view, copies)
    again = _exposed(view, mine)
    if again < FROM * window.wall_ns:
        yield _once(view, copies)
        return
    rate = moved_at(*_bytes(view, mine))
    yield Claim(
        message=f"{directions(timeline.op_class[mine])} of pageable memory, {rate}: "
        f"{share(again, window.wall_ns)} of the wall ({duration(again)}) that no kernel hides.",
        named={"exposed-copy": again}
        | wall_time.of_idle(view, spans, ("copy-staging",))
        | {"host-sync": _blocked(view, mine)},
        how=_how(view),
        fix=FIXES["pinned-memory"],
        evidence=(of_operations(view, mine),),
        doubts=(
            "the program registers host memory (cudaHostRegister): some recorders call that pageable although it is pinned",
        )
        if any("HostRegister" in name for name in view.trace.names)
        else (),
        formula=f"{rate}; the link carries {_link(view) / 1e9:g} GB/s a direction",
    )


def _once(view: DeviceWindow, copies: Int64) -> Claim:
    """Of copies that come once."""
    timeline, exposed = view.timeline, _exposed(view, copies)
    kernels = view.operations[timeline.op_class[view.operations] <= COMMUNICATION]
    before = not len(kernels) or timeline.start[copies].max() <= timeline.start[kernels].min()
    when = "before the first kernel" if before else "once"
    return Claim(
        title="Pageable memory is copied once",
        message=f"{directions(timeline.op_class[copies])} of pageable memory, {moved_at(*_bytes(view, copies))}: "
        f"{share(exposed, view.window.wall_ns)} of the wall ({duration(exposed)}), {when}: that is start-up, or a result.",
        named={"exposed-copy": exposed},
        how="Create weights on the device, or load them from a mapped file piece by piece beside other work "
        "(safetensors); record the steady state to see what each repeat costs."
        if is_pytorch(view.trace)
        else "Initialise on the device what need not come from the host; record several repeats to see what each costs.",
        evidence=(of_operations(view, copies),),
        formula=f"time in which these copies run and no kernel does: {exposed / 1e6:,.3f} ms",
        unpriced="page-locking memory that is copied once costs about what it saves",
    )


def _recurring(view: DeviceWindow, copies: Int64) -> tuple[Int64, Intervals]:
    """The copies that each repeat of the window makes again, and the spans of these repeats: of those with copies all but
    those that spend many times the usual time in them. None where only one repeat copies."""
    spans, timeline = repeats(view).spans, view.timeline
    ns = covered(spans, timeline.union_of(_mask(view, copies)))
    usual = LOADS * np.median(ns[ns > 0]) if (ns > 0).any() else 0
    kept = (ns > 0) & (ns <= usual)
    if kept.sum() < 2:
        return copies[:0], Intervals(spans.start[:0], spans.end[:0])
    spans = Intervals(spans.start[kept], spans.end[kept])
    at = np.searchsorted(spans.start, timeline.start[copies], side="right") - 1
    return copies[(at >= 0) & (timeline.start[copies] < spans.end[np.maximum(at, 0)])], spans


def _mask(view: DeviceWindow, operations: Int64) -> Bool:
    found = np.zeros(len(view.timeline.row), np.bool_)
    found[operations] = True
    return found


def _exposed(view: DeviceWindow, copies: Int64) -> int:
    """ns of the window in which these copies run and no kernel does."""
    timeline = view.timeline
    mine = clip(timeline.union_of(_mask(view, copies)), view.window.start_ns, view.window.end_ns)
    return total(subtract(mine, timeline.union_of(timeline.op_class <= COMMUNICATION)))


def _bytes(view: DeviceWindow, copies: Int64) -> tuple[int, int]:
    """Of these copies, and in how many ns; 0 where the recording has no sizes."""
    size = view.trace.bytes[view.timeline.row[copies]]
    return int(size[size > 0].sum()), int(view.timeline.length[copies].sum())


def _link(view: DeviceWindow) -> float:
    return view.hardware.pcie if view.hardware else value("gt-nvlink-pcie", "pcie")


def _pinning_helps(view: DeviceWindow, copies: Int64) -> bool:
    """Not where the GPU reads the host's memory itself, copies are tiny, or as fast as the link already."""
    if view.hardware is not None and any(word in view.hardware.key for word in COHERENT):
        return False
    moved, ns = _bytes(view, copies)
    return not moved or not ns or (moved / len(copies) >= TINY and moved / ns * 1e9 <= FAST * _link(view))


def _how(view: DeviceWindow) -> str:
    if not is_pytorch(view.trace):
        return (
            "Keep on the device what the host only passes on. Pin the other host buffers (cudaMallocHost, or cudaHostRegister "
            "once), then cudaMemcpyAsync on a stream; without pinned memory it is no more asynchronous than cudaMemcpy."
        )
    loads = bool((view.timeline.host.doing == HostActivity.DATALOADER).any())
    pins = "DataLoader(pin_memory=True)" if loads else "tensor.pin_memory() once for each buffer that is used again"
    return f"Pin the host buffers: {pins}, then .to(device, non_blocking=True); non_blocking without pinned memory does nothing."


def _blocked(view: DeviceWindow, copies: Int64) -> int:
    """ns that the device idles because the host was blocked in these copies."""
    calls = ascending(view.timeline.launch[copies])
    blocked = 0
    for part, ns in view.attribution.pieces.clipped(view.window.start_ns, view.window.end_ns):
        mine = (part.cause == CODE["host-sync"]) & (ns > 0)
        blocked += int(ns[mine & among(part.row, calls)].sum())
    return blocked
