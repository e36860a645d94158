"""What a KV cache of 8-bit keys and 4-bit values gives back, from the definition of the type, in float64.

Owns: the definition. Never does: pack a code. Called by: `core_kit.oracles.reference`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

MAGNITUDES: Final = (0.12890625, 0.388671875, 0.65625, 0.94140625, 1.2578125, 1.6171875, 2.0625, 2.734375)
LEAST: Final = 1e-30


def turned(x: Tensor) -> Tensor:
    """Return x [..., W] times the Hadamard matrix of each block of W: its largest power of two. Twice is x again."""
    width = x.shape[-1]
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < width & -width:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    blocks = x.double().unflatten(-1, (-1, len(matrix)))
    return (blocks @ matrix / len(matrix) ** 0.5).flatten(-2)


def as_turned_key(x: Tensor) -> Tensor:
    """Return a key x [..., W] as read back: turned, in 127 steps of its largest number, and turned back."""
    numbers = turned(x)
    step = numbers.abs().amax(-1, keepdim=True).clamp(min=LEAST) / 127
    return turned((numbers / step).round() * step).float()


def as_coded_value(x: Tensor) -> Tensor:
    """Return a value x [..., W] as read back: turned, at the levels nearest to numbers / root mean square, scaled so that
    its product with x is that of x with itself, and turned back.
    """
    numbers = turned(x)
    squares = numbers.square().sum(-1, keepdim=True)
    root = (squares / x.shape[-1]).sqrt().clamp(min=LEAST)
    magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float64)
    rank = torch.bucketize((numbers / root).abs(), (magnitudes[:-1] + magnitudes[1:]) / 2)
    levels = magnitudes[rank] * numbers.sign()
    scale = squares / (levels * numbers).sum(-1, keepdim=True).clamp(min=LEAST)
    return turned(levels * scale).float()
