"""Rules of acceptance through the engine: what they keep, what they give up, and how they say so."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError
from core_config.resolve import resolve

PROMPTS = ["the quick brown fox jumps over the lazy dog and the quick brown fox", "abcabcabcabcabcabc"]
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "adaptive": False,
}
REJECTION = {"rejection_sample_method": "probabilistic"}
TYPICAL = {"acceptance_method": "typical_acceptance_sampler"}


def run(model: Path, params: SamplingParams, config: dict[str, Any] | None) -> tuple[list[tuple[list[int], Any]], LLM]:
    llm = LLM(model=str(model), max_model_len=128, dtype="float32", speculative_config=config)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    found = []
    for output in outputs:
        choice = output.outputs[0]
        logprobs = [{token: entry.logprob for token, entry in position.items()} for position in choice.logprobs]
        found.append((choice.token_ids, logprobs))
    return found, llm


@pytest.mark.parametrize("rule", [REJECTION, TYPICAL])
def test_greedy_answers_stay_as_they_are(tiny_llama: Path, rule: dict[str, str]) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2)
    plain, llm = run(tiny_llama, params, None)
    llm.close()
    ruled, llm = run(tiny_llama, params, NGRAM | rule)
    llm.close()
    assert ruled == plain


@pytest.mark.parametrize("rule", [REJECTION, TYPICAL])
def test_log_probabilities_are_the_models_own(tiny_llama: Path, rule: dict[str, str]) -> None:
    """Those of sampled answers equal those of the same text as a prompt."""
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=30, ignore_eos=True, logprobs=0)
    ruled, llm = run(tiny_llama, params, NGRAM | rule)
    again = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert again == [tokens for tokens, _ in ruled]
    tokenizer = llm.get_tokenizer()
    for prompt, (tokens, logprobs) in zip(PROMPTS, ruled, strict=True):
        ids = tokenizer.encode(prompt)
        told = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        scored = llm.generate({"prompt_token_ids": ids + tokens}, told, use_tqdm=False)[0]
        own = scored.prompt_logprobs[len(ids) :]
        for token, position, expected in zip(tokens, logprobs, own, strict=True):
            assert position[token] == pytest.approx(expected[token].logprob, abs=1e-4)
    llm.close()


def test_drafts_of_the_same_distribution_are_all_accepted(tiny_llama: Path) -> None:
    """They are drawn with other noise than the tokens, and only their distribution is the target's."""
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=3, max_tokens=30, ignore_eos=True, logprobs=0)
    drafts = {"method": "draft_model", "model": str(tiny_llama), "num_speculative_tokens": 3, "adaptive": False}
    plain, llm = run(tiny_llama, params, None)
    llm.close()
    ruled, llm = run(tiny_llama, params, drafts | REJECTION)
    stats = llm.stats()
    llm.close()
    assert stats.spec_num_accepted_tokens == stats.spec_num_draft_tokens > 30
    assert [tokens for tokens, _ in ruled] != [tokens for tokens, _ in plain]


@pytest.mark.parametrize(("length", "accepted"), [(1.0, 0.0), (4.0, 1.0)])
def test_synthetic_acceptance_takes_none_or_all(tiny_llama: Path, length: float, accepted: float) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=0)
    rule = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}
    _, llm = run(tiny_llama, params, NGRAM | rule)
    stats = llm.stats()
    llm.close()
    assert stats.spec_num_accepted_tokens == accepted * stats.spec_num_draft_tokens


def explained(model: Path, config: dict[str, Any]) -> list[str]:
    arguments = {"model": str(model), "device": "cpu", "speculative_config": config}
    return resolve(arguments, context="llm", environ={}).waivers


def test_what_is_given_up_is_named(tiny_llama: Path) -> None:
    assert explained(tiny_llama, NGRAM | {"rejection_sample_method": "strict"}) == []
    (rejection,) = explained(tiny_llama, NGRAM | REJECTION)
    assert "rejection sampling" in rejection and "strict" in rejection
    (typical,) = explained(tiny_llama, NGRAM | TYPICAL | {"posterior_alpha": 0.2})
    assert "typical" in typical


def test_unknown_rules_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"block.*expected one of"):
        explained(tiny_llama, NGRAM | {"rejection_sample_method": "block"})
