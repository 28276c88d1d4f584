"""The causes that wall time is split into: what each is called, what it means, and how it is told from the others.

The one table of them: reports, verdicts, budgets, the schema and the pages of `--explain` read it.
"""

from __future__ import annotations

from gpu_trace_advisor.runtime.classes import dataclass


@dataclass(frozen=True)
class Category:
    """What people ask for: causes that belong together."""

    name: str
    label: str
    """As a row of a table calls it."""
    phrase: str
    """In a sentence: continues "the largest loss is"."""


@dataclass(frozen=True)
class Cause:
    """Why wall time passed."""

    name: str
    when: str
    """What the device was doing: compute, communication, copy or idle."""
    category: str
    label: str
    """As a row of a table calls it."""
    phrase: str
    """In a sentence: continues "the largest loss is"."""
    meaning: str
    measured: str
    """How the time is told from that of other causes."""


CATEGORIES = {
    category.name: category
    for category in (
        Category("useful", "roofline time", "kernels at their roofline"),
        Category("memory-bubbles", "kernel ramp-up", "kernel ramp-up"),
        Category("activation-round-trips", "avoidable intermediates", "intermediates written and read again"),
        Category("kernel-inefficiency", "time above roofline", "kernels above their roofline time"),
        Category("kernel-time", "kernels", "kernels"),
        Category("communication", "communication", "communication"),
        Category("copies", "copies", "copies"),
        Category("dataloader-gaps", "data loader", "the data loader"),
        Category("implicit-barriers", "synchronization", "waiting at synchronizations"),
        Category("launch-overhead", "launch overhead", "launch overhead"),
        Category("host-stalls", "host stalls", "host stalls"),
        Category("profiler", "profiler", "the profiler itself"),
        Category("unattributed", "not recorded", "what was not recorded"),
    )
}

CAUSES = {
    cause.name: cause
    for cause in (
        Cause(
            "ideal", "compute", "useful", "roofline time", "kernels at their roofline",
            "The least time that a kernel's arithmetic, or the bytes that it has to move, take on this GPU.",
            "Modelled: the larger of FLOPs by the GPU's dense peak and compulsory bytes by its memory bandwidth.",
        ),
        Cause(
            "tail", "compute", "implicit-barriers", "wave quantization (tail)", "SMs idle in the last wave of a kernel",
            "SMs without a block while the last blocks of a kernel finish.",
            "Modelled: blocks of the launch, how many fit on the GPU at once, and the kernel's length.",
        ),
        Cause(
            "ramp", "compute", "memory-bubbles", "kernel ramp-up", "kernels ramping up",
            "The start of a kernel, before its memory pipeline is full.",
            "Modelled: one latency of the GPU's memory for each kernel that moves data.",
        ),
        Cause(
            "activation-traffic", "compute", "activation-round-trips", "avoidable intermediates",
            "intermediates written and read again",
            "A tensor that one kernel writes and the next one reads: fused, it would stay on the chip.",
            "Modelled: its bytes, both ways, at the memory bandwidth.",
        ),
        Cause(
            "inefficiency", "compute", "kernel-inefficiency", "time above roofline", "kernels above their roofline time",
            "What a kernel takes beyond its roofline time, its ramp-up, its tail and its avoidable intermediates.",
            "Modelled: what is left of the measured time.",
        ),
        Cause(
            "unmodelled", "compute", "kernel-time", "kernels, not modelled", "kernels",
            "Kernels that the recording says too little about (shapes, the GPU's peaks) to hold them against a roofline.",
            "Measured: time in which a kernel runs that is no communication.",
        ),
        Cause(
            "exposed-communication", "communication", "communication", "exposed communication",
            "communication that no kernel hides",
            "Collectives and transfers between GPUs while no other kernel runs; waiting for slower ranks is part of it.",
            "Measured: kernels that are communication by their name, where no other kernel runs.",
        ),
        Cause(
            "exposed-copy", "copy", "copies", "exposed copies", "copies that no kernel hides",
            "Copies while no kernel runs.",
            "Measured: where copies run and kernels do not; of several at once to-device comes first, then to-host, between "
            "devices, on the device.",
        ),
        Cause(
            "memset", "copy", "copies", "exposed memory sets", "memory sets",
            "Memory being set to a value while neither kernel nor copy runs.",
            "Measured: where sets run alone.",
        ),
        Cause(
            "migration", "copy", "copies", "exposed page migrations", "pages of managed memory migrating",
            "Pages of managed memory (cudaMallocManaged) moving between host and GPU while no kernel runs.",
            "Measured: copies that the recorder calls unified-memory migrations, where no kernel and no other copy runs.",
        ),
        Cause(
            "dataloader", "idle", "dataloader-gaps", "data loader", "the data loader",
            "The launching thread fetched the next batch, and the GPU had nothing queued.",
            "Measured: idle time before the next launch, inside a record of a loader (`enumerate(DataLoader)…`, frames of "
            "torch.utils.data, ranges such as `next_batch`).",
        ),
        Cause(
            "host-sync", "idle", "implicit-barriers", "host sync: GPU queue drained", "the GPU drained by synchronizations",
            "The host waited for the GPU to finish everything, which left the GPU without work until the next launch.",
            "Measured inside the blocking call; modelled after it: host time that refills the queue, as long as the call "
            "had waited for running work.",
        ),
        Cause(
            "host-poll", "idle", "implicit-barriers", "host polling the GPU", "the host polling for results of the GPU",
            "The host looks at memory or at an event over and over until the GPU is done, then launches the next operation.",
            "Modelled: launches that follow the end of the same kernel each time within microseconds, without a blocking "
            "call; or calls that ask for an event's state.",
        ),
        Cause(
            "dependency-wait", "idle", "implicit-barriers", "stream dependencies", "streams waiting for each other",
            "A submitted operation waited for work of another stream, or for an event.",
            "Modelled: submitted, its stream idle when the gap began, no longer than what usual waits take.",
        ),
        Cause(
            "framework", "idle", "launch-overhead", "host: operator overhead", "the host preparing operators",
            "The framework's own CPU work around a launch: dispatch, shape checks, autograd.",
            "Measured: idle time before the next launch, innermost in an operator that launches.",
        ),
        Cause(
            "python", "idle", "launch-overhead", "host: Python", "the host running Python",
            "Python code between operators on the launching thread.",
            "Measured where frames are recorded; else modelled: holes of up to 1 ms between the operators of a thread.",
        ),
        Cause(
            "cpu-compute", "idle", "host-stalls", "computing on the CPU", "computing on the CPU",
            "An operator worked on CPU tensors, for itself: it launches nothing, and the GPU waits for it.",
            "Measured: idle time before the next launch, inside a long operator that launches nothing.",
        ),
        Cause(
            "launch-call", "idle", "launch-overhead", "host: launch calls", "the host inside launch calls",
            "The CPU time of runtime calls (cudaLaunchKernel and the like).",
            "Measured: idle time inside a runtime call, beyond the usual launch latency.",
        ),
        Cause(
            "launch-latency", "idle", "launch-overhead", "launch latency", "the latency of launches",
            "From the start of a launch call until its operation starts on an idle GPU.",
            "Measured: up to the median of launches into an idle GPU.",
        ),
        Cause(
            "queued-gap", "idle", "launch-overhead", "inter-kernel gaps", "gaps between queued kernels",
            "Between two operations of a stream, the second of which was queued in time.",
            "Measured: up to 20 median gaps, at least 50 µs, at most 200 µs.",
        ),
        Cause(
            "copy-staging", "idle", "copies", "staging of pageable copies", "filling staging buffers of copies",
            "A copy call moved pageable memory into a pinned buffer before the copy itself could run.",
            "Modelled: a copy call that the GPU waits for over 50 µs and that waits for no running work.",
        ),
        Cause(
            "page-fault", "idle", "copies", "page faults of managed memory", "page faults of managed memory",
            "Pages of managed memory moved because somebody touched them, one fault after the other, between copies that "
            "take microseconds.",
            "Measured where the recorder lists the faults; else modelled: gaps between migrations that follow each other.",
        ),
        Cause(
            "allocator", "idle", "host-stalls", "memory allocation", "allocating memory",
            "Calls that allocate or free memory, on the device or pinned on the host; freeing waits for the GPU.",
            "Measured: idle time inside such a call.",
        ),
        Cause(
            "module-load", "idle", "host-stalls", "loading modules", "loading modules",
            "Code being loaded, or contexts, streams, events and libraries being created, mostly at first use.",
            "Measured inside such calls; modelled for the first launch of a kernel that takes 200 µs more than usual.",
        ),
        Cause(
            "compile", "idle", "host-stalls", "compiling", "compiling",
            "torch.compile, Triton or NVRTC compiling while the GPU waits.",
            "Measured: idle time inside frames, ranges or calls of a compiler.",
        ),
        Cause(
            "graph-capture", "idle", "host-stalls", "capturing graphs", "capturing CUDA graphs",
            "Launches recorded into a CUDA graph run nothing; capturing and instantiating happen once, at start-up.",
            "Measured: idle time between the begin and the end of a stream capture, and in calls that instantiate a graph.",
        ),
        Cause(
            "garbage-collection", "idle", "host-stalls", "garbage collection", "Python's garbage collection",
            "Python's cyclic garbage collector ran on the launching thread.",
            "Measured: idle time inside a record of it.",
        ),
        Cause(
            "failed-call", "idle", "host-stalls", "failed calls", "calls that failed",
            "Runtime calls returned an error: what follows in the recording is what a failing program did.",
            "Measured: idle time inside calls that the recorder says returned an error.",
        ),
        Cause(
            "profiler", "idle", "profiler", "the profiler itself", "the profiler itself",
            "Starting, stopping or flushing the recording; a run without it does not have this.",
            "Measured: idle time inside records of the profiler.",
        ),
        Cause(
            "host-unknown", "idle", "unattributed", "host work not recorded", "the host doing what was not recorded",
            "Nothing was launched, and no record says what the launching thread did; at most in which system call it was, or for "
            "which lock or queue it waited.",
            "Measured: idle time before the next launch without a record of its thread.",
        ),
        Cause(
            "device-unknown", "idle", "unattributed", "GPU wait not recorded", "waiting for what was not recorded",
            "An operation was submitted, or was launched by nothing in the recording, and nothing explains its wait.",
            "Measured: idle time before operations without a launch, and what exceeds usual waits after a launch.",
        ),
    )
}  # fmt: skip

BUSY = tuple(cause.name for cause in CAUSES.values() if cause.when != "idle")
IDLE = tuple(cause.name for cause in CAUSES.values() if cause.when == "idle")
CODE = {cause: code for code, cause in enumerate(IDLE)}


def label(cause: str, detail: str = "") -> str:
    """A cause as a row of a table calls it, with what its detail (the direction of copies, what blocked) adds."""
    if cause == "exposed-copy" and detail:
        return f"exposed copies {detail}"
    if cause == "host-sync" and detail == BLOCKING_COPY:
        return "host sync: blocking copies"
    if cause == "host-unknown" and detail == SYSTEM_CALL:
        return "host: system calls"
    if cause == "host-unknown" and detail == WAITING:
        return "host: waiting"
    return CAUSES[cause].label


def phrase(cause: str, detail: str = "") -> str:
    """A cause in a sentence, likewise."""
    if cause == "exposed-copy" and detail:
        return f"{detail} copies that no kernel hides"
    if cause == "host-sync" and detail == BLOCKING_COPY:
        return "the GPU drained by blocking copies"
    if cause == "host-unknown" and detail == SYSTEM_CALL:
        return "the host inside system calls"
    if cause == "host-unknown" and detail == WAITING:
        return "the host waiting for something else"
    return CAUSES[cause].phrase


SYNC, BLOCKING_COPY = "sync", "blocking copy"  # what drained the GPU, as the detail of host-sync says it
SYSTEM_CALL = "system call"  # detail of host-unknown: a record of the operating system's calls says where, if not why
WAITING = "waiting"  # likewise: a function of Python that waits for a lock, a queue or the clock
