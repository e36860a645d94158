"""How fast this machine reads memory right now: decoding is bound by it, and virtual machines change it from minute to minute.

Owns: one measurement. Never does: judge it. Called by: `core tune`, `core bench card`, and the benchmarks of the project.
"""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

MEGABYTES = 270


def read_bandwidth(threads: int | None = None, rounds: int = 5, megabytes: int = MEGABYTES) -> float:
    """Return the best rate, in GB/s, at which threads together compare two buffers of `megabytes` in all.

    threads: None: one for each usable processor. rounds: of which the best counts.
    """
    threads = threads or len(os.sched_getaffinity(0))
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    part = megabytes * 1_000_000 // (2 * threads)
    buffers = [(np.ones(part, np.uint8), np.ones(part, np.uint8)) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(lambda pair: compare(pair[0].ctypes.data, pair[1].ctypes.data, part), buffers))
            best = max(best, 2 * part * threads / (time.perf_counter() - start) / 1e9)
    return best
