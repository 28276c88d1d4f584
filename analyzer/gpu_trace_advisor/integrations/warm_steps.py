"""What the callbacks of trainers share: record some warm steps of a run, leave trace and report, and say the verdict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.integrations.beside import advise_beside
from gpu_trace_advisor.record import Recorder, Settings, own_rank


class WarmSteps:
    """Records `steps` steps after `warmup` others; whatever fails is a warning, and the training goes on.

    folder: for the trace, `rankN.pt.trace.json.gz`, and what is said of it beside it.
    ranks: `zero` records rank 0 alone, `all` every rank.
    tell: called with the advice when it is there.
    """

    def __init__(
        self, folder: str | Path, steps: int, warmup: int, ranks: str, html: bool, tell: Callable[[Advice], None]
    ) -> None:
        if ranks not in ("zero", "all"):
            raise ValueError(f"ranks={ranks!r}: zero or all")
        self.settings = Settings(steps=steps, warmup=warmup)
        self.folder, self.ranks, self.html, self.tell = Path(folder), ranks, html, tell
        self.recorder: Recorder | None = None
        self.over = False

    def begin(self) -> None:
        """Just before the first step. Only the first training is recorded: a callback may be used in several."""
        rank = own_rank()
        if self.over or self.recorder is not None or (self.ranks == "zero" and rank):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.recorder = Recorder(self.folder / f"rank{rank or 0}.pt.trace.json.gz", self.settings)
            self.recorder.begin()
        except Exception as error:
            self._give_up(error)

    def step_ended(self) -> None:
        """After each step of the optimizer."""
        if self.recorder is None or self.over:
            return
        try:
            self.recorder.step_ended()
        except Exception as error:
            self._give_up(error)
            return
        if self.recorder.done:
            self._finish()

    def end(self) -> None:
        """After training: what was recorded by then is kept."""
        if self.recorder is None or self.over:
            return
        try:
            self.recorder.end()
        except Exception as error:
            self._give_up(error)
            return
        if not self.recorder.written:
            needed = self.settings.warmup + 2
            warnings.warn(
                f"training ended before a step was recorded: at least {needed} steps are needed", stacklevel=3
            )
        self._finish()

    def _finish(self) -> None:
        self.over = True
        for trace in self.recorder.written if self.recorder else ():
            advice = advise_beside(trace, html=self.html)
            if advice is not None:
                self.tell(advice)

    def _give_up(self, error: Exception) -> None:
        self.over = True
        warnings.warn(f"nothing is recorded: {type(error).__name__}: {error}", stacklevel=4)
