"""The layouts of Quark.

Owns: names and shapes of its tensors, and their unpacking. Never does: round. Called by: the method.

Integers in groups are transposed, [K, N]; those of 4 bits fill words along the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.floats import DeclaredFloat4, DeclaredFloat8
from core_quantization.declared.floats6 import DeclaredFloat6
from core_quantization.declared.inputs import InputScheme, none_declared, rounds_inputs
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import PLAIN
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Integers, Run, planned
from core_quantization.declared.stored import FLOATS, Wanted
from core_quantization.quark.declaration import FLOAT4, FLOATS6, INTEGERS, Declaration, Numbers
from core_quantization.quark.inputs import input_scheme

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

WORD: Final = 8
"""Number of 4-bit integers in a word."""
INTERLEAVED: Final = (0, 4, 1, 5, 2, 6, 3, 7)
UNREAD: Final = ("input_scale", "input_zero_point")
"""Tensors that are not used here: those of inputs are used by `RoundsInputs` alone."""


class Choice:
    """The layouts of one checkpoint.

    declaration: the checkpoint's declaration.
    run: settings of all packed layers.
    Raises Refusal for inputs that cannot be rounded as declared, UserError where none are.
    """

    def __init__(self, declaration: Declaration, run: Run) -> None:
        self._declaration = declaration
        self._run = run.of_matrices
        self._declared = run.declared
        given = (declaration.linear, *(numbers for _, numbers in declaration.layers))
        schemes = [self._scheme(numbers) for numbers in given if numbers is not None]
        if run.declared and not any(schemes):
            raise none_declared("quark")

    def __call__(self, part: StoredPart) -> Layout | Unsupported | None:
        """Choose a layout, see `Choose` of the method."""
        weight = part.tensors.get("weight")
        has_scale = "weight_scale" in part.tensors
        if weight is None or (weight.dtype in PLAIN and not has_scale):
            return None
        if weight.dtype in PLAIN:
            return Unsupported(
                f"tensor '{weight.source}' is plain and has a scale: the model was exported before it was packed; export it "
                "again with weight_format 'real_quantized'"
            )
        numbers = self._declaration.numbers_of(part.own_name)
        if numbers is None:
            return Unsupported(f"module '{part.own_name}' is packed, but its declaration gives its weights no scheme")
        return rounds_inputs(self._layout(numbers), self._scheme(numbers), part)

    def _scheme(self, numbers: Numbers) -> InputScheme | None:
        """Return the rounding of inputs, where it is asked for. Raises Refusal."""
        return input_scheme("input_tensors", numbers.inputs) if self._declared else None

    def _layout(self, numbers: Numbers) -> Layout:
        """Return the layout of matrices of a scheme."""
        if numbers.dtype in INTEGERS:
            return IntegerLayout(numbers, self._run, self._declaration.reordered)
        if numbers.dtype == FLOAT4:
            return DeclaredFloat4("weight", numbers.shares.group_size, self._run)
        if numbers.dtype in FLOATS6:
            return DeclaredFloat6(numbers.dtype, numbers.shares.group_size, self._run)
        return DeclaredFloat8(numbers.shares, self._run)


class IntegerLayout:
    """Integers of 4 or 8 bits.

    numbers: the scheme. run: settings of all packed layers. reordered: whether those of a word are interleaved.
    """

    def __init__(self, numbers: Numbers, run: Run, reordered: bool) -> None:
        self._numbers = numbers
        self._run = run
        self._bits = INTEGERS[numbers.dtype]
        self._order = INTERLEAVED if reordered else None
        self._turned = numbers.shares.by == "group"
        self._sign = 0 if numbers.dtype.startswith("u") else 1 << (self._bits - 1)

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        stored = (inputs, rows) if self._turned else (rows, inputs)
        own = [self._wanted("weight", stored), Wanted("weight_scale", FLOATS, self._scales(part))]
        if self._numbers.zeros:
            own.append(self._wanted("weight_zero_point", *self._scales(part)))
        return planned(part, own, self._how, self._run, ("weight_zero_point", *UNREAD))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import to_nibbles
        from core_quantization.declared.canonical import integer_weight

        rows, inputs = part.shape
        width = rows if self._turned else inputs
        values = self._unsigned(tensors["weight"], width)
        scale = tensors["weight_scale"]
        zeros = None
        if self._numbers.zeros:
            zeros = self._unsigned(tensors["weight_zero_point"], rows)
        if self._turned:
            values = values.T.contiguous()
            scale = scale.T
            zeros = None if zeros is None else zeros.T
        if self._bits == 4:
            values = to_nibbles(values)
        return integer_weight(self._how(part), values, scale, zeros)

    def _how(self, part: StoredPart) -> Integers:
        inputs = part.shape[1]
        return Integers(
            bits=self._bits,
            group_size=self._numbers.shares.width(inputs),
            zeros=self._numbers.zeros,
            channel=not self._turned,
            ordered=False,
            scale=part.tensors["weight_scale"].dtype,
        )

    def _scales(self, part: StoredPart) -> list[tuple[int, ...]]:
        """Return the shapes that the scales may have. Scales of groups are transposed, too."""
        shapes = self._numbers.shares.shapes(part.shape)
        return [shape[::-1] for shape in shapes] if self._turned else shapes

    def _wanted(self, suffix: str, *shapes: tuple[int, ...]) -> Wanted:
        """Return a tensor of integers of these shapes, as it is stored."""
        if self._bits == 8:
            return Wanted(suffix, ("U8",) if self._sign == 0 else ("I8",), shapes)
        packed = [(*shape[:-1], -(-shape[-1] // WORD)) if shape else shape for shape in shapes]
        return Wanted(suffix, ("I32",), packed)

    def _unsigned(self, stored: Tensor, width: int) -> Tensor:
        """Return integers [..., width], or one of them, as unsigned ones, offset by half of their range where they are
        signed.
        """
        import torch

        from core_quantization.declared.bits import unpack_words

        if self._bits == 8:
            return stored.view(torch.uint8) ^ self._sign
        if stored.numel() == 1:  # one zero point for the whole matrix
            return (stored & 15).to(torch.uint8) ^ self._sign
        words = stored if stored.dim() == 2 else stored.reshape(1, -1)
        values = unpack_words(words, self._bits, self._order)[:, :width] ^ self._sign
        return values if stored.dim() == 2 else values[0]
