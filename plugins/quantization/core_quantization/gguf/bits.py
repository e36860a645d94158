"""Conversion of GGUF's bit orders to planes in which the lowest bits of a byte are the first weights.

Owns: the orders of bits that several block types share. Never does: know a block type. Called by: the unpackers.

Blocks are uint8 [B, bytes a block], little-endian. Bits are counted from the lowest, from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[Any]  # uint8
Halves = npt.NDArray[np.float16]

LOW_NIBBLES = np.uint64(0x0F0F_0F0F_0F0F_0F0F)
FOUR = np.uint64(4)
LOW_PAIRS = np.uint32(0x0303_0303)
PAIR_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint32).reshape(4, 1)
LOW_BITS = np.uint64(0x0101_0101_0101_0101)
BIT_SHIFTS = np.arange(8, dtype=np.uint64).reshape(8, 1)
GATHER_BITS = np.uint64(0x0102_0408_1020_4080)
"""Multiplier that gathers bits: eight bytes of 0 or 1 times this number have the bit of byte i in bit 56 + i."""


def halves(blocks: Bytes, start: int, stop: int) -> Halves:
    """Return the float16 numbers stored in the bytes start..stop."""
    part = np.ascontiguousarray(blocks[:, start:stop])
    numbers: Halves = part.view("<f2")
    return numbers


def nibbles(quants: Bytes, width: int) -> Bytes:
    """Return a plane of four bits. In each `width` bytes, ggml stores all low nibbles first, then all high ones."""
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


def pairs(quants: Bytes) -> Bytes:
    """Return a plane of two bits, from runs of 32 bytes, 128 weights each: bits 2 s and 2 s + 1 of byte j are weight 32
    s + j.
    """
    words = np.ascontiguousarray(quants).view(np.uint32)  # four bytes at a time, whose pairs become one byte
    apart = (words.reshape(-1, 1, 8) >> PAIR_SHIFTS) & LOW_PAIRS
    two_pairs = apart | (apart >> np.uint32(6))
    joined = two_pairs | (two_pairs >> np.uint32(12))
    plane: Bytes = joined.astype(np.uint8)
    return plane.reshape(quants.shape)


def in_pairs(numbers: Bytes) -> Bytes:
    """Return a plane of two bits, from numbers below 4 in the order of their weights: uint8 [B, n / 4] of [B, n]."""
    first, second, third, fourth = (numbers[:, place::4] for place in range(4))
    packed: Bytes = first | (second << 2) | (third << 4) | (fourth << 6)
    return packed


def single_bits(mask: Bytes) -> Bytes:
    """Return a plane of one bit, from 32 bytes: bit s of byte j belongs to weight 32 s + j."""
    words = np.ascontiguousarray(mask).view(np.uint64)  # eight bytes at a time, whose bits become one byte
    apart = (words.reshape(-1, 1, 4) >> BIT_SHIFTS) & LOW_BITS
    joined = (apart * GATHER_BITS) >> np.uint64(56)
    return joined.astype(np.uint8).reshape(mask.shape)


def _paired(low_nibbles: npt.NDArray[np.uint64], shape: tuple[int, ...]) -> Bytes:
    """Convert bytes below 16, eight a word, to packed pairs: the even one low, the odd one high."""
    # In a little-endian word, shifting by four puts the low nibble of each byte into the high nibble of the byte before:
    # every even byte is then a pair, every odd one is dropped by the narrowing.
    joined = low_nibbles | (low_nibbles >> FOUR)
    packed = joined.view(np.uint16).astype(np.uint8)
    return packed.reshape(shape)
