"""Latent attention (MLA) through FlashInfer.

Owns: the library's plans for latent layers. Never does: multiply by a projection (the core does).
Called by: the backend.

A block holds one row for each token: its latent followed by its rotated key, which is how the engine's own kernel writes
it and how the library reads it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from core_attention.flashinfer.plans import Plans
from core_attention.flashinfer.step import FlashInferStep
from core_attention.fused_heads import LatentRows


class FlashInferLatent:
    """The latent layers of the backend.

    module: the library.
    plans: the backend's wrappers.
    """

    def __init__(self, module: Any, plans: Plans) -> None:
        self._module = module
        self._plans = plans

    def forward(
        self, handle: LatentRows, q_latent: Tensor, q_pe: Tensor, metadata: FlashInferStep, out: Tensor
    ) -> None:
        """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
        rows = handle.rows
        rank = handle.spec.rank
        key = handle.spec, rows.dtype
        plan = metadata.plans.get(key)
        if plan is None:
            plan = metadata.plans[key] = self._planned(handle, metadata)
        query = (q_latent.to(rows.dtype), q_pe.to(rows.dtype))
        cache = (rows[..., :rank], rows[..., rank:])
        if out.dtype is rows.dtype and out.is_contiguous():
            plan.run(query=query, kv_cache=cache, out=out)
        else:
            out.copy_(plan.run(query=query, kv_cache=cache))

    def _planned(self, handle: LatentRows, step: FlashInferStep) -> Any:
        """Return the library's plan for this step, shared by all layers of the same kind."""
        spec, rows = handle.spec, handle.rows
        metadata = self._module.mla.MLAPlanMetadata.csr(
            qo_indptr=step.query_starts,
            kv_indptr=step.page_starts,
            kv_indices=step.pages,
            kv_len_arr=step.lengths,
        )

        def plan(inner: Any) -> None:
            inner.plan(
                metadata=metadata,
                num_heads=spec.num_heads,
                head_dim_ckv=spec.rank,
                head_dim_kpe=spec.rope_size,
                page_size=step.view.block_size,
                causal=True,
                sm_scale=spec.scale,
                q_data_type=rows.dtype,
                kv_data_type=rows.dtype,
                query_layout="split",
                kv_cache_layout="split",
            )

        make = self._module.mla.BatchMLAPagedAttentionWrapper
        return self._plans.planned((spec, rows.dtype), rows.device, make, plan)
