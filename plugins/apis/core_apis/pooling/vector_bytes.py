"""Vectors as bytes, in the number formats that clients request.

Owns: these formats. Never does: write an answer. Called by: the answers of pooling.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core_apis.protocol.number_formats import Endianness, NumberFormat
from core_frontend.api.pooling_outputs import Float32

SIGN: Final = 128
"""The difference between an unsigned 8-bit integer and its signed form."""

EIGHT_BITS: Final = {"fp8_e4m3": (3, 7, 0x7E), "fp8_e5m2": (2, 15, 0x7B)}
"""Bits of the mantissa, bias of the exponent and code of the largest finite number of each 8-bit format."""


def packed(numbers: Float32, form: NumberFormat = "float32", order: Endianness = "little") -> bytes:
    """Convert finite numbers to a format, rounded to nearest, ties to even; too large ones become the largest."""
    wanted: NDArray[Any]
    match form:
        case "float32":
            wanted = numbers
        case "float16":
            most = np.finfo(np.float16).max
            wanted = np.clip(numbers, -most, most).astype(np.float16)
        case "bfloat16":
            wanted = _bfloat16(numbers)
        case _:
            wanted = _eight_bits(numbers, form)
    is_little = order == "little" or (order == "native" and sys.byteorder == "little")
    return wanted.astype(wanted.dtype.newbyteorder("<" if is_little else ">")).tobytes()


def bits(numbers: Float32, *, signed: bool) -> list[Any]:
    """Pack whether each number is positive, eight bits to an integer, the first one highest.

    Vectors are packed row by row.
    """
    found = np.packbits(numbers > 0, axis=-1)
    plain: list[Any] = (found.astype(np.int16) - SIGN if signed else found).tolist()
    return plain


def _bfloat16(numbers: Float32) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    # Half a unit in the last place, or just less if the kept half is even, so that ties round to even.
    to_even = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return ((bits + to_even) >> np.uint32(16)).astype(np.uint16)


def _eight_bits(numbers: Float32, form: str) -> NDArray[np.uint8]:
    values = _positive_values(form)
    middles = (values[:-1] + values[1:]) / 2
    sizes = np.abs(numbers.astype(np.float64))
    codes = np.searchsorted(middles, sizes, side="left")
    nearest_middle = middles[np.minimum(codes, len(middles) - 1)]
    # A value exactly in the middle takes the even code.
    codes += (nearest_middle == sizes) & (codes % 2 == 1)
    signs = np.signbit(numbers).astype(np.uint8) << np.uint8(7)
    return codes.astype(np.uint8) | signs


@functools.cache
def _positive_values(form: str) -> NDArray[np.float64]:
    """Return the value of each code from 0 to that of the largest finite number, ascending."""
    bits, bias, largest = EIGHT_BITS[form]
    codes = np.arange(largest + 1)
    exponents = codes >> bits
    mantissas = (codes & ((1 << bits) - 1)) / (1 << bits)
    small = mantissas * 2.0 ** (1 - bias)
    usual = (1.0 + mantissas) * 2.0 ** (exponents - bias)
    return np.where(exponents == 0, small, usual)
