"""What the machine itself can do right now: memory reads and matrix products.

Owns: one measurement of both, in a process of its own so that its threads and memory are gone afterwards, and the word
for the state. Called by: `benchmarks.peers`, before and after each scenario; `python -m benchmarks.peer.limits`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bandwidth import read_bandwidth

Limits = dict[str, float]

SIZE = 2048
LIMIT_S = 120.0
GOOD_BANDWIDTH = 60.0
"""GB/s from which the state counts as good, unless told otherwise; right for two cores of a current server."""


def measure() -> Limits:
    """Read rates in GB/s (working sets of 85 and 270 MB) and matmul rates in GFLOP/s (2048 cubed, through torch)."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    figures = {f"read {megabytes} MB": read_bandwidth(megabytes=megabytes, rounds=9) for megabytes in (85, 270)}
    with torch.inference_mode():
        a = torch.randn(SIZE, SIZE).bfloat16()
        figures["bf16 matmul"] = rate(lambda: a @ a)
        b = torch.randint(-8, 8, (SIZE, SIZE), dtype=torch.int8)
        figures["int8 matmul"] = rate(lambda: torch._int_mm(b, b))
    return figures


def rate(product: Callable[[], object], rounds: int = 9) -> float:
    """Best rate of a product of two matrices of 2048 by 2048, in GFLOP/s."""
    product()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - start)
    return 2 * SIZE**3 / best / 1e9


def measure_apart() -> Limits:
    """`measure` in a process of its own."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "benchmarks.peer.limits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=root)
    if done.returncode:
        raise SystemExit(f"The limits could not be measured: {done.stderr.strip()[-400:]}")
    limits: Limits = json.loads(done.stdout)
    return limits


def state(before: Limits, after: Limits, good: float) -> str:
    """`good` when 270 MB were read at `good` GB/s or more both before and after, `bad` when at neither time, else
    `mixed`: on virtual machines the bandwidth may halve for minutes."""
    marks = [figures["read 270 MB"] >= good for figures in (before, after)]
    return "good" if all(marks) else "mixed" if any(marks) else "bad"


if __name__ == "__main__":
    print(json.dumps(measure()))
