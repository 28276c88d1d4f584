"""An Advice with what reports draw beside it."""

from gpu_trace_advisor.advice.build import examine
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.drawing.build import draw
from gpu_trace_advisor.drawing.model import Drawing
from gpu_trace_advisor.trace.model import Trace


def drawn(*traces: Trace, **request: str | int | float | None) -> tuple[Advice, list[Drawing]]:
    """The Advice for these traces and its drawings."""
    advice, views = examine(traces, Request(**request))  # type: ignore[arg-type]
    return advice, draw(advice, views, traces)
