"""A callback for the trainer of Hugging Face Transformers: `Trainer(…, callbacks=[EfficiencyCallback("out/")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.integrations.warm_steps import WarmSteps

logger = logging.get_logger(__name__)


class EfficiencyCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records `steps` steps after `warmup`, leaves trace and report in `folder`, and adds the verdict to the trainer's log.

    ranks: `zero` (rank 0 alone) or `all`. html: the report too. The verdict stands in `trainer.state.log_history` under
    `gpu_efficiency`.
    """

    def __init__(
        self, folder: str | Path, *, steps: int = 5, warmup: int = 3, ranks: str = "zero", html: bool = True
    ) -> None:
        self._state: TrainerState | None = None
        self._recording = WarmSteps(folder, steps, warmup, ranks, html, self._tell)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._state = state
        self._recording.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._state = state
        self._recording.step_ended()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._state = state
        self._recording.end()

    def _tell(self, advice: Advice) -> None:
        logger.warning(advice.verdict)  # what is less is not shown by default
        if self._state is not None:
            entry: dict[str, Any] = {"gpu_efficiency": advice.verdict, "step": self._state.global_step}
            if self._state.epoch is not None:
                entry["epoch"] = round(self._state.epoch, 3)
            self._state.log_history.append(entry)
