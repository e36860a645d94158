"""What a backend checks before it hands addresses to kernels, which cannot.

Owns: the sentences. Never does: know a kernel. Called by: the backends with kernels of our own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_runtime.contracts import BatchView


def check_cache(raw: Tensor, block_bytes: int) -> None:
    """Raises ValueError unless this is the memory of a layer's blocks."""
    if raw.shape[1] != block_bytes or not raw.is_contiguous():
        raise ValueError(f"the cache is {tuple(raw.shape)}, expected [blocks, {block_bytes}] contiguous bytes")


def check_tables(view: BatchView) -> None:
    """Raises ValueError unless the tables of a step are of the types that kernels read."""
    for tensor, dtype in (
        (view.cu_seqlens_q, torch.int32),
        (view.seq_lens, torch.int32),
        (view.block_table, torch.int32),
        (view.slot_mapping, torch.int64),
    ):
        if tensor.dtype is not dtype or tensor.stride(-1) != 1:
            raise ValueError(f"a table of the batch is {tensor.dtype}, expected contiguous {dtype}")
