"""Programs in plain CUDA, as Nsight Systems records them: what is wrong with their loops, in CUDA's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.ingest import read

from tests.nsight_export import call, kernel, process, thread, write

GPU = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-40GB",
    "smCount": 108,
    "computeMajor": 8,
    "computeMinor": 0,
    "totalMemory": 42 << 30,
}
HOST_TO_DEVICE, DEVICE_TO_HOST, PAGEABLE, PINNED, ON_DEVICE = 1, 2, 0, 1, 2
PYTORCH = re.compile(r"torch|DataLoader|non_blocking|QKV|optimizer|CPU offload|\.item\(\)|tensor", re.IGNORECASE)


class Program:
    """Times in µs: the host goes on from call to call, the device from operation to operation."""

    def __init__(self) -> None:
        self.at, self.device = 1000.0, 0.0
        self.names: dict[str, int] = {}
        self.tables: dict[str, list[dict[str, Any]]] = {"KERNEL": [], "RUNTIME": [], "MEMCPY": [], "OSRT_API": []}

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names) + 1)

    def call(self, name: str, until: float) -> int:
        number = len(self.tables["RUNTIME"]) + 1
        self.tables["RUNTIME"].append(call(round(1e3 * self.at), round(1e3 * until), number, self._name(name)))
        self.at = until
        return number

    def _run(self, length: float) -> tuple[int, int]:
        begin = max(self.device + 1, self.at + 3)
        self.device = begin + length
        return round(1e3 * begin), round(1e3 * self.device)

    def launch(self, name: str, length: float, blocks: int = 4096) -> None:
        number = self.call("cudaLaunchKernel_v7000", self.at + 5)
        begin, end = self._run(length)
        size = {
            "gridX": blocks,
            "gridY": 1,
            "gridZ": 1,
            "blockX": 256,
            "blockY": 1,
            "blockZ": 1,
            "registersPerThread": 32,
        }
        self.tables["KERNEL"].append(kernel(begin, end, number, name=self._name(name), **size))

    def copy(self, kind: int, size: int, length: float, *, pinned: bool) -> None:
        begin, end = self._run(length)
        number = (
            self.call("cudaMemcpyAsync_v3020", self.at + 5) if pinned else self.call("cudaMemcpy_v3020", end / 1e3 + 3)
        )
        host = PINNED if pinned else PAGEABLE
        source, target = (host, ON_DEVICE) if kind == HOST_TO_DEVICE else (ON_DEVICE, host)
        self.tables["MEMCPY"].append(
            {"start": begin, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": number, "bytes": size,
             "globalPid": process(500), "copyKind": kind, "srcKind": source, "dstKind": target}
        )  # fmt: skip

    def system_call(self, name: str, length: float) -> None:
        self.tables["OSRT_API"].append(
            {"start": round(1e3 * self.at), "end": round(1e3 * (self.at + length)), "globalTid": thread(500, 501),
             "nameId": self._name(name), "correlationId": 0, "eventClass": 27}
        )  # fmt: skip
        self.at += length

    def wait(self) -> None:
        self.call("cudaDeviceSynchronize_v3020", max(self.at + 2, self.device + 3))

    def advice(self, path: Path) -> Advice:
        tables: dict[str, Any] = {
            name if name == "OSRT_API" else f"CUPTI_ACTIVITY_KIND_{name}": rows
            for name, rows in self.tables.items()
            if rows
        }
        strings = {number: name for name, number in self.names.items()}
        return advise_traces([read(write(path, strings, TARGET_INFO_GPU=[GPU], **tables))])


def waits_for_each_kernel(program: Program) -> None:
    program.launch("stencil(float*)", 40)
    program.wait()
    program.at += 15


def allocates(program: Program) -> None:
    program.call("cudaMalloc_v3020", program.at + 180)
    program.launch("compute(float*)", 250)
    program.call("cudaFree_v3020", program.device + 150)


def streams_data_through(program: Program) -> None:
    program.copy(HOST_TO_DEVICE, 8 << 20, 700, pinned=True)
    program.launch("filter(float*)", 500)
    program.copy(DEVICE_TO_HOST, 8 << 20, 700, pinned=True)


def copies_back_and_forth(program: Program) -> None:
    program.copy(HOST_TO_DEVICE, 16 << 20, 2800, pinned=False)
    program.launch("compute(float*)", 300)
    program.copy(DEVICE_TO_HOST, 16 << 20, 3300, pinned=False)


def launches_small_kernels(program: Program) -> None:
    for i in range(12):
        program.launch(f"part_{i}(float*)", 2.5)


@pytest.mark.parametrize(
    ("repeat", "rule", "says"),
    [
        (waits_for_each_kernel, "host-sync", "operations of a stream run in order"),
        (allocates, "allocator", "Allocate once before the loop"),
        (streams_data_through, "copy-overlap", "Copy the next input on a stream of its own"),
        (copies_back_and_forth, "h2d-pageable", "Keep on the device what the host only passes on"),
        (launches_small_kernels, "too-many-small-kernels", "Make one kernel of those that follow each other"),
    ],
)
def test_a_loop_is_told_what_to_change_in_cudas_words(
    repeat: Callable[[Program], None], rule: str, says: str, tmp_path: Path
) -> None:
    program = Program()
    for _ in range(60):
        repeat(program)
    program.wait()
    given = program.advice(tmp_path / "program.sqlite")
    found = next(finding for finding in given.findings if finding.rule == rule)
    assert says in found.how
    assert [one.how for one in given.findings if PYTORCH.search(f"{one.message} {one.how}")] == []


def test_what_a_loop_allocates_is_no_start_up_though_its_last_repeat_does_not(tmp_path: Path) -> None:
    """Sixty repeats allocate; at the end a kernel alone runs once more."""
    program = Program()
    for _ in range(60):
        allocates(program)
    program.launch("compute(float*)", 250)
    program.wait()
    given = program.advice(tmp_path / "program.sqlite")
    assert given.findings[0].rule == "allocator" and given.findings[0].saving_ns
    assert "start-up" not in given.findings[0].message


def test_a_system_call_that_the_gpu_waits_for_is_named(tmp_path: Path) -> None:
    """500 of 600 µs between the repeats go to `fwrite`: 39 gaps between 40 repeats."""
    program = Program()
    for _ in range(40):
        program.launch("assemble(double*)", 200)
        program.wait()
        program.at += 50
        program.system_call("fwrite", 500)
        program.at += 50
    found = next(one for one in program.advice(tmp_path / "program.sqlite").findings if one.rule == "largest-loss")
    assert "most of it in fwrite × 39" in found.message
    assert "(19.5 ms)" in found.message
