"""The devices that recipes run on: what a recording says about each."""

from __future__ import annotations

_KEYS = (
    "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms", "maxThreadsPerMultiprocessor",
    "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor",
)  # fmt: skip
_COMMON: dict[str, int | str] = {
    "maxThreadsPerBlock": 1024,
    "regsPerBlock": 65536,
    "warpSize": 32,
    "sharedMemPerBlock": 49152,
    "regsPerMultiprocessor": 65536,
}
_DEVICES: dict[str, tuple[int | str, ...]] = {
    "H100": ("NVIDIA H100 80GB HBM3", 85014937600, 9, 0, 132, 2048, 232448, 233472),
    "A100": ("NVIDIA A100-SXM4-80GB", 85097971712, 8, 0, 108, 2048, 166912, 167936),
    "V100": ("Tesla V100-SXM2-16GB", 16935419904, 7, 0, 80, 2048, 98304, 98304),
    "L4": ("NVIDIA L4", 23580639232, 8, 9, 58, 1536, 101376, 102400),
}

DEVICES = {key: {**_COMMON, **dict(zip(_KEYS, values, strict=True))} for key, values in _DEVICES.items()}
"""Name in recipes to properties by their Kineto names; memory sizes in bytes."""
