"""Requests that fill the KV cache leave room for the states from which their next turns begin."""

import random
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from tests.inside import core_of

PARAMS = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}


@pytest.mark.parametrize("speculative_config", [None, NGRAM])
def test_prompts_that_come_together_are_all_found_again(
    tiny_lfm2: Path, speculative_config: dict[str, object] | None
) -> None:
    """A prompt takes three blocks, and its state three or, with drafts, six."""
    chance = random.Random(1)
    with LLM(
        str(tiny_lfm2),
        dtype="float32",
        max_model_len=128,
        max_num_seqs=8,
        num_gpu_blocks_override=28,
        kv_offloading_size=0.1,
        speculative_config=speculative_config,
    ) as llm:
        prompts = [[chance.randrange(5, 95) for _ in range(40)] for _ in range(8)]
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], PARAMS, use_tqdm=False)
        core_of(llm).call("check_integrity")
        for prompt, answer in zip(prompts, answers, strict=True):
            history = [*prompt, *answer.outputs[0].token_ids]
            (turn,) = llm.generate({"prompt_token_ids": [*history, 9]}, PARAMS, use_tqdm=False)
            assert len(history) - (turn.num_cached_tokens or 0) <= 16
