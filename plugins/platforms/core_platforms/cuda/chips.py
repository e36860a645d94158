"""NVIDIA GPU architectures, with the dtypes that they compute in. Torch-free.

Owns: the table, a row for each architecture. Never does: ask a device. Called by: the manifest, the runtime, adapters.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Chip(NamedTuple):
    """One GPU architecture.

    sm: its number, 90 for `sm_90`.
    name: family name for messages.
    dtypes: dtypes of its matrix products, by the run's names.
    """

    sm: int
    name: str
    dtypes: tuple[str, ...]


HALF: Final = ("float16", "float32")
ALL: Final = ("bfloat16", "float16", "float32")

CHIPS: Final = (
    Chip(70, "Volta", HALF),
    Chip(75, "Turing", HALF),
    Chip(80, "Ampere", ALL),
    Chip(86, "Ampere, for graphics", ALL),
    Chip(87, "Orin", ALL),
    Chip(89, "Ada", ALL),
    Chip(90, "Hopper", ALL),
    Chip(100, "Blackwell", ALL),
    Chip(103, "Blackwell Ultra", ALL),
    Chip(120, "Blackwell, for graphics", ALL),
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
