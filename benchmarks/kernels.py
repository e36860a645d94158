"""Times the native kernels a shape at a time, beside the machine's limits.

    python -m benchmarks.kernels [--threads 2] [--model smollm2|llama-8b] [--rows 1,8,64,512] [--formats q4_1/int8,...]
        [--isa amx]

Prints the machine's measured limits (reading memory; products in registers on one core, times the threads: peak.c),
then microseconds a call, GB/s of packed weights, GFLOP/s, and the share of the limit that binds: the least time that
reading the weights or multiplying takes, over ours. All layers are walked in turn, so that their weights come from memory
as they do in a model; a figure is the mean of each one's fastest call, and above 100% where caches hold them.
Attention and sampling: `attention.py`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from core_platforms.cpu.extension import check_isa, kernels_or_reason
from core_platforms.cpu.kernels import NativeKernels
from core_quantization.online.rounding import quantize
from core_runtime.weights.formats import CanonicalWeight, Dense, IntGroups

LAYERS = {  # layers, the shapes of each, the head
    "smollm2": (30, [(960, 576), (576, 576), (3072, 576), (576, 1536)], (49152, 576)),
    "llama-8b": (2, [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)], (32768, 4096)),
}
FORMATS = ("q4_1/int8", "q4_0/int8", "q8_0/int8", "int8_groups/int8", "int8_channel/int8_row", "bf16/bf16")
MORE_FORMATS = ("bf16/none", "int8_channel/int8", "fp8_e4m3/bf16", "nf4/bf16", "fp4/bf16", "mxfp4/int8", "nvfp4/int8")
GROUPS = {"q4_1": (4, True), "q4_0": (4, False), "q8_0": (8, False)}


def make(fmt, n, k) -> tuple[CanonicalWeight, str]:
    kind, activation = fmt.split("/")
    if kind == "bf16":
        return Dense(torch.randn(n, k).bfloat16()), activation
    if kind not in GROUPS:
        return quantize(torch.randn(n, k), kind), activation
    bits, has_minimum = GROUPS[kind]
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
    scale = (torch.rand(n, k // 32) * 0.01).half()
    minimum = (-scale * 8) if has_minimum else None
    return IntGroups(bits, 32, values, scale, minimum, 0 if has_minimum else 1 << (bits - 1)), activation


@dataclass
class Limits:
    """Bytes, and operations of bf16 and of int8, a second."""

    bandwidth: float
    bf16: float
    int8: float

    def share(self, seconds, nbytes, operations, integers):
        """Of the least time that reading or multiplying takes; above 1 when the weights came from a cache."""
        peak = self.int8 if integers else self.bf16
        return max(nbytes / self.bandwidth, operations / peak) / seconds


def measure_limits(threads):
    """The machine's, now; infinite (a share of 0%) without a compiler for peak.c."""
    source = Path(__file__).with_name("peak.c")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "peak"))
        build = ["cc", "-O3", "-march=native", "-pthread", str(source), "-o", program]
        try:
            subprocess.run(build, check=True, capture_output=True)
            out = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"limits not measured: {error}")
            return Limits(math.inf, math.inf, math.inf)
    bf16, int8, bandwidth = map(float, out.split())
    return Limits(bandwidth, bf16 * threads, int8 * threads)


def time_model(layers, rows, limits, integers):
    """layers: (N, K) and kernel in the order of a step, the head last, so that weights come from where a step finds them."""
    inputs = {k: torch.randn(rows, k) for (_, k), _ in layers}
    outputs = {n: torch.empty(rows, n) for (n, _), _ in layers}
    fastest, walks, end = [math.inf] * len(layers), 0, time.perf_counter() + 2
    while time.perf_counter() < end or walks < 3:
        walks += 1
        for index, ((n, k), linear) in enumerate(layers):
            x, out = inputs[k], outputs[n]
            start = time.perf_counter()
            linear(x, out)
            fastest[index] = min(fastest[index], time.perf_counter() - start)
    for shape in dict.fromkeys(shape for shape, _ in layers):
        chosen = [index for index, (other, _) in enumerate(layers) if other == shape]
        show(f"{shape[0]:6}x{shape[1]:<5} rows {rows:4}", layers, fastest, chosen, rows, limits, integers)
    show(f"whole model  rows {rows:4}", layers, fastest, range(len(layers)), rows, limits, integers)


def show(title, layers, fastest, chosen, rows, limits, integers):
    seconds = sum(fastest[index] for index in chosen)
    nbytes = sum(layers[index][1].nbytes for index in chosen)
    operations = sum(2 * rows * math.prod(layers[index][0]) for index in chosen)
    share = limits.share(seconds, nbytes, operations, integers)
    print(
        f"  {title}: {seconds / len(chosen) * 1e6:9.1f} us a call {nbytes / seconds / 1e9:6.1f} GB/s "
        f"{operations / seconds / 1e9:7.1f} GFLOP/s {share:6.0%}, {rows / seconds:9.0f} tokens/s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", choices=LAYERS, default="smollm2")
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--isa", help="the instruction set; by default the best one of this processor")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"also {', '.join(MORE_FORMATS)}; all: every one")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.isa:
        check_isa(native := kernels_or_reason(), args.isa)
        native.set_isa(args.isa)
    kernels = NativeKernels(args.threads)
    print(kernels.numerics, f"{args.threads} threads")
    limits = measure_limits(args.threads)
    print(
        f"limits: {limits.bandwidth / 1e9:.1f} GB/s read, {limits.bf16 / 1e9:.0f} GFLOP/s bf16, "
        f"{limits.int8 / 1e9:.0f} GOP/s int8"
    )
    count, shapes, head = LAYERS[args.model]
    formats = (*FORMATS, *MORE_FORMATS) if args.formats == "all" else tuple(filter(None, args.formats.split(",")))
    for fmt in formats:
        print(fmt)
        integers = "int8" in fmt.split("/")[1]
        made = {shape: make(fmt, *shape) for shape in (*shapes, head)}
        order = [shape for _ in range(count) for shape in shapes] + [head]
        layers = [(n_k, kernels.linear(made[n_k][0], activation=made[n_k][1])) for n_k in order]
        for rows in map(int, args.rows.split(",")):
            time_model(layers, rows, limits, integers)


if __name__ == "__main__":
    main()
