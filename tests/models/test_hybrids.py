"""Models with states, in the whole engine: drafts, a prefix that is found again, and the recorded step."""

import pytest

from core import LLM, SamplingParams
from tests.families.oracle import NUM_TOKENS, reference
from tests.inside import worker_of

MODEL_TYPES = ("qwen3_5_text", "granitemoehybrid", "nemotron_h", "falcon_h1", "mamba2")
AGAIN = [1, *[90, 91, 92] * 7]
"""A prompt with a continuation that n-grams guess."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def _llm(model_type: str, **settings: object) -> LLM:
    return LLM(
        str(reference(model_type).path),
        max_model_len=72,
        block_size=4,
        mamba_block_size=4,
        kv_cache_memory_bytes=4 << 20,
        use_tqdm_on_load=False,
        **settings,
    )


def _tokens(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": ids} for ids in prompts]
    outputs = llm.generate(asked, greedy, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


QUICK = ("qwen3_5_text", "nemotron_h")


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in MODEL_TYPES]
)
def test_drafts_and_found_prefixes_change_no_token(model_type):
    """In the type that this machine's CPU takes by itself, and in float32."""
    expected = reference(model_type)
    prompts = [expected.prompt, AGAIN]
    with _llm(model_type, dtype="float32") as llm:
        plain = _tokens(llm, prompts)
        again = llm.generate([{"prompt_token_ids": AGAIN}], SamplingParams(max_tokens=1), use_tqdm=False)
        assert worker_of(llm).runner.forward.captured(1)
    assert again[0].num_cached_tokens > 0
    if expected.tokens:
        assert plain[0] == expected.tokens
    with _llm(model_type, dtype="float32", speculative_config=NGRAM) as llm:
        assert _tokens(llm, prompts) == plain
        assert _tokens(llm, prompts) == plain
    with _llm(model_type) as llm:
        usual = _tokens(llm, prompts)
        assert _tokens(llm, prompts) == usual
