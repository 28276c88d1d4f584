"""No finding saves more than the time that it names, alone or on top of others, and that time is the window's.

`ADVISE_PROGRAMS=5000` tries so many random programs instead of a few.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.ingest import read

from tests.programs import program, random_recipe, recording
from tests.verdicts import recordings
from traces import recipe as language
from traces.simulate import simulate

PROGRAMS = int(os.environ.get("ADVISE_PROGRAMS", "40"))
SAMPLES = Path(__file__).parents[2] / "traces"


def broken(advice: Advice) -> list[str]:
    """What is wrong with the times and savings of the findings, in words."""
    found = list(advice.errors)
    for device in advice.devices:
        has = Counter[str]()
        for item in device.attribution:
            has[item.cause] += item.ns
        if sum(has.values()) != device.wall_ns:
            found.append(f"causes sum up to {sum(has.values())} of {device.wall_ns} ns")
        together = 0
        for finding in advice.findings_of(device):
            found += [
                f"{finding.rule} names {part.ns} of {has[part.cause]} ns {part.cause}"
                for part in finding.named
                if not 0 < part.ns <= has[part.cause]
            ]
            if sum(part.ns for part in finding.named) != finding.ns:
                found.append(f"{finding.rule} names {finding.named}, together {finding.ns}")
            known = sum(part.ns for part in finding.named if not part.cause.endswith("unknown"))
            found += [
                f"{finding.rule} saves {saving} of {known} ns"
                for saving in filter(None, (finding.saving_ns, finding.alone_ns))
                if not 0 <= saving[0] <= saving[1] <= known
            ]
            together += finding.saving_ns[1] if finding.saving_ns else 0
        if together > device.wall_ns:
            found.append(f"together {together} of {device.wall_ns} ns")
    for finding in advice.findings:
        shares = re.findall(r"([0-9][0-9,.]*) % of the wall", finding.message)
        found += [
            f"{finding.rule}: {share} % of the wall" for share in shares if float(share.replace(",", "")) > 100.05
        ]
    return found


@pytest.mark.parametrize("path", recordings(SAMPLES), ids=lambda path: path.name)
def test_samples(path: Path) -> None:
    assert not broken(advise_traces([read(path)]))


LONG = """
device H100
kernel long 100ms grid=26 block=1024 "long_kernel"
thread main:
  op aten::mm 4us 2us:
    launch long
  python 90ms
  op aten::mm 4us 2us:
    launch long
"""


def test_a_kernel_that_began_before_the_window_counts_with_its_part_in_it() -> None:
    """26 blocks on 132 SMs: 106 are idle, for as long as the window shows of a kernel a hundred times as long."""
    trace = recording(simulate(language.parse(LONG, "long")))
    given = advise_traces([trace], Request(window="98:99"))
    assert not broken(given)
    tail = next(finding for finding in given.findings if finding.rule == "low-occupancy-tail")
    assert tail.ns == 1_000_000 * 106 // 132


AT_ONCE = """
device H100
kernel mul 100us grid=40 block=1024 "vectorized_elementwise_kernel_mul"
kernel add 100us grid=40 block=1024 "vectorized_elementwise_kernel_add"
kernel norm 100us grid=40 block=1024 "layer_norm_kernel"
thread main:
  steps 4 from=0:
    op aten::mul 90us 2us:
{launches}
"""


def test_what_streams_run_at_once_is_counted_once() -> None:
    """The same chain of three kernels on four streams at the same time: a share of the wall is at most all of it."""
    launches = "\n".join(f"      launch {name} stream={7 + i}" for name in ("mul", "add", "norm") for i in range(4))
    trace = recording(simulate(language.parse(AT_ONCE.format(launches=launches), "at-once")))
    given = advise_traces([trace])
    found = {finding.rule: finding for finding in given.findings}
    assert {"fuse-elementwise", "low-occupancy-tail", "torch-compile"} <= found.keys()
    assert not broken(given)
    # 4 steps x 4 streams x 3 kernels of 100 µs; the intermediates that need not move are a part of that.
    of_formula = re.findall(r"-?[\d.]+(?= ms)", found["fuse-elementwise"].formula)
    assert of_formula[0] == "4.800" and 0 < float(of_formula[1]) < 4.8


@pytest.mark.parametrize("window", ["default", "gpu"])
def test_random_programs(window: str) -> None:
    request = Request(window=None if window == "default" else window)
    for seed in range(PROGRAMS):
        assert not broken(advise_traces([recording(program(seed))], request)), f"seed {seed}"


@pytest.mark.real
def test_real_recordings(real_traces: Path) -> None:
    folders = (real_traces / name for name in ("traces", "pathologies", "cases"))
    for path in (path for folder in folders for path in recordings(folder)):
        try:
            advice = advise_traces([read(path)])
        except AdviseError:
            continue
        assert not broken(advice), path.name


PERIODIC = """
device H100
launch call=5us latency=6us gap=1us return=3us event_latency=2us depth=1022
trace shapes=0 stack=0 sync=0
kernel usual 25us grid=64 block=256 "usual_kernel"
thread main:
  op aten::empty 4us
  steps 9 from=0:
    {wait}
    repeat 40:
      op aten::add {host}us 2us:
        launch usual
    {last}
"""


COPY = "op aten::to 9us 2us:\n      copy h2d pageable 4MiB 400us staging=80us"


@pytest.mark.parametrize(
    ("wait", "host", "last", "rule"),
    [
        (
            "loader 2000us",
            9,
            "python 1us",
            "dataloader",
        ),  # launched ahead of the GPU, then the loader empties the queue
        ("python 5us", 60, "python 1us", "cuda-graphs"),
        # Once the call returns at once, the host comes to the window long before the GPU: what is queued then is not its time.
        ("python 5us", 9, COPY, "h2d-pageable"),
    ],
)
def test_windows_of_so_many_steps_save_the_same_a_step(wait: str, host: int, last: str, rule: str) -> None:
    recipe = PERIODIC.format(wait=wait, host=host, last=last)
    trace = recording(simulate(language.parse(recipe, "periodic")))
    each = []
    for steps in ("2-5", "2-6", "2-7", "3-8", "5-8"):
        first, last_step = map(int, steps.split("-"))
        findings = advise_traces([trace], Request(steps=steps)).findings
        found = next(finding for finding in findings if finding.rule == rule)
        assert found.saving_ns is not None
        each.append(found.saving_ns[1] / (last_step - first + 1))
    assert max(each) <= 1.05 * min(each)
    assert min(each) > 0


def test_what_if_saves_no_time_of_unknown_cause() -> None:
    """In 3 ms before each operator nothing was recorded, and no fix by whatever name takes them away."""
    wait, rest = "python 3000us", "python 1us"
    trace = recording(simulate(language.parse(PERIODIC.format(wait=wait, host=9, last=rest), "holes")))
    advice = advise_traces([trace], Request(what_if="host-work"))
    (device,), (what,) = advice.devices, advice.what_if
    unknown = sum(item.ns for item in device.attribution if item.cause == "host-unknown")
    assert unknown > 0.6 * device.wall_ns
    assert what.saving_ns is not None and what.saving_ns[1] <= device.wall_ns - unknown


# Copies on a stream of their own run ahead of the window, and out of it: what that gives comes once, however many steps.
AHEAD = ("copy-overlap",)


def test_windows_of_random_periodic_programs_save_the_same_a_step() -> None:
    wrong = []
    for seed in range(PROGRAMS // 4):
        recipe = re.sub(r"steps \d+ from", "steps 13 from", random_recipe(seed))
        trace = recording(simulate(language.parse(recipe, f"periodic-{seed}")))
        saved = defaultdict[tuple[str, str], list[float]](list)
        for first, last in ((6, 9), (6, 10), (6, 11)):
            (device,), findings = (
                (found := advise_traces([trace], Request(steps=f"{first}-{last}"))).devices,
                found.findings,
            )
            for finding in findings:
                if finding.alone_ns and finding.rule not in AHEAD:
                    saved[finding.rule, finding.title].append(finding.alone_ns[1] / device.wall_ns)
        wrong += [
            (seed, *name, shares)
            for name, shares in saved.items()
            if max(shares) > max(1.05 * min(shares), min(shares) + 0.002)
        ]
    assert not wrong
