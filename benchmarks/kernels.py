"""Times the native kernels a shape at a time, beside the machine's limits.

    python -m benchmarks.kernels [--threads 2] [--model smollm2] [--rows 1,8,64,512] [--formats q4_1/int8,...]

Prints the machine's measured limits (reading memory; products in registers on one core, times the threads: peak.c),
then microseconds a call, GB/s of packed weights, GFLOP/s, and the share of the limit that binds: the least time that
reading the weights or multiplying takes, over ours. The weights of all layers are walked in turn, so that they come from
memory as they do in a model. Then one layer's attention (prefill and decode) and plain sampling; an empty
--formats leaves only those.
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

from benchmarks.bandwidth import read_bandwidth
from core.api.specs import AttentionSpec
from core.plugin.contracts import BatchView
from core.sampling.noise import NoiseKey
from core.sampling.race import native_winners
from core.weights.formats import CanonicalWeight, Dense, IntGroups
from plugins.attention.cpu_paged.backend import CpuPagedAttention
from plugins.platforms.cpu.kernels import NativeKernels
from plugins.quantization.online.rounding import quantize

LAYERS = {"smollm2": (30, [(960, 576), (576, 576), (3072, 576), (576, 1536)], (49152, 576))}
HEADS = {"smollm2": AttentionSpec(9, 3, 64, 64, 0.125, None, None)}
VOCABULARY = {"smollm2": 49152}
BATCHES = (
    (1, 1024, 1024),
    (1, 128, 128),
    (1, 400, 1),
    (16, 400, 1),
    (64, 200, 1),
    (64, 1000, 1),
)  # sequences, keys, new
FORMATS = ("q4_1/int8", "q4_0/int8", "q8_0/int8", "int8_channel/int8_row", "bf16/bf16")
MORE_FORMATS = ("bf16/none", "fp8_e4m3/bf16", "nf4/bf16", "fp4/bf16", "mxfp4/int8", "nvfp4/int8")
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
    """The machine's, now. Without a compiler for peak.c the products have no limit to be compared with."""
    bandwidth = read_bandwidth(threads, rounds=20) * 1e9
    source = Path(__file__).with_name("peak.c")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "peak")
        build = ["cc", "-O3", "-march=native", str(source), "-o", str(program)]
        try:
            subprocess.run(build, check=True, capture_output=True)
            out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"peaks not measured: {error}")
            return Limits(bandwidth, math.inf, math.inf)
    bf16, int8 = (float(word) * threads for word in out.split())
    return Limits(bandwidth, bf16, int8)


def best(run, seconds=0.4):
    run()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def time_shape(linears, n, k, rows, limits, integers):
    x, out = torch.randn(rows, k), torch.empty(rows, n)

    def all_layers():
        for linear in linears:
            linear(x, out)

    native = best(all_layers) / len(linears)
    nbytes, flops = linears[0].nbytes, 2 * n * k * rows
    share = limits.share(native, nbytes, flops, integers)
    print(
        f"  {n:6}x{k:<5} rows {rows:4}: {native * 1e6:9.1f} us {nbytes / native / 1e9:6.1f} GB/s "
        f"{flops / native / 1e9:7.1f} GFLOP/s {share:6.0%}"
    )
    return native


def time_attention(spec, dtype, count, keys, new, block_size=16):
    """`count` sequences of `keys` keys, the last `new` of them this step's queries."""
    backend, width = CpuPagedAttention(), keys // block_size + 1
    size = backend.kv_layout(spec, block_size, dtype).block_bytes
    raw = torch.zeros(count * width, size, dtype=torch.uint8)
    table = torch.randperm(count * width).int().view(count, width)
    positions = torch.arange(keys - new, keys).repeat(count)
    sequences = torch.arange(count).repeat_interleave(new)
    slots = table[sequences, positions // block_size].long() * block_size + positions % block_size
    view = BatchView(
        num_tokens=count * new, num_seqs=count, block_size=block_size, max_query_len=new, max_seq_len=keys,
        query_lens=[new] * count, seq_lens_list=[keys] * count, cu_seqlens_q=torch.arange(count + 1).int() * new,
        seq_lens=torch.full((count,), keys).int(), block_table=table, slot_mapping=slots, positions=positions,
    )  # fmt: skip
    layer, metadata = backend.bind(spec, block_size, dtype, raw), backend.build(view)
    q, out = torch.randn(count * new, spec.num_heads, spec.head_size), torch.empty(count * new, spec.num_heads, 64)
    k = torch.randn(count * new, spec.num_kv_heads, spec.head_size)
    write = best(lambda: backend.write(layer, k, k, metadata))
    forward = best(lambda: backend.forward(layer, q, metadata, out))
    print(
        f"  {dtype:8} {count:3} x {keys:4} keys, {new:4} new: {forward * 1e6:9.1f} us, "
        f"cache write {write * 1e6:7.1f} us, {raw.numel() / forward / 1e9:6.1f} GB/s of cache"
    )


def time_race(kernels, vocabulary, rows):
    logits, keys = torch.randn(rows, vocabulary) * 3, [NoiseKey(i, 5, 0) for i in range(rows)]
    seconds = best(lambda: native_winners(kernels.race, logits, range(rows), keys, [1.0] * rows))
    print(f"  {rows:4} rows of {vocabulary}: {seconds * 1e6:9.1f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", choices=LAYERS, default="smollm2")
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"also {', '.join(MORE_FORMATS)}; all: every one")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = NativeKernels(args.threads)
    print(kernels.numerics, f"{args.threads} threads")
    limits = measure_limits(args.threads)
    print(
        f"limits: {limits.bandwidth / 1e9:.1f} GB/s read, {limits.bf16 / 1e9:.0f} GFLOP/s bf16, "
        f"{limits.int8 / 1e9:.0f} GOP/s int8"
    )
    count, shapes, head = LAYERS[args.model]
    formats = (*FORMATS, *MORE_FORMATS) if args.formats == "all" else tuple(filter(None, args.formats.split(",")))
    row_counts = [int(rows) for rows in args.rows.split(",")]
    for fmt in formats:
        print(fmt)
        integers = "int8" in fmt.split("/")[1]
        total, held, weights = dict.fromkeys(row_counts, 0.0), 0, 0
        for n, k in [*shapes, head]:
            copies = 1 if (n, k) == head else count
            linears = []
            weight, activation = make(fmt, n, k)
            for _ in range(copies):
                linears.append(kernels.linear(weight, activation=activation))
            held, weights = held + copies * linears[0].nbytes, weights + copies * n * k
            for rows in row_counts:
                total[rows] += copies * time_shape(linears, n, k, rows, limits, integers)
        for rows, seconds in total.items():
            share = limits.share(seconds, held, 2 * weights * rows, integers)
            print(f"  whole model, rows {rows:4}: {seconds * 1e3:8.2f} ms, {rows / seconds:8.0f} tokens/s {share:6.0%}")
    print("attention, one layer")
    for dtype in ("bfloat16", "float32"):
        for batch in BATCHES:
            time_attention(HEADS[args.model], dtype, *batch)
    print("plain sampling")
    for rows in (1, 16, 64):
        time_race(kernels, VOCABULARY[args.model], rows)


if __name__ == "__main__":
    main()
