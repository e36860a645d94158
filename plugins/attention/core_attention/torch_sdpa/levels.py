"""Rotated keys and values, and 4-bit codes, as torch tensors: for the KV type `k8v4_per_token_head`.

Owns: the rotation, the sixteen levels, and the conversion to and from codes. Never does: know a block. Called by:
`cache.py`.

A vector is multiplied by a Hadamard matrix, which spreads single large numbers over all of them, so that the result is
close to a normal distribution. The numbers of a value are divided by their root mean square and rounded to the nearest of
sixteen levels, the best ones for a normal distribution (Lloyd 1982; TurboQuant, arXiv 2504.19874). The scale is the one
that keeps the product of the value with itself. A code is the rank of a level's magnitude, plus 8 for negative numbers.
Every sum is a fixed order of additions of whole tensors, so a vector's bits do not depend on the others.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

MAGNITUDES: Final = (0.12890625, 0.388671875, 0.65625, 0.94140625, 1.2578125, 1.6171875, 2.0625, 2.734375)
"""Magnitudes of the levels: exact in bfloat16."""
NEGATIVE: Final = 8
NO_SCALE: Final = 1e-30
"""Vectors of smaller numbers are stored as zeros."""


def turned(x: Tensor) -> Tensor:
    """Multiply x [..., W] by the Hadamard matrix of each block of W: its largest power of two. Twice is x again."""
    width = x.shape[-1]
    block = width & -width
    by_block = x.unflatten(-1, (-1, block))
    half = 1
    while half < block:
        pairs = by_block.unflatten(-1, (-1, 2, half))
        first, second = pairs.unbind(-2)
        by_block = torch.stack([first + second, first - second], -2).flatten(-3)
        half *= 2
    return by_block.flatten(-2) * block**-0.5


def encode(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of turned numbers [..., W], two in a byte, uint8 [..., W / 2], and the scales, float32 [..., 1]."""
    squares = _sum(numbers.square())
    roots = squares.div(numbers.shape[-1]).sqrt()
    none = roots < NO_SCALE
    sizes = torch.where(none, 0, numbers.abs() / roots)
    magnitudes = torch.tensor(MAGNITUDES, device=numbers.device)
    ranks = torch.bucketize(sizes, (magnitudes[:-1] + magnitudes[1:]) / 2)
    scales = torch.where(none, 0, squares / _sum(numbers.abs() * magnitudes[ranks]))
    codes = ranks.to(torch.uint8)
    codes += NEGATIVE * (numbers < 0)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales


def decode(packed: Tensor) -> Tensor:
    """Return the levels, float32 [..., W], of codes [..., W / 2]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    levels = torch.tensor((*MAGNITUDES, *(-size for size in MAGNITUDES)), device=packed.device)
    return levels[codes]


def _sum(x: Tensor) -> Tensor:
    """Return the sums over the last dimension, [..., 1]."""
    width = x.shape[-1]
    while width % 2 == 0:
        width //= 2
        x = x[..., :width] + x[..., width:]
    total = x[..., :1]
    for index in range(1, width):
        total = total + x[..., index : index + 1]
    return total
