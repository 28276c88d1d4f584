"""Flame graphs: GPU time, and idle time, by the modules, lines and operators that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.summary import clipped_ns
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.drawing.calling import MODULE, Callers
from gpu_trace_advisor.drawing.model import Flame
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import COMMUNICATION
from gpu_trace_advisor.trace.kernel_names import kernel_class, readable
from gpu_trace_advisor.trace.model import NONE, Int64

MOST = 800  # boxes
ALIKE = 0.995  # of a box: another one of so much of its time is the same
SMALLEST = 0.002  # of the whole; what is smaller is drawn with its siblings as one
OTHERS = "others, each too small to draw"


@dataclass
class _Node:
    name: str
    kind: str
    colour: str
    ns: int
    below: dict[tuple[str, str, str], _Node]


def by_time(view: DeviceWindow, callers: Callers) -> tuple[Flame, ...]:
    """GPU time of the window, summed over streams, by what launched it and by kernel."""
    timeline, operations = view.timeline, view.operations
    ns = clipped_ns(timeline, operations, view.window.start_ns, view.window.end_ns)
    linked = timeline.linked[operations]
    node = np.where(linked, callers.of_row[np.where(linked, timeline.launch[operations], 0)], 0)
    names = view.trace.names
    copies = timeline.op_class[operations] > COMMUNICATION
    leaf = 2 * view.trace.name_code[timeline.row[operations]].astype(np.int64) + copies

    def called(code: int) -> tuple[str, str, str]:
        name = names[code // 2]
        return readable(name), "kernel", "copies" if code % 2 else kernel_class(name)

    return _drawn(callers, node, leaf, ns, called)


def by_idle(view: DeviceWindow, callers: Callers) -> tuple[Flame, ...]:
    """Idle time of the window by what the host did, else by what launched the operation that ended the gap."""
    window, timeline, pieces = view.window, view.timeline, view.attribution.pieces
    nodes, causes, times = [], [], []
    for part, inside in pieces.clipped(window.start_ns, window.end_ns):
        at = np.flatnonzero(inside > 0)
        closing = timeline.gaps.closing[part.gap[at]]
        launch = np.where(closing == NONE, NONE, timeline.launch[closing])
        row = np.where(part.row[at] != NONE, part.row[at], launch)
        nodes.append(np.where(row == NONE, 0, callers.of_row[row]))
        causes.append(part.cause[at].astype(np.int64))
        times.append(inside[at])
    if not nodes:
        return ()
    node, cause, ns = map(np.concatenate, (nodes, causes, times))
    return _drawn(callers, node, cause, ns, lambda code: (IDLE[code], "cause", IDLE[code]))


def _drawn(
    callers: Callers, node: Int64, leaf: Int64, ns: Int64, tell: Callable[[int], tuple[str, str, str]]
) -> tuple[Flame, ...]:
    width = int(leaf.max(initial=0)) + 1
    key, which = np.unique(node.astype(np.int64) * width + leaf, return_inverse=True)
    total = np.bincount(which, ns, len(key)).astype(np.int64)
    root = _Node("", "", "", int(total.sum()), {})
    drawn = [
        (name.removeprefix(MODULE), kind, f"host-{kind}")
        for name, kind in zip(callers.names, callers.kinds, strict=True)
    ]
    for code, time in zip(key.tolist(), total.tolist(), strict=True):
        at, last = divmod(code, width)
        here = root
        for one in [*(drawn[node] for node in callers.chain(at)), tell(last)]:
            here = here.below.setdefault(one, _Node(*one, 0, {}))
            here.ns += time
    root = _Node("", "", "", root.ns, {key: _shortened(child) for key, child in root.below.items()})
    while len(root.below) == 1 and next(iter(root.below.values())).kind == "python":
        root = next(iter(root.below.values()))  # what is around everything says nothing
    least = max(root.ns * SMALLEST, 1)
    while len(found := list(_laid(root, 0, 0, least))) > MOST:
        least *= 2
    return tuple(found)


def _shortened(node: _Node) -> _Node:
    """The tree without Python lines that are all of a module, or that only lead to the one thing that is all of them."""
    below = {key: _shortened(child) for key, child in node.below.items()}
    largest = max(below.values(), key=lambda child: child.ns, default=None)
    if largest is not None and largest.ns >= ALIKE * node.ns and "python" in (node.kind, largest.kind):
        if node.kind == "python":
            return replace(largest, ns=node.ns)
        below = largest.below
    return replace(node, below=below)


def _laid(node: _Node, depth: int, start: int, least: float) -> Iterator[Flame]:
    """The children of a node side by side, the largest first; small ones together."""
    small = 0
    for child in sorted(node.below.values(), key=lambda one: -one.ns):
        if child.ns < least:
            small += child.ns
            continue
        yield Flame(child.name, child.kind, child.colour, depth, start, child.ns)
        yield from _laid(child, depth + 1, start, least)
        start += child.ns
    if small >= least:
        yield Flame(OTHERS, "others", "other", depth, start, small)
