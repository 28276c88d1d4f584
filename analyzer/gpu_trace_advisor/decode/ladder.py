"""The ladder of a decode: how fast a pass can be at most, where this one stands, and what each step would move.

    floor    (weights + cache) / bandwidth; only fewer bytes lower it
    here     passes a second as recorded, and their share of the floor's
    steps    the priced findings, one on top of the other
    others   what others reached with a small model, shown only beside a small model, and labelled as what it is

Wall time that a finding saves shortens the passes of the window evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.decode.passes import Decoding
from gpu_trace_advisor.reference.facts import span, value
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.runtime.classes import dataclass

LOWER_THE_FLOOR = {"weight-quantization": "weights", "kv-quantization": "cache"}
"""Rules after which a pass reads fewer bytes, and which."""

LABEL = "Llama-1B at batch 1 on H100, 2025"


@dataclass(frozen=True)
class Rung:
    """A place on the ladder."""

    name: str
    passes_per_s: tuple[float, float]
    """Lowest and highest; likewise `share`, of the floor's."""
    share: tuple[float, float] | None
    grade: str
    """`measured`, `modelled` or `assumed`; `reference` is somebody else's figure for another model."""
    source: str


@dataclass(frozen=True)
class Ladder:
    """The ladder of one device. Plain data."""

    file: str
    rank: int | None
    process: int | None
    device: int
    floor_ns: int | None
    """Of a pass; None where it cannot be told."""
    why: str
    """What the floor rests on, or why there is none."""
    weights: int | None
    """Bytes that a pass reads on this device; likewise `cache`."""
    cache: int | None
    cache_why: str
    bandwidth: float | None
    devices_needed: int | None
    """To hold the weights; None where the memory or the weights are unknown."""
    passes: int | None
    pass_ns: int | None
    passes_why: str
    batch: float | None
    """Tokens that a pass makes."""
    batch_why: str
    tokens_per_s: float | None
    share: float | None
    """Of the floor: the bandwidth that is used (MBU)."""
    rungs: tuple[Rung, ...]


def ladder(view: DeviceWindow, findings: Sequence[Finding]) -> Ladder | None:
    """The ladder of a device's decode; None where it does not decode."""
    decode = Decoding(view)
    if not decode.spans:
        return None
    hardware, weights = view.hardware, decode.weights
    floor, length = decode.floor_ns, decode.pass_ns
    rate = 1e9 / length if length else None
    return Ladder(
        **view.place._asdict(),
        floor_ns=round(floor) if floor is not None else None,
        why=decode.floor.why,
        weights=round(weights.value) if weights.value is not None else None,
        cache=round(decode.cache.value) if decode.cache.value is not None else None,
        cache_why=decode.cache.why,
        bandwidth=hardware.bandwidth if hardware else None,
        devices_needed=ceil(weights.value / hardware.memory_bytes) if hardware and weights.value else None,
        passes=int(decode.passes.value) if decode.passes.value else None,
        pass_ns=round(length) if length else None,
        passes_why=decode.passes.why,
        batch=decode.rows.value,
        batch_why=decode.rows.why,
        tokens_per_s=rate * decode.rows.value if rate and decode.rows.value else None,
        share=decode.reach,
        rungs=tuple(sorted(_rungs(view, decode, findings), key=lambda rung: rung.passes_per_s)),
    )


def _rungs(view: DeviceWindow, decode: Decoding, findings: Sequence[Finding]) -> Iterator[Rung]:
    floor, length, passes = decode.floor_ns, decode.pass_ns, decode.passes.value

    def share(rates: tuple[float, float]) -> tuple[float, float] | None:
        return (rates[0] * floor / 1e9, rates[1] * floor / 1e9) if floor else None

    if floor:
        yield Rung("floor", (1e9 / floor, 1e9 / floor), (1.0, 1.0), "modelled", "bytes over bandwidth")
    if length and passes:
        now = (1e9 / length, 1e9 / length)
        yield Rung("this trace", now, share(now), "measured", decode.passes.why)
        yield from _steps(view, decode, findings)
    weights = decode.weights.value
    if floor and weights is not None and weights < value("tvi-gap-50-78-100", "weights_below"):
        rates = span("tvi-llama1b-50pct", "rate")
        best = value("tvi-llama1b-floor", "rate")
        yield _reference("eager PyTorch", span("tvi-bw-eager", "mbu"), floor)
        yield _reference("vLLM and SGLang", (rates[0] / best, rates[1] / best), floor)
        yield _reference("a megakernel", span("tvi-bw-megakernel", "mbu"), floor)


def _steps(view: DeviceWindow, decode: Decoding, findings: Sequence[Finding]) -> Iterator[Rung]:
    """What each priced finding moves, on top of those before it; none beyond the floor, unless it lowers that."""
    floor, passes = decode.floor_ns, decode.passes.value or 1.0
    part = decode.ns / view.window.wall_ns  # savings of the window that fall on its decode
    saved = [0.0, 0.0]
    for finding in findings:
        if finding.saving_ns is None:
            continue
        saved = [total + ns for total, ns in zip(saved, finding.saving_ns, strict=True)]
        fewer = LOWER_THE_FLOOR.get(finding.rule)
        if floor and fewer and view.hardware:
            bytes_ = (decode.weights if fewer == "weights" else decode.cache).value or 0.0
            floor -= (1 - 1 / value("gt-int8", "ratio")) * bytes_ / view.hardware.bandwidth * 1e9
            yield Rung(
                f"floor with {finding.rule}", (1e9 / floor, 1e9 / floor), (1.0, 1.0), "modelled", "half of its bytes"
            )
        slow, fast = (max((decode.ns - total * part) / passes, floor or 1.0) for total in saved)
        rates = (1e9 / slow, 1e9 / fast)
        shares = (floor / slow, floor / fast) if floor else None
        yield Rung(f"with {finding.rule}", rates, shares, finding.grade, "on top of the steps before it")


def _reference(name: str, shares: tuple[float, float], floor: float) -> Rung:
    return Rung(name, (shares[0] * 1e9 / floor, shares[1] * 1e9 / floor), shares, "reference", LABEL)
