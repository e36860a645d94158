"""The memory layout of a layer's block, in elements of the cache.

Owns: the offsets of keys, values and scales, and the element type. Never does: compute.
Called by: `layer.py`, `moves.py`, adapters of libraries. Kernels are compiled for a layout.

A block holds K [Hkv, block_size, D], V [Hkv, block_size, Dv], then the float32 scales of K and of V, each [Hkv,
block_size], where the type has them: the tokens of a head are contiguous, as a program reads them. A block of a latent
layer holds one row per token: its latent followed by its rotated key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from core.api.specs import KV_TYPES, AttentionSpec, LatentSpec
from core_attention.triton.limits import ELEMENTS

SCALE_BYTES: Final = 4
LARGEST: Final = {"fp8_per_token_head": 448.0, "int8_per_token_head": 127.0}
"""The number to which the largest magnitude of a token and head is scaled."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The layout of a layer's blocks. Offsets and strides count elements; those of scales count scales.

    heads: of keys and values.
    size, value_size: elements of a key and of a value; in a latent layer the rotated key takes the place of the value.
    block_size: tokens.
    block_stride: from block to block.
    k_head, k_token: from head to head, and from token to token.
    v_base, v_head, v_token: start of the values, and their strides.
    element: storage type, see `cells.py`.
    is_scaled: whether each token and head has its own scales. largest: number to which the largest magnitude is scaled.
    scale_stride, scale_base, scale_values: stride from block to block, start of the scales, and offset from those of K
        to those of V.
    """

    heads: int
    size: int
    value_size: int
    block_size: int
    block_stride: int
    k_head: int
    k_token: int
    v_base: int
    v_head: int
    v_token: int
    element: str
    is_scaled: bool = False
    largest: float = 1.0
    scale_stride: int = 0
    scale_base: int = 0
    scale_values: int = 0


def layout_of(spec: AttentionSpec | LatentSpec, block_size: int, dtype: str) -> BlockLayout:
    """Return the layout of a layer; block_size is a multiple of 4 where the type has scales."""
    kv_type = KV_TYPES[dtype]
    block_bytes = block_size * kv_type.token_bytes(spec)
    block_stride = block_bytes // kv_type.item_bytes
    if isinstance(spec, LatentSpec):
        row = spec.rank + spec.rope_size
        return BlockLayout(
            heads=1,
            size=spec.rank,
            value_size=spec.rope_size,
            block_size=block_size,
            block_stride=block_stride,
            k_head=0,
            k_token=row,
            v_base=spec.rank,
            v_head=0,
            v_token=row,
            element=ELEMENTS[dtype],
        )
    heads = spec.num_kv_heads
    tokens = heads * block_size
    numbers = tokens * (spec.head_size + spec.head_size_v)
    scaled = kv_type.scaled
    return BlockLayout(
        heads=heads,
        size=spec.head_size,
        value_size=spec.head_size_v,
        block_size=block_size,
        block_stride=block_stride,
        k_head=block_size * spec.head_size,
        k_token=spec.head_size,
        v_base=tokens * spec.head_size,
        v_head=block_size * spec.head_size_v,
        v_token=spec.head_size_v,
        element=ELEMENTS[dtype],
        is_scaled=scaled,
        largest=LARGEST.get(dtype, 1.0),
        scale_stride=block_bytes // SCALE_BYTES if scaled else 0,
        scale_base=numbers // SCALE_BYTES if scaled else 0,
        scale_values=tokens if scaled else 0,
    )


def token_major(spec: AttentionSpec, block_size: int, dtype: str) -> BlockLayout:
    """Return the layout of libraries' blocks: K [block_size, Hkv, D], then V of the same shape; types without scales."""
    own = layout_of(spec, block_size, dtype)
    token = spec.num_kv_heads * spec.head_size
    return replace(own, k_head=spec.head_size, k_token=token, v_head=spec.head_size, v_token=token)
