"""Small integers packed into larger ones.

Owns: the order of bits in int32 words, and the order in canonical weights. Never does: know a method.
Called by: layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

CHUNK: Final = 1 << 20
"""Number of integers that are unpacked at a time, so that temporaries stay small compared with a weight."""


def unpack_words(words: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Convert int32 [R, W] to the integers in them, uint8 [R, W * 32 // bits]; the lowest bits come first.

    bits: 2, 4 or 8. order: the place of each integer of a word among the values; None: in order.
    """
    count = 32 // bits
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    fields = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    values = fields.to(torch.uint8)
    if order is not None:
        values = values[..., list(order)]
    return values.reshape(words.shape[0], words.shape[1] * count)


def unpack_stream(words: Tensor, bits: int, count: int) -> Tensor:
    """Read int32 [R, W] as one stream of bits a row; return `count` integers of any size up to 8 bits, uint8 [R,
    count].
    """
    rows, width = words.shape
    octets = words.contiguous().view(torch.uint8).view(rows, width * 4)
    shifts = torch.arange(8, dtype=torch.uint8)
    stream = (octets.unsqueeze(-1) >> shifts) & 1
    stream = stream.view(rows, -1)
    fields = stream[:, : count * bits].view(rows, count, bits)
    weights = (2 ** torch.arange(bits)).to(torch.uint8)
    return (fields * weights).sum(-1, dtype=torch.uint8)


def held_from_words(words: Tensor, bits: int, count: int) -> Tensor:
    """Unpack like `unpack_stream`, to the integers of canonical weights: pairs [R, count // 2] up to 4 bits, else [R,
    count].

    Returns a copy: the words may be in a mapped file.
    """
    if bits in (4, 8):  # in memory, words are the same bytes as canonical weights
        octets = words.contiguous().view(torch.uint8)
        return octets[:, : count * bits // 8].clone(memory_format=torch.contiguous_format)
    rows = words.shape[0]
    width = count // 2 if bits < 4 else count
    held = torch.empty((rows, width), dtype=torch.uint8)
    step = max(1, CHUNK // max(count, 1))
    for start in range(0, rows, step):
        some = slice(start, start + step)
        values = unpack_stream(words[some], bits, count)
        held[some] = to_nibbles(values) if bits < 4 else values
    return held


def to_nibbles(values: Tensor) -> Tensor:
    """Convert uint8 [N, K] of integers below 16 to canonical pairs [N, K // 2]: the even one low."""
    return values[:, ::2] | (values[:, 1::2] << 4)
