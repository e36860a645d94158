"""Checks that a backend makes before it passes addresses to kernels, which cannot check them.

Owns: the error messages. Never does: know a kernel. Called by: the backends with kernels of our own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_runtime.contracts import BatchView


def check_cache(raw: Tensor, block_bytes: int, *, strided: bool = False) -> None:
    """Raise ValueError unless `raw` is the memory of a layer's blocks. strided: whether blocks may lie apart."""
    contiguous = raw.stride(1) == 1 if strided else raw.is_contiguous()
    if raw.shape[1] != block_bytes or not contiguous:
        raise ValueError(f"the cache is {tuple(raw.shape)}, expected [blocks, {block_bytes}] contiguous bytes")


def check_tables(view: BatchView) -> None:
    """Raise ValueError unless a step's tables have the dtypes that kernels read."""
    for tensor, dtype in (
        (view.cu_seqlens_q, torch.int32),
        (view.seq_lens, torch.int32),
        (view.block_table, torch.int32),
        (view.slot_mapping, torch.int64),
    ):
        if tensor.dtype is not dtype or tensor.stride(-1) != 1:
            raise ValueError(f"a table of the batch is {tensor.dtype}, expected contiguous {dtype}")
    seen = view.sees_to
    if seen is not None and (seen.dtype is not torch.int32 or len(seen) < view.num_tokens or seen.stride(0) != 1):
        raise ValueError(f"sees_to is {seen.dtype} {tuple(seen.shape)}, expected contiguous int32 ({view.num_tokens},)")
