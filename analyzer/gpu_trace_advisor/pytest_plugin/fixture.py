"""What the `efficiency` fixture does: record or read, check limits, hold against the baseline, report."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gpu_trace_advisor.advice.build import examine
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.drawing.build import draw
from gpu_trace_advisor.errors import AdviseError, BadUsage
from gpu_trace_advisor.gate.baseline import Baseline
from gpu_trace_advisor.gate.budget import OK, SETTINGS, Budget, Check, check, limits_of
from gpu_trace_advisor.gate.compare import NOT_COMPARABLE, REGRESSED, SAME, TOO_FEW, Comparison, compare, count_changes
from gpu_trace_advisor.gate.run_record import Run, run_of
from gpu_trace_advisor.ingest import find_traces, read
from gpu_trace_advisor.quantity import shown
from gpu_trace_advisor.record import Recording, Settings, import_torch
from gpu_trace_advisor.runtime.files import locked, write_whole
from gpu_trace_advisor.sanitize import clean, printable
from gpu_trace_advisor.trace.model import Trace
from gpu_trace_advisor.units import percent

NOT_LIMITS = ("against", "unknown", "aggregate", "level")
LONGEST = 100  # of a text in a file's name
SAFE = re.compile(r"[^\w.=-]+")


@dataclass
class Efficiency:
    """The fixture's value for one test."""

    item: pytest.Item
    prefix: str
    """Of the names of reported properties."""
    baselines: Path
    traces: Path
    """Folder for what is recorded."""
    limits: dict[str, Any] = field(default_factory=dict)
    """From the test's markers; what a call gives comes on top."""
    update: bool = False
    require_gpu: bool = False
    reports: Path | None = None
    measured: int = 0

    @classmethod
    def of_test(cls, request: pytest.FixtureRequest, prefix: str) -> Efficiency:
        """With the options of the run and the markers of the test, the nearest last."""
        config = request.config
        limits: dict[str, Any] = {}
        for marker in reversed(list(request.node.iter_markers("efficiency"))):
            if marker.args:
                _fail(f'@pytest.mark.efficiency takes limits by name, such as idle="10%", not {marker.args!r}')
            limits.update(marker.kwargs)
        html = config.getoption("--efficiency-html")
        folder = config.getoption("--efficiency-baselines") or config.getini("efficiency_baselines")
        return cls(
            item=request.node,
            prefix=prefix,
            baselines=config.rootpath / folder,
            traces=request.getfixturevalue("tmp_path"),
            limits=limits,
            update=config.getoption("--efficiency-update"),
            require_gpu=config.getoption("--efficiency-require-gpu"),
            reports=Path(html) if html else None,
        )

    @contextmanager
    def record(
        self, *, steps: int = 10, warmup: int = 3, device: str = "auto", stacks: bool = False, **limits: Any
    ) -> Iterator[Recording]:
        """Record the block and check it: the loop over its steps, or the block as it is.

        `warmup + 1` iterations run before `steps` are recorded. `device="cpu"` records the host's side on purpose;
        else a machine without a GPU skips the test.
        """
        self.measured += 1
        try:
            torch = import_torch()
            if device == "auto" and not torch.cuda.is_available():
                why = "no GPU here that PyTorch can use, so there is nothing to measure"
                if self.require_gpu:
                    _fail(f"{why} (--efficiency-require-gpu)")
                pytest.skip(why)
            path = self.traces / f"efficiency-{self.measured}.json.gz"
            recording = Recording(path, Settings(steps=steps, warmup=warmup, device=device, stacks=stacks))
        except AdviseError as error:
            _fail(str(error))
        with recording:
            yield recording
        self.measured -= 1  # check counts it
        self.check(path, **limits)
        if recording.overhead is not None:
            self._note(f"recording made a step {percent(recording.overhead, sign='+')} longer")

    def check(
        self, *paths: str | os.PathLike[str], capture: str | os.PathLike[str] | None = None, **limits: Any
    ) -> Advice:
        """Hold traces of either format against the limits; several recordings of a device count by their median.

        `capture` is a recording, or a folder of them, of how the graphs were captured that the traces replay.
        """
        self.measured += 1
        wanted = {**self.limits, **limits}
        try:
            traces = [read(file) for path in paths for file in find_traces(Path(path))]
            captures = () if capture is None else (os.fspath(capture),)
            advice, views = examine(traces, Request(captures=captures))
            plain = advice.to_json()
            checks = self._checks(plain, wanted)
            compared = self._against(run_of(plain), wanted["against"]) if wanted.get("against") else []
        except AdviseError as error:
            _fail(str(error))
        self._report(advice, views, traces)
        for found in checks:
            self._property(found.name, _value(found))
        failed = [found.line() for found in checks if found.fails] + compared
        self.item.add_report_section("call", "efficiency", printable("\n".join(clean(c.line()) for c in checks)))
        if failed:
            _fail("\n".join(failed))
        return advice

    def _checks(self, plain: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Check]:
        settings = {key: wanted.get(key, allowed[0]) for key, allowed in SETTINGS.items()}
        for key, allowed in SETTINGS.items():
            if settings[key] not in allowed:
                raise BadUsage(f"{key}={settings[key]!r}: expected {', '.join(allowed)}")
        named = {key: value for key, value in wanted.items() if key not in NOT_LIMITS}
        limits = limits_of(named, "limits", level=settings["level"], unknown=settings["unknown"])
        return check(plain, Budget(tuple(limits), settings["aggregate"], "efficiency")) if limits else []

    def _against(self, run: Run, name: str) -> list[str]:
        """What is worse than the baseline; the baseline is written where it is asked for or missing."""
        path = self._baseline_path(name)
        shown_path = (
            path.relative_to(self.item.config.rootpath) if path.is_relative_to(self.item.config.rootpath) else path
        )
        if self.update or not path.is_file():
            if not self.update and os.environ.get("CI"):
                return [
                    f"no baseline {shown_path}, and CI does not write one: run pytest --efficiency-update where the "
                    "baseline is to come from, and commit the file"
                ]
            self._note(f"baseline {shown_path} {self._write(path, run)}; commit it")
            return []
        baseline = Baseline.load(path)
        runs = list(baseline.hardware.get(run.hardware, ()))
        if not runs:
            return self._counts_only(run, baseline, str(shown_path))
        comparison = compare(runs, run)
        return self._judged(comparison, str(shown_path))

    def _judged(self, comparison: Comparison, path: str) -> list[str]:
        self._property("against", f"{comparison.verdict}; {path}; {'BROKEN' if comparison.exit_code == 1 else ''}")
        for note in comparison.notes or (comparison.reason,) * (comparison.verdict == SAME and comparison.itself):
            self._note(f"baseline {path}: {note}")
        if comparison.verdict in (REGRESSED, NOT_COMPARABLE):
            return [f"against {path}: {comparison.verdict}: {comparison.reason}"]
        if comparison.verdict == TOO_FEW:
            self._note(f"baseline {path}: {comparison.reason}: times are not held, counts are")
            grown = [count for lane in comparison.lanes for count in lane.counts if count.grew]
            return [f"against {path}: {c.name} per step grew: {c.before:g} → {c.after:g}" for c in grown]
        return []

    def _counts_only(self, run: Run, baseline: Baseline, path: str) -> list[str]:
        """Numbers that do not depend on the hardware are held, times are not."""
        others = [other for runs in baseline.hardware.values() for other in runs]
        self._note(
            f"baseline {path} is of {', '.join(baseline.hardware)}, this is {run.hardware}: counts are held, times are not; "
            "add this hardware with --efficiency-update"
        )
        self._property("against", f"other hardware; {path}; counts only")
        failed = []
        for lane in run.lanes:
            before = [other for known in others for other in known.lanes if other.key == lane.key]
            failed += [
                f"against {path}: {c.name} per step grew: {c.before:g} → {c.after:g} ({lane.key})"
                for c in count_changes(before, lane)
                if c.grew
            ]
        return failed

    def _write(self, path: Path, run: Run) -> str:
        """Add the run to those that it does not differ from; else it is the first of new ones.

        Workers of one suite may add to one baseline: one after the other, so that none is lost.
        """
        with suppress(OSError):  # whoever writes there says so
            path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            return self._add(path, run)

    def _add(self, path: Path, run: Run) -> str:
        baseline = Baseline.load(path) if path.is_file() else Baseline()
        known = baseline.hardware.get(run.hardware, ())
        if known:
            comparison = compare(known, run)
            if comparison.verdict not in (SAME, TOO_FEW) or any(lane.counts for lane in comparison.lanes):
                baseline = Baseline({name: runs for name, runs in baseline.hardware.items() if name != run.hardware})
        baseline = baseline.with_run(run)
        baseline.write(path)
        count = len(baseline.hardware[run.hardware])
        return f"written: {count} {'run' if count == 1 else 'runs'} on {run.hardware}"

    def _baseline_path(self, name: str) -> Path:
        """Each case of a parametrised test has its own."""
        case = getattr(self.item, "callspec", None)
        return self.baselines / f"{'@'.join(map(file_name, (name, case.id) if case else (name,)))}.json"

    def _report(self, advice: Advice, views: Sequence[DeviceWindow], traces: Sequence[Trace]) -> None:
        """A page for the test where one is asked for; plain text where what draws pages is not installed."""
        if self.reports is None:
            return
        self.reports.mkdir(parents=True, exist_ok=True)
        name = self.reports / file_name(self.item.nodeid)
        try:
            from gpu_trace_advisor.report.html.page import render as page
        except ImportError:
            from gpu_trace_advisor.report.text.page import render

            write_whole(name.with_name(f"{name.name}.txt"), render(advice, color=False, width=120))
        else:
            write_whole(name.with_name(f"{name.name}.html"), page(advice, draw(advice, views, traces)))

    def _property(self, name: str, value: str) -> None:
        self.item.user_properties.append((f"{self.prefix}{name}", value))

    def _note(self, text: str) -> None:
        self._property("note", clean(text).replace("; ", ", "))


def _value(found: Check) -> str:
    """`found; limit; status`: what the summary and JUnit show."""
    number = "unknown" if found.found is None else shown(found.found, found.dimension)
    per = f" per {found.per}" if found.per else ""
    status = "" if found.status == OK else found.status.upper() if found.level == "error" else "warning"
    return f"{number}{per}; {found.sign} {shown(found.limit, found.dimension)}; {status}"


def _fail(text: str) -> NoReturn:
    """Fail the test with a message alone."""
    raise pytest.fail.Exception(printable(f"efficiency: {text}"), pytrace=False) from None


def file_name(text: str) -> str:
    """A text as part of a file's name that no other text gives: what had to be changed or cut is told apart by its hash."""
    safe = SAFE.sub("-", text)[:LONGEST]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"
