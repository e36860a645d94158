"""Prepared weights: canonical ones in the layout that Triton kernels read.

Owns: the layout, and the conversion from every canonical format. Never does: change a number. Called by: linear layers,
layers of experts, the catalog of products (it compiles each form).

Inputs are stored in blocks whose width divides every group of inputs with its own scale. The neighbouring blocks whose
integers fit into one byte make a run: byte j of a run holds the j-th integer of each block, the first block's in the
lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from core_runtime.weights.canonical import as_bytes
from core_runtime.weights.codebook import CODES
from core_runtime.weights.formats import FP8, CanonicalWeight, Codebook, Dense, Int8Channel, IntGroups, SuperGroups
from core_runtime.weights.super_groups import unpack_plane
from core_runtime.weights.tables import TABLES

WIDEST = 64
Scales = Literal["numbers", "blocks", "runs", "rows"]
NARROWEST = 16
ROWS_AT_ONCE = 4096
MOST_ZERO = 128
"""Largest zero point of 4-bit integers; with these, bfloat16 holds the constants of their decoding."""
SCALE_KINDS: dict[str, Literal["plain", "e8m0", "e4m3"]] = {
    "nf4": "plain",
    "fp4": "plain",
    "mxfp4": "e8m0",
    "nvfp4": "e4m3",
}


@dataclass(frozen=True, slots=True)
class Form:
    """The weight format for which a kernel is compiled.

    code: `dense`; `int` (unsigned), `int8` (signed), `e2m1`, `e4m3`, `e5m2`; or `table`: an index.
    low_bits: of an integer in `values`. high_bits: in `high`.
    scale: `plain` for a float type, `e8m0` or `e4m3`.
    sub: the second scale level below `scale`: `none`, `int8`, or `nibbles` (with the minimum in the high one).
    width: inputs per block.
    """

    code: Literal["dense", "int", "int8", "e2m1", "e4m3", "e5m2", "table"]
    low_bits: int = 8
    high_bits: int = 0
    scale: Literal["plain", "e8m0", "e4m3"] = "plain"
    sub: Literal["none", "int8", "nibbles"] = "none"
    width: int = WIDEST

    @property
    def fields(self) -> int:
        """Return the number of blocks in a run."""
        return 8 // self.low_bits

    @property
    def run(self) -> int:
        """Return the number of inputs in a run."""
        return self.width * self.fields

    @property
    def is_float8(self) -> bool:
        """Whether its codes are 8-bit floats."""
        return self.code in ("e4m3", "e5m2")

    @property
    def is_exact(self) -> bool:
        """Whether 16-bit floats hold its codes exactly, so that scales may multiply sums."""
        return self.code not in ("dense", "table") and self.low_bits >= 4 and not self.high_bits and self.sub == "none"


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight of shape (N, K) in a kernel's layout, every tensor with a row for each of N.

    values: uint8 [N, bytes of whole runs]; dense: [N, K].
    super_size, group_size: inputs that share an entry of `scale`, `minimum` and `zeros`; of the tensors `sub_...`.
    row_scale: float32 [N], or None.
    table: float32 numbers, or None.
    order: int64 [K], the input of each stored column, or None.
    counters: int32, zeros between two products, for weights whose segments have programs of their own; else None.
    """

    shape: tuple[int, int]
    form: Form
    values: Tensor
    super_size: int
    group_size: int
    zero: int = 0
    high: Tensor | None = None
    scale: Tensor | None = None
    sub_scale: Tensor | None = None
    minimum: Tensor | None = None
    sub_minimum: Tensor | None = None
    zeros: Tensor | None = None
    row_scale: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None
    counters: Tensor | None = None

    @property
    def movable(self) -> dict[str, Tensor]:
        """Return the tensors with a row for each of N, by name, which may lie elsewhere. The others are small, and
        counters are written to.
        """
        names = ("values", "high", "scale", "sub_scale", "minimum", "sub_minimum", "zeros", "row_scale")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}

    def over(self, tensors: Sequence[Tensor]) -> Packed:
        """Return this weight with other tensors in place of `movable`, in its order."""
        return replace(self, **dict(zip(self.movable, tensors, strict=True)))

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return the tensors in the kernels' argument order."""
        parts = (self.values, self.high, self.scale, self.sub_scale, self.minimum, self.sub_minimum)
        return (*parts, self.zeros, self.row_scale, self.table)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes in the kernels' argument order: strides of values, high bits, scales and sub-scales, sizes
        of groups, the zero.
        """
        strides = (_width_of(self.values), _width_of(self.high), _width_of(self.scale), _width_of(self.sub_scale))
        return (*strides, self.super_size, self.group_size, self.zero)

    @property
    def scales(self) -> Scales:
        """Return what the scales multiply; see `sums.py`."""
        form = self.form
        if not form.is_exact or self.minimum is not None:
            return "numbers"
        if self.super_size >= self.shape[1] and form.scale == "plain":
            return "rows"
        return "runs" if self.super_size % form.run == 0 else "blocks"

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors in bytes."""
        held = (*self.tensors, self.order, self.counters)
        return sum(int(tensor.nbytes) for tensor in held if tensor is not None)


def width_for(group_size: int, num_inputs: int, fields: int) -> int | None:
    """Return the width of a block; None when no width divides the groups.

    The result is the widest one that divides the groups and whose runs fill the inputs, or else the narrowest one that
    divides the groups.
    """
    if group_size >= num_inputs:
        fitting = [WIDEST, WIDEST // 2, NARROWEST]
    else:
        fitting = [width for width in (WIDEST, WIDEST // 2, NARROWEST) if group_size % width == 0]
    whole = [width for width in fitting if num_inputs % (width * fields) == 0]
    found = [*whole, *reversed(fitting)]
    return found[0] if found else None


def packed(weight: CanonicalWeight, dense_width: int = WIDEST) -> Packed:
    """Convert a canonical weight to the kernels' layout. Raises TypeError for an unknown format, or for groups that do
    not fit.
    """
    match weight:
        case Dense():
            k = weight.shape[1]
            return Packed(weight.shape, Form("dense", width=dense_width), weight.weight.contiguous(), k, k)
        case IntGroups():
            return _integers(weight)
        case Int8Channel():
            form = Form("int8", width=_fitting(weight, weight.group_size, 1))
            return _whole_bytes(weight.shape, form, weight.values, weight.scale, weight.shape[1])
        case FP8():
            code: Literal["e4m3", "e5m2"] = "e4m3" if weight.values.dtype is torch.float8_e4m3fn else "e5m2"
            form = Form(code, width=_fitting(weight, weight.group_size, 1))
            return _whole_bytes(weight.shape, form, weight.values, weight.scale, weight.group_size)
        case Codebook():
            return _codebook(weight)
        case SuperGroups():
            return _super_groups(weight)
    raise TypeError(f"no layout for a weight of format '{weight.name}'")


def in_stored_order(x: Tensor, weight: Packed) -> Tensor:
    """Return x [T, K] with its inputs in the order of the weight's columns."""
    return x if weight.order is None else x.index_select(1, weight.order)


def _fitting(weight: CanonicalWeight, group_size: int, fields: int) -> int:
    width = width_for(group_size, weight.shape[1], fields)
    if width is None:
        raise TypeError(f"a {weight.name} weight has groups of {group_size}; expected a multiple of {NARROWEST}")
    return width


def _integers(weight: IntGroups) -> Packed:
    fields = 8 // weight.bits
    form = Form("int", low_bits=weight.bits, width=_fitting(weight, weight.group_size, fields))
    size = weight.group_size
    zeros = weight.zeros
    if weight.bits == 4 and zeros is not None and not zeros.is_meta and int(zeros.max()) > MOST_ZERO:
        raise TypeError(
            f"an {weight.name} weight has zero points up to {int(zeros.max())}; expected at most {MOST_ZERO}"
        )
    return Packed(
        weight.shape,
        form,
        _runs(weight.values, weight.bits, form.width),
        size,
        size,
        weight.zero,
        scale=weight.scale,
        minimum=weight.minimum,
        zeros=zeros,
        order=_order(weight),
    )


def _whole_bytes(shape: tuple[int, int], form: Form, values: Tensor, scale: Tensor, group_size: int) -> Packed:
    """Pack formats with one byte per number."""
    octets = values.view(torch.uint8) if values.dtype is torch.int8 else as_bytes(values)
    return Packed(shape, form, _runs(octets, 8, form.width), group_size, group_size, scale=scale)


def _codebook(weight: Codebook) -> Packed:
    is_e2m1 = weight.kind in ("mxfp4", "nvfp4")
    width = _fitting(weight, weight.block_size, 2)
    form = Form("e2m1" if is_e2m1 else "table", low_bits=4, scale=SCALE_KINDS[weight.kind], width=width)
    table = None if is_e2m1 else _table(CODES[weight.kind], weight.values.device)
    row_scale = None if weight.row_scale is None else weight.row_scale.flatten()
    size = weight.block_size
    values = _runs(weight.values, 4, width)
    scale = as_bytes(weight.scale)
    return Packed(weight.shape, form, values, size, size, scale=scale, row_scale=row_scale, table=table)


def _super_groups(weight: SuperGroups) -> Packed:
    has_nibbles = weight.minimum_scale is not None and weight.sub_scale is not None and weight.sub_minimum is None
    sub: Literal["none", "int8", "nibbles"] = "none"
    if weight.sub_scale is not None:
        sub = "nibbles" if has_nibbles else "int8"
    low_bits = weight.low_bits
    high_bits = weight.bits - low_bits
    # the lower level has groups even where nothing is stored for them
    size = weight.super_size if sub == "none" else weight.group_size
    width = _fitting(weight, size, 8 // low_bits)
    code: Literal["int", "table"] = "int" if weight.table is None else "table"
    form = Form(code, low_bits=low_bits, high_bits=high_bits, sub=sub, width=width)
    table = None if weight.table is None else _table(TABLES[weight.table].numbers, weight.low.device)
    return Packed(
        weight.shape,
        form,
        _runs(weight.low, low_bits, width),
        weight.super_size,
        weight.group_size,
        weight.zero,
        high=None if weight.high is None else _runs(weight.high, high_bits, width),
        scale=weight.scale,
        sub_scale=weight.sub_scale,
        minimum=weight.minimum_scale,
        sub_minimum=weight.sub_minimum,
        zeros=weight.zeros,
        table=table,
        order=_order(weight),
    )


def _runs(plane: Tensor, bits: int, width: int) -> Tensor:
    """Return uint8 [N, bytes of whole runs] from a plane uint8 [N, K * bits / 8] whose lowest bits are the first k."""
    fields = 8 // bits
    num_inputs = plane.shape[1] * fields
    missing = -num_inputs % (width * fields)
    if fields == 1:
        return F.pad(plane, (0, missing)).contiguous() if missing else plane.contiguous()
    pieces = []
    for part in plane.split(ROWS_AT_ONCE):
        integers = F.pad(unpack_plane(part, bits), (0, missing))
        blocks = integers.view(len(part), -1, fields, width)
        joined = blocks[:, :, 0].clone()
        for field in range(1, fields):
            joined |= blocks[:, :, field] << (field * bits)
        pieces.append(joined.flatten(1))
    return torch.cat(pieces)


def _table(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def _order(weight: IntGroups | SuperGroups) -> Tensor | None:
    return None if weight.order is None else weight.order.tensor().to(weight.scale.device, torch.int64)


def _width_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else int(tensor.shape[1])
