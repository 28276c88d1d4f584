"""Rule, Claim (what a rule says of a device) and Finding (a priced claim).

A rule is a function of a DeviceWindow that yields Claims; ranking prices them by replay and makes Findings.
`gpu_trace_advisor.rules` says how to write one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.health import thinned
from gpu_trace_advisor.reference.facts import documents, fact
from gpu_trace_advisor.replay.fixes import Fix
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Kind
from gpu_trace_advisor.units import percent

GRADES = ("measured", "modelled", "assumed")
"""From strong to weak; a finding has the grade of its weakest input."""

WORTH = 0.01  # of the wall: below it a run's own noise is as large, and a list of crumbs helps nobody
LINKED = 0.5  # share of operations with a launch call from which launches can be judged at all


@dataclass(frozen=True)
class Evidence:
    """Events that a claim rests on.

    what: What they are, for people.
    count: How many.
    ns: Their time, where that says something.
    at_ms: Where the first of them are, from the trace's first event.
    python: The user's line behind the first of them, where stacks were recorded.
    """

    what: str
    count: int
    ns: int | None = None
    at_ms: tuple[float, ...] = ()
    python: str = ""


@dataclass(frozen=True)
class Claim:
    """What a rule says of one device.

    message: What is so, with its numbers.
    how: What to do, in one or two sentences, for the framework that the trace shows.
    named: Wall time of the window that it is about, ns by cause (`gpu_trace_advisor.rulekit.wall_time`): no saving is larger.
    ns: The sum. A claim about kernels may tell this alone.
    fix: The change that the engine prices; without one the claim is a question or a statement.
    evidence: The events behind it: `gpu_trace_advisor.rulekit.evidence` makes them.
    formula: How the numbers come about, with them.
    grade: Of the weakest input besides the replay.
    doubts: Why it may be wrong here; any of them makes the confidence low.
    at_most_ns: Bound of the saving that the rule knows besides the replay.
    unpriced: Why the engine is not to price it, although it is about time that can be saved.
    generic: About the host between launches, or communication, in general: it shrinks by itself once a particular cause is gone.
    particular: About one such cause: a loader, a synchronisation, an allocation, collectives that need not be.
    first: To be read before any saving: the trace itself is doubtful.
    title: A headline of its own, where a rule says several things; else the rule's.
    """

    message: str
    how: str
    named: Mapping[str, int] = field(default_factory=dict)
    ns: int = 0
    fix: Fix | None = None
    evidence: tuple[Evidence, ...] = ()
    formula: str = ""
    grade: str = "measured"
    doubts: tuple[str, ...] = ()
    at_most_ns: int | None = None
    unpriced: str = ""
    generic: bool = False
    particular: bool = False
    first: bool = False
    title: str = ""


@dataclass(frozen=True)
class Source:
    """A claim of a document that a rule rests on."""

    key: str
    document: str
    section: str
    says: str
    correction: str | None
    """What is right instead, where the document errs."""

    @property
    def title(self) -> str:
        """The document's, for people."""
        return documents().get(self.document, self.document)


@dataclass(frozen=True)
class Named:
    """Wall time of one cause that a finding is about."""

    cause: str
    ns: int


@dataclass(frozen=True)
class Finding:
    """What to change on one device, and what it gives. Plain data."""

    rule: str
    title: str
    message: str
    file: str
    rank: int | None
    process: int | None
    device: int
    ns: int
    """Wall time that it is about: the sum of `named`, and no saving is larger."""
    named: tuple[Named, ...]
    """The same by cause, the most first; none is more than the cause's time in the window."""
    saving_ns: tuple[int, int] | None
    """Pessimistic and optimistic, on top of the findings before it; None where it cannot be priced."""
    alone_ns: tuple[int, int] | None
    """What it would save by itself."""
    speedup: tuple[float, float] | None
    """Wall time before over after, alone."""
    unpriced: str
    """Why there is no saving; empty where there is one."""
    grade: str
    confidence: str
    """`high`, or `low` with its reasons in `doubts`."""
    doubts: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    formula: str
    assumes: tuple[str, ...]
    sources: tuple[Source, ...]
    how: str
    verify: str


SKIPPED = {
    "absent": "not applicable",
    "small": "below 1 % of the wall",
    "covered": "covered by the above",
    "data": "without the data they need",
    "phase": "for another phase",
    "phase-unknown": "for a phase that --phase can name",
    "cold": "withheld on a cold start",
}
"""Codes of the reasons why a rule did not fire, and how a report counts them."""


@dataclass(frozen=True)
class Skipped:
    """A rule that says nothing of a device, and why."""

    rule: str
    code: str
    """One of SKIPPED."""
    why: str
    file: str
    rank: int | None
    process: int | None
    device: int


@dataclass(frozen=True)
class JointGain:
    """All priced findings of a device together."""

    file: str
    rank: int | None
    process: int | None
    device: int
    saving_ns: tuple[int, int]
    speedup: tuple[float, float]


Check = Callable[[DeviceWindow], Iterable[Claim]]


class Case(str):
    """A drawing with a sentence on why a rule fires, or does not, in it."""

    why: str

    def __new__(cls, drawing: str, why: str = "") -> Case:
        self = super().__new__(cls, drawing)
        self.why = why
        return self


def case(drawing: str, why: str) -> Case:
    """A case of a rule: a drawing (`gpu_trace_advisor.rulekit.drawing`) and, in a sentence, what it shows."""
    return Case(drawing, why)


@dataclass(frozen=True)
class Rule:
    """A rule with its page, its sources and its cases."""

    id: str
    title: str
    check: Check
    page: str
    cites: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Names of NEEDS."""
    phases: tuple[str, ...] = ()
    """The phases it is about; none: any."""
    because: str = ""
    """Key of the claim that says why it is not about the others."""
    cold: bool = False
    """It speaks of a cold start too; other rules are silent there."""
    last: bool = False
    """It is asked only when no other rule found anything."""
    answers: bool = False
    """It is asked only when no other rule speaks of the largest loss."""
    in_doubt: bool = False
    """It speaks in an unknown phase too, at low confidence."""
    fires: tuple[Case, ...] = ()
    quiet: tuple[Case, ...] = ()
    misses: tuple[Case, ...] = ()
    """Drawings in which it should fire and does not yet, or should not and does (`quiet` in their last line)."""
    path: str = field(default="", compare=False)
    own: bool = False
    """From a folder of the user's."""

    def section(self, heading: str) -> str:
        """The text of one heading of the page; empty when the page has none."""
        found = re.search(rf"^{heading}: *(.+?)(?=\n\n|\Z)", self.page, re.DOTALL | re.MULTILINE)
        return " ".join(found[1].split()) if found else ""

    def sources(self) -> tuple[Source, ...]:
        """What it cites."""
        return tuple(map(self.source, self.cites))

    @staticmethod
    def source(key: str) -> Source:
        """What a key of facts.toml, or a URL, stands for.

        Raises:
            UnusableFact: neither.
        """
        if key.startswith(("https://", "http://")):
            return Source(key, key, "", "", None)
        found = fact(key)
        return Source(found.key, found.document, found.section, found.says, found.correction)


def _cases(drawings: Iterable[str]) -> tuple[Case, ...]:
    return tuple(drawing if isinstance(drawing, Case) else Case(drawing) for drawing in drawings)


def rule(
    *,
    title: str,
    cites: Iterable[str] = (),
    needs: Iterable[str] = (),
    phases: Iterable[str] = (),
    because: str = "",
    cold: bool = False,
    last: bool = False,
    answers: bool = False,
    in_doubt: bool = False,
    fires: Iterable[str] = (),
    quiet: Iterable[str] = (),
    misses: Iterable[str] = (),
) -> Callable[[Check], Rule]:
    """Make a Rule of a function; its id is the function's name with dashes, its page the docstring.

    title: what is wrong, as a headline.
    cites: what it rests on: keys of facts.toml, or URLs.
    needs: names of NEEDS; where one is missing the rule is skipped, and the report says why.
    phases, because: the phases it is about, and the key or URL that says why it is not about the others.
    in_doubt: it speaks where the phase is not known too, at low confidence.
    cold: it speaks of a cold start too. last: it is asked only when no other rule found anything; answers: only when no other
    speaks of the largest loss.
    fires, quiet, misses: drawings, or `case(drawing, why)`, in which it speaks, must not, or ought to and does not yet.
    """

    def make(check: Check) -> Rule:
        name = getattr(check, "__name__", "rule")
        page = inspect.cleandoc(check.__doc__ or "")
        return Rule(
            name.replace("_", "-"), title, check, page, tuple(cites), tuple(needs), tuple(phases), because, cold, last,
            answers, in_doubt, _cases(fires), _cases(quiet), _cases(misses),
        )  # fmt: skip

    return make


def _needs_host(view: DeviceWindow) -> str | None:
    return None if view.timeline.host.launching else "the trace has no host events of a thread that launches"


def _needs_operators(view: DeviceWindow) -> str | None:
    if view.operators_recorded:
        return None
    if (view.trace.kind == Kind.OPERATOR).any():
        return "no operators of the threads that launch were recorded"
    return "the trace has no operators (record ProfilerActivity.CPU)"


def _needs_launches(view: DeviceWindow) -> str | None:
    if note := thinned(view.trace):
        return note.message
    linked = float(view.timeline.linked[view.operations].mean()) if len(view.operations) else 0.0
    if linked >= LINKED:
        return None
    return f"only {percent(linked)} of the operations have a launch call in the trace"


def _needs_shapes(view: DeviceWindow) -> str | None:
    return None if "Input Dims" in view.trace.texts else "the trace has no shapes (record_shapes=True)"


def _needs_hardware(view: DeviceWindow) -> str | None:
    return None if view.hardware else f"no peaks are known for {view.device.name or 'the device'} (--hardware NAME)"


def _needs_ranks(view: DeviceWindow) -> str | None:
    return None if len(view.peers) > 1 or view.run else "needs the traces of several ranks"


def _needs_memory(view: DeviceWindow) -> str | None:
    return None if len(view.trace.memory.time_ns) else "the trace has no memory events (profile_memory=True)"


def _needs_graph(view: DeviceWindow) -> str | None:
    return None if view.trust.enough else "the replay of this trace is not trusted"


NEEDS: dict[str, Callable[[DeviceWindow], str | None]] = {
    "host": _needs_host,
    "operators": _needs_operators,
    "launches": _needs_launches,
    "shapes": _needs_shapes,
    "hardware": _needs_hardware,
    "ranks": _needs_ranks,
    "memory": _needs_memory,
    "graph": _needs_graph,
}
"""What a rule may need, and why a view has not got it (None: it has)."""
