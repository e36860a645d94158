"""Row counts for which steps are recorded, if a recording serves one count.

Owns: the series of sizes. Never does: record. Called by: the configuration, platforms of devices with graphs.
"""

from __future__ import annotations

from typing import Final

LARGEST: Final = 512
"""Largest size if no argument limits it."""


def graph_sizes(largest: int) -> list[int]:
    """Return 1, 2, 4, 8, 16, then up to four sizes between powers of two: a larger step is padded by a half at most."""
    sizes: list[int] = []
    size = 1
    while size <= largest:
        sizes.append(size)
        if size < 16:
            size *= 2
        else:
            power = 1 << (size.bit_length() - 1)
            size += max(power // 4, 8)
    return sizes


def powers_of_two(largest: int) -> list[int]:
    """Return powers of two, which take the least memory and time to record: a step is padded to twice its rows at most."""
    return [1 << exponent for exponent in range(largest.bit_length())] if largest else []
