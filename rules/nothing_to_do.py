from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import span
from gpu_trace_advisor.reference.hardware import built_for
from gpu_trace_advisor.rulekit import wall_time
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.units import duration, percent, share

BUSY = 0.95  # of the wall in kernels: what is left between them is worth no rule
TOLD = 0.5  # of the kernels' time whose work is known: from less nothing can be said about the rest


@rule(
    title="Nothing to do on the timeline",
    cites=("tvi-gemm-peak-share", "tvi-mfu-good", "tvi-mfu-exceptional", "tvi-floor-is-hard"),
    last=True,
    fires=(
        """
        step |...................
        host ab.S==============.
        s7   .aaaaaaaaaabbbbbbbbb
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::mm [8192,8192]x[8192,8192] bf16
        device: H100 SXM
        repeat: 4
        scale: 150us
        """,
        case(
            """
        step |...................
        host ab.S==============.
        s7   .aaaaaaaaaabbbbbbbbb
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::mm [8192,8192]x[8192,8192] bf16
        repeat: 4
        scale: 150us
        """,
            "Busy, but nothing is known of the device: the timeline has nothing to gain, the kernels may have.",
        ),
        case(
            """
        step |...................
        host ab.S==============.
        s7   .aaaaaaaaaabbbbbbbbb
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::mm [8192,8192]x[8192,8192] bf16
        device: H100 SXM
        repeat: 4
        scale: 600us
        """,
            "As busy, but the kernels are far from their roofline, and no rule says why.",
        ),
    ),
    quiet=(
        case(
            """
        step |.......................................
        host PPPPPPPPPPPPPPPPPPPPab.S==============.
        s7   .....................aaaaaaaaaabbbbbbbbb
        a: aten::mm [8192,8192]x[8192,8192] bf16
        b: aten::mm [8192,8192]x[8192,8192] bf16
        device: H100 SXM
        repeat: 4
        scale: 150us
        """,
            "As good, but idle half of the time.",
        ),
        case(
            """
        step |...................
        host a.b.a.b.a.b.a.b.S=
        s7   .a.b.a.b.a.b.a.b...
        a: aten::mm [4096,4096]x[4096,4096] bf16
        b: aten::mm [4096,4096]x[4096,4096] bf16
        device: H100 SXM
        repeat: 4
        scale: 150us
        """,
            "Idle between all kernels.",
        ),
        case(
            """
        step |...................
        host ac.S==============.
        s7   .ac>>>>>>>>>>>>>>>>>
        c: Memcpy HtoD (Pinned -> Device) 64MB
        device: H100 SXM
        repeat: 4
        scale: 150us
        """,
            "Busy with copies that nothing hides.",
        ),
    ),
)
def nothing_to_do(view: DeviceWindow) -> Iterator[Claim]:
    """The device is busy nearly all the time, with kernels near what it can do, as far as that is known.

    Why it costs: it does not. What is left is less than the effort and the noise of a change.

    What to do: nothing here. Faster needs less work: fewer bytes (quantization, a smaller model), fewer FLOPs, another
    algorithm, or another device.

    How to verify: compare with the peak that --hardware assumes, and with a second recording. Where the kernels' work is not
    known, record shapes (`record_shapes=True`), or look inside them with a kernel profiler.

    When it must not fire: the device idles or copies, or another rule speaks. Where kernels are far from their roofline and
    none does, it says which of them is furthest.
    """
    window = view.window
    wall, busy = window.wall_ns, view.causes.get("unmodelled", 0)
    parts = {part.cause: part.ns for part in view.inkernel.split(window.start_ns, window.end_ns)}
    known = sum(ns for cause, ns in parts.items() if cause != "unmodelled")
    good, _ = span("tvi-gemm-peak-share", "gemm")
    ideal = parts.get("ideal", 0)
    if busy < BUSY * wall:
        return
    if known < TOLD * busy:
        yield _unknown(view, busy, known)
        return
    if ideal < good * known:
        yield from _inside(view, busy, ideal, known)
        return
    yield Claim(
        message=f"Kernels run {share(busy, wall)} of the wall, and their work alone needs "
        f"{share(ideal, known)} of that time on this device; {percent(good)} is good.",
        named=wall_time.whole(view),
        how="Nothing on the timeline: only less work, fewer bytes or another device make it faster.",
        evidence=(Evidence("kernels whose work is known", len(view.operations), known),),
        formula=f"roofline time {ideal / 1e6:,.3f} ms of {known / 1e6:,.3f} ms in kernels whose work is known",
        grade="modelled",
        unpriced="there is nothing to save",
    )


def _unknown(view: DeviceWindow, busy: int, known: int) -> Claim:
    """Nothing on the timeline; the kernels themselves are not known."""
    if view.hardware is None:
        text = f"no peaks are known for {view.device.name or 'the device'}"
    elif known:
        text = f"the work of the kernels is known for {share(known, busy)} of their time"
        text += "".join(f"; the largest unknown is {one.kernel}" for one in view.kernel_table.missing[:1])
    else:
        text = "the work of the kernels is not recorded"
    if view.hardware is None:
        likely = built_for(view.trace.names)
        how = f"--hardware tells the device: {' or '.join(likely) + ', by its kernels' if likely else 'NAME'}."
    elif view.phase.name == "decode":
        how = "With the bytes of the weights (--weights) the decode ladder says how near a pass is to its floor."
    elif view.trace.format == "nsight":
        how = "torch.profiler records shapes (record_shapes=True); Nsight Compute looks inside the longest kernels."
    elif "Input Dims" in view.trace.texts:
        how = "Look inside the longest kernels with Nsight Compute or rocprof-compute: their operators' work is not modelled."
    else:
        how = "Record shapes (record_shapes=True), or look inside the longest kernels with Nsight Compute."
    return Claim(
        title="" if view.hardware else "Nothing on the timeline; what the kernels could reach is not known",
        message=f"Kernels run {share(busy, view.window.wall_ns)} of the wall: no idle time is worth a change. Whether they are "
        f"near what the device can do cannot be told: {text}.",
        named=wall_time.whole(view),
        how=f"Nothing on the timeline. {how}",
        evidence=(Evidence("kernels", len(view.operations), busy),),
        formula=f"kernels {busy / 1e6:,.3f} ms of {view.window.wall_ns / 1e6:,.3f} ms",
        unpriced="there is nothing to save on the timeline",
    )


def _inside(view: DeviceWindow, busy: int, ideal: int, known: int) -> Iterator[Claim]:
    """Kernels are far from what the device can do, and no rule says why: which of them to look into."""
    table = view.kernel_table
    at = max(table.ranked, key=lambda at: table.rows[at].above_ns or 0, default=None)
    if at is None or not (above := table.rows[at].above_ns):
        return
    row = table.rows[at]
    yield Claim(
        title="What there is to gain lies inside the kernels",
        message=f"Kernels run {share(busy, view.window.wall_ns)} of the wall, and their work needs {share(ideal, known)} of that "
        f"time at the device's peaks. Most above what can be reached is {row.operator} {row.shape} {row.dtype}: "
        f"{duration(above)} of {duration(row.ns)}; no rule knows why.",
        ns=row.ns,
        how="Try another kernel for it (torch.compile, another library or layout), or look inside it with a kernel profiler.",
        evidence=(of_operations(view, table.operations(at), f"{row.operator} {row.shape}"),),
        formula=f"roofline time {ideal / 1e6:,.3f} ms of {known / 1e6:,.3f} ms in kernels whose work is known",
        grade="modelled",
        unpriced="whether a faster kernel exists is not known",
    )
