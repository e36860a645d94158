"""Random weights in GGUF's block types and in bfloat16, drawn as bytes in seconds.

Owns: which bytes are random and which are scales. Never does: quantize values, or write files. Called by: the file makers.

Codes are uniform. Scales are chosen so that weights have mean 0 and the standard deviation that is asked for, so that a
model of random weights has finite activations. Random bytes alone would give float16 scales that are infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Fill = Callable[[Bytes, float], None]
"""Overwrites the scales of random blocks [count, bytes], for weights of the given deviation."""


def uniform_deviation(count: int) -> float:
    """Return the standard deviation of `count` equally likely neighbouring integers."""
    return math.sqrt((count**2 - 1) / 12)


LOW_SCALES = 24.0
"""Root mean square of integer scales drawn from 16 to 31."""
HIGH_SCALES = 80.0
"""Root mean square of integer scales drawn from 64 to 95."""
FP4_DEVIATION = 2.93
"""Standard deviation of the sixteen 4-bit floats."""


def _half(blocks: Bytes, start: int, value: float) -> None:
    blocks[:, start : start + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _k_scales(blocks: Bytes, deviation: float, codes: int) -> None:
    """Q4_K, Q5_K: scale and minimum of a group are the same number from 16 to 31, so that groups have mean 0."""
    scale = deviation / (uniform_deviation(codes) * LOW_SCALES)
    _half(blocks, 0, scale)
    _half(blocks, 2, scale * (codes - 1) / 2)
    blocks[:, 4:8] = blocks[:, 4:8] & 0x0F | 0x50  # the upper two bits belong to the last four scales
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = (blocks[:, 12:16] & 0x0F) * 0x11


def _q6_k(blocks: Bytes, deviation: float) -> None:
    blocks[:, 192:208] = blocks[:, 192:208] & 0x1F | 0x40
    _half(blocks, 208, deviation / (uniform_deviation(64) * HIGH_SCALES))


def _mxfp4(blocks: Bytes, deviation: float) -> None:
    """Powers of two above and below the deviation, equally often."""
    exponent = 127 + math.floor(math.log2(deviation / FP4_DEVIATION))
    blocks[:, 0] = exponent + (blocks[:, 0] & 1)


FILLS: dict[GGMLQuantizationType, Fill] = {
    GGMLQuantizationType.Q4_K: lambda blocks, deviation: _k_scales(blocks, deviation, 16),
    GGMLQuantizationType.Q5_K: lambda blocks, deviation: _k_scales(blocks, deviation, 32),
    GGMLQuantizationType.Q6_K: _q6_k,
    GGMLQuantizationType.Q5_0: lambda blocks, deviation: _half(blocks, 0, deviation / uniform_deviation(32)),
    GGMLQuantizationType.Q8_0: lambda blocks, deviation: _half(blocks, 0, deviation / uniform_deviation(256)),
    GGMLQuantizationType.MXFP4: _mxfp4,
}


def random_blocks(
    kind: GGMLQuantizationType, shape: Sequence[int], deviation: float, draw: np.random.Generator
) -> Bytes:
    """Return a matrix of a block type as bytes [..., bytes of a row]."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = shape[-1] // block_size * block_bytes
    whole = np.frombuffer(bytearray(draw.bytes(math.prod(shape[:-1]) * row_bytes)), np.uint8)
    FILLS[kind](whole.reshape(-1, block_bytes), deviation)
    return whole.reshape(*shape[:-1], row_bytes)


def random_bfloat16(shape: Sequence[int], deviation: float, draw: np.random.Generator) -> NDArray[np.uint16]:
    """Return bfloat16 bits of both signs: sizes from a power of two up to its double."""
    exponent = 127 + round(math.log2(deviation / 1.53))  # 1.53: root mean square of numbers from 1 to 2
    whole = np.frombuffer(bytearray(draw.bytes(2 * math.prod(shape))), np.uint16)
    whole &= np.uint16(0x807F)
    whole |= np.uint16(exponent << 7)
    return whole.reshape(*shape)
