"""A callback for PyTorch Lightning: `Trainer(callbacks=[EfficiencyCallback("out/")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined, unused-ignore]

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.integrations.warm_steps import WarmSteps


class EfficiencyCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records `steps` steps after `warmup`, leaves trace and report in `folder`, and logs the verdict.

    ranks: `zero` (rank 0 alone) or `all`. html: the report too. The verdict stands in `verdict` too.
    """

    def __init__(
        self, folder: str | Path, *, steps: int = 5, warmup: int = 3, ranks: str = "zero", html: bool = True
    ) -> None:
        self.verdict = ""
        self._steps = 0
        self._recording = WarmSteps(folder, steps, warmup, ranks, html, self._tell)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps = trainer.global_step
        self._recording.begin()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step != self._steps:  # of the batches whose gradients are summed up, the last
            self._steps = trainer.global_step
            self._recording.step_ended()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._recording.end()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._recording.end()

    def _tell(self, advice: Advice) -> None:
        self.verdict = advice.verdict
        rank_zero_info(advice.verdict)
