"""Copies of KV pages between the cache and host memory, beside plain copies; reads from a disk, beside plain reads.

Run: `python -m benchmarks.kv_pages [DIRECTORY]`, a directory on the disk that is measured. Medians of rounds that alternate,
for the shapes of some models (bfloat16, 16 tokens a block). Saved pages are new memory each time, as in an engine; the first
round of all does not count. Files are dropped from the system's memory before each round of reads.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from core.api.kv_transfer import KVTransfers, PrefixKey
from core.api.specs import KVGroup
from core_kv_connectors.shared_pages import PlacedTransfers
from core_kv_connectors.tiers.disk import DiskTier
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.runtime import CpuPlatform
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.executor.device import Device

SHAPES = {"SmolLM2 135M": (30, 12 << 10), "Gemma 3 270M": (18, 16 << 10), "Qwen3 0.6B": (28, 64 << 10)}
"""Layers, and bytes of a block in one layer."""
ROUNDS = 9
COUNT = 200


def seconds(run: Callable[[], object]) -> float:
    """Time of a call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def compare(name: str, num_bytes: int, runs: Mapping[str, Callable[[], object]], prepare: Callable[[], object]) -> None:
    """Print a line for each kind of run, which takes its turn in each round; the first kind is the measure of the others."""
    taken: dict[str, list[float]] = {kind: [] for kind in runs}
    for turn in range(ROUNDS + 1):
        for kind, run in runs.items():
            prepare()
            found = seconds(run)
            if turn:
                taken[kind].append(found)
    first = next(iter(runs))
    plain_s = statistics.median(taken[first])
    for kind, all_seconds in taken.items():
        median = statistics.median(all_seconds)
        print(f"{name} {kind}: {num_bytes / median / 1e9:.1f} GB/s, {plain_s / median:.0%} of {first}", flush=True)


def copies(name: str, layers: int, size: int, device: Device) -> None:
    """Compare copies with those of whole pages, by one thread."""
    groups = (KVGroup("full", tuple(range(layers))),)
    memory = KVMemory(device, groups, [size] * layers, COUNT + 1)
    for layer in range(layers):
        memory.of_layer(layer).fill_(1)  # new memory is slow once
    pages = [np.ones(layers * size, np.uint8) for _ in range(COUNT)]
    whole = np.ones((COUNT, layers * size), np.uint8)
    block_ids = list(range(1, COUNT + 1))

    def plain() -> None:
        for row, page in zip(whole, pages, strict=True):
            row[:] = page

    loads = KVTransfers(1, [], list(zip(block_ids, pages, strict=True)))
    saves = KVTransfers(1, block_ids, [])
    again = PlacedTransfers(1, block_ids, [], pages)
    runs: dict[str, Callable[[], object]] = {
        "memcpy": plain,
        "load": lambda: memory.transfer(loads),
        "save": lambda: memory.transfer(saves),
        "save into memory written before": lambda: memory.transfer(again),
        "memcpy to new memory": lambda: [page.copy() for page in pages],
    }
    compare(name, whole.nbytes, runs, lambda: None)


def reads(name: str, page_bytes: int, directory: Path) -> None:
    """Compare reads of a disk's pages, verified, with reads of the same files into the same memory."""
    disk = DiskTier(directory, "0a" * 16, 1 << 40, page_bytes)
    keys = [PrefixKey(number.to_bytes(32, "little"), bytes(64)) for number in range(COUNT)]
    for number, key in enumerate(keys):
        disk.write(0, key, np.full(page_bytes, number % 251, np.uint8))
        disk.flush()
    files = sorted((directory / disk.fingerprint).iterdir())
    memory = [np.ones(page_bytes, np.uint8) for _ in range(COUNT)]

    def plain() -> None:
        for path, page in zip(files, memory, strict=True):
            with path.open("rb", buffering=0) as file:
                file.readinto(page.data)

    def prepare() -> None:
        forget(files)
        disk._memory._ahead = list(memory)

    runs = {"plain read": plain, "load from disk": lambda: [disk.read(0, key) for key in keys]}
    compare(name, COUNT * page_bytes, runs, prepare)
    disk.close()
    for path in files:
        path.unlink()


def forget(files: Sequence[Path]) -> None:
    """Have the system drop its copies of files."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    """Print the lines of each shape, with as many compute threads as there are processors."""
    kernels = NativeKernels(os.cpu_count() or 1)
    device = Device(CpuPlatform(kernels.num_threads).open("cpu", [kernels]))
    for name, (layers, size) in SHAPES.items():
        copies(name, layers, size, device)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        for name, (layers, size) in SHAPES.items():
            reads(name, layers * size, Path(directory))


if __name__ == "__main__":
    main()
