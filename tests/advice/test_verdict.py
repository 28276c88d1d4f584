"""The sentence that comes first."""

from dataclasses import replace

import pytest
from gpu_trace_advisor.advice.verdict import device_label, focus, verdict
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.ranks.model import PHASES, RankRow, RankSet, Straggler
from gpu_trace_advisor.trace.model import Note
from gpu_trace_advisor.units import share

from tests.advices import MS, device, host

KERNELS = TimeSlice("compute", "unmodelled", "measured", None, "", 50 * MS)


def idle(cause: str, ns: int, detail: str = "", side: str = "host") -> TimeSlice:
    return TimeSlice("idle", cause, "measured", side, detail, ns * MS)


def copied(kind: str, ns: int) -> TimeSlice:
    return TimeSlice("copy", "exposed-copy", "measured", None, kind, ns * MS)


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        (
            (KERNELS, idle("dataloader", 30), idle("python", 20)),
            "GPU busy 50.0 % of 100.0 ms; the largest loss is the data loader: 30.0 % (30.0 ms over 2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, idle("framework", 40), idle("python", 10)),
            "GPU busy 50.0 % of 100.0 ms; the largest loss is launch overhead, mostly the host preparing operators: "
            "50.0 % (50.0 ms over 2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, idle("framework", 20), idle("python", 20), idle("launch-call", 10)),
            "GPU busy 50.0 % of 100.0 ms; the largest loss is launch overhead, mostly the host preparing operators and "
            "the host running Python: 50.0 % (50.0 ms over 2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, copied("HtoD pageable", 50)),
            "GPU busy 100.0 % of 100.0 ms; the largest loss is HtoD pageable copies that no kernel hides: 50.0 % "
            "(50.0 ms over 2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, copied("HtoD pageable", 25), copied("DtoH pinned", 25)),
            "GPU busy 100.0 % of 100.0 ms; the largest loss is copies that no kernel hides: 50.0 % (50.0 ms over 2 "
            "steps of 50.0 ms).",
        ),
        (  # the number is that of the cause named
            (KERNELS, copied("HtoD pageable", 40), copied("DtoH pageable", 5), idle("copy-staging", 5)),
            "GPU busy 95.0 % of 100.0 ms; the largest loss is HtoD pageable copies that no kernel hides: 40.0 % "
            "(40.0 ms over 2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, copied("HtoD pageable", 25), copied("DtoH pageable", 20), idle("copy-staging", 5)),
            "GPU busy 95.0 % of 100.0 ms; the largest loss is copies that no kernel hides: 45.0 % (45.0 ms over 2 "
            "steps of 50.0 ms).",
        ),
        (
            (KERNELS, idle("host-sync", 50, "blocking copy")),
            "GPU busy 50.0 % of 100.0 ms; the largest loss is the GPU drained by blocking copies: 50.0 % (50.0 ms over "
            "2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, idle("module-load", 40), idle("compile", 10)),
            "GPU busy 50.0 % of 100.0 ms; the largest loss is host stalls, mostly loading modules: 50.0 % (50.0 ms over "
            "2 steps of 50.0 ms).",
        ),
        ((KERNELS, idle("python", 1)), "GPU busy 98.0 % of 51.0 ms, nearly all of it in kernels: what to gain lies inside them."),
        (  # no loss is as large as 5 % of the wall
            (KERNELS, copied("HtoD pageable", 2), idle("queued-gap", 2), idle("host-sync", 1)),
            "GPU busy 94.5 % of 55.0 ms, nearly all of it in kernels: what to gain lies inside them.",
        ),
        (
            (KERNELS, copied("HtoD pageable", 3), idle("queued-gap", 2), idle("host-sync", 2)),
            "GPU busy 93.0 % of 57.0 ms; the largest loss is HtoD pageable copies that no kernel hides: 5.3 % (3.00 ms "
            "over 2 steps of 50.0 ms).",
        ),
        (
            (KERNELS, idle("host-unknown", 50)),
            "GPU busy 50.0 % of 100.0 ms; in 50.0 % the host did what was not recorded: record Python stacks once "
            "(with_stack=True; with nsys --python-sampling=true).",
        ),
        (
            (KERNELS, idle("device-unknown", 50, side="unlinked")),
            "GPU busy 50.0 % of 100.0 ms; in 50.0 % the GPU waited for what was not recorded: record from before the "
            "first launch until the GPU is done.",
        ),
    ],
)  # fmt: skip
def test_the_largest_loss_in_one_sentence(items: tuple[TimeSlice, ...], sentence: str) -> None:
    assert verdict([device(items)], None) == sentence


def test_what_was_not_recorded_comes_first() -> None:
    note = Note("cut", "40.0 ms wait for work that the trace does not hold; do not call this time idle", 1)
    of = device((KERNELS, idle("device-unknown", 40, side="submitted")), health=(note,))
    assert verdict([of], None) == ("Not all GPU work was recorded: 40.0 ms wait for work that the trace does not hold.")
    little = device((KERNELS, idle("device-unknown", 1, side="submitted"), idle("python", 9)), health=(note,))
    assert verdict([little], None).startswith("GPU busy")


def test_a_wait_for_ranks_that_start_late_is_not_called_communication_alone() -> None:
    note = Note("collective-outlier", "the first collective lasts 40 ms: it waits for others; it says nothing", 1)
    waits = device(
        (KERNELS, TimeSlice("communication", "exposed-communication", "measured", None, "", 50 * MS)), health=(note,)
    )
    assert verdict([waits], None) == (
        "GPU busy 100.0 % of 100.0 ms; the largest loss is communication that no kernel hides: 50.0 % (50.0 ms over 2 "
        "steps of 50.0 ms), but the first collective lasts 40 ms: it waits for others."
    )
    assert "collective" not in verdict([device((KERNELS, idle("python", 50)), health=(note,))], None)


def test_another_device_s_late_ranks_are_not_told_of_the_one_shown() -> None:
    note = Note("collective-outlier", "the first collective lasts 40 ms: it waits for others; it says nothing", 1)
    communicates = TimeSlice("communication", "exposed-communication", "measured", None, "", 50 * MS)
    shown = device((KERNELS, communicates, idle("python", 20)), rank=0)
    other = device((KERNELS, communicates), rank=1, health=(note,))
    said = verdict([shown, other], None)
    assert said.startswith("rank 0 device 0: GPU busy") and "first collective" not in said


def test_devices_alike_are_told_apart_by_their_files() -> None:
    items = (KERNELS, idle("python", 20))
    one, other = device(items, file="a.json"), device((*items, idle("framework", 5)), file="b.json")
    assert verdict([one, other], None).startswith("device 0 of b.json: GPU busy")
    assert verdict([one, replace(other, rank=1)], None).startswith("rank 1 device 0: GPU busy")


def test_without_gpu_work() -> None:
    assert verdict([], host()) == ("No GPU work was recorded in these 100.0 ms; what follows is the host's side alone.")
    assert verdict([], host(), recordings=3) == (
        f"No GPU work was recorded in any of 3 recordings; what follows is the host's side of {host().file} alone, 100.0 ms: "
        "look at the others one by one."
    )


def test_how_to_record_the_host_depends_on_the_recorder() -> None:
    items = (KERNELS, idle("host-unknown", 50))
    assert "ProfilerActivity.CPU" in verdict([device(items, operators=())], None)
    assert "NVTX" in verdict([device(items, operators=(), process=7)], None)


def test_the_rank_that_holds_the_others_up_is_looked_at() -> None:
    waits = device(
        (KERNELS, TimeSlice("communication", "exposed-communication", "measured", None, "", 50 * MS)), rank=0
    )
    late = device((KERNELS, idle("dataloader", 49)), rank=1)
    short = device((idle("dataloader", 60),), rank=2)
    assert focus([waits, late, short]) is late
    assert verdict([waits, late, short], None).startswith("rank 1 device 0: GPU busy")


@pytest.mark.parametrize(
    ("ns", "wall", "text"),
    [(0, 10, "0.0 %"), (1, 10**6, "<0.1 %"), (999_999, 10**6, ">99.9 %"), (10, 10, "100.0 %"), (1, 0, "0 %")],
)
def test_a_part_is_never_all_or_nothing(ns: int, wall: int, text: str) -> None:
    assert share(ns, wall) == text


def test_where_a_device_is() -> None:
    assert device_label(device()) == "device 0"
    assert device_label(device(rank=3, process=7, gpu=2)) == "rank 3 process 7 device 0 (GPU 2)"


def test_the_rank_that_the_others_wait_for_comes_first() -> None:
    """Although another one loses more of its own time."""
    items = (TimeSlice("compute", "unmodelled", "measured", None, "", 70 * MS), idle("python", 30))
    late, other = device(items, rank=0), replace(device((KERNELS, idle("python", 50)), rank=1), device=1)
    rows = [
        RankRow(
            rank, d.file, d.process, d.device, "", 0, 100, 100, None, 50, 0, 0, 0, 0, 0, 0, None, (), (0,) * len(PHASES)
        )
        for rank, d in enumerate((late, other))
    ]
    straggler = Straggler((0,), 10, 10, 1, 1, 0, 0, "", 0, "", None, "arrivals", 0.001, "steps")
    run = RankSet(None, tuple(rows), (), 0, 0, "clock", 0, 1, 0, 1, (), (), (straggler,), 0, 0, 0, None, None, None)
    assert focus([late, other], run) is late
    assert verdict([late, other], None, run).startswith("rank 0 device 0, which the other ranks wait for: GPU busy")
    assert focus([late, other], replace(run, stragglers=())) is other
