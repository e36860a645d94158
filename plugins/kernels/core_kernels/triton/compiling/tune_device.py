"""A GPU to measure products on.

Owns: the timed calls. Never does: choose a tile. Called by: tuning.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from triton.testing import do_bench

from core_kernels.triton.compiling.chips import Chip
from core_kernels.triton.compiling.launches import compile_launch, written
from core_kernels.triton.compiling.work import Work, noise_weight, num_rows, routed_rows
from core_kernels.triton.products.product import multiply
from core_kernels.triton.products.rounding import encoded_rows
from core_kernels.triton.products.tile_rows import Key, Tile
from core_kernels.triton.products.tiles import Tiles

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8e4nv": torch.bfloat16}


class DeviceBench:
    """The `Bench` over torch's current device. chip: its family."""

    def __init__(self, chip: Chip, device: torch.device | None = None) -> None:
        self._chip = chip
        self._device = device or torch.device("cuda", torch.cuda.current_device())
        self._prepared: tuple[Work, int, Prepared] | None = None

    def admits(self, work: Work, tile: Tile, level: int) -> bool:
        """Whether the chip can run this tile: the `Bench` contract. Tiles that the compiler rejects are not admitted."""
        prepared = self._prepare(work, level)
        with written() as calls:
            prepared.call(tile)
        try:
            kernels = [compile_launch(call.launch) for call in calls]
        except Exception:  # whatever the compiler raises, the tile is rejected
            return False
        if any(kernel.metadata.shared > self._chip.shared for kernel in kernels):
            return False
        assembly = kernels[0].asm["amdgcn" if self._chip.backend == "hip" else "ptx"]
        return work.compute == "fp32" or re.search(self._chip.matrix, assembly) is not None

    def seconds(self, work: Work, tile: Tile, level: int) -> float:
        """Return the median time of calls with a cold cache: the `Bench` contract."""
        prepared = self._prepare(work, level)
        milliseconds = do_bench(lambda: prepared.call(tile), return_mode="median")
        return float(milliseconds) / 1e3

    def _prepare(self, work: Work, level: int) -> Prepared:
        """Return the tensors of a product, which are kept for all tiles tried on it."""
        if self._prepared is None or self._prepared[:2] != (work, level):
            self._prepared = None  # frees them before others are allocated
            self._prepared = work, level, Prepared(work, level, self._device)
        return self._prepared[2]


class Prepared:
    """The tensors of a product for rows of a level."""

    def __init__(self, work: Work, level: int, device: torch.device) -> None:
        rows = num_rows(work, level)
        self._chip = work.key.chip
        self._dtype = TYPES[work.compute]
        self._weight = noise_weight(work, device)
        self._x = torch.randn(rows, work.key.inputs, device=device).to(self._dtype)
        self.out = self._x.new_empty(rows, work.key.outputs)
        self._x_scale: torch.Tensor | None = None
        if work.compute == "fp8e4nv":
            self._x, self._x_scale = encoded_rows(self._x, floats=True)
        self._routed = routed_rows(level, device) if work.routed else None

    def call(self, tile: Tile) -> None:
        """Compute the product with a tile."""
        only = Tiles({Key(self._chip, "any"): (tile,)})
        own: dict[str, Any] = {"compute": self._dtype, "tiles": only, "routed": self._routed, "x_scale": self._x_scale}
        multiply(self._x, self._weight, self.out, None, **own)
