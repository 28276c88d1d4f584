"""Where the wall time of a GPU trace went, and what a change would give.

    advice = analyzer.advise("trace.json")          what `advise` prints, as a value
    trace = analyzer.read("trace.json")             the events, as integer-nanosecond columns
    with analyzer.record("trace.json"): …           such a trace, of a block that runs PyTorch
    graph = analyzer.timeline("trace.json")[0]      what each operation waited for

Everything is imported when it is first asked for.
"""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

# Installed, rules/ and templates/ lie inside this package; in a checkout they lie beside it.
if not (_Path(__file__).parent / "rules").is_dir():
    __path__.append(str(_Path(__file__).parents[1]))

_WHERE = {
    "Advice": "advice",
    "AdviseError": "errors",
    "BadUsage": "errors",
    "Graph": "graph",
    "NothingToAnalyse": "errors",
    "Request": "study",
    "Trace": "trace",
    "UnreadableTrace": "errors",
    "advise": "api",
    "read": "api",
    "record": "record",
    "timeline": "api",
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
]

if _TYPE_CHECKING:
    from analyzer.advice import Advice
    from analyzer.api import advise, read, timeline
    from analyzer.errors import AdviseError, BadUsage, NothingToAnalyse, UnreadableTrace
    from analyzer.graph import Graph
    from analyzer.record import record
    from analyzer.study import Request
    from analyzer.trace import Trace


def __getattr__(name: str) -> _Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'analyzer' has no attribute '{name}'")
    return getattr(_import_module(f"analyzer.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
