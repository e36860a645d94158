"""Copies of KV pages between the cache and host memory, beside a copy of as many bytes in one piece.

Run: `python -m benchmarks.kv_pages`. Medians of rounds that alternate, for the shapes of some models (bfloat16,
16 tokens a block). Saved pages are new memory each time, as in an engine; the first round of all does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from core.api.kv_transfer import KVTransfers
from core.api.specs import KVGroup
from core_platforms.cpu.runtime import CpuPlatform
from core_runtime.executor.device import Device
from core_runtime.executor.kv_memory import KVMemory

SHAPES = {"SmolLM2 135M": (30, 12 << 10), "Gemma 3 270M": (18, 16 << 10), "Qwen3 0.6B": (28, 64 << 10)}
"""Layers, and bytes of a block in one layer."""
ROUNDS = 9
COUNT = 200


def seconds(run: Callable[[], object]) -> float:
    """Time of a call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    """Print a line for each shape."""
    device = Device(CpuPlatform(1).open("cpu", []))
    for name, (layers, size) in SHAPES.items():
        groups = (KVGroup("full", tuple(range(layers))),)
        memory = KVMemory(device, groups, [size] * layers, COUNT + 1)
        for layer in range(layers):
            memory.of_layer(layer).fill_(1)  # new memory is slow once
        pages = [np.ones(layers * size, np.uint8) for _ in range(COUNT)]
        whole = np.ones((COUNT, layers * size), np.uint8)
        block_ids = list(range(1, COUNT + 1))

        def plain(pages: list[np.ndarray] = pages, whole: np.ndarray = whole) -> None:
            for row, page in zip(whole, pages, strict=True):
                row[:] = page

        loads = KVTransfers(1, [], list(zip(block_ids, pages, strict=True)))
        saves = KVTransfers(1, block_ids, [])
        runs: dict[str, Callable[[], object]] = {
            "memcpy": plain,
            "load": lambda memory=memory, loads=loads: memory.transfer(loads),
            "save": lambda memory=memory, saves=saves: memory.transfer(saves),
        }
        taken: dict[str, list[float]] = {kind: [] for kind in runs}
        for turn in range(ROUNDS + 1):
            for kind, run in runs.items():
                found = seconds(run)
                if turn:
                    taken[kind].append(found)
        plain_s = statistics.median(taken["memcpy"])
        for kind, all_seconds in taken.items():
            median = statistics.median(all_seconds)
            print(f"{name} {kind}: {whole.nbytes / median / 1e9:.1f} GB/s, {plain_s / median:.0%} of memcpy")


if __name__ == "__main__":
    main()
