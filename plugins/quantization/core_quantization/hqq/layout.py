"""The layout of HQQ: a matrix cut into groups, whose integers are packed by pieces of all groups.

Never does: read a declaration. Called by: the method.

The matrix [N, K] in row-major order is viewed as [R, group] (axis 1, a group a row) or
[group, R] (axis 0, a group a column).
W_q: these integers: the rows are cut into as many pieces as a word has integers; the first piece lies in the highest bits.
    uint8 for 8, 4, 2 and 1 bits, int32 with ten integers for 3 bits; or their bytes under the name of a float type.
scale, zero: floats [R, 1] or [1, R]; W = (integer - zero) * scale.

Groups of inputs stay integers. The zero point is not a whole number: its distance from the middle of the range becomes
a minimum of the group, rounded to the scales' type, so that memory is as large as the file. That rounds less than the tool
does, which subtracts the zero point in the scales' type from every integer. All other groups become plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import GROUP_MULTIPLE, Integers, Run
from core_quantization.declared.stored import FLOATS, Wanted, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

PACKED: Final = "W_q"
PIECES: Final = {8: 1, 4: 2, 2: 4, 1: 8, 3: 10}
"""Integers of a word, by their bits."""
WORD_BYTES: Final = {8: 1, 4: 1, 2: 1, 1: 1, 3: 4}
ITEM_BYTES: Final = {"U8": 1, "I32": 4, "F16": 2, "BF16": 2, "F32": 4}
_OF_FLOATS: Final = (8, 4, 2, 1, 3)
BITS_BY_TYPE: Final = {"U8": (8, 4, 2, 1), "I32": (3,), "F16": _OF_FLOATS, "BF16": _OF_FLOATS, "F32": _OF_FLOATS}
READ: Final = (PACKED, "scale", "zero", "nbits", "axis", "group_size", "shape")
NEUTRAL: Final = {
    "bias": "it is the layer's own",
    "channel_wise": "the shape of the scales says it",
    "compute_dtype": "the engine's dtype is that of the run",
    "encoded_state_dict": "it is about how these numbers are stored",
    "offload_meta": "it is about where another engine keeps scales",
    "optimize": "it is about how the weights were found",
    "packing": "type and size of W_q say it",
    "quant_scale": "packed scales are tensors of another name",
    "quant_zero": "packed zero points are tensors of another name",
    "round_zero": "zero points are read as they are",
    "stores_quant_config": "it is about how these numbers are stored",
    "unpack_view_dtype": "type and size of W_q say it",
    "view_as_float": "type and size of W_q say it",
}
"""Tensors without effect → the reason."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of a matrix into groups, and their packing.

    axis: 1 for groups of neighbours in a row, 0 for groups across rows.
    group_size: integers that share a scale.
    count: number of groups.
    bits: bits of an integer.
    """

    axis: int
    group_size: int
    count: int
    bits: int

    @property
    def rows(self) -> int:
        """Return the rows of the integers before they are packed."""
        return self.count if self.axis == 1 else self.group_size

    @property
    def columns(self) -> int:
        """Return the columns of the integers, packed or not."""
        return self.group_size if self.axis == 1 else self.count

    @property
    def packed_rows(self) -> int:
        """Return the rows of words."""
        return -(-self.rows // PIECES[self.bits])

    @property
    def nbytes(self) -> int:
        """Return the bytes of all words."""
        return self.packed_rows * self.columns * WORD_BYTES[self.bits]


@dataclass(frozen=True, slots=True)
class HQQLayout:
    """The layout of HQQ, of the kind `Layout`. run: settings of all packed layers."""

    run: Run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        for suffix, info in part.tensors.items():
            if suffix not in READ and suffix not in NEUTRAL:
                return Unsupported(
                    f"tensor '{info.source}' is not known, so the matrix could be another one; scales that are packed "
                    "themselves are not served, quantize the model again without them"
                )
        cut = _cut(part)
        if isinstance(cut, Unsupported):
            return cut
        scales = (cut.count, 1) if cut.axis == 1 else (1, cut.count)
        wanted = [Wanted("scale", FLOATS, [scales]), Wanted("zero", FLOATS, [scales])]
        wrong = problem(part, wanted)
        if wrong is not None:
            return Unsupported(wrong)
        reads = (*READ, *(suffix for suffix in NEUTRAL if suffix != "bias"))
        if _in_rows(cut, part.shape[1]):
            return _how(part, cut).plan(part, self.run, reads)
        return self.run.plan_plain(part, reads)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_quantization.declared.bits import to_nibbles
        from core_quantization.declared.canonical import integer_weight
        from core_runtime.weights.formats import Dense

        cut = _cut(part)
        assert isinstance(cut, Cut), "only parts that are understood are planned"
        _check_told(part, cut, tensors)
        values = _unpack(tensors[PACKED], cut)
        scale = tensors["scale"]
        if not _in_rows(cut, part.shape[1]):
            matrix = (values.float() - tensors["zero"].float()) * scale.float()
            return Dense(matrix.view(part.shape).to(getattr(torch, self.run.dtype)))
        rows, inputs = part.shape
        how = _how(part, cut)
        integers = values.view(rows, inputs)
        if how.unpacked_bits == 4:
            integers = to_nibbles(integers)
        minimum = (how.zero - tensors["zero"].float()) * scale.float()
        return integer_weight(how, integers, scale.view(rows, -1), minimum=minimum.view(rows, -1))


def _cut(part: StoredPart) -> Cut | Unsupported:
    """Return the cut of a module, from types and shapes of its tensors."""
    scale = part.tensors.get("scale")
    if scale is None:
        return Unsupported(
            f"module '{part.own_name}' has no tensor 'scale'; the checkpoint is incomplete, download it again"
        )
    packed = part.tensors[PACKED]
    rows, inputs = part.shape
    axis = 1 if scale.shape[-1:] == (1,) else 0
    count = scale.nbytes // ITEM_BYTES.get(scale.dtype, 1)
    if count < 1 or rows * inputs % count:
        return Unsupported(f"tensor '{scale.source}' has {count} scales, which do not divide {rows} x {inputs} numbers")
    for bits in BITS_BY_TYPE.get(packed.dtype, ()):
        cut = Cut(axis, rows * inputs // count, count, bits)
        width = cut.columns * WORD_BYTES[bits] // ITEM_BYTES[packed.dtype]
        if packed.nbytes == cut.nbytes and packed.shape == (cut.packed_rows, width):
            return cut
    return Unsupported(
        f"tensor '{packed.source}' of type {packed.dtype} and shape {list(packed.shape)} holds no {rows} x {inputs} integers "
        f"of 8, 4, 3, 2 or 1 bits in {count} groups"
    )


def _in_rows(cut: Cut, inputs: int) -> bool:
    """Whether groups are whole parts of rows, as integers in groups need."""
    return cut.axis == 1 and inputs % cut.group_size == 0 and cut.group_size % GROUP_MULTIPLE == 0


def _how(part: StoredPart, cut: Cut) -> Integers:
    return Integers(
        bits=cut.bits,
        group_size=cut.group_size,
        zeros=False,
        channel=False,
        ordered=False,
        scale=part.tensors["scale"].dtype,
        minimum=True,
    )


def _check_told(part: StoredPart, cut: Cut, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError when the numbers stored next to the integers contradict them."""
    expected = {
        "nbits": [cut.bits],
        "axis": [cut.axis],
        "group_size": [cut.group_size],
        "shape": list(part.shape),
    }
    for suffix, wanted in expected.items():
        told = tensors.get(suffix)
        if told is not None and told.flatten().tolist() != wanted:
            raise ValueError(
                f"has a tensor '{suffix}' of {told.flatten().tolist()}, but its other tensors say {wanted}"
            )


def _unpack(packed: Tensor, cut: Cut) -> Tensor:
    """Return the integers, uint8 [rows, columns]."""
    import torch

    words = packed.contiguous().view(torch.int32 if cut.bits == 3 else torch.uint8)
    last = PIECES[cut.bits] - 1
    values = torch.empty((cut.packed_rows * PIECES[cut.bits], cut.columns), dtype=torch.uint8)
    for number, piece in enumerate(values.split(cut.packed_rows)):
        shifted = words >> (cut.bits * (last - number))
        piece.copy_(shifted & ((1 << cut.bits) - 1))
    return values[: cut.rows]
