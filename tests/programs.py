"""Programs made at random, simulated and read back: what the tests of the graph, its replay and its changes run on."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.ingest.chrome.reader import parse
from gpu_trace_advisor.ingest.kineto import to_trace
from gpu_trace_advisor.trace.model import Trace

from traces import recipe as language
from traces.program import Program
from traces.simulate import simulate
from traces.write_kineto import text

KERNELS = """
kernel small 3us first=400us grid=8 block=128 "small_kernel"
kernel usual 25us grid=64 block=256 "usual_kernel"
kernel large 180us grid=512 block=256 "large_kernel"
kernel reduce 140us grid=24 block=512 "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
"""
THREADS = ("main", "autograd")
STREAMS = (7, 20)


def random_recipe(seed: int) -> str:
    """A program of a few steps: operators, loaders, copies, waits, events, replays, allocations, two threads, two streams."""
    chance = random.Random(seed)
    depth = chance.choice((1022, 1022, 40, 600))
    stack, sync = chance.randint(0, 1), chance.randint(0, 1)
    lines = [
        "device H100", f"launch call=5us latency=6us gap=1us return=3us event_latency=2us depth={depth}",
        f"trace shapes=0 stack={stack} sync={sync}", *KERNELS.split("\n"), "thread main:", "  op aten::empty 4us",
        f"  steps {chance.randint(2, 5)} from=1:",
    ]  # fmt: skip
    # What is usual must be seen in a recording, or no replay can know it.
    lines += ["    python 60us", "    op aten::add 9us 2us:", "      launch usual", "    python 60us"]
    if chance.random() < 0.4:
        lines.append(f"    loader {chance.choice((200, 1500, 6000))}us")
    for _ in range(chance.randint(1, 5)):
        lines += _part(chance, 4)
    if chance.random() < 0.4:
        # A shorter wait of one thread for another one cannot be told from host work.
        lines += ["    python 60us", "    handover autograd:", "      op autograd::engine 60us"]
        lines += [line for _ in range(chance.randint(1, 3)) for line in _part(chance, 6)]
        lines += _part(chance, 4)
    if chance.random() < 0.6:
        lines += ["    op aten::item 3us 1us:", "      copy d2h pinned 4B 1200ns", "      sync stream=7"]
    return "\n".join(lines) + "\n"


def _part(chance: random.Random, indent: int) -> list[str]:
    kernel, us = chance.choice(("small", "usual", "large")), chance.choice((2, 9, 40))
    stream = chance.choice((7, 7, 7, 20))
    launch = [f"op aten::op {us}us 2us:", f"  launch {kernel} stream={stream}"]
    mark = chance.randrange(10**6)
    parts: list[list[str]] = [
        [f"repeat {chance.choice((1, 3, 12, 60))}:", *(f"  {line}" for line in launch), f"  python {us}us"],
        launch,
        [f"python {chance.choice((5, 60, 700))}us"],
        [f"op aten::to {us}us 2us:", f"  copy h2d pageable 4MiB {chance.choice((90, 700))}us staging=80us"],
        [f"op aten::to {us}us 2us:", f"  copy h2d pinned 4MiB {chance.choice((90, 700))}us stream=20"],
        ["op aten::item 3us 1us:", "  sync stream=7"],
        ["sync device"],
        [f"record e{mark} stream=7", f"wait e{mark} stream=20", "launch usual stream=20",
         f"record f{mark} stream=20", f"wait f{mark} stream=7", "launch small"],
        [f"record e{mark} stream=7", f"wait e{mark} stream=20", "collective reduce 140us 1MiB stream=20",
         f"record f{mark} stream=20", *launch, f"wait f{mark} stream=7", "launch small"],
        ["replay graph:", "  repeat 12:", "    launch small", "  launch usual"],
        ["op aten::empty 4us 1us:", f"  malloc {chance.choice((40, 400))}us"],
        [f"free {chance.choice((30, 300))}us"],
        ["memset 256B 900ns"],
    ]  # fmt: skip
    return [" " * indent + line for line in chance.choice(parts)]


def program(seed: int, **changes: object) -> Program:
    """The simulated program of a seed, with changes as `traces.simulate` takes them."""
    return simulate(language.parse(random_recipe(seed), f"random-{seed}"), **changes)  # type: ignore[arg-type]


def recording(made: Program, rank: int = 0) -> Trace:
    """What is read from the file that the program would leave."""
    return to_trace(parse(text(made, rank).encode(), f"{made.name}.json"), Path(f"{made.name}.json"))


def viewed(made: Program, rank: int = 0, **request: str) -> DeviceWindow:
    """The view of a program's one device."""
    found, _ = views(recording(made, rank), Request(**request))  # type: ignore[arg-type]
    return found[0]


@cache
def random_view(seed: int, window: str = "gpu") -> DeviceWindow:
    """The view of a random program."""
    return viewed(program(seed), window=window)


def span_ns(made: Program, rank: int = 0) -> int:
    """From a program's first operation to the end of its last."""
    operations = made.ranks[rank].operations
    return max(operation.end for operation in operations) - min(operation.start for operation in operations)
