"""Engines that are measured, with invented weights or tiny ones.

Owns: their arguments, prompts, and the timing of a batch. Never does: choose what is measured. Called by: the stages.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.lease.place import Place
from benchmarks.lease.shapes import SHAPES, TINY, write

Prompt = dict[str, list[int]]


@contextmanager
def engine(place: Place, name: str, **more: Any) -> Iterator[Any]:
    """An engine of a shape on the device, with weights that are drawn; of the same form and small in a rehearsal."""
    from core import LLM

    changes = place.pick({}, TINY)
    with tempfile.TemporaryDirectory(prefix="core-lease-") as folder:
        arguments: dict[str, Any] = {
            "model": str(write(name, Path(folder), changes)),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "device": "cpu" if place.is_cpu else "cuda:0",
            "enable_prefix_caching": False,
            **more,
        }
        if place.is_cpu:
            arguments |= {"max_model_len": 64, "num_gpu_blocks_override": 64, "plugins": "no:cpu_native"}
            arguments |= {name: min(arguments[name], 8) for name in ("max_num_seqs",) if name in arguments}
            arguments.pop("max_num_batched_tokens", None)
        with LLM(**arguments) as llm:
            yield llm


def prompts(place: Place, count: int, length: int, name: str) -> list[Prompt]:
    """Return prompts that have nothing in common."""
    vocabulary = place.pick(SHAPES[name]["vocab_size"], TINY["vocab_size"])
    count, length = place.pick((count, length), (min(count, 4), min(length, 8)))
    random = torch.Generator().manual_seed(count * 7919 + length)
    ids = torch.randint(3, vocabulary - 3, (count, length), generator=random)
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def generate(llm: Any, asked: Sequence[Prompt], tokens: int, **sampling: Any) -> float:
    """Return the seconds until all are answered."""
    from core import SamplingParams

    params = SamplingParams(
        **{"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, "detokenize": False} | sampling
    )
    begin = time.perf_counter()
    llm.generate(list(asked), params, use_tqdm=False)
    return time.perf_counter() - begin


def decode_rate(place: Place, llm: Any, asked: Sequence[Prompt], tokens: int = 128, **sampling: Any) -> float:
    """Return steps a second of decoding alone: a long run less a short one."""
    tokens = place.pick(tokens, 4)
    few = place.pick(32, 2)
    generate(llm, asked, few, **sampling)
    short = generate(llm, asked, few, **sampling)
    long = generate(llm, asked, few + tokens, **sampling)
    return tokens / max(long - short, 1e-9)


def late_kernels(llm: Any) -> int:
    """Return how many kernels were compiled in front of a launch, after the start."""
    from core_runtime.executor.warm_up import compiling

    kernels = llm._live_client().worker.runtime.kernels
    return sum(provider.late for provider in compiling(kernels))


def phases(llm: Any) -> dict[str, float]:
    """Return the seconds of the phases of a start."""
    return dict(llm._live_client().core.executor.phases)
