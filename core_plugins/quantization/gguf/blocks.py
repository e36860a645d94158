"""The block types of GGUF as integers, scales and minima: one row a type.

Owns: the sizes of a block, and which unpacker belongs to it. Never does: know where a bit lies (`unpack` does).
Called by: `core_plugins.quantization.gguf.method`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from core_plugins.quantization.gguf import unpack
from core_plugins.quantization.gguf.unpack import Bytes, Unpacked


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One type.

    bits: of a canonical integer, 4 or 8.
    block_size: weights a block.
    block_bytes: bytes a block in the file.
    group_size: weights that share a scale.
    scale_dtype: numpy type of scales and minima.
    unpack: from blocks to integers, scales and minima.
    zero: what is subtracted from an integer before it is scaled.
    has_minimum: whether each group also has a minimum, which is added.
    """

    bits: int
    block_size: int
    block_bytes: int
    group_size: int
    scale_dtype: type[np.floating[Any]]
    unpack: Callable[[Bytes], Unpacked]
    zero: int = 0
    has_minimum: bool = False

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of a canonical weight [n, k]."""
        value_bytes = k * self.bits // 8
        numbers_per_group = 2 if self.has_minimum else 1
        group_bytes = numbers_per_group * np.dtype(self.scale_dtype).itemsize
        num_groups = k // self.group_size
        return n * (value_bytes + num_groups * group_bytes)


FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(
        bits=4,
        block_size=32,
        block_bytes=18,
        group_size=32,
        scale_dtype=np.float16,
        unpack=unpack.q4_0,
        zero=8,
    ),
    "Q4_1": BlockFormat(
        bits=4,
        block_size=32,
        block_bytes=20,
        group_size=32,
        scale_dtype=np.float16,
        unpack=unpack.q4_1,
        has_minimum=True,
    ),
    "Q5_0": BlockFormat(
        bits=8,
        block_size=32,
        block_bytes=22,
        group_size=32,
        scale_dtype=np.float16,
        unpack=unpack.q5_0,
        zero=16,
    ),
    "Q5_1": BlockFormat(
        bits=8,
        block_size=32,
        block_bytes=24,
        group_size=32,
        scale_dtype=np.float16,
        unpack=unpack.q5_1,
        has_minimum=True,
    ),
    "Q8_0": BlockFormat(
        bits=8,
        block_size=32,
        block_bytes=34,
        group_size=32,
        scale_dtype=np.float16,
        unpack=unpack.q8_0,
        zero=128,
    ),
    "Q2_K": BlockFormat(
        bits=4,
        block_size=256,
        block_bytes=84,
        group_size=16,
        scale_dtype=np.float32,
        unpack=unpack.q2_k,
        has_minimum=True,
    ),
    "Q3_K": BlockFormat(
        bits=4,
        block_size=256,
        block_bytes=110,
        group_size=16,
        scale_dtype=np.float32,
        unpack=unpack.q3_k,
        zero=4,
    ),
    "Q4_K": BlockFormat(
        bits=4,
        block_size=256,
        block_bytes=144,
        group_size=32,
        scale_dtype=np.float32,
        unpack=unpack.q4_k,
        has_minimum=True,
    ),
    "Q5_K": BlockFormat(
        bits=8,
        block_size=256,
        block_bytes=176,
        group_size=32,
        scale_dtype=np.float32,
        unpack=unpack.q5_k,
        has_minimum=True,
    ),
    "Q6_K": BlockFormat(
        bits=8,
        block_size=256,
        block_bytes=210,
        group_size=16,
        scale_dtype=np.float32,
        unpack=unpack.q6_k,
        zero=32,
    ),
}
