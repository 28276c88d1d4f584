"""Finds the rules, asks each of them about a device, prices what they say, and ranks it.

Findings are ranked greedily by what they save on top of the better ones, so that the savings shown never add up to more
than the wall time and no stretch of it is saved twice.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.health import cold
from gpu_trace_advisor.analysis.phase import MIXED
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.reference.facts import fact
from gpu_trace_advisor.replay.changes import Change, together
from gpu_trace_advisor.replay.fixes import Fix, behind, speedup
from gpu_trace_advisor.replay.sweep import replay, wall_ns
from gpu_trace_advisor.rulekit.rule import GRADES, NEEDS, WORTH, Claim, Finding, Joint, Rule, Skipped
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.units import percent

GENERIC = 0.5  # a claim about the host in general comes before one about a particular wait only if it is twice as large


@dataclass(frozen=True)
class Verdicts:
    """What the rules say of one device."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    errors: tuple[str, ...]
    joint: Joint | None


def find_rules(folder: Path | None = None) -> tuple[list[Rule], list[str]]:
    """The rules of the package and of a user's own folder, by id; and what could not be loaded.

    Raises:
        BadUsage: there is no such folder.
    """
    package = import_module("gpu_trace_advisor.rules")
    rules: dict[str, Rule] = {}
    errors: list[str] = []
    for name in sorted(module.name for module in iter_modules(package.__path__)):
        _collect(rules, import_module(f"gpu_trace_advisor.rules.{name}"))
    if folder is not None:
        try:
            files = sorted(path for path in folder.iterdir() if path.suffix == ".py")
        except (FileNotFoundError, NotADirectoryError):
            raise BadUsage(f"--rules {folder}: no such folder") from None
        except OSError as error:
            raise BadUsage(f"--rules {folder}: {error.strerror or error}") from None
        for path in files:
            errors += _collect_file(rules, path)
    return sorted(rules.values(), key=lambda rule: rule.id), errors


def _collect(rules: dict[str, Rule], module: ModuleType) -> None:
    for value in vars(module).values():
        if isinstance(value, Rule):
            rules[value.id] = replace(value, path=str(module.__file__ or ""))


def _collect_file(rules: dict[str, Rule], path: Path) -> list[str]:
    """Add the rules of a user's file, which may do anything; what went wrong."""
    try:
        _collect(rules, _load(path))
    except (Exception, SystemExit) as error:  # a script among the rules may end with sys.exit
        return [f"{path}: {type(error).__name__}: {error}"]
    return []


def _load(path: Path) -> ModuleType:
    """A module that no import system knows, so that it can replace none."""
    name = f"user_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def named_rule(rules: Iterable[Rule], name: str) -> Rule:
    """The rule of this id.

    Raises:
        BadUsage: there is none.
    """
    known = {rule.id: rule for rule in rules}
    if name not in known:
        raise BadUsage(f"no rule {name}; there are {', '.join(known)}")
    return known[name]


def judge(view: DeviceWindow, rules: Sequence[Rule]) -> Verdicts:
    """What the rules say of a device, ranked."""
    claims, skipped, errors = list[tuple[Rule, Claim]](), list[Skipped](), list[str]()
    start_up = withheld(view)
    for rule in sorted(rules, key=lambda rule: rule.last):
        late = "other rules found something" if rule.last and claims else None
        why = unfit(rule, view) or (start_up if not rule.cold else None) or late
        if why:
            skipped.append(_skip(rule, view, why))
            continue
        try:
            said = list(rule.check(view))
        except Exception as error:  # one rule's mistake must not cost the others
            place = f"{view.trace.name}, device {view.timeline.device}"
            errors.append(f"rule {rule.id} failed on {place}: {type(error).__name__}: {error}")
            continue
        worth = [claim for claim in said if claim.ns >= WORTH * view.window.wall_ns or claim.first]
        claims += [(rule, claim) for claim in worth]
        if not worth:
            small = "what it found is below 1 % of the wall" if said else "nothing of the kind in the window"
            skipped.append(_skip(rule, view, small))
    view.timeline.forget()
    findings, left, joint = rank(view, claims)
    return Verdicts(tuple(findings), (*skipped, *left), tuple(errors), joint)


def unfit(rule: Rule, view: DeviceWindow) -> str | None:
    """Why a rule cannot be asked about a device; None where it can."""
    if not view.window.wall_ns:
        return "the window has no length: its operations are shorter than the recording resolves"
    for need in rule.needs:
        if why := NEEDS[need](view):
            return why
    phases = {view.phase.name}
    if view.phase.name == MIXED:
        phases |= {stretch.name for stretch in view.phase.stretches}
    if rule.phases and phases.isdisjoint(rule.phases):
        source = fact(rule.because)
        where = f"{source.document}, section {source.section}"
        if view.phase.name == "unknown":
            return f"it is about {' and '.join(rule.phases)}, and the phase is not known (--phase); see {where}"
        return f"it does not apply to {view.phase.name}: {source.says.rstrip('.')} ({where})"
    return None


def withheld(view: DeviceWindow) -> str | None:
    """Why nothing is advised on a cold start."""
    note = cold(view.causes, view.window)
    return f"withheld: {note.message}" if note else None


def _skip(rule: Rule, view: DeviceWindow, why: str) -> Skipped:
    return Skipped(rule.id, why, *view.place)


def distrust(view: DeviceWindow) -> str | None:
    """Why no saving is shown for a device; None where replays are trusted."""
    trust = view.trust
    if trust.enough:
        return None
    return (
        f"the unchanged replay is off by {percent(trust.error, 1, '+')} and {percent(trust.unexplained, 1)} of the wall rests "
        "on waits that nothing recorded explains: together more than 5 %, so no saving is shown"
    )


@dataclass
class _Applied:
    """The fixes taken so far, and how long the window takes with them, pessimistic and optimistic."""

    view: DeviceWindow
    taken: list[Fix] = field(default_factory=list)
    walls: tuple[int, int] = field(init=False)
    before: int = field(init=False)
    saved: tuple[float, float] = (0.0, 0.0)
    promised: float = 1.0
    """The share of the pessimistic fixes taken so far that is promised."""
    alone: dict[int, int] = field(default_factory=dict)
    """What each fix (by its claim's id) gains in its pessimistic form on the graph as it was."""

    def __post_init__(self) -> None:
        self.before = self._wall(self.view.graph)
        self.walls = self.before, self.before

    def _wall(self, graph: Graph) -> int:
        return wall_ns(replay(graph), self.view.window, self.view.index)

    def with_each(self, claims: Sequence[Claim]) -> dict[int, tuple[int, int]]:
        """By a claim's id the wall times with its fix on top."""
        found = []
        for now, form in zip(self.walls, (_pessimistic, _optimistic), strict=True):
            graph = together(*map(form, self.taken))(self.view.graph)  # one at a time: they are large
            found.append([min(self._wall(form(_fix(claim))(graph)), now) for claim in claims])
            del graph
        return {id(claim): walls for claim, walls in zip(claims, zip(*found, strict=True), strict=True)}

    def marginal(self, claim: Claim, walls: tuple[int, int]) -> tuple[int, int]:
        """What a claim's fix saves on top, pessimistic and optimistic."""
        gains, high = self.walls[0] - walls[0], self.walls[1] - walls[1]
        low = behind(gains, self.alone.setdefault(id(claim), gains), self.promised) * _fix(claim).low_share
        bound = self.before if claim.at_most_ns is None else claim.at_most_ns
        return int(min(low, high, bound)), int(min(high, bound))

    def take(self, claim: Claim, walls: tuple[int, int]) -> None:
        low, high = self.marginal(claim, walls)
        self.saved = self.saved[0] + low, self.saved[1] + high
        self.walls = walls
        self.promised *= _fix(claim).low_share
        self.taken.append(_fix(claim))


def _fix(claim: Claim) -> Fix:
    assert claim.fix is not None
    return claim.fix


def _pessimistic(fix: Fix) -> Change:
    return fix.low


def _optimistic(fix: Fix) -> Change:
    return fix.high


def rank(view: DeviceWindow, claims: Sequence[tuple[Rule, Claim]]) -> tuple[list[Finding], list[Skipped], Joint | None]:
    """The findings: doubts about the trace, then savings by what they add, then what has no price by its time."""
    wall, why = view.window.wall_ns, distrust(view)
    unpriced = {id(claim): claim.unpriced or why or _unpriced(claim, view) for _, claim in claims}
    priced = [(rule, claim) for rule, claim in claims if not unpriced[id(claim)]]
    rest = [(rule, claim) for rule, claim in claims if unpriced[id(claim)]]
    findings, skipped = list[Finding](), list[Skipped]()
    joint = None
    if priced:
        applied = _Applied(view)
        walls = applied.with_each([claim for _, claim in priced])
        adds = alone = {id(claim): applied.marginal(claim, walls[id(claim)]) for _, claim in priced}
        left = priced
        # What gives nothing by itself may do so behind a better fix: kernels matter once the host keeps up with them.
        while worth := [pair for pair in left if adds[id(pair[1])][1] >= WORTH * wall]:
            best = _first(worth, adds)
            left = [pair for pair in left if pair is not best]
            rule, claim = best
            saving = adds[id(claim)]
            applied.take(claim, walls[id(claim)])
            findings.append(_finding(view, rule, claim, saving, alone[id(claim)], ""))
            walls = applied.with_each([other for _, other in left])
            adds = {id(other): applied.marginal(other, walls[id(other)]) for _, other in left}
        for rule, claim in left:
            alone_ns = alone[id(claim)][1]
            if alone_ns >= WORTH * wall:
                why_not = f"what it would save is saved already by what comes first ({findings[0].rule} …)"
            else:
                why_not = f"it would save {percent(alone_ns / wall, 1)} at most, below 1 %"
            skipped.append(_skip(rule, view, why_not))
        if findings:
            low, high = (int(min(ns, wall)) for ns in applied.saved)
            joint = Joint(*view.place, (low, high), speedup(wall, (low, high)))
    rest.sort(key=lambda pair: -pair[1].ns)
    said = [(claim.first, _finding(view, rule, claim, None, None, unpriced[id(claim)])) for rule, claim in rest]
    return [f for first, f in said if first] + findings + [f for first, f in said if not first], skipped, joint


def _first(left: Sequence[tuple[Rule, Claim]], adds: dict[int, tuple[int, int]]) -> tuple[Rule, Claim]:
    """The claim to take next: the largest, but a particular wait of about its size before the host in general."""

    def size(pair: tuple[Rule, Claim]) -> float:
        return _root(pair[1], adds[id(pair[1])])

    best = max(left, key=size)
    waits = [pair for pair in left if pair[1].wait and size(pair) >= GENERIC * size(best)]
    return max(waits, key=size) if best[1].generic and waits else best


def _root(claim: Claim, saving: tuple[int, int]) -> float:
    """What a claim is ranked by: its saving, as far as it is time of its own.

    A replay lets other waits hide behind time that a fix frees (a loader behind queued work, once launching is quick). The
    wait's own rule comes first all the same: each stretch of time has one root cause.
    """
    return min(sum(saving) / 2, claim.ns)


def _unpriced(claim: Claim, view: DeviceWindow) -> str:
    """Why a claim has no price; empty where it has one."""
    if claim.fix is None:
        return "no change of the timeline stands for it"
    return claim.fix.refuses(view.graph) or ""


def _finding(
    view: DeviceWindow, rule: Rule, claim: Claim, saving: tuple[int, int] | None, alone: tuple[int, int] | None, unpriced: str
) -> Finding:  # fmt: skip
    assumes = claim.fix.assumes if claim.fix and saving else ()
    model = "modelled" if saving else "measured"
    grade = max(claim.grade, model, "assumed" if assumes else "measured", key=GRADES.index)
    doubts = tuple(filter(None, (view.repetition.doubt, *claim.doubts)))
    return Finding(
        rule=rule.id,
        title=claim.title or rule.title,
        message=claim.message,
        **view.place._asdict(),
        ns=claim.ns,
        saving_ns=saving,
        alone_ns=alone,
        speedup=speedup(view.window.wall_ns, alone) if alone else None,
        unpriced=unpriced,
        grade=grade,
        confidence="low" if doubts else "high",
        doubts=doubts,
        evidence=claim.evidence,
        formula=claim.formula,
        assumes=assumes,
        sources=rule.sources(),
        how=claim.how,
        verify=rule.section("How to verify"),
    )
