"""What a program calls: reading, advising, and the graph to explore."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.device_window import views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import BadUsage, NothingToAnalyse
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.ingest import read as read_one
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.trace.model import Trace


def read(path: str | os.PathLike[str]) -> Trace:
    """The Trace of one recording.

    Raises:
        UnreadableTrace: no such file, or no trace that can be read.
    """
    return read_one(Path(path))


def advise(*paths: str | os.PathLike[str], request: Request | None = None) -> Advice:
    """What `advise PATH…` says, as a value: files, folders, patterns and URLs.

    What cannot be read stands in `errors`, where there is something that can.

    Raises:
        UnreadableTrace: none can be read.
        NothingToAnalyse: nothing in them for what was asked.
        BadUsage: the request cannot be met.
    """
    if not paths:
        raise BadUsage("no trace given")
    looked = look_at([os.fspath(path) for path in paths], request or Request(), jobs=1)
    if looked.interrupted:
        raise KeyboardInterrupt
    return looked.advice


def timeline(path: str | os.PathLike[str], request: Request | None = None) -> list[Graph]:
    """The timeline graph of each process of a recording; `Graph.to_networkx()` gives it to explore.

    Raises:
        UnreadableTrace: no trace that can be read.
        NothingToAnalyse: no GPU work in it.
    """
    trace = read_one(Path(path))
    found, _ = views(trace, request or Request())
    if not found:
        raise NothingToAnalyse(f"{trace.name}: no GPU operation in it")
    distinct = {id(view.program): view.program for view in found}
    return [program.graph for program in distinct.values()]
