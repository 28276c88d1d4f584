"""Budgets: limits on numbers of an advice, read from TOML or given by a test, and what the advice makes of them.

level = "error"                # "warn" reports and passes, "off" is not looked at
unknown = "error"              # "ok": a number that the trace cannot tell passes
aggregate = "median"           # of several recordings of one device; or "best", "worst"

[limits]                       # every device
idle = "10%"
launch-overhead = "0.5 ms"     # per step
launches = 200
busy = {min = "80%", level = "warn"}

[device.1]                     # this device only; likewise [rank.0]
exposed-communication = "5%"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.gate.metrics import GETTERS, RESTS_ON_KERNELS, Getter, by_path, paths, steps_of
from gpu_trace_advisor.quantity import SHARE, Quantity, parse, shown
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.runtime.files import read_small

OK, BROKEN, UNKNOWN = "ok", "broken", "unknown"
LEVELS = ("error", "warn", "off")
SETTINGS = {"level": LEVELS, "unknown": ("error", "ok"), "aggregate": ("median", "best", "worst")}
TABLES = ("limits", "device", "rank")


Aggregate = Callable[[Iterable[float]], float]


@dataclass(frozen=True)
class Operator:
    """How a found number is held against its limit."""

    sign: str
    holds: Callable[[float, float], bool]
    worst: Aggregate


OPERATORS: dict[str, Operator] = {
    "max": Operator("≤", lambda found, limit: found <= limit, max),
    "min": Operator("≥", lambda found, limit: found >= limit, min),
    "equals": Operator("=", lambda found, limit: found == limit, max),
}


@dataclass(frozen=True)
class Limit:
    """One line of a budget."""

    name: str
    operator: str
    quantity: Quantity
    level: str = "error"
    unknown: str = "error"
    device: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Budget:
    limits: tuple[Limit, ...]
    aggregate: str = "median"
    source: str = ""


@dataclass(frozen=True)
class Check:
    """One limit on one device, and what was found; numbers in the limit's plain unit."""

    name: str
    where: str
    operator: str
    limit: float
    found: float | None
    dimension: str
    per: str
    """`step` or `window`, of what counts or lasts; else empty."""
    status: str
    level: str
    evidence: str

    @property
    def by(self) -> float | None:
        """How far the limit was missed."""
        return None if self.found is None else abs(self.found - self.limit)

    @property
    def fails(self) -> bool:
        """Whether the command or the test fails."""
        return self.status != OK and self.level == "error"

    @property
    def sign(self) -> str:
        return OPERATORS[self.operator].sign

    def line(self) -> str:
        """`idle 14.2 % ≤ 10 %: exceeded by 4.2 % (device 0); first: …`."""
        per = f" per {self.per}" if self.per else ""
        limit = f"{self.sign} {shown(self.limit, self.dimension)}"
        if self.found is None:
            return f"{self.name}{per} unknown, limit {limit} ({self.where}): {self.evidence}"
        text = f"{self.name}{per} {shown(self.found, self.dimension)}, limit {limit} ({self.where})"
        if self.status == OK:
            return text
        missed = {"max": "exceeded", "min": "missed", "equals": "missed"}[self.operator]
        by = f"{100 * (self.by or 0):.4g} points" if self.dimension == SHARE else shown(self.by or 0, self.dimension)
        text += f": {missed} by {by}"
        return f"{text}; first: {self.evidence}" if self.evidence else text

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "by": self.by, "fails": self.fails}


def load(path: Path) -> Budget:
    """A budget from its TOML file.

    Raises:
        BadUsage: it cannot be read, or limits what there is not; near names are given.
    """
    try:
        plain = tomllib.loads(read_small(path))
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else error
        raise BadUsage(f"{path}: not TOML: {why}") from None
    return budget(plain, str(path))


def budget(plain: Mapping[str, Any], source: str) -> Budget:
    """A budget from what its TOML holds.

    Raises:
        BadUsage: as `load`.
    """
    for key in plain:
        if key not in (*SETTINGS, *TABLES):
            raise BadUsage(f"{source}: {key}: {_unknown(key, (*SETTINGS, *TABLES))}")
    settings = {key: _setting(plain, key, allowed, source) for key, allowed in SETTINGS.items()}
    limits = _table(plain.get("limits", {}), f"{source}: [limits]", settings)
    for scope in ("device", "rank"):
        for number, inner in _mapping(plain.get(scope, {}), f"{source}: [{scope}]").items():
            if not re.fullmatch("[0-9]{1,9}", str(number)):
                raise BadUsage(f"{source}: [{scope}.{str(number)[:40]}]: expected a number, such as [{scope}.0]")
            limits += _table(inner, f"{source}: [{scope}.{number}]", settings, **{scope: int(number)})
    if not limits:
        raise BadUsage(f'{source}: no limits in it; write them below [limits], such as idle = "10%"')
    return Budget(tuple(limits), settings["aggregate"], source)


def limits_of(plain: Mapping[str, Any], source: str, *, level: str = "error", unknown: str = "error") -> list[Limit]:
    """Limits as the keyword arguments of a marker give them: `idle="10%", launches=200`.

    Raises:
        BadUsage: as `load`.
    """
    return _table(plain, source, {"level": level, "unknown": unknown})


def _setting(plain: Mapping[str, Any], key: str, allowed: Sequence[str], source: str) -> str:
    value = plain.get(key, allowed[0])
    if value not in allowed:
        raise BadUsage(f"{source}: {key} = {value!r}: expected {', '.join(allowed)}")
    return str(value)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadUsage(f"{what}: expected a table")
    return value


def _table(plain: object, what: str, settings: Mapping[str, str], **scope: int) -> list[Limit]:
    found = []
    for key, written in _mapping(plain, what).items():
        name = key.replace("_", "-") if "." not in key else key
        if name not in GETTERS and "." not in key:
            raise BadUsage(f"{what}: {key}: {_unknown(name, tuple(GETTERS))}")
        found += _limits(name, written, f"{what}: {key}", settings, scope)
    return found


def _limits(
    name: str, written: object, what: str, settings: Mapping[str, str], scope: Mapping[str, int]
) -> list[Limit]:
    """The limits on one number: a bare one is the most that it may be."""
    parts = dict(written) if isinstance(written, Mapping) else {"max": written}
    level = _setting({"level": settings["level"], **parts}, "level", LEVELS, what)
    unknown = _setting({"unknown": settings["unknown"], **parts}, "unknown", SETTINGS["unknown"], what)
    for key in parts:
        if key not in (*OPERATORS, "level", "unknown"):
            raise BadUsage(f"{what}: {key}: {_unknown(key, (*OPERATORS, 'level', 'unknown'))}")
    limited = [key for key in parts if key in OPERATORS]
    if not limited:
        raise BadUsage(f"{what}: no limit; give {', '.join(OPERATORS)}")
    dimensions = getter_of(name).dimensions
    return [
        Limit(name, key, parse(parts[key], dimensions, what), level, unknown, scope.get("device"), scope.get("rank"))
        for key in limited
    ]


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.5)
    return f"no such thing to limit; did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"


def getter_of(name: str) -> Getter:
    return GETTERS.get(name) or by_path(name)


def check(advice: Mapping[str, Any], wanted: Budget) -> list[Check]:
    """Every limit on every device it is about.

    Raises:
        BadUsage: a limit is about a device, rank or path that the advice does not have.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for device in advice["devices"] or _host_devices(advice):
        groups.setdefault((device["rank"], device["device"]), []).append(device)
    health = {note["code"]: note["message"] for note in advice["health"]}
    found = []
    for limit in wanted.limits:
        if limit.level == "off":
            continue
        about = {
            key: devices
            for key, devices in groups.items()
            if limit.rank in (None, key[0]) and limit.device in (None, key[1])
        }
        if not about:
            what, number, at = ("device", limit.device, 1) if limit.rank is None else ("rank", limit.rank, 0)
            there = ", ".join(str(key[at]) for key in sorted(groups, key=str) if key[at] is not None)
            raise BadUsage(
                f"{wanted.source}: {limit.name} of {what} {number}: the recording has no such {what}"
                + (f", only {there}" if there else "")
            )
        found += [_check(limit, key, devices, wanted, health) for key, devices in about.items()]
    return found


def _host_devices(advice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A recording without GPU work: only the time of a step can be limited."""
    host = advice.get("host")
    if host is None:
        return []
    return [{"rank": None, "device": -1, "window": "host", "steps": host["steps"], "step_ns": host["step_ns"],
             "wall_ns": host["end_ns"] - host["start_ns"], "gaps": []}]  # fmt: skip


def _check(
    limit: Limit, key: tuple[Any, ...], devices: Sequence[Mapping[str, Any]], wanted: Budget, health: Mapping[str, str]
) -> Check:
    getter = getter_of(limit.name)
    if limit.name not in GETTERS:
        _known_path(limit.name, devices[0], wanted.source)
    values = [_value(getter, limit, device, health) for device in devices]
    measured = [value for value in values if value is not None]
    operator = OPERATORS[limit.operator]
    found, evidence = None, _why_unknown(limit, devices[0], health)
    if measured:
        best: Aggregate = min if operator.worst is max else max
        aggregates: dict[str, Aggregate] = {"median": median, "worst": operator.worst, "best": best}
        chosen = aggregates[wanted.aggregate](measured)
        distance = [abs(value - chosen) if value is not None else float("inf") for value in values]
        found, evidence = chosen, getter.evidence(devices[distance.index(min(distance))])
    holds = found is not None and operator.holds(found, limit.quantity.value)
    unknown_ok = found is None and limit.unknown == "ok"
    per = "" if not getter.per_step or limit.quantity.dimension == SHARE else _unit(devices[0])
    return Check(
        limit.name, _where(key), limit.operator, limit.quantity.value, found, limit.quantity.dimension, per,
        OK if holds or unknown_ok else UNKNOWN if found is None else BROKEN, limit.level, evidence,
    )  # fmt: skip


def _value(getter: Getter, limit: Limit, device: Mapping[str, Any], health: Mapping[str, str]) -> float | None:
    if device["window"] == "host" and limit.name not in ("step", "wall"):
        return None
    if getter.per_step and any(code in health for code in RESTS_ON_KERNELS):
        return None
    value = getter.get(device)
    if value is None:
        return None
    if not getter.per_step:
        return float(value)
    if limit.quantity.dimension == SHARE:
        return value / device["wall_ns"] if device["wall_ns"] else None
    return value / (steps_of(device) or 1)


def _why_unknown(limit: Limit, device: Mapping[str, Any], health: Mapping[str, str]) -> str:
    if device["window"] == "host":
        return "no GPU work was recorded"
    code = next((code for code in RESTS_ON_KERNELS if code in health), None)
    if code:
        return health[code]
    return "no steps are marked" if limit.name == "step" else "the trace does not tell"


def _unit(device: Mapping[str, Any]) -> str:
    return "step" if steps_of(device) else "window"


def _where(key: tuple[Any, ...]) -> str:
    rank, device = key
    if device == -1:
        return "host"
    return f"device {device}" if rank is None else f"rank {rank} device {device}"


def _known_path(path: str, device: Mapping[str, Any], source: str) -> None:
    known = [name for name, _ in paths(device)]
    if path not in known:
        raise BadUsage(f"{source}: {path}: {_unknown(path, known)}")
