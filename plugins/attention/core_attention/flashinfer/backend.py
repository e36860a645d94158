"""Paged and latent attention through FlashInfer.

Owns: the library's plans for a step, one per kind of layer. Never does: know the library's signatures (`wrappers` does),
or when a wrapper may plan (`plans` does).
Called by: the decoder, through the attention contract.

Steps in which every sequence computes one token use the library's kernels for decoding, others those for prompts. Where
a sequence's bits must not depend on the batch, all steps use the latter, and keys are divided at fixed places: a token
has the same bits whether it is decoded or computed again as part of a prompt. The library does not promise recordings
then, so nothing is recorded.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable
from typing import Any, Final, Literal

from torch import Tensor

from core.api.specs import KV_TYPES, AttentionSpec, KVLayout, LatentSpec
from core_attention.flashinfer.plans import Plans, Recorded, Wrapper
from core_attention.flashinfer.step import FlashInferStep
from core_attention.flashinfer.wrappers import Heads, Latents
from core_attention.fused_heads import FusedHeads, FusedLayer, LatentRows, bind_latent, write_latents
from core_runtime.contracts import AttentionParams, BatchView, HeadTurn

SPLIT_TOKENS: Final = 2048
"""Keys of a program where keys are divided at fixed places."""

Cached = AttentionSpec | LatentSpec


class RecordedStep:
    """The metadata of a recording. plans: those that it reads."""

    def __init__(self, view: BatchView, plans: Recorded) -> None:
        self.view = view
        self.plans = plans


Metadata = FlashInferStep | RecordedStep


class FlashInfer:
    """Implementation of the attention contract, with latent layers, `TurnsHeads` and `PlansRecorded`.

    numerics: the library's version.
    invariant: whether a sequence's bits must not depend on the batch.
    """

    name = "flashinfer"
    turns_as = FusedHeads.turns_as

    def __init__(self, numerics: str, invariant: bool = False) -> None:
        self.numerics = numerics
        self.capture: Literal["uniform", "never"] = "never" if invariant else "uniform"
        self._invariant = invariant
        self._module: Any = importlib.import_module("flashinfer")
        self._plans = Plans()
        self._recorded: dict[tuple[int, ...], Recorded] = {}
        self._stored = FusedHeads()

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

    def build(self, view: BatchView) -> Metadata:
        """List the pages of all sequences, one sequence after another; those of a recording are listed step by step."""
        if view.query_lens:
            return FlashInferStep.of(view)
        return RecordedStep(view, self._recorded[_place(view)])

    def plan_recorded(self, view: BatchView, fixed: BatchView) -> None:
        """Plan a step for the recording that serves it: the `PlansRecorded` contract."""
        step = FlashInferStep.of(view, fixed.num_seqs)
        recorded = self._recorded.get(_place(fixed))
        if recorded is None:
            max_pages = fixed.num_seqs * fixed.block_table.shape[1]
            self._recorded[_place(fixed)] = Recorded(fixed.num_tokens, fixed.num_seqs, max_pages, step)
        else:
            recorded.renew(step)

    def write(self, handle: FusedLayer, k: Tensor, v: Tensor, metadata: Metadata) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self._stored.write(handle, k, v, metadata)

    def turn_and_write(
        self, handle: FusedLayer, q: Tensor, k: Tensor, v: Tensor, turn: HeadTurn, positions: Tensor, metadata: Metadata
    ) -> None:
        """Normalize and rotate q [T, Hq, D] in place, and store k and v: the `TurnsHeads` contract."""
        self._stored.turn_and_write(handle, q, k, v, turn, positions, metadata)

    def forward(self, handle: FusedLayer, q: Tensor, metadata: Metadata, out: Tensor) -> None:
        """Compute out[T, Hq, D] in the dtype of the cache."""
        dtype = handle.keys.dtype
        decodes = _decodes(metadata.view) and not self._invariant
        split = SPLIT_TOKENS if self._invariant else None
        kind = Heads(self._module, handle.spec, dtype, decodes, split)
        planned = self._planned((handle.spec, dtype, decodes), kind, metadata)
        if decodes:
            q, out = q[: metadata.view.num_seqs], out[: metadata.view.num_seqs]
        queries = q.to(dtype)
        cache = (handle.keys, handle.values)
        if out.dtype is dtype and out.is_contiguous():
            planned.run(queries, cache, out=out)
        else:
            out.copy_(planned.run(queries, cache))

    def write_latent(self, handle: LatentRows, c: Tensor, k_pe: Tensor, metadata: Metadata) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
        write_latents(handle, c, k_pe, metadata.view)

    def forward_latent(
        self, handle: LatentRows, q_latent: Tensor, q_pe: Tensor, metadata: Metadata, out: Tensor
    ) -> None:
        """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
        rows, rank = handle.rows, handle.spec.rank
        kind = Latents(self._module, handle.spec, rows.dtype)
        planned = self._planned((handle.spec, rows.dtype), kind, metadata)
        query = (q_latent.to(rows.dtype), q_pe.to(rows.dtype))
        cache = (rows[..., :rank], rows[..., rank:])
        if out.dtype is rows.dtype and out.is_contiguous():
            planned.run(query=query, kv_cache=cache, out=out)
        else:
            out.copy_(planned.run(query=query, kv_cache=cache))

    def _planned(self, key: Hashable, kind: Heads | Latents, metadata: Metadata) -> Any:
        """Return the library's plan for this step, shared by all layers of the same kind.

        A recording makes its wrappers when it is computed for the first time, before it is recorded.
        """
        if isinstance(metadata, RecordedStep):
            plans = metadata.plans
            wrapper = plans.wrappers.get(key)
            if wrapper is None:
                room = self._plans.room(plans.step.pages.device)
                wrapper = plans.wrappers[key] = Wrapper(kind.make(room, plans), kind.plan)
                wrapper.planned(plans.step)
            return wrapper.inner
        found = metadata.plans.get(key)
        if found is None:
            found = metadata.plans[key] = self._plans.planned(key, metadata, kind.make, kind.plan)
        return found


def _place(fixed: BatchView) -> tuple[int, ...]:
    """Return what tells recordings apart: their sizes, and their table of blocks, one for each KV group."""
    table = fixed.block_table
    return fixed.num_tokens, fixed.num_seqs, table.shape[1], table.data_ptr()


def _decodes(view: BatchView) -> bool:
    """Whether row i is the token of sequence i; padded rows may be more than padded sequences."""
    return view.max_query_len == 1 and view.num_tokens >= view.num_seqs
