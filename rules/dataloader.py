import re
from collections.abc import Iterator

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.replay.fixes import FIXES
from gpu_trace_advisor.rulekit.evidence import of_causes
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.units import duration, share, times

WORKERS = re.compile(r"MultiProcessingDataLoaderIter|_utils/worker\.py|_worker_loop|pin_memory_loop|data_worker")
"""Names that only a loader with worker processes leaves."""
FROM = 0.03  # of the wall: less is the cost of fetching a ready batch, which no loader avoids


@rule(
    title="The data loader does not keep up",
    cites=("tvi-lever-dataloading", "tvi-dataloader-symptom", "ai-storage-rate", "tvi-check-utilisation-first"),
    needs=("host",),
    fires=(
        """
        step |.........
        host DDDDD.a.b.
        s7   .......aabb
        repeat: 4
        scale: 100us
        """,
        """
        host PDDDDDDa.b
        s7   .......aab
        D: my_data.py(12): next_batch
        repeat: 3
        scale: 1ms
        """,
    ),
    quiet=(
        case(
            """
        step |.........
        host a.DDDDDDD.
        s7   .aaaaaaaaa
        repeat: 4
        scale: 100us
        """,
            "Loading is hidden behind work that was queued before it.",
        ),
        case(
            """
        step |...................................................
        host Da.b.c.d.e.f......................................S
        s7   ..aaaaaaaabbbbbbbbbccccccccccddddddddeeeeeeeefffff.
        repeat: 4
        scale: 100us
        """,
            "Fetching a batch that is ready.",
        ),
        case(
            """
        step |.........
        host PPPPP.a.b.
        s7   .......aabb
        repeat: 4
        scale: 100us
        """,
            "Idle as well, but it is the host's own Python.",
        ),
    ),
    misses=(
        case(
            """
        step |.........
        host .......a.b
        s7   ........ab
        repeat: 4
        scale: 1ms
        """,
            "Loader work outside any record that says so: a hole of the same length each step.",
        ),
    ),
)
def dataloader(view: DeviceWindow) -> Iterator[Claim]:
    """The device waits at the start of each step because the next batch is not there yet.

    Why it costs: the loop asks for a batch, the loader still reads, decodes or augments it, and nothing is launched in
    the meantime. With `num_workers=0` it happens in the training process itself, one batch after the other.

    What to do: `DataLoader(num_workers=…, prefetch_factor=…, persistent_workers=True, pin_memory=True)`, with as many
    workers as one step needs to make a batch. Where workers cannot keep up, decode and augment on the GPU (DALI, nvJPEG,
    torchvision v2 transforms), store the samples ready to use, or read from faster storage.

    How to verify: record again; the data loader's part of the wall should be gone and the step as long as its GPU work.

    When it must not fire: the loader runs while queued work keeps the device busy, or hands out a batch that is ready.
    """
    wall, lost = view.window.wall_ns, view.causes.get("dataloader", 0)
    if lost < FROM * wall:
        return
    evidence = of_causes(view, "dataloader")
    rate = value("ai-storage-rate", "rate")
    yield Claim(
        message=f"The GPU is idle for {share(lost, wall)} of the wall ({duration(lost)}) while the data loader prepares "
        f"batches, {times(evidence[0].count)}.",
        named={"dataloader": lost},
        how=_how(view, evidence[0].what),
        fix=FIXES["dataloader"],
        particular=True,
        evidence=evidence,
        formula=f"idle time inside loader calls, {lost / 1e6:,.3f} ms of {wall / 1e6:,.3f} ms; reading a sample should not "
        f"be the limit from {rate / 1e9:g} GB/s a GPU",
    )


def _how(view: DeviceWindow, record: str) -> str:
    """More workers only where there are some, in the window or outside."""
    if any(WORKERS.search(name) for name in view.trace.names):
        return "Raise num_workers and prefetch_factor of the DataLoader; decode and augment on the GPU if the CPU cannot keep up."
    if "SingleProcess" in record or any("SingleProcess" in name for name in view.trace.names):
        return "Batches are made in the training process: give DataLoader num_workers > 0, persistent_workers and pin_memory."
    return (
        "Prepare batches ahead of the step, in other threads or processes (a DataLoader with num_workers > 0, "
        "persistent_workers and pin_memory), or decode and augment on the GPU."
    )
