"""Rounding of float matrices to canonical formats: nearest values, scales from the largest magnitudes.

Never does: look at data (no calibration) or keep a float32 copy of more than some rows. Called by: the method.

The scale of a block maps its largest magnitude to the largest number of the format. The inverse of the scale is rounded
once, then multiplied. One operation a line keeps that order, because another order gives other bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_runtime.weights.codebook import CODES
from core_runtime.weights.formats import FP8, CanonicalWeight, Codebook, Int8Channel, IntGroups, fuse
from core_runtime.weights.input_rounding import NUMBERS, InputRounding, nearest

ELEMENTS = 1 << 18  # elements rounded at a time, few enough to stay in a cache
E4M3_LARGEST = 448.0
E2M1_LARGEST = 6.0
E8M0_BIAS = 127
"""Exponent bias: a scale byte of mxfp4 stands for 2^(byte - 127)."""
BLOCKS = {"int8_groups": 32, "nf4": 64, "fp4": 64, "mxfp4": 32, "mxfp6": 32, "nvfp4": 16}


def quantize(weight: Tensor, form: str) -> CanonicalWeight:
    """Convert weight [N, K] of any float type to a canonical format. Raises ValueError when a value is not finite.

    form: name of the format, or of one of its roundings.
    """
    num_rows, num_columns = weight.shape
    step = max(1, ELEMENTS // max(num_columns, 1))
    round_rows = _ROUND[form]
    parts = []
    for start in range(0, num_rows, step):
        rows = weight[start : start + step].float()
        # A dry run's tensors have no values.
        if rows.device.type != "meta" and not bool(rows.isfinite().all()):
            raise ValueError("holds values that are not finite")
        parts.append(round_rows(rows))
    return fuse(parts)


def _inverse(scale: Tensor) -> Tensor:
    """Return 1 / scale, and 0 where all values are 0."""
    return torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))


def _row_maxima(w: Tensor) -> Tensor:
    """Return the largest magnitude of each row, [N, 1]."""
    return w.abs().amax(-1, keepdim=True)


def _int8_channel(w: Tensor) -> Int8Channel:
    scale = _row_maxima(w) / 127.0
    steps = w * _inverse(scale)
    steps.round_().clamp_(-127, 127)
    return Int8Channel(steps.to(torch.int8), scale)


def _int8_groups(w: Tensor) -> IntGroups:
    blocks = _in_blocks(w, "int8_groups")
    largest = blocks.abs().amax(-1)
    scale = (largest / 127.0).bfloat16()  # bfloat16 has the range of float32; values are rounded to the stored scale
    steps = blocks * _inverse(scale.float()).unsqueeze(-1)
    steps.round_().clamp_(-127, 127)
    values = steps.add_(128).to(torch.uint8)
    return IntGroups(8, BLOCKS["int8_groups"], values.view(w.shape), scale, zero=128)


def _fp8(w: Tensor) -> FP8:
    scale = _row_maxima(w) / E4M3_LARGEST
    scaled = w * _inverse(scale)
    # e4m3fn has no infinity: a value that rounding puts just above the largest would become not-a-number.
    scaled.clamp_(-E4M3_LARGEST, E4M3_LARGEST)
    return FP8.from_scale(scaled.to(torch.float8_e4m3fn), scale)


def _nearest(blocks: Tensor, kind: str) -> Tensor:
    """Return the index of the nearest code of each value, uint8: the number of midpoints below it."""
    table = torch.tensor(CODES[kind], dtype=torch.float32)
    codes, order = table.sort(stable=True)
    midpoints = (codes[1:] + codes[:-1]) / 2
    place = torch.zeros(blocks.shape, dtype=torch.uint8)
    for midpoint in midpoints.tolist():
        place += blocks > midpoint
    index = order.to(torch.uint8)
    return index[place.int()]


def _nearest_e2m1(blocks: Tensor) -> Tensor:
    """Return the index of the nearest e2m1 code of each value: ties go to the even code, everything above 6 becomes 6.

    Bit 3 is the sign, bits 0-2 count the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. These lie 1/2 apart below 2, 1 apart
    from 2 to 4, and 2 apart above. Codes 0, 4 and 6 begin these stretches, so within each the code is the number of
    steps from 0 plus an even number, and `round`, which takes ties to the even number of steps, takes them to the even
    code.
    """
    size = blocks.abs()
    small = (size * 2).round()
    middle = size.round() + 2
    large = (size / 2).round() + 4
    at_least_2 = torch.where(size < 4, middle, large)
    magnitude = torch.where(size < 2, small, at_least_2)
    code = magnitude.clamp_(max=7).to(torch.uint8)
    sign = (blocks < 0).to(torch.uint8)
    return code | (sign << 3)


def _in_blocks(w: Tensor, kind: str) -> Tensor:
    """Return w [N, K] as [N, blocks, values a block]."""
    return w.view(w.shape[0], -1, BLOCKS[kind])


def _paired(index: Tensor) -> Tensor:
    """Convert codes [N, blocks, values a block] to canonical pairs [N, K / 2]: the even one low."""
    flat = index.flatten(1)
    even = flat[:, ::2]
    odd = flat[:, 1::2]
    return even | (odd << 4)


def _table(w: Tensor, kind: str) -> Codebook:
    blocks = _in_blocks(w, kind)
    scale = blocks.abs().amax(-1)
    scaled = blocks * _inverse(scale).unsqueeze(-1)
    values = _paired(_nearest(scaled, kind))
    return Codebook(kind, BLOCKS[kind], values, scale)


def _mxfp4(w: Tensor) -> Codebook:
    """Round blocks with one of two powers of two as scale, whichever gives the smaller squared error.

    The first is the specification's, which brings the largest magnitude into [4, 8) and cuts off everything above 6.
    The second is the next higher one, which cuts nothing.
    """
    blocks = _in_blocks(w, "mxfp4")
    # frexp's mantissa lies in [1/2, 1), so 3 less than its exponent leaves a magnitude in [4, 8).
    largest = blocks.abs().amax(-1)
    _, exponent = torch.frexp(largest)
    exponent = exponent.sub(3).clamp(-126, 126)
    low, low_error = _at_power(blocks, exponent)
    high, high_error = _at_power(blocks, exponent + 1)
    takes_low = low_error <= high_error
    index = torch.where(takes_low.unsqueeze(-1), low, high)
    power = torch.where(takes_low, exponent, exponent + 1)
    scale = (power + E8M0_BIAS).to(torch.uint8)
    return Codebook("mxfp4", BLOCKS["mxfp4"], _paired(index), scale)


def _at_power(blocks: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """Return e2m1 codes of blocks [N, B, 32] with the scale 2^exponent [N, B], and the squared error of each block [N,
    B].
    """
    scaled = torch.ldexp(blocks, -exponent.unsqueeze(-1))
    index = _nearest_e2m1(scaled)
    codes = torch.tensor(CODES["mxfp4"])
    rounded = codes[index.int()]
    scaled_error = (rounded - scaled).square().sum(-1)
    error = torch.ldexp(scaled_error, 2 * exponent)
    return index, error


def _mxfp6(w: Tensor) -> FP8:
    """Round to mxfp6 of type e2m3, whose numbers are numbers of e4m3 too. Scales are Quark's: powers of two by rule `even`."""
    blocks = _in_blocks(w, "mxfp6")
    how = InputRounding("fp6_e2m3", "even", BLOCKS["mxfp6"])
    scale = how.scale_of(blocks.abs().amax(-1, keepdim=True))
    values = nearest(blocks / scale, NUMBERS["fp6_e2m3"])
    return FP8(values.flatten(1).to(torch.float8_e4m3fn), scale.squeeze(-1), BLOCKS["mxfp6"])


def _nvfp4(w: Tensor) -> Codebook:
    """Round to nvfp4. A row's scale maps its largest magnitude to the largest block scale times the largest code."""
    blocks = _in_blocks(w, "nvfp4")
    largest = blocks.abs().amax(-1)
    row_scale = largest.amax(-1, keepdim=True) / (E2M1_LARGEST * E4M3_LARGEST)
    scale = (largest * _inverse(row_scale) / E2M1_LARGEST).to(torch.float8_e4m3fn)
    # Divide by the stored scale, not the exact one: rounding it to e4m3 has changed it.
    real = scale.float() * row_scale
    scaled = blocks * _inverse(real).unsqueeze(-1)
    values = _paired(_nearest_e2m1(scaled))
    return Codebook("nvfp4", BLOCKS["nvfp4"], values, scale, row_scale)


_ROUND = {
    "int8_channel": _int8_channel,
    "int8_groups": _int8_groups,
    "fp8_e4m3": _fp8,
    "nf4": lambda w: _table(w, "nf4"),
    "fp4": lambda w: _table(w, "fp4"),
    "mxfp4": _mxfp4,
    "mxfp6": _mxfp6,
    "nvfp4": _nvfp4,
}
