"""The chip families that kernels are compiled for, as rows. Torch-free.

Owns: the properties that distinguish families for a compiler. Never does: inspect the machine's own chip beyond its
name.
Called by: the catalog of kernels, the launcher, the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INTERPRETER: Final = "interpreter"
"""Name for the CPU on which Triton's interpreter runs."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip family.

    name: architecture name.
    backend: Triton's backend, `cuda` or `hip`.
    arch: name in Triton's targets.
    warp: threads per warp.
    shared: bytes of shared memory per program.
    matrix: pattern that matches matrix-unit instructions in Triton's assembly.
    """

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int
    matrix: str


CHIPS: Final = (
    Chip("sm_80", "cuda", 80, 32, 163 * 1024, r"\bmma\.sync"),
    Chip("sm_90", "cuda", 90, 32, 227 * 1024, r"\bwgmma\.mma_async"),
    Chip("sm_100", "cuda", 100, 32, 227 * 1024, r"\btcgen05\.mma"),
    Chip("sm_120", "cuda", 120, 32, 99 * 1024, r"\bmma\.sync"),
    Chip("gfx942", "hip", "gfx942", 64, 64 * 1024, r"\bv_mfma"),
)
NAMES: Final = tuple(chip.name for chip in CHIPS)
ALIKE: Final = {"sm_103": "sm_100", "gfx950": "gfx942", "gfx940": "gfx942", "gfx941": "gfx942"}
"""Chips that use another chip's configurations."""
FIRST_EARLY: Final = 90
"""Compute capability, times ten, from which a kernel can be launched early."""
LEAST: Final = "sm_120"
"""The fallback: its configurations fit into the shared memory of every NVIDIA chip from sm_80 on."""


def starts_early(architecture: str) -> bool:
    """Whether a chip can launch a kernel while the previous one still runs: NVIDIA's, from Hopper on."""
    kind, _, digits = architecture.partition("_")
    return kind == "sm" and int(digits) >= FIRST_EARLY


def alike(architecture: str) -> str:
    """Return the chip family whose configurations an architecture uses, such as `sm_89` or `gfx942:sramecc+`."""
    name = architecture.partition(":")[0]
    if name in NAMES or name == INTERPRETER:
        return name
    return ALIKE.get(name, LEAST)
