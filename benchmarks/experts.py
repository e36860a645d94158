"""Times one layer of experts, beside the machine's limits.

    python -m benchmarks.experts [--layers qwen3-30b-a3b gpt-oss-20b] [--rows 1 16 512 4096] [--threads 2]

Owns: layers of random weights in the formats that GGUF files of these models hold, each token with experts of its own.
Prints, for each number of tokens, milliseconds a call, GB/s of the experts that were read (each once), and GOP/s. Experts are
drawn anew for each call, so that a layer's weights come from memory as they do in a model. Never does: routing, attention.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.bandwidth import read_bandwidth
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.weights.formats import CanonicalWeight, Codebook, SuperGroups

PASSES = 5
CALLS = 128


def q4_k(n: int, k: int) -> SuperGroups:
    sub = [torch.randint(1, 64, (n, k // 32), dtype=torch.int8) for _ in range(2)]
    low = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scale = torch.full((n, k // 256), 1e-4).half()
    return SuperGroups(4, 32, 256, low, scale, sub_scale=sub[0], minimum_scale=-scale, sub_minimum=sub[1])


def q6_k(n: int, k: int) -> SuperGroups:
    sub = torch.randint(-64, 64, (n, k // 16), dtype=torch.int8)
    low, high = (torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8) for bits in (4, 2))
    return SuperGroups(6, 16, 256, low, torch.full((n, k // 256), 1e-4).half(), high, sub, zero=32)


def mxfp4(n: int, k: int) -> Codebook:
    values = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    return Codebook("mxfp4", 32, values, torch.randint(116, 121, (n, k // 32), dtype=torch.uint8))


@dataclass(frozen=True)
class Shape:
    """A layer's sizes, and the formats of its first and second products."""

    experts: int
    top_k: int
    hidden: int
    inner: int
    first: Callable[[int, int], CanonicalWeight]
    second: Callable[[int, int], CanonicalWeight]


LAYERS = {
    "qwen3-30b-a3b": Shape(128, 8, 2048, 768, q4_k, q4_k),
    "qwen3-30b-a3b-q6": Shape(128, 8, 2048, 768, q4_k, q6_k),
    "gpt-oss-20b": Shape(32, 4, 2880, 2880, mxfp4, mxfp4),
}


class Layer:
    """A layer of random experts, and its calls' inputs."""

    def __init__(self, shape: Shape, threads: int) -> None:
        torch.manual_seed(0)
        self.shape = shape
        kernels = NativeKernels(threads)

        def side(make: Callable[[int, int], CanonicalWeight], n: int, k: int) -> list[Linear]:
            weight = make(n, k)
            return [Linear([kernels.linear(weight, activation="int8")]) for _ in range(shape.experts)]

        first = side(shape.first, 2 * shape.inner, shape.hidden)
        second = side(shape.second, shape.hidden, shape.inner)
        self._run = KernelSet([kernels]).experts(first, second, "silu")
        self.expert_bytes = first[0].nbytes + second[0].nbytes

    def seconds(self, rows: int) -> tuple[float, float]:
        """Return the time of a call, and how many experts it read: means of calls without a pause, as in a step."""
        shape = self.shape
        calls = max(2, CALLS // rows)
        x, out = torch.randn(rows, shape.hidden), torch.empty(rows, shape.hidden)
        weights = torch.rand(rows, shape.top_k)
        drawn = [torch.rand(rows, shape.experts).argsort(-1)[:, : shape.top_k].contiguous() for _ in range(calls)]
        start = time.perf_counter()
        for ids in drawn:
            self._run(x, ids, weights, out)
        return (time.perf_counter() - start) / calls, sum(len(ids.unique()) for ids in drawn) / calls

    def measure(self, rows: int) -> tuple[float, float, float]:
        """Return the median seconds of a call, bytes a second, and operations a second."""
        passes = [self.seconds(rows) for _ in range(PASSES)]
        seconds = statistics.median(taken for taken, _ in passes)
        speed = statistics.median(read * self.expert_bytes / taken for taken, read in passes)
        shape = self.shape
        operations = 6 * rows * shape.top_k * shape.hidden * shape.inner
        return seconds, speed, operations / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 512, 1024, 4096])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.layers:
        layer = Layer(LAYERS[name], options.threads)
        print(f"{name}: memory {read_bandwidth():.1f} GB/s, an expert {layer.expert_bytes / 1e6:.2f} MB")
        for rows in options.rows:
            seconds, speed, operations = layer.measure(rows)
            print(
                f"  rows {rows:4}: {seconds * 1e3:9.3f} ms, {speed / 1e9:6.1f} GB/s, {operations / 1e9:7.1f} GOP/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
