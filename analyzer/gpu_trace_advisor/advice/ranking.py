"""Asks each rule about a device, prices what it says, and ranks it.

Findings are ranked greedily by what they save on top of the better ones, so that the savings shown never add up to more
than the wall time and no stretch of it is saved twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TypeVar

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.health import cold
from gpu_trace_advisor.analysis.largest_loss import KERNELS, largest_loss, speaks_of
from gpu_trace_advisor.analysis.phase import MIXED
from gpu_trace_advisor.attribution.causes import CAUSES
from gpu_trace_advisor.columns.intervals import clip, total
from gpu_trace_advisor.graph import Graph
from gpu_trace_advisor.replay.changes import Change
from gpu_trace_advisor.replay.changes import together as changed_together
from gpu_trace_advisor.replay.fixes import Fix, Saving, behind, speedup
from gpu_trace_advisor.replay.sweep import TRUSTED, replay, wall_ns
from gpu_trace_advisor.rulekit.rule import GRADES, NEEDS, WORTH, Claim, Finding, JointGain, Named, Rule, Skipped
from gpu_trace_advisor.rulekit.wall_time import explained_ns, settled
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.runtime.guarded import Failed, attempt, described
from gpu_trace_advisor.units import percent

T = TypeVar("T")
LEADS = 0.05  # of the wall: a doubt about less of the recording does not come before what can be saved
ANSWERS = 2  # a question about the largest loss comes first if it is about so many times what a saving gives
OUTWEIGHS = 8  # a question about so many times what a saving gives comes before it
CERTAIN = 0.9  # of what rests on assumptions: a replay in which both forms come to the same does not prove them
QUESTION = 0.5  # of the wall: kernels of so much are spoken of although the recorded host leaves nothing to save
PACED = "in the replay the host launches no sooner for it; a wait for the GPU that is not recorded would look the same"
COMMUNICATION = "exposed-communication"
GENERIC = 0.5  # a claim about the host or communication in general comes before a particular cause only if it is twice as large


@dataclass(frozen=True)
class Verdicts:
    """What the rules say of one device."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    errors: tuple[str, ...]
    joint: JointGain | None


@dataclass
class Priced:
    """A claim's fix, and what it would save now."""

    claim: Claim
    walls: tuple[int, int] = (0, 0)
    """Wall time with its fix on top of those taken, pessimistic and optimistic."""
    adds: tuple[int, int] = (0, 0)
    """What that saves."""
    alone: tuple[int, int] | None = None
    """What it saves by itself."""

    @property
    def fix(self) -> Fix:
        assert self.claim.fix is not None
        return self.claim.fix


@dataclass
class PricedClaim(Priced):
    """A claim on its way to a finding."""

    rule: Rule = field(kw_only=True)
    unpriced: str = ""
    """Why it has no saving."""
    leads: bool = False
    """It has none, and comes before those that have one."""


def judge(view: DeviceWindow, rules: Sequence[Rule]) -> Verdicts:
    """What the rules say of a device, ranked."""
    claims, skipped, errors = list[PricedClaim](), list[Skipped](), list[str]()
    start_up = withheld(view)
    loss = largest_loss(view.items, total(clip(view.timeline.busy, view.window.start_ns, view.window.end_ns)))
    for rule in sorted(rules, key=lambda rule: (rule.answers, rule.last)):
        reason = unfit(rule, view)
        if not reason and start_up and not rule.cold:
            reason = "cold", start_up
        if not reason and rule.last and claims:
            reason = "covered", "other rules found something"
        if not reason and rule.answers and (loss is None or any(speaks_of(loss, one.claim.named) for one in claims)):
            reason = "covered", "other rules speak of the largest loss"
        if reason:
            skipped.append(_skip(rule, view, *reason))
            continue
        try:
            said = claims_by(rule, view)
        except Failed as error:  # one rule's mistake must not cost the others
            errors.append(_failed(rule, view, error))
            continue
        worth = [claim for claim in said if claim.ns >= WORTH * view.window.wall_ns]
        claims += [PricedClaim(claim, rule=rule) for claim in worth]
        if not worth:
            small = ("small", "what it found is below 1 % of the wall")
            skipped.append(_skip(rule, view, *(small if said else ("absent", "nothing of the kind in the window"))))
    view.timeline.forget()
    findings, left, joint, failed = rank(view, claims, loss)
    return Verdicts(tuple(findings), (*skipped, *left), (*errors, *failed), joint)


def claims_by(rule: Rule, view: DeviceWindow) -> list[Claim]:
    """What a rule says of a device.

    Raises:
        Failed: it raised something, or yielded what is no claim, or took too long.
    """
    return attempted(rule, lambda: [settled(view, checked(claim)) for claim in rule.check(view)])


def attempted(rule: Rule, work: Callable[[], T]) -> T:
    """What a part of a rule answers; one of the package's own may take its time, and never ends the program.

    Raises:
        Failed: it raised something.
    """
    if rule.own:
        return attempt(work)
    try:
        return work()
    except Exception as error:
        raise Failed(described(error)) from error


def checked(claim: Claim) -> Claim:
    """The claim, if it is one.

    Raises:
        TypeError, ValueError: a rule yielded something else, or a claim about no time.
    """
    if not isinstance(claim, Claim):
        raise TypeError(f"a rule yields Claims, not {type(claim).__name__}")
    if not isinstance(claim.ns, int | np.integer) or claim.ns < 0:
        raise ValueError(f"ns={claim.ns!r}: expected nanoseconds as a whole number, 0 or more")
    if not all(isinstance(ns, int | np.integer) and cause in CAUSES for cause, ns in claim.named.items()):
        raise ValueError(f"named={claim.named!r}: expected whole nanoseconds by cause")
    if not isinstance(claim.message, str) or not isinstance(claim.how, str):
        raise TypeError("message and how are text")
    return claim


def _failed(rule: Rule, view: DeviceWindow, error: Failed) -> str:
    place = f"{view.trace.name}, device {view.timeline.device}"
    return f"rule {rule.id} failed on {place}: {error}"


def unfit(rule: Rule, view: DeviceWindow) -> tuple[str, str] | None:
    """Why a rule cannot be asked about a device, as a code of SKIPPED and in words; None where it can."""
    if not view.window.wall_ns:
        return "data", "the window has no length: its operations are shorter than the recording resolves"
    for need in rule.needs:
        if why := NEEDS[need](view):
            return "data", why
    phases = {view.phase.name}
    if view.phase.name == MIXED:
        phases |= {stretch.name for stretch in view.phase.stretches}
    unknown = view.phase.name == "unknown"
    if rule.phases and phases.isdisjoint(rule.phases) and not (unknown and rule.in_doubt):
        source = rule.source(rule.because)
        where = f"{source.document}, section {source.section}" if source.section else source.document
        if unknown:
            about = " and ".join(rule.phases)
            return "phase-unknown", f"it is about {about}, and the phase is not known (--phase); see {where}"
        return "phase", f"it does not apply to {view.phase.name}: {source.says.rstrip('.')} ({where})"
    return None


def withheld(view: DeviceWindow) -> str | None:
    """Why nothing is advised on a cold start."""
    note = cold(view.attribution, view.window, view.steps)
    return f"withheld: {note.message}" if note else None


def _skip(rule: Rule, view: DeviceWindow, code: str, why: str) -> Skipped:
    return Skipped(rule.id, code, why, *view.place)


def distrust(view: DeviceWindow) -> str | None:
    """Why no saving is shown for a device; None where replays are trusted."""
    trust = view.trust
    if trust.enough:
        return None
    off = f"the unchanged replay is off by {percent(trust.error, 1, '+')}"
    unrecorded = (
        f"{percent(trust.unexplained, 1)} of the wall rests on what was not recorded (launches, waits, kernels, host)"
    )
    reasons = [off, unrecorded]
    if trust.unexplained > TRUSTED:  # either alone is enough to say
        reasons = [unrecorded]
    elif abs(trust.error) > TRUSTED:
        reasons = [off]
    return f"{' and '.join(reasons)}: above {percent(TRUSTED)} no saving is shown"


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

    def __post_init__(self) -> None:
        self.before = self._wall(self.view.graph)
        self.walls = self.before, self.before

    def _wall(self, graph: Graph) -> int:
        return wall_ns(replay(graph), self.view.window, self.view.index)

    def price(self, claims: Sequence[Priced]) -> None:
        """Say of each claim what its fix saves on top of those taken."""
        found = []
        for now, form in zip(self.walls, (_pessimistic, _optimistic), strict=True):
            graph = changed_together(*map(form, self.taken))(self.view.graph)  # one at a time: they are large
            found.append([min(self._wall(form(priced.fix)(graph)), now) for priced in claims])
            del graph
        for priced, walls in zip(claims, zip(*found, strict=True), strict=True):
            priced.walls = walls
            low, high = (now - wall for now, wall in zip(self.walls, walls, strict=True))
            alone = priced.alone[0] if priced.alone else low
            high = min(high, explained_ns(priced.claim))
            if priced.claim.at_most_ns is not None:
                high = min(high, priced.claim.at_most_ns)
            low = min(behind(low, alone, self.promised), high) * priced.fix.low_share
            if priced.fix.assumes:
                low = min(low, CERTAIN * high)
            priced.adds = int(low), int(high)

    def take(self, priced: Priced) -> None:
        self.saved = self.saved[0] + priced.adds[0], self.saved[1] + priced.adds[1]
        self.walls = priced.walls
        self.promised *= priced.fix.low_share
        self.taken.append(priced.fix)


def alone(view: DeviceWindow, claims: Sequence[Claim]) -> list[Priced]:
    """These claims, settled and with a fix each, and what each one saves by itself."""
    priced = [Priced(claim) for claim in claims]
    _Applied(view).price(priced)
    return [replace(one, alone=one.adds) for one in priced]


def together(view: DeviceWindow, claims: Sequence[Priced]) -> Saving:
    """What the fixes of these claims save together, each on top of those before it: as findings do, no more than is named."""
    applied = _Applied(view)
    for one in claims:
        now = replace(one)
        applied.price([now])
        applied.take(now)
    wall = view.window.wall_ns
    low, high = (int(min(ns, wall)) for ns in applied.saved)
    return Saving(low, high, wall)


def _pessimistic(fix: Fix) -> Change:
    return fix.low


def _optimistic(fix: Fix) -> Change:
    return fix.high


def rank(
    view: DeviceWindow, claims: Sequence[PricedClaim], loss: tuple[str, int] | None
) -> tuple[list[Finding], list[Skipped], JointGain | None, list[str]]:
    """The findings: what speaks of the largest loss, then savings by what they add, and between them by its time what has
    no price. And what was skipped, what all fixes give together, and the rules whose fix failed."""
    wall, why = view.window.wall_ns, distrust(view)
    errors, priced, rest = list[str](), list[PricedClaim](), list[PricedClaim]()
    for one in claims:
        try:
            one.unpriced = one.claim.unpriced or why or price_lacks(one.rule, one.claim, view)
        except Failed as error:
            errors.append(_failed(one.rule, view, error))
            continue
        (rest if one.unpriced else priced).append(one)
    findings, skipped = list[Finding](), list[Skipped]()
    joint = None
    if priced:
        applied = _Applied(view)
        applied.price(priced)
        for one in priced:
            one.alone = one.adds
        left = priced
        # What gives nothing by itself may do so behind a better fix: kernels matter once the host keeps up with them.
        while worth := [one for one in left if one.adds[1] >= WORTH * wall]:
            best = _first(worth, [one for one in worth if not findings and _speaks(one, loss)])
            left = [one for one in left if one is not best]
            for one in rest if not findings else ():
                one.leads = _before(one, best, one.claim.ns, best.claim.ns)
            applied.take(best)
            findings.append(_finding(view, best, best.adds))
            applied.price(left)
        if not findings and loss and loss[0] == KERNELS:
            # Kernels fill the wall, and the host keeps its own pace: it is as slow, or its wait is not recorded.
            asked = [one for one in left if one.claim.ns >= QUESTION * wall and _speaks(one, loss)]
            for one in asked:
                one.unpriced = PACED
            left = [one for one in left if one not in asked]
            rest += asked
        for one in left:
            alone_ns = one.alone[1] if one.alone else 0
            if alone_ns >= WORTH * wall:
                reason = "covered", f"what it would save is saved already by what comes first ({findings[0].rule} …)"
            else:
                reason = "small", f"it would save {percent(alone_ns / wall, 1)} at most, below 1 %"
            skipped.append(_skip(one.rule, view, *reason))
        if findings:
            low, high = (int(min(ns, wall)) for ns in applied.saved)
            joint = JointGain(*view.place, (low, high), speedup(wall, (low, high)))
    rest.sort(key=_outweighs, reverse=True)
    for one in rest:
        one.leads |= one.claim.first and one.claim.ns >= LEADS * wall
    first, others = ([_finding(view, one, None) for one in rest if one.leads is leads] for leads in (True, False))
    return first + _merged(findings, others, loss), skipped, joint, errors


def _merged(priced: list[Finding], unpriced: list[Finding], loss: tuple[str, int] | None) -> list[Finding]:
    """What has no price among the savings: first where nothing priced speaks of the largest loss, else before savings that
    are small beside its time."""
    merged, left = list[Finding](), list(unpriced)
    if loss and not any(speaks_of(loss, _by_cause(finding)) for finding in priced):
        most = priced[0].saving_ns[1] if priced and priced[0].saving_ns else 0
        merged = [one for one in left if speaks_of(loss, _by_cause(one)) and one.ns > ANSWERS * most][:1]
        left = [finding for finding in left if finding not in merged]
    for finding in priced:
        high = finding.saving_ns[1] if finding.saving_ns else 0
        for question in [one for one in left if one.ns > OUTWEIGHS * high and not _named_by(merged, one)]:
            merged.append(question)
            left.remove(question)
        merged.append(finding)
    return merged + left


def _named_by(findings: Sequence[Finding], one: Finding) -> bool:
    """Whether most of its time is named already by one of these: it is another way to the same."""
    return any(
        2 * sum(min(part.ns, _by_cause(before).get(part.cause, 0)) for part in one.named) > one.ns
        for before in findings
    )


def _by_cause(finding: Finding) -> dict[str, int]:
    return {part.cause: part.ns for part in finding.named}


def _speaks(one: PricedClaim, loss: tuple[str, int] | None) -> bool:
    return loss is not None and speaks_of(loss, one.claim.named)


def _first(left: Sequence[PricedClaim], preferred: Sequence[PricedClaim]) -> PricedClaim:
    """The claim to take next: the largest (of the `preferred`, where there are some), but a particular cause of about its
    size before what is said of the host, or of communication, in general."""
    best = max(preferred or left, key=_root)
    return max((one for one in left if _before(one, best, _root(one), _root(best))), key=_root, default=best)


def _before(one: PricedClaim, best: PricedClaim, size: float, of_best: float) -> bool:
    """Whether a claim is about a particular cause of what the best says in general, and of about its size."""
    alike = one.claim.named.keys() & best.claim.named.keys() or COMMUNICATION not in {
        *one.claim.named,
        *best.claim.named,
    }
    return bool(one.claim.particular and best.claim.generic and alike and size >= GENERIC * of_best)


def _outweighs(one: PricedClaim) -> tuple[bool, float]:
    """What a claim without a price is ranked by: doubts about the trace, then its time, a particular cause's counted double."""
    return one.claim.first, one.claim.ns / (GENERIC if one.claim.particular else 1)


def _root(one: PricedClaim) -> float:
    """What a claim is ranked by: its saving, as far as it is time of its own.

    A replay lets other waits hide behind time that a fix frees (a loader behind queued work, once launching is quick). The
    wait's own rule comes first all the same: each stretch of time has one root cause.
    """
    return min(sum(one.adds) / 2, one.claim.ns)


def price_lacks(rule: Rule, claim: Claim, view: DeviceWindow) -> str:
    """Why a claim has no price; empty where it has one.

    Raises:
        Failed: somebody's own fix raises something: asked alone, it costs the others nothing.
    """

    def why() -> str:
        if claim.fix is None:
            return "no change of the timeline stands for it"
        refused = claim.fix.refuses(view.graph) or ""
        if rule.own and not refused:
            alone(view, [claim])
        return refused

    return attempted(rule, why)


def _finding(view: DeviceWindow, one: PricedClaim, saving: tuple[int, int] | None) -> Finding:
    rule, claim, alone = one.rule, one.claim, one.alone if saving else None
    assumes = claim.fix.assumes if claim.fix and saving else ()
    model = "modelled" if saving else "measured"
    grade = max(claim.grade, model, "assumed" if assumes else "measured", key=GRADES.index)
    assumed = ""
    if rule.phases and view.phase.name == "unknown":
        assumed = f"the phase is not known, and this is about {' and '.join(rule.phases)} (--phase)"
    doubts = tuple(filter(None, (view.repetition.doubt, assumed, *claim.doubts)))
    return Finding(
        rule=rule.id,
        title=claim.title or rule.title,
        message=claim.message,
        **view.place._asdict(),
        ns=claim.ns,
        named=tuple(Named(*part) for part in sorted(claim.named.items(), key=lambda part: (-part[1], part[0]))),
        saving_ns=saving,
        alone_ns=alone,
        speedup=speedup(view.window.wall_ns, alone) if alone else None,
        unpriced=one.unpriced,
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
