"""Paged and latent attention through FlashInfer.

Owns: the library's plans for a step, one per kind of layer. Never does: run in a recorded graph, because plans are made
on the host.
Called by: the decoder, through the attention contract.

Steps in which every sequence computes one token use the library's kernels for decoding, others those for prompts. Where
a sequence's bits must not depend on the batch, all steps use the latter, and keys are divided at fixed places: a token
has the same bits whether it is decoded or computed again as part of a prompt. The signatures are those of
flashinfer-python 0.7.2.post1.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import torch
from torch import Tensor

from core.api.specs import KV_TYPES, AttentionSpec, KVLayout, LatentSpec
from core_attention.flashinfer.latent import FlashInferLatent
from core_attention.flashinfer.plans import Plans
from core_attention.flashinfer.step import FlashInferStep
from core_attention.fused_heads import FusedHeads, FusedLayer, LatentRows, bind_latent, write_latents
from core_runtime.contracts import AttentionParams, BatchView, HeadTurn

SPLIT_TOKENS: Final = 2048
"""Keys of a program where keys are divided at fixed places."""
GROUP_FOR_MATRIX_UNITS: Final = 4
"""From this many query heads for each head of keys on, decoding gains by matrix units."""

Cached = AttentionSpec | LatentSpec
PlanKey = tuple[AttentionSpec, torch.dtype, torch.dtype, bool]
"""A kind of layer: its sizes, the dtypes of queries and cache, and whether the step only decodes."""


class FlashInfer:
    """Implementation of the attention contract, with latent layers and `TurnsHeads`.

    numerics: the library's version.
    invariant: whether a sequence's bits must not depend on the batch.
    """

    name = "flashinfer"
    turns_as = FusedHeads.turns_as

    def __init__(self, numerics: str, invariant: bool = False) -> None:
        self.numerics = numerics
        self._invariant = invariant
        self._module: Any = importlib.import_module("flashinfer")
        self._plans = Plans()
        self._stored = FusedHeads()
        self._latent = FlashInferLatent(self._module, self._plans)

    def kv_layout(self, spec: Cached, block_size: int, dtype: str) -> KVLayout:
        """Return the bytes of one block of one layer."""
        return KVLayout(block_size * KV_TYPES[dtype].token_bytes(spec))

    def bind(
        self, spec: Cached, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> FusedLayer | LatentRows:
        """View the layer's bytes as K and V, or as latents."""
        if isinstance(spec, LatentSpec):
            return bind_latent(spec, block_size, dtype, raw)
        return self._stored.bind(spec, block_size, dtype, raw, params)

    def build(self, view: BatchView) -> FlashInferStep:
        """List the pages of all sequences, one sequence after another."""
        return FlashInferStep.of(view)

    def write(self, handle: FusedLayer, k: Tensor, v: Tensor, metadata: FlashInferStep) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self._stored.write(handle, k, v, metadata)

    def turn_and_write(
        self,
        handle: FusedLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        turn: HeadTurn,
        positions: Tensor,
        metadata: FlashInferStep,
    ) -> None:
        """Normalize and rotate q [T, Hq, D] in place, and store k and v: the `TurnsHeads` contract."""
        self._stored.turn_and_write(handle, q, k, v, turn, positions, metadata)

    def forward(self, handle: FusedLayer, q: Tensor, metadata: FlashInferStep, out: Tensor) -> None:
        """Compute out[T, Hq, D] in the dtype of the cache."""
        queries = q.to(handle.keys.dtype)
        decodes = metadata.decodes and not self._invariant
        key = handle.spec, queries.dtype, handle.keys.dtype, decodes
        plan = metadata.plans.get(key)
        if plan is None:
            plan = metadata.plans[key] = self._planned(key, queries.device, metadata)
        cache = (handle.keys, handle.values)
        if out.dtype is queries.dtype and out.is_contiguous():
            plan.run(queries, cache, out=out)
        else:
            out.copy_(plan.run(queries, cache))

    def write_latent(self, handle: LatentRows, c: Tensor, k_pe: Tensor, metadata: FlashInferStep) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
        write_latents(handle, c, k_pe, metadata.view)

    def forward_latent(
        self, handle: LatentRows, q_latent: Tensor, q_pe: Tensor, metadata: FlashInferStep, out: Tensor
    ) -> None:
        """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
        self._latent.forward(handle, q_latent, q_pe, metadata, out)

    def _planned(self, key: PlanKey, device: torch.device, step: FlashInferStep) -> Any:
        """Return the library's plan for this step, shared by all layers of the same kind."""
        spec, _, _, decodes = key
        if decodes:
            matrix_units = spec.num_heads // spec.num_kv_heads >= GROUP_FOR_MATRIX_UNITS

            def make(room: Tensor) -> Any:
                wrapper = self._module.BatchDecodeWithPagedKVCacheWrapper
                return wrapper(room, "NHD", use_tensor_cores=matrix_units)

            return self._plans.planned(key, device, make, lambda inner: _plan_decode(inner, key, step))
        backend = "fa2" if self._invariant else "auto"
        pages = SPLIT_TOKENS // step.view.block_size if self._invariant else None

        def make_prefill(room: Tensor) -> Any:
            return self._module.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)

        return self._plans.planned(key, device, make_prefill, lambda inner: _plan_prefill(inner, key, step, pages))


def _plan_decode(inner: Any, key: PlanKey, step: FlashInferStep) -> None:
    spec, q_dtype, kv_dtype, _ = key
    inner.plan(
        step.page_starts,
        step.pages,
        step.last_lengths,
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_size,
        step.view.block_size,
        sm_scale=spec.scale,
        window_left=_left(spec),
        logits_soft_cap=spec.cap or 0.0,
        q_data_type=q_dtype,
        kv_data_type=kv_dtype,
    )


def _plan_prefill(inner: Any, key: PlanKey, step: FlashInferStep, split_pages: int | None) -> None:
    """Plan. split_pages: pages between the fixed places at which keys are divided; None: as the library sees fit."""
    spec, q_dtype, kv_dtype, _ = key
    inner.plan(
        step.query_starts,
        step.page_starts,
        step.pages,
        step.last_lengths,
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_size,
        step.view.block_size,
        causal=True,
        sm_scale=spec.scale,
        window_left=_left(spec),
        logits_soft_cap=spec.cap or 0.0,
        q_data_type=q_dtype,
        kv_data_type=kv_dtype,
        fixed_split_size=split_pages,
    )


def _left(spec: AttentionSpec) -> int:
    """Return the number of keys that a query sees before itself; -1: all."""
    return -1 if spec.window is None else spec.window - 1
