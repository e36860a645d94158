"""The products of a step with adapters against those without: `python -m benchmarks.adapter_kernels [--ranks 16,64]`.

Owns: that comparison. Never does: load a model, or run attention, norms and sampling, which are the same on both sides.

Three tapes of a whole SmolLM2 are replayed in turns: its products, the same with an update of all seven matrices after them,
and with products that are joined with their updates. All layers have memory of their own, so that weights and adapters come
from where they do in a model. Figures are medians: microseconds a step, what the adapters add, and the share of the base's
speed that is left.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels import make
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.low_rank import NativeLowRank
from core_platforms.cpu.native_linear import NativeLinear
from core_platforms.cpu.tape import Tape, record
from core_runtime.contracts import LowRankForm
from core_runtime.weights.low_rank import LowRank

LAYERS = 30
HEAD = (49152, 576)
PARTS = {(960, 576): (576, 192, 192), (576, 576): (576,), (3072, 576): (1536, 1536), (576, 1536): (576,)}
"""(N, K) of a block's layers: outputs of the parts that share the inputs."""
ROUNDS = 5


@dataclass
class Layer:
    """A product, its table of adapters, and buffers."""

    linear: NativeLinear
    table: NativeLowRank | None
    x: Tensor
    out: Tensor

    def joined(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Run the product with its updates in one call."""
        assert self.table is not None
        call = self.table.joined(self.linear)
        assert call is not None
        call(x, rows, out)


def updates_of(shape: tuple[int, int], rank: int, dtype: torch.dtype) -> list[LowRank]:
    """Random updates of all parts of a layer."""
    updates = []
    first = 0
    for size in PARTS[shape]:
        a = torch.randn(rank, shape[1]) * 0.02
        b = torch.randn(size, rank) * 0.02
        updates.append(LowRank(a.to(dtype), b.to(dtype), 1.0, first))
        first += size
    return updates


def layers_of(kernels: NativeKernels, weights: str, ranks: list[int], rows: int, dtype: torch.dtype) -> list[Layer]:
    """All layers of the model with an adapter of each rank. weights: see `benchmarks.kernels`."""
    found = []
    made = {shape: make(weights, *shape) for shape in (*PARTS, HEAD)}
    buffers = {size: torch.randn(rows, size) for shape in (*PARTS, HEAD) for size in shape}
    for shape in [*PARTS] * LAYERS + [HEAD]:
        weight, activation = made[shape]
        linear = kernels.linear(weight, activation=activation)
        table = None
        if shape in PARTS:
            most = max(ranks) * len(PARTS[shape])
            table = kernels.low_rank(LowRankForm(shape, len(ranks), dtype, most, 8, torch.device("cpu")))
            for row, rank in enumerate(ranks):
                table.set(row, table.pack(updates_of(shape, rank, dtype)))
        found.append(Layer(linear, table, buffers[shape[1]], buffers[shape[0]]))
    return found


def tape_of(layers: list[Layer], rows: Tensor | None, *, joined: bool = False) -> Tape:
    """Record a step. rows: of the tables, or None for a step without adapters. joined: products with their updates."""

    def run() -> None:
        for layer in layers:
            if rows is None or layer.table is None:
                layer.linear(layer.x, layer.out)
            elif joined:
                layer.joined(layer.x, rows, layer.out)
            else:
                layer.linear(layer.x, layer.out)
                layer.table(layer.x, rows, layer.out)

    tape = record(run, len(layers[0].x), 1)
    assert tape is not None
    return tape


def times(run: Callable[[], None], seconds: float) -> list[float]:
    """Return the duration of each call during some time."""
    found = []
    start = time.perf_counter()
    end = start + seconds
    while start < end:
        run()
        stop = time.perf_counter()
        found.append(stop - start)
        start = stop
    return found


def compare(kernels: NativeKernels, weights: str, ranks: list[int], rows: int, dtype: torch.dtype, turn: float) -> None:
    """Measure one row of the table and print it."""
    layers = layers_of(kernels, weights, ranks, rows, dtype)
    which = torch.arange(rows, dtype=torch.int32) % len(ranks)
    tapes = [tape_of(layers, None), tape_of(layers, which), tape_of(layers, which, joined=True)]
    rounds = [[statistics.median(times(partial(tape, rows, 1), turn)) for tape in tapes] for _ in range(ROUNDS)]
    base = statistics.median(one[0] for one in rounds) * 1e6
    named = f"{ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} of {min(ranks)} to {max(ranks)}"
    line = f"{weights:10} rows {rows:3} ranks {named:12} {base:8.0f} us"
    for title, index in (("apart", 1), ("joined", 2)):
        more = statistics.median(one[index] - one[0] for one in rounds) * 1e6
        left = statistics.median(one[0] / one[index] for one in rounds)
        line += f"; {title} +{more:5.0f} us, speed left {left:.3f}"
    print(line, flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Products of a step with adapters against those without.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", default="bf16/bf16,q4_1/int8", help="forms of the base; see benchmarks.kernels")
    parser.add_argument("--ranks", default="8,16,32,64")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--turn", type=float, default=0.2, help="seconds of each side in each of five rounds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kernels = NativeKernels(args.threads)
    dtype = getattr(torch, args.dtype)
    print(kernels.numerics, f"{args.threads} threads, adapters in {args.dtype}")
    ranks = [int(rank) for rank in args.ranks.split(",")]
    for weights in args.weights.split(","):
        for rows in map(int, args.rows.split(",")):
            if rows == 1:
                for rank in ranks:
                    compare(kernels, weights, [rank], rows, dtype, args.turn)
            else:
                compare(kernels, weights, ranks * 2, rows, dtype, args.turn)


if __name__ == "__main__":
    main()
