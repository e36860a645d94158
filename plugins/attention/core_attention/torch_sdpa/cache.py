"""K or V of one layer in any KV type, as torch tensors.

Owns: the layout [num_blocks, block_size, Hkv, D] within a block's bytes, and the conversion of numbers to and from the
KV type.
Never does: attend. Called by: `backend.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import KV_TYPES
from core_attention.torch_sdpa.levels import decode, encode, turned

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_per_token_head": torch.float8_e4m3fn,
    "int8_per_token_head": torch.int8,
    "k8v4_per_token_head": torch.int8,
}
SCALE_BYTES = 4
"""Bytes of the float32 scale of a token and head."""


class StoredHeads:
    """K or V of one layer.

    data: uint8 [num_blocks, bytes], a view of the cache.
    scales: the same, empty where the type has none.
    shape: (num_blocks, block_size, Hkv, D).
    dtype: the KV type's name.
    scale: of the whole layer, for 8-bit types without per-token scales.
    packed: numbers in a byte; two are 4-bit codes.
    """

    def __init__(
        self, data: Tensor, scales: Tensor, shape: tuple[int, ...], dtype: str, scale: float, packed: int = 1
    ) -> None:
        self._dtype = DTYPES[dtype]
        eight_bits = self._dtype.itemsize == 1
        # torch can index few of the 8-bit types, so their bytes are indexed instead.
        self._codes = torch.uint8 if eight_bits else self._dtype
        self._coded = packed > 1
        self._turns = KV_TYPES[dtype].packed > 1
        *slots, width = shape[1:]
        self._data = data.view(self._codes).unflatten(1, (*slots, width // packed))
        self._scales: Tensor | None = None
        if KV_TYPES[dtype].scaled:
            self._scales = scales.view(torch.float32).unflatten(1, shape[1:3])
        self._scale = scale if eight_bits and self._scales is None else 1.0
        self._largest = _largest(self._dtype)

    def write(self, block: Tensor, offset: Tensor, x: Tensor) -> None:
        """Store x [T, Hkv, D] at (block [T], offset [T])."""
        if self._turns:
            x = turned(x.float())
        if self._scales is not None and self._coded:
            codes, scales = encode(x)
            self._data[block, offset] = codes
            self._scales[block, offset] = scales.squeeze(-1)
            return
        if self._scales is not None:
            wide = x.float()
            magnitude = wide.abs().amax(-1, keepdim=True)
            self._scales[block, offset] = magnitude.squeeze(-1) / self._largest
            x = torch.where(magnitude > 0, wide * (self._largest / magnitude), 0)
        elif self._scale != 1.0:
            x = x.float() / self._scale
        if self._largest:
            x = x.clamp(-self._largest, self._largest)
        if self._dtype is torch.int8:
            x = x.round()
        stored = x.to(self._dtype)
        if self._codes is torch.uint8:
            stored = stored.view(torch.uint8)
        self._data[block, offset] = stored

    def move(self, sources: Tensor, targets: Tensor, block_size: int) -> None:
        """Copy slots, int64 [n], to other slots, with their scales and without conversion."""
        tensors = [self._data] if self._scales is None else [self._data, self._scales]
        for tensor in tensors:
            moved = tensor[sources // block_size, sources % block_size]
            tensor[targets // block_size, targets % block_size] = moved

    def read_slots(self, slots: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
        """Return the contents of slots, [len(slots), Hkv, D], in `dtype`."""
        blocks = slots // block_size
        offsets = slots % block_size
        nth = torch.arange(len(slots), device=slots.device)
        return self.read(blocks, dtype)[nth * block_size + offsets]

    def read(self, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the contents of blocks, [len(blocks) * block_size, Hkv, D], in `dtype`."""
        stored = self._data[blocks].flatten(0, 1)
        if self._scales is not None and self._turns:
            scales = self._scales[blocks].flatten(0, 1).unsqueeze(-1)
            numbers = decode(stored) if self._coded else stored.view(self._dtype).float()
            return turned(numbers * scales).to(dtype)
        if self._codes is torch.uint8:
            stored = stored.view(self._dtype)
        values = stored.to(dtype)
        if self._scales is not None:
            scales = self._scales[blocks].flatten(0, 1).unsqueeze(-1)
            return values * scales.to(dtype)
        if self._scale != 1.0:
            return values * self._scale
        return values


def aligned(x: Tensor) -> Tensor:
    """Return a contiguous copy whose alignment does not depend on x's: the bits of products can depend on both."""
    return x.clone(memory_format=torch.contiguous_format)


def _largest(dtype: torch.dtype) -> float:
    """Return the magnitude at which values are clamped; 0 for types with the range of bfloat16."""
    if dtype is torch.int8:
        return 127.0
    if dtype in (torch.float32, torch.bfloat16):
        return 0.0
    return float(torch.finfo(dtype).max)
