"""Times products with the block types of GGUF beside plain bfloat16 and groups of bytes.

    python -m benchmarks.formats [--threads 2] [--types Q4_K,...] [--rows 1,64,512] [--out docs/quantization.json]

For each type: bytes in memory over bytes in the file, and for each number of rows GB/s of packed weights and GFLOP/s.
Matrices are walked in turn and together exceed the caches, so that one row comes from memory as in decoding; a figure is the
mean of each one's fastest product.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bandwidth import read_bandwidth
from core_platforms.cpu.kernels import NativeKernels
from core_quantization.gguf.blocks import FORMATS
from core_quantization.gguf.method import translate
from core_runtime.weights.formats import CanonicalWeight, Dense, IntGroups

SIZE = 4096
COUNT = 8
WALKS = 12
BYTES = 0x1F
"""Drawn bytes are below it: no two of them are a float16 that is not finite."""


def gguf_weight(dtype: str) -> tuple[CanonicalWeight, float]:
    """A random matrix of a block type, and its bytes over those of the file."""
    row = FORMATS[dtype]
    row_bytes = SIZE // row.block_size * row.block_bytes
    raw = np.random.default_rng(0).integers(0, BYTES, (SIZE, row_bytes), dtype=np.uint8)
    weight = translate(torch.from_numpy(raw), row)
    return weight, weight.nbytes / raw.nbytes


def byte_groups() -> IntGroups:
    """Groups of 32 bytes with float16 scales."""
    values = torch.randint(0, 256, (SIZE, SIZE), dtype=torch.uint8)
    scale = torch.rand(SIZE, SIZE // 32).half()
    return IntGroups(8, 32, values, scale, None, 128)


def seconds_of(linears: list, rows: int) -> float:
    """A product, as the mean of each matrix's fastest one: short enough to fall between other work of the machine."""
    x = torch.randn(rows, SIZE)
    out = torch.empty(rows, SIZE)
    fastest = [math.inf] * len(linears)
    for _ in range(WALKS):
        for index, linear in enumerate(linears):
            start = time.perf_counter()
            linear(x, out)
            fastest[index] = min(fastest[index], time.perf_counter() - start)
    return sum(fastest) / len(linears)


def main() -> None:
    """Print a line a format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default=",".join(FORMATS))
    parser.add_argument("--rows", default="1,64,512")
    parser.add_argument("--out", type=Path, help="a JSON file whose part `formats` is replaced")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = NativeKernels(args.threads)
    read = read_bandwidth(args.threads)
    print(f"{kernels.numerics}, {args.threads} threads, {read:.1f} GB/s read")
    figures: dict[str, Any] = {"read": read}
    weights = {
        "bfloat16": (Dense(torch.randn(SIZE, SIZE).bfloat16()), 1.0, "bf16"),
        "int8_groups": (byte_groups(), 1.0, "int8"),
    }
    for dtype in args.types.split(","):
        weight, ratio = gguf_weight(dtype)
        weights[dtype] = weight, ratio, "int8"
    for name, (weight, ratio, activation) in weights.items():
        linears = [kernels.linear(weight, activation=activation) for _ in range(COUNT)]
        line = f"{name:12} {ratio:5.3f} of the file"
        for rows in map(int, args.rows.split(",")):
            seconds = seconds_of(linears, rows)
            rate = linears[0].nbytes / seconds / 1e9
            operations = 2 * rows * SIZE * SIZE / seconds / 1e9
            line += f", rows {rows}: {rate:5.1f} GB/s {operations:6.0f} GFLOP/s"
            figures.setdefault(name, {})[str(rows)] = {"GB/s": round(rate, 1), "GFLOP/s": round(operations)}
        print(line, flush=True)
    if args.out:
        put(args.out, "formats", figures)


def put(path: Path, part: str, figures: Any) -> None:
    """Replace one part of a JSON file of figures."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    whole[part] = figures
    path.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
