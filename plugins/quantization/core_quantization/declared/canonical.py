"""Conversion of unpacked numbers and scales to canonical weights.

Owns: the last step of every layout. Never does: unpack what one tool packed. Called by: layouts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_quantization.declared.bits import to_nibbles
from core_quantization.declared.part_format import Floats4, Floats8, Integers
from core_runtime.weights.formats import FP8, CanonicalWeight, Codebook, Int8Channel, IntGroups, SuperGroups
from core_runtime.weights.input_order import InputOrder
from core_runtime.weights.int_groups import unpack_nibbles

SIGN = 128
"""Difference between an unsigned byte and the signed byte of the same rank."""


def integer_weight(
    how: Integers,
    values: Tensor,
    scale: Tensor,
    zeros: Tensor | None = None,
    groups: Tensor | None = None,
    minimum: Tensor | None = None,
) -> CanonicalWeight:
    """Return the canonical weight of a matrix [N, K] of integers.

    values: uint8, unsigned: [N, K] of 8 bits, or pairs [N, K / 2] of 4 bits, the even one low.
    scale: floats [N, K / group] or one number.
    zeros: uint8 [N, K / group] or one number, where groups have their own.
    groups: the group of each column, integers [K], where columns are permuted.
    minimum: floats [N, K / group] that are added, where groups have them; they are rounded to the scales' type.
    Raises ValueError for groups of unequal sizes.
    """
    n = values.shape[0]
    k = values.shape[1] * 8 // how.unpacked_bits
    scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
    if how.form == "int8_channel":
        signed = (values ^ SIGN).view(torch.int8)
        return Int8Channel(signed, scale.float().expand(n, 1).contiguous())
    num_groups = k // how.group_size
    scale = scale.expand(n, num_groups).clone(memory_format=torch.contiguous_format)
    order = None if groups is None else _order(groups.long(), how.group_size)
    if order is not None:
        values = _reordered(values, how.unpacked_bits, order)
    points = None
    if how.zeros:
        assert zeros is not None, "a layout with zero points gives them"
        wide = zeros.reshape(-1, 1) if zeros.dim() < 2 else zeros
        points = wide.expand(n, num_groups).clone(memory_format=torch.contiguous_format)
    weight = IntGroups(
        bits=how.unpacked_bits,
        group_size=how.group_size,
        values=values,
        scale=scale,
        zero=0 if how.zeros else how.zero,
        zeros=points,
        order=None if order is None else InputOrder.of(order),
        minimum=None if minimum is None else minimum.to(scale.dtype).contiguous(),
    )
    return weight if how.planes is None else SuperGroups.of(weight, how.planes)


def _order(groups: Tensor, group_size: int) -> Tensor | None:
    """Return the input of each stored column, int64 [K]; None: in order. Raises ValueError for unequal groups.

    groups: int64 [K], the group of each input.
    """
    in_order = torch.arange(len(groups)) // group_size
    if torch.equal(groups, in_order):
        return None
    order = groups.argsort(stable=True)
    if not torch.equal(groups[order], in_order):
        raise ValueError(f"has groups (g_idx) that are not made of {group_size} inputs each; the file is damaged")
    return order


def _reordered(values: Tensor, unpacked_bits: int, order: Tensor) -> Tensor:
    """Return integers with their columns in another order."""
    if unpacked_bits == 8:
        return values[:, order]
    return to_nibbles(unpack_nibbles(values)[:, order])


def float8_weight(how: Floats8, values: Tensor, scale: Tensor, block: tuple[int, int] | None = None) -> CanonicalWeight:
    """Return the canonical weight of 8-bit floats [N, K].

    scale: floats, one, one a row, one a group of inputs [N, K / group], or one a block of rows and inputs.
    block: (rows, inputs) of a block.
    """
    kept = values.clone()
    if block is not None or how.group_size >= values.shape[1]:
        return FP8.from_scale(kept, scale, block)
    return FP8(kept, scale.float().contiguous(), how.group_size)


def float4_weight(
    how: Floats4, values: Tensor, scale: Tensor, divisor: Tensor | None = None, factor: Tensor | None = None
) -> CanonicalWeight:
    """Return the canonical weight of 4-bit floats in pairs [N, K / 2], the even one low.

    scale: [N, K / block]: uint8 exponents (mxfp4) or float8_e4m3fn (nvfp4).
    divisor, factor: one number for all scales (nvfp4).
    """
    row_scale = None
    whole = None if factor is None else factor.float()
    if divisor is not None:
        whole = 1.0 / divisor.float()
    if whole is not None:
        row_scale = whole.reshape(1, 1).expand(values.shape[0], 1).contiguous()
    return Codebook(how.form, how.block_size, values.clone(), scale.clone(), row_scale)


def from_exponents(scale: Tensor) -> Tensor:
    """Convert powers of two as bytes (e8m0), uint8, to float32. Raises ValueError for the byte that stands for
    not-a-number.
    """
    if bool((scale == 255).any()):
        raise ValueError("has a scale that is not a number (e8m0 byte 255); the file is damaged")
    return torch.exp2(scale.float() - 127)
