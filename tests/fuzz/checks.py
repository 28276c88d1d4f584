"""What holds whatever the input is: what went wrong, or nothing."""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from gpu_trace_advisor import cli
from gpu_trace_advisor.advice import model
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.gate.baseline import Baseline
from gpu_trace_advisor.gate.check import gates
from gpu_trace_advisor.gate.run_record import run_of
from gpu_trace_advisor.gate.saved import first_violation
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.report.text import page
from gpu_trace_advisor.report.text.gate import github, render_checks, render_comparison
from gpu_trace_advisor.sanitize import clean, json_text, printable

from tests.fuzz.inputs import ROOT, Input

SECONDS = 10.0  # of the processor, for one input
BYTES = 3 << 30  # of address space beyond what the process has at its start

SCHEMA: dict[str, Any] = json.loads(Path(model.__file__).with_name("advice.schema.json").read_text("utf-8"))
FORMATS = ("markdown", "sarif", "perfetto", "html")


class TooLong(BaseException):
    """An input took longer than SECONDS."""


@contextmanager
def limits() -> Iterator[None]:
    """More memory than BYTES is refused meanwhile, and SECONDS end what runs."""

    def ring(*_: object) -> None:
        raise TooLong

    with Path("/proc/self/statm").open() as file:
        here = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, ring)
    resource.setrlimit(resource.RLIMIT_AS, (here + BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def failure(given: Input) -> str:
    """What is wrong about what the input does, the same words for the same fault; empty when nothing is."""
    with _folder(given):
        try:
            for name, data in given.files.items():
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).write_bytes(data)
            with limits():
                THROUGH[given.through](given)
        except AdviseError as error:
            return "" if len(str(error)) < 20_000 else f"a message of {len(str(error))} characters"
        except TooLong as error:
            return f"longer than {SECONDS:g} s{_where(error)}"
        except BaseException as error:
            gc.collect()
            return f"{type(error).__name__}: {str(error)[:100]}{_where(error)}"
    return ""


@contextmanager
def _folder(given: Input) -> Iterator[None]:
    """An empty working directory: the same one again where that is safe, since removing one takes longer than most checks."""
    if any("/" in name for name in given.files):  # modules of rules, which Python keeps compiled
        with TemporaryDirectory(prefix="fuzz-") as own, chdir(_inside(own)):
            yield
        return
    with chdir(_shared_folder()):
        try:
            yield
        finally:
            for entry in os.scandir("."):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else Path(entry).unlink()


@cache
def _shared_folder() -> str:
    folder = mkdtemp(prefix="fuzz-")
    atexit.register(shutil.rmtree, folder)
    return _inside(folder)


def _inside(folder: str) -> str:
    """A folder in it, so that `..` holds nothing: rules there would be run."""
    inside = Path(folder, "here")
    inside.mkdir()
    return str(inside)


_parser = cache(cli.parser)


def _where(error: BaseException) -> str:
    """The innermost line of the project's own."""
    at, found = error.__traceback__, ""
    while at is not None:
        path = at.tb_frame.f_code.co_filename
        if str(ROOT) in path and "/site-packages/" not in path:
            found = f" at {'/'.join(Path(path).parts[-2:])}:{at.tb_lineno}"
        at = at.tb_next
    return found


# ---- through what an input goes --------------------------------------------------------------------------------------


def through_advise(given: Input) -> None:
    options = _parser().parse_intermixed_args(list(given.arguments))
    # Drawing takes longest: all formats for each third input.
    drawn = given.kind == "texts" or sum(map(len, given.files.values())) % 3 == 0
    with redirect_stderr(io.StringIO()):
        found = look_at(options.traces, cli.asked(options), jobs=1, drawn=drawn)
    check_advice(found.advice)
    for form in FORMATS if drawn else ():
        text = cli.in_format(form, found.advice, found.drawings)
        check_printed(printable(text), form)
        if form in ("sarif", "perfetto"):
            json.loads(text, parse_constant=_refused)
        if form == "html":
            check_page(text)
    check_printed(printable(page.render(found.advice, color=False, width=80)), "text")


def through_main(given: Input) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = cli.main([*given.arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    assert code in (0, 1, 2), f"exit code {code}: {err.getvalue()[:300]}"
    others = [line for line in err.getvalue().splitlines() if not line.startswith("advise: warning: ")]
    assert code or not others or "--explain" in given.arguments or "--rules" in given.arguments, others[0][:200]
    assert err.getvalue().count("\n") <= 1 or "--rules" in given.arguments, (
        f"lines on standard error: {err.getvalue()[:200]}"
    )
    check_printed(err.getvalue(), "standard error")
    check_printed(out.getvalue(), "standard output")


def through_saved(given: Input) -> None:
    kind, path = given.arguments
    outcome = gates(
        advice_in_json(),
        [Path(path)] if kind == "--against" else [],
        Path(path) if kind == "--budget" else None,
        cli.asked(_parser().parse_args(["a"])),
    )
    json_text(outcome.to_json())
    assert outcome.exit_code in (0, 1, 2)
    check_printed(printable(github(outcome.comparison, outcome.checks, path), commands=True), "github")
    if outcome.comparison:
        check_printed(printable(render_comparison(outcome.comparison, color=False, width=80)), "comparison")
    check_printed(printable(render_checks(outcome.checks, outcome.source, color=False, width=80)), "checks")


def through_readers(given: Input) -> None:
    from gpu_trace_advisor.ingest.chrome.reader import read_all, read_events

    results: list[Any] = []
    for reader in (read_events, read_all):
        try:
            results.append(_columns(reader(given.arguments[0])))
        except AdviseError as error:
            results.append(str(error))
    one, other = results
    if isinstance(one, str) or isinstance(other, str):
        assert one == other, f"one reader refuses: {_kind(one)} / {_kind(other)}"
        return
    for name in one:
        assert one[name] == other[name], f"two readers differ in {name}"


def _kind(result: Any) -> str:
    return re.sub("[0-9]+", "N", result.partition(": ")[2][:60]) if isinstance(result, str) else "read"


def _columns(raw: Any) -> dict[str, Any]:
    """The events with texts in place of codes, which are any order."""
    strings = [*raw.strings, None]
    found: dict[str, Any] = {"ts": raw.ts.tolist(), "dur": raw.dur.tolist(), "phase": raw.phase.tolist()}
    for name in ("name", "category", "pid", "tid"):
        found[name] = [strings[code] for code in getattr(raw, name).tolist()]
    found["integers"] = {
        key: (rows.tolist(), values.tolist()) for key, (rows, values) in raw.integers.items() if len(rows)
    }
    found["texts"] = {
        key: (rows.tolist(), [strings[c] for c in codes.tolist()])
        for key, (rows, codes) in raw.texts.items()
        if len(rows)
    }
    found["metadata"] = json.dumps(raw.metadata, default=str, sort_keys=True)
    found["notes"] = {key: n for key, n in raw.notes.items() if n}
    return found


def through_text(given: Input) -> None:
    (text,) = given.arguments
    check_printed(printable(text), "printable")
    check_printed(printable(f"::error::{clean(text)}", commands=True), "a command")
    line = clean(text)
    assert "\n" not in line and clean(line) == line, "clean is not done in one go"
    check_printed(line, "clean")
    check_printed(shareable(text), "shareable")
    assert json.loads(json_text(text)) == re.sub("[\ud800-\udfff]", "\ufffd", text), "JSON of another text"
    check_printed(json_text(text), "JSON")


THROUGH = {
    "advise": through_advise,
    "main": through_main,
    "saved": through_saved,
    "readers": through_readers,
    "text": through_text,
}


# ---- invariants ------------------------------------------------------------------------------------------------------


def _refused(word: str) -> None:
    raise AssertionError(f"{word} in JSON")


CHARACTERS = map(chr, range(sys.maxunicode + 1))
COMMANDS = frozenset(c for c in CHARACTERS if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")) - {"\n"}


def check_printed(text: str, what: str) -> None:
    """Nothing in it commands a terminal."""
    found = COMMANDS.intersection(text)
    assert not found, f"{what} holds U+{ord(min(found)):04X}"


INJECTED = re.compile(r"<script>alert|<img src=x|javascript:1\"")


def check_page(text: str) -> None:
    assert not INJECTED.search(text), "the page holds markup of a name"


def check_advice(advice: Advice) -> None:
    """Valid JSON in which the parts add up, shares are shares, and no saving is more than what it is of."""
    plain = json.loads(json_text(advice.to_json()), parse_constant=_refused)
    violation = first_violation(plain, SCHEMA)
    assert not violation, f"not valid: {re.sub('[0-9]+', 'N', violation)[:80]}"
    for device in plain["devices"]:
        wall, parts = device["wall_ns"], sum(item["ns"] for item in device["attribution"])
        assert parts == wall, f"parts of {parts} in a wall of {wall}"
        assert device["busy_ns"] + device["idle_ns"] == wall, "busy and idle are not the wall"
        halves = device["compute_ns"] + device["communication_ns"] + device["copy_ns"]
        assert halves == device["busy_ns"], "kinds of work are not the busy time"
        sides = device["idle_host_ns"] + device["idle_submitted_ns"] + device["idle_unlinked_ns"]
        assert sides == device["idle_ns"], "sides are not the idle time"
    for finding in plain["findings"]:
        if finding["saving_ns"]:
            low, high = finding["saving_ns"]
            walls = [d["wall_ns"] for d in plain["devices"]]
            assert 0 <= low <= high <= max(walls), "a saving beyond the wall"
            assert high <= (finding.get("ns") or high), f"{finding['rule']} saves more than the time that it names"
    for said in (advice.verdict, *(finding.message for finding in advice.findings)):
        for number in re.findall(r"([0-9][0-9,.]*) % of the wall", said):
            assert float(number.replace(",", "")) <= 100.05, f"more than the wall: {re.sub('[0-9]+', 'N', said)[:80]}"


@cache
def advice_in_json() -> dict[str, Any]:
    """An advice for what was saved to be held against."""
    found: dict[str, Any] = json.loads(
        json_text(advise_traces([read(ROOT / "traces" / "mlp-training.json.gz")]).to_json())
    )
    return found


@cache
def saved_forms() -> tuple[tuple[str, dict[str, Any]], ...]:
    """A saved advice and a baseline."""
    run = run_of(advice_in_json())
    baseline = {"baseline": 1, "hardware": {run.hardware: [run.to_json()]}}
    assert Baseline.of(json.loads(json.dumps(baseline)), "").hardware
    return ("saved advice", advice_in_json()), ("baselines", baseline)


if not sys.platform.startswith("linux"):  # the limits are those of its processes
    raise ImportError("the fuzzer runs on Linux")
