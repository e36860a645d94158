"""What conversion to GGUF did to rows and values, undone.

Owns: one function for each such thing; those that move rows work on packed rows as well. Never does: know an architecture.
Called by: the GGUF loader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def by_group(tensor: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Rows of all queries, all keys, all values to groups: the queries of a head of keys, its keys, its values."""
    import torch

    size = tensor.shape[0] // (num_heads + 2 * num_kv_heads)
    parts = tensor.split([num_heads * size, num_kv_heads * size, num_kv_heads * size])
    groups = [part.reshape(num_kv_heads, -1, *tensor.shape[1:]) for part in parts]
    return torch.cat(groups, dim=1).reshape(tensor.shape)


def unfolded(keys: Tensor, values: Tensor) -> Tensor:
    """The matrix of latent attention from its halves: keys [H, rank, D], values [H, Dv, rank]; to [H * (D + Dv), rank]."""
    import torch

    return torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)
