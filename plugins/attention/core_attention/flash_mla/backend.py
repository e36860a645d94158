"""Latent attention through FlashMLA, for steps that decode.

Owns: the library's call. Never does: compute prompts (the engine's own kernels do, on the same cache), or write.
Called by: the decoder, through the attention contract.

The signature is that of FlashMLA at commit 02fe0d02, which made `get_mla_metadata` an empty object: the first call of a
step fills it on the device, the other layers of the step reuse it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from core.api.specs import LatentSpec
from core_attention.fused_heads import LatentRows, bind_latent
from core_attention.triton.backend import TritonAttention
from core_attention.triton.layer import Layer
from core_runtime.contracts import AttentionParams, BatchView


@dataclass(frozen=True, slots=True)
class MlaLayer:
    """A latent layer bound to its cache, as both read it."""

    own: Layer
    rows: LatentRows


@dataclass(frozen=True, slots=True)
class MlaStep:
    """The metadata of one step. own: that of the own kernels. schedule: the library's, filled by its first call."""

    view: BatchView
    own: Any
    schedule: Any


class FlashMla:
    """Implementation of the contract of latent backends. numerics: the library's version, and that of the own kernels."""

    name = "flash_mla"
    capture = "any"

    def __init__(self, numerics: str) -> None:
        self.numerics = numerics
        self._module: Any = importlib.import_module("flash_mla")
        self._prompts = TritonAttention()
        self.kv_layout = self._prompts.kv_layout

    def bind(
        self, spec: LatentSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> MlaLayer:
        """Bind a layer, once, to its cache."""
        own = self._prompts.bind(spec, block_size, dtype, raw, params)
        return MlaLayer(own, bind_latent(spec, block_size, dtype, raw))

    def build(self, view: BatchView) -> MlaStep:
        """Check the view's tensors, once per step."""
        schedule, _ = self._module.get_mla_metadata()
        return MlaStep(view, self._prompts.build(view), schedule)

    def write_latent(self, handle: MlaLayer, c: Tensor, k_pe: Tensor, metadata: MlaStep) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
        self._prompts.write_latent(handle.own, c, k_pe, metadata.own)

    def forward_latent(self, handle: MlaLayer, q_latent: Tensor, q_pe: Tensor, metadata: MlaStep, out: Tensor) -> None:
        """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
        view = metadata.view
        count = view.num_seqs
        if view.max_query_len > 1 or view.num_tokens < count:
            self._prompts.forward_latent(handle.own, q_latent, q_pe, metadata.own, out)
            return
        spec, rows = handle.rows.spec, handle.rows.rows
        # row i is the token of sequence i; padded rows may be more than padded sequences
        query = rows.new_empty(count, 1, spec.num_heads, rows.shape[2])
        query[:, 0, :, : spec.rank] = q_latent[:count]
        query[:, 0, :, spec.rank :] = q_pe[:count]
        found, _ = self._module.flash_mla_with_kvcache(
            query,
            rows.unsqueeze(2),
            view.block_table,
            view.seq_lens,
            spec.rank,
            metadata.schedule,
            softmax_scale=spec.scale,
            causal=True,
        )
        out[:count] = found[:, 0]
