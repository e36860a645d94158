"""Decode with recurrent states in 16 bits beside float32: the updates of the states alone, and whole steps of two engines.

    python -m benchmarks.narrow_states [--models qwen3.5-0.8b mamba2-130m] [--streams 16] [--weights mxfp4 none] [--rounds 9]

Weights are random. Both sides take turns, and the median of the ratios of neighbouring turns is shown. Bytes are counted, not
measured: an update reads and writes each state once, and a step reads each weight once. `by bytes` is how many times faster a
step would be if memory alone set its time. Operations of a step's products are counted likewise: where the processor needs
longer for them than memory for the weights, narrower states gain less than by bytes. `--weights` are methods of
`--quantization`, `none` for bfloat16. With `--updates-only` no engine starts. With `--threads 1 --clock process`
seconds of updates are those of a processor, which other work on a busy machine does not take; those of steps are shown by both
clocks.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.bandwidth import read_bandwidth
from benchmarks.kv_edges import PROMPT, step_seconds
from benchmarks.sizes.models import QWEN35_08B
from core.api.specs import StateSpec
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_config.resolve import resolve
from core_kit.oracles.reference import batch_view
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.executor.uniproc import UniprocExecutor
from core_runtime.models.families import tensor_shapes
from core_runtime.models.state_ops.gated_delta import gated_delta
from core_runtime.models.state_ops.mamba2 import mamba2

CLOCKS: Final = {"wall": time.perf_counter, "process": time.process_time}
BLOCK_BYTES: Final = 32 << 10
"""Of the updates alone: what 16 tokens of Qwen3.5's attention take in bfloat16."""
STATES: Final = {"float32": "float32", "bfloat16": "float32+bfloat16", "float16": "float32+float16"}
"""`--mamba-ssm-cache-dtype` → the type of a state, whose inputs of the convolution stay float32."""
MAMBA2_130M: Final = {
    "model_type": "mamba2",
    "architectures": ["Mamba2ForCausalLM"],
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "num_heads": 24,
    "head_dim": 64,
    "state_size": 128,
    "expand": 2,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": 256,
    "vocab_size": 50288,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Model:
    """A model's configuration, and the state of each of its layers that have one."""

    config: Mapping[str, Any]
    state: StateSpec
    layers: int

    def weights(self) -> int:
        """Return the numbers that a token is multiplied with; the embedding is also the output head."""
        return sum(prod(shape) for shape in tensor_shapes(self.config).values() if len(shape) == 2)

    def weight_bytes(self, method: str) -> float:
        """Return the bytes that a step reads of weights. method: a name in `WEIGHT_BITS`."""
        bits, head_bits = WEIGHT_BITS[method]
        head: int = self.config["vocab_size"] * self.config["hidden_size"]
        return ((self.weights() - head) * bits + head * head_bits) / 8

    def state_bytes(self, dtype: str, streams: int) -> int:
        """Return the bytes that a step reads and writes of states. dtype: a name in `STATES`."""
        return 2 * self.layers * streams * self.state.bytes_in(STATES[dtype])


MODELS: Final = {
    "qwen3.5-0.8b": Model(
        QWEN35_08B | {"max_position_embeddings": 4096},
        gated_delta(key_heads=16, value_heads=16, key_size=128, value_size=128),
        18,
    ),
    "mamba2-130m": Model(MAMBA2_130M, mamba2(heads=24, head_size=64, state=128), 24),
}
WEIGHT_BITS: Final = {"none": (16.0, 16.0), "int8": (8.5, 8.5), "mxfp4": (4.25, 8.5), "nf4": (4.5, 8.5)}
"""Bits of a weight with its scales, and of one of the output head."""


class Updates:
    """The states of all layers and streams in one type, and a step that updates them."""

    def __init__(self, backend: CpuPagedAttention, model: Model, streams: int, dtype: str) -> None:
        spec, random_numbers = model.state, torch.Generator().manual_seed(0)
        self._backend, self._layers = backend, model.layers
        blocks = -(-spec.bytes_in(STATES[dtype]) // BLOCK_BYTES)
        tables = torch.randperm(streams * blocks, generator=random_numbers).view(streams, blocks).tolist()
        self._metadata = backend.build_state(batch_view([1] * streams, [100] * streams, tables, 1 << 20))
        params = {name: _param(shape, random_numbers) for name, shape in spec.params.items()}
        self._states = [torch.zeros(streams * blocks, BLOCK_BYTES, dtype=torch.uint8) for _ in range(self._layers)]
        self._handles = [backend.bind_state(spec, STATES[dtype], raw, params) for raw in self._states]
        self._inputs = torch.randn(streams, spec.input_size, generator=random_numbers)
        self._out = torch.empty(streams, spec.output_size)

    def seconds(self, clock: Callable[[], float]) -> float:
        """Return the seconds of one step's updates, layer by layer."""
        begin = clock()
        for handle in self._handles:
            self._backend.forward_state(handle, self._inputs, self._metadata, self._out)
        return clock() - begin


def _param(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Return a random tensor whose products keep the size of what they are multiplied with."""
    param = torch.randn(shape, generator=generator)
    return param / shape[1] ** 0.5 if len(shape) == 2 else param


def compare_updates(name: str, model: Model, streams: int, rounds: int, clock: Callable[[], float]) -> None:
    """Print milliseconds, bytes and GB/s of the updates of a step in each type."""
    backend = CpuPagedAttention()
    sides = {dtype: Updates(backend, model, streams, dtype) for dtype in STATES}
    taken: dict[str, list[float]] = {dtype: [] for dtype in sides}
    for turn in range(rounds + 1):
        for dtype, side in sides.items():
            seconds = min(side.seconds(clock) for _ in range(2))
            if turn:
                taken[dtype].append(seconds)
    for dtype, found in taken.items():
        middle, nbytes = statistics.median(found), model.state_bytes(dtype, streams)
        ratio = statistics.median(a / b for a, b in zip(taken["float32"], found, strict=True))
        print(
            f"{name}, {streams} streams, updates in {dtype}: {1e3 * middle:.2f} ms, {nbytes / 1e6:.0f} MB, "
            f"{nbytes / middle / 1e9:.1f} GB/s, {ratio:.2f} times float32",
            flush=True,
        )


def start(folder: Path, model: Model, weights: str, dtype: str, streams: int) -> EngineCore:
    """Start an engine with random weights. weights: a method of `--quantization`, or `none`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**model.config, "torch_dtype": "bfloat16"}), encoding="utf-8")
    given = {
        "model": str(folder), "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 512,
        "max_num_seqs": streams, "dtype": "bfloat16", "use_tqdm_on_load": False, "enable_prefix_caching": False,
        "kv_cache_memory_bytes": streams * (model.state_bytes(dtype, 1) + (8 << 20)), "mamba_ssm_cache_dtype": dtype,
    }  # fmt: skip
    if weights != "none":
        given["quantization"] = weights
    return build_engine(resolve(given, context="serve", environ={}).engine, UniprocExecutor, {})


def compare_steps(name: str, model: Model, weights: str, dtype: str, streams: int, rounds: int, answer: int) -> None:
    """Print the seconds of a decode step with states in float32 and in another type, what bytes allow, and the operations."""
    with tempfile.TemporaryDirectory(prefix="narrow-states-") as folder:
        engines = {one: start(Path(folder, one), model, weights, one, streams) for one in ("float32", dtype)}
    taken: dict[str, list[tuple[float, float]]] = {one: [] for one in engines}
    for turn in range(rounds + 1):
        for one in sorted(engines, reverse=bool(turn % 2)):
            found = step_seconds(engines[one], streams, answer)
            if turn:  # the first turn touches memory
                taken[one].append(found)
    of_weights = model.weight_bytes(weights)
    of_states = [model.state_bytes(one, streams) for one in engines]
    by_bytes = (of_weights + of_states[0]) / (of_weights + of_states[1])
    for place, unit in enumerate(("by the clock", "of processors")):
        ratio = statistics.median(a[place] / b[place] for a, b in zip(taken["float32"], taken[dtype], strict=True))
        middles = [statistics.median(both[place] for both in rows) for rows in taken.values()]
        print(
            f"{name}, {streams} streams, weights {weights}: ms of a step {unit}: float32 {1e3 * middles[0]:.2f}, "
            f"{dtype} {1e3 * middles[1]:.2f}; {ratio:.3f} times",
            flush=True,
        )
    print(
        f"  by bytes {by_bytes:.2f}: {of_weights / 1e6:.0f} MB of weights, states {of_states[0] / 1e6:.0f} and "
        f"{of_states[1] / 1e6:.0f}; products: {2e-9 * model.weights() * streams:.1f} billion operations",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.narrow_states", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--weights", nargs="+", choices=WEIGHT_BITS, default=["mxfp4", "none"])
    parser.add_argument(
        "--states", choices=("bfloat16", "float16"), default="bfloat16", help="of the engine beside float32"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--answer", type=int, default=40, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=2, help="of updates; an engine has one for each processor")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="of updates")
    parser.add_argument("--updates-only", action="store_true", help="start no engine")
    given = parser.parse_args(arguments)
    random.seed(0)
    NativeKernels(given.threads)
    print(f"memory is read at {read_bandwidth():.1f} GB/s; prompts have {PROMPT} tokens", flush=True)
    for name in given.models:
        compare_updates(name, MODELS[name], given.streams, given.rounds, CLOCKS[given.clock])
        for weights in () if given.updates_only else given.weights:
            compare_steps(name, MODELS[name], weights, given.states, given.streams, given.rounds, given.answer)


if __name__ == "__main__":
    main()
