"""The collectives of one device: which group and kind, which number, how many bytes, and what came before each.

The library's own arguments (`Process Group Name`, `Collective name`, `Seq`, `In msg nelems` …) tell where a recording has
them; else the kernel's name, the operators around its launch, and the stream.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.attribution.causes import IDLE
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.columns.intervals import Intervals, union
from gpu_trace_advisor.ranks.collective_kinds import PHASE_OF, dtype_bytes, kind_of
from gpu_trace_advisor.ranks.model import PHASES, Collectives
from gpu_trace_advisor.timelines.device import COMMUNICATION, COMPUTE, Timeline, covered
from gpu_trace_advisor.trace.lookup import distinct_rows, values_at, values_of
from gpu_trace_advisor.trace.model import NONE, Bool, Int64

LARGEST = 1 << 62  # bytes of a message: what is more is no message, and leaves 64 bits
ENCLOSING = 6  # operators around a launch that are asked for the collective's name


def collectives(view: DeviceWindow, most: int) -> tuple[Collectives, int]:
    """The device's collectives, at most `most` of them, and of how many one is kept (a power of two).

    Which are kept depends on the number of their step (of a step that has more, on their own number or order) alone, so that
    all ranks keep the same ones.
    """
    timeline = view.timeline
    at = communications(timeline)
    rows = timeline.row[at]
    names = _CollectiveNames(view, rows)
    keys, key = names.keys()
    start, end = timeline.start[at], timeline.end[at]
    order = _order(key)
    group_names = {name: i for i, name in enumerate(dict.fromkeys(group for group, _, _ in keys))}
    group = np.array([group_names[g] for g, _, _ in keys], np.int64)[key] if len(keys) else np.empty(0, np.int64)
    before = _before(group)
    since = np.where(before == NONE, start, np.minimum(end[before] if len(end) else end, start))
    sequence = names.integers("Seq")
    chosen = np.where(sequence == NONE, order, sequence)
    numbers = np.array([_number(step.number, i) for i, step in enumerate(view.steps)] + [NONE], np.int64)
    step = numbers[view.of_step[at]]
    keep, stride = _sampled(step, most) if (step != NONE).any() else (np.ones(len(at), np.bool_), 1)
    by_step = int(keep.sum()) <= most
    if not by_step:
        keep, stride = np.ones(len(at), np.bool_), 1
    while int(keep.sum()) > most:
        stride *= 2
        keep = chosen % stride == 0
        if stride > len(at):
            keep = np.arange(len(at)) < most
    kept = np.flatnonzero(keep)
    compute = timeline.union_of(timeline.op_class == COMPUTE)
    # What several cover at a time is the first one's.
    alone = np.minimum(np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])), end)
    exposed = (end - alone)[kept] - covered(Intervals(alone[kept], end[kept]), compute)
    inside = (start >= view.window.start_ns) & (start < view.window.end_ns)
    found = Collectives(
        keys=tuple(keys),
        place=kept,
        key=key[kept].astype(np.int32),
        order=order[kept],
        sequence=sequence[kept],
        start_ns=start[kept],
        end_ns=end[kept],
        bytes=names.bytes(kept),
        exposed_ns=exposed,
        step=step[kept].astype(np.int32),
        inside=inside[kept],
        first=(before == NONE)[kept],
        phases_ns=phases_between(view, since[kept], start[kept]),
        by_step=by_step,
    )
    return found, stride


def communications(timeline: Timeline) -> Int64:
    """The timeline's operations that communicate and take any time, in order of start."""
    at = np.flatnonzero((timeline.op_class == COMMUNICATION) & (timeline.end > timeline.start))
    return at[np.argsort(timeline.start[at], kind="stable")]


def _sampled(step: Int64, most: int) -> tuple[Bool, int]:
    """[c] those of whole steps, every so many of them that there are at most so many; or too many of a single one."""
    keep, stride, last = np.ones(len(step), np.bool_), 1, int(step.max())
    while int(keep.sum()) > most and stride <= last:
        stride *= 2
        keep = (step != NONE) & (step % stride == 0)
    return keep, stride


def _number(number: int | None, index: int) -> int:
    return index if number is None else number


def _order(key: Int64) -> Int64:
    """[c] how many of the same key came before."""
    by_key = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(key[by_key]) != 0])) if len(key) else np.empty(0, np.int64)
    counts = np.diff(np.concatenate([starts, [len(key)]]))
    order = np.empty(len(key), np.int64)
    order[by_key] = np.arange(len(key)) - np.repeat(starts, counts)
    return order


def _before(group: Int64) -> Int64:
    """[c] the one of the same group before it, -1 for the first."""
    by_group = np.argsort(group, kind="stable")
    before = np.full(len(group), NONE, np.int64)
    same = group[by_group][1:] == group[by_group][:-1]
    before[by_group[1:][same]] = by_group[:-1][same]
    return before


def phases_between(view: DeviceWindow, start: Int64, end: Int64) -> Int64:
    """[k, len(PHASES)] what the device did or waited for in each [start, end), in ns."""
    timeline, pieces = view.timeline, view.attribution.pieces
    spans = Intervals(start, np.maximum(start, end))
    found = np.zeros((len(start), len(PHASES)), np.int64)
    if not len(start):
        return found
    compute = covered(spans, timeline.union_of(timeline.op_class == COMPUTE))
    kernels = covered(spans, timeline.union_of((timeline.op_class == COMPUTE) | (timeline.op_class == COMMUNICATION)))
    found[:, PHASES.index("compute")] = compute
    found[:, PHASES.index("communication")] = kernels - compute
    found[:, PHASES.index("copies")] = covered(spans, timeline.busy) - kernels
    for code in present(pieces.cause).tolist():
        idle = union(*pieces.spans(code))
        found[:, PHASES.index(PHASE_OF.get(IDLE[code], "host"))] += covered(spans, idle)
    return found


class _CollectiveNames:
    """What is recorded of the collectives at these rows of a trace, in this order."""

    def __init__(self, view: DeviceWindow, rows: Int64) -> None:
        self.view, self.trace, self.rows = view, view.trace, rows
        self.kind_by_name: dict[int, str] = {}
        self.by_parent: dict[int, str] = {}

    def texts(self, argument: str) -> list[str]:
        codes = values_at(self.trace.texts.get(argument), self.rows)
        return [self.trace.strings[code] if code != NONE else "" for code in codes.tolist()]

    def integers(self, argument: str) -> Int64:
        return values_at(self.trace.integers.get(argument), self.rows)

    def keys(self) -> tuple[list[tuple[str, str, int]], Int64]:
        """Distinct (group, kind, size), and each row's."""
        trace = self.trace
        names, groups = self.texts("Collective name"), self.texts("Process Group Name")
        descriptions, members = self.texts("Process Group Description"), self.texts("Process Group Ranks")
        sizes = self.integers("Group size").tolist()
        source, target = (self.integers(key).tolist() for key in ("Src Rank", "Dst Rank"))
        streams: dict[int, int] = {}
        table: dict[tuple[str, str, int], int] = {}
        label: dict[tuple[str, str, str], str] = {}
        key = np.empty(len(self.rows), np.int64)
        own = self.view.process.rank if self.view.process.rank is not None else trace.rank
        for i, row in enumerate(self.rows.tolist()):
            kind = kind_of(names[i]) if names[i] else self._kind(row)
            what = groups[i], descriptions[i], members[i]
            if any(what):
                if what not in label:
                    label[what] = _group(*what)
                group = label[what]
            else:
                group = f"stream {streams.setdefault(int(trace.stream[row]), len(streams))}"
            if kind in ("send", "recv"):
                peer = target[i] if kind == "send" else source[i]
                if peer != NONE and own is not None and peer != own:
                    a, b = (own, peer) if kind == "send" else (peer, own)
                    group, kind = f"{group} {a}>{b}", "p2p"
                elif sizes[i] == 2:
                    kind = "p2p"
            key[i] = table.setdefault((group, kind, max(sizes[i], 0)), len(table))
        return list(table), key

    def _kind(self, row: int) -> str:
        """By the kernel's name; an exchange may be all ranks' or two ranks', which only the operators around it say."""
        code = int(self.trace.name_code[row])
        if code not in self.kind_by_name:
            self.kind_by_name[code] = kind_of(self.trace.names[code])
        kind = self.kind_by_name[code]
        return self._around(row) or kind if kind in ("sendrecv", "other") else kind

    def _around(self, row: int) -> str:
        parent = self._parent(row)
        if parent not in self.by_parent:
            found, above = "", parent
            for _ in range(ENCLOSING):
                if above == NONE or found:
                    break
                kind = kind_of(self.trace.label(above))
                found = kind if kind != "other" else ""
                above = int(self.view.timeline.host.parent[above])
            self.by_parent[parent] = found
        return self.by_parent[parent]

    def _parent(self, row: int) -> int:
        launch = int(self.trace.launch[row])
        return int(self.view.timeline.host.parent[launch]) if launch != NONE else NONE

    def bytes(self, kept: Int64) -> Int64:
        """[kept] size of the message: what each rank has in the end for a gather, else what it puts in."""
        trace = self.trace
        sent, got = self.integers("In msg nelems")[kept], self.integers("Out msg nelems")[kept]
        elements = np.maximum(sent, got)
        codes = values_at(trace.texts.get("dtype"), self.rows)[kept]
        width = _per_code(codes, trace.strings, dtype_bytes)
        size = np.where((elements >= 0) & (width > 0), elements * width, NONE)
        missing = np.flatnonzero(size == NONE)
        if len(missing) and "Input Dims" in trace.texts:
            size[missing] = self._first_tensors(self.rows[kept[missing]])
        return np.asarray(size, np.int64)

    def _first_tensors(self, rows: Int64) -> Int64:
        """[k] bytes of the first tensor that the operator around each launch gets; -1 where its shapes do not tell."""
        trace, launch = self.trace, self.trace.launch[rows]
        parent = np.where(launch != NONE, self.view.timeline.host.parent[launch], NONE)
        arguments = [trace.texts.get(name) for name in ("Input Dims", "Input type")]
        calls, which = distinct_rows(values_of(arguments, parent))
        sizes = [_message(*(trace.strings[code] if code != NONE else "" for code in call)) for call in calls]
        return np.array(sizes, np.int64)[which]


def _per_code(codes: Int64, strings: object, value: Callable[[str], int]) -> Int64:
    known: dict[int, int] = {}
    out = np.empty(len(codes), np.int64)
    for i, code in enumerate(codes.tolist()):
        if code not in known:
            known[code] = value(strings[code]) if code != NONE else NONE  # type: ignore[index]
        out[i] = known[code]
    return out


def _group(name: str, description: str, members: str) -> str:
    """A label of a process group that is the same on all its ranks and no other group's."""
    label = " ".join(dict.fromkeys(part for part in (name, description) if part))[:48]
    if not members:
        return label
    import hashlib  # loads a cryptographic library

    return f"{label} #{hashlib.sha1(members.encode(), usedforsecurity=False).hexdigest()[:6]}"


def _message(dims: str, types: str) -> int:
    """Bytes of the first tensor of a call with these shapes and types; -1 where they do not tell."""
    try:
        shapes, names = json.loads(dims or "[]"), json.loads(types or "[]")
    except (ValueError, RecursionError):
        return NONE
    if not isinstance(shapes, list) or not isinstance(names, list):
        return NONE
    for shape, name in zip(shapes, names, strict=False):
        if isinstance(shape, list) and shape and isinstance(name, str) and all(isinstance(d, int) for d in shape):
            count = math.prod(shape) * dtype_bytes(name)
            return int(count) if 0 < count < LARGEST else NONE
    return NONE
