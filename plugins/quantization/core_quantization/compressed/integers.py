"""Integers of compressed-tensors: packed into words, or one a byte.

Owns: names and shapes of their tensors, and their unpacking. Never does: round. Called by: the choice of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.compressed.declaration import Numbers
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Integers, Run, planned
from core_quantization.declared.stored import FLOATS, Wanted, one_number

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

WORD_BITS: Final = 32
INPUTS: Final = ("input_scale", "input_zero_point", "input_global_scale")
"""Tensors that are not read here: those of inputs are read by `RoundsInputs` alone."""


def words(count: int, bits: int) -> int:
    """Return the number of words that `count` integers fill without gaps."""
    return -(-count * bits // WORD_BITS)


class IntegerLayout:
    """The common part of both integer layouts.

    numbers: the scheme. run: settings of all packed layers.
    """

    def __init__(self, numbers: Numbers, run: Run) -> None:
        self._numbers = numbers
        self._run = run

    def _how(self, part: StoredPart) -> Integers:
        """Return the canonical format of the part."""
        numbers = self._numbers
        inputs = part.shape[1]
        scale = part.tensors.get("weight_scale")
        return Integers(
            bits=numbers.bits,
            group_size=numbers.shares.width(inputs),
            zeros=not numbers.symmetric,
            channel=numbers.shares.by != "group",
            ordered="weight_g_idx" in part.tensors,
            scale="F32" if scale is None else scale.dtype,
        )

    def _shared(self, part: StoredPart) -> list[Wanted]:
        """Return the tensors that both layouts have in common."""
        wanted = [Wanted("weight_scale", FLOATS, self._numbers.shares.shapes(part.shape))]
        if "weight_g_idx" in part.tensors:
            wanted.append(Wanted("weight_g_idx", ("I32", "I64"), [(part.shape[1],)]))
        return wanted

    def _planned(self, part: StoredPart, own: list[Wanted], unread: tuple[str, ...]) -> PartPlan | Unsupported:
        """Return the plan. own: all tensors of the layout. unread: names of tensors without further information."""
        return planned(part, own, self._how, self._run, (*unread, *INPUTS))


class PackedIntegers(IntegerLayout):
    """The layout `weight_packed` int32 [N, words of K integers], each integer offset by half of its range."""

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        bits = self._numbers.bits
        own = [Wanted("weight_packed", ("I32",), [(rows, words(inputs, bits))]), *self._shared(part)]
        if self._numbers.symmetric:
            return self._planned(part, own, ("weight_shape", "weight_zero_point"))
        if self._numbers.shares.by == "matrix":
            own.append(Wanted("weight_zero_point", ("I8",), one_number()))
        else:
            columns = -(-inputs // self._numbers.shares.width(inputs))
            own.append(Wanted("weight_zero_point", ("I32",), [(words(rows, bits), columns)]))
        return self._planned(part, own, ("weight_shape",))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import held_from_words, unpack_stream
        from core_quantization.declared.canonical import integer_weight

        rows, inputs = part.shape
        bits = self._numbers.bits
        told = tensors.get("weight_shape")
        if told is not None and told.flatten().tolist() != [rows, inputs]:
            raise ValueError(f"has weight_shape {told.flatten().tolist()}; expected {[rows, inputs]}")
        values = held_from_words(tensors["weight_packed"], bits, inputs)
        zeros = None
        if not self._numbers.symmetric:
            stored = tensors["weight_zero_point"]
            if self._numbers.shares.by == "matrix":
                zeros = _unsigned(stored, bits)
            else:
                turned = stored.T.contiguous()
                zeros = unpack_stream(turned, bits, rows).T
        return integer_weight(self._how(part), values, tensors["weight_scale"], zeros, tensors.get("weight_g_idx"))


class PlainIntegers(IntegerLayout):
    """The layout `weight` int8 [N, K], regardless of the size of its integers."""

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        own = [Wanted("weight", ("I8",), [part.shape]), *self._shared(part)]
        if self._numbers.symmetric:
            return self._planned(part, own, ("weight_zero_point",))
        own.append(Wanted("weight_zero_point", ("I8",), self._numbers.shares.shapes(part.shape)))
        return self._planned(part, own, ())

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import to_nibbles
        from core_quantization.declared.canonical import integer_weight

        bits = self._numbers.bits
        values = _unsigned(tensors["weight"], bits)
        if bits <= 4:
            values = to_nibbles(values)
        zeros = None
        if not self._numbers.symmetric:
            zeros = _unsigned(tensors["weight_zero_point"], bits)
        return integer_weight(self._how(part), values, tensors["weight_scale"], zeros, tensors.get("weight_g_idx"))


def _unsigned(signed: Tensor, bits: int) -> Tensor:
    """Convert int8 to uint8, offset by half of the range. Raises ValueError for an integer that needs more bits."""
    import torch

    half = 1 << (bits - 1)
    least = int(signed.min())
    most = int(signed.max())
    if least < -half or most >= half:
        raise ValueError(f"holds integers from {least} to {most}; {bits} bits hold {-half} to {half - 1}")
    return signed.view(torch.uint8) + half  # modulo 256
