"""A tiny engine on the device, in every way to run: the tokens of the processor.

Owns: the ways and the comparison. Called by: stage 1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lease.place import Place
from benchmarks.lease.rows import Row

WAYS: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True, "async_scheduling": False},
    "graphs": {"async_scheduling": False},
    "planned ahead": {},
    "chunks": {"max_num_batched_tokens": 8},
    "preempted": {"num_gpu_blocks_override": 14},
}
PROMPTS = ["the quick brown fox jumps", "abcabcabc", "z", "the lazy dog"]


def tokens(place: Place) -> Iterator[Row]:
    """Compare each way with the processor, in float32 and then bfloat16 with the first way."""
    from tests.tiny_models import save_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        model = str(save_checkpoint(Path(folder)))
        there = "cpu" if place.is_cpu else "cuda:0"
        expected = answers(model, "cpu", dtype="float32", enforce_eager=True)
        first: list[list[int]] | None = None
        for name, arguments in WAYS.items():
            got = answers(model, there, dtype="float32", **arguments)
            same = sum(mine == theirs for mine, theirs in zip(got, expected, strict=True))
            yield Row("", f"{name}: answers of {len(expected)} with the processor's tokens", same, "answers")
            first = got if first is None else first
            if got != first:
                yield Row("", f"{name}: other tokens than eager")
        half = [answers(model, there, dtype="bfloat16", **arguments) for arguments in WAYS.values()]
        for name, got in zip(WAYS, half, strict=True):
            if got != half[0]:
                yield Row("", f"{name}: other tokens than eager in bfloat16")


def answers(model: str, device: str, **arguments: Any) -> list[list[int]]:
    """Return the tokens of each answer."""
    from core import LLM, SamplingParams

    params = [
        SamplingParams(temperature=0, max_tokens=32, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=5, max_tokens=32, ignore_eos=True, top_p=0.9),
        SamplingParams(temperature=0.7, seed=7, max_tokens=32, ignore_eos=True, min_p=0.05),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2),
    ]
    settings = {"max_model_len": 128, "max_num_seqs": 8, "num_gpu_blocks_override": 256, "plugins": "no:cpu_native"}
    with LLM(model=model, device=device, **(settings | arguments)) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
