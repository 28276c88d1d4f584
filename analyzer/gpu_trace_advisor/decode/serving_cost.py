"""What serving costs: times to the first and to the next token, tokens a second, and the price of a million of them.

    first token   length of a prefill step; where none was recorded, at least its arithmetic over the peak
    next token    length of a decode pass
    tokens/s      sequences that decode together / next token
    price         devices x price an hour / (tokens/s x 3600) x 10^6

Then where a larger batch and smaller weights would move them. Below the ridge the weights take as long however many rows
share them, and each sequence adds its own cache:

    next token of β times the batch   + (β - 1) cache / bandwidth
    next token with p' for p bytes    - (1 - p'/p) weights / bandwidth
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.analysis.request import PREFILL, Request
from gpu_trace_advisor.decode.passes import KEPT, Amount, Decoding
from gpu_trace_advisor.reference.facts import value
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Note
from gpu_trace_advisor.units import percent

TIMES = (2, 4, 8)  # the batch: from a careful step to a bold one
BITS = ((8, "gt-int8"), (4, "gt-int4"))  # of the weights, and the claim with their ratio to 16 bits
MILLION = 1_000_000
HOUR = 3600


@dataclass(frozen=True)
class Choice:
    """Another way to serve. Ranges go from pessimistic to optimistic."""

    name: str
    next_token_ns: tuple[int, int]
    tokens_per_s: tuple[float, float]
    price_per_million: tuple[float, float] | None
    fits: bool | None
    """Weights and cache stay below the usable memory; None where that is not known."""
    why: str


@dataclass(frozen=True)
class Serving:
    """The panel of one device. Plain data; None is unknown, with the reason beside it."""

    file: str
    rank: int | None
    process: int | None
    device: int
    batch: float | None
    batch_why: str
    prompt_tokens: int | None
    output_tokens: int | None
    first_token_ns: int | None
    first_token_why: str
    next_token_ns: int | None
    next_token_why: str
    tokens_per_s: float | None
    request_ns: int | None
    """From question to last token: first token and all the next ones."""
    requests_per_s: float | None
    price_per_hour: float | None
    """Of one device."""
    devices: int
    """Those that share the work, as far as their recordings are here; all of them are paid."""
    price_per_million: float | None
    """Of output tokens."""
    choices: tuple[Choice, ...]


def asked(request: Request) -> bool:
    """Somebody wants to know."""
    return any(x is not None for x in (request.price, request.batch, request.prompt_tokens, request.output_tokens))


def serving(view: DeviceWindow) -> Serving | None:
    """The panel; None where nobody asked for it, or the program does not serve."""
    request, decode = view.request, Decoding(view)
    first = first_token(view, decode)
    if not asked(request) or (not decode.spans and first.value is None):
        return None
    batch, pass_ns = decode.rows.value, decode.pass_ns
    rate = batch * 1e9 / pass_ns if batch and pass_ns else None
    whole = None
    if first.value is not None and pass_ns and request.output_tokens:
        whole = first.value + request.output_tokens * pass_ns
    return Serving(
        **view.place._asdict(),
        batch=batch,
        batch_why=decode.rows.why if decode.spans else "no decode was recorded",
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        first_token_ns=round(first.value) if first.value is not None else None,
        first_token_why=first.why,
        next_token_ns=round(pass_ns) if pass_ns else None,
        next_token_why=decode.passes.why if decode.spans else "no decode was recorded",
        tokens_per_s=rate,
        request_ns=round(whole) if whole else None,
        requests_per_s=batch * 1e9 / whole if batch and whole else None,
        price_per_hour=request.price,
        devices=_devices(view, decode),
        price_per_million=price_per_million(_price(view, decode), rate),
        choices=tuple(_choices(view, decode)) if pass_ns and batch else (),
    )


def not_served(request: Request, views: Sequence[DeviceWindow]) -> list[Note]:
    """Why there is no panel though somebody asked for one."""
    if not asked(request):
        return []
    phases = " and ".join(dict.fromkeys(view.phase.name for view in views)) or "a recording without GPU work"
    why = f"costs of serving were asked for, and this is no decode ({phases}); --phase decode where it is one"
    return [Note("not-served", why, 1)]


def price_per_million(price: float | None, tokens_per_s: float | None) -> float | None:
    """What a million tokens cost.

    >>> round(price_per_million(2.5, 800), 2)
    0.87
    """
    return price / (tokens_per_s * HOUR) * MILLION if price and tokens_per_s else None


def _devices(view: DeviceWindow, decode: Decoding) -> int:
    """Devices that make the same tokens together."""
    if not decode.communicates:
        return 1
    return max(len(view.peers), len(view.run.rows) if view.run else 1)


def _price(view: DeviceWindow, decode: Decoding) -> float | None:
    price = view.request.price
    return price * _devices(view, decode) if price is not None else None


def first_token(view: DeviceWindow, decode: Decoding) -> Amount:
    """Length of a prefill in ns: as recorded, else the floor of its arithmetic."""
    phase, window = view.phase, view.window
    prefills = [end - start for start, end in phase.spans(PREFILL)]
    if prefills:
        return Amount(float(np.median(prefills)), f"median of {len(prefills)} prefill steps of the engine")
    if phase.name == PREFILL:
        count = max(len(view.kept_steps), 1) if window.kind == "steps" else 1
        return Amount((window.end_ns - window.start_ns) / count, "length of the recorded prefill")
    request, hardware, weights = view.request, view.hardware, decode.weights.value
    if request.prompt_tokens and hardware and weights and hardware.peaks.get("bf16"):
        parameters = weights / 2
        compute = 2 * parameters * request.prompt_tokens / hardware.peaks["bf16"] / value("ai-service-model", "eff")
        return Amount(
            compute * 1e9,
            f"modelled: 2 FLOP a parameter and token at {percent(value('ai-service-model', 'eff'))} of the peak, without "
            "attention; 16-bit weights assumed",
        )
    return Amount(None, "no prefill was recorded (with --prompt-tokens and --weights its arithmetic is estimated)")


def _choices(view: DeviceWindow, decode: Decoding) -> Iterator[Choice]:
    """Batches up to the ridge, and weights of fewer bits."""
    hardware, length, batch = view.hardware, decode.pass_ns, decode.rows.value
    weights, cache = decode.weights.value, decode.cache.value
    if hardware is None or length is None or batch is None:
        return
    usable = value("ai-service-model", "mem") * hardware.memory_bytes
    reach, price = view.inkernel.attainable, _price(view, decode)
    if view.request.objective != "latency":
        for times in TIMES:
            if batch * times > decode.ridge:
                break
            most = (times - 1) * (cache if cache is not None else 0.0) / reach * 1e9
            fits = weights + times * cache <= usable if weights is not None and cache is not None else None
            why = "each sequence adds its cache" if cache is not None else "at best: the bytes of the cache are unknown"
            yield _choice(price, f"batch × {times}", (length + most, length + most), batch * times, fits, why)
    if weights is None or decode.quantized or decode.host_bound:  # the host would have to get faster first
        return
    for bits, claim in BITS:
        saved = (1 - 1 / value(claim, "ratio")) * weights / reach * 1e9
        floor = (weights / value(claim, "ratio") + (cache or 0.0)) / hardware.bandwidth * 1e9
        slow, fast = (max(length - share * saved, floor) for share in (KEPT, 1.0))
        fits = weights / value(claim, "ratio") + cache <= usable if cache is not None else None
        yield _choice(price, f"weights in {bits} bits", (slow, fast), batch, fits, "check the answers")


def _choice(
    price: float | None, name: str, next_token: tuple[float, float], batch: float, fits: bool | None, why: str
) -> Choice:
    slow, fast = (batch * 1e9 / ns for ns in next_token)
    prices = tuple(price_per_million(price, rate) for rate in (slow, fast))
    return Choice(
        name,
        (round(next_token[0]), round(next_token[1])),
        (slow, fast),
        (prices[0], prices[1]) if prices[0] is not None and prices[1] is not None else None,
        fits,
        why,
    )
