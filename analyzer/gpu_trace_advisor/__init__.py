"""Where the wall time of a GPU trace went, and what a change would give.

    advice = gpu_trace_advisor.advise("trace.json")          what `advise` prints, as a value
    trace = gpu_trace_advisor.read("trace.json")             the events, as integer-nanosecond columns
    with gpu_trace_advisor.record("trace.json"): …           such a trace, of a block that runs PyTorch
    graph = gpu_trace_advisor.timeline("trace.json")[0]      what each operation waited for
    on_trace_ready=gpu_trace_advisor.trace_handler("out/")   for torch.profiler: trace and advice of each cycle

Everything is imported when it is first asked for.

Packages, from the ground up; each imports only from those above it:

    errors, units, quantity, sanitize
                          the public exceptions; how numbers are written and read; text that can be printed
    runtime               what sets up the process: start-up, memory, compiled loops, progress
    columns               arrays in columns: intervals, codes for repeated values, compact integers, exact durations
    trace                 the trace model, and what names of kernels, operators and software mean
    reference             what is known without a recording: the documents' claims and the devices
    ingest                recordings into a Trace; ingest.chrome for torch.profiler, ingest.nsight for Nsight Systems
    timelines             one device in time: operations and gaps, host activity, steps, what repeats
    attribution           every nanosecond of the window gets one cause
    roofline              what operators had to compute and move, and how long that takes at best
    graph                 what each operation waited for
    replay                the timeline played again, as it was and with changes
    ranks                 several ranks of one run: matched collectives, aligned clocks, who keeps whom waiting
    analysis              one device's window and everything that is read off it
    rulekit               what rules are written with; the rules themselves are in rules/
    decode                inference that makes tokens: its passes, its floor, its cost
    advice                findings, ranked and priced, and the advice that reports show
    drawing               what the HTML page and the Perfetto overlay draw beside the advice
    parallel              recordings read here, in processes or on a cluster
    gate                  comparisons with earlier runs, and limits
    report                what people read: report.text, report.html, Markdown, SARIF, Perfetto
    record                recordings made with torch.profiler
    integrations          the profiler's hook, trainers, agents
    cli, api, pytest_plugin
                          the command, the Python interface, efficiency tests
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

_WHERE = {
    "Advice": "advice.model",
    "AdviseError": "errors",
    "BadUsage": "errors",
    "Graph": "graph",
    "NothingToAnalyse": "errors",
    "Request": "analysis.request",
    "Trace": "trace.model",
    "UnreadableTrace": "errors",
    "advise": "api",
    "read": "api",
    "record": "record",
    "timeline": "api",
    "trace_handler": "integrations.trace_handler",
}

__all__ = [
    "Advice",
    "AdviseError",
    "BadUsage",
    "Graph",
    "NothingToAnalyse",
    "Request",
    "Trace",
    "UnreadableTrace",
    "advise",
    "read",
    "record",
    "timeline",
    "trace_handler",
]

if _TYPE_CHECKING:
    from gpu_trace_advisor.advice.model import Advice
    from gpu_trace_advisor.analysis.request import Request
    from gpu_trace_advisor.api import advise, read, timeline
    from gpu_trace_advisor.errors import AdviseError, BadUsage, NothingToAnalyse, UnreadableTrace
    from gpu_trace_advisor.graph import Graph
    from gpu_trace_advisor.integrations.trace_handler import trace_handler
    from gpu_trace_advisor.record import record
    from gpu_trace_advisor.trace.model import Trace


def __getattr__(name: str) -> _Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gpu_trace_advisor' has no attribute '{name}'")
    return getattr(_import_module(f"gpu_trace_advisor.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
