"""The callbacks of trainers, in the trainers themselves, on the CPU."""

import warnings
from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest


@pytest.fixture
def quiet() -> Any:
    """Warnings of the trainers about themselves are theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def hugging_face(tmp_path: Path, callback: Any, steps: int) -> Any:
    """A trainer of Hugging Face on a small model of its own."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x: Any, labels: Any = None) -> Any:
            out = self.layer(x)
            return {"loss": ((out - labels) ** 2).mean(), "logits": out}

    data = [{"x": torch.randn(16), "labels": torch.randn(16)} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "model"), max_steps=steps, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    return trainer


@pytest.mark.huggingface
def test_hugging_face_leaves_trace_report_and_verdict(tmp_path: Path, quiet: None) -> None:
    from gpu_trace_advisor.integrations.huggingface import EfficiencyCallback

    trainer = hugging_face(tmp_path, EfficiencyCallback(tmp_path / "out", steps=3, warmup=2), steps=10)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "rank0.pt.trace.json.gz", "rank0.pt.trace.txt", "rank0.pt.trace.html",
    }  # fmt: skip
    (told,) = [entry for entry in trainer.state.log_history if "gpu_efficiency" in entry]
    assert told["gpu_efficiency"].startswith("No GPU work was recorded")
    assert told["epoch"] == 6 / 16  # of a data set of 16 batches
    assert told["step"] == 6  # two of warm-up, one that the profiler throws away, three recorded


@pytest.mark.huggingface
def test_a_callback_records_the_first_of_several_trainings(tmp_path: Path, quiet: None) -> None:
    """The second one runs without a profiler, and what was recorded stays as it is."""
    from gpu_trace_advisor.integrations.huggingface import EfficiencyCallback

    callback = EfficiencyCallback(tmp_path / "out", steps=2, warmup=1, html=False)
    hugging_face(tmp_path, callback, steps=6)
    before = (tmp_path / "out" / "rank0.pt.trace.json.gz").read_bytes()
    recorder = callback._recording.recorder
    again = hugging_face(tmp_path, callback, steps=6)
    assert callback._recording.recorder is recorder
    assert (tmp_path / "out" / "rank0.pt.trace.json.gz").read_bytes() == before
    assert not [entry for entry in again.state.log_history if "gpu_efficiency" in entry]


@pytest.mark.huggingface
def test_hugging_face_training_that_ends_early_says_so(tmp_path: Path, quiet: None) -> None:
    from gpu_trace_advisor.integrations.huggingface import EfficiencyCallback

    with pytest.warns(UserWarning, match="training ended before a step was recorded: at least 22 steps are needed"):
        hugging_face(tmp_path, EfficiencyCallback(tmp_path / "out", steps=3, warmup=20), steps=4)


@pytest.mark.huggingface
def test_other_ranks_record_nothing_unless_asked(tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_trace_advisor.integrations.huggingface import EfficiencyCallback
    from gpu_trace_advisor.integrations.warm_steps import WarmSteps

    monkeypatch.setattr("gpu_trace_advisor.integrations.warm_steps.own_rank", lambda: 1)
    hugging_face(tmp_path, EfficiencyCallback(tmp_path / "out", steps=2, warmup=1), steps=5)
    assert not (tmp_path / "out").exists()
    hugging_face(tmp_path, EfficiencyCallback(tmp_path / "all", steps=2, warmup=1, ranks="all", html=False), steps=5)
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"rank1.pt.trace.json.gz", "rank1.pt.trace.txt"}
    with pytest.raises(ValueError, match="ranks='some'"):
        WarmSteps(tmp_path, 1, 1, "some", False, lambda advice: None)


@pytest.mark.huggingface
def test_a_failure_is_a_warning_and_training_goes_on(tmp_path: Path, quiet: None) -> None:
    from gpu_trace_advisor.integrations.huggingface import EfficiencyCallback

    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="nothing is recorded"):
        trainer = hugging_face(tmp_path, EfficiencyCallback(tmp_path / "file", steps=2, warmup=1), steps=5)
    assert trainer.state.global_step == 5


def lightning(tmp_path: Path, callback: Any, *, fails_at: int = -1, batches: int = 1) -> None:
    """A trainer of Lightning on a small module; its training fails at a batch. batches: whose gradients make a step."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            if number == fails_at:
                raise RuntimeError("out of luck")
            return self.layer(batch).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = Trainer(
        accelerator="cpu", max_steps=10, callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(tmp_path),
        accumulate_grad_batches=batches,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=4))


@pytest.mark.lightning
def test_lightning_leaves_trace_report_and_verdict(tmp_path: Path, quiet: None) -> None:
    from gpu_trace_advisor.integrations.lightning import EfficiencyCallback

    callback = EfficiencyCallback(tmp_path / "out", steps=3, warmup=2)
    lightning(tmp_path, callback)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "rank0.pt.trace.json.gz", "rank0.pt.trace.txt", "rank0.pt.trace.html",
    }  # fmt: skip
    assert callback.verdict.startswith("No GPU work was recorded")


@pytest.mark.lightning
def test_a_step_of_lightning_is_one_of_the_optimizer(tmp_path: Path, quiet: None) -> None:
    """With gradients of two batches summed up, three steps are six batches."""
    from gpu_trace_advisor.integrations.lightning import EfficiencyCallback

    lightning(tmp_path, EfficiencyCallback(tmp_path / "out", steps=3, warmup=2, html=False), batches=2)
    names = list(gpu_trace_advisor.read(tmp_path / "out" / "rank0.pt.trace.json.gz").to_pandas()["name"])
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert names.count("aten::addmm") == 6


@pytest.mark.lightning
def test_lightning_training_that_fails_leaves_what_was_recorded(tmp_path: Path, quiet: None) -> None:
    """The error is the user's own, and no profiler is left running."""
    from gpu_trace_advisor.integrations.lightning import EfficiencyCallback

    with pytest.raises(RuntimeError, match="out of luck"):
        lightning(tmp_path, EfficiencyCallback(tmp_path / "out", steps=8, warmup=1, html=False), fails_at=5)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"rank0.pt.trace.json.gz", "rank0.pt.trace.txt"}
    lightning(tmp_path, EfficiencyCallback(tmp_path / "again", steps=2, warmup=1, html=False))
    assert (tmp_path / "again" / "rank0.pt.trace.json.gz").exists()
