"""The kinds of chips that kernels are compiled for, as rows. Torch-free.

Owns: what tells one kind from another for a compiler. Never does: look at the machine's own chip beyond its name.
Called by: the catalog of kernels, the launcher, the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INTERPRETER: Final = "interpreter"
"""Stands for the processor on which Triton's interpreter runs."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of chip.

    name: of its architecture.
    backend: of Triton, `cuda` or `hip`.
    arch: as Triton's targets name it.
    warp: threads of one.
    shared: bytes of shared memory that a program may use.
    matrix: a pattern of the instructions of its matrix units, in the assembly that Triton writes.
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
"""Chips that take the configurations of another one."""
LEAST: Final = "sm_120"
"""Its configurations fit into the shared memory of every NVIDIA chip from sm_80 on."""


def alike(architecture: str) -> str:
    """The kind of chip whose configurations an architecture takes, such as `sm_89` or `gfx942:sramecc+`."""
    name = architecture.partition(":")[0]
    if name in NAMES or name == INTERPRETER:
        return name
    return ALIKE.get(name, LEAST)
