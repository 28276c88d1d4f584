"""The report and the summary beside a trace that was just recorded."""

from __future__ import annotations

import warnings
from pathlib import Path

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import NothingToAnalyse
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.report.html.page import render
from gpu_trace_advisor.report.text.first_screen import summary
from gpu_trace_advisor.runtime.files import write_whole


def advise_beside(trace: Path, *, html: bool, request: Request | None = None) -> Advice | None:
    """Advise on a trace, and leave `NAME.txt` (three lines) and with `html` `NAME.html` beside it.

    None, and a warning, where that fails: a training run must not end for the sake of its report.
    """
    try:
        looked = look_at([str(trace)], request or Request(), jobs=1, drawn=html)
        stem = trace.with_name(trace.name.removesuffix(".gz").removesuffix(".json"))
        write_whole(stem.with_name(stem.name + ".txt"), "".join(f"{line}\n" for line in summary(looked.advice)))
        if html:
            write_whole(stem.with_name(stem.name + ".html"), render(looked.advice, looked.drawings))
        return looked.advice
    except NothingToAnalyse as error:
        warnings.warn(f"{trace.name}: {error}", stacklevel=3)
    except Exception as error:
        warnings.warn(f"{trace.name}: no advice: {type(error).__name__}: {error}", stacklevel=3)
    return None
