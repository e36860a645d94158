"""The compile-time parameters of the attention kernel.

Owns: the constants of a layer and its tile. Never does: know a step. Called by: `layer.py`, `launch.py`, the kernel
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from core.api.specs import KV_TYPES, LatentSpec
from core_attention.triton.limits import Cached
from core_attention.triton.tiles import VALUES, Tile, doubled, tile_of

LEAST: Final = 16
"""Smallest dimension of a matrix product's operand."""
NATIVE: Final = frozenset({"sm_90", "sm_100"})
"""Chip families in which every chip has instructions for 8-bit floats."""
TORCH_TYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.uint8,
    "fp8_e5m2": torch.uint8,
    "fp8_per_token_head": torch.uint8,
    "int8_per_token_head": torch.int8,
}
"""The cache's element types as torch dtypes."""
TRITON_TYPES: Final = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


class Products(NamedTuple):
    """Operand types of both products. scores: queries and keys. values: softmax weights and values."""

    scores: torch.dtype
    values: torch.dtype

    @property
    def exact(self) -> bool:
        """Whether operands are multiplied in float32."""
        return self.scores is torch.float32


@dataclass(frozen=True, slots=True)
class Cut:
    """What determines the keys of a tile of rows; fields as in `Attended`. queries: rows of one head."""

    queries: int
    keys: int
    window: int
    is_chunked: bool
    has_spans: bool


@dataclass(frozen=True, slots=True)
class Attended:
    """A layer in the form for which its kernel is compiled.

    heads: query heads. group: query heads per key-value head. side: query heads per tile.
    size, rest: sizes of a key's two parts, padded to powers of 2 in `padded` and `rest_padded`; rest 0: one part.
    value_size: size of a value. value_tile: value elements per program.
    rows, keys: of a tile.
    product, value_product: Triton's operand types of both products.
    is_native: the chip has instructions for 8-bit floats.
    window: keys that a row sees; 0: all. is_chunked: windows begin at multiples of `window`.
    has_spans: whether rows of the step see later ones, see `BatchView.sees_to`.
    """

    heads: int
    group: int
    side: int
    size: int
    padded: int
    rest: int
    rest_padded: int
    value_size: int
    value_tile: int
    rows: int
    keys: int
    product: tl.dtype
    value_product: tl.dtype
    is_native: bool
    window: int
    is_chunked: bool
    has_cap: bool
    has_sinks: bool
    has_slopes: bool
    has_spans: bool = False

    @property
    def cut(self) -> Cut:
        """Return what determines the keys of a tile."""
        return Cut(self.queries, self.keys, self.window, self.is_chunked, self.has_spans)

    @property
    def queries(self) -> int:
        """Return the rows of one head in a tile."""
        return self.rows // self.side

    @property
    def sides(self) -> int:
        """Return the number of tiles that share the heads of a key-value head."""
        return -(-self.group // self.side)

    @property
    def value_tiles(self) -> int:
        """Return the number of programs that share a value."""
        return -(-self.value_size // self.value_tile)

    @property
    def lanes(self) -> int:
        """Return the programs per tile of queries: key-value heads × sides × parts of a value."""
        return self.heads // self.group * self.sides * self.value_tiles


def attended(
    spec: Cached, dtype: str, query_type: torch.dtype, chip: str, *, for_prompts: bool
) -> tuple[Attended, Tile]:
    """Return the parameters for queries of a type, and the tile chosen. for_prompts: the larger one, if there is."""
    is_latent = isinstance(spec, LatentSpec)
    size, rest = key_parts(spec)
    heads, group, value = heads_of(spec)
    products = products_of(dtype, query_type)
    tile = _tile(spec, products, chip)
    if for_prompts:
        tile = doubled(tile)
    # an 8-bit latent is wide, and its conversion needs registers
    values = min(tile.values, VALUES // 2) if is_latent and KV_TYPES[dtype].item_bytes == 1 else tile.values
    own = Attended(
        heads=heads,
        group=group,
        side=min(group, tile.rows),
        size=size,
        padded=padded(size),
        rest=rest,
        rest_padded=padded(rest) if rest else LEAST,
        value_size=value,
        value_tile=min(values, padded(value)),
        rows=tile.rows,
        keys=tile.keys,
        product=TRITON_TYPES[products.scores],
        value_product=TRITON_TYPES[products.values],
        is_native=chip in NATIVE,
        window=spec.window or 0,
        **_features(spec),
    )
    return own, tile


def products_of(dtype: str, query_type: torch.dtype) -> Products:
    """Return 16-bit operands where queries and cache have the same type or the cache has 8 bits; otherwise float32."""
    kv_type = KV_TYPES[dtype]
    eight_bits = kv_type.item_bytes == 1
    if query_type is torch.float32 or not (eight_bits or TORCH_TYPES[dtype] is query_type):
        return Products(torch.float32, torch.float32)
    if kv_type.scaled:
        # a softmax weight times a token's scale may underflow in float16
        return Products(query_type, torch.bfloat16)
    return Products(query_type, query_type)


def padded(size: int) -> int:
    """Return the padded dimension of an operand with `size` numbers."""
    return max(LEAST, int(triton.next_power_of_2(size)))


def key_parts(spec: Cached) -> tuple[int, int]:
    """Return the sizes of a key's two parts: a latent and its rotated key; other layers have one part."""
    if isinstance(spec, LatentSpec):
        return spec.rank, spec.rope_size
    return spec.head_size, 0


def heads_of(spec: Cached) -> tuple[int, int, int]:
    """Return the query heads, the query heads per key-value head, and the size of a value."""
    if isinstance(spec, LatentSpec):
        return spec.num_heads, spec.num_heads, spec.rank
    return spec.num_heads, spec.num_heads // spec.num_kv_heads, spec.head_size_v


def _features(spec: Cached) -> dict[str, bool]:
    """Return the softmax features of a layer other than its window."""
    if isinstance(spec, LatentSpec):
        return dict.fromkeys(("is_chunked", "has_cap", "has_sinks", "has_slopes"), False)
    return {
        "is_chunked": spec.chunked,
        "has_cap": spec.cap is not None,
        "has_sinks": spec.sinks,
        "has_slopes": spec.alibi,
    }


def _tile(spec: Cached, products: Products, chip: str) -> Tile:
    """Return the tile for a layer on a chip."""
    size, rest = key_parts(spec)
    _, _, value = heads_of(spec)
    key = padded(size) + (padded(rest) if rest else 0)
    return tile_of(chip, max(key, min(VALUES, padded(value))), products.exact)
