"""How a kernel's blocks fill the device: SMs that idle in its last wave.

    waves = ceil(blocks / (SMs x resident)), and in the last one min(SMs, blocks left) SMs have work
    512 blocks on 148 SMs, one resident: 4 waves, the last with 68 blocks, 80 SMs idle for a quarter of the time

Modelled, from the launch's grid, block, registers and shared memory, as if all blocks took equally long: the truth lies
between nothing and the bound, in which also half-filled SMs count as idle. Not measurable where the recording has no
registers and shared memory (AMD).
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_trace_advisor.columns.compact import constant, narrowed
from gpu_trace_advisor.reference.facts import read_data
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.timelines.device import Timeline
from gpu_trace_advisor.trace.lookup import distinct_rows, values_of
from gpu_trace_advisor.trace.model import NONE, Device, Index, Int64, Trace

Floats = NDArray[np.float64]

WARP = 32
REGISTERS = 65_536  # of an SM, on every NVIDIA device since 2014
REGISTER_UNIT = 256  # registers are given to warps in units of this many
REGISTERS_A_THREAD = 255
THREADS = 1_024  # of a block
MOST_SHARED = 1 << 30  # bytes of a block; more is damage
MOST_BLOCKS = 1 << 56  # of a grid; more is damage, though a launch could ask for 2**63
RESERVED_SHARED = 1_024  # bytes of shared memory that a block needs for itself, from compute capability 8.0 on


LAUNCH = ("registers per thread", "shared memory", "grid", "block")


@dataclass(frozen=True)
class SmLimits:
    """What one SM can hold at once."""

    warps: int
    blocks: int
    shared_bytes: int
    registers: int
    reserved_bytes: int


@dataclass(frozen=True)
class Tails:
    """The last waves of a timeline's operations, worked out once for launches that are alike; NaN where not measurable."""

    launch: Index
    """[m] index into the columns below."""
    idle_of: Floats
    bound_of: Floats
    waves_of: Floats
    resident_of: Floats

    @property
    def idle(self) -> Floats:
        """[m] for each operation the share of its time that idle SMs of the last wave cost."""
        return self.idle_of[self.launch]

    @property
    def bound(self) -> Floats:
        """[m] the same with half-filled SMs counted by what they lack: the most it can be."""
        return self.bound_of[self.launch]

    @property
    def waves(self) -> Floats:
        return self.waves_of[self.launch]

    @property
    def resident(self) -> Floats:
        """[m] blocks that an SM holds at once."""
        return self.resident_of[self.launch]


def sm_limits(device: Device) -> SmLimits | None:
    """Limits of the device's SMs, None where neither the recording nor the table knows them."""
    if device.compute_capability is None or device.properties.get("warpSize", WARP) != WARP:
        return None
    known = read_data("hardware.toml")["sm"].get("{}.{}".format(*device.compute_capability), {})

    def limit(name: str, fallback: Any) -> int | None:
        value = device.properties.get(name)
        return value if isinstance(value, int) and value > 0 else fallback

    warps = limit("maxWarpsPerMultiprocessor", known.get("warps"))
    blocks = limit("maxBlocksPerMultiprocessor", known.get("blocks"))
    shared = limit("sharedMemPerMultiprocessor", known.get("shared_kib", 0) * 1024)
    registers = limit("regsPerMultiprocessor", REGISTERS)
    if not (warps and blocks and shared and registers):
        return None
    return SmLimits(warps, blocks, shared, registers, RESERVED_SHARED if device.compute_capability >= (8, 0) else 0)


def resident_blocks(limits: SmLimits, threads: Int64, registers: Int64, shared: Int64) -> Int64:
    """[m] blocks of these threads, registers a thread and bytes of shared memory that one SM holds; at least 1."""
    warps = np.maximum(-(-threads // WARP), 1)
    registers_of_warp = -(-np.maximum(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    found = np.minimum(limits.blocks, limits.warps // warps)
    found = np.minimum(found, limits.registers // (registers_of_warp * warps))
    found = np.minimum(found, limits.shared_bytes // np.maximum(shared + limits.reserved_bytes, 1))
    whole: Int64 = np.maximum(found, 1)
    return whole


def tail_shares(blocks: Int64, sms: int, resident: Int64) -> tuple[Floats, Floats, Floats]:
    """[m] waves, share of the time lost to SMs without a block in the last wave, and the bound of it."""
    room = sms * resident
    waves = np.maximum(-(-blocks // room), 1)
    last = blocks - (waves - 1) * room
    idle = np.maximum(1.0 - last / sms, 0.0) / waves
    bound = 1.0 - blocks / (waves * room)
    return waves.astype(np.float64), np.minimum(idle, np.maximum(bound, 0.0)), np.maximum(bound, 0.0)


def tails(timeline: Timeline, device: Device, sms: int | None) -> Tails:
    """The last wave of every kernel of the timeline."""
    trace, n = timeline.trace, len(timeline.row)
    unknown = Tails(constant(NONE, n, np.int32), *(np.full(1, np.nan) for _ in range(4)))
    limits = sm_limits(device)
    at = np.flatnonzero(timeline.is_kernel)
    if limits is None or not sms or not len(at):
        return unknown
    columns = [*(trace.integers.get(name) for name in LAUNCH[:2]), *(trace.texts.get(name) for name in LAUNCH[2:])]
    distinct, which = distinct_rows(values_of(columns, timeline.row[at]))
    registers, shared, grid, block = np.array(distinct, np.int64).T
    blocks, threads = (np.array([size_of(trace, code) for code in codes.tolist()], np.int64) for codes in (grid, block))
    known = np.flatnonzero(
        (blocks > 0) & (threads > 0) & (threads <= THREADS) & (registers > 0) & (registers <= REGISTERS_A_THREAD)
        & (shared >= 0) & (shared <= MOST_SHARED)
    )  # fmt: skip
    resident = resident_blocks(limits, threads[known], registers[known], shared[known])
    waves, idle, bound = tail_shares(blocks[known], sms, resident)
    tables = []
    for values in (idle, bound, waves, resident.astype(np.float64)):
        table = np.full(len(distinct) + 1, np.nan)  # the last one for what is no kernel
        table[known] = values
        tables.append(table)
    launch = np.full(n, NONE, np.int32)
    launch[at] = which
    return Tails(narrowed(launch, np.int16), *tables)


def size_of(trace: Trace, code: int) -> int:
    """Product of the sizes in a text such as `[64, 1, 1]`; -1 without, and where no device takes such a grid."""
    numbers = [int(number) for number in re.findall(r"-?\d{1,20}", trace.strings[code])] if code != NONE else []
    size = prod(numbers) if 1 <= len(numbers) <= 3 and min(numbers) >= 0 else NONE
    return size if size <= MOST_BLOCKS else NONE
