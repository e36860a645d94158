"""Layouts of torchao's integers.

Never does: read a header. Called by: the method.

Int8Tensor: qdata int8 [N, K]; scale float32, one, one a row or a group; zero_point int8 like the scales, always 0.
IntxUnpackedToInt8Tensor: qdata int8 [N, K] of 1 to 8 bits; scale, and zero_point int8 or floats, one a row or a group.
    W = (qdata - zero_point) * scale
Int4Tensor: qdata int8 [N, K / 2], signed nibbles, the even input low; scale and zero_point floats [K / group, N].
    W = qdata * scale + zero_point
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Integers, Run, planned
from core_quantization.declared.shares import Shares
from core_quantization.declared.stored import FLOATS, Wanted
from core_quantization.torchao.described import PREFIX, Described

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

QDATA: Final = f"{PREFIX}qdata"
SCALE: Final = f"{PREFIX}scale"
ZERO: Final = f"{PREFIX}zero_point"
UNREAD: Final = (f"{PREFIX}act_quant_scale", f"{PREFIX}act_quant_zero_point")
SIGNED_NIBBLES: Final = 0x88
"""Mask that converts two signed nibbles to unsigned ones, offset by 8."""
LARGEST_BITS: Final = 8


def signed_bytes(found: Described, part: StoredPart, run: Run) -> UnpackedIntegers | Unsupported:
    """Return the layout of Int8Tensor."""
    shares = found.shares(part.shape)
    if shares is None or shares.by == "block":
        return _wrong_block(found, part)
    return UnpackedIntegers(run, LARGEST_BITS, shares, symmetric=True)


def small_integers(found: Described, part: StoredPart, run: Run) -> UnpackedIntegers | Unsupported:
    """Return the layout of IntxUnpackedToInt8Tensor."""
    shares = found.shares(part.shape)
    if shares is None or shares.by == "block":
        return _wrong_block(found, part)
    kind = str(found.attributes.get("target_dtype"))
    bits = kind.removeprefix("int")
    if not bits.isdecimal() or not 1 <= int(bits) <= LARGEST_BITS:
        return Unsupported(f"'{part.own_name}' has integers of type {kind}; expected int1 to int8")
    return UnpackedIntegers(run, int(bits), shares, symmetric=False)


def nibbles(found: Described, part: StoredPart, run: Run) -> PackedNibbles | Unsupported:
    """Return the layout of Int4Tensor."""
    shares = found.shares(part.shape)
    if shares is None or shares.by not in ("row", "group"):
        return _wrong_block(found, part)
    return PackedNibbles(run, shares.width(part.shape[1]))


def _wrong_block(found: Described, part: StoredPart) -> Unsupported:
    sides = found.attributes.get("block_size")
    return Unsupported(
        f"'{part.own_name}' has integers that share scales in blocks of {sides}; expected 1 row and a number of inputs, or the "
        "whole matrix"
    )


@dataclass(frozen=True, slots=True)
class UnpackedIntegers:
    """The layout with a byte for each integer, of the kind `Layout`.

    run: settings of all packed layers.
    bits: bits of an integer.
    shares: what shares a scale.
    symmetric: whether all zero points are 0, which is checked.
    """

    run: Run
    bits: int
    shares: Shares
    symmetric: bool

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        shapes = self.shares.shapes(part.shape)
        wanted = [Wanted(QDATA, ("I8",), [part.shape]), Wanted(SCALE, FLOATS, shapes)]
        if ZERO in part.tensors or not self.symmetric:
            wanted.append(Wanted(ZERO, ("I8",) if self.symmetric else ("I8", *FLOATS), shapes))
        return planned(part, wanted, self._how, self.run, UNREAD)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import to_nibbles
        from core_quantization.declared.canonical import integer_weight

        how = self._how(part)
        scale = tensors[SCALE]
        values = _unsigned(tensors[QDATA], self.bits)
        if how.unpacked_bits == 4:
            values = to_nibbles(values)
        zero = tensors.get(ZERO)
        if how.zeros:
            assert zero is not None, "a part without zero points is not planned so"
            return integer_weight(how, values, scale, zeros=_unsigned(zero, self.bits))
        if how.minimum:
            assert zero is not None, "a part without zero points is not planned so"
            return integer_weight(how, values, scale, minimum=-zero.float() * scale.float())
        if zero is not None and bool(zero.any()):
            raise ValueError("has zero points other than 0, which integers of 8 bits do not have")
        return integer_weight(how, values, scale)

    def _how(self, part: StoredPart) -> Integers:
        zero = part.tensors.get(ZERO)
        whole = zero is None or zero.dtype == "I8"
        return Integers(
            bits=self.bits,
            group_size=self.shares.width(part.shape[1]),
            zeros=whole and not self.symmetric,
            channel=self.shares.by != "group",
            ordered=False,
            scale=part.tensors[SCALE].dtype,
            minimum=not whole,
        )


@dataclass(frozen=True, slots=True)
class PackedNibbles:
    """The layout with two integers a byte, of the kind `Layout`. run: settings of all packed layers. group_size: inputs
    that share a scale.
    """

    run: Run
    group_size: int

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        shape = (-(-inputs // self.group_size), rows)
        wanted = [
            Wanted(QDATA, ("I8", "U8"), [(rows, inputs // 2)]),
            Wanted(SCALE, FLOATS, [shape]),
            Wanted(ZERO, FLOATS, [shape]),
        ]
        return planned(part, wanted, self._how, self.run)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.canonical import integer_weight

        values = tensors[QDATA].view(torch.uint8) ^ SIGNED_NIBBLES
        return integer_weight(self._how(part), values, tensors[SCALE].T, minimum=tensors[ZERO].T)

    def _how(self, part: StoredPart) -> Integers:
        return Integers(
            bits=4,
            group_size=self.group_size,
            zeros=False,
            channel=False,
            ordered=False,
            scale=part.tensors[SCALE].dtype,
            minimum=True,
        )


def _unsigned(signed: Tensor, bits: int) -> Tensor:
    """Convert int8 to uint8, offset by half of the range. Raises ValueError for integers outside of it."""
    import torch

    middle = 1 << (bits - 1)
    lowest = int(signed.min())
    highest = int(signed.max())
    if lowest < -middle or highest >= middle:
        raise ValueError(
            f"has integers from {lowest} to {highest}, but those of {bits} bits are from {-middle} to {middle - 1}"
        )
    return (signed.to(torch.int16) + middle).to(torch.uint8)
