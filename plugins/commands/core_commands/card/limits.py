"""What the machine itself can do right now: reads of memory and products of matrices.

Owns: both measurements. Never does: run a model. Called by: `core bench card`, before each round.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core_commands.bench.bandwidth import read_bandwidth

if TYPE_CHECKING:
    import torch

SIZE: Final = 1024
PROBE: Final = 256
ROUNDS: Final = 5
SLOW: Final = 4
"""A type that is so many times slower than another is not measured: without instructions for bfloat16, torch took 10 s for
one product of 1024 by 1024."""


@dataclass(frozen=True, slots=True)
class Limits:
    """bandwidth: bytes a second that are read. products: multiplications with additions a second, in the best type."""

    bandwidth: float
    products: float


def limits() -> Limits:
    """Measure both; some hundred milliseconds."""
    return Limits(1e9 * read_bandwidth(rounds=3), product_rate())


def product_rate() -> float:
    """Return the best rate of a product of two matrices of 1024 by 1024 in torch, over float32 and bfloat16."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    best = 0.0
    try:
        with torch.inference_mode():
            for dtype in (torch.float32, torch.bfloat16):
                probed = _rate(torch.ones(PROBE, PROBE, dtype=dtype), 2)
                if SLOW * probed >= best:
                    best = max(best, _rate(torch.ones(SIZE, SIZE, dtype=dtype), ROUNDS))
    finally:
        torch.set_num_threads(before)
    return best


def _rate(matrix: torch.Tensor, rounds: int) -> float:
    """Return the best rate of a square matrix times itself, after a product that also makes its plan."""
    matrix @ matrix
    best = 0.0
    for _ in range(rounds):
        begin = time.perf_counter()
        matrix @ matrix
        best = max(best, matrix.shape[0] ** 3 / (time.perf_counter() - begin))
    return best
