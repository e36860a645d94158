"""What the machine itself can do right now: reads of memory and products of matrices.

Owns: both measurements. Never does: run a model. Called by: `core bench card`, before each round.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from core_commands.bench.bandwidth import read_bandwidth

SIZE: Final = 1024
ROUNDS: Final = 5


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
                one = torch.ones(SIZE, SIZE, dtype=dtype)
                for _ in range(1 + ROUNDS):  # the first product of a type also makes its plan
                    begin = time.perf_counter()
                    one @ one
                    best = max(best, SIZE**3 / (time.perf_counter() - begin))
    finally:
        torch.set_num_threads(before)
    return best
