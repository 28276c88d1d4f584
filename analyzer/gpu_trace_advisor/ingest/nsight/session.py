"""What an Nsight Systems export says about the recording: recorder, options, processes, threads and GPUs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from gpu_trace_advisor.ingest.nsight.source import Source, distinct
from gpu_trace_advisor.ingest.nsight.tables import process_id
from gpu_trace_advisor.ingest.raw_events import MISSING
from gpu_trace_advisor.trace.model import Device, Index, Int64, plausible

# Commands, environments and host names stay in the file: a report is passed on more freely than a recording.
CAPTURE_OPTIONS = re.compile(
    r"(PROCESS_\d+:)?(CUDA_\w+(:\w+)?|COLLECT_\w+|NVTX_OPTIONS:NVTX_DOMAIN_FILTER_\w+|OS_RUNTIME_OPTIONS:\w+|RUN_DURATION_MS)"
)
EXPORT_FACTS = re.compile(r"EXPORT_(PRODUCT_VERSION|SCHEMA_VERSION|PLATFORM)")
SYSTEM_PATH = ("/proc/", "/sys/", "/dev/")
PATH = re.compile(
    r"(?<![\w.])"
    r"(?:[A-Za-z]:\\(?:[^\\/:*?\"<>|\r\n]+\\)*|(?:[A-Za-z]:|~)?/(?:[^\s/'\":]+/)+|\\\\[^\s\\]+\\(?:[^\s\\]+\\)*)"
    r"[^\s\\/'\",;]*"
)
SEVERITY = {3: 0, 2: 1, 1: 2}  # errors first
DIAGNOSTICS_KEPT = 100
GPU_FACTS = {
    "maxThreadsPerBlock": "maxThreadsPerBlock", "maxRegistersPerBlock": "regsPerBlock",
    "maxRegistersPerSm": "regsPerMultiprocessor", "threadsPerWarp": "warpSize", "maxShmemPerBlock": "sharedMemPerBlock",
    "maxShmemPerBlockOptin": "sharedMemPerBlockOptin", "maxShmemPerSm": "sharedMemPerMultiprocessor",
    "maxWarpsPerSm": "maxWarpsPerMultiprocessor", "maxBlocksPerSm": "maxBlocksPerMultiprocessor",
    "memoryBandwidth": "memoryBandwidth", "l2CacheSize": "l2CacheSize", "clockRate": "clockRate",
    "asyncEngines": "asyncEngines",
}  # fmt: skip
"""Columns of TARGET_INFO_GPU and what Kineto calls them, where it has them."""


def metadata(source: Source) -> dict[str, Any]:
    """Versions, the capture options that bear on the analysis, and the recorder's own messages."""
    facts: dict[str, Any] = {}
    for table, wanted in (
        ("META_DATA_EXPORT", EXPORT_FACTS), ("EXPORT_META_DATA", EXPORT_FACTS), ("META_DATA_CAPTURE", CAPTURE_OPTIONS),
    ):  # fmt: skip
        for name, value in text_rows(source, table, "name", "value"):
            if wanted.fullmatch(name):
                facts.setdefault(name, value)
    if found := diagnostics(source):
        facts["diagnostics"] = found
    return facts


def producer(facts: dict[str, Any]) -> str:
    version, schema = facts.get("EXPORT_PRODUCT_VERSION", ""), facts.get("EXPORT_SCHEMA_VERSION") or "unknown"
    return " ".join(part for part in ("Nsight Systems", version, f"(export schema {schema})") if part)


def diagnostics(source: Source) -> list[str]:
    """The recorder's messages, errors first, each once and without the folders in it."""
    rows: list[tuple[int, str]] = []
    for (severity,), (texts,) in source.batches("DIAGNOSTIC_EVENT", ("severity",), ("text",)):
        for level, text in zip(severity.tolist(), texts, strict=True):
            rows.append((SEVERITY.get(level, 3), PATH.sub(_shortened, " ".join(_text(text).split()))))
    rows.sort(key=lambda row: row[0])
    return list(dict.fromkeys(text for _, text in rows))[:DIAGNOSTICS_KEPT]


def base_ns(source: Source) -> int | None:
    """Unix time of the recording's zero, in nanoseconds; None where the export does not say."""
    (start,) = source.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
    return int(start[0]) if len(start) and start[0] != MISSING else None


def process_labels(source: Source) -> dict[int, str]:
    """Process id -> name of its program, without the folder."""
    labels = {}
    for (serialized,), (names,) in source.batches("PROCESSES", ("globalPid",), ("name",)):
        for pid, name in zip(process_id(serialized).tolist(), names, strict=True):
            labels[pid] = PureWindowsPath(PurePosixPath(_text(name)).name).name
    return labels


def thread_names(source: Source) -> dict[tuple[int, int], str]:
    """(process id, thread id) -> name; of several the one with the highest priority."""
    thread, name, priority = source.integers("ThreadNames", ("globalTid", "nameId", "priority"))
    texts = source.strings(np.unique(name)) if len(name) else {}
    order = np.argsort(priority, kind="stable")
    pid, tid = process_id(thread[order]).tolist(), (thread[order] & 0xFFFFFF).tolist()
    return {(p, t): _text(texts.get(n, b"")) for p, t, n in zip(pid, tid, name[order].tolist(), strict=True)}


def devices(source: Source, pids: Int64, process: Index, ordinal: Index) -> list[Device]:
    """The GPUs of the device rows (`process` index and `ordinal` of each), and those that the export maps besides."""
    gpus = _gpus(source)
    mapped = _mapped(source)
    index = {pid: i for i, pid in enumerate(pids.tolist())}
    ordinals, code = distinct(ordinal)
    used, _ = distinct(process.astype(np.int64) * len(ordinals) + code)
    keys = {(key // len(ordinals), int(ordinals[key % len(ordinals)])) for key in used.tolist()}
    keys = {(at, number) for at, number in keys if number >= 0}
    keys |= {(index[pid], cuda) for pid, cuda in mapped if pid in index}
    result = []
    for at, number in sorted(keys):
        pid = int(pids[at])
        gpu, sms = mapped.get((pid, number), (None, None))
        if gpu is None and not mapped and len(gpus) == 1 and number == 0:
            gpu = next(iter(gpus))
        # Alike GPUs need no mapping: whichever it is, it is one of these.
        alike = list(gpus.values()) if gpu is None and not mapped else [gpus.get(gpu, {})] if gpu is not None else []
        facts = alike[0] if alike and all(_same(alike[0], other) for other in alike) else {}
        result.append(_device(number, at, gpu, sms, facts))
    return result


def _device(ordinal: int, process: int, gpu: int | None, sms: int | None, facts: dict[str, Any]) -> Device:
    major, minor = facts.get("computeMajor"), facts.get("computeMinor")
    device = Device(
        ordinal=ordinal,
        name=facts.get("name", ""),
        process=process,
        gpu=gpu,
        sms=facts.get("smCount") or sms,
        memory_bytes=facts.get("totalMemory"),
        compute_capability=(major, minor or 0) if major else None,
        properties={ours: facts[theirs] for theirs, ours in GPU_FACTS.items() if facts.get(theirs)},
    )
    return plausible(device)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    telling = ("name", "smCount", "totalMemory", "computeMajor", "computeMinor")
    return all(one.get(key) == other.get(key) for key in telling)


def _gpus(source: Source) -> dict[int, dict[str, Any]]:
    """Physical index -> facts, of the GPUs that can run CUDA; every adapter of the host is in the table."""
    columns = ("id", "smCount", "totalMemory", "computeMajor", "computeMinor", *GPU_FACTS)
    result = {}
    for integers, (names,) in source.batches("TARGET_INFO_GPU", columns, ("name",)):
        for *numbers, name in zip(*(column.tolist() for column in integers), names, strict=True):
            facts = {key: number for key, number in zip(columns, numbers, strict=True) if number != MISSING}
            facts["name"] = _text(name)
            capable = facts.get("computeMajor", 0) > 0 or facts.get("smCount", 0) > 0
            if capable and not re.search(r"\bIntel\b|Microsoft Basic", facts["name"]):
                result[facts.get("id", 0)] = facts
    return result


def _mapped(source: Source) -> dict[tuple[int, int], tuple[int | None, int | None]]:
    """(process id, CUDA ordinal in it) -> physical index and number of SMs."""
    gpu, cuda, pid, sms = source.integers("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid", "numMultiprocessors"))
    return {
        (p, c): (None if g == MISSING else g, None if s == MISSING else s)
        for g, c, p, s in zip(gpu.tolist(), cuda.tolist(), pid.tolist(), sms.tolist(), strict=True)
        if c != MISSING
    }


def text_rows(source: Source, table: str, *columns: str) -> list[tuple[str, ...]]:
    """A small table of texts, row by row."""
    return [
        tuple(_text(value) for value in row)
        for _, texts in source.batches(table, (), columns)
        for row in zip(*texts, strict=True)
    ]


def _shortened(path: re.Match[str]) -> str:
    """A path's last part; a system path as it is."""
    text = path[0]
    return text if text.startswith(SYSTEM_PATH) else re.split(r"[\\/]", text)[-1]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
