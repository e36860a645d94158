"""How each version of FlashAttention is called.

Owns: the libraries' signatures. Never does: choose a version. Called by: the backend.

The signatures are those of flash-attn 2.8.3, of flash_attn_interface 3.0.0b1 in `hopper/`, and of flash-attn-4 4.0.0b36.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from core.api.specs import AttentionSpec
from core_attention.flash_attn.step import FlashStep
from core_attention.flash_attn.versions import Version
from core_attention.paged_heads import PagedLayer

Call = Callable[[PagedLayer, Tensor, FlashStep], Tensor]
"""Function (layer, q, step) that returns out, [T, Hq, D]."""
ALL_KEYS: Final = -1
"""A window size without limit, for versions 2 and 3."""
BY_LENGTH: Final = 0
"""The number of splits that has the library divide long sequences among programs as it sees fit."""


def call_of(version: Version, invariant: bool) -> Call:
    """Return the call of a version. invariant: whether keys are never divided among programs."""
    module: Any = importlib.import_module(version.module)
    splits = 1 if invariant else BY_LENGTH
    makers = {"flash_attn": _second, "flash_attn_interface": _third, "flash_attn.cute": _fourth}
    return makers[version.module](module, splits)


def _second(module: Any, splits: int) -> Call:
    def call(layer: PagedLayer, q: Tensor, step: FlashStep) -> Tensor:
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

    return call


def _third(module: Any, splits: int) -> Call:
    def call(layer: PagedLayer, q: Tensor, step: FlashStep) -> Tensor:
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
            num_splits=splits,
        )
        return found

    return call


def _fourth(module: Any, splits: int) -> Call:
    def call(layer: PagedLayer, q: Tensor, step: FlashStep) -> Tensor:
        left, _ = _window(layer.spec)
        sinks = None if layer.sinks is None else layer.sinks.to(torch.bfloat16)
        found, _ = module.flash_attn_varlen_func(
            q,
            layer.keys,
            layer.values,
            cu_seqlens_q=step.view.cu_seqlens_q,
            max_seqlen_q=step.view.max_query_len,
            max_seqlen_k=step.view.max_seq_len,
            seqused_k=step.view.seq_lens,
            page_table=step.view.block_table,
            softmax_scale=layer.spec.scale,
            causal=True,
            window_size=(None, None) if left == ALL_KEYS else (left, 0),
            learnable_sink=sinks,
            softcap=layer.spec.cap or 0.0,
            num_splits=splits,
        )
        answer: Tensor = found
        return answer

    return call


def _window(spec: AttentionSpec) -> tuple[int, int]:
    """Return the number of keys that a query sees before itself, and after."""
    if spec.window is None:
        return ALL_KEYS, ALL_KEYS
    return spec.window - 1, 0
