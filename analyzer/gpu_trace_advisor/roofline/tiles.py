"""Tiles of matrix products, from the kernel's name: how many there are, and how they fill the device.

    tiles = ceil(M / tile rows) x ceil(N / tile columns) x batch, each perhaps split along K

Names of cuBLAS, CUTLASS, xmma and nvjet (NVIDIA), Tensile (AMD), MIOpen's implicit GEMM, Triton's matmul_ogs and TensorRT-LLM
tell the tile. Which of its sides lies along M is not told: the grid of the launch decides, else the fewer tiles count. A grid
that fits neither is of a persistent kernel, whose blocks take several tiles each; Tensile's grids count threads.
Sources: NVIDIA DU-09799-001 (tile and wave quantization), the Tensile wiki (kernel parameters).
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import ceil

from gpu_trace_advisor.runtime.classes import dataclass

NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"_MT(?P<a>\d+)x(?P<b>\d+)x\d+",
        r"tilesize(?P<a>\d+)x(?P<b>\d+)x\d+",
        r"nvjet_\w*?_(?P<a>\d+)x(?P<b>\d+)_\d+x\d+",
        r"_bt(?P<a>\d+)x(?P<b>\d+)x\d+",
        r"matmul_ogs\w*?_(?P<a>\d+)x(?P<b>\d+)x\d+x(?P<splits>\d+)",
        r"bmm_\w*?_t(?P<a>\d+)x(?P<b>\d+)x\d+",
        r"gemm\w*?_(?P<a>\d{2,3})x(?P<b>\d{2,3})(?:x\d+)?(?:_|$)",
        r"(?:cudnn|cutlass\w*|xmma)_\w*?_(?P<a>\d{2,3})x(?P<b>\d{2,3})(?:x\d+)?(?:_|$)",
    )
)
SPLITS = re.compile(r"_GSU(?P<splits>\d+)")
REDUCED = re.compile(r"PostGSU(?P<splits>\d+)")
"""Tensile's kernel that adds the parts up."""
STREAM_K = re.compile(r"_SK[1-9]")
TENSILE = re.compile(r"Cijk_")
MOST_SPLITS = 64


@dataclass(frozen=True)
class Tiling:
    """How the tiles of a product fill a device."""

    sides: tuple[int, int]
    """As the name has them."""
    tiles: int
    splits: int
    """Blocks that share a tile, each with a part of K."""
    blocks: int
    waves: float
    """Blocks over the places for them."""
    fill: float
    """Part of the SMs' time that has a block, if all blocks take equally long."""
    inside: float
    """Part of the tiles that lies within the result."""


@lru_cache(maxsize=10_000)
def tile_of(name: str) -> tuple[int, int] | None:
    """The sides of a kernel's tile; None where its name does not tell.

    >>> tile_of("Cijk_Ailk_Bljk_BBS_BH_MT256x112x64_MI16x16x16x1_SN")
    (256, 112)
    >>> tile_of("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn")
    (128, 64)
    """
    for pattern in NAMES:
        if found := pattern.search(name):
            sides = int(found["a"]), int(found["b"])
            return sides if min(sides) >= 4 and max(sides) <= 1024 else None
    return None


def filled(blocks: int, sms: int, resident: int = 1) -> tuple[float, float]:
    """Waves of blocks on the SMs, and the part of the SMs' time that has one: in the last wave some have none.

    >>> filled(629, 304)
    (2.069078947368421, 0.6896929824561403)
    """
    places = sms * resident
    waves = max(ceil(blocks / places), 1)
    last = blocks - (waves - 1) * places
    return blocks / places, 1 - max(1 - last / sms, 0.0) / waves


def tiling(
    name: str, m: int, n: int, batch: int, grid: tuple[int, ...] | None, block: tuple[int, ...] | None, sms: int,
    resident: int = 1, reduced: str = "",
) -> Tiling | None:  # fmt: skip
    """How a product of these sizes was cut; None where the name tells no tile. `reduced` is the name of a kernel of the same
    operator that adds parts up."""
    sides = tile_of(name)
    if not sides or min(m, n, batch, sms) < 1:
        return None
    counts = sorted({ceil(m / a) * ceil(n / b) * batch for a, b in (sides, sides[::-1])})
    launched = blocks_of(name, grid, block)
    told = _splits(name, reduced)
    tiles, splits = counts[0], told or 1
    if launched and not STREAM_K.search(name):
        fitting = [count for count in counts if launched % count == 0 and launched // count <= MOST_SPLITS]
        if fitting:
            best = next((count for count in fitting if launched // count == told), fitting[-1])
            tiles, splits = best, launched // best
    waves, fill = filled(tiles * splits, sms, resident)
    return Tiling(sides, tiles, splits, tiles * splits, waves, fill, m * n * batch / (tiles * sides[0] * sides[1]))


def blocks_of(name: str, grid: tuple[int, ...] | None, block: tuple[int, ...] | None) -> int:
    """Blocks of a launch, 0 where they were not recorded."""
    if not grid or min(grid) < 1:
        return 0
    total = 1
    for i, size in enumerate(grid):
        threads = block[i] if TENSILE.search(name) and block and i < len(block) and block[i] > 1 else 1
        total *= max(ceil(size / threads), 1) if size % threads == 0 else size
    return total


def _splits(name: str, reduced: str) -> int:
    found = SPLITS.search(name) or REDUCED.search(reduced)
    return int(found["splits"]) if found and 0 < int(found["splits"]) <= MOST_SPLITS else 0
