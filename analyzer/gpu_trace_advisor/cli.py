"""`advise`: the command line. The only module that prints, besides the reports."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpu_trace_advisor.errors import AdviseError, BadUsage, UnreadableTrace
from gpu_trace_advisor.runtime import heap
from gpu_trace_advisor.runtime import start_up as lean
from gpu_trace_advisor.runtime.files import read_small, write_whole
from gpu_trace_advisor.runtime.progress import Progress
from gpu_trace_advisor.sanitize import clean, json_text, printable

# What the command needs else is imported where it is used: while garbage is collected rarely, and never for --help.
if TYPE_CHECKING:
    from gpu_trace_advisor.advice.model import Advice
    from gpu_trace_advisor.analysis.request import Request
    from gpu_trace_advisor.drawing.model import Drawing
    from gpu_trace_advisor.gate.check import Outcome
    from gpu_trace_advisor.parallel.advise import RunResult

FAULT = 3  # never 1: that is "regressed"
LONGEST_LINE = 2000  # of what is said on standard error
INTERRUPTED = 130  # what a shell makes of Ctrl-C
DESCRIPTION = """\
Say where the wall time of a GPU program went, from a torch.profiler or Nsight Systems recording. Every nanosecond gets
one cause, and the parts add up to the wall time exactly."""
EPILOG = (
    "exit codes: 0 done; 1 regressed or over budget; 2 unreadable input, nothing to analyse, not comparable, or bad usage "
    "(one line on standard error says which); 3 a fault of advise itself (one line says where and how to report it)"
)


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments, and when its help cannot be written."""

    def print_help(self, file: object = None) -> None:
        put(self.format_help())

    def error(self, message: str) -> NoReturn:
        say(f"{message}; {self.prog} --help lists the options")
        self.exit(2)


class TellVersion(argparse.Action):
    """argparse's own action wants the version whether it is asked for or not, and finding it takes long."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        put(f"advise {version()}\n")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """All options of `advise`."""
    p = OneLineParser("advise", description=DESCRIPTION, epilog=EPILOG)
    p.add_argument(
        "traces", nargs="*", metavar="TRACE",
        help="a recording (- is standard input), or a folder, pattern or URL with the ranks of one run",
    )  # fmt: skip
    p.add_argument(
        "--format", default="text",
        choices=("text", "json", "html", "csv", "markdown", "sarif", "perfetto", "github", "gitlab"),
        help="what is written (default: text); csv: the table of kernels; github: annotations, with --against or --budget; "
        "gitlab: a code-quality report",
    )  # fmt: skip
    p.add_argument("-v", "--verbose", action="store_true", help="everything as text, not the first screen alone")
    p.add_argument(
        "--top", metavar="N", type=count, help="rows of each list in the text, and changes on the first screen"
    )
    p.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of standard output")
    p.add_argument("--json", metavar="FILE", type=Path, help="write JSON to FILE beside the text")
    p.add_argument("--html", metavar="FILE", type=Path, help="write the HTML report to FILE beside the text")
    p.add_argument(
        "--window", metavar="WINDOW",
        help="steps (default where they are marked or can be inferred), gpu (first to last GPU operation), all, or "
        "START:END in milliseconds",
    )  # fmt: skip
    p.add_argument("--steps", metavar="LIST", help="only these steps, by the numbers of their markers: 3-7 or 2,5")
    p.add_argument("--step-marker", metavar="REGEX", help="ranges whose name matches are the steps")
    p.add_argument("--device", metavar="N", type=int, help="only this device ordinal")
    p.add_argument("--rank", metavar="N", type=int, help="only this rank")
    p.add_argument(
        "--what-if",
        metavar="RULE,…",
        help="replay with the fixes of these rules together, such as dataloader,host-sync: what they would save",
    )
    p.add_argument(
        "--phase", choices=("auto", "training", "prefill", "decode"), default="auto",
        help="what the program does (default: auto)",
    )  # fmt: skip
    p.add_argument("--hardware", metavar="NAME", help="the device, where the trace does not name it: h100-sxm …")
    p.add_argument("--weights", metavar="BYTES", help="what the model's weights take on one device: 14GB …")
    p.add_argument("--objective", choices=("latency", "throughput"), help="what counts in inference")
    p.add_argument("--price", metavar="PER_HOUR", type=positive, help="what one device costs an hour: costs of serving")
    p.add_argument("--batch", metavar="N", type=count, help="sequences that decode together, where it is not recorded")
    p.add_argument(
        "--prompt-tokens", metavar="N", type=count, help="tokens of a request's prompt, for costs of serving"
    )
    p.add_argument("--output-tokens", metavar="N", type=count, help="tokens of an answer, for costs of serving")
    p.add_argument(
        "--capture", metavar="FILE", action="append", default=[],
        help="a recording of how CUDA or HIP graphs were captured: tells the operators of their kernels; may be given "
        "several times",
    )  # fmt: skip
    p.add_argument("--rules", metavar="DIR", help="a folder with more rules")
    p.add_argument("--list-rules", action="store_true", help="list the rules and stop")
    p.add_argument(
        "--test-rules", action="store_true",
        help="run the cases of the rules in --rules DIR, or of the built-in ones, and stop; exit code 1 when one differs",
    )  # fmt: skip
    p.add_argument(
        "--explain", metavar="NAME", nargs="?", const="", default=None,
        help="print the page of a rule or of a cause of time, and stop; without a name, list both",
    )  # fmt: skip
    p.add_argument(
        "--against", metavar="BEFORE", type=Path, action="append", default=[],
        help="compare with an earlier trace, saved advice or baseline; given several times, with several runs",
    )  # fmt: skip
    p.add_argument("--jobs", metavar="N", type=count, help="processes that read recordings (default: one a core)")
    p.add_argument(
        "--limit", metavar="BYTES",
        help="memory that reading one recording may take: 4GB … (default: 1.5 times its text and 300 MB)",
    )  # fmt: skip
    p.add_argument("--scheduler", metavar="ADDRESS", help="read them on the workers of this Dask cluster instead")
    p.add_argument("--budget", metavar="FILE", type=Path, help="limits (TOML) that the numbers are held against")
    p.add_argument("--debug", action="store_true", help="show the traceback of what exits with 3")
    p.add_argument(
        "--completion", choices=("bash", "zsh", "fish"), help="print what completes the options in this shell"
    )
    p.add_argument("-V", "--version", action=TellVersion, nargs=0, help="show program's version number and exit")
    return p


CONFIGURABLE = (
    "window", "steps", "step_marker", "phase", "hardware", "weights", "objective", "price", "batch", "prompt_tokens",
    "output_tokens", "against", "budget", "jobs", "top", "verbose",
)  # fmt: skip
"""Options that a project may set; none that would run its code or reach for the network."""


def configured(file: Path, options: argparse.ArgumentParser) -> dict[str, object]:
    """Defaults that `[tool.gpu-trace-advisor]` of a project's pyproject.toml sets, by the names of the options.

    Raises:
        BadUsage: the file is no TOML, or names an option that it cannot set, or gives it a value that it cannot take.
    """
    if not file.is_file():
        return {}
    text = read_small(file)
    if "gpu-trace-advisor" not in text:
        return {}
    import tomllib

    try:
        table = tomllib.loads(text).get("tool", {}).get("gpu-trace-advisor", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadUsage(f"{file}: {error}") from None
    if not isinstance(table, dict):
        raise BadUsage(f"{file}: [tool.gpu-trace-advisor] is no table")
    arguments = []
    for name, value in table.items():
        if name.replace("-", "_") not in CONFIGURABLE:
            allowed = ", ".join(option.replace("_", "-") for option in CONFIGURABLE)
            raise BadUsage(f"{file}: [tool.gpu-trace-advisor] {name}: expected {allowed}")
        for one in value if isinstance(value, list) else [value]:
            arguments += [f"--{name}"] * (one is not False) if isinstance(one, bool) else [f"--{name}={one}"]
    given = vars(options.parse_args(arguments))
    return {name.replace("-", "_"): given[name.replace("-", "_")] for name in table}


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1")
    return int(text)


def version() -> str:
    """The installed version; a bare checkout has none."""
    from importlib import metadata

    try:
        return metadata.version("gpu-trace-advisor")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `advise` with these arguments; returns the exit code."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by who started this
            setattr(sys, stream, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what an encoding lacks costs a character, not the output
    heap.own_process()
    given = sys.argv[1:] if argv is None else argv
    try:
        with lean.rare_collections():
            options = parser()
            if "_ARGCOMPLETE" in os.environ:  # a shell asks what could come next
                import argcomplete

                argcomplete.autocomplete(options)
            options.set_defaults(**configured(Path("pyproject.toml"), options))
            return run(options.parse_intermixed_args(given))
    except AdviseError as error:
        say(str(error))
        return error.exit_code
    except BrokenPipeError:  # the reader of the pipe has seen enough
        discard_output()
        return 0
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except MemoryError:
        say("not enough memory for this recording; record fewer steps, or raise the limit of the process")
        return AdviseError.exit_code
    except Exception as error:
        say(fault(error))
        if "--debug" in given:
            import traceback

            sys.stderr.write(printable(traceback.format_exc()))
        return FAULT


def say(message: str) -> None:
    """One line on standard error."""
    from gpu_trace_advisor.report.text.terminal import encodable

    line = clean(message)
    line = line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
    sys.stderr.write(encodable(printable(f"advise: {line}\n"), sys.stderr.encoding))


def fault(error: Exception) -> str:
    """What went wrong inside, where, and how to report it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = ""
    if at is not None:
        path = Path(at.tb_frame.f_code.co_filename)
        where = f" at {'/'.join(path.parts[-2:])}:{at.tb_lineno}"
    what = f"{type(error).__name__}{f': {str(error)[:200]}' if str(error) else ''}"
    return (
        f"a fault of advise {version()} itself, not of what it read: {what}{where}; please report this line with the "
        "traceback that --debug shows and, if you can share it, the recording"
    )


def run(options: argparse.Namespace) -> int:
    """Read, analyse, write."""
    if options.completion:
        put(completion(options.completion))
        return 0
    if options.test_rules:
        return test_rules(options)
    if options.list_rules or options.explain is not None:
        put(about_rules(options))
        return 0
    if not options.traces:
        raise BadUsage("no trace given; advise TRACE, or advise --help for what else it can do")
    request = asked(options)
    if options.output == Path("-"):
        options.output = None
    for option in ("json", "html"):
        if getattr(options, option) == Path("-"):
            raise BadUsage(f"--{option} -: give a file; --format {option} writes to standard output")
    if options.format == "github" and not (options.against or options.budget):
        raise BadUsage("--format github writes what --against or --budget find; give one of them")
    keep_inputs(options)
    if options.against or options.budget:
        return run_gates(options, request)
    with Progress(sys.stderr) as progress:
        advice, drawings, interrupted = looked_at(options, request, progress)
        if options.html:
            write_whole(options.html, in_format("html", advice, drawings))
        drawn = in_format(options.format, advice, drawings) if options.format in WITH_STUDIES else ""
    from gpu_trace_advisor.advice.verdict import BEFORE_ANYTHING

    for note in advice.health:
        if note.code in BEFORE_ANYTHING:
            say(note.message)
    if options.json:
        write_whole(options.json, to_json(advice))
    if options.format == "json":
        output = to_json(advice)
    elif drawn:
        output = drawn
    else:
        output = as_text(advice, options)
    if options.output:
        write_whole(options.output, output)
    elif drawn:
        put(output, utf8=True)
    elif options.format == "json" and (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        put(to_json(advice, ascii_only=True))
    else:
        put(output)
    if interrupted:
        say("interrupted; what was not read is named among the caveats")
        return INTERRUPTED
    return 0


def as_text(advice: Advice, options: argparse.Namespace) -> str:
    """The first screen, or everything with --verbose; what makes the answer doubtful goes to standard error too."""
    from gpu_trace_advisor.advice.verdict import limits
    from gpu_trace_advisor.report.text import first_screen, page

    for note in limits(advice.health)[:3]:
        say(f"warning: {note.message}")
    color = options.output is None and wants_color(sys.stdout)
    if options.verbose:
        return page.render(advice, color=color, width=width(), top=options.top)
    return first_screen.render(advice, color=color, width=width(), top=options.top or first_screen.CHANGES)


WITH_STUDIES = ("html", "csv", "markdown", "sarif", "perfetto", "gitlab")


def in_format(form: str, advice: Advice, drawings: Sequence[Drawing], outcome: Outcome | None = None) -> str:
    """The advice in one of these formats."""
    if form == "markdown":
        from gpu_trace_advisor.report import markdown

        return markdown.render(advice, outcome.comparison if outcome else None)
    if form == "csv":
        from gpu_trace_advisor.report import csv_table

        return csv_table.render(advice)
    if form == "sarif":
        from gpu_trace_advisor.report import sarif

        return sarif.render(advice, version(), Path.cwd())
    if form == "gitlab":
        from gpu_trace_advisor.report import gitlab

        return gitlab.render(advice, version(), Path.cwd())
    if form == "perfetto":
        from gpu_trace_advisor.report import perfetto

        return "".join(perfetto.render(advice, drawings))
    from gpu_trace_advisor.report.html import page as html

    return html.render(advice, drawings, outcome.comparison if outcome else None, outcome.checks if outcome else ())


def keep_inputs(options: argparse.Namespace) -> None:
    """Refuse outputs that would replace what is read, a recording, or each other.

    Raises:
        BadUsage: one of them would.
    """
    from gpu_trace_advisor.ingest.locations import is_recording, same_file

    outputs = [(name, path) for name in ("output", "json", "html") if (path := getattr(options, name)) is not None]
    inputs = [
        *options.traces,
        *options.against,
        *options.capture,
        *(one for one in (options.budget, options.rules) if one),
    ]
    for i, (name, path) in enumerate(outputs):
        if any(same_file(path, other) for other in inputs):
            raise BadUsage(f"--{name} {path}: is one of the inputs; name another file")
        if is_recording(path):
            raise BadUsage(f"--{name} {path}: a recording lies there, which advise does not replace; name another file")
        for other, there in outputs[:i]:
            if same_file(path, there):
                raise BadUsage(f"--{name} and --{other} both name {path}; give each its own file")


def put(text: str, *, utf8: bool = False, commands: bool = False) -> None:
    """Write to standard output, all of it.

    utf8: the text names its encoding itself, whatever the stream's; commands: it is for a CI.

    Raises:
        AdviseError: it cannot be written, as when the disk is full.
    """
    from gpu_trace_advisor.report.text.terminal import encodable

    text = printable(text, color=wants_color(sys.stdout), commands=commands)
    try:
        sys.stdout.flush()
        if utf8 and hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
        else:
            sys.stdout.write(encodable(text, sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise AdviseError(f"standard output cannot be written: {error.strerror or error}") from None


def discard_output() -> None:
    """Let what is still to be written to standard output go nowhere, so that leaving does not fail for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def asked(options: argparse.Namespace) -> Request:
    """What the options ask for.

    Raises:
        BadUsage: one of them is not what it should be.
    """
    from gpu_trace_advisor.analysis.request import Request
    from gpu_trace_advisor.units import read_size

    return Request(
        window=options.window,
        steps=options.steps,
        step_marker=options.step_marker,
        device=options.device,
        rank=options.rank,
        what_if=options.what_if,
        phase=None if options.phase == "auto" else options.phase,
        hardware=options.hardware,
        weights=read_size(options.weights, "--weights") if options.weights else None,
        objective=options.objective,
        price=options.price,
        batch=options.batch,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        limit=read_size(options.limit, "--limit") if options.limit else None,
        rules=options.rules,
        captures=tuple(options.capture),
    )


def about_rules(options: argparse.Namespace) -> str:
    """The list of rules and causes, or the page of one.

    Raises:
        BadUsage: no such rule or cause, or no such folder of rules.
    """
    from gpu_trace_advisor.advice.rule_loader import find_rules
    from gpu_trace_advisor.report.text.rule_page import explained, rule_list

    rules, errors = find_rules(Path(options.rules) if options.rules else None)
    for error in errors:
        say(error)
    return rule_list(rules) if options.explain is None else explained(options.explain, width(), rules)


def completion(shell: str) -> str:
    """What makes a shell complete the options.

    Raises:
        BadUsage: the package that does it is not installed.
    """
    try:
        import argcomplete
    except ImportError:
        raise BadUsage("--completion needs pip install 'gpu-trace-advisor[completion]'") from None
    return str(argcomplete.shellcode(["advise"], shell=shell)) + "\n"  # type: ignore[attr-defined, unused-ignore]


def test_rules(options: argparse.Namespace) -> int:
    """Run the cases of the user's own rules, or of the built-in ones where no folder is named; 1 when one differs."""
    from gpu_trace_advisor.advice.rule_cases import report
    from gpu_trace_advisor.advice.rule_loader import find_rules

    rules, errors = find_rules(Path(options.rules) if options.rules else None)
    for error in errors:
        say(error)
    text, good = report([rule for rule in rules if rule.own or not options.rules])
    put(text)
    return 0 if good and not errors else 1


def run_gates(options: argparse.Namespace, request: Request) -> int:
    """Read, analyse, hold against earlier runs and limits, write."""
    from gpu_trace_advisor.gate.check import Outcome, gates, nothing_after
    from gpu_trace_advisor.report.text.gate import github, render_checks, render_comparison

    color, columns = options.output is None and wants_color(sys.stdout), width()
    plain, parts, outcome = {}, [], Outcome()
    with Progress(sys.stderr) as progress:
        advice: Advice | None = None
        drawings: list[Drawing] = []
        try:
            advice, drawings, interrupted = looked_at(options, request, progress)
            if interrupted:  # a part of the ranks keeps no limit for the others
                raise KeyboardInterrupt
        except UnreadableTrace:
            raise
        except AdviseError as error:
            outcome = nothing_after(error, options.against)
        else:
            plain = advice.to_json()
            progress("comparing", None)
            outcome = gates(plain, options.against, options.budget, request)
            parts = [] if options.against else [as_text(advice, options)]
    if outcome.comparison is not None:
        parts.append(render_comparison(outcome.comparison, color=color, width=columns))
    if outcome.checks:
        parts.append(render_checks(outcome.checks, outcome.source, color=color, width=columns))
    merged = json_text({**plain, **outcome.to_json()}) + "\n"
    if options.json:
        write_whole(options.json, merged)
    file = ", ".join(Path(p).name for p in options.traces)
    told = {"json": merged, "github": github(outcome.comparison, outcome.checks, file)}
    if advice is not None:
        if options.html:
            write_whole(options.html, in_format("html", advice, drawings, outcome))
        if options.format in WITH_STUDIES:
            told[options.format] = in_format(options.format, advice, drawings, outcome)
    if options.format == "github" and advice is not None:
        add_step_summary(in_format("markdown", advice, drawings, outcome))
    output = told.get(options.format, "\n".join(parts))
    if options.output:
        write_whole(options.output, output)
    else:
        put(output, utf8=options.format in WITH_STUDIES, commands=options.format == "github")
    if outcome.complaint:
        say(outcome.complaint)
    return outcome.exit_code


def add_step_summary(text: str) -> None:
    """Add the findings to the summary of the workflow's step, where GitHub says that there is one."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not place:
        return
    try:
        with Path(place).open("a", encoding="utf-8", errors="replace") as summary:
            summary.write(text)
    except OSError as error:
        say(f"warning: the step summary cannot be written: {error.strerror or error}")


def looked_at(options: argparse.Namespace, request: Request, progress: Progress) -> RunResult:
    """All recordings, read and analysed as the options ask."""
    from gpu_trace_advisor.parallel.advise import look_at

    drawn = bool(options.html) or options.format in WITH_STUDIES
    return look_at(
        options.traces, request, jobs=options.jobs, scheduler=options.scheduler, drawn=drawn, tell=progress
    )  # fmt: skip


def to_json(advice: Advice, *, ascii_only: bool = False) -> str:
    """The advice as JSON text."""
    return json_text(advice.to_json(), ascii_only=ascii_only) + "\n"


def wants_color(stream: object) -> bool:
    """A terminal, and nobody asked for plain text (https://no-color.org)."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns to fill: the terminal's, from 40 to 200; 80 in a pipe and where a terminal does not know."""
    given = os.environ.get("COLUMNS", "")
    columns = int(given) if re.fullmatch("[0-9]{1,9}", given) else 0
    if not columns and sys.stdout.isatty():
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    return min(max(columns, 40), 200) if columns else 80
