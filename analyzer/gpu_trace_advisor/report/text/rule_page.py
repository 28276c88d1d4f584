"""The pages of rules and causes: what `advise --list-rules` and `advise --explain` print."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpu_trace_advisor.advice.rule_cases import speaking_of
from gpu_trace_advisor.advice.rule_loader import find_rules, named_rule
from gpu_trace_advisor.attribution.causes import CATEGORIES, CAUSES, Cause
from gpu_trace_advisor.reference.facts import documents, fact
from gpu_trace_advisor.rulekit.rule import Rule


def rule_list(rules: Sequence[Rule]) -> str:
    """One line a rule."""
    size = max((len(rule.id) for rule in rules), default=0)
    return "".join(f"{rule.id:<{size}}  {rule.title}\n" for rule in rules)


def explained(name: str, width: int, rules: Sequence[Rule] | None = None) -> str:
    """The page of a rule or a cause, of both where they have one name; without a name the list of all.

    Raises:
        BadUsage: neither has this name.
    """
    rules = find_rules()[0] if rules is None else rules
    if not name:
        return f"Rules\n\n{rule_list(rules)}\nCauses of time\n\n{cause_list()}"
    pages = []
    if name in CAUSES:
        others = [rule for rule in rules if rule.id != name]
        pages.append(cause_page(CAUSES[name], speaking_of(others, name), width))
    if not pages or name in {rule.id for rule in rules}:
        pages.append(rule_page(named_rule(rules, name), width))
    return "\n".join(pages)


def cause_list() -> str:
    """One line a cause, by what the GPU was doing."""
    size = max(map(len, CAUSES))
    return "".join(f"{cause.name:<{size}}  {cause.when}: {cause.label}\n" for cause in CAUSES.values())


def cause_page(cause: Cause, rules: Sequence[Rule], width: int) -> str:
    """What a cause is, how it is measured, and what usually helps: the rules that speak of it."""
    group = CATEGORIES[cause.category].label
    parts = [
        f"{cause.name}: {cause.label}",
        _filled(f"{cause.meaning} While it lasts the GPU is at {cause.when}; group: {group}.", width)
        if cause.when != "idle"
        else _filled(f"{cause.meaning} The GPU is idle meanwhile; group: {group}.", width),
        _filled(f"How it is told: {cause.measured}", width),
    ]
    if rules:
        helps = [_filled(f"{rule.title} [{rule.id}]: {rule.section('What to do')}", width) for rule in rules]
        parts += ["What usually helps, by the rules that speak of it:", *helps]
    return "\n\n".join(parts) + "\n"


def rule_page(rule: Rule, width: int) -> str:
    """A rule's page, its cases as drawings, and the claims it rests on."""
    parts = [f"{rule.id}: {rule.title}", *(_filled(text, width) for text in rule.page.split("\n\n"))]
    if rule.needs:
        parts.append(f"Needs: {', '.join(rule.needs)}.")
    if rule.phases:
        because = rule.source(rule.because)
        parts.append(_filled(f"Only for {' and '.join(rule.phases)}: {because.says or because.document}", width))
    for title, cases in (("It fires", rule.fires), ("It stays quiet", rule.quiet), ("Known failure", rule.misses)):
        for text in cases:
            heading = _filled(f"{title}: {text.why}" if text.why else f"{title}:", width)
            parts.append(f"{heading}\n\n{textwrap.indent(textwrap.dedent(text).strip(), '    ')}")
    if rule.fires:
        how_to = "python -m pydoc gpu_trace_advisor.rulekit.drawing"
        reading = f"One character is 1 µs unless a drawing has a scale; {how_to} says how to read them."
        parts.append(_filled(reading, width))
    parts += [_source(key, width) for key in rule.cites]
    return "\n\n".join(parts) + "\n"


def _source(key: str, width: int) -> str:
    """A claim with its document and section, and what is right where the document errs."""
    if "://" in key:
        return key
    claim = fact(key)
    lines = [f"[{key}] {documents()[claim.document]}, section {claim.section}:", f"  {claim.says}"]
    lines += [f"  {name} = {quantity}" for name, quantity in claim.claimed.items()]
    if claim.correction:
        lines.append(f"  Corrected, {claim.correction}")
        lines += [f"  used instead: {name} = {quantity}" for name, quantity in claim.right.items()]
    return "\n".join(_filled(line, width) for line in lines)


def _filled(text: str, width: int) -> str:
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(
        " ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent + "  " * bool(indent),
        break_on_hyphens=False,
    )  # fmt: skip
