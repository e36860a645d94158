"""The block types of GGUF as integers, scales and minima: one row a type.

Owns: the bit layouts. Never does: turn a weight into a float. Called by: `core_plugins.quantization.gguf.method`.

Every unpacker takes blocks, uint8 [B, bytes a block], and returns (values, scale, minimum): values uint8
[B, block_size * bits / 8] in the canonical order (the low nibble is the even k), scale and minimum [B, groups a block].
The represented weights are those of the ggml project's own dequantization, bit for bit: products of scales are exact in
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[Any]  # uint8
Unpacked = tuple[Bytes, npt.NDArray[Any], npt.NDArray[Any] | None]

LOW_NIBBLES = np.uint64(0x0F0F_0F0F_0F0F_0F0F)
FOUR = np.uint64(4)
PAIR_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
BIT_SHIFTS = np.arange(8, dtype=np.uint8).reshape(8, 1)


def _halves(blocks: Bytes, start: int, stop: int) -> npt.NDArray[np.float16]:
    """float16 numbers stored in the bytes start..stop."""
    return np.ascontiguousarray(blocks[:, start:stop]).view("<f2")


def _paired(nibbles: npt.NDArray[np.uint64], shape: tuple[int, ...]) -> Bytes:
    """Bytes below 16, eight a word, to packed pairs: the even one low, the odd one high."""
    joined = nibbles | (nibbles >> FOUR)
    return joined.view(np.uint16).astype(np.uint8).reshape(shape)


def _split_nibbles(quants: Bytes, width: int) -> Bytes:
    """From ggml's order (`width` bytes: all low nibbles come first, then all high ones) to canonical pairs."""
    words = np.ascontiguousarray(quants).view(np.uint64)
    num_blocks, num_bytes = quants.shape
    runs, half = num_bytes // width, width // 2
    out = np.empty((num_blocks, runs, 2, half), dtype=np.uint8)
    out[:, :, 0] = _paired(words & LOW_NIBBLES, (num_blocks, runs, half))
    out[:, :, 1] = _paired((words >> FOUR) & LOW_NIBBLES, (num_blocks, runs, half))
    return out.reshape(num_blocks, num_bytes)


def _wide_nibbles(quants: Bytes, width: int) -> Bytes:
    """As `_split_nibbles`, but one value a byte: [B, runs, 2, width]."""
    runs = quants.reshape(quants.shape[0], -1, 1, width)
    return np.concatenate((runs & 15, runs >> 4), axis=2)


def _pairs(values: Bytes) -> Bytes:
    """Values below 16, one a byte, to canonical pairs."""
    return _paired(np.ascontiguousarray(values).view(np.uint64), (values.shape[0], values.shape[1] // 2))


def _six_bit_scales(blocks: Bytes, at: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The 8 scales and 8 minima of six bits that Q4_K and Q5_K keep in 12 bytes."""
    a, b, c = blocks[:, at : at + 4], blocks[:, at + 4 : at + 8], blocks[:, at + 8 : at + 12]
    scale = np.concatenate((a & 63, (c & 15) | ((a >> 6) << 4)), axis=1)
    minimum = np.concatenate((b & 63, (c >> 4) | ((b >> 6) << 4)), axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _k_scales(blocks: Bytes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    scale, minimum = _six_bit_scales(blocks, 4)
    factors = _halves(blocks, 0, 4).astype(np.float32)
    return factors[:, :1] * scale, -(factors[:, 1:] * minimum)


def _q4_0(blocks: Bytes) -> Unpacked:
    return _split_nibbles(blocks[:, 2:], 16), _halves(blocks, 0, 2), None


def _q4_1(blocks: Bytes) -> Unpacked:
    factors = _halves(blocks, 0, 4)
    return _split_nibbles(blocks[:, 4:], 16), factors[:, :1], factors[:, 1:]


def _five_bits(high: Bytes, quants: Bytes) -> Bytes:
    values = _wide_nibbles(quants, 16).reshape(len(quants), 32)
    values |= np.unpackbits(high, axis=1, bitorder="little") << 4
    return values


def _q5_0(blocks: Bytes) -> Unpacked:
    return _five_bits(blocks[:, 2:6], blocks[:, 6:]), _halves(blocks, 0, 2), None


def _q5_1(blocks: Bytes) -> Unpacked:
    factors = _halves(blocks, 0, 4)
    return _five_bits(blocks[:, 4:8], blocks[:, 8:]), factors[:, :1], factors[:, 1:]


def _q8_0(blocks: Bytes) -> Unpacked:
    return blocks[:, 2:] ^ 128, _halves(blocks, 0, 2), None


def _q2_k(blocks: Bytes) -> Unpacked:
    pairs = blocks[:, 16:80].reshape(-1, 2, 1, 32) >> PAIR_SHIFTS
    factors = _halves(blocks, 80, 84).astype(np.float32)
    scale = factors[:, :1] * (blocks[:, :16] & 15).astype(np.float32)
    minimum = -(factors[:, 1:] * (blocks[:, :16] >> 4).astype(np.float32))
    return _pairs((pairs & 3).reshape(-1, 256)), scale, minimum


def _q3_k(blocks: Bytes) -> Unpacked:
    high = (blocks[:, :32].reshape(-1, 1, 32) >> BIT_SHIFTS) & 1
    low = (blocks[:, 32:96].reshape(-1, 2, 1, 32) >> PAIR_SHIFTS) & 3
    values = low.reshape(-1, 256) | (high.reshape(-1, 256) << 2)
    low_scale = np.concatenate((blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4), axis=1)
    high_scale = ((blocks[:, 104:108].reshape(-1, 1, 4) >> PAIR_SHIFTS) & 3).reshape(-1, 16)
    scale = (low_scale | (high_scale << 4)).astype(np.float32) - 32
    return _pairs(values), _halves(blocks, 108, 110).astype(np.float32) * scale, None


def _q4_k(blocks: Bytes) -> Unpacked:
    return _split_nibbles(blocks[:, 16:], 32), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> Unpacked:
    high = (blocks[:, 16:48].reshape(-1, 1, 32) >> BIT_SHIFTS) & 1
    values = _wide_nibbles(blocks[:, 48:], 32).reshape(-1, 256) | (high.reshape(-1, 256) << 4)
    return values, *_k_scales(blocks)


def _q6_k(blocks: Bytes) -> Unpacked:
    low = _wide_nibbles(blocks[:, :128], 64).reshape(-1, 256)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> PAIR_SHIFTS) & 3
    scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return low | (high.reshape(-1, 256) << 4), _halves(blocks, 208, 210).astype(np.float32) * scale, None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One type: `bits` of the canonical integers, weights and bytes a block, weights a scale, and what is subtracted."""

    bits: int
    block_size: int
    block_bytes: int
    group_size: int
    scale_dtype: type[np.floating[Any]]
    zero: int
    has_minimum: bool
    unpack: Callable[[Bytes], Unpacked]

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of a canonical weight [n, k]."""
        group_bytes = np.dtype(self.scale_dtype).itemsize * (2 if self.has_minimum else 1)
        return n * (k * self.bits // 8 + k // self.group_size * group_bytes)


HALF, SINGLE = np.float16, np.float32
FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(4, 32, 18, 32, HALF, 8, False, _q4_0),
    "Q4_1": BlockFormat(4, 32, 20, 32, HALF, 0, True, _q4_1),
    "Q5_0": BlockFormat(8, 32, 22, 32, HALF, 16, False, _q5_0),
    "Q5_1": BlockFormat(8, 32, 24, 32, HALF, 0, True, _q5_1),
    "Q8_0": BlockFormat(8, 32, 34, 32, HALF, 128, False, _q8_0),
    "Q2_K": BlockFormat(4, 256, 84, 16, SINGLE, 0, True, _q2_k),
    "Q3_K": BlockFormat(4, 256, 110, 16, SINGLE, 4, False, _q3_k),
    "Q4_K": BlockFormat(4, 256, 144, 32, SINGLE, 0, True, _q4_k),
    "Q5_K": BlockFormat(8, 256, 176, 32, SINGLE, 0, True, _q5_k),
    "Q6_K": BlockFormat(8, 256, 210, 16, SINGLE, 32, False, _q6_k),
}
