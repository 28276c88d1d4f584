"""Work of the kernels of replayed graphs, from recordings of how the graphs were captured.

A replay is one call of the host, so nothing tells which operator each of its kernels belongs to; a recording of the capture
holds the calls that put the kernels into the graph, with the operators around them. Recorders of ROCm write the kernel's
name with such a call. Those of CUDA do not: there the last run before the capture tells it, where it made the same calls.

    in order   a replay with the same kernels as a captured graph, each as often (name, grid and block; the name alone where
               replayed kernels have no sizes, as on ROCm): the first with the first, the second with the second
    alone      else a kernel takes the work that all captured ones of its name, grid and block have, where nearly all
               kernels of the replay are among the captured ones

What several captures tell differently, and equal kernels on several streams, which may run in another order, stay unknown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.roofline.operator_costs import (
    AROUND,
    OVER_CACHE,
    OWN_CLASSES,
    TEXTS,
    Costs,
    by_winograd,
    cost,
    engine_steps,
    main_kernels,
    text_beside,
    texts_beside,
)
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMPUTE, Timeline, several
from gpu_trace_advisor.timelines.host import Host, captures, read_host
from gpu_trace_advisor.trace.kernel_names import is_communication, kernel_class
from gpu_trace_advisor.trace.lookup import distinct_rows, values_of
from gpu_trace_advisor.trace.model import NONE, Index, Int64, Kind, Trace

MOSTLY = 0.9  # of a replay's kernels are among the captured ones; else it is another graph, or another batch size

Key = tuple[str, str]
"""Name of a kernel, and the text of its grid and block; empty where they were not recorded."""


class Called(NamedTuple):
    """An operator's call."""

    row: int
    """In the recording of the capture: kernels of one call have the same."""
    texts: tuple[str, ...]
    """Arguments of `cost` without the kernel: the operator, TEXTS, and the shapes of the call that tells more."""


class Launched(NamedTuple):
    """A kernel as the capture launched it."""

    key: Key
    calls: tuple[Called, ...]
    """The operator around it, and those around that."""


class Work(NamedTuple):
    cost: Cost
    operator: str
    dims: str
    call: tuple[int, int]
    """Which captured graph, and the operator's row: kernels of one call share its work."""
    texts: tuple[str, ...]
    """Of the call, as `Called` has them."""

    def same(self, other: Work | None) -> bool:
        return other is not None and self[:3] == other[:3]


@dataclass(frozen=True)
class Capture:
    """What one recording of a capture tells."""

    name: str
    graphs: tuple[tuple[Launched, ...], ...]
    """Of each captured graph its kernels, in the order of their calls."""
    launched: tuple[Launched, ...]
    """All kernels whose calls are recorded."""


def read_capture(trace: Trace) -> Capture:
    """The kernels that a recording of a capture holds, with the operators around their calls."""
    graphs: list[tuple[Launched, ...]] = []
    every: list[Launched] = []
    for process in range(len(trace.processes)):
        at, keys = _launches(trace, process)
        stretches = captures(trace, process)
        threads = {*present(trace.thread[at]).tolist(), *stretches}
        host = read_host(trace, process, also=sorted(threads))
        chains = _chains(trace, host, at)
        made = [Launched(key, chain) for key, chain in zip(keys, chains, strict=True)]
        every += made
        for thread in sorted(threads):
            mine = np.flatnonzero(trace.thread[at] == thread)
            if thread not in stretches:
                graphs += [tuple(made[i] for i in mine.tolist())] if not stretches else []
                continue
            for start, end in zip(stretches[thread].start.tolist(), stretches[thread].end.tolist(), strict=True):
                begun = trace.start_ns[at[mine]]
                inside = mine[(begun >= start) & (begun < end)]
                if not len(inside):
                    inside = _run_before(trace, host, at, chains, mine[begun < start], thread, (start, end))
                graphs.append(tuple(made[i] for i in inside.tolist()))
    computes = [tuple(one for one in graph if not is_communication(one.key[0])) for graph in graphs]
    return Capture(trace.name, tuple(graph for graph in computes if graph), tuple(every))


def _launches(trace: Trace, process: int) -> tuple[Int64, list[Key]]:
    """The rows of the calls that launched a kernel whose name is known, in time order, and what tells the kernels apart."""
    operations = trace.operations
    kernels = operations[(trace.kind[operations] == Kind.KERNEL) & (trace.process[operations] == process)]
    launch = trace.launch[kernels]
    single = (launch != NONE) & ~several(launch, launch != NONE, len(trace))
    kernels, calls = kernels[single], launch[single].astype(np.int64)
    names = [trace.names[code] for code in trace.name_code[kernels].tolist()]
    named = trace.texts.get("kernel")
    if named is not None:
        more = named.rows[(trace.kind[named.rows] == Kind.CALL) & (trace.process[named.rows] == process)]
        more = more[~np.isin(more, calls)].astype(np.int64)
        names += [trace.strings[code] for code in values_of([named], more)[0].tolist()]
        calls, kernels = np.concatenate([calls, more]), np.concatenate([kernels, more])
    sizes = values_of([trace.texts.get("grid"), trace.texts.get("block")], kernels)
    texts = [_sizes(trace, *codes) for codes in zip(*(column.tolist() for column in sizes), strict=True)]
    order = np.argsort(calls, kind="stable")
    return calls[order], [(names[i], texts[i]) for i in order.tolist()]


def _sizes(trace: Trace, grid: int, block: int) -> str:
    """Grid and block as one text; empty where they were not recorded, or are zeros that stand for that."""
    if NONE in (grid, block):
        return ""
    numbers = [",".join(re.findall(r"\d+", trace.strings[code])) for code in (grid, block)]
    return " ".join(numbers) if re.search("[1-9]", numbers[0]) else ""


def _chains(trace: Trace, host: Host, at: Index) -> list[tuple[Called, ...]]:
    """For each of these calls the operator around it, and those around that."""
    rows = [host.operator[at]]
    for _ in range(AROUND):
        rows.append(np.where(rows[-1] != NONE, host.parent[rows[-1]], NONE))
    used = present(np.concatenate(rows))
    used = used[used != NONE]
    columns = [*values_of([trace.texts.get(name) for name in TEXTS], used), texts_beside(trace, host, used)]
    called = {}
    for row, *codes, beside in zip(used.tolist(), *(column.tolist() for column in columns), strict=True):
        words = (trace.strings[code] if code != NONE else "" for code in codes)
        called[row] = Called(row, (trace.label(row), *words, text_beside(trace, beside)))
    return [
        tuple(called[row] for row in chain if row != NONE)
        for chain in zip(*(column.tolist() for column in rows), strict=True)
    ]


def _run_before(
    trace: Trace, host: Host, at: Int64, chains: Sequence[tuple[Called, ...]], before: Int64, thread: int,
    span: tuple[int, int],
) -> Int64:  # fmt: skip
    """Of the launches `before` a capture whose calls do not name their kernels as many as it has, if they were made by the
    same calls of operators; else none."""
    launches = np.array(["LaunchKernel" in name for name in trace.names], np.bool_)
    calls = np.flatnonzero((trace.kind == Kind.CALL) & (trace.thread == thread) & launches[trace.name_code])
    unnamed = calls[(trace.start_ns[calls] >= span[0]) & (trace.start_ns[calls] < span[1])]
    last = before[len(before) - len(unnamed) :]
    if not len(unnamed) or len(last) < len(unnamed):
        return before[:0]
    again = _chains(trace, host, unnamed)
    alike = all(_texts(a) == _texts(chains[b]) for a, b in zip(again, last.tolist(), strict=True))
    return last if alike else before[:0]


def _texts(calls: tuple[Called, ...]) -> list[tuple[str, ...]]:
    return [call.texts for call in calls[:1]]


@dataclass(frozen=True)
class Captured:
    """Several captures, asked for the work of replays."""

    captures: tuple[Capture, ...]
    _known: dict[tuple[tuple[Key, ...], bool], list[Work | None]] = field(default_factory=dict)

    def work(self, kernels: tuple[Key, ...], one_stream: bool) -> list[Work | None]:
        """Of each kernel of a replay, in their order."""
        asked = (kernels, one_stream)
        if asked not in self._known:
            fits = self._fitting(kernels)
            found = [self._in_order(number, kernels, one_stream) for number in fits]
            self._known[asked] = (
                [_agreed(column) for column in zip(*found, strict=True)] if found else self._alone(kernels)
            )
        return self._known[asked]

    @cached_property
    def _graphs(self) -> list[tuple[Launched, ...]]:
        return [graph for capture in self.captures for graph in capture.graphs]

    @cached_property
    def _by_content(self) -> Mapping[frozenset[tuple[Key, int]], list[int]]:
        """The graphs with the same kernels as often, by sizes and by names alone."""
        found: dict[frozenset[tuple[Key, int]], list[int]] = defaultdict(list)
        for number, graph in enumerate(self._graphs):
            for keys in ([one.key for one in graph], [(one.key[0], "") for one in graph]):
                content = frozenset(Counter(keys).items())
                if number not in found[content]:
                    found[content].append(number)
        return found

    def _fitting(self, kernels: tuple[Key, ...]) -> list[int]:
        keys = _comparable(kernels)
        return self._by_content.get(frozenset(Counter(keys).items()), [])

    def _in_order(self, number: int, kernels: tuple[Key, ...], one_stream: bool) -> list[Work | None]:
        sized = all(size for _, size in kernels)
        turns: dict[Key, list[Work | None]] = defaultdict(list)
        for one in self._graphs[number]:
            turns[one.key if sized else (one.key[0], "")].append(_resolved(one, number))
        if not one_stream:
            for key, works in turns.items():
                turns[key] = [_agreed(works) and one for one in works]
        iterators: dict[Key, Iterator[Work | None]] = {key: iter(works) for key, works in turns.items()}
        return [next(iterators[key]) for key in _comparable(kernels)]

    @cached_property
    def _lone(self) -> Mapping[Key, Work | None]:
        """The work of each captured kernel whose sizes are known and that all of its kind agree on; None where they do not."""
        found: dict[Key, list[Work]] = defaultdict(list)
        seen: set[Key] = set()
        for capture in self.captures:
            works = [(one.key, _resolved(one, NONE)) for one in capture.launched if one.key[1]]
            of_call = Counter(work.call for _, work in works if work)
            seen.update(key for key, _ in works)
            for key, work in works:
                if work and of_call[work.call] == 1:
                    found[key].append(work)
        return {key: _agreed(found[key]) if key in found else None for key in seen}

    def _alone(self, kernels: tuple[Key, ...]) -> list[Work | None]:
        known = self._lone
        if sum(key in known for key in kernels) < MOSTLY * len(kernels):
            return [None] * len(kernels)
        works = [known.get(key) for key in kernels]
        return [work and work._replace(call=(NONE, i)) for i, work in enumerate(works)]


def _comparable(kernels: tuple[Key, ...]) -> tuple[Key, ...]:
    """By names alone where one has no sizes."""
    return kernels if all(size for _, size in kernels) else tuple((name, "") for name, _ in kernels)


def _agreed(works: Sequence[Work | None]) -> Work | None:
    """The first, where all are alike."""
    first = works[0]
    return first if first is not None and all(first.same(other) for other in works) else None


def _resolved(launched: Launched, graph: int) -> Work | None:
    """The work of the innermost operator around a kernel that has a formula."""
    for call in launched.calls:
        if found := cost(*call.texts[:-1], launched.key[0], call.texts[-1]):
            return Work(found, call.texts[0], call.texts[1], (graph, call.row), call.texts)
    return None


def with_captures(costs: Costs, timeline: Timeline, given: Sequence[Capture]) -> Costs:
    """The costs, with those of the kernels of replayed graphs that captures tell."""
    nodes = np.flatnonzero(
        (timeline.node | timeline.by_graph) & timeline.is_kernel & (timeline.op_class == COMPUTE)
        & ((costs.kind == NONE) | costs.of(costs.borrowed, np.arange(len(costs.kind))))
    )  # fmt: skip
    if not given or not len(nodes):
        return costs
    at, works, group = _works(timeline, Captured(tuple(given)), nodes)
    if not len(at):
        return costs
    kinds, called = list(costs.kinds), list(costs.called)
    place: dict[tuple[Cost, str, str], int] = {}
    number, main = np.empty(len(at), np.int32), np.empty(len(at), np.bool_)
    for i, (operation, work) in enumerate(zip(at.tolist(), works, strict=True)):
        number[i] = place.setdefault(work[:3], len(kinds))
        if number[i] == len(kinds):
            kinds.append(work.cost)
            called.append((work.operator, work.dims))
        own = OWN_CLASSES.get(work.cost.family)
        main[i] = own is None or kernel_class(timeline.label(operation)) in own
    number = by_winograd(timeline, group, at, number, kinds, called)
    known = number != NONE
    at, group, number, main = at[known], group[known], number[known], main[known]
    keep, part = main_kernels(timeline, group, at, main, [kind.several for kind in kinds], number)
    every = np.arange(len(costs.kind))
    kind, share = costs.kind.astype(np.int32), costs.share.copy()
    helps, borrowed = costs.of(costs.helps, every).copy(), costs.of(costs.borrowed, every).copy()
    captured = np.zeros(len(kind), np.bool_)
    kind[at] = NONE
    kind[at[keep]], share[at[keep]] = number[keep], part[keep]
    helps[at], borrowed[at], captured[at] = ~keep, False, True
    return replace(
        costs, kind=kind, share=share, kinds=tuple(kinds), called=tuple(called), helps=helps, borrowed=borrowed,
        captured=captured,
    )  # fmt: skip


def _in_step(work: Work, kernel: str, step: str) -> Work:
    """The work where the replay, not the capture, is a step of an engine that tells what attention reads."""
    if not step or work.operator.rpartition("::")[2] not in OVER_CACHE:
        return work
    found = cost(*work.texts[:-1], kernel, step)
    return work._replace(cost=found) if found else work


def _works(timeline: Timeline, captured: Captured, nodes: Int64) -> tuple[Int64, list[Work], Int64]:
    """Of these kernels of replays those whose work the captures tell, that work, and which of them share one call's."""
    trace = timeline.trace
    sizes = values_of([trace.texts.get("grid"), trace.texts.get("block")], timeline.row[nodes])
    distinct, which = distinct_rows([trace.name_code[timeline.row[nodes]], *sizes])
    keys = [(trace.names[name], _sizes(trace, *size)) for name, *size in distinct]
    order = np.argsort(timeline.launch[nodes], kind="stable")
    nodes, which = nodes[order], which[order]
    ends = np.append(np.flatnonzero(np.diff(timeline.launch[nodes])) + 1, len(nodes))
    steps = engine_steps(trace, timeline.launch[nodes])
    at, works, groups = list[int](), list[Work](), list[int]()
    number: dict[tuple[int, tuple[int, int]], int] = {}
    begin = 0
    for replay, end in enumerate(ends.tolist()):
        mine = nodes[begin:end]
        kernels = tuple(keys[i] for i in which[begin:end].tolist())
        found = captured.work(kernels, len(present(timeline.stream[mine])) <= 1)
        step = trace.names[steps[begin]] if steps[begin] != NONE else ""
        for operation, work in zip(mine.tolist(), found, strict=True):
            if work is not None:
                at.append(operation)
                works.append(_in_step(work, timeline.label(operation), step))
                groups.append(number.setdefault((replay, work.call), len(number)))
        begin = end
    return np.array(at, np.int64), works, np.array(groups, np.int64)
