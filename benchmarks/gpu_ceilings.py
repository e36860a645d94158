"""The two ceilings of a GPU, measured: how fast it copies, and how fast it multiplies.

Owns: those measurements, and the timing of a call by the device's own clock. Called by: `benchmarks.gpu_rows`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

GIB = 1 << 30
ROUNDS = 20


def seconds_of(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median time of a call on the device, behind three that do not count."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def copy_rate(nbytes: int = 4 * GIB) -> float:
    """Bytes read and written in a second by a copy."""
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * nbytes / seconds_of(lambda: target.copy_(source))


def matmul_rate(size: int = 8192) -> float:
    """Operations in a second of a bfloat16 product of square matrices."""
    left = torch.randn(size, size, dtype=torch.bfloat16, device="cuda")
    right = torch.randn(size, size, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(left)
    return 2 * size**3 / seconds_of(lambda: torch.matmul(left, right, out=out))
