"""One bound layer, as the kernels are launched for it.

Owns: the constants of a layer, made once. Never does: launch. Called by: `backend.py`, `launch.py`, the rows for the gate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core.plugin.contracts import AttentionParams
from core_plugins.attention.triton.layout import BlockLayout, layout_of
from core_plugins.attention.triton.limits import ELEMENTS, Cached
from core_plugins.attention.triton.spans import SLOTS
from core_plugins.attention.triton.tiles import VALUES, Tile, tile_of

LOG2E: Final = 1.4426950408889634
LEAST: Final = 16
"""Numbers of the smallest operand of a product."""
WRITTEN: Final = 4096
"""Numbers that a program writes at most."""
TORCH_TYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.uint8,
    "fp8_e5m2": torch.uint8,
    "fp8_per_token_head": torch.uint8,
    "int8_per_token_head": torch.int8,
}
"""Of the cache's elements, as kernels see them."""
LARGEST: Final = {"fp8_per_token_head": 448.0, "int8_per_token_head": 127.0}
"""The number that the largest of a token and head becomes."""
NATIVE: Final = frozenset({"sm_90", "sm_100"})
"""Kinds of chips all of which have instructions for 8-bit floats."""
TRITON_TYPES: Final = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


class Products(NamedTuple):
    """Types of the operands. scores: of queries and keys. values: of softmax weights and values."""

    scores: torch.dtype
    values: torch.dtype

    @property
    def exact(self) -> bool:
        """Whether float32 is multiplied."""
        return self.scores is torch.float32


class Scalars(NamedTuple):
    """score_scale: of products of queries and keys, in powers of 2. cap_scale: of what the soft cap gives. v_scale: of sums."""

    score_scale: float
    cap_scale: float
    v_scale: float


@dataclass(slots=True)
class Layer:
    """One bound layer.

    spec: its heads and sizes.
    block_size: tokens of a block.
    dtype: the KV type.
    chip: its kind, such as `sm_90`.
    raw: its cache, uint8 [blocks, block bytes].
    params: its scales, sinks and slopes, the latter two float32 on the device.
    """

    spec: Cached
    block_size: int
    dtype: str
    chip: str
    raw: Tensor
    params: AttentionParams
    layout: BlockLayout = field(init=False)
    cache: Tensor = field(init=False)
    scales: Tensor = field(init=False)
    scalars: Scalars = field(init=False)
    written: dict[str, Any] = field(init=False)
    _attended: dict[torch.dtype, dict[str, Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = layout_of(self.spec, self.block_size, self.dtype)
        self.cache = self.raw.view(TORCH_TYPES[self.dtype]).flatten()
        self.scales = self.raw.view(torch.float32).flatten()
        self.scalars = scalars_of(self.spec, self.params)
        self.written = write_constants(self.spec, self.block_size, self.dtype)

    def attended(self, query_type: torch.dtype) -> dict[str, Any]:
        """Constants of `attend` for queries of a type, without those of a step."""
        found = self._attended.get(query_type)
        if found is None:
            found = attend_constants(self.spec, self.block_size, self.dtype, query_type, self.chip)
            self._attended[query_type] = found
        return found


def scalars_of(spec: Cached, params: AttentionParams) -> Scalars:
    """Of a layer; its scales are 1 where the KV type has none for a whole layer."""
    scale = spec.scale * params.k_scale
    if isinstance(spec, LatentSpec):
        return Scalars(scale * LOG2E, 1.0, params.k_scale)
    if spec.cap is None:
        return Scalars(scale * LOG2E, 1.0, params.v_scale)
    return Scalars(scale / spec.cap, spec.cap * LOG2E, params.v_scale)


def products_of(dtype: str, query_type: torch.dtype) -> Products:
    """16-bit products where queries and cache agree on a type or the cache has 8 bits; else float32."""
    kv_type = KV_TYPES[dtype]
    eight_bits = kv_type.item_bytes == 1
    if query_type is torch.float32 or not (eight_bits or TORCH_TYPES[dtype] is query_type):
        return Products(torch.float32, torch.float32)
    if kv_type.scaled:
        # a softmax weight times a token's scale may be smaller than float16 can be
        return Products(query_type, torch.bfloat16)
    return Products(query_type, query_type)


def padded(size: int) -> int:
    """Numbers of an operand that holds `size`."""
    return max(LEAST, int(triton.next_power_of_2(size)))


def key_parts(spec: Cached) -> tuple[int, int]:
    """Numbers of a key in its two parts: a latent and its rotated key; others have one part."""
    if isinstance(spec, LatentSpec):
        return spec.rank, spec.rope_size
    return spec.head_size, 0


def heads_of(spec: Cached) -> tuple[int, int, int]:
    """Heads of queries, those that share a key-value head, and numbers of a value."""
    if isinstance(spec, LatentSpec):
        return spec.num_heads, spec.num_heads, spec.rank
    return spec.num_heads, spec.num_heads // spec.num_kv_heads, spec.head_size_v


def attend_constants(spec: Cached, block_size: int, dtype: str, query_type: torch.dtype, chip: str) -> dict[str, Any]:
    """Constants of `attend` that are a layer's, by name; HAS_TAILS and SPLIT are a step's."""
    layout = layout_of(spec, block_size, dtype)
    latent = isinstance(spec, LatentSpec)
    size, rest = key_parts(spec)
    heads, group, value = heads_of(spec)
    products = products_of(dtype, query_type)
    tile = layer_tile(spec, products, chip)
    # an 8-bit latent is wide, and needs registers for its conversion
    values = tile.values // 2 if latent and KV_TYPES[dtype].item_bytes == 1 else tile.values
    window = spec.window or 0
    return {
        "HEADS": heads,
        "GROUP": group,
        "SIDE": min(group, tile.rows),
        "SIZE": size,
        "PADDED": padded(size),
        "REST": rest,
        "REST_PADDED": padded(rest) if rest else LEAST,
        "VALUE": value,
        "VALUE_TILE": min(values, padded(value)),
        "BLOCK_SIZE": block_size,
        "BLOCK_STRIDE": layout.block_stride,
        "K_HEAD": layout.k_head,
        "K_TOKEN": layout.k_token,
        "V_BASE": 0 if latent else layout.v_base,
        "V_HEAD": layout.v_head,
        "V_TOKEN": layout.v_token,
        "SCALE_STRIDE": layout.scale_stride,
        "SCALE_BASE": layout.scale_base,
        "SCALE_VALUES": layout.scale_values,
        "ELEMENT": ELEMENTS[dtype],
        "SCALED": KV_TYPES[dtype].scaled,
        "NATIVE": chip in NATIVE,
        "WINDOW": window,
        **_features(spec),
        "SLOTS": SLOTS,
        "PRODUCT": TRITON_TYPES[products.scores],
        "VALUE_PRODUCT": TRITON_TYPES[products.values],
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": False,
    }


def _features(spec: Cached) -> dict[str, bool]:
    """What a layer's softmax has beside its window."""
    if isinstance(spec, LatentSpec):
        return dict.fromkeys(("CHUNKED", "HAS_CAP", "HAS_SINKS", "HAS_SLOPES"), False)
    return {
        "CHUNKED": spec.chunked,
        "HAS_CAP": spec.cap is not None,
        "HAS_SINKS": spec.sinks,
        "HAS_SLOPES": spec.alibi,
    }


def layer_tile(spec: Cached, products: Products, chip: str) -> Tile:
    """The tile for a layer on a chip."""
    size, rest = key_parts(spec)
    _, _, value = heads_of(spec)
    key = padded(size) + (padded(rest) if rest else 0)
    return tile_of(chip, max(key, min(VALUES, padded(value))), products.exact)


def merge_constants(attended: dict[str, Any]) -> dict[str, Any]:
    """Constants of `merge` for a layer whose `attend` has these."""
    names = ("HEADS", "VALUE", "WINDOW", "CHUNKED", "HAS_SINKS", "SLOTS")
    constants = {name: attended[name] for name in names}
    constants["VALUE_PADDED"] = padded(attended["VALUE"])
    constants["num_warps"] = 4
    constants["enable_fp_fusion"] = False
    return constants


def write_constants(spec: Cached, block_size: int, dtype: str) -> dict[str, Any]:
    """Constants of `write`, by name."""
    layout = layout_of(spec, block_size, dtype)
    widest = max(padded(layout.size), padded(layout.value))
    side = max(1, min(triton.next_power_of_2(layout.heads), WRITTEN // widest))
    return {
        "HEADS": layout.heads,
        "SIDE": side,
        "SIZE": layout.size,
        "PADDED": padded(layout.size),
        "VALUE": layout.value,
        "VALUE_PADDED": padded(layout.value),
        "BLOCK_SIZE": block_size,
        "BLOCK_STRIDE": layout.block_stride,
        "K_HEAD": layout.k_head,
        "K_TOKEN": layout.k_token,
        "V_BASE": layout.v_base,
        "V_HEAD": layout.v_head,
        "V_TOKEN": layout.v_token,
        "SCALE_STRIDE": layout.scale_stride,
        "SCALE_BASE": layout.scale_base,
        "SCALE_VALUES": layout.scale_values,
        "ELEMENT": ELEMENTS[dtype],
        "SCALED": KV_TYPES[dtype].scaled,
        "LARGEST": LARGEST.get(dtype, 1.0),
        "num_warps": 4,
        "enable_fp_fusion": False,
    }
