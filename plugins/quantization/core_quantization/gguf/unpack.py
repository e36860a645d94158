"""The bit layouts of GGUF's block types.

Owns: one unpacker a type. Never does: turn a weight into a float. Called by: `core_quantization.gguf.blocks`.

Every unpacker takes blocks, uint8 [B, bytes a block], and returns the tensors of the canonical weight by name, each with
the block as its first axis. The represented weights are those of the ggml project's own dequantization, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from core_quantization.gguf.bits import Bytes, halves, nibbles, pairs, single_bits

Unpacked = dict[str, npt.NDArray[Any]]
SubScales = npt.NDArray[np.int8]

HIGH_PAIR_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)
SCALE_PAIR_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
SIX_BIT_ZERO = 32


def q4_0(blocks: Bytes) -> Unpacked:
    """Unpack Q4_0 blocks.

    Bytes 0-1: scale, float16. 2-17: byte j holds weight j low and weight j + 16 high.
    """
    return {"values": nibbles(blocks[:, 2:], 16), "scale": halves(blocks, 0, 2)}


def q4_1(blocks: Bytes) -> Unpacked:
    """Unpack Q4_1 blocks.

    Bytes 0-3: scale and minimum, float16. 4-19: as in Q4_0.
    """
    values = nibbles(blocks[:, 4:], 16)
    return {"values": values, "scale": halves(blocks, 0, 2), "minimum": halves(blocks, 2, 4)}


def q5_0(blocks: Bytes) -> Unpacked:
    """Unpack Q5_0 blocks.

    Bytes 0-1: scale, float16. 2-5: bit j is bit 4 of weight j. 6-21: the low four bits as in Q4_0.
    """
    return {
        "low": nibbles(blocks[:, 6:], 16),
        "high": blocks[:, 2:6],
        "scale": halves(blocks, 0, 2),
    }


def q5_1(blocks: Bytes) -> Unpacked:
    """Unpack Q5_1 blocks.

    Bytes 0-3: scale and minimum, float16. 4-7: bit j is bit 4 of weight j. 8-23: the low four bits as in Q4_0.
    """
    return {
        "low": nibbles(blocks[:, 8:], 16),
        "high": blocks[:, 4:8],
        "scale": halves(blocks, 0, 2),
        "minimum_scale": halves(blocks, 2, 4),
    }


def q8_0(blocks: Bytes) -> Unpacked:
    """Unpack Q8_0 blocks.

    Bytes 0-1: scale, float16. 2-33: signed weights.
    """
    # Flipping the sign bit of a two's complement byte adds 128: the format's zero then stands for 0.
    return {"values": blocks[:, 2:] ^ 128, "scale": halves(blocks, 0, 2)}


def q2_k(blocks: Bytes) -> Unpacked:
    """Unpack Q2_K blocks.

    Bytes 0-15: a scale low and a minimum high for each 16 weights. 16-79: weights of two bits, see `pairs`. 80-83: the
    factors of all scales and of all minima, float16. Minima are subtracted.
    """
    return {
        "low": pairs(blocks[:, 16:80]),
        "sub_scale": blocks[:, :16],
        "scale": halves(blocks, 80, 82),
        "minimum_scale": -halves(blocks, 82, 84),
    }


def q3_k(blocks: Bytes) -> Unpacked:
    """Unpack Q3_K blocks.

    Bytes 0-31: the highest bit of the weights, see `single_bits`. 32-95: their two low bits, see `pairs`. 96-107: a
    scale of six bits plus 32 for each 16 weights: the low four bits of scales 0-7 in the low nibbles of the first eight
    bytes, those of scales 8-15 in the high nibbles; the two high bits of scale 4 s + j in bits 2 s and 2 s + 1 of byte
    104 + j. 108-109: the factor of all scales, float16.
    """
    stored = blocks[:, 96:104]
    low_scale = np.concatenate((stored & 15, stored >> 4), axis=1)
    high_pairs = blocks[:, 104:108].reshape(-1, 1, 4) >> SCALE_PAIR_SHIFTS
    high_scale = (high_pairs & 3).reshape(-1, 16)
    sub_scale = _six_bits(low_scale, high_scale) - SIX_BIT_ZERO
    low = pairs(blocks[:, 32:96])
    high = single_bits(blocks[:, :32])
    return {"low": low, "high": high, "sub_scale": sub_scale, "scale": halves(blocks, 108, 110)}


def q4_k(blocks: Bytes) -> Unpacked:
    """Unpack Q4_K blocks.

    Bytes 0-15: see `_k_scales`. 16-143: of each 32 bytes, byte j holds weight j low and weight j + 32 high.
    """
    return {"low": nibbles(blocks[:, 16:], 32), **_k_scales(blocks)}


def q5_k(blocks: Bytes) -> Unpacked:
    """Unpack Q5_K blocks.

    Bytes 0-15: see `_k_scales`. 16-47: bit 4 of the weights, see `single_bits`. 48-175: the low four as in Q4_K.
    """
    low = nibbles(blocks[:, 48:], 32)
    high = single_bits(blocks[:, 16:48])
    return {"low": low, "high": high, **_k_scales(blocks)}


def q6_k(blocks: Bytes) -> Unpacked:
    """Unpack Q6_K blocks.

    Bytes 0-127: the low four bits; of each 64 bytes, byte j holds weight j low and weight j + 64 high. 128-191: the two
    high bits, see `pairs`. 192-207: a signed scale for each 16 weights. 208-209: the factor of all scales, float16.
    """
    low = nibbles(blocks[:, :128], 64)
    high = pairs(blocks[:, 128:192])
    sub_scale = blocks[:, 192:208].view(np.int8)
    return {"low": low, "high": high, "sub_scale": sub_scale, "scale": halves(blocks, 208, 210)}


def iq4_nl(blocks: Bytes) -> Unpacked:
    """Unpack IQ4_NL blocks.

    Bytes 0-1: scale, float16. 2-17: indices of weights in a table, as in Q4_0.
    """
    return {"low": nibbles(blocks[:, 2:], 16), "scale": halves(blocks, 0, 2)}


def iq4_xs(blocks: Bytes) -> Unpacked:
    """Unpack IQ4_XS blocks.

    Bytes 0-1: the factor of all scales, float16. 8-135: indices of weights in a table; each 16 bytes as in Q4_0. A
    scale of six bits plus 32 for each 32 weights: bytes 2-3 hold the two high bits of scale s in bits 2 s and 2 s + 1;
    4-7 the low four, of even scales in the low nibbles, of odd ones in the high nibbles.
    """
    high_bits = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high_scale = ((high_bits >> HIGH_PAIR_SHIFTS) & 3).astype(np.uint8)
    stored = blocks[:, 4:8]
    low_scale = np.stack((stored & 15, stored >> 4), axis=-1).reshape(-1, 8)
    sub_scale = _six_bits(low_scale, high_scale) - SIX_BIT_ZERO
    return {
        "low": nibbles(blocks[:, 8:], 16),
        "sub_scale": sub_scale,
        "scale": halves(blocks, 0, 2),
    }


def _k_scales(blocks: Bytes) -> Unpacked:
    """Return scales and minima of Q4_K and Q5_K.

    Bytes 0-3: the factors of both, float16; 4-15: 8 of each, of six bits. The low six bits of bytes 4-7 are scales 0-3,
    those of bytes 8-11 minima 0-3. The others have their low four bits in bytes 12-15 (scales in the low nibbles,
    minima in the high ones), and their two high bits on top of bytes 4-11. Minima are subtracted.
    """
    first_scales = blocks[:, 4:8]
    first_minima = blocks[:, 8:12]
    rest = blocks[:, 12:16]
    last_scales = _six_bits(rest & 15, first_scales >> 6)
    last_minima = _six_bits(rest >> 4, first_minima >> 6)
    return {
        "sub_scale": np.concatenate(((first_scales & 63).view(np.int8), last_scales), axis=1),
        "sub_minimum": np.concatenate(((first_minima & 63).view(np.int8), last_minima), axis=1),
        "scale": halves(blocks, 0, 2),
        "minimum_scale": -halves(blocks, 2, 4),
    }


def _six_bits(low: Bytes, high: Bytes) -> SubScales:
    """Join six-bit numbers from their low four and their high two bits."""
    joined: SubScales = (low | (high << 4)).view(np.int8)
    return joined
