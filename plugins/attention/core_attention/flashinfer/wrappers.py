"""How FlashInfer's wrappers are made, and how they plan.

Owns: the library's signatures, which are those of flashinfer-python 0.7.2.post1. Never does: decide which step a wrapper
plans. Called by: the backend.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core_attention.flashinfer.plans import Recorded
from core_attention.flashinfer.step import FlashInferStep

GROUP_FOR_MATRIX_UNITS: Final = 4
"""From this many query heads for each head of keys on, decoding gains by matrix units."""


class Heads:
    """A kind of layer with keys and values.

    spec, dtype: its sizes, and the dtype of queries and cache.
    decodes: whether each sequence computes one token, in the library's kernels for that.
    split: keys of a program where keys are divided at fixed places; None: as the library sees fit.
    """

    def __init__(self, module: Any, spec: AttentionSpec, dtype: torch.dtype, decodes: bool, split: int | None) -> None:
        self._module = module
        self._spec = spec
        self._dtype = dtype
        self._decodes = decodes
        self._split = split

    def make(self, room: Tensor, recorded: Recorded | None = None) -> Any:
        """Make a wrapper. recorded: the recording that reads its plan."""
        spec = self._spec
        if self._decodes:
            matrix_units = spec.num_heads // spec.num_kv_heads >= GROUP_FOR_MATRIX_UNITS
            named = {} if recorded is None else _pages(recorded, room.device, "buffer")
            return self._module.BatchDecodeWithPagedKVCacheWrapper(room, "NHD", use_tensor_cores=matrix_units, **named)
        named = {} if recorded is None else _pages(recorded, room.device, "buf") | _queries(recorded, room.device)
        backend = "auto" if self._split is None else "fa2"
        return self._module.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend, **named)

    def plan(self, inner: Any, step: FlashInferStep) -> None:
        """Have a wrapper plan a step."""
        spec = self._spec
        sizes = (spec.num_heads, spec.num_kv_heads, spec.head_size, step.view.block_size)
        common = {
            "sm_scale": spec.scale,
            "window_left": -1 if spec.window is None else spec.window - 1,
            "logits_soft_cap": spec.cap or 0.0,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
        }
        pages = (step.page_starts, step.pages, step.last_lengths)
        if self._decodes:
            inner.plan(*pages, *sizes, **common)
            return
        split = None if self._split is None else self._split // step.view.block_size
        inner.plan(step.query_starts, *pages, *sizes, causal=True, fixed_split_size=split, **common)


class Latents:
    """A kind of latent layer. spec, dtype: its sizes, and the dtype of queries and cache."""

    def __init__(self, module: Any, spec: LatentSpec, dtype: torch.dtype) -> None:
        self._module = module
        self._spec = spec
        self._dtype = dtype

    def make(self, room: Tensor, recorded: Recorded | None = None) -> Any:
        """Make a wrapper. recorded: the recording that reads its plan, for which other kernels than fa2 plan only once."""
        make = self._module.mla.BatchMLAPagedAttentionWrapper
        if recorded is None:
            return make(room)
        count = recorded.num_seqs
        return make(
            room,
            use_cuda_graph=True,
            qo_indptr=_integers(count + 1, room.device),
            kv_indptr=_integers(count + 1, room.device),
            kv_indices=_integers(recorded.max_pages, room.device),
            kv_len_arr=_integers(count, room.device),
            backend="fa2",
        )

    def plan(self, inner: Any, step: FlashInferStep) -> None:
        """Have a wrapper plan a step."""
        spec = self._spec
        metadata = self._module.mla.MLAPlanMetadata.csr(
            qo_indptr=step.query_starts,
            kv_indptr=step.page_starts,
            kv_indices=step.pages,
            kv_len_arr=step.lengths,
        )
        inner.plan(
            metadata=metadata,
            num_heads=spec.num_heads,
            head_dim_ckv=spec.rank,
            head_dim_kpe=spec.rope_size,
            page_size=step.view.block_size,
            causal=True,
            sm_scale=spec.scale,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
            query_layout="split",
            kv_cache_layout="split",
        )


def _pages(recorded: Recorded, device: torch.device, word: str) -> dict[str, Any]:
    """Return the memory of a recording's pages, as arguments of wrappers. word: the end of the arguments' names."""
    return {
        "use_cuda_graph": True,
        f"paged_kv_indptr_{word}": _integers(recorded.num_seqs + 1, device),
        f"paged_kv_indices_{word}": _integers(recorded.max_pages, device),
        f"paged_kv_last_page_len_{word}": _integers(recorded.num_seqs, device),
    }


def _queries(recorded: Recorded, device: torch.device) -> dict[str, Tensor]:
    return {"qo_indptr_buf": _integers(recorded.num_seqs + 1, device)}


def _integers(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
