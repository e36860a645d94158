"""The block types of GGUF as canonical weights: one row a type.

Owns: the sizes of a block, and its unpacker. Never does: know the place of a bit (`unpack` does).
Called by: `core_quantization.gguf.method`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core_quantization.gguf import codes, grids, unpack
from core_quantization.gguf.bits import Bytes
from core_quantization.gguf.unpack import Unpacked

K_BLOCK = 256
"""Weights in a block of the K types."""
PLAIN_BLOCK = 32
"""Weights in a block of the other types."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One block type.

    form: name of the canonical format.
    block_size: weights a block.
    block_bytes: bytes a block in the file.
    held_bytes: bytes a block in the canonical weight.
    unpack: function from blocks to the tensors of the canonical weight.
    attributes: other fields of the canonical weight.
    """

    form: str
    block_size: int
    block_bytes: int
    held_bytes: int
    unpack: Callable[[Bytes], Unpacked]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def nbytes(self, n: int, k: int) -> int:
        """Return the bytes of a canonical weight [n, k]."""
        return n * (k // self.block_size) * self.held_bytes


def _groups(bits: int, block_bytes: int, unpacker: Callable[[Bytes], Unpacked], zero: int) -> BlockFormat:
    attributes = {"bits": bits, "group_size": PLAIN_BLOCK, "zero": zero}
    return BlockFormat(f"int{bits}_groups", PLAIN_BLOCK, block_bytes, block_bytes, unpacker, attributes)


def _one_level(
    bits: int, block_bytes: int, unpacker: Callable[[Bytes], Unpacked], zero: int = 0, table: str | None = None
) -> BlockFormat:
    attributes = {"bits": bits, "group_size": PLAIN_BLOCK, "super_size": PLAIN_BLOCK, "zero": zero, "table": table}
    form = f"{table or f'int{bits}'}_super"
    return BlockFormat(form, PLAIN_BLOCK, block_bytes, block_bytes, unpacker, attributes)


def _two_levels(
    bits: int,
    sizes: tuple[int, int],
    group_size: int,
    unpacker: Callable[[Bytes], Unpacked],
    zero: int = 0,
    table: str | None = None,
) -> BlockFormat:
    """Return a type with scales of scales. sizes: bytes a block in the file and in the canonical weight, where a
    six-bit scale takes a byte.
    """
    attributes = {"bits": bits, "group_size": group_size, "super_size": K_BLOCK, "zero": zero, "table": table}
    form = f"{table or f'int{bits}'}_super"
    return BlockFormat(form, K_BLOCK, *sizes, unpacker, attributes)


def _whole_block(bits: int, sizes: tuple[int, int], unpacker: Callable[[Bytes], Unpacked], zero: int) -> BlockFormat:
    """Return a type with one scale for the whole block. sizes: bytes a block in the file and in the canonical
    weight.
    """
    attributes = {"bits": bits, "group_size": PLAIN_BLOCK, "super_size": K_BLOCK, "zero": zero}
    return BlockFormat(f"int{bits}_super", K_BLOCK, *sizes, unpacker, attributes)


def _codebook(kind: str, sizes: tuple[int, int], group_size: int, unpacker: Callable[[Bytes], Unpacked]) -> BlockFormat:
    """Return a type whose weights are codes. sizes: weights and bytes a block."""
    block_size, block_bytes = sizes
    attributes = {"kind": kind, "block_size": group_size}
    return BlockFormat(kind, block_size, block_bytes, block_bytes, unpacker, attributes)


FORMATS: dict[str, BlockFormat] = {
    "Q4_0": _groups(4, 18, unpack.q4_0, zero=8),
    "Q4_1": _groups(4, 20, unpack.q4_1, zero=0),
    "Q5_0": _one_level(5, 22, unpack.q5_0, zero=16),
    "Q5_1": _one_level(5, 24, unpack.q5_1),
    "Q8_0": _groups(8, 34, unpack.q8_0, zero=128),
    "Q2_K": _two_levels(2, (84, 84), 16, unpack.q2_k),
    "Q3_K": _two_levels(3, (110, 114), 16, unpack.q3_k, zero=4),
    "Q4_K": _two_levels(4, (144, 148), 32, unpack.q4_k),
    "Q5_K": _two_levels(5, (176, 180), 32, unpack.q5_k),
    "Q6_K": _two_levels(6, (210, 210), 16, unpack.q6_k, zero=32),
    "IQ4_NL": _one_level(4, 18, unpack.iq4_nl, table="iq4"),
    "IQ4_XS": _two_levels(4, (136, 138), 32, unpack.iq4_xs, table="iq4"),
    "IQ3_S": _two_levels(4, (110, 138), 32, grids.iq3_s, table="iq3_s"),
    "IQ3_XXS": _two_levels(4, (98, 138), 32, grids.iq3_xxs, table="iq3"),
    "IQ2_S": _two_levels(3, (82, 114), 16, grids.iq2_s, table="iq2"),
    "IQ2_XS": _two_levels(3, (74, 114), 16, grids.iq2_xs, table="iq2"),
    "IQ2_XXS": _two_levels(3, (66, 106), 32, grids.iq2_xxs, table="iq2"),
    "IQ1_M": _two_levels(3, (56, 114), 16, grids.iq1_m, table="iq1"),
    "IQ1_S": _two_levels(3, (50, 106), 32, grids.iq1_s, table="iq1"),
    "TQ1_0": _whole_block(2, (54, 66), codes.tq1_0, zero=1),
    "TQ2_0": _whole_block(2, (66, 66), codes.tq2_0, zero=1),
    "MXFP4": _codebook("mxfp4", (PLAIN_BLOCK, 17), PLAIN_BLOCK, codes.mxfp4),
    "NVFP4": _codebook("nvfp4", (64, 36), 16, codes.nvfp4),
}
