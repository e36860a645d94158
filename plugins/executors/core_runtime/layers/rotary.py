"""Rotary position embedding tables.

Owns: the angles of each rope type, as cos and sin tables. Never does: apply them (a kernel does).
Called by: the decoder, once when it is built; layers with equal `RopeSpec` share tables.
Source: Su et al. 2021, arXiv 2104.09864; the llama3 scaling as in the Llama 3.1 model card's reference description;
yarn and dynamic: Peng et al. 2023, arXiv 2309.00071; longrope: Ding et al. 2024, arXiv 2402.13753.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.rope_spec import RopeSpec


def rotary_tables(
    spec: DecoderSpec, length: int, device: torch.device, longest: int | None = None
) -> list[tuple[Tensor, Tensor] | None]:
    """Return (cos, sin) of `length` positions for each block, None for blocks without rotary embedding; equal tables
    are shared.

    longest: tokens of the longest sequence, which some types of rotary embedding depend on; None: `length`.
    """
    shared: dict[tuple[RopeSpec, int], tuple[Tensor, Tensor]] = {}
    found: list[tuple[Tensor, Tensor] | None] = []
    for block in spec.blocks:
        rope = block.rope
        if rope is None or not block.rotary_size:
            found.append(None)
            continue
        key = rope, block.rotary_size
        if key not in shared:
            shared[key] = tables(rope, block.rotary_size, length, device, longest or length)
        found.append(shared[key])
    return found


def inverse_frequencies(rope: RopeSpec, head_size: int, longest: int = 0) -> Tensor:
    """Return the angle per position for each of the head_size / 2 pairs, float64. longest: length of the longest sequence."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    frequencies = 1.0 / _base(rope, head_size, longest) ** exponents
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, frequencies)
    if rope.rope_type == "yarn":
        return _yarn(rope, frequencies)
    if rope.rope_type == "longrope":
        factors = rope.long_factors if longest > rope.original_max_position else rope.short_factors
        return frequencies / torch.tensor(factors, dtype=torch.float64)
    return frequencies


def _base(rope: RopeSpec, head_size: int, longest: int) -> float:
    """Return the base of the frequencies. With `dynamic` it is that of one sequence of the engine's longest length, for all.

    Source: the NTK-aware scaling of transformers' `_compute_dynamic_ntk_parameters`.
    """
    original = rope.original_max_position
    if rope.rope_type != "dynamic" or longest <= original or head_size <= 2:
        return rope.theta
    stretch = rope.factor * longest / original - (rope.factor - 1)
    return float(rope.theta * stretch ** (head_size / (head_size - 2)))


def _llama3(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    """Scale frequencies as llama3: short waves keep theirs, long ones are divided by the factor, those between are
    blended.
    """
    wavelengths = 2 * math.pi / frequencies
    longest_blended = rope.original_max_position / rope.low_freq_factor
    shortest_blended = rope.original_max_position / rope.high_freq_factor
    turns = rope.original_max_position / wavelengths
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    divided = frequencies / rope.factor
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelengths > longest_blended, divided, blended)
    return torch.where(wavelengths < shortest_blended, frequencies, scaled)


def _yarn(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    """Scale frequencies as yarn: pairs that turn often within the original length keep theirs, slow ones are divided."""
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        """Return the pair, as a real number, that makes `turns` turns within the original length."""
        wavelength = rope.original_max_position / (turns * 2 * math.pi)
        return pairs * math.log(wavelength) / math.log(rope.theta)

    low = pair_of(rope.beta_fast)
    high = pair_of(rope.beta_slow)
    if rope.truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, 2 * pairs - 1)
    width = high - low or 0.001  # never a division by zero
    numbers = torch.arange(pairs, dtype=torch.float64)
    slow = ((numbers - low) / width).clamp(0, 1)
    return frequencies * (1 - slow) + frequencies / rope.factor * slow


def tables(
    rope: RopeSpec, head_size: int, length: int, device: torch.device, longest: int = 0
) -> tuple[Tensor, Tensor]:
    """Return cos and sin times the attention factor, float32 [length, head_size / 2], rounded once from float64.

    longest: length of the longest sequence, which decides on the factors of longrope and on the base of dynamic scaling.
    """
    positions = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(positions, inverse_frequencies(rope, head_size, longest))
    cos = angles.cos() * rope.attention_factor
    sin = angles.sin() * rope.attention_factor
    if rope.backwards:
        sin = -sin
    return cos.float().to(device), sin.float().to(device)


class SpareRows:
    """Rows behind the rotary tables, for the rows of a step that rotate by three positions.

    tables: cos and sin of each axes' table. axes: see `RopeSpec`. first: index of the first spare row.
    """

    def __init__(self, tables: Sequence[tuple[Tensor, Tensor]], axes: Sequence[int], first: int) -> None:
        self._tables = tables
        self._axes = torch.tensor(axes, dtype=torch.int64, device=tables[0][0].device)
        self.first = first

    def fill(self, positions: Tensor) -> None:
        """Write the first R spare rows. positions: int64 [R, 3], on the device."""
        rows = positions[:, self._axes]
        for table in (table for both in self._tables for table in both):
            table[self.first : self.first + len(rows)] = table.gather(0, rows)
