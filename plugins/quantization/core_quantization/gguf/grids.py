"""Block types of GGUF whose weights are points of a grid: IQ1, IQ2 and IQ3.

Owns: one unpacker a type, as in `unpack`, and the grids. Never does: turn a weight into a float.
Called by: `core_quantization.gguf.blocks`.

A few bits name a point of 4 or 8 numbers; a sign for each and a scale for 8 to 32 weights follow. There are few
different signed coordinates, so they are stored as indices of 3 or 4 bits into a table. This takes up to twice the
file's bytes, but is read at the speed of memory; looking up points would be slower. `grids.npz` has the points, int8
[points, 4 or 8] by type: the tables of ggml-common.h in the ggml project, read from the Python package `gguf` (0.19),
where `gguf.quants.IQ2_XXS.grid` and so on are the same numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from core_quantization.gguf.bits import Bytes, halves, in_pairs
from core_quantization.gguf.unpack import Unpacked
from core_runtime.weights.tables import TABLES

Integers = npt.NDArray[Any]

IQ3_S = np.array(TABLES["iq3_s"].multiples)
IQ3 = np.array(TABLES["iq3"].multiples)
IQ2 = np.array(TABLES["iq2"].multiples[:6])
IQ1 = np.array(TABLES["iq1"].multiples[:6])
"""Tables without the numbers that only pad them."""
SEVEN_BIT_SHIFTS = np.array([0, 7, 14, 21], dtype=np.uint32)
NIBBLE_SHIFTS = np.array([0, 4], dtype=np.uint8)
PAIR_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)
THREE_BIT_SHIFTS = np.array([0, 3, 6, 9], dtype=np.uint16)
HALF_PARTS = np.array([12, 8, 4, 0], dtype=np.uint16)


def iq2_xxs(blocks: Bytes) -> Unpacked:
    """Unpack IQ2_XXS blocks.

    Bytes 0-1: factor, float16. Then for each 32 weights: four numbers of points of eight, and see `_signs_and_scale`.
    """
    words = _words(blocks[:, 2:], np.uint32)
    words = words.reshape(len(blocks), 8, 2)
    numbers = _words(words[..., 0], np.uint8)
    points = _points("IQ2_XXS", numbers)
    signs, scale = _signs_and_scale(words[..., 1])
    return {**_three_bits(IQ2, points * signs), **_scales(blocks, scale)}


def iq2_xs(blocks: Bytes) -> Unpacked:
    """Unpack IQ2_XS blocks.

    Bytes 0-1: factor, float16. 2-65: for each eight weights, nine bits of a point and seven of signs. 66-73: four bits
    of a scale for each 16 weights.
    """
    codes = _words(blocks[:, 2:66], np.uint16)
    signs = _even_signs(codes >> 9)
    points = _points("IQ2_XS", codes & 511)
    scale = _nibbles(blocks[:, 66:])
    return {**_three_bits(IQ2, points * signs), **_scales(blocks, scale)}


def iq2_s(blocks: Bytes) -> Unpacked:
    """Unpack IQ2_S blocks.

    Bytes 0-1: factor, float16. 2-33: low bits of points of eight. 34-65: signs. 66-73: two high bits of each point.
    74-81: four bits of a scale for each 16 weights.
    """
    pairs = (blocks[:, 66:74, None] >> PAIR_SHIFTS) & 3
    high = pairs.reshape(len(blocks), -1).astype(np.uint16)
    points = _points("IQ2_S", blocks[:, 2:34] | (high << 8))
    signs = _signs(blocks[:, 34:66])
    scale = _nibbles(blocks[:, 74:])
    return {**_three_bits(IQ2, points * signs), **_scales(blocks, scale)}


def iq3_xxs(blocks: Bytes) -> Unpacked:
    """Unpack IQ3_XXS blocks.

    Bytes 0-1: factor, float16. 2-65: points of four. 66-97: for each 32 weights, see `_signs_and_scale`.
    """
    points = _points("IQ3_XXS", blocks[:, 2:66])
    signs, scale = _signs_and_scale(_words(blocks[:, 66:], np.uint32))
    return {**_four_bits(IQ3, points * signs), **_scales(blocks, scale)}


def iq3_s(blocks: Bytes) -> Unpacked:
    """Unpack IQ3_S blocks.

    Bytes 0-1: factor, float16. 2-65: low bits of points of four. 66-73: their high bits. 74-105: signs. 106-109: four
    bits s for each 32 weights, for the scale 2 s + 1.
    """
    high = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little")
    numbers = blocks[:, 2:66] | (high.astype(np.uint16) << 8)
    points = _points("IQ3_S", numbers)
    signs = _signs(blocks[:, 74:106])
    scale = _nibbles(blocks[:, 106:])
    return {**_four_bits(IQ3_S, points * signs), **_scales(blocks, scale)}


def iq1_s(blocks: Bytes) -> Unpacked:
    """Unpack IQ1_S blocks.

    Bytes 0-1: factor, float16. 2-33: low bits of points of eight. 34-49: for each 32 weights, the three high bits of
    four points, three bits s for the scale 2 s + 1, and the sign of an eighth that is added to each number.
    """
    words = _words(blocks[:, 34:], np.uint16)
    high = (words[..., None] >> THREE_BIT_SHIFTS) & 7
    high = high.reshape(len(blocks), -1)
    points = blocks[:, 2:34] | (high << 8)
    shift = np.where(words & 0x8000, np.int16(-1), np.int16(1))
    eighths = 8 * _points("IQ1_S", points) + np.repeat(shift, 32, axis=1)
    return {**_three_bits(IQ1, eighths), **_scales(blocks, (words >> 12) & 7)}


def iq1_m(blocks: Bytes) -> Unpacked:
    """Unpack IQ1_M blocks.

    Bytes 0-31: low bits of points of eight. 32-47: for each, three high bits, and the sign of an eighth. 48-55: four
    words, of which each has three bits of a scale for four times 16 weights, and, on top, four bits of the factor,
    float16. An eighth is the unit here.
    """
    words = _words(blocks[:, 48:], np.uint16)
    quarters = (words & np.uint16(0xF000)) >> HALF_PARTS
    bits = np.bitwise_or.reduce(quarters, axis=1, keepdims=True)
    factor = bits.astype(np.uint16).view(np.float16)
    thirds = (words[..., None] >> THREE_BIT_SHIFTS) & 7
    sub_scale = _odd(thirds.reshape(len(blocks), -1))
    nibbles = blocks[:, 32:48, None] >> NIBBLE_SHIFTS
    nibbles = nibbles.reshape(len(blocks), -1)
    high = (nibbles & 7).astype(np.uint16)
    points = blocks[:, :32] | (high << 8)
    shift = np.where(nibbles & 8, np.int8(-1), np.int8(1))
    eighths = 8 * _points("IQ1_S", points) + np.repeat(shift, 8, axis=1)
    return {**_three_bits(IQ1, eighths), "scale": factor, "sub_scale": sub_scale}


@cache
def _grid(name: str) -> npt.NDArray[np.int16]:
    """Return the points of one type as int16, wide enough for a sign and a zero. Reads `grids.npz` once."""
    with np.load(Path(__file__).with_name("grids.npz"), allow_pickle=False) as grids:
        points: npt.NDArray[np.int16] = grids[name].astype(np.int16)
        return points


def _points(name: str, numbers: Integers) -> Integers:
    """Return the coordinates of points: int16 [B, 256]. numbers: [B, points]."""
    found = np.take(_grid(name), numbers, axis=0)
    return found.reshape(len(numbers), -1)


def _four_bits(table: Integers, numbers: Integers) -> Unpacked:
    """Return the indices of numbers in a sorted table of sixteen. numbers: [B, 256]."""
    indices = np.searchsorted(table, numbers).astype(np.uint8)
    even = indices[:, ::2]
    odd = indices[:, 1::2]
    return {"low": even | (odd << 4)}


def _three_bits(table: Integers, numbers: Integers) -> Unpacked:
    """Return the indices of numbers in a sorted table of at most eight. numbers: [B, 256]."""
    indices = np.searchsorted(table, numbers).astype(np.uint8)
    high = np.packbits(indices >> 2, axis=1, bitorder="little")
    return {"low": in_pairs(indices & 3), "high": high}


def _scales(blocks: Bytes, stored: Integers) -> Unpacked:
    """Return both levels of scales. stored: numbers s of 32 or 16 weights, for the scale 2 s + 1: [B, scales]."""
    return {"scale": halves(blocks, 0, 2), "sub_scale": _odd(stored)}


def _odd(stored: Integers) -> Integers:
    return (2 * stored + 1).astype(np.int8)


def _signs_and_scale(words: Integers) -> tuple[Integers, Integers]:
    """Split uint32 [B, 8]: four times seven bits of signs, then four bits s for the scale 2 s + 1."""
    masks = (words[..., None] >> SEVEN_BIT_SHIFTS) & 127
    return _even_signs(masks.reshape(len(words), -1)), words >> 28


def _even_signs(masks: Integers) -> Integers:
    """Return signs from seven bits a mask; the eighth sign makes the number of minus signs even."""
    parity = masks ^ (masks >> 4)
    parity = parity ^ (parity >> 2)
    parity = (parity ^ (parity >> 1)) & 1
    return _signs((masks | (parity << 7)).astype(np.uint8))


def _signs(masks: Bytes) -> Integers:
    """Return -1 where a bit is set, else 1: int16 [B, 8 * masks]."""
    bits = np.unpackbits(np.ascontiguousarray(masks), axis=1, bitorder="little")
    return 1 - 2 * bits.astype(np.int16)


def _nibbles(packed: Bytes) -> Integers:
    """Return two numbers a byte, the low one first: uint8 [B, 2 * bytes]."""
    apart = (packed[..., None] >> NIBBLE_SHIFTS) & 15
    return apart.reshape(len(packed), -1)


def _words(part: Integers, dtype: type[np.unsignedinteger[Any]]) -> Integers:
    """View bytes as wider numbers, or the reverse: [B, numbers]."""
    return np.ascontiguousarray(part).view(dtype).reshape(len(part), -1)
