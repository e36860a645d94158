"""Rotary position embedding tables.

Owns: the angles of each rope type, as cos and sin tables. Never does: apply them (a kernel does).
Called by: the decoder, once when it is built; tables are shared by layers with equal `RopeSpec`.
Source: Su et al. 2021, arXiv 2104.09864; the llama3 scaling as in the Llama 3.1 model card's reference description.
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
    return frequencies


def tables(rope: RopeSpec, head_size: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [length, head_size / 2], rounded once from float64."""
    angles = torch.outer(torch.arange(length, dtype=torch.float64), inverse_frequencies(rope, head_size))
    return angles.cos().float().to(device), angles.sin().float().to(device)
