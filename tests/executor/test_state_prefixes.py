"""States are cached behind block edges and rolled back behind rejected drafts: tokens and logprobs stay what they are."""

import random
from pathlib import Path

import pytest

from core import LLM, SamplingParams

SOURCE = random.Random(8)
FIRST = [1, *(SOURCE.randrange(4, 260) for _ in range(36))]
NEXT = [SOURCE.randrange(4, 260) for _ in range(9)]
ASKED = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2)


def open_engine(path: Path, **settings: object) -> LLM:
    given = {"dtype": "float32", "max_model_len": 128, "block_size": 4, "kv_cache_memory_bytes": 1 << 20}
    return LLM(str(path), use_tqdm_on_load=False, **given | settings)


def ask(llm: LLM, prompt: list[int], params: SamplingParams = ASKED):
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return output


def told(output) -> list:
    return [[(token, entry.logprob) for token, entry in entries.items()] for entries in output.outputs[0].logprobs]


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16}, {"async_scheduling": True}])
def test_the_next_turn_computes_its_own_tokens_alone(tiny_lfm2: Path, settings: dict) -> None:
    with open_engine(tiny_lfm2, mamba_block_size=8, **settings) as llm:
        first = ask(llm, FIRST)
        second_prompt = [*FIRST, *first.outputs[0].token_ids, *NEXT]
        second = ask(llm, second_prompt)
        again = ask(llm, FIRST)
    with open_engine(tiny_lfm2, enable_prefix_caching=False, **settings) as llm:
        assert told(ask(llm, FIRST)) == told(first) == told(again)
        fresh = ask(llm, second_prompt)
    assert fresh.num_cached_tokens == 0
    assert told(second) == told(fresh)
    assert first.num_cached_tokens == 0
    assert 36 - 8 < again.num_cached_tokens <= 36, "36 is the last edge of the prompt"
    assert second.num_cached_tokens >= len(FIRST) + 30 - 8 - 4, "near the end of what was generated"


@pytest.mark.parametrize("settings", [{"mamba_cache_mode": "all"}, {"prefix_cache_retention_interval": 12}])
def test_states_that_are_kept_in_any_case_change_no_token(tiny_lfm2: Path, settings: dict) -> None:
    """Prompts that part anywhere begin at the last kept state before, although nothing told of that place."""
    every = settings.get("prefix_cache_retention_interval", 4)
    parted = [[*FIRST[:length], *NEXT] for length in (33, 21, 14, 7)]
    with open_engine(tiny_lfm2, enable_prefix_caching=False) as llm:
        expected = [told(ask(llm, prompt)) for prompt in (FIRST, *parted)]
    with open_engine(tiny_lfm2, **settings) as llm:
        outputs = [ask(llm, prompt) for prompt in (FIRST, *parted)]
    assert [told(output) for output in outputs] == expected
    cached = [output.num_cached_tokens for output in outputs[1:]]
    assert all(count >= length // every * every for count, length in zip(cached, (33, 21, 14, 7), strict=True)), cached


TWO_WORDS = {"max_tokens": 24, "ignore_eos": True, "logprobs": 2, "allowed_token_ids": [70, 71]}
"""With so few of them, n-grams find something in every step, and much of it is right."""
GREEDY = SamplingParams(temperature=0, **TWO_WORDS)
SAMPLED = SamplingParams(temperature=0.9, seed=5, **TWO_WORDS)
PROMPTS = [[1, *[70, 71, 71] * 6], FIRST, [9]]


@pytest.mark.parametrize("count, budget", [(1, 8), (4, 8), (4, 64)])
def test_rejected_drafts_leave_no_trace(tiny_lfm2: Path, count: int, budget: int) -> None:
    """In company, in chunks, short of blocks, and from a cached prefix."""
    settings = {"max_num_batched_tokens": budget, "max_num_seqs": 4, "num_gpu_blocks_override": 40}
    drafting = {"method": "ngram", "num_speculative_tokens": count, "prompt_lookup_min": 1, "adaptive": False}
    batch = [{"prompt_token_ids": ids} for ids in PROMPTS for _ in range(2)]
    asked = [GREEDY, SAMPLED] * len(PROMPTS)
    with open_engine(tiny_lfm2, **settings) as llm:
        plain = [told(output) for output in llm.generate(batch, asked, use_tqdm=False)]
    with open_engine(tiny_lfm2, mamba_block_size=4, speculative_config=drafting, **settings) as llm:
        for _ in range(2):
            outputs = llm.generate(batch, asked, use_tqdm=False)
            assert [told(output) for output in outputs] == plain
        stats = llm.stats()
    assert 0 < stats.spec_num_accepted_tokens < stats.spec_num_draft_tokens
    assert stats.prefix_hits > 0
    assert stats.num_preemptions > 0
