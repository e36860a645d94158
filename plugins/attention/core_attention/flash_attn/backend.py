"""Paged attention through FlashAttention 2 or 3.

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
"""A window size without limit."""


@dataclass(frozen=True, slots=True)
class FlashLayer:
    """An attention layer bound to its cache.

    paged: the cache views.
    attend: the library call, which takes (layer, q, step).
    """

    paged: PagedLayer
    attend: Callable[[PagedLayer, Tensor, FlashStep], Tensor]


@dataclass(frozen=True, slots=True)
class FlashStep:
    """The metadata of one step.

    view: the batch.
    places: the slots it writes.
    cu_seqlens_k: int32 [B + 1], cumulative key counts.
    """

    view: BatchView
    places: Places
    cu_seqlens_k: Tensor


class FlashAttention(PagedHeads):
    """Implementation of the attention contract. numerics: the installed versions."""

    name = "flash_attn"
    capture = "any"

    def __init__(self, numerics: str) -> None:
        self.numerics = numerics

    def bind(  # type: ignore[override]
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> FlashLayer:
        """View the layer's bytes as K and V, and select the library version that serves it."""
        paged = super().bind(spec, block_size, dtype, raw, params)
        version, reasons = fitting(AttentionQuery(spec, "cuda", dtype, block_size, profile=_profile(raw.device)))
        if version is None:
            raise ValueError(f"no installed FlashAttention serves the layer: {reasons[0]}")
        return FlashLayer(paged, _call_of(version))

    def build(self, view: BatchView) -> FlashStep:
        """Compute the cumulative key counts, once for all layers."""
        lengths = view.seq_lens
        ends = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
        ends[1:] = lengths.cumsum(0)
        return FlashStep(view, Places.of(view), ends)

    def write(self, handle: FlashLayer, k: Tensor, v: Tensor, metadata: FlashStep) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self.put(handle.paged, k, v, metadata.places)

    def forward(self, handle: FlashLayer, q: Tensor, metadata: FlashStep, out: Tensor) -> None:
        """Compute out[T, Hq, D] in the dtype of the cache."""
        queries = q.to(handle.paged.keys.dtype)
        out.copy_(handle.attend(handle.paged, queries, metadata))


def _call_of(version: Version) -> Callable[[PagedLayer, Tensor, FlashStep], Tensor]:
    """Return the call of a version."""
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
    """Return the number of keys that a query sees before itself, and after."""
    if spec.window is None:
        return ALL_KEYS, ALL_KEYS
    return spec.window - 1, 0


def _profile(device: torch.device) -> str:
    """Return the device's profile, such as `sm_90`; empty for a device that is not a GPU."""
    if device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
