"""Inverses of the changes that conversion to GGUF makes to rows and values.

Owns: one function per change; those that reorder rows also work on packed rows. Never does: know an architecture.
Called by: the GGUF loader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def by_group(tensor: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Regroup rows from all queries, all keys, all values to groups: the queries of a key head, its keys, its values."""
    import torch

    size = tensor.shape[0] // (num_heads + 2 * num_kv_heads)
    parts = tensor.split([num_heads * size, num_kv_heads * size, num_kv_heads * size])
    groups = [part.reshape(num_kv_heads, -1, *tensor.shape[1:]) for part in parts]
    return torch.cat(groups, dim=1).reshape(tensor.shape)


def unfolded(keys: Tensor, values: Tensor) -> Tensor:
    """Return the matrix [H * (D + Dv), rank] of latent attention from its halves: keys [H, rank, D], values [H, Dv,
    rank].
    """
    import torch

    return torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)
