"""Rotary position embedding tables.

Owns: the angles of each rope type, as cos and sin tables. Never does: apply them (a kernel does).
Called by: the decoder, once when it is built; tables are shared by layers with equal `RopeSpec`.
Source: Su et al. 2021, arXiv 2104.09864; the llama3 scaling as in the Llama 3.1 model card's reference description;
yarn: Peng et al. 2023, arXiv 2309.00071.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from core.api.specs import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_size: int) -> Tensor:
    """Angle per position for each of the head_size / 2 pairs, float64."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    frequencies = 1.0 / rope.theta**exponents
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low = rope.original_max_position / rope.low_freq_factor
        high = rope.original_max_position / rope.high_freq_factor
        blend = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        smooth = (1 - blend) * frequencies / rope.factor + blend * frequencies
        scaled = torch.where(wavelengths > low, frequencies / rope.factor, smooth)
        return torch.where(wavelengths < high, frequencies, scaled)
    if rope.rope_type == "yarn":
        return _yarn(rope, frequencies)
    return frequencies


def _yarn(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    """Pairs that turn often within the original length keep their frequency, slow ones are divided by the factor."""
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that turns so often within the original length."""
        return pairs * math.log(rope.original_max_position / (turns * 2 * math.pi)) / math.log(rope.theta)

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slow = ((torch.arange(pairs, dtype=torch.float64) - low) / (high - low or 0.001)).clamp(0, 1)
    return frequencies * (1 - slow) + frequencies / rope.factor * slow


def tables(rope: RopeSpec, head_size: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin times the attention factor, float32 [length, head_size / 2], rounded once from float64."""
    angles = torch.outer(torch.arange(length, dtype=torch.float64), inverse_frequencies(rope, head_size))
    factor = rope.attention_factor
    return (angles.cos() * factor).float().to(device), (angles.sin() * factor).float().to(device)
