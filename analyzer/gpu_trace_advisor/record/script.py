"""`python -m gpu_trace_advisor.record -- script.py`: record steps of a script that knows nothing of it."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_trace_advisor.errors import AdviseError, BadUsage, NothingToAnalyse
from gpu_trace_advisor.record import Recorder, Settings, make_profiler, told, write_trace
from gpu_trace_advisor.sanitize import clean, printable

INTERRUPTED = 130  # what a shell makes of Ctrl-C
STEPS = ("auto", "optimizer", "forward", "none")


def parser() -> argparse.ArgumentParser:
    """The options of `python -m gpu_trace_advisor.record`."""
    p = argparse.ArgumentParser(
        "python -m gpu_trace_advisor.record", usage="%(prog)s [options] -- script.py [argument …]",
        description="Record steps of a PyTorch script with torch.profiler, warm-up left out.",
    )  # fmt: skip
    p.add_argument("-o", "--output", metavar="PATH", type=Path, default=Path("trace.json.gz"), help="file, or a folder")
    p.add_argument("--steps", metavar="N", type=int, default=10, help="steps to record (default: 10)")
    p.add_argument("--warmup", metavar="N", type=int, default=3, help="steps to run before (default: 3)")
    p.add_argument("--wait", metavar="N", type=int, default=0, help="steps to leave out before each cycle (default: 0)")
    p.add_argument("--repeat", metavar="N", type=int, default=1, help="cycles, each to a file (default: 1)")
    p.add_argument(
        "--step", choices=STEPS, default="auto",
        help="what ends a step: optimizer.step(), a model's forward pass without gradients, whichever comes (auto); "
        "none records the whole script",
    )  # fmt: skip
    p.add_argument("--stacks", action="store_true", help="Python stacks too; they cost the host a lot")
    p.add_argument("--memory", action="store_true", help="allocations too")
    p.add_argument("--stop", action="store_true", help="end the script when everything is recorded")
    p.add_argument("--server", metavar="URL", help="record this running vLLM or SGLang server instead of a script")
    p.add_argument("--seconds", metavar="N", type=float, default=10.0, help="with --server: how long (default: 10)")
    p.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path(),
        help="with --server: where the server writes its recordings (default: the current folder)",
    )  # fmt: skip
    p.add_argument(
        "--server-folder",
        metavar="DIR",
        help="with --server: the same folder by the name that the server knows it by, as in a container",
    )
    p.add_argument(
        "--patience", metavar="N", type=float, default=600.0,
        help="with --server: seconds to wait for its files (default: 600)",
    )  # fmt: skip
    p.add_argument("script", nargs=argparse.REMAINDER, help="the script and its arguments")
    return p


class Recorded(SystemExit):
    """Everything is recorded and the script need not go on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and record it; returns the exit code: the script's own, or 2."""
    options = parser().parse_args(argv)
    script = options.script[1:] if options.script[:1] == ["--"] else options.script
    try:
        if options.server:
            return serve(options)
        if not script:
            raise BadUsage("no script given: python -m gpu_trace_advisor.record -- script.py")
        if not Path(script[0]).is_file():
            raise BadUsage(f"{script[0]}: no such script")
        return run(options, script)
    except AdviseError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        if not options.server:  # it is the script's
            raise
        say("interrupted")
        return INTERRUPTED


def run(options: argparse.Namespace, script: Sequence[str]) -> int:
    """Record one run of the script.

    Raises:
        BadUsage: PyTorch is not installed.
        NothingToAnalyse: the script had no steps, or not enough of them.
    """
    settings = Settings(
        options.steps, options.warmup, options.wait, options.repeat, stacks=options.stacks, memory=options.memory
    )
    recorder = Recorder(options.output, settings)
    if options.step == "none":
        return _whole(recorder, script)

    def ended() -> None:
        recorder.step_ended()
        if recorder.done and options.stop:
            raise Recorded(0)

    recorder.begin()
    try:
        with step_ends(recorder.torch, options.step, ended, recorder.restart):
            code = _run(script)
    finally:  # an error or Ctrl-C ends the script, not what was recorded until then
        recorder.end()
        if recorder.written:
            say(told(recorder))
    if not recorder.written:
        found = f"{recorder.ended} steps" if recorder.ended else "no steps"
        hint = "record it whole with --step none" if not recorder.ended else "give a lower --warmup or more steps"
        raise NothingToAnalyse(f"{script[0]}: {found} found, {settings.warmup + 1} are warm-up; {hint}")
    return code


def serve(options: argparse.Namespace) -> int:
    """Record a running server, and advise; returns the exit code of `advise`.

    Raises:
        BadUsage, NothingToAnalyse: as `record_server`.
    """
    from gpu_trace_advisor.cli import main as advise
    from gpu_trace_advisor.record.server import record_server

    if not 0 < options.seconds < 86_400 or not 0 < options.patience < 86_400:
        raise BadUsage("--seconds and --patience: expected a number of seconds above 0, below a day")
    written = record_server(
        options.server, options.seconds, options.folder, options.patience, say, there=options.server_folder
    )
    say(f"{len(written)} recordings: {', '.join(path.name for path in written[:4])}{' …' * (len(written) > 4)}")
    return advise([str(path) for path in written])


def say(message: str) -> None:
    """One line on standard error."""
    print(printable(f"record: {clean(message)}"), file=sys.stderr)


def _whole(recorder: Recorder, script: Sequence[str]) -> int:
    profiler = make_profiler(recorder.torch, recorder.settings, recorder.gpu, lambda profiler: None)
    profiler.start()
    try:
        return _run(script)
    finally:  # as above: a server is ended by Ctrl-C
        recorder.synchronise()
        profiler.stop()
        path = write_trace(profiler, recorder.path, 0, 1)
        say(f"{path}: the whole script, its start included")


def _run(script: Sequence[str]) -> int:
    """Run it as Python would; its exit code."""
    before, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = list(script), str(Path(script[0]).resolve().parent)
    try:
        runpy.run_path(script[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    finally:
        sys.argv, sys.path[0] = before, path
    return 0


@contextmanager
def step_ends(torch: Any, wanted: str, ended: Callable[[], None], restart: Callable[[], None]) -> Iterator[None]:
    """Call `ended` when a step of the program has ended: after `optimizer.step()`; in inference after the outermost
    module's forward pass. Once an optimizer has made a step, forward passes are none; `restart` forgets earlier ones."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    depth, passes, trains = 0, 0, False

    def after_optimizer(*_: Any) -> None:
        nonlocal trains
        if not trains and passes:
            restart()
        trains = True
        ended()

    def before_forward(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def after_forward(*_: Any) -> None:
        nonlocal depth, passes
        depth -= 1
        if depth == 0 and not trains and not torch.is_grad_enabled():
            passes += 1
            ended()

    handles = []
    if wanted in ("auto", "optimizer"):
        handles.append(register_optimizer_step_post_hook(after_optimizer))
    if wanted in ("auto", "forward"):
        handles += [
            register_module_forward_pre_hook(before_forward),
            register_module_forward_hook(after_forward, always_call=True),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
