"""Tables of numbers that small integers index. Torch-free.

Owns: the numbers. Called by: super-groups, the methods that unpack to them, kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers.

    multiples: the numbers in units, one per integer, each a signed byte.
    unit: value of a unit, a power of two.
    """

    multiples: tuple[int, ...]
    unit: float = 1.0

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return (len(self.multiples) - 1).bit_length()

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers of the table."""
        return tuple(multiple * self.unit for multiple in self.multiples)


TABLES: Final = MappingProxyType(
    {
        "iq4": Table((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
        "iq3_s": Table(tuple(range(-15, 16, 2))),
        "iq3": Table((-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62), unit=0.25),
        "iq2": Table((-43, -25, -8, 8, 25, 43, 0, 0), unit=0.125),
        "iq1": Table((-9, -7, -1, 1, 7, 9, 0, 0), unit=0.125),
    }
)
"""Tables by format: IQ4_NL and IQ4_XS; the coordinates of ggml's grids with their signs: IQ3_S, IQ3_XXS, IQ2; those of IQ1,
before an eighth is added or not.
"""
