"""`on_trace_ready=trace_handler("out/")`: the trace as `tensorboard_trace_handler` leaves it, and what it says beside it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_trace_advisor.analysis.request import Request


def trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
    *,
    html: bool = False,
    request: Request | None = None,
) -> Callable[[Any], None]:
    """A drop-in for `torch.profiler.tensorboard_trace_handler`, with its arguments: for `profile(on_trace_ready=…)`.

    Each cycle of the profiler's schedule leaves `WORKER.TIME.pt.trace.json` in the folder (with `use_gzip` packed), three
    lines of advice in `WORKER.TIME.pt.trace.txt`, and with `html` the report. WORKER is the rank, or the process where
    there is one; unlike PyTorch's default it names neither host nor user. Whatever fails is a warning: training goes on.
    """
    place = Path(dir_name)
    options = {"use_python_export": True} if use_python_export else {}  # older PyTorch has no such option

    def handle(profiler: Any) -> None:
        from gpu_trace_advisor.integrations.beside import advise_beside
        from gpu_trace_advisor.record import trace_name

        try:
            place.mkdir(parents=True, exist_ok=True)
            trace = place / trace_name(worker_name, packed=use_gzip)
            profiler.export_chrome_trace(str(trace), **options)
        except Exception as error:
            warnings.warn(f"no trace was written: {type(error).__name__}: {error}", stacklevel=2)
            return
        advise_beside(trace, html=html, request=request)

    return handle
