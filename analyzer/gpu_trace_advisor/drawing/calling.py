"""Who called: the distinct ways in which host records enclose each other, as a tree of names."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gpu_trace_advisor.analysis.summary import FRAMEWORK_PATH, PYTHON_LINE, readable_host
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.host import Host, HostActivity
from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import NONE, Bool, Index, Int64, Kind, Trace

MODULE = "nn.Module: "
_KINDS = {int(Kind.OPERATOR): "operator", int(Kind.PYTHON): "python", int(Kind.RANGE): "range"}
DEEP = 12  # of a stack that is shown, the innermost ones
DEEPEST = 64  # levels of a tree; a recursion that goes deeper ends there


def is_told(name: str) -> bool:
    """A Python frame that says something to its user: a module, or a line of code that is no library's."""
    return name.startswith(MODULE) or (PYTHON_LINE.match(name) is not None and FRAMEWORK_PATH.search(name) is None)


def told_rows(trace: Trace, doing: Index, rows: Index) -> Bool:
    """[k] of host rows those that are drawn: all but frames inside libraries and Python itself."""
    kind = trace.kind[rows]
    keep = np.isin(kind, (Kind.OPERATOR, Kind.RANGE, Kind.CALL))
    frames = np.flatnonzero(kind == Kind.PYTHON)
    mine = named(trace, trace.name_code[rows[frames]], is_told)
    keep[frames] = mine | (doing[rows[frames]] < HostActivity.SYNC)  # a loader's frames are a library's
    return np.asarray(keep, np.bool_)


@dataclass(frozen=True)
class Callers:
    """A tree of names; node 0 is its root."""

    trace: Trace
    above: Index
    """[nodes] the node around."""
    row: Index
    """[nodes] a row of this node: its name and kind."""
    of_row: Index
    """[n] the node of each row of the trace: its own where it is told, else that of what is around it."""

    def chain(self, node: int) -> list[int]:
        """The nodes from the outermost to this one."""
        found = []
        while node:
            found.append(node)
            node = int(self.above[node])
        return found[::-1]

    def stack(self, node: int) -> tuple[str, tuple[str, ...]]:
        """The innermost operator of a node, and the modules, ranges and lines around it."""
        found = self._stacks.get(node)
        if found is None:
            kinds, names, chain = self.kinds, self.names, self.chain(node)
            operators = [one for one in chain if kinds[one] == "operator"]
            around = tuple(names[one].removeprefix(MODULE) for one in chain if kinds[one] != "operator")
            found = self._stacks[node] = names[operators[-1]] if operators else "", around[-DEEP:]
        return found

    @cached_property
    def _stacks(self) -> dict[int, tuple[str, tuple[str, ...]]]:
        return {}

    @cached_property
    def names(self) -> list[str]:
        """[nodes] for people."""
        return ["", *(readable_host(self.trace, row) for row in self.row[1:].tolist())]

    @cached_property
    def kinds(self) -> list[str]:
        """[nodes] what each one is, as `Flame.kind`."""
        found = [_KINDS[kind] for kind in self.trace.kind[self.row[1:]].tolist()]
        modules = (
            "module" if name.startswith(MODULE) else kind for name, kind in zip(self.names[1:], found, strict=True)
        )
        return ["", *modules]


def callers(host: Host, launching: Index) -> Callers:
    """The tree of the process's launching threads; a runtime call is no node, it belongs to what it is called in."""
    trace, parent = host.trace, host.around(launching.tolist())
    nests = np.isin(trace.kind, (Kind.OPERATOR, Kind.PYTHON, Kind.RANGE))
    rows = np.flatnonzero(np.isin(trace.thread, launching) & nests)
    rows = rows[(host.doing[rows] != HostActivity.STEP) & told_rows(trace, host.doing, rows)]
    told = np.zeros(len(trace) + 1, np.bool_)  # the last one for rows that nothing is around
    told[rows] = True
    up = _nearest(parent, told, parent[rows])
    node = np.zeros(len(trace) + 1, np.int32)
    above, first = [np.zeros(1, np.int64)], [np.full(1, NONE)]
    count, left = 1, np.arange(len(rows))
    reached = np.zeros(len(trace) + 1, np.bool_)
    reached[NONE] = True
    for _ in range(DEEPEST):
        if not len(left):
            break
        ready = reached[up[left]]
        now, left = left[ready], left[~ready]
        key = node[up[now]].astype(np.int64) * len(trace.names) + trace.name_code[rows[now]]
        distinct, one, which = np.unique(key, return_index=True, return_inverse=True)
        node[rows[now]] = count + which
        reached[rows[now]] = True
        above.append(distinct // max(len(trace.names), 1))
        first.append(rows[now[one]])
        count += len(distinct)
    of_row = node[:-1]
    inner = np.flatnonzero(~told[:-1] & (parent != NONE))
    inside = _nearest(parent, told, parent[inner])
    of_row[inner] = node[inside]
    return Callers(trace, np.concatenate(above), np.concatenate(first), of_row)


def _nearest(parent: Index, told: Bool, rows: Index) -> Int64:
    """[k] the rows themselves where they are told, else the nearest one around them that is; -1 where there is none."""
    found = rows.astype(np.int64)
    at = np.flatnonzero(~told[found] & (found != NONE))
    while len(at):
        found[at] = parent[found[at]]
        at = at[~told[found[at]] & (found[at] != NONE)]
    return found
