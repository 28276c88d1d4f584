"""The device's peaks: what the recording says first, then the table `rules/hardware.toml`; never a default.

A device that is not found has no peaks, and everything that needs them says so. Dense rates only: a rate with sparsity
is twice what an ordinary kernel can reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import cache
from typing import Any

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.reference.facts import read_data
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Device

GIB = 2**30
SAME_MEMORY = (0.90, 1.02)  # what a driver reports of the memory that the maker prints, in GiB for GB
PARTITION = 0.9  # fewer SMs than this share of the whole device's: a slice of it (MIG, vGPU, compute partitions)
SAYS_NOTHING = re.compile(r"|AMD Radeon Graphics|Graphics Device|Device \w+|GPU( ?\d+)?", re.IGNORECASE)
GFX = re.compile(r"(?:gfx|_ISA)(9[0-9a-f]{2})(?![0-9a-f])")
SLICE = re.compile(r"MIG\b|VF\b|OAM\b", re.IGNORECASE)  # words behind a name that leave the device what it is


@dataclass(frozen=True)
class Launch:
    """What a launch costs at least, on an otherwise idle machine."""

    ns: int
    grade: str
    source: str


@dataclass(frozen=True)
class Hardware:
    """Peaks of one device as the trace sees it: FLOP/s, bytes/s, bytes."""

    key: str
    """Its table in hardware.toml."""
    name: str
    peaks: dict[str, float]
    """Type of the numbers multiplied (`bf16`, `tf32` …) -> dense FLOP/s, the faster of matrix and ordinary units."""
    vector: dict[str, float]
    """Type -> FLOP/s of the ordinary units."""
    bandwidth: float
    sms: int
    memory_bytes: int
    l2_bytes: int
    nvlink: float
    """Bytes/s in one direction; 0 none. Likewise `pcie`."""
    pcie: float
    attainable: float
    """Share of `bandwidth` that a well-written kernel reaches; assumed unless measured in the trace."""
    launch: dict[str, Launch]
    """`stream`, `graph`: measured by others on this device; empty where nobody did."""
    confidence: str
    sources: tuple[str, ...]
    found: str
    """How it was found, for people."""
    reachable: dict[str, float] = field(default_factory=dict)
    """Type -> FLOP/s that large products were published to reach; empty where nobody measured."""
    reachable_source: str = ""
    inferred: bool = False
    """The recording does not name the device; it was recognised by its SMs and memory."""
    notes: tuple[str, ...] = field(default=(), repr=False)

    @property
    def units(self) -> str:
        """What its maker calls its processors."""
        return "CUs" if self.key.startswith("mi") else "SMs"

    def ridge(self, dtype: str) -> float | None:
        """FLOP per byte above which a kernel of this type is bound by compute; None without such a peak."""
        peak = self.peaks.get(dtype)
        return peak / self.bandwidth if peak else None

    def batch_ridge(self, dtype: str, weight_bytes: float) -> float | None:
        """Rows of a GEMM from which reading its weights is free: P p / (2 BW) at p bytes a weight; None as `ridge`."""
        ridge = self.ridge(dtype)
        return ridge * weight_bytes / 2 if ridge else None


def find(device: Device, override: str | None = None) -> Hardware | None:
    """The device's peaks, or None where it cannot be told.

    Raises:
        BadUsage: the name asked for is not in the table.
    """
    if override:
        return named(override)
    entry, how, inferred = _lookup(device)
    return _as_recorded(entry, device, how, inferred) if entry else None


@cache
def hardware() -> dict[str, Hardware]:
    """All devices of the table, whole, by key."""
    data = read_data("hardware.toml")
    return {key: _whole(key, entry, data) for key, entry in data["devices"].items()}


def named(name: str) -> Hardware:
    """The device of this key or name, whatever its case and punctuation; part of a name will do where only one has it.

    Raises:
        BadUsage: none or several match; the message lists the nearest.
    """
    words = _words(name)
    spelt = {key: [_words(key), *map(_words, _names(key))] for key in hardware()}
    exact = [key for key, spellings in spelt.items() if words in spellings]
    part = [key for key, spellings in spelt.items() if words and any(set(words) <= set(s) for s in spellings)]
    for found in (exact, part):
        if len(found) == 1:
            return replace(hardware()[found[0]], found=f"asked for with --hardware {name}")
    import difflib

    near = part or difflib.get_close_matches("-".join(words), hardware(), n=5, cutoff=0.4) or sorted(hardware())
    raise BadUsage(f"--hardware {name}: {'several devices match' if part else 'no such device'}; try {', '.join(near)}")


def built_for(kernels: Iterable[str]) -> tuple[str, ...]:
    """Keys of the devices that AMD's kernels with these names are built for; empty where their names do not say."""
    table = read_data("hardware.toml")["gfx"]
    targets = {found[1] for name in kernels if (found := GFX.search(name))}
    return tuple(key for target in sorted(targets) for key in table.get(target, ()))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _names(key: str) -> list[str]:
    return list(read_data("hardware.toml")["devices"][key]["names"])


def _lookup(device: Device) -> tuple[Hardware | None, str, bool]:
    """The table's entry by exact name, by the longest name it begins with, or, nameless, by SMs and memory."""
    exact = [key for key in hardware() if device.name in _names(key)]
    if chosen := _one(exact, device):
        return chosen, f"by its name, {device.name}", False
    longest, starts = 0, list[str]()
    for key, name in _prefixes(device.name):
        if len(name) >= longest:
            starts = [*starts, key] if len(name) == longest else [key]
            longest = len(name)
    chosen = _one(starts, device)
    if chosen and (SLICE.match(device.name[longest:].strip()) or device.sms == chosen.sms):
        return chosen, f"by its name, {device.name}", False
    if not exact and not starts and SAYS_NOTHING.fullmatch(device.name) and device.sms and device.memory_bytes:
        alike = [key for key in hardware() if _fits(hardware()[key], device)]
        if alike and all(_same_rates(hardware()[alike[0]], hardware()[key]) for key in alike):
            memory, names = f"{device.memory_bytes / GIB:.0f} GiB", " or ".join(hardware()[key].name for key in alike)
            which = (
                "the only known device" if len(alike) == 1 else f"{names}, which are alike, are the only known devices"
            )
            return (
                hardware()[alike[0]],
                f"inferred: {which} with {device.sms} {hardware()[alike[0]].units} and {memory}",
                True,
            )
    return None, "", False


def _prefixes(name: str) -> Iterator[tuple[str, str]]:
    """Entries whose name is the beginning of this one, up to a word's end."""
    for key in hardware():
        for known in _names(key):
            if name.startswith(known) and re.match(r"[\s/-]", name[len(known) :]):
                yield key, known


def _one(keys: list[str], device: Device) -> Hardware | None:
    """The only entry, or of several of one name the only one with these SMs and this memory."""
    if len(keys) > 1:
        keys = [key for key in keys if _fits(hardware()[key], device)]
    chosen = hardware()[keys[0]] if len(keys) == 1 else None
    # More SMs than it has: another device under the same name.
    return None if chosen and device.sms and device.sms > chosen.sms else chosen


def _fits(known: Hardware, device: Device) -> bool:
    sizes = read_data("hardware.toml")["devices"][known.key]["memory_gb"]
    low, high = SAME_MEMORY
    memory = device.memory_bytes
    same_memory = memory is None or any(low <= memory / GIB / size <= high for size in sizes)
    return device.sms == known.sms and same_memory and _same_vendor(known, device)


def _same_rates(one: Hardware, other: Hardware) -> bool:
    return (one.peaks, one.vector, one.bandwidth) == (other.peaks, other.vector, other.bandwidth)


def _same_vendor(known: Hardware, device: Device) -> bool:
    """AMD's wavefronts of 64 tell it apart where the recording has no name."""
    warp = device.properties.get("warpSize")
    capability = read_data("hardware.toml")["devices"][known.key]["compute_capability"]
    return warp is None or (warp == 64) == capability.startswith("gfx") or device.name != ""


def _as_recorded(known: Hardware, device: Device, how: str, inferred: bool) -> Hardware:
    """The entry with what the recording says of the device; a slice has its share of the rates."""
    found = replace(known, name=device.name or known.name, found=how, inferred=inferred)
    if device.memory_bytes:
        found = replace(found, memory_bytes=device.memory_bytes)
    if device.sms and device.sms != known.sms:
        share = device.sms / known.sms
        scaled = {dtype: peak * share for dtype, peak in known.peaks.items()}
        vector = {dtype: peak * share for dtype, peak in known.vector.items()}
        reachable = {dtype: rate * share for dtype, rate in known.reachable.items()}
        found = replace(found, sms=device.sms, peaks=scaled, vector=vector, reachable=reachable)
        if share < PARTITION and device.memory_bytes:
            memory = min(device.memory_bytes / known.memory_bytes, 1.0)
            found = replace(found, bandwidth=known.bandwidth * memory, l2_bytes=round(known.l2_bytes * memory))
        found = replace(found, found=f"{how}; rates for {device.sms} of {known.sms} {known.units}")
    facts = device.properties
    if isinstance(facts.get("memoryBandwidth"), int | float) and facts["memoryBandwidth"] > 0:
        found = replace(found, bandwidth=float(facts["memoryBandwidth"]))
    if isinstance(facts.get("l2CacheSize"), int) and facts["l2CacheSize"] > 0:
        found = replace(found, l2_bytes=int(facts["l2CacheSize"]))
    return found


def _whole(key: str, entry: dict[str, Any], data: dict[str, Any]) -> Hardware:
    vector = {dtype: tflops * 1e12 for dtype, tflops in entry["vector_tflops"].items()}
    tensor = {dtype: tflops * 1e12 for dtype, tflops in entry["tensor_tflops"].items()}
    launch = {
        how: Launch(
            round(data["launch"][which]["us"] * 1000), data["launch"][which]["grade"], data["launch"][which]["source"]
        )
        for how, which in entry.get("launch", {}).items()
    }
    return Hardware(
        key=key,
        name=entry["names"][0],
        peaks={dtype: max(vector.get(dtype, 0.0), tensor.get(dtype, 0.0)) for dtype in {**vector, **tensor}},
        vector=vector,
        bandwidth=entry["bandwidth_tbs"] * 1e12,
        sms=entry["sms"],
        memory_bytes=round(max(entry["memory_gb"]) * GIB),
        l2_bytes=round(entry["l2_mb"] * 2**20),
        nvlink=entry["nvlink_gbs"] * 1e9 / 2,
        pcie=data["pcie_gbs"][str(entry["pcie_gen"])] * 1e9,
        attainable=data["assumed"]["attainable-bandwidth"]["share"],
        launch=launch,
        confidence=entry["confidence"],
        sources=tuple(data["sources"][source] for source in entry["sources"]),
        found="from the table",
        reachable={dtype: tflops * 1e12 for dtype, tflops in entry.get("reachable_tflops", {}).items()},
        reachable_source=data["sources"][entry["reachable_source"]] if "reachable_source" in entry else "",
        notes=tuple(entry.get("notes", ())),
    )  # fmt: skip
