"""From float matrices to canonical formats: nearest values, scales from the largest magnitudes.

Never does: look at data (no calibration) or keep a float32 copy of more than some rows. Called by: the method.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.weights.codebook import CODES
from core.weights.formats import FP8, CanonicalWeight, Codebook, Int8Channel, fuse

ELEMENTS = 1 << 18  # rounded at a time: what stays in a cache
E4M3_LARGEST, E2M1_LARGEST = 448.0, 6.0
BLOCKS = {"nf4": 64, "fp4": 64, "mxfp4": 32, "nvfp4": 16}


def quantize(weight: Tensor, form: str) -> CanonicalWeight:
    """weight [N, K] of any float type in the canonical format `form`. Raises ValueError when a value is not finite."""
    n, k = weight.shape
    step = max(1, ELEMENTS // max(k, 1))
    parts = []
    for start in range(0, n, step):
        rows = weight[start : start + step].float()
        if not bool(rows.isfinite().all()):
            raise ValueError("holds values that are not finite")
        parts.append(_ROUND[form](rows))
    return fuse(parts)


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 where all values are 0."""
    return torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))


def _int8_channel(w: Tensor) -> Int8Channel:
    scale = w.abs().amax(-1, keepdim=True) / 127.0
    return Int8Channel((w * _inverse(scale)).round_().clamp_(-127, 127).to(torch.int8), scale)


def _fp8(w: Tensor) -> FP8:
    scale = w.abs().amax(-1, keepdim=True) / E4M3_LARGEST
    narrow = (w * _inverse(scale)).clamp_(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    return FP8.from_scale(narrow, scale)


def _nearest(blocks: Tensor, kind: str) -> Tensor:
    """Index of the nearest code of each value, uint8: the number of midpoints below it."""
    codes, order = torch.tensor(CODES[kind], dtype=torch.float32).sort(stable=True)
    place = torch.zeros(blocks.shape, dtype=torch.uint8)
    for middle in ((codes[1:] + codes[:-1]) / 2).tolist():
        place += blocks > middle
    return order.to(torch.uint8)[place.int()]


def _nearest_e2m1(blocks: Tensor) -> Tensor:
    """The same for e2m1, whose steps are 1/2, 1 and 2: ties go to the even code, what is above 6 becomes 6."""
    size = blocks.abs()
    index = torch.where(size < 2, (size * 2).round(), torch.where(size < 4, size.round() + 2, (size / 2).round() + 4))
    return index.clamp_(max=7).to(torch.uint8) | ((blocks < 0).to(torch.uint8) << 3)


def _paired(index: Tensor, n: int) -> Tensor:
    """Codes to canonical pairs: the even one low."""
    flat = index.reshape(n, -1)
    return flat[:, ::2] | (flat[:, 1::2] << 4)


def _table(w: Tensor, kind: str) -> Codebook:
    blocks = w.view(w.shape[0], -1, BLOCKS[kind])
    scale = blocks.abs().amax(-1)
    values = _paired(_nearest(blocks * _inverse(scale).unsqueeze(-1), kind), w.shape[0])
    return Codebook(kind, BLOCKS[kind], values, scale)


def _mxfp4(w: Tensor) -> Codebook:
    """Of the power of two that the specification takes (which cuts what is above 6) and the next one, the better."""
    blocks = w.view(w.shape[0], -1, BLOCKS["mxfp4"])
    exponent = (
        torch.frexp(blocks.abs().amax(-1)).exponent.sub(3).clamp(-126, 126)
    )  # of the largest: at most 2 above e2m1's
    table = torch.tensor(CODES["mxfp4"])
    tried = []
    for candidate in (exponent, exponent + 1):
        scaled = torch.ldexp(blocks, -candidate.unsqueeze(-1))
        index = _nearest_e2m1(scaled)
        tried.append((index, torch.ldexp((table[index.int()] - scaled).square().sum(-1), 2 * candidate)))
    (low, low_error), (high, high_error) = tried
    cut = low_error <= high_error
    index = torch.where(cut.unsqueeze(-1), low, high)
    scale = torch.where(cut, exponent, exponent + 1) + 127
    return Codebook("mxfp4", BLOCKS["mxfp4"], _paired(index, w.shape[0]), scale.to(torch.uint8))


def _nvfp4(w: Tensor) -> Codebook:
    blocks = w.view(w.shape[0], -1, BLOCKS["nvfp4"])
    largest = blocks.abs().amax(-1)
    row_scale = largest.amax(-1, keepdim=True) / (E2M1_LARGEST * E4M3_LARGEST)
    scale = (largest * _inverse(row_scale) / E2M1_LARGEST).to(torch.float8_e4m3fn)
    real = scale.float() * row_scale
    values = _paired(_nearest_e2m1(blocks * _inverse(real).unsqueeze(-1)), w.shape[0])
    return Codebook("nvfp4", BLOCKS["nvfp4"], values, scale, row_scale)


_ROUND = {
    "int8_channel": _int8_channel,
    "fp8_e4m3": _fp8,
    "nf4": lambda w: _table(w, "nf4"),
    "fp4": lambda w: _table(w, "fp4"),
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}
