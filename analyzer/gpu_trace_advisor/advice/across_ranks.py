"""Several recordings as the ranks of one run: compared, then priced by replaying them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_trace_advisor.analysis.device_window import DeviceWindow, without_inferred_steps
from gpu_trace_advisor.analysis.joint_replay import Network, RankChange, network, priced, pricing, reduced
from gpu_trace_advisor.analysis.rank_summary import budget, summarise
from gpu_trace_advisor.ranks.model import RankSet, RankSummary
from gpu_trace_advisor.runtime.classes import dataclass

DETAILED = 16  # recordings up to which every one is shown in full, and hiding communication is replayed

Changed = Mapping[tuple[int, RankChange], Network | str]
Fetch = Callable[[Mapping[int, tuple[RankChange, ...]]], Changed]


@dataclass(frozen=True)
class SharedRank:
    """What crosses from one device's recording to the others."""

    summary: RankSummary
    network: Network | None
    """None where the graph is not to be replayed."""


def ranks_of(views: Sequence[DeviceWindow], recordings: int, local: str) -> tuple[SharedRank, ...]:
    """The devices of one of so many recordings as ranks; `local` tells the recording from all others."""
    found = []
    for view in (without_inferred_steps(view) for view in views):
        summary = summarise(view, budget(recordings), local)
        mine = network(view, summary) if len(summary.collectives) and summary.stride == 1 else None
        if isinstance(mine, Network) and recordings > DETAILED:
            mine = reduced(mine)
        found.append(SharedRank(summary, mine if isinstance(mine, Network) else None))
    return tuple(found)


def changed_ranks(
    views: Sequence[DeviceWindow], recordings: int, local: str, wanted: Mapping[int, Sequence[RankChange]]
) -> Changed:
    """The networks of a recording's devices with what is wanted of each changed."""
    found: dict[tuple[int, RankChange], Network | str] = {}
    for index, variants in wanted.items():
        view = without_inferred_steps(views[index])
        summary = summarise(view, budget(recordings), local)
        for variant in variants:
            one = network(view, summary, variant)
            found[index, variant] = reduced(one) if isinstance(one, Network) and recordings > DETAILED else one
    return found


def compared(ranks: Sequence[SharedRank], recordings: int, fetch: Fetch) -> RankSet | None:
    """What comes of looking at all ranks together; None where there are not two of one run.

    `fetch` gets networks changed: what is wanted by the index of the rank.
    """
    if len(ranks) < 2:
        return None
    from gpu_trace_advisor.ranks.compare_ranks import compare

    comparison = compare([rank.summary for rank in ranks])
    if comparison is None:
        return None
    place = {id(rank.summary): i for i, rank in enumerate(ranks)}
    index = [place[id(summary)] for summary in comparison.summaries]
    known = pricing(comparison, [ranks[i].network for i in index], recordings <= DETAILED)
    changed: Changed = {}
    if not isinstance(known, str) and known.wanted:
        back = {i: r for r, i in enumerate(index)}
        fetched = fetch({index[r]: variants for r, variants in known.wanted.items()})
        changed = {(back[i], variant): one for (i, variant), one in fetched.items()}
    return priced(comparison.run, known, changed)
