"""Halves of blocks joined in one call: the bits of norm, addition and norm one after the other."""

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.reason import Reason
from core_runtime.layers.reference import ReferenceKernels
from tests.executor.test_doubles import TORCH

ROOM = {"max_model_len": 32, "max_num_seqs": 2, "dtype": "bfloat16", "num_gpu_blocks_override": 64}


def told(path: Path) -> list:
    asked = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
    with LLM(model=str(path), **ROOM, **TORCH) as llm:
        (out,) = llm.generate(["the quick brown"], asked, use_tqdm=False)
    return [{token: entry.logprob for token, entry in position.items()} for position in out.outputs[0].logprobs]


def test_joined_halves_have_the_same_bits(tiny_gemma3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma norms what a half gives, adds it, and norms the stream for the next half."""
    joined = []
    join = ReferenceKernels.add_rms_norm

    def counted(self, x, before, *others):
        joined.append(before is not None)
        join(self, x, before, *others)

    monkeypatch.setattr(ReferenceKernels, "add_rms_norm", counted)
    together = told(tiny_gemma3)
    assert joined and all(joined)

    def supports(self, query):
        return [Reason("op", "single operations", query.op)] if query.op == "add_rms_norm" else []

    monkeypatch.setattr(ReferenceKernels, "supports", supports)
    joined.clear()
    assert told(tiny_gemma3) == together
    assert not joined
