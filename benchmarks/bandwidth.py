"""How fast this machine reads memory right now: decoding is bound by it, and virtual machines change their mind.

Owns: one measurement. Called by: the other benchmarks, to print it beside their figures; `python -m benchmarks.bandwidth`.
"""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

MEGABYTES = 270


def read_bandwidth(threads: int | None = None, rounds: int = 5, megabytes: int = MEGABYTES) -> float:
    """Best rate, in GB/s, at which `threads` threads (all cores) together compare two buffers of `megabytes` in all."""
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


if __name__ == "__main__":
    print(f"{read_bandwidth():.1f} GB/s")
