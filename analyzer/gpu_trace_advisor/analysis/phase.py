"""What a program does in a window: training, prefill, decode, a mixture, or unknown; always with the reason.

In this order: the annotations of engines say it themselves; backward and optimizer work is training; else the rows M of
the matrix products tell prefill (about batch times sequence) from decode (about batch), as training-vs-inference 8.1 has
it. A window that is not told apart by these stays unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpu_trace_advisor.analysis.request import DECODE, PREFILL, TRAINING
from gpu_trace_advisor.columns.codes import first_places
from gpu_trace_advisor.roofline.operator_costs import Costs
from gpu_trace_advisor.timelines.device import COMPUTE, Timeline
from gpu_trace_advisor.trace.engine_steps import STEP
from gpu_trace_advisor.trace.model import NONE, Bool, Int64, Kind, Trace
from gpu_trace_advisor.units import percent

MIXED, UNKNOWN = "mixed", "unknown"

MANY_ROWS = 128  # products of a prefill have at least these rows: a short prompt's tokens
FEW_ROWS = 64  # products of a decode have at most these; between the two the phase is open
MOST = 0.8  # of the products' time must agree

TENSORRT_LLM = re.compile(r"(?:\[\w+\] )?_forward_step \d+: (?P<c>\d+) ctx reqs, (?P<g>\d+) gen reqs")
SGLANG = re.compile(r"step\[(?P<mode>[A-Z_]+)(?P<rest>[^\]]*)\]")
PLAIN = re.compile(r"(?:prefill|decode)(?:[ _-]?(?:step|phase|token|forward|batch))?(?:[ _#:-]*\d+)?", re.I)
"""A program's own ranges; `decode` alone may be that of images."""
SGLANG_PHASES = {"DECODE": DECODE, "TARGET_VERIFY": DECODE, "EXTEND": PREFILL, "PREFILL": PREFILL, "MIXED": MIXED}

BACKWARD = re.compile(
    r"autograd::engine::evaluate_function|(?:torch::autograd::)?\w+Backward\d*$|aten::\w*backward(?:_\w+)?$|"
    r"Optimizer\.(?:step|zero_grad)#|DeepSpeedEngine\.(?:backward|step)|FSDP::\w*_?backward|torch::autograd::AccumulateGrad"
)
BACKWARD_RANGE = re.compile(
    r"(?:bwd|step)_(?:inner_)?microstep$|forward-backward$|backward$|optimizer(?:[-_.]step)?$", re.I
)
BACKWARD_KERNEL = re.compile(
    r"flash_bwd|fmha_\w*bwd|fmha_cutlassB|FlashAttnBwd|bn_bw_|softmax_warp_backward|softMaxBackward|layer_norm_grad|"
    r"GammaBetaBackward|nll_loss_backward|(?:^|[_:])(?:wgrad|dgrad)_|_backward_kernel|FusedAdam|AdamFunctor|FusedSgd"
)
CACHE_KERNEL = re.compile(
    r"paged_?attention|PagedKv|reshape_and_cache|flash_fwd_splitkv|BatchDecode|decode_attention|mla_decode|kv_?cache|"
    r"unified_attention|FlashAttnFwdSm90.*Split|fwd_grouped_kernel_stage", re.I,
)  # fmt: skip


class Stretch(NamedTuple):
    """A part of the window: an engine's step, or a marked one."""

    start_ns: int
    end_ns: int
    name: str
    """Its phase."""
    batch: int | None
    """Sequences; likewise `tokens` processed."""
    tokens: int | None
    context: int | None
    """Tokens in the cache for each sequence, on average."""


class Phase(NamedTuple):
    """What a program does, and how that is known."""

    name: str
    """`training`, `prefill`, `decode`, `mixed` or `unknown`."""
    why: str
    batch: int | None = None
    """Sequences at once, the median of the steps; None where the recording does not say. Likewise the next two."""
    tokens: int | None = None
    """Tokens that a step processes."""
    context: int | None = None
    """Tokens in the cache for each sequence."""
    stretches: tuple[Stretch, ...] = ()
    """The window's steps, where each has its own phase."""

    def spans(self, name: str) -> list[tuple[int, int]]:
        """Where the window is in this phase, in ns; empty where it was not split."""
        return [(s.start_ns, s.end_ns) for s in self.stretches if s.name == name]


def detect(
    timeline: Timeline, costs: Costs, start_ns: int, end_ns: int, steps: Sequence[tuple[int, int]] = ()
) -> Phase:
    """The phase of [start_ns, end_ns); `steps` are the spans of marked steps, to be told apart where they differ."""
    if annotated := _annotated(timeline, start_ns, end_ns):
        return annotated
    if why := _trains(timeline, start_ns, end_ns):
        return Phase(TRAINING, why)
    found = _by_rows(timeline, costs, start_ns, end_ns)
    if found.name != MIXED or len(steps) < 2:
        return found if found.name != MIXED else Phase(UNKNOWN, found.why)
    each = [(span, _by_rows(timeline, costs, *span)) for span in steps]
    stretches = tuple(Stretch(*span, phase.name, None, phase.tokens, None) for span, phase in each)
    if {s.name for s in stretches} >= {PREFILL, DECODE}:
        return Phase(MIXED, f"{found.why}, and the steps differ", stretches=stretches)
    return Phase(UNKNOWN, found.why)


def read_annotation(name: str) -> tuple[str, int | None, int | None, int | None] | None:
    """Phase, sequences, tokens and mean context that an engine's annotation tells; None for any other name."""
    if found := STEP.match(name):
        prompts, generating = int(found["c"]), int(found["g"])
        phase = MIXED if prompts and generating else PREFILL if prompts else DECODE
        new, cached = (_counts(found[part]) for part in ("ct", "gt"))
        tokens = int(found["all"]) if found["all"] else (new[0] or 0) + (cached[0] or 0)
        context = cached[1] // generating if phase == DECODE and generating and cached[1] else None
        return (phase, prompts + generating, tokens or None, context) if prompts or generating else None
    if found := TENSORRT_LLM.match(name):
        prompts, generating = int(found["c"]), int(found["g"])
        phase = MIXED if prompts and generating else PREFILL if prompts else DECODE
        return (phase, prompts + generating, None if prompts else generating, None) if prompts or generating else None
    if found := PLAIN.fullmatch(name):
        return PREFILL if name.lower().startswith("prefill") else DECODE, None, None, None
    if found := SGLANG.match(name):
        if found["mode"] not in SGLANG_PHASES:
            return None
        decodes = found["mode"] == "DECODE"  # one token a sequence
        batch, given = (_argument(found["rest"], key) for key in (r"bs", r"(?:num_)?tok(?:en)?s"))
        return SGLANG_PHASES[found["mode"]], batch, batch if decodes and given is None else given, None
    return None


def _counts(text: str) -> tuple[int | None, int | None]:
    """Tokens, and tokens in the cache, of `888_788544` or `sq32sk55086sqsq32sqsk55086`."""
    if found := re.match(r"sq(\d+)sk(\d+)", text):
        return int(found[1]), int(found[2])
    found = re.match(r"(\d+)", text)
    return (int(found[1]) if found else None), None


def _argument(text: str, key: str) -> int | None:
    found = re.search(rf"\b{key}=(\d+)", text)
    return int(found[1]) if found else None


def _annotated(timeline: Timeline, start_ns: int, end_ns: int) -> Phase | None:
    """What the engine's own annotations say of the steps in the window."""
    trace = timeline.trace
    telling = np.array([read_annotation(name) is not None for name in trace.names], np.bool_)
    if not telling.any():
        return None
    rows = np.flatnonzero(trace.name_mask(telling) & (trace.process == timeline.process))
    rows = rows[np.isin(trace.kind[rows], (Kind.RANGE, Kind.OPERATOR, Kind.SPAN))]
    plain = {code for code in np.flatnonzero(telling).tolist() if PLAIN.fullmatch(trace.names[code])}
    if plain and not any(trace.names[code].lower().startswith("prefill") for code in plain):
        rows = rows[~np.isin(trace.name_code[rows], list(plain))]
    rows = _of_window(timeline, rows, start_ns, end_ns)
    stretches: list[Stretch] = []
    for row in rows.tolist():
        said = read_annotation(trace.label(row))
        start, end = int(trace.start_ns[row]), int(trace.end_ns[row])
        if said is None:
            continue
        if stretches and start < stretches[-1].end_ns:  # a second annotation of the same step adds what it knows
            last = stretches[-1]
            known = zip((last.batch, last.tokens, last.context), said[1:], strict=True)
            merged = [new if old is None else old for old, new in known]
            stretches[-1] = Stretch(last.start_ns, last.end_ns, last.name, *merged)
        else:
            stretches.append(Stretch(start, end, *said))
    if not stretches:
        return None
    phases = Counter(stretch.name for stretch in stretches)
    example = trace.label(int(rows[0]))
    name = next(iter(phases)) if len(phases) == 1 else MIXED
    counted = ", ".join(f"{count} {phase}" for phase, count in phases.most_common())
    why = f"the engine's annotation {example}" if len(stretches) == 1 else f"the engine's annotations: {counted} steps"
    batch, tokens, context = (
        _median(values) for values in zip(*((s.batch, s.tokens, s.context) for s in stretches), strict=True)
    )
    return Phase(name, why, batch, tokens, context, tuple(stretches))


def _of_window(timeline: Timeline, rows: Int64, start_ns: int, end_ns: int) -> Int64:
    """Those in which the window's work was launched: the host runs ahead, so that they may end before the window begins, and
    those that lie in it may have launched what comes after. Of those that launched nothing, those that overlap it."""
    trace, linked = timeline.trace, timeline.linked
    begun, done = trace.start_ns[rows], trace.end_ns[rows]

    def launches(operations: Bool) -> Bool:
        launched = np.sort(trace.start_ns[timeline.launch[np.flatnonzero(operations)]])
        found: Bool = np.searchsorted(launched, begun) < np.searchsorted(launched, done)
        return found

    inside = launches(linked & (timeline.start < end_ns) & (timeline.end > start_ns))
    return rows[inside | (~launches(linked) & (begun < end_ns) & (done > start_ns))]


def _median(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(np.median(known)) if known else None


def _trains(timeline: Timeline, start_ns: int, end_ns: int) -> str | None:
    """The record in the window that shows backward or optimizer work."""
    trace = timeline.trace
    mine = (trace.process == timeline.process) & (trace.start_ns < end_ns) & (trace.end_ns > start_ns)
    for kinds, pattern, what in (
        ((Kind.OPERATOR, Kind.RANGE), BACKWARD, "it runs"),
        ((Kind.RANGE, Kind.SPAN), BACKWARD_RANGE, "it is marked"),
    ):
        if (label := _first(trace, mine & np.isin(trace.kind, kinds), pattern.match)) is not None:
            return f"{what} {label}"
    running = np.zeros(len(trace), np.bool_)
    running[timeline.row] = True
    label = _first(trace, mine & running & (trace.kind == Kind.KERNEL), BACKWARD_KERNEL.search)
    return None if label is None else f"it runs the kernel {label[:80]}"


def _first(trace: Trace, rows: Bool, fits: Callable[[str], object]) -> str | None:
    """The name that fits of those of these rows of the trace, of several the one that comes first in time."""
    codes, places = first_places(trace.name_code[rows])
    names = (trace.names[code] for code in codes[np.argsort(places)].tolist())
    return next(filter(fits, names), None)


def _by_rows(timeline: Timeline, costs: Costs, start_ns: int, end_ns: int) -> Phase:
    """By the rows of the matrix products with weights, each counted by its time."""
    rows, time = product_rows(timeline, costs, start_ns, end_ns)
    if not len(rows) or not time.sum():
        return Phase(UNKNOWN, "no annotation, backward work or shape of a matrix product tells the phase")
    many, few = (float(time[mask].sum() / time.sum()) for mask in (rows >= MANY_ROWS, rows <= FEW_ROWS))
    typical = int(rows[np.argsort(rows)][np.searchsorted(np.cumsum(time[np.argsort(rows)]), time.sum() / 2)])
    if many >= MOST:
        why = f"nothing runs backward, and {percent(many)} of the matrix products' time has {MANY_ROWS} rows or more ({typical})"
        return Phase(PREFILL, why, tokens=typical)
    if few >= MOST:
        why = f"{percent(few)} of the matrix products' time has {FEW_ROWS} rows or fewer ({typical})"
        trace = timeline.trace
        on = np.zeros(len(trace), np.bool_)
        on[timeline.row[(timeline.start < end_ns) & (timeline.end > start_ns)]] = True
        cache = _first(trace, on, CACHE_KERNEL.search)
        if cache is None:
            return Phase(UNKNOWN, f"{why}, but no kernel reads a KV cache")
        return Phase(DECODE, f"{why}, and a kernel reads a KV cache ({cache[:60]})", typical, typical)
    if few + many >= MOST:
        return Phase(
            MIXED, f"of the matrix products' time {percent(many)} has {MANY_ROWS} rows or more, {percent(few)} few"
        )
    return Phase(UNKNOWN, f"most matrix products have between {FEW_ROWS} and {MANY_ROWS} rows ({typical})")


def product_rows(timeline: Timeline, costs: Costs, start_ns: int, end_ns: int) -> tuple[Int64, Int64]:
    """Rows M of each matrix product with weights that runs in [start_ns, end_ns), and its ns."""
    m = np.array([kind.m if kind.weight_bytes else NONE for kind in costs.kinds], np.int64)
    on = np.flatnonzero((costs.kind != NONE) & (timeline.op_class == COMPUTE) & (timeline.start < end_ns))
    on = on[timeline.end[on] > start_ns]
    on = on[m[costs.kind[on]] != NONE] if len(on) else on
    length: Int64 = timeline.length[on]
    return m[costs.kind[on]] if len(on) else np.empty(0, np.int64), length
