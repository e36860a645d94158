"""Paged attention through FlashAttention 2, 3 or 4.

Owns: the choice of a call for each layer. Never does: know a library's signature (`calls` does), or choose a layer's
version (`versions` does).
Called by: the decoder, through the attention contract.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.api.specs import AttentionQuery, AttentionSpec
from core_attention.checks import check_tables
from core_attention.flash_attn.calls import Call, call_of
from core_attention.flash_attn.step import FlashStep
from core_attention.flash_attn.versions import fitting
from core_attention.fused_heads import FusedHeads, FusedLayer
from core_runtime.contracts import AttentionParams, BatchView, HeadTurn


@dataclass(frozen=True, slots=True)
class FlashLayer:
    """An attention layer bound to its cache.

    paged: the cache views.
    attend: the library call.
    """

    paged: FusedLayer
    attend: Call


class FlashAttention:
    """Implementation of the attention contract, with `TurnsHeads`.

    numerics: the installed versions.
    invariant: whether a sequence's bits must not depend on the batch.
    """

    name = "flash_attn"
    capture = "any"
    turns_as = FusedHeads.turns_as

    def __init__(self, numerics: str, invariant: bool = False) -> None:
        self.numerics = numerics
        self._invariant = invariant
        self._stored = FusedHeads()
        self.kv_layout = self._stored.kv_layout

    def bind(
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> FlashLayer:
        """View the layer's bytes as K and V, and select the library version that serves it."""
        paged = self._stored.bind(spec, block_size, dtype, raw, params)
        query = AttentionQuery(spec, "cuda", dtype, block_size, profile=_profile(raw.device))
        version, reasons = fitting(query)
        if version is None:
            raise ValueError(f"no installed FlashAttention serves the layer: {reasons[0]}")
        return FlashLayer(paged, call_of(version, self._invariant))

    def build(self, view: BatchView) -> FlashStep:
        """Compute the cumulative key counts, once for all layers."""
        check_tables(view)
        lengths = view.seq_lens
        ends = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
        ends[1:] = lengths.cumsum(0)
        return FlashStep(view, ends)

    def write(self, handle: FlashLayer, k: Tensor, v: Tensor, metadata: FlashStep) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self._stored.write(handle.paged, k, v, metadata)

    def turn_and_write(
        self,
        handle: FlashLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        turn: HeadTurn,
        positions: Tensor,
        metadata: FlashStep,
    ) -> None:
        """Normalize and rotate q [T, Hq, D] in place, and store k and v: the `TurnsHeads` contract."""
        self._stored.turn_and_write(handle.paged, q, k, v, turn, positions, metadata)

    def forward(self, handle: FlashLayer, q: Tensor, metadata: FlashStep, out: Tensor) -> None:
        """Compute out[T, Hq, D] in the dtype of the cache."""
        queries = q.to(handle.paged.keys.dtype)
        out.copy_(handle.attend(handle.paged, queries, metadata))


def _profile(device: torch.device) -> str:
    """Return the device's profile, such as `sm_90`; empty for a device that is not a GPU."""
    if device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
