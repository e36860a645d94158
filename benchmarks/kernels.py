"""Times the native kernels a shape at a time, beside torch's linear on the same matrix.

    python benchmarks/kernels.py [--threads 2] [--model smollm2] [--rows 1,8,64,512] [--formats q4_1/int8,...]

Prints microseconds a call, GB/s of packed weights and GFLOP/s; the weights of all layers are walked in turn, so that
they come from memory as they do in a model. Attention and sampling: `attention.py`.
"""

from __future__ import annotations

import argparse
import time

import torch

from core.weights.formats import Dense, IntGroups
from plugins.platforms.cpu.kernels import NativeKernels

LAYERS = {"smollm2": (30, [(960, 576), (576, 576), (3072, 576), (576, 1536)], (49152, 576))}
FORMATS = ("q4_1/int8", "q8_0/int8", "bf16/bf16", "bf16/none")


def make(fmt, n, k):
    kind, activation = fmt.split("/")
    if kind == "bf16":
        return Dense(torch.randn(n, k).bfloat16()), activation
    bits = 4 if kind == "q4_1" else 8
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
    scale = (torch.rand(n, k // 32) * 0.01).half()
    minimum = (-scale * 8) if bits == 4 else None
    return IntGroups(bits, 32, values, scale, minimum, 0 if bits == 4 else 128), activation


def best(run, seconds=0.4):
    run()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def time_shape(linears, n, k, rows, torch_weight):
    x, out = torch.randn(rows, k), torch.empty(rows, n)

    def all_layers():
        for linear in linears:
            linear(x, out)

    native = best(all_layers) / len(linears)
    narrow = x.bfloat16()
    reference = best(lambda: torch.nn.functional.linear(narrow, torch_weight))
    nbytes, flops = linears[0].nbytes, 2 * n * k * rows
    print(
        f"  {n:6}x{k:<5} rows {rows:4}: {native * 1e6:9.1f} us {nbytes / native / 1e9:6.1f} GB/s "
        f"{flops / native / 1e9:7.1f} GFLOP/s | torch bf16 {reference * 1e6:9.1f} us"
    )
    return native


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", choices=LAYERS, default="smollm2")
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--formats", default=",".join(FORMATS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = NativeKernels(args.threads)
    print(kernels.numerics, f"{args.threads} threads")
    count, shapes, head = LAYERS[args.model]
    row_counts = [int(rows) for rows in args.rows.split(",")]
    for fmt in filter(None, args.formats.split(",")):
        print(fmt)
        total = dict.fromkeys(row_counts, 0.0)
        for n, k in [*shapes, head]:
            copies = 1 if (n, k) == head else count
            linears = []
            for _ in range(copies):
                weight, activation = make(fmt, n, k)
                linears.append(kernels.linear(weight, activation=activation))
            plain = torch.randn(n, k).bfloat16()
            for rows in row_counts:
                total[rows] += copies * time_shape(linears, n, k, rows, plain)
        for rows, seconds in total.items():
            print(f"  whole model, rows {rows:4}: {seconds * 1e3:8.2f} ms, {rows / seconds:8.0f} tokens/s")


if __name__ == "__main__":
    main()
