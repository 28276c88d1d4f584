"""Recording a PyTorch program: steps warmed up, marked, synchronised at both ends, and what recording costs named.

    with gpu_trace_advisor.record("trace.json.gz") as steps:        a block that repeats its step
        for _ in steps:
            train(next(batches))

    with gpu_trace_advisor.record("trace.json.gz"):                 a block recorded as it is
        train(batch)

    python -m gpu_trace_advisor.record -o trace.json.gz -- train.py --epochs 1

PyTorch is imported when recording starts. Without a GPU the host's side is recorded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from types import ModuleType, TracebackType
from typing import Any

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.units import percent, read_count

INSTALL = "recording needs PyTorch: pip install 'gpu-trace-advisor[torch]'"
WORTH_TELLING = 0.02  # a smaller overhead is within what two steps differ by anyway


def import_torch() -> Any:
    """The module.

    Raises:
        BadUsage: PyTorch is not installed.
    """
    try:
        import torch
        import torch.profiler
    except ImportError as error:
        raise BadUsage(INSTALL if error.name == "torch" else f"{INSTALL} ({error})") from None
    return torch


def check_place(path: Path) -> None:
    """Before anything is recorded: whether it could be written.

    Raises:
        BadUsage: it could not.
    """
    try:
        folder = path.absolute() if path.is_dir() else path.absolute().parent
        while not folder.exists():
            folder = folder.parent
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadUsage(f"{path}: cannot be written: {error.strerror or error}") from None


def own_rank() -> int | None:
    """The rank of this process in its job; None where there is one process."""
    try:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return int(dist.get_rank())
    except ImportError:
        pass
    return read_count(os.environ.get("RANK", ""))


def trace_name(worker: str | None = None, *, packed: bool = True) -> str:
    """`WORKER.TIME.pt.trace.json` as TensorBoard's handler names it; WORKER names the rank, neither host nor user."""
    rank = own_rank()
    worker = worker or ("worker0" if rank is None else f"rank{rank}")
    return f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' * packed}"


@dataclass(frozen=True)
class Settings:
    """How to record; the defaults cost the host least."""

    steps: int = 10
    """Recorded steps, of each cycle."""
    warmup: int = 3
    """Steps before the first cycle that run without the profiler; one more runs with it and is thrown away."""
    wait: int = 0
    """Steps without the profiler before each cycle."""
    repeat: int = 1
    """Cycles; each gives a file."""
    shapes: bool = True
    stacks: bool = False
    memory: bool = False
    device: str = "auto"
    """`auto` records the GPU where there is one, `cpu` never."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("wait", 0), ("repeat", 1)):
            if getattr(self, name) < least:
                raise BadUsage(f"{name}={getattr(self, name)}: at least {least}")
        if self.device not in ("auto", "cpu"):
            raise BadUsage(f"device={self.device!r}: auto or cpu")


class Recorder:
    """Goes through warm-up and cycles, told where steps end. Writes a trace for each cycle that is complete."""

    def __init__(self, path: Path, settings: Settings) -> None:
        check_place(path)
        self.path, self.settings = path, settings
        self.written: list[Path] = []
        self.torch = import_torch()
        self.gpu = settings.device == "auto" and bool(self.torch.cuda.is_available())
        self.ended = 0
        """Steps that have ended."""
        self._profiler: Any = None
        self._discard = False
        self._plain: list[float] = []
        self._recorded: list[float] = []
        self._last: float | None = None

    @property
    def total(self) -> int:
        """Steps until everything is recorded."""
        s = self.settings
        return s.warmup + s.repeat * (s.wait + 1 + s.steps)

    @property
    def done(self) -> bool:
        return self.ended >= self.total

    @property
    def overhead(self) -> float | None:
        """How much longer a recorded step took than one without the profiler, as a fraction; None where unknown."""
        plain = self._plain[len(self._plain) // 2 :]
        return median(self._recorded) / median(plain) - 1 if plain and self._recorded else None

    def begin(self) -> None:
        """Just before the first step."""
        if not self.settings.warmup:
            self._start()

    def restart(self) -> None:
        """Forget what was recorded, and begin again with the warm-up: what was taken for steps were none."""
        self.end(discard=True)
        self.ended, self._discard, self._last = 0, False, None
        self._plain, self._recorded, self.written = [], [], []
        self.begin()

    def step_ended(self) -> None:
        """To be called when a step has ended; after the last one the files are written."""
        if self.done:
            return
        self._measure()
        self.ended += 1
        if self._profiler is not None:
            if self._at_an_edge():
                self.synchronise()
            self._profiler.step()
            if self.done:
                self.end()
        elif self.ended == self.settings.warmup:
            self.synchronise()
            self._start()
        self._last = time.perf_counter()

    def end(self, *, discard: bool = False) -> None:
        """Stop; what the current cycle holds so far is written, or discarded."""
        if self._profiler is None:
            return
        self._discard = discard
        if not discard:
            self.synchronise()
        profiler, self._profiler = self._profiler, None
        profiler.stop()

    def synchronise(self) -> None:
        """Wait until the GPU has done what was submitted."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def _position(self, step: int) -> int:
        """In its cycle: 0 is the step that the profiler throws away, 1 and more are recorded."""
        cycle = self.settings.wait + 1 + self.settings.steps
        return (step - self.settings.warmup) % cycle - self.settings.wait

    def _at_an_edge(self) -> bool:
        """The step that just ended is the last before a recorded one, or the last recorded one."""
        return self._position(self.ended - 1) in (0, self.settings.steps)

    def _measure(self) -> None:
        if self._last is None:
            return
        took = time.perf_counter() - self._last
        if self._profiler is None:
            self._plain.append(took)
        elif self._position(self.ended) > 0:
            self._recorded.append(took)

    def _start(self) -> None:
        s, profiler = self.settings, self.torch.profiler
        self._profiler = make_profiler(
            self.torch, s, self.gpu, self._ready,
            profiler.schedule(wait=s.wait, warmup=1, active=s.steps, repeat=s.repeat),
        )  # fmt: skip
        self._profiler.start()

    def _ready(self, profiler: Any) -> None:
        if not self._discard:
            self.written.append(write_trace(profiler, self.path, len(self.written), self.settings.repeat))


def make_profiler(torch: Any, settings: Settings, gpu: bool, ready: Callable[[Any], None], schedule: Any = None) -> Any:
    """A torch profiler that records the host, and the GPU where there is one."""
    activity = torch.profiler.ProfilerActivity
    return torch.profiler.profile(
        activities=[activity.CPU, activity.CUDA] if gpu else [activity.CPU],
        schedule=schedule,
        on_trace_ready=ready,
        record_shapes=settings.shapes,
        profile_memory=settings.memory,
        with_stack=settings.stacks,
    )


def write_trace(profiler: Any, path: Path, number: int, of: int) -> Path:
    """Write a cycle to the path; into a folder under the name of its rank; several cycles to numbered files."""
    if path.is_dir() or not path.suffix:
        path = path / trace_name()
        of = 1
    path.parent.mkdir(parents=True, exist_ok=True)
    if of > 1:
        stem, dot, suffixes = path.name.partition(".")
        path = path.with_name(f"{stem}-{number + 1}{dot}{suffixes}")
    profiler.export_chrome_trace(str(path))
    return path


@dataclass
class Recording:
    """The context manager that `record` gives. Iterate over it for steps; else the block is recorded as it is."""

    path: Path
    settings: Settings
    written: list[Path] = field(default_factory=list)
    overhead: float | None = None
    gpu: bool = False
    _block: Any = None
    _recorder: Recorder | None = None

    def __enter__(self) -> Recording:
        self._recorder = Recorder(self.path, self.settings)
        torch, self.gpu = self._recorder.torch, self._recorder.gpu
        self._recorder.synchronise()
        self._block = make_profiler(torch, self.settings, self.gpu, lambda profiler: None)
        self._block.start()
        return self

    def __iter__(self) -> Iterator[int]:
        """Warm-up steps first, then the recorded ones; the body of the loop is the step."""
        recorder = self._recorder
        if recorder is None:
            raise BadUsage("iterate over a recording inside its with block")
        if self._block is not None:  # what ran before the loop is no step
            self._block.stop()
            self._block = None
        recorder.begin()
        for number in range(recorder.total):
            yield number
            recorder.step_ended()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        if self._block is not None:
            recorder.synchronise()
            self._block.stop()
            if kind is None:
                recorder.written.append(write_trace(self._block, self.path, 0, 1))
            self._block = None
        recorder.end(discard=kind is not None)
        self.written, self.overhead = recorder.written, recorder.overhead


def record(path: str | Path, **settings: Any) -> Recording:
    """Record the block to a trace file, or into a folder under the name of its rank; `Settings` lists the options.

    Raises:
        BadUsage: PyTorch is not installed, or an option is not what it should be.
    """
    try:
        return Recording(Path(path), Settings(**settings))
    except TypeError as error:
        raise BadUsage(f"record: {error}") from None


def told(recorder: Recorder) -> str:
    """What was recorded and what recording cost, in one line."""
    files = ", ".join(str(path) for path in recorder.written)
    left_out = recorder.settings.warmup + 1
    text = f"{files}: {len(recorder._recorded)} steps, after {left_out} of warm-up that are left out"
    if recorder.overhead is None:
        text += "; what recording costs is unknown, too few steps ran without it"
    elif recorder.overhead < WORTH_TELLING:
        text += "; a recorded step took no longer than one without the profiler"
    else:
        plain = median(recorder._plain[len(recorder._plain) // 2 :])
        text += (
            f"; the profiler made a step {percent(recorder.overhead)} longer "
            f"({1e3 * median(recorder._recorded):,.3f} ms, {1e3 * plain:,.3f} ms without it)"
        )
    return text if recorder.gpu else f"{text}; no GPU: the host's side alone"


class _Callable(ModuleType):
    """`gpu_trace_advisor.record` is this module once it has been imported, and the function all the same."""

    def __call__(self, path: str | Path, **settings: Any) -> Recording:
        return record(path, **settings)


sys.modules[__name__].__class__ = _Callable
