"""The bit layouts of GGUF's block types.

Owns: one unpacker a type. Never does: turn a weight into a float. Called by: `core_plugins.quantization.gguf.blocks`.

Every unpacker takes blocks, uint8 [B, bytes a block], and returns (values, scale, minimum):
values: uint8 [B, block_size * bits / 8] in the canonical order (the low nibble is the even k).
scale, minimum: [B, groups a block]; minimum is None where the type has none.
The represented weights are those of the ggml project's own dequantization, bit for bit: products of scales are exact in
float32. Bits are counted from the lowest, from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[Any]  # uint8
Scales = npt.NDArray[np.float32]
Unpacked = tuple[Bytes, npt.NDArray[Any], npt.NDArray[Any] | None]

K_BLOCK = 256
"""Weights in a block of the K types."""
LOW_NIBBLES = np.uint64(0x0F0F_0F0F_0F0F_0F0F)
FOUR = np.uint64(4)
PAIR_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
BIT_SHIFTS = np.arange(8, dtype=np.uint8).reshape(8, 1)


def q4_0(blocks: Bytes) -> Unpacked:
    """Bytes 0-1: scale, float16. 2-17: byte j holds weight j low and weight j + 16 high."""
    scale = _halves(blocks, 0, 2)
    values = _split_nibbles(blocks[:, 2:], 16)
    return values, scale, None


def q4_1(blocks: Bytes) -> Unpacked:
    """Bytes 0-3: scale and minimum, float16. 4-19: as in Q4_0."""
    factors = _halves(blocks, 0, 4)
    values = _split_nibbles(blocks[:, 4:], 16)
    return values, factors[:, :1], factors[:, 1:]


def q5_0(blocks: Bytes) -> Unpacked:
    """Bytes 0-1: scale, float16. 2-5: bit j is bit 4 of weight j. 6-21: the low four bits as in Q4_0."""
    scale = _halves(blocks, 0, 2)
    values = _five_bits(blocks[:, 2:6], blocks[:, 6:])
    return values, scale, None


def q5_1(blocks: Bytes) -> Unpacked:
    """Bytes 0-3: scale and minimum, float16. 4-7: bit j is bit 4 of weight j. 8-23: the low four bits as in Q4_0."""
    factors = _halves(blocks, 0, 4)
    values = _five_bits(blocks[:, 4:8], blocks[:, 8:])
    return values, factors[:, :1], factors[:, 1:]


def q8_0(blocks: Bytes) -> Unpacked:
    """Bytes 0-1: scale, float16. 2-33: signed weights."""
    scale = _halves(blocks, 0, 2)
    # Flipping the sign bit of a two's complement byte adds 128: the format's zero then stands for 0.
    values = blocks[:, 2:] ^ 128
    return values, scale, None


def q2_k(blocks: Bytes) -> Unpacked:
    """Bytes 0-15: a scale low and a minimum high for each 16 weights. 16-79: weights of two bits, see `_two_bits`.

    80-83: the factors of all scales and of all minima, float16.
    """
    groups = blocks[:, :16]
    group_scale = (groups & 15).astype(np.float32)
    group_minimum = (groups >> 4).astype(np.float32)
    scale_factor, minimum_factor = _factors(blocks, 80)
    scale = scale_factor * group_scale
    minimum = -(minimum_factor * group_minimum)
    values = _two_bits(blocks[:, 16:80])
    return _pairs(values), scale, minimum


def q3_k(blocks: Bytes) -> Unpacked:
    """Bytes 0-31: the highest bit of the weights, see `_single_bits`. 32-95: their two low bits, see `_two_bits`.

    96-107: a scale of six bits plus 32 for each 16 weights: the low four bits of scales 0-7 in the low nibbles of the first
    eight bytes, those of scales 8-15 in the high nibbles; the two high bits of scale 4 s + j in bits 2 s and 2 s + 1 of
    byte 104 + j. 108-109: the factor of all scales, float16.
    """
    high = _single_bits(blocks[:, :32])
    values = _two_bits(blocks[:, 32:96]) | (high << 2)
    nibbles = blocks[:, 96:104]
    low_scale = np.concatenate((nibbles & 15, nibbles >> 4), axis=1)
    pairs = blocks[:, 104:108].reshape(-1, 1, 4) >> PAIR_SHIFTS
    high_scale = (pairs & 3).reshape(-1, 16)
    stored_scale = low_scale | (high_scale << 4)
    group_scale = stored_scale.astype(np.float32) - 32
    factor = _halves(blocks, 108, 110).astype(np.float32)
    return _pairs(values), factor * group_scale, None


def q4_k(blocks: Bytes) -> Unpacked:
    """Bytes 0-15: see `_k_scales`. 16-143: of each 32 bytes, byte j holds weight j low and weight j + 32 high."""
    scale, minimum = _k_scales(blocks)
    values = _split_nibbles(blocks[:, 16:], 32)
    return values, scale, minimum


def q5_k(blocks: Bytes) -> Unpacked:
    """Bytes 0-15: see `_k_scales`. 16-47: bit 4 of the weights, see `_single_bits`. 48-175: the low four as in Q4_K."""
    scale, minimum = _k_scales(blocks)
    high = _single_bits(blocks[:, 16:48])
    low = _wide_nibbles(blocks[:, 48:], 32)
    return low | (high << 4), scale, minimum


def q6_k(blocks: Bytes) -> Unpacked:
    """Bytes 0-127: the low four bits; of each 64 bytes, byte j holds weight j low and weight j + 64 high.

    128-191: the two high bits, see `_two_bits`. 192-207: a signed scale for each 16 weights. 208-209: the factor of all
    scales, float16.
    """
    low = _wide_nibbles(blocks[:, :128], 64)
    high = _two_bits(blocks[:, 128:192])
    signed_scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    group_scale = signed_scale.astype(np.float32)
    factor = _halves(blocks, 208, 210).astype(np.float32)
    return low | (high << 4), factor * group_scale, None


def _halves(blocks: Bytes, start: int, stop: int) -> npt.NDArray[np.float16]:
    """float16 numbers stored in the bytes start..stop."""
    part = np.ascontiguousarray(blocks[:, start:stop])
    return part.view("<f2")


def _two_bits(quants: Bytes) -> Bytes:
    """Two runs of 32 bytes, 128 weights each: bits 2 s and 2 s + 1 of byte j are weight 32 s + j. uint8 [B, 256]."""
    shifted = quants.reshape(-1, 2, 1, 32) >> PAIR_SHIFTS
    return (shifted & 3).reshape(-1, K_BLOCK)


def _single_bits(mask: Bytes) -> Bytes:
    """32 bytes: bit s of byte j belongs to weight 32 s + j. uint8 [B, 256] of 0 and 1."""
    shifted = mask.reshape(-1, 1, 32) >> BIT_SHIFTS
    return (shifted & 1).reshape(-1, K_BLOCK)


def _five_bits(high: Bytes, quants: Bytes) -> Bytes:
    """Weights of Q5_0 and Q5_1, one a byte, from their bit 4 and their low four bits."""
    values = _wide_nibbles(quants, 16)
    values |= np.unpackbits(high, axis=1, bitorder="little") << 4
    return values


def _wide_nibbles(quants: Bytes, width: int) -> Bytes:
    """As `_split_nibbles`, but one value a byte: uint8 [B, 2 * bytes]."""
    num_blocks, num_bytes = quants.shape
    runs = quants.reshape(num_blocks, -1, 1, width)
    values = np.concatenate((runs & 15, runs >> 4), axis=2)
    return values.reshape(num_blocks, 2 * num_bytes)


def _split_nibbles(quants: Bytes, width: int) -> Bytes:
    """From ggml's order to canonical pairs; of each `width` bytes, ggml means all low nibbles first, then all high ones."""
    words = np.ascontiguousarray(quants).view(np.uint64)  # eight bytes at a time
    num_blocks, num_bytes = quants.shape
    num_runs = num_bytes // width
    half = width // 2
    out = np.empty((num_blocks, num_runs, 2, half), dtype=np.uint8)
    low = words & LOW_NIBBLES
    high = (words >> FOUR) & LOW_NIBBLES
    out[:, :, 0] = _paired(low, (num_blocks, num_runs, half))
    out[:, :, 1] = _paired(high, (num_blocks, num_runs, half))
    return out.reshape(num_blocks, num_bytes)


def _pairs(values: Bytes) -> Bytes:
    """Values below 16, one a byte, to canonical pairs."""
    num_blocks, num_values = values.shape
    words = np.ascontiguousarray(values).view(np.uint64)
    return _paired(words, (num_blocks, num_values // 2))


def _paired(nibbles: npt.NDArray[np.uint64], shape: tuple[int, ...]) -> Bytes:
    """Bytes below 16, eight a word, to packed pairs: the even one low, the odd one high."""
    # In a little-endian word, shifting by four puts the low nibble of each byte into the high nibble of the byte before:
    # every even byte is then a pair, every odd one is dropped by the narrowing.
    joined = nibbles | (nibbles >> FOUR)
    packed = joined.view(np.uint16).astype(np.uint8)
    return packed.reshape(shape)


def _k_scales(blocks: Bytes) -> tuple[Scales, Scales]:
    """The 8 scales and 8 minima of Q4_K and Q5_K. Bytes 0-3: the factors of both, float16; 4-15: see `_six_bit_scales`."""
    scale, minimum = _six_bit_scales(blocks[:, 4:16])
    scale_factor, minimum_factor = _factors(blocks, 0)
    return scale_factor * scale, -(minimum_factor * minimum)


def _factors(blocks: Bytes, start: int) -> tuple[Scales, Scales]:
    """The factors of all scales and of all minima of a block, float16 at `start`, each [B, 1]."""
    factors = _halves(blocks, start, start + 4).astype(np.float32)
    return factors[:, :1], factors[:, 1:]


def _six_bit_scales(packed: Bytes) -> tuple[Scales, Scales]:
    """8 scales and 8 minima of six bits in 12 bytes.

    The low six bits of bytes 0-3 are scales 0-3, those of bytes 4-7 minima 0-3. The others have their low four bits in
    bytes 8-11 (scales in the low nibbles, minima in the high ones), and their two high bits on top of bytes 0-7.
    """
    first_scales = packed[:, 0:4]
    first_minima = packed[:, 4:8]
    rest = packed[:, 8:12]
    last_scales = (rest & 15) | ((first_scales >> 6) << 4)
    last_minima = (rest >> 4) | ((first_minima >> 6) << 4)
    scale = np.concatenate((first_scales & 63, last_scales), axis=1)
    minimum = np.concatenate((first_minima & 63, last_minima), axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)
