"""The ranks of a run beside each other, for the terminal: who keeps whom waiting, how long, and why."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_trace_advisor.ranks.model import OneOff, RankSet, Straggler
from gpu_trace_advisor.ranks.stragglers import WORTH
from gpu_trace_advisor.report.text.terminal import Page
from gpu_trace_advisor.sanitize import clean
from gpu_trace_advisor.units import between, duration, percent, size

RANKS_SHOWN = 16
GROUPS_SHOWN = 6
IN_WORDS = {
    "dataloader": "loading data",
    "compute": "computing",
    "communication": "communicating in another group",
    "copies": "copying",
    "host": "launching and other host work",
    "stalls": "allocating, loading modules, compiling",
    "profiler": "the profiler",
    "unknown": "host work that was not recorded",
}
ALIGNED = {
    "clock": "by their clocks, which no collective could check",
    "clock and collectives": "by their clocks, checked with the ends of their collectives",
    "collectives": "by the ends of their collectives",
    "one recording": "by the one clock of their recording",
    "not": "not at all",
}


def ranks(page: Page, run: RankSet, *, listed: bool) -> None:
    """The section about the ranks; with their table where the devices are not all `listed` elsewhere."""
    page.head("RANKS", _scope(run))
    if not listed:
        _table(page, run)
    for line in lines(run):
        page.prose(line, "    ", first="  ")
    for note in run.notes:
        if note.code == "slow-link":
            page.prose(f"{clean(note.message[:1].upper() + note.message[1:])}.", "    ", first="  ")
    _collectives(page, run)
    error = f", to {duration(run.offset_error_ns)}" if run.offset_error_ns else ""
    page.prose(f"Their times are aligned {ALIGNED[run.aligned]}{error}.", "  ", "dim")


def _scope(run: RankSet) -> str:
    count = f"{len(run.rows)} of {run.world}" if run.world and run.world != len(run.rows) else f"{len(run.rows)}"
    return f"{count}; {run.matched:,} collectives matched"


def _table(page: Page, run: RankSet) -> None:
    first = sorted(run.rows, key=lambda row: -row.late_ns)[:RANKS_SHOWN]
    page.table(
        [
            (
                f"rank {row.rank}", duration(row.wall_ns), duration(row.step_ns) if row.step_ns else "–",
                duration(row.compute_ns), duration(row.waiting_ns), duration(row.moving_ns), duration(row.late_ns),
            )
            for row in sorted(first, key=lambda row: row.rank)
        ],
        ("", "wall", "step", "compute", "waiting", "moving", "late"),
    )  # fmt: skip
    if len(run.rows) > RANKS_SHOWN:
        page.prose(
            f"The {RANKS_SHOWN} that come latest; {len(run.rows) - RANKS_SHOWN:,} more are in the JSON.", "  ", "dim"
        )


def _collectives(page: Page, run: RankSet) -> None:
    """The process groups that move bytes longest, each with what it reaches beside its link."""
    if not run.groups:
        return
    page.head("COLLECTIVES", f"{len(run.groups):,} groups and kinds; those that take longest")
    page.table(
        [
            (
                clean(f"{group.kind}, {group.group}"), f"{group.ranks}", f"{group.count:,}",
                size(group.bytes) if group.bytes else "–", duration(group.transfer_ns), duration(group.skew_ns),
                f"{group.bus_bandwidth / 1e9:,.1f} GB/s" if group.bus_bandwidth else "–",
                f"{group.link / 1e9:,.0f} GB/s {clean(group.link_name)}" if group.link else "–",
            )
            for group in run.groups[:GROUPS_SHOWN]
        ],
        ("", "ranks", "count", "bytes each", "moving", "apart", "bus bandwidth", "link"),
    )  # fmt: skip


def lines(run: RankSet) -> Iterator[str]:
    """What is to be said, most important first."""
    for straggler in run.stragglers[:3]:
        yield _straggler(straggler)
    for one in run.one_offs:
        yield _one_off(one)
    if any(note.code == "apart-collectives" for note in run.notes):
        yield "Who keeps whom waiting is unknown in part: some collectives do not end together on their ranks."
    elif run.matched and not run.stragglers:
        once = sum(one.cost_ns for one in run.one_offs)
        turns = run.waiting_ns - once > WORTH * min(row.wall_ns for row in run.rows)
        rest = "Otherwise the" if run.one_offs else "The"
        yield (
            f"{rest} ranks take turns in coming last: none keeps the others waiting much longer than they keep it."
            if turns
            else f"{'Otherwise no' if run.one_offs else 'No'} rank keeps the others waiting for more than 1 % of the wall."
        )
    if run.matched:
        yield (
            f"Of exposed communication the mean rank waits {duration(run.waiting_ns)} for others to come and moves bytes for "
            f"{duration(run.moving_ns)}."
        )
    if run.overlap is not None and run.overlap.saving_ns is not None and run.overlap.saving_ns[1] > 0:
        yield f"Collectives beside compute would save the whole job {between(run.overlap.saving_ns)} (replay of all ranks)."
    if run.pipeline is not None:
        p = run.pipeline
        yield (
            f"Pipeline of {p.stages} stages and {p.microbatches} microbatches: its ranks wait {percent(p.bubble)} of the time "
            f"for each other; (p − 1) / (m + p − 1) is {percent(p.expected)}."
            + (
                f" Rank {p.slow_rank}'s stage works {duration(p.slow_ns)} a step longer than the others ({p.slow_phase}): "
                "they wait for it; give it fewer layers, or less else to do."
                if p.slow_rank is not None
                else ""
            )
        )
    if run.step_range_ns is not None:
        low, high = run.step_range_ns
        if high > 1.05 * low:
            yield f"Median steps of the ranks last {duration(low)} to {duration(high)}."


def _straggler(straggler: Straggler) -> str:
    one = len(straggler.ranks) == 1
    shown = ", ".join(map(str, straggler.ranks[:8])) + (" …" if len(straggler.ranks) > 8 else "")
    who = f"Rank {shown} keeps" if one else f"Ranks {shown} keep"
    if not straggler.lasting:
        who = f"In {'this one step' if straggler.of_steps else 'this recording, which has no steps,'} r{who[1:]}"
    text = (
        f"{who} the others waiting: last to {straggler.times:,} of {straggler.of:,} collectives, which begin "
        f"{duration(straggler.cost_ns)} later for "
        f"{'it' if one else 'them'}; the others wait {duration(straggler.waited_ns)} in all"
    )
    if straggler.of_steps > 1:
        text += f", in {straggler.steps} of {straggler.of_steps} steps"
    if straggler.phase:
        cause = f" ({clean(straggler.cause)})" if straggler.cause and straggler.cause != straggler.phase else ""
        text += f". What takes longer: {IN_WORDS[straggler.phase]}{cause}, {duration(straggler.phase_ns)}"
    else:
        text += ". No single cause explains most of it"
    if straggler.saving_ns is not None and straggler.how == "replay":
        text += f". If {'it' if one else 'they'} kept up, the job would save {between(straggler.saving_ns)}"
    if not straggler.lasting:
        whole = "one step" if straggler.of_steps else "a recording without steps"
        return f"{text}. Whether {'it does' if one else 'they do'} so again, {whole} cannot tell."
    return f"{text}. By chance equal ranks look like that in {_chance(straggler.p)} of runs."


def _one_off(one: OneOff) -> str:
    """No verdict: what happened, when, and what the late ranks did meanwhile."""
    single = len(one.ranks) == 1
    shown = ", ".join(map(str, one.ranks[:8])) + (" …" if len(one.ranks) > 8 else "")
    often = "Once" if one.times == 1 else f"{one.times} times"
    steps = ", ".join(map(str, one.steps[:4])) + (" …" if len(one.steps) > 4 else "")
    where = f", in step{'s' * (len(one.steps) > 1)} {steps}," if one.steps else ""
    text = f"{often}{where} rank{'' if single else 's'} {shown} {'comes' if single else 'come'} {duration(one.cost_ns)} late"
    text += " in all" if one.times > 1 else ""
    what = (
        f"{IN_WORDS[one.phase]} takes {duration(one.phase_ns)} longer than on the others"
        if one.phase
        else "no cause known"
    )
    return f"{text}: {what}. That is no straggler."


def _chance(p: float) -> str:
    return f"{percent(p, 1)}" if p >= 0.001 else "less than 0.1 %"
