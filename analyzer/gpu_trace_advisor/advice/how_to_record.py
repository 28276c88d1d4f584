"""How to have GPU work in a recording that shows none: what is missing, and how to record it with the recorder used."""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.columns.codes import first_places
from gpu_trace_advisor.trace.model import Kind, Trace

DAMAGED = ("partial", "dropped-event", "quarantined-time", "impossible-duration")
DEVICE_CALL = re.compile(r"(?:cuda|hip)[A-Z]|cu[A-Z]")
ASKS = re.compile(
    r"(?:cuda|hip|cu)(?:Get|Device(?:Get|Count)|Driver|Init|Runtime|Peek|FuncGet|Occupancy)"
)  # starts no work

NSYS = "nsys profile --trace=cuda,nvtx,osrt -o run PROGRAM"
TORCH = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def how_to_record(trace: Trace) -> str:
    """What a recording without GPU work lacks, and what to do; for a command line or the lines of a report."""
    if any(note.code in DAMAGED for note in trace.health):
        return "get the whole file, or record again: this one is damaged, and its GPU work may be in the part that is missing"
    calls = _calls(trace)
    return _nsight(trace, calls) if trace.format == "nsight" else _torch(trace, calls)


def _nsight(trace: Trace, calls: list[str]) -> str:
    if any(not ASKS.match(name) for name in calls):
        return (
            f"CUDA calls were recorded ({calls[0]} …) and no GPU work: record with {NSYS}, give nsys the privileges that it "
            "asks for, let no other profiler use CUPTI at that time, and let the capture go on until the GPU is done"
        )
    if calls:
        return (
            f"the program only asked for its devices ({calls[0]} …): run it until it computes on the GPU, and record all its "
            f"processes: {NSYS}"
        )
    return (
        f"no CUDA call was recorded: record with {NSYS} (--trace=cuda is what was missing, or the work ran in a process that "
        "nsys did not start), then nsys export --type sqlite run.nsys-rep"
    )


def _torch(trace: Trace, calls: list[str]) -> str:
    if (trace.kind == Kind.EVENT).any():
        return (
            "the profiler counted metrics of ranges (profiler_metrics) and recorded no kernels: record once more without "
            "experimental_config"
        )
    if any(not ASKS.match(name) for name in calls):
        return (
            f"CUDA calls were recorded ({calls[0]} …) and no GPU work: profile the process that computes, around the "
            "steps themselves, let no other profiler use CUPTI at that time, and stop after torch.cuda.synchronize()"
        )
    if trace.devices:
        listed = "a GPU is listed" if len(trace.devices) == 1 else f"{len(trace.devices)} GPUs are listed"
        return (
            f"{listed} and no CUDA call was made: move the model and its inputs there (model.to('cuda')), or profile the "
            "process that does"
        )
    return f"torch.profiler.profile({TORCH}) around work that runs on a GPU; on ROCm the name is CUDA too"


def _calls(trace: Trace) -> list[str]:
    """Names of the CUDA and HIP calls in time order, those last that start no work."""
    codes, places = first_places(trace.name_code[trace.kind == Kind.CALL])
    names = [trace.names[code] for code in codes[np.argsort(places)].tolist()]
    return sorted(filter(DEVICE_CALL.match, names), key=lambda name: ASKS.match(name) is not None)
