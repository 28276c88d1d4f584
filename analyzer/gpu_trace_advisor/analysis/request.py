"""What is asked of a recording."""

from __future__ import annotations

import re
import warnings

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.runtime.classes import dataclass

TRAINING, PREFILL, DECODE = "training", "prefill", "decode"
PHASES = (TRAINING, PREFILL, DECODE)
"""Those that somebody can ask for, or a rule be about."""


@dataclass(frozen=True)
class Request:
    """What was asked for; None is the default of each.

    Raises:
        BadUsage: there is no such phase or objective.
    """

    window: str | None = None
    steps: str | None = None
    step_marker: str | None = None
    device: int | None = None
    rank: int | None = None
    what_if: str | None = None
    """Names of fixes or ids of rules, comma-separated."""
    phase: str | None = None
    """`training`, `prefill` or `decode`, where the recording does not tell."""
    hardware: str | None = None
    """Key or name of the device in hardware.toml, where the recording does not tell."""
    weights: int | None = None
    """Bytes of the model's weights on one device."""
    rules: str | None = None
    """A folder with more rules."""
    objective: str | None = None
    """`latency` or `throughput`: what counts in inference."""
    price: float | None = None
    """What one device costs an hour, in any currency."""
    batch: int | None = None
    """Sequences that decode together, where the recording does not tell. Likewise the lengths of a request in tokens."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    captures: tuple[str, ...] = ()
    """Recordings of how CUDA or HIP graphs were captured: they tell the operators of replayed kernels."""
    limit: int | None = None
    """Bytes of memory that reading one recording may take, where its size allows less."""

    def __post_init__(self) -> None:
        for option in ("window", "steps", "step_marker", "what_if", "hardware"):
            if not isinstance(given := getattr(self, option), str | None):
                raise BadUsage(f"{option}={given!r}: expected text, as the option takes it")
        if not isinstance(self.captures, tuple):
            raise BadUsage(f"captures={self.captures!r}: expected a tuple of places")
        for option, allowed in (("phase", PHASES), ("objective", ("latency", "throughput"))):
            if (given := getattr(self, option)) not in (None, *allowed):
                raise BadUsage(f"--{option} {given}: expected {', '.join(allowed)}")

    def marker(self) -> re.Pattern[str] | None:
        """`--step-marker` as a pattern: a regular expression matched from the name's start.

        Raises:
            BadUsage: not a regular expression.
        """
        if self.step_marker is None:
            return None
        try:
            with warnings.catch_warnings(action="ignore"):  # of what a later Python may read otherwise
                return re.compile(self.step_marker)
        except (re.error, OverflowError, RecursionError) as error:
            raise BadUsage(f"--step-marker {self.step_marker}: not a regular expression ({error})") from None
