"""Copies keys and values from slot to slot, bit for bit.

Owns: the layout of a block (`backend.py` describes it) as torch indexes it. Never does: convert numbers.
Called by: `backend.py`, when accepted tokens of a draft tree move to their final slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core_attention.cpu_paged.limits import ELEMENTS

BITS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Integer dtypes by element size: elements are copied without interpreting them."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per element; all other types take one byte."""

CODED = "k8v4_per_token_head"
CODES = 4
"""4-bit codes of a value that share an element, of two bytes."""

UNPAIRED = ("float32", "float16")
GROUP = 16


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The memory layout of a layer's blocks.

    heads: of keys and values.
    dim, dim_v: elements of a key and of a value; dim_v is 0 where values are part of the keys.
    block_size: tokens.
    k_bytes, v_bytes: bytes per element.
    pair: neighbouring tokens stored together.
    index: bytes of a token's key of an index, after the keys of all tokens of a block.
    """

    heads: int
    dim: int
    dim_v: int
    block_size: int
    k_bytes: int
    v_bytes: int
    pair: int
    index: int = 0

    @classmethod
    def of(cls, spec: AttentionSpec | LatentSpec, block_size: int, element: int) -> BlockLayout:
        """Return the layout of a layer. element: the kernel's number of the type."""
        name = next(name for name, number in ELEMENTS.items() if number == element)
        item_bytes = ITEM_BYTES.get(name, 1)
        pair = 1 if name in UNPAIRED or block_size % GROUP else 2
        sizes = (block_size, item_bytes, item_bytes, pair)
        if isinstance(spec, LatentSpec):
            index = spec.index_size * max(item_bytes, 2)
            return cls(1, spec.rank + spec.rope_size, 0, *sizes, index)
        if name == CODED:
            return cls(spec.num_kv_heads, spec.head_size, spec.head_size_v // CODES, block_size, 1, 2, pair)
        return cls(spec.num_kv_heads, spec.head_size, spec.head_size_v, *sizes)

    def move(self, raw: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy slots, int64 [n] each, within a cache uint8 [blocks, block bytes]."""
        from_block = sources // self.block_size
        to_block = targets // self.block_size
        from_offset = sources % self.block_size
        to_offset = targets % self.block_size
        for part, together in (*self._parts(raw), *self._index(raw)):
            moved = part[from_block, :, from_offset // together, :, from_offset % together]
            part[to_block, :, to_offset // together, :, to_offset % together] = moved

    def _index(self, raw: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield the keys of an index in the same form."""
        if self.index:
            keys = raw[:, self.block_size * self.dim * self.k_bytes :].view(torch.int16)
            yield keys.unflatten(1, (1, self.block_size, self.index // 2, 1)), 1

    def _parts(self, raw: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield keys, values and scales as [blocks, heads, tokens / n, elements, n, ...], each with n: tokens stored
        together.
        """
        grouped = self.block_size % GROUP == 0
        raw = raw[:, : raw.shape[1] - self.block_size * self.index]
        by_head = raw.unflatten(1, (self.heads, -1))
        k_bytes = self.block_size * self.dim * self.k_bytes
        v_bytes = self.block_size * self.dim_v * self.v_bytes
        scale_bytes = by_head.shape[2] - k_bytes - v_bytes
        keys, values, scales = by_head.split([k_bytes, v_bytes, scale_bytes], 2)
        together = GROUP if grouped else 1
        k_parts = keys.view(BITS[self.k_bytes])
        yield k_parts.unflatten(2, (-1, self.dim // self.pair, together, self.pair)), together
        if self.dim_v:
            yield values.view(BITS[self.v_bytes]).unflatten(2, (-1, self.dim_v, self.pair)), self.pair
        if scales.shape[2]:
            of_tokens = scales.view(torch.int32).unflatten(2, (2, self.block_size, 1, 1))
            yield of_tokens[:, :, 0], 1
            yield of_tokens[:, :, 1], 1
