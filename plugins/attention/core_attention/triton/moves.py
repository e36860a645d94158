"""Copies keys and values from slot to slot, bit for bit.

Owns: the block layout as torch indexes it. Never does: convert numbers. Called by: `backend.py`.
"""

from __future__ import annotations

from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core_attention.triton.layout import SCALE_BYTES
from core_attention.triton.limits import Cached


def move_slots(raw: Tensor, spec: Cached, block_size: int, dtype: str, sources: Tensor, targets: Tensor) -> None:
    """Copy slots, int64 [n] each, within a cache uint8 [blocks, block bytes]; all are read before any is written."""
    from_block = sources // block_size
    to_block = targets // block_size
    from_offset = sources % block_size
    to_offset = targets % block_size
    for part in _parts(raw, spec, block_size, dtype):
        moved = part[from_block, :, from_offset]
        part[to_block, :, to_offset] = moved


def _parts(raw: Tensor, spec: Cached, block_size: int, dtype: str) -> list[Tensor]:
    """Return views uint8 [blocks, heads, block_size, bytes] of all data that belongs to a token."""
    kv_type = KV_TYPES[dtype]
    if isinstance(spec, LatentSpec):
        return [raw.unflatten(1, (1, block_size, -1))]
    heads = spec.num_kv_heads
    tokens = heads * block_size
    widths = [spec.head_size * kv_type.item_bytes, spec.head_size_v * kv_type.item_bytes]
    if kv_type.scaled:
        widths += [SCALE_BYTES, SCALE_BYTES]
    parts = raw.split([tokens * width for width in widths], 1)
    return [part.unflatten(1, (heads, block_size, -1)) for part in parts]
