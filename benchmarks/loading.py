"""How fast loaders read a file that lies in the page cache, beside plain reading of the same file.

Owns: one measurement. Never does: pack weights. Run: `python -m benchmarks.loading [MODEL] [--load-format NAME]`; without a
model it writes one file of random bytes as safetensors and removes it again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from core.plugin.hookspecs import LoadContext
from core.plugin.registry import PluginRegistry
from core.plugin.table import load_plugin
from core_config.locating.files import file_facts
from core_config.selection import select_loader
from core_runtime.contracts import Loader

CHUNK = 16 << 20
ROUNDS = 7
TENSORS = 64
TENSOR_BYTES = 16 << 20


def plain_seconds(paths: list[str]) -> float:
    """Seconds to read the files into one buffer, a chunk at a time."""
    buffer = bytearray(CHUNK)
    start = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def loader_seconds(loader: Loader, ref: str) -> float:
    """Seconds to copy every tensor of the model into one buffer, as it comes."""
    manifest = loader.resolve(ref)
    largest = max(info.nbytes for info in manifest.tensors.values())
    buffer = torch.zeros(largest, dtype=torch.uint8)
    start = time.perf_counter()
    for _, tensor in loader.iter(manifest, list(manifest.tensors)):
        raw = tensor.reshape(-1).view(torch.uint8)
        buffer[: raw.numel()].copy_(raw)
    return time.perf_counter() - start


def measure(ref: str, name: str | None) -> None:
    """Print both rates, the median of rounds that alternate, as other work on the machine changes them."""
    choice = select_loader(PluginRegistry(), name, file_facts(ref))
    loader = load_plugin(choice.manifest, LoadContext())
    manifest = loader.resolve(ref)
    size = sum(info.nbytes for info in manifest.tensors.values())
    in_files = sum(os.path.getsize(path) for path in manifest.files)
    torch.set_num_threads(1)
    plain_seconds(manifest.files)
    rounds: dict[str, list[float]] = {"plain": [], "loader": []}
    measures: dict[str, tuple[Callable[[], float], int]] = {
        "plain": (lambda: plain_seconds(manifest.files), in_files),
        "loader": (lambda: loader_seconds(loader, ref), size),
    }
    for _ in range(ROUNDS):
        for what, (seconds, nbytes) in measures.items():
            rounds[what].append(nbytes / seconds() / 1e9)
    plain = statistics.median(rounds["plain"])
    read = statistics.median(rounds["loader"])
    print(f"{choice.manifest.row.name}: {read:.1f} GB/s of {plain:.1f} GB/s plain, {read / plain:.0%}")


def write_model(directory: Path) -> None:
    """A directory that the safetensors loader takes."""
    from safetensors.torch import save_file

    tensors = {}
    for index in range(TENSORS):
        tensors[f"{index}.weight"] = torch.randint(0, 256, (TENSOR_BYTES,), dtype=torch.uint8)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text('{"model_type": "llama"}')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--load-format")
    arguments = parser.parse_args()
    if arguments.model is not None:
        measure(arguments.model, arguments.load_format)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder))
            measure(folder, arguments.load_format)
