"""The order of rows in matrices whose outputs are rotated.

Owns: the conversion from neighbouring pairs to halves. Called by: loaders of formats that store neighbouring pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def half_split(tensor: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of each head from rotary pairs (2i, 2i + 1) to pairs (i, i + D/2); also works on packed rows.

    tensor: [heads * D, ...].
    """
    pairs_per_head = tensor.shape[0] // num_heads // 2
    heads = tensor.view(num_heads, pairs_per_head, 2, -1)
    return heads.transpose(1, 2).reshape(tensor.shape)
