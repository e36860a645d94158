"""Random weights of every canonical format: what kernel providers are tried with.

Owns: one line a format. Never does: quantize; the numbers are drawn as they are stored. Called by: the kernel checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from core.api.specs import Activation, KernelQuery
from core.layers.kernels import weight_format
from core.testing.numbers import generator
from core.weights.codebook import CODES, SCALES
from core.weights.formats import FP8, CanonicalWeight, Codebook, Dense, HasGroups, Int8Channel, IntGroups

BLOCKS = {"nf4": 64, "fp4": 32, "mxfp4": 32, "nvfp4": 16}
"""Inputs that share a scale, as checkpoints have them."""


def random_weights(shape: tuple[int, int]) -> Iterator[CanonicalWeight]:
    """Of every format that can have `shape`, in each of its forms; a new format is one more line."""
    n, k = shape
    random = generator(f"weights {shape}")
    w = torch.randn(n, k, generator=random) * 0.1
    yield from (Dense(w), Dense(w.half()), Dense(w.bfloat16()))
    for bits, group, lowest in ((4, 32, False), (4, 32, True), (8, 32, False), (8, 16, True)):
        if k % group == 0:
            yield _int_groups(shape, bits, group, lowest, random)
    yield Int8Channel(torch.randint(-127, 128, shape, dtype=torch.int8, generator=random), _scale((n, 1), random))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        values = torch.randn(n, k, generator=random).to(dtype)
        yield FP8.from_scale(values, _scale((n, 1), random))
        yield FP8.from_scale(values, _scale((-(-n // 16), -(-k // 32)), random), (16, 32))
    for kind in CODES:
        if k % BLOCKS[kind] == 0:
            yield _codebook(shape, kind, random)


def activations(weight: CanonicalWeight) -> tuple[Activation, ...]:
    """To what inputs may be rounded; by groups only where groups of the weight fill its inputs."""
    whole = not isinstance(weight, HasGroups) or weight.shape[1] % weight.group_size == 0
    return ("none", "bf16", "int8", "int8_row") if whole else ("none", "bf16", "int8_row")


def linear_query(device: str, weight: CanonicalWeight, activation: Activation) -> KernelQuery:
    """What a provider is asked about a matrix, as `KernelSet` asks."""
    attributes: dict[str, Any] = {"group_size": weight.group_size} if isinstance(weight, HasGroups) else {}
    return KernelQuery("linear", device, weight_format(weight), activation, weight.shape, attributes)


def _scale(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Uneven scales: no two rows or groups share one."""
    return torch.rand(shape, generator=random) * 0.01 + 0.001


def _int_groups(shape: tuple[int, int], bits: int, group: int, lowest: bool, random: torch.Generator) -> IntGroups:
    n, k = shape
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8, generator=random)
    scale = _scale((n, k // group), random).half()
    least = (torch.randn(n, k // group, generator=random) * 0.05).half() if lowest else None
    return IntGroups(bits, group, values, scale, least, 0 if lowest else 1 << (bits - 1))


def _codebook(shape: tuple[int, int], kind: str, random: torch.Generator) -> Codebook:
    n, k = shape
    values = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=random)
    blocks = (n, k // BLOCKS[kind])
    if kind == "mxfp4":
        return Codebook(
            kind, BLOCKS[kind], values, torch.randint(118, 124, blocks, dtype=torch.uint8, generator=random)
        )
    if kind == "nvfp4":
        scale = (_scale(blocks, random) * 1000).to(SCALES[kind][0])
        return Codebook(kind, BLOCKS[kind], values, scale, _scale((n, 1), random))
    return Codebook(kind, BLOCKS[kind], values, _scale(blocks, random) * 10)
