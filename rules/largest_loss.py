from collections import Counter
from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.largest_loss import KERNELS
from gpu_trace_advisor.analysis.largest_loss import largest_loss as find_loss
from gpu_trace_advisor.attribution.causes import CATEGORIES, SYSTEM_CALL, WAITING, phrase
from gpu_trace_advisor.columns.intervals import clip, total
from gpu_trace_advisor.rulekit.evidence import mostly, of_causes, of_operations
from gpu_trace_advisor.rulekit.rule import Claim, Evidence, case, rule
from gpu_trace_advisor.timelines.device import COMMUNICATION, FIRST_COPY, SET
from gpu_trace_advisor.units import duration, share

FROM = 0.05  # of the wall: of less the first sentence does not speak either

PYTORCH = "record Python stacks once (with_stack=True)"
OPERATORS = "record operators of the threads that launch (ProfilerActivity.CPU)"
NSYS = "record with --python-sampling=true or NVTX ranges around its parts"

TO_DO = {
    "exposed-communication": "Give the traces of all ranks together (advise FOLDER): they tell moving bytes from waiting for a "
    "slower rank. --phase tells what hides it: buckets and prefetch in training, a fused or one-shot collective in inference.",
    "exposed-copy": "Look at where the copies come from: keep on the GPU what is copied back and forth, and copy the next "
    "input on a stream of its own while this one is worked on.",
    "memset": "Look at what clears memory: zero_grad(set_to_none=True), torch.empty where all of it is written anyway.",
    "host-sync": "Look at the calls named here; what they wait for has no work queued behind it. Read the value later, or "
    "launch what does not depend on it first.",
    "dependency-wait": "Look at the events and streams named here: wait for the operation needed, not for all of a stream.",
    "launch-call": "Look at the calls named here: a full queue, a lock, or a slow way to the driver (WSL, MPS, a debugger).",
    "launch-latency": "Launch earlier: each launch meets an idle GPU, so that its way there is waited for.",
    "queued-gap": "Fewer, larger operations: the pause between two that are queued is the GPU's own.",
    "allocator": "Allocate before the loop and keep the memory: PYTORCH_ALLOC_CONF=expandable_segments:True.",
    "garbage-collection": "gc.freeze() after start-up and gc.collect() by hand between steps, not in the middle of one.",
    "graph-capture": "Capturing happens once: record after it, and what the graphs save shows. Where it comes again, a shape "
    "changes: pad to few shapes, or capture one graph for each ahead.",
    "failed-call": "Look at the calls that failed first: what was recorded after them says little.",
    "profiler": "Record less at once (no stacks, no memory, no shapes), or fewer steps: this time is the recorder's.",
    "host-unknown": "Record what the host did.",
    "device-unknown": "Record from before the first launch until the GPU is done.",
}
"""What to look at, by the cause that takes most of the loss."""
REPEATING = "Fewer, larger operations: torch.compile fuses them, a larger batch gives each more to do."
ONCE = "What runs once is not worth a graph: record steps that repeat, marked by profiler.step() or an NVTX range."
PREPARING = {"framework": "Look at the operators named here.", "python": "Look at the lines named here."}
"""What prepares launches, by whether they come again."""
ELSE = "Look at the records named here, in a viewer: --format perfetto writes the timeline with its causes."


@rule(
    title="The largest loss",
    answers=True,
    fires=(
        case(
            """
        host a...........................b.S====..
        s7   .aaaaaa......................bbbbbb..
        scale: 1ms
        """,
            "Nothing says what the host did.",
        ),
    ),
    quiet=(
        case(
            """
        step |...................
        host ab.S==============.
        s7   .aaaaaaaaaabbbbbbbbb
        repeat: 4
        scale: 150us
        """,
            "Kernels fill the wall.",
        ),
        case(
            """
        step |........................................
        host a..................b.S==================
        s7   .aaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbb
        repeat: 4
        scale: 100us
        """,
            "The pauses take less than 5 %.",
        ),
    ),
)
def largest_loss(view: DeviceWindow) -> Iterator[Claim]:
    """What takes most of the wall besides kernels, where no other rule knows what to do about it.

    Why it costs: the GPU does nothing useful meanwhile.

    What to do: look at what is named here. No change of the timeline that this tool knows gives it back, or the recording
    lacks what would tell.

    How to verify: record again with what is missing; then another rule speaks, or the time is gone.

    When it must not fire: another rule speaks of at least half of the loss, kernels fill the wall, or it is below 5 %.
    """
    window = view.window
    loss = find_loss(view.items, total(clip(view.timeline.busy, window.start_ns, window.end_ns)))
    if loss is None or loss[0] == KERNELS or loss[1] < FROM * window.wall_ns:
        return
    category, ns = loss
    named, parts = Counter[str](), Counter[tuple[str, str]]()
    for item in view.items:
        if item.category == category and item.when != "compute":
            named[item.cause] += item.ns
            parts[item.cause, item.detail if item.when == "idle" else ""] += item.ns
    ((most, detail), most_ns), *_ = parts.most_common()
    what = phrase(most, detail)
    evidence = _evidence(view, category, most)
    known = evidence and evidence[0].count and evidence[0].what != "nothing recorded"
    rests = f", {mostly(evidence[0], most_ns)} × {evidence[0].count:,}" if known else ""
    yield Claim(
        title=f"The largest loss: {what if detail == WAITING else CATEGORIES[category].phrase}",
        message=f"{what[0].upper()}{what[1:]}: {share(most_ns, window.wall_ns)} of the wall "
        f"({duration(most_ns)}){rests}. No rule knows a change that would give it back.",
        named=named,
        how=_how(view, most, detail),
        evidence=evidence,
        formula=f"{CATEGORIES[category].label}: {ns / 1e6:,.3f} of {window.wall_ns / 1e6:,.3f} ms",
        grade="measured",
    )


def _how(view: DeviceWindow, cause: str, detail: str) -> str:
    if detail == WAITING:
        return (
            "Look at what it waits for: without requests a server idles by nature; what another thread or process prepares "
            "can be prepared ahead."
        )
    if detail == SYSTEM_CALL:
        return f"Look at what makes these system calls (a lock, a file, printing, waiting for another process): {NSYS}."
    if cause == "host-unknown":
        how = NSYS if view.trace.format == "nsight" else PYTORCH if view.operators_recorded else OPERATORS
        return f"Find out what the host does there: {how}."
    if cause in PREPARING:
        return f"{PREPARING[cause]} {REPEATING if view.repetition.enough else ONCE}"
    return TO_DO.get(cause, ELSE)


def _evidence(view: DeviceWindow, category: str, cause: str) -> tuple[Evidence, ...]:
    """The operations or host records that the loss rests on."""
    op_class = view.timeline.op_class[view.operations]
    if category == "communication":
        mine = view.operations[op_class == COMMUNICATION]
    elif category == "copies":
        mine = view.operations[(op_class >= FIRST_COPY) & (op_class <= SET)]
    else:
        return of_causes(view, cause)
    return (of_operations(view, mine),) if len(mine) else of_causes(view, cause)
