"""A bound layer, with the parameters for launching its kernels.

Owns: the constants of each kernel, made once. Never does: launch. Called by: `backend.py`, `launch.py`, the catalog
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import torch
import triton
from torch import Tensor

from core.api.specs import LatentSpec
from core_attention.triton.attended import TORCH_TYPES, attended, padded
from core_attention.triton.layout import BlockLayout, layout_of
from core_attention.triton.limits import Cached
from core_runtime.contracts import AttentionParams

LOG2E: Final = 1.4426950408889634
WRITTEN: Final = 2048
"""Maximum numbers written by a program."""


class Scalars(NamedTuple):
    """Scalar arguments of the attention kernel. score_scale: for products of queries and keys, in base-2 logarithms.
    cap_scale: for the soft cap's output. v_scale: for the sums.
    """

    score_scale: float
    cap_scale: float
    v_scale: float


class Writable(Protocol):
    """What the kernels that write need of a layer."""

    @property
    def layout(self) -> BlockLayout:
        """The places of keys and values in a block."""
        ...

    @property
    def cache(self) -> Tensor:
        """The cache as one row of elements."""
        ...

    @property
    def scales(self) -> Tensor:
        """The cache as float32, for types with scales."""
        ...

    @property
    def params(self) -> AttentionParams:
        """The layer's own scales."""
        ...

    @property
    def written(self) -> dict[str, Any]:
        """The constants of `write`, by name."""
        ...


@dataclass(slots=True)
class Layer:
    """An attention layer bound to its cache.

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
    _attended: dict[torch.dtype, tuple[dict[str, Any], dict[str, Any]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = layout_of(self.spec, self.block_size, self.dtype)
        self.cache = self.raw.view(TORCH_TYPES[self.dtype]).flatten()
        self.scales = self.raw.view(torch.float32).flatten()
        self.scalars = scalars_of(self.spec, self.params)
        self.written = write_constants(self.spec, self.block_size, self.dtype)

    def attended(self, query_type: torch.dtype, max_query_len: int) -> dict[str, Any]:
        """Return the constants of `attend` for queries of a type, of which a sequence has at most so many in the step."""
        found = self._attended.get(query_type)
        if found is None:
            layer = (self.spec, self.block_size, self.dtype, query_type, self.chip)
            found = attend_constants(*layer, for_prompts=False), attend_constants(*layer, for_prompts=True)
            self._attended[query_type] = found
        few, many = found
        return few if max_query_len <= few["LAYER"].queries else many


def scalars_of(spec: Cached, params: AttentionParams) -> Scalars:
    """Compute a layer's scalars; its scales are 1 where the KV type has no layer-wide scale."""
    scale = spec.scale * params.k_scale
    if isinstance(spec, LatentSpec):
        return Scalars(scale * LOG2E, 1.0, params.k_scale)
    if spec.cap is None:
        return Scalars(scale * LOG2E, 1.0, params.v_scale)
    return Scalars(scale / spec.cap, spec.cap * LOG2E, params.v_scale)


def attend_constants(
    spec: Cached, block_size: int, dtype: str, query_type: torch.dtype, chip: str, *, for_prompts: bool
) -> dict[str, Any]:
    """Return the constants of `attend` that depend on the layer, by name; HAS_TAILS depends on the step.

    for_prompts: for sequences with more rows than fit the smaller tile.
    """
    own, tile = attended(spec, dtype, query_type, chip, for_prompts=for_prompts)
    layout = layout_of(spec, block_size, dtype)
    if isinstance(spec, LatentSpec):
        layout = replace(layout, v_base=0)  # values are the first numbers of keys
    return {
        "LAYER": own,
        "BLOCKS": layout,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": False,
    }


def with_spans(constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of `attend` for steps in which rows see later ones."""
    return constants | {"LAYER": replace(constants["LAYER"], has_spans=True)}


def with_tails(constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of `attend` for steps in which keys lie outside of the block table: their places take
    registers, of which a third stage leaves too few on sm_90.
    """
    return constants | {"HAS_TAILS": True, "num_stages": min(constants["num_stages"], 2)}


def write_constants(spec: Cached, block_size: int, dtype: str) -> dict[str, Any]:
    """Return the constants of `write`, by name."""
    return constants_of(layout_of(spec, block_size, dtype))


def constants_of(layout: BlockLayout) -> dict[str, Any]:
    """Return the constants of `write` for blocks of a layout, by name."""
    widest = max(padded(layout.size), padded(layout.value_size))
    side = max(1, min(triton.next_power_of_2(layout.heads), WRITTEN // widest))
    return {
        "SIDE": side,
        "PADDED": padded(layout.size),
        "VALUE_PADDED": padded(layout.value_size),
        "BLOCKS": layout,
        "num_warps": 4,
        "enable_fp_fusion": False,
    }
