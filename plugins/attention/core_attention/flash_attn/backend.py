"""Paged attention by FlashAttention 2 or 3.

Owns: the calls of the library. Never does: choose a layer's version (`versions` does).
Called by: the decoder, through the attention contract.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.api.specs import AttentionQuery, AttentionSpec
from core_attention.flash_attn.versions import Version, fitting
from core_attention.paged_heads import PagedHeads, PagedLayer, Places
from core_runtime.contracts import AttentionParams, BatchView

ALL_KEYS = -1
"""As a window: no limit."""


@dataclass(frozen=True, slots=True)
class FlashLayer:
    """One layer.

    paged: its cache.
    attend: the library's call, which takes (layer, q, step).
    """

    paged: PagedLayer
    attend: Callable[[PagedLayer, Tensor, FlashStep], Tensor]


@dataclass(frozen=True, slots=True)
class FlashStep:
    """One step.

    view: the batch.
    places: where it writes.
    cu_seqlens_k: int32 [B + 1], where each sequence's keys begin, counted through.
    """

    view: BatchView
    places: Places
    cu_seqlens_k: Tensor


class FlashAttention(PagedHeads):
    """The contract's implementation. numerics: the versions that are installed."""

    name = "flash_attn"
    capture = "any"

    def __init__(self, numerics: str) -> None:
        self.numerics = numerics

    def bind(  # type: ignore[override]
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> FlashLayer:
        """View the layer's bytes as K and V, and find the version that serves it."""
        paged = super().bind(spec, block_size, dtype, raw, params)
        version, reasons = fitting(AttentionQuery(spec, "cuda", dtype, block_size, profile=_profile(raw.device)))
        if version is None:
            raise ValueError(f"no installed FlashAttention serves the layer: {reasons[0]}")
        return FlashLayer(paged, _call_of(version))

    def build(self, view: BatchView) -> FlashStep:
        """Lengths of keys, counted through once for all layers."""
        lengths = view.seq_lens
        ends = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
        ends[1:] = lengths.cumsum(0)
        return FlashStep(view, Places.of(view), ends)

    def write(self, handle: FlashLayer, k: Tensor, v: Tensor, metadata: FlashStep) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self.put(handle.paged, k, v, metadata.places)

    def forward(self, handle: FlashLayer, q: Tensor, metadata: FlashStep, out: Tensor) -> None:
        """out[T, Hq, D], in the dtype of the cache inside."""
        queries = q.to(handle.paged.keys.dtype)
        out.copy_(handle.attend(handle.paged, queries, metadata))


def _call_of(version: Version) -> Callable[[PagedLayer, Tensor, FlashStep], Tensor]:
    """The call of a version."""
    module: Any = importlib.import_module(version.module)
    if version.module == "flash_attn":

        def second(layer: PagedLayer, q: Tensor, step: FlashStep) -> Tensor:
            found: Tensor = module.flash_attn_varlen_func(
                q,
                layer.keys,
                layer.values,
                step.view.cu_seqlens_q,
                step.cu_seqlens_k,
                step.view.max_query_len,
                step.view.max_seq_len,
                softmax_scale=layer.spec.scale,
                causal=True,
                window_size=_window(layer.spec),
                softcap=layer.spec.cap or 0.0,
                alibi_slopes=layer.slopes,
                block_table=step.view.block_table,
            )
            return found

        return second

    def third(layer: PagedLayer, q: Tensor, step: FlashStep) -> Tensor:
        found: Tensor = module.flash_attn_with_kvcache(
            q,
            layer.keys,
            layer.values,
            cache_seqlens=step.view.seq_lens,
            page_table=step.view.block_table,
            cu_seqlens_q=step.view.cu_seqlens_q,
            max_seqlen_q=step.view.max_query_len,
            softmax_scale=layer.spec.scale,
            causal=True,
            window_size=_window(layer.spec),
            softcap=layer.spec.cap or 0.0,
        )
        return found

    return third


def _window(spec: AttentionSpec) -> tuple[int, int]:
    """Keys that a query sees in front of itself, and behind."""
    if spec.window is None:
        return ALL_KEYS, ALL_KEYS
    return spec.window - 1, 0


def _profile(device: torch.device) -> str:
    """`sm_90` for a device of that architecture; empty for one that is no GPU."""
    if device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
