"""The terminal view: exact lines, and what no trace can make it do."""

import dataclasses
import re
import unicodedata

import pytest
from gpu_trace_advisor.advice.model import WhatIf
from gpu_trace_advisor.analysis.summary import CopyTime, Gap, GapPart, KernelTime, Launches, MemoryUse, OwnerTime
from gpu_trace_advisor.attribution import TimeSlice
from gpu_trace_advisor.report.text.page import render
from gpu_trace_advisor.report.text.terminal import bar, clip, columns, encodable, wrapped
from gpu_trace_advisor.report.wording import ms
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.trace.model import Note
from gpu_trace_advisor.units import duration, percent, size
from hypothesis import given
from hypothesis import strategies as st

from tests.advices import MS, advice, device, host


def shown(*devices: object, width: int = 80, **changes: object) -> list[str]:
    return render(advice(*devices, **changes), color=False, width=width).splitlines()  # type: ignore[arg-type]


def section(lines: list[str], title: str) -> list[str]:
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return lines[start:end]


def test_the_verdict_comes_first() -> None:
    lines = shown(device())
    assert lines[:3] == [
        "GPU busy 56.0 % of 100.0 ms; the largest loss is the data loader: 30.0 %",
        "(30.0 ms over 2 steps of 50.0 ms).",
        "",
    ]


def test_what_was_read() -> None:
    assert section(shown(device()), "File") == [
        "File     run.json",
        "Recorder torch.profiler (CUDA 12080), 300 events",
        "Device   device 0, NVIDIA H100",
        "Window   100.0 ms, all 2 marked steps",
        "Steps    2, median 50.0 ms, from 50.0 ms to 50.0 ms; GPU work of one 28.0 ms",
    ]


def test_the_wall_time_in_parts() -> None:
    assert section(shown(device()), "WHERE") == [
        "WHERE THE TIME WENT  of 100.0 ms; measured unless marked modelled",
        "GPU busy                       56.0 ms   56.0 %  ████████▍",
        "  kernels, not modelled        50.0 ms   50.0 %  ███████▌",
        "  exposed copies HtoD pageable  6.0 ms    6.0 %  ▉",
        "GPU idle                       44.0 ms   44.0 %  ██████▋",
        "  data loader                  30.0 ms   30.0 %  ████▌            host",
        "  launch overhead              14.0 ms   14.0 %  ██▏",
        "    host: operator overhead     8.0 ms    8.0 %  █▎               host",
        "    host: Python                4.0 ms    4.0 %  ▋                host, modelled",
        "    launch latency              2.0 ms    2.0 %  ▎                submitted",
        "  Idle time: 95.5 % host-bound, 4.5 % waiting on device.",
        "  Critical path: kernels 70.0 %, data loader 30.0 %.",
    ]


def test_gaps_kernels_modules_copies_launches_memory() -> None:
    lines = shown(device())
    assert section(lines, "LARGEST") == [
        "LARGEST GAPS  and where they are, from the trace's first event",
        "  32.0 ms  at 2.5 ms: data loader 30.0 ms; in next(loader); then Memcpy HtoD;",
        "           from train.py(7): main",
    ]
    assert section(lines, "MODULES")[2:] == ["  Linear      2          20  50.00  100.0 %"]
    assert section(lines, "KERNELS")[1:3] == [
        "  name                    class  calls     ms    share",
        "  ampere_sgemm_128x64_tn   gemm     20  50.00  100.0 %",
    ]
    assert section(lines, "COPIES")[1:] == [
        "  kind           calls     ms     size  GB/s",
        "  HtoD pageable      1  6.000  60.0 MB  10.0",
    ]
    assert section(lines, "LAUNCHES")[1:] == [
        "  21 calls launched 21 operations.",
        "  Blocking calls: 2 syncs, 1 copy.",
        "  Medians: launch to start on an idle GPU 6.0 µs, gap in a full queue 1.0 µs.",
    ]
    assert section(lines, "MEMORY")[1:] == [
        "  Device 0: peak 1.00 GiB allocated, 2.00 GiB reserved, 0 B at the start.",
    ]


def test_devices_that_only_their_files_tell_apart() -> None:
    lines = shown(device(file="run-a.json.gz"), device(file="run-b.json.gz"), device(device=1, file="run-b.json.gz"))
    table = section(lines, "DEVICES")[2:]
    assert [line.split("  ")[1].strip() for line in table] == ["…a", "…b dev 0", "dev 1"]
    assert section(lines, "DETAIL")[1].startswith("Device   device 0 of run-a.json.gz, ")


def test_unknown_is_not_zero() -> None:
    text = "\n".join(
        shown(
            device(
                copies=(CopyTime("DtoD", 1, MS, None),), launch_latency_ns=0, queued_gap_ns=None, name="",
                memory=MemoryUse(0, None, None, None),
            )
        )
    )  # fmt: skip
    assert re.search(r"DtoD +1 +1\.000 +unknown +unknown", text)
    assert "idle GPU unknown, gap in a full queue unknown" in " ".join(text.split())
    assert "name not recorded" in text
    unknown = shown(device(name="", peaks="its peaks are not known (--hardware NAME)"))
    assert "Device   device 0, name not recorded; its peaks are not known (--hardware NAME)" in unknown
    assert "MEMORY" not in text


def test_what_was_not_recorded_says_how_to_record_it() -> None:
    items = (
        TimeSlice("compute", "unmodelled", "measured", None, "", 50 * MS),
        TimeSlice("idle", "host-unknown", "measured", "host", "", 30 * MS),
        TimeSlice("idle", "device-unknown", "measured", "unlinked", "", 20 * MS),
    )
    text = " ".join(" ".join(shown(device(items, operators=()))).split())
    assert "host work not recorded" in text
    assert "To see what the host did: record operators (ProfilerActivity.CPU)." in text
    assert "To see what the GPU waited for: record from before the first launch until the GPU is done." in text
    assert "unattributed" not in text.lower()


def test_small_causes_share_a_line_and_parts_still_add_up() -> None:
    small = tuple(
        TimeSlice("idle", cause, "measured", "host", "", 20_000) for cause in ("python", "compile", "framework")
    )
    lines = section(
        shown(device((TimeSlice("compute", "unmodelled", "measured", None, "", 100 * MS), *small))), "WHERE"
    )
    assert [line.split() for line in lines if "smaller" in line] == [
        ["3", "smaller", "causes", "0.1", "ms", "<0.1", "%", "▏"]
    ]


def test_several_ranks_in_a_table_then_the_one_to_look_at() -> None:
    waits = (
        TimeSlice("compute", "unmodelled", "measured", None, "", 50 * MS),
        TimeSlice("communication", "exposed-communication", "measured", None, "", 50 * MS),
    )
    late = (*waits[:1], waits[1]._replace(ns=10 * MS), TimeSlice("idle", "dataloader", "measured", "host", "", 40 * MS))
    lines = shown(device(waits, rank=0), device(late, rank=1, device=1), memory=())
    assert section(lines, "DEVICES") == [
        "DEVICES  shares of each one's own window",
        "              wall     step  busy %  comm %  copies %  idle %   largest loss",
        "  rank 0  100.0 ms  50.0 ms   100.0    50.0       0.0     0.0  communication",
        "  rank 1  100.0 ms  50.0 ms    60.0    10.0       0.0    40.0    data loader",
        "  Rank 1 device 1 spends 10.0 ms in communication, the others 50.0 ms (median):",
        "  it seems to come last, and the others to wait for it.",
    ]
    assert "Device   rank 1 device 1, NVIDIA H100" in lines


def test_a_recording_of_the_host_alone() -> None:
    lines = shown(host=host())
    assert section(lines, "RANGES") == [
        "RANGES  summed over threads, what they call included",
        "  name     calls     ms   share   median",
        "  forward      4  60.00  60.0 %  15.0 ms",
    ]
    assert "ProfilerActivity.CUDA" in "\n".join(section(lines, "TO RECORD THE GPU"))
    assert lines[0].startswith("No GPU work was recorded")


def test_caveats_and_what_could_not_be_read() -> None:
    lines = shown(device(), health=(Note("cold", "a cold start", 3),), errors=("b.json: empty",))
    assert section(lines, "CAVEATS")[1:] == ["  not read: b.json: empty", "  cold (3): a cold start"]


def test_what_fixes_would_save() -> None:
    what = WhatIf(
        "run.json", None, None, 0, ("dataloader", "host-sync"), (10 * MS, 20 * MS), (1.11, 1.25), ("a full queue",), ()
    )
    no = WhatIf("run.json", None, None, 1, ("graph",), None, None, (), (("graph", "no repetition"),))
    assert section(shown(device(), what_if=(what,)), "WHAT IF")[1:] == [
        "  dataloader, host-sync: saves 10.0 ms to 20.0 ms, 1.11× to 1.25× speedup",
        "    assumes a full queue",
    ]
    assert section(shown(device(), what_if=(what, no)), "WHAT IF")[-1:] == [
        "  run.json, device 1: graph: saving unknown, no repetition",
    ]


def test_launches_and_operations_that_lack_each_other() -> None:
    lines = section(shown(device(launches=Launches(30, 20, 10, 1, 2, 8, None))), "LAUNCHES")
    assert lines[1:4] == [
        "  20 calls launched 20 operations; 10 more calls have no operation in the trace;",
        "  1 operation without a call.",
        "  2 of them replayed a graph, 8 operations in all.",
    ]


def test_notes_of_one_kind_share_a_line() -> None:
    lines = shown(device(), health=(Note("cut", "1 ms", 1), Note("cold", "slow", 1), Note("cut", "2 ms", 1)))
    assert section(lines, "CAVEATS")[1:] == ["  cut (2): 1 ms (and 1 note like it)", "  cold: slow"]


def test_left_out_steps_say_why() -> None:
    first = dataclasses.replace(device().steps[0], left_out="warm-up: long")
    assert "         left out ProfilerStep#1: warm-up: long" in shown(device(steps=(first, device().steps[1])))


def test_at_most_sixty_lines_for_a_device() -> None:
    kernels = tuple(KernelTime(f"kernel_{i}_gemm", "gemm", 1, 100 - i) for i in range(50))
    owners = tuple(OwnerTime(f"aten::op{i}", 1, 1, 100 - i) for i in range(50))
    assert len(shown(device(kernels_by_name=kernels, operators=owners))) <= 60


def test_color_only_when_asked_and_only_around_the_same_text() -> None:
    value = advice(device())
    plain, colored = render(value, color=False, width=80), render(value, color=True, width=80)
    assert "\x1b" not in plain
    assert "\x1b[" in colored
    assert [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()] == plain.splitlines()


CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "\x1b\n\r\t\x07\u202e\u200f核한ｗ💥e\u0301\u2028"
)
TEXT = st.text(CHARACTERS, max_size=120)


@given(TEXT, TEXT, TEXT, st.integers(40, 120), st.booleans())
def test_no_name_makes_a_line_too_wide_or_a_control_character(
    name: str, path: str, label: str, width: int, whole: bool
) -> None:
    made = device(
        name=name, rank=1, window_why=label,
        steps=(*device().steps, dataclasses.replace(device().steps[0], name=name, left_out=path)),
        kernels_by_name=(KernelTime(name, "gemm", 1, MS), KernelTime(f"void {label}<{path}>(int)", "other", 10**9, MS)),
        operators=(OwnerTime(path, 1, 1, 1),), modules=(OwnerTime(label, 1, 1, 1),),
        gaps=(Gap(0, 32 * MS, name, (GapPart("python", "host", MS * 30, label),), path, 0.0),),
        copies=(CopyTime(label, 1, 10**15, None),),
    )  # fmt: skip
    value = advice(made, *([] if whole else [device()]), health=(Note("cold", path, 1),), errors=(name,))
    value = dataclasses.replace(value, verdict=label, traces=(dataclasses.replace(value.traces[0], name=name),) * 5)
    for line in render(value, color=False, width=width).splitlines():
        assert columns(line) <= width
        assert not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Cn") for c in line)
    text = render(value, color=False, width=width)
    assert text.splitlines() == text.split("\n")[:-1]


def test_names_are_made_harmless() -> None:
    assert clean("a\x1b[31mb\x1b]0;title\x07c\nd\u202ee\x00") == "abc de"
    assert clean("\ud800x") == "?x"


def test_wide_characters_count_twice() -> None:
    assert columns("核e\u0301") == 3
    assert clip("核核核", 4) == "核…"
    assert wrapped("核核核 核", 5) == ["核核", "核 核"]


@pytest.mark.parametrize(("part", "text"), [(0, ""), (1e-9, "▏"), (0.5, "██"), (1, "████"), (7, "████"), (0.28, "█▏")])
def test_bars(part: float, text: str) -> None:
    assert bar(part, 4) == text


def test_what_a_stream_cannot_write_becomes_ascii() -> None:
    assert encodable("█▌▏ 5 µs… 核", "ascii") == "##  5 us. ?"
    assert encodable("≤ 10 %, ≥ 5", "ascii") == "<= 10 %, >= 5"
    assert encodable("█ µ", "utf-8") == "█ µ"
    assert encodable("█ µ", None) == "# u"
    assert encodable("█", "no-such-encoding") == "#"
    assert len(encodable(render(advice(device()), color=False, width=80), "ascii")) == len(
        render(advice(device()), color=False, width=80)
    )


@pytest.mark.parametrize(
    ("ns", "text"),
    [(7, "7 ns"), (1_500, "1.5 µs"), (1_500_000, "1.50 ms"), (15_000_000, "15.0 ms"), (15 * 10**9, "15.00 s")],
)
def test_durations(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_ratios_as_percentages() -> None:
    assert [percent(part) for part in (0, 0.576, 1)] == ["0 %", "58 %", "100 %"]
    assert [percent(part, 1, "+") for part in (0.0123, -0.0123, -1e-6)] == ["+1.2 %", "-1.2 %", "+0.0 %"]


def test_numbers_in_columns() -> None:
    assert [ms(ns, 1) for ns in (0, 10, 50_000, 1_234_567_890)] == ["0.0", "<0.1", "0.1", "1,234.6"]
    assert [size(n) for n in (None, 12, 2_048, 3 * 2**30)] == ["unknown", "12 B", "2.00 KiB", "3.00 GiB"]
