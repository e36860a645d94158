"""Row counts for which steps are recorded, if a recording serves one count.

Owns: the series of sizes. Never does: record. Called by: the configuration, platforms of devices with graphs.
"""

from __future__ import annotations

from typing import Final

LARGEST: Final = 1024
"""Largest size if no argument limits it: computing more rows takes longer than the host's calls."""

CHEAP: Final = (16, 32, 48, 64, 96, 128, 192, 256)
"""Row counts up to which a step costs about the reading of the weights, so that padded rows cost little."""


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


def mixed_sizes(largest: int) -> list[int]:
    """Return the sizes of steps with prompts: fewer than `graph_sizes` where padding costs little. `largest` is one of
    them, because prompts are cut to the largest step.
    """
    sizes = [size for size in (*CHEAP, *graph_sizes(largest)) if size < largest and (size in CHEAP or size > CHEAP[-1])]
    return [*sorted(set(sizes)), largest] if largest else []


def powers_of_two(largest: int) -> list[int]:
    """Return powers of two, which take the least memory and time to record: a step is padded to twice its rows at most."""
    return [1 << exponent for exponent in range(largest.bit_length())] if largest else []
