"""K or V of one layer in any KV type, as torch tensors.

Owns: the layout [num_blocks, block_size, Hkv, D] within a block's bytes, and the conversion from and to it.
Never does: attend. Called by: `backend.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import KV_TYPES

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_per_token_head": torch.float8_e4m3fn,
    "int8_per_token_head": torch.int8,
}


class StoredHeads:
    """data: uint8 [num_blocks, bytes], a view of the cache; scales: the same, empty where the type has none.

    shape: (num_blocks, block_size, Hkv, D). scale: of the whole layer, for 8-bit types without scales of their own.
    """

    def __init__(self, data: Tensor, scales: Tensor, shape: tuple[int, ...], dtype: str, scale: float) -> None:
        self._dtype = DTYPES[dtype]
        itemsize = self._dtype.itemsize
        self._codes = torch.uint8 if itemsize == 1 else self._dtype  # torch indexes few of the 8-bit types
        self._data = data.view(self._codes).unflatten(1, shape[1:])
        self._scales = scales.view(torch.float32).unflatten(1, shape[1:3]) if KV_TYPES[dtype].scaled else None
        self._scale = scale if itemsize == 1 and self._scales is None else 1.0
        self._most = 0.0
        if itemsize < 4 and self._dtype is not torch.bfloat16:
            self._most = 127.0 if self._dtype is torch.int8 else torch.finfo(self._dtype).max

    def write(self, block: Tensor, offset: Tensor, x: Tensor) -> None:
        """x [T, Hkv, D] at (block [T], offset [T])."""
        if self._scales is not None:
            largest = x.float().abs().amax(-1, keepdim=True)
            self._scales[block, offset] = largest.squeeze(-1) / self._most
            x = torch.where(largest > 0, x.float() * (self._most / largest), 0)
        elif self._scale != 1.0:
            x = x.float() / self._scale
        if self._most:
            x = x.clamp(-self._most, self._most)
        stored = (x.round() if self._dtype is torch.int8 else x).to(self._dtype)
        self._data[block, offset] = stored.view(self._codes) if self._codes is torch.uint8 else stored

    def read(self, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """[len(blocks) * block_size, Hkv, D] of some blocks, in `dtype`."""
        x = self._data[blocks].flatten(0, 1)
        values = (x.view(self._dtype) if self._codes is torch.uint8 else x).to(dtype)
        if self._scales is not None:
            return values * self._scales[blocks].flatten(0, 1).unsqueeze(-1).to(dtype)
        return values if self._scale == 1.0 else values * self._scale
