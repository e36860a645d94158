"""Random weights of every canonical format, for testing kernel providers.

Owns: one function or line per format. Never does: quantize; numbers are drawn in their stored form. Called by: the
kernel checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from core.api.specs import Activation, KernelQuery
from core_kit.numbers import generator
from core_runtime.layers.kernels import weight_format
from core_runtime.weights.codebook import CODES, SCALES
from core_runtime.weights.formats import (
    FP8,
    CanonicalWeight,
    Codebook,
    Dense,
    HasGroups,
    Int8Channel,
    IntGroups,
    SuperGroups,
)

BLOCKS = {"nf4": 64, "fp4": 32, "mxfp4": 32, "nvfp4": 16}
"""Inputs that share a scale, as in checkpoints."""
INT_GROUPS = (
    (4, 32, False),
    (4, 32, True),
    (8, 32, False),
    (8, 16, True),
)
"""Bits, inputs that share a scale, and whether groups have a minimum instead of a zero point."""
SUPER_GROUPS = (
    (2, 16, 64, True, None),
    (3, 16, 64, False, None),
    (4, 32, 64, True, None),
    (5, 32, 32, False, None),
    (6, 16, 64, False, None),
    (4, 32, 64, False, "iq4"),
    (3, 16, 64, False, "iq2"),
)
"""Bits, inputs that share a scale on the lower and the upper level, whether groups have a minimum, and the table."""
FP8_BLOCK = (16, 32)
"""Rows and columns that share a scale in block-scaled FP8."""


def random_weights(shape: tuple[int, int]) -> Iterator[CanonicalWeight]:
    """Yield weights of every format that can have `shape`, in each of its forms; a new format is one more line."""
    num_rows, num_columns = shape
    row_scales = (num_rows, 1)
    random = generator(f"weights {shape}")
    w = torch.randn(shape, generator=random) * 0.1
    yield Dense(w)
    yield Dense(w.half())
    yield Dense(w.bfloat16())
    for bits, group, has_minimum in INT_GROUPS:
        if num_columns % group == 0:
            yield _int_groups(shape, bits, group, has_minimum, random)
    steps = torch.randint(-127, 128, shape, dtype=torch.int8, generator=random)
    yield Int8Channel(steps, _scale(row_scales, random))
    block_rows, block_columns = FP8_BLOCK
    blocks_down = -(-num_rows // block_rows)
    blocks_across = -(-num_columns // block_columns)
    block_scales = (blocks_down, blocks_across)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        values = torch.randn(shape, generator=random).to(dtype)
        yield FP8.from_scale(values, _scale(row_scales, random))
        yield FP8.from_scale(values, _scale(block_scales, random), FP8_BLOCK)
    for kind in CODES:
        if num_columns % BLOCKS[kind] == 0:
            yield _codebook(shape, kind, random)
    for bits, group, super_size, has_minimum, table in SUPER_GROUPS:
        if num_columns % super_size == 0:
            attributes = {"bits": bits, "group_size": group, "super_size": super_size, "table": table}
            yield _super_groups(shape, attributes, has_minimum, random)


def activations(weight: CanonicalWeight) -> tuple[Activation, ...]:
    """Return the precisions to which inputs may be rounded; grouped only where the weight's groups fill its inputs."""
    if isinstance(weight, HasGroups):
        num_columns = weight.shape[1]
        if num_columns % weight.group_size != 0:
            return ("none", "bf16", "int8_row")
    return ("none", "bf16", "int8", "int8_row")


def linear_query(device: str, weight: CanonicalWeight, activation: Activation) -> KernelQuery:
    """Return the query whether a provider serves a matrix, as `KernelSet` makes it."""
    attributes: dict[str, Any] = {}
    if isinstance(weight, HasGroups):
        attributes["group_size"] = weight.group_size
    kind = weight_format(weight)
    return KernelQuery("linear", device, kind, activation, weight.shape, attributes)


def _scale(shape: tuple[int, ...], random: Generator) -> Tensor:
    """Return uneven scales: no two rows or groups share one."""
    uneven = torch.rand(shape, generator=random)
    return uneven * 0.01 + 0.001


def _packed(num_rows: int, row_bytes: int, random: Generator) -> Tensor:
    """Return codes of several weights per byte; every code occurs."""
    return torch.randint(0, 256, (num_rows, row_bytes), dtype=torch.uint8, generator=random)


def _int_groups(shape: tuple[int, int], bits: int, group: int, has_minimum: bool, random: Generator) -> IntGroups:
    num_rows, num_columns = shape
    values = _packed(num_rows, num_columns * bits // 8, random)
    groups = (num_rows, num_columns // group)
    scale = _scale(groups, random).half()
    if not has_minimum:
        middle = 1 << (bits - 1)
        return IntGroups(bits, group, values, scale, zero=middle)
    minimum = torch.randn(groups, generator=random) * 0.05
    return IntGroups(bits, group, values, scale, minimum.half())


def _codebook(shape: tuple[int, int], kind: str, random: Generator) -> Codebook:
    num_rows, num_columns = shape
    block_size = BLOCKS[kind]
    values = _packed(num_rows, num_columns // 2, random)
    blocks = (num_rows, num_columns // block_size)
    if kind == "mxfp4":
        exponents = torch.randint(118, 124, blocks, dtype=torch.uint8, generator=random)
        return Codebook(kind, block_size, values, exponents)
    if kind == "nvfp4":
        (scale_dtype,) = SCALES[kind]
        scale = _scale(blocks, random) * 1000
        row_scale = _scale((num_rows, 1), random)
        return Codebook(kind, block_size, values, scale.to(scale_dtype), row_scale)
    scale = _scale(blocks, random) * 10
    return Codebook(kind, block_size, values, scale)


def _super_groups(
    shape: tuple[int, int], attributes: dict[str, Any], has_minimum: bool, random: Generator
) -> SuperGroups:
    num_rows, num_columns = shape
    bits = attributes["bits"]
    low_bits = 2 if bits < 4 else 4
    high_bits = bits - low_bits
    supers = (num_rows, num_columns // attributes["super_size"])
    num_groups = num_columns // attributes["group_size"]
    tensors = {
        "low": _packed(num_rows, num_columns * low_bits // 8, random),
        "scale": (_scale(supers, random) * 0.1).half(),
    }
    if high_bits:
        tensors["high"] = _packed(num_rows, num_columns * high_bits // 8, random)
    if has_minimum:
        tensors["minimum_scale"] = (torch.randn(supers, generator=random) * 0.005).half()
    nibbles = has_minimum and bits == 2
    if attributes["super_size"] > attributes["group_size"]:
        sub_scale = _packed(num_rows, num_groups, random)
        tensors["sub_scale"] = sub_scale if nibbles else sub_scale.view(torch.int8)
    if has_minimum and not nibbles:
        tensors["sub_minimum"] = _packed(num_rows, num_groups, random).view(torch.int8)
    zero = 0 if has_minimum or attributes["table"] else 1 << (bits - 1)
    return SuperGroups(**attributes, **tensors, zero=zero)
