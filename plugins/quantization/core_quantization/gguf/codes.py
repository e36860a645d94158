"""Block types of GGUF with two to four bits a weight outside the K types: the ternary types, MXFP4 and NVFP4.

Owns: one unpacker a type, as in `unpack`. Never does: turn a weight into a float.
Called by: `core_quantization.gguf.blocks`.
"""

from __future__ import annotations

import numpy as np

from core_quantization.gguf.bits import Bytes, halves, in_pairs, nibbles, pairs
from core_quantization.gguf.unpack import Unpacked

POWERS_OF_THREE = np.array([1, 3, 9, 27, 81], dtype=np.uint8).reshape(5, 1)


def tq1_0(blocks: Bytes) -> Unpacked:
    """Unpack TQ1_0 blocks.

    Bytes 0-31 and 32-47: five weights of three values each; the s-th weight of byte j is weight s * bytes + j of its
    part. 48-51: four each, in the same way. 52-53: scale, float16.
    A byte is a fraction of 256 whose base-3 digits are the weights plus one.
    """
    first = _digits(blocks[:, :32], 5)
    second = _digits(blocks[:, 32:48], 5)
    last = _digits(blocks[:, 48:52], 4)
    digits = np.concatenate((first, second, last), axis=1)
    return _ternary(in_pairs(digits), blocks, 52)


def tq2_0(blocks: Bytes) -> Unpacked:
    """Unpack TQ2_0 blocks.

    Bytes 0-63: weights plus one, two bits each, see `pairs`. 64-65: scale, float16.
    """
    return _ternary(pairs(blocks[:, :64]), blocks, 64)


def mxfp4(blocks: Bytes) -> Unpacked:
    """Unpack MXFP4 blocks.

    Byte 0: scale, a power of two. 1-16: codes of four bits; byte j holds weight j low and weight j + 16 high.
    """
    return {"values": nibbles(blocks[:, 1:], 16), "scale": blocks[:, :1]}


def nvfp4(blocks: Bytes) -> Unpacked:
    """Unpack NVFP4 blocks.

    Bytes 0-3: scales of 16 weights each, e4m3 without a sign. 4-35: of each eight bytes, byte j holds weight j low and
    weight j + 8 high.
    """
    scale = blocks[:, :4] & 0x7F
    scale[scale == 0x7F] = 0  # ggml has no not-a-number here
    return {"values": nibbles(blocks[:, 4:], 8), "scale": scale}


def _digits(packed: Bytes, count: int) -> Bytes:
    """Return the digits 0, 1 and 2 of some bytes: uint8 [B, count * bytes]."""
    shifted = packed[:, None, :] * POWERS_OF_THREE[:count]  # modulo 256: only the low byte matters
    digits = (shifted.astype(np.uint16) * 3) >> 8
    return digits.astype(np.uint8).reshape(len(packed), -1)


def _ternary(low: Bytes, blocks: Bytes, start: int) -> Unpacked:
    return {"low": low, "scale": halves(blocks, start, start + 2)}
