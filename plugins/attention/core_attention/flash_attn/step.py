"""The metadata of a step for FlashAttention. Owns: `FlashStep`. Called by: the backend, the calls."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from core_runtime.contracts import BatchView


@dataclass(frozen=True, slots=True)
class FlashStep:
    """The metadata of one step.

    view: the batch.
    cu_seqlens_k: int32 [B + 1], cumulative key counts.
    """

    view: BatchView
    cu_seqlens_k: Tensor
