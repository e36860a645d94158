"""Paged K and V for libraries, written by the engine's own kernel.

Owns: where that kernel finds a library's blocks. Never does: attend. Called by: the backends `flash_attn` and
`flashinfer`.

One launch stores the keys and values of a step, and, where the engine's kernels serve norms and rotation, norms and
rotates queries and keys as well. Addresses come from tensors alone, so all of it can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core_attention.paged_heads import DTYPES, PagedHeads, PagedLayer
from core_attention.triton.launch import turn_and_write_rows, write_rows
from core_attention.triton.layer import constants_of
from core_attention.triton.layout import BlockLayout, layout_of, token_major
from core_runtime.contracts import AttentionParams, BatchView, HeadTurn


@dataclass(frozen=True, slots=True)
class FusedLayer(PagedLayer):
    """An attention layer bound to its cache.

    layout, cache, scales, params, written: what the writing kernel needs, see `core_attention.triton.layer.Writable`.
    """

    layout: BlockLayout
    cache: Tensor
    scales: Tensor
    params: AttentionParams
    written: dict[str, Any]


class HasView(Protocol):
    """The metadata of a step."""

    @property
    def view(self) -> BatchView:
        """The batch."""
        ...


class FusedHeads(PagedHeads):
    """Base class that stores keys and values in one launch: also the contract `TurnsHeads`."""

    turns_as = "triton"

    def bind(
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> FusedLayer:
        """View the layer's bytes as K and V."""
        paged = super().bind(spec, block_size, dtype, raw, params)
        layout = token_major(spec, block_size, dtype)
        scales = raw.view(torch.float32).flatten()  # there are none in these types; it is never read
        written = constants_of(layout)
        cache = raw.view(DTYPES[dtype]).flatten()
        return FusedLayer(
            spec, paged.keys, paged.values, paged.sinks, paged.slopes, layout, cache, scales, AttentionParams(), written
        )

    def write(self, handle: FusedLayer, k: Tensor, v: Tensor, metadata: HasView) -> None:
        """Store k and v [T, Hkv, D] at the step's slots; a negative slot is skipped."""
        write_rows(handle, k, v, metadata.view)

    def turn_and_write(
        self, handle: FusedLayer, q: Tensor, k: Tensor, v: Tensor, turn: HeadTurn, positions: Tensor, metadata: HasView
    ) -> None:
        """Normalize and rotate q [T, Hq, D] in place, and store k, normalized and rotated, and v: the `TurnsHeads`
        contract.
        """
        turn_and_write_rows(handle, q, k, v, turn, positions, metadata.view)


@dataclass(frozen=True, slots=True)
class LatentRows:
    """A latent layer bound to its cache.

    spec: its sizes.
    rows: [num_blocks, block_size, R + Dr], each token's latent followed by its rotated key.
    layout, cache, scales, params, written: see `FusedLayer`.
    """

    spec: LatentSpec
    rows: Tensor
    layout: BlockLayout
    cache: Tensor
    scales: Tensor
    params: AttentionParams
    written: dict[str, Any]


def bind_latent(spec: LatentSpec, block_size: int, dtype: str, raw: Tensor) -> LatentRows:
    """View a layer's bytes as rows of latents and rotated keys."""
    layout = layout_of(spec, block_size, dtype)
    cache = raw.view(DTYPES[dtype])
    rows = cache.view(len(raw), block_size, spec.rank + spec.rope_size)
    scales = raw.view(torch.float32).flatten()
    return LatentRows(spec, rows, layout, cache.flatten(), scales, AttentionParams(), constants_of(layout))


def write_latents(layer: LatentRows, c: Tensor, k_pe: Tensor, view: BatchView) -> None:
    """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
    write_rows(layer, c.unsqueeze(1), k_pe.unsqueeze(1), view)
