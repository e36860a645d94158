"""NVIDIA GPU architectures, with the properties that kernels depend on. Torch-free.

Owns: the table, a row for each architecture. Never does: ask a device. Called by: the manifest, the runtime, adapters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

KIB: Final = 1 << 10


class Chip(NamedTuple):
    """One GPU architecture.

    sm: its number, 90 for `sm_90`.
    name: family name for messages.
    dtypes: dtypes of its matrix products, by the run's names.
    fp8, fp4: whether its matrix units accept 8-bit and 4-bit floats.
    matrix: the instruction of its matrix units.
    shared_bytes: shared memory that one thread block may use.
    """

    sm: int
    name: str
    dtypes: tuple[str, ...]
    fp8: bool
    fp4: bool
    matrix: str
    shared_bytes: int


HALF: Final = ("float16", "float32")
ALL: Final = ("bfloat16", "float16", "float32")

CHIPS: Final = (
    Chip(70, "Volta", HALF, fp8=False, fp4=False, matrix="mma", shared_bytes=96 * KIB),
    Chip(75, "Turing", HALF, fp8=False, fp4=False, matrix="mma", shared_bytes=64 * KIB),
    Chip(80, "Ampere", ALL, fp8=False, fp4=False, matrix="mma", shared_bytes=163 * KIB),
    Chip(86, "Ampere, for graphics", ALL, fp8=False, fp4=False, matrix="mma", shared_bytes=99 * KIB),
    Chip(87, "Orin", ALL, fp8=False, fp4=False, matrix="mma", shared_bytes=163 * KIB),
    Chip(89, "Ada", ALL, fp8=True, fp4=False, matrix="mma", shared_bytes=99 * KIB),
    Chip(90, "Hopper", ALL, fp8=True, fp4=False, matrix="wgmma", shared_bytes=227 * KIB),
    Chip(100, "Blackwell", ALL, fp8=True, fp4=True, matrix="tcgen05", shared_bytes=227 * KIB),
    Chip(103, "Blackwell Ultra", ALL, fp8=True, fp4=True, matrix="tcgen05", shared_bytes=227 * KIB),
    Chip(120, "Blackwell, for graphics", ALL, fp8=True, fp4=True, matrix="mma", shared_bytes=99 * KIB),
)
"""Known architectures, oldest first."""


def sm_of(profile: str) -> int:
    """Return the number of a profile, 90 for `sm_90`; 0 when the driver did not report one."""
    digits = profile.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0


def chip_of(profile: str) -> Chip | None:
    """Return the row of a device's profile, or of the newest older architecture; None for one older than all rows."""
    sm = sm_of(profile)
    known = [chip for chip in CHIPS if chip.sm <= sm]
    return known[-1] if known else None
