"""Outputs that are replayed in place of being sampled."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import RequestError

END = 2
"""The checkpoint's end of sequence."""


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(
        str(tiny_llama),
        max_num_seqs=4,
        kv_cache_memory_bytes="8M",
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
    ) as engine:
        yield engine


def replayed(llm: LLM, trace: list[int], **params: Any) -> Any:
    asked = SamplingParams(trace_decode_token_ids=trace, **params)
    return llm.generate("A prompt", asked, use_tqdm=False)[0].outputs[0]


def test_the_tokens_are_those_and_their_log_probabilities_the_models(llm: LLM) -> None:
    prompt = llm.get_tokenizer().encode("A prompt")
    trace = [70, 71, END, 72, 70, 71, END, 72]
    answer = replayed(llm, trace, logprobs=3, max_tokens=1, logit_bias={9: 100.0}, bad_words=["C"])
    assert list(answer.token_ids) == trace
    assert answer.finish_reason == "length"
    assert answer.text == llm.get_tokenizer().decode(trace, skip_special_tokens=True)
    scored = llm.generate(
        {"prompt_token_ids": prompt + trace}, SamplingParams(max_tokens=1, prompt_logprobs=3), use_tqdm=False
    )[0]
    for token, found, wanted in zip(trace, answer.logprobs, scored.prompt_logprobs[len(prompt) :], strict=True):
        assert found[token] == wanted[token]


def test_others_beside_it_sample(llm: LLM) -> None:
    plain = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    alone = llm.generate("Another", plain, use_tqdm=False)[0].outputs[0].token_ids
    both = [SamplingParams(trace_decode_token_ids=[90] * 6, seed=1), plain]
    first, second = llm.generate(["A prompt", "Another"], both, use_tqdm=False)
    assert list(first.outputs[0].token_ids) == [90] * 6
    assert second.outputs[0].token_ids == alone


@pytest.mark.parametrize(
    "trace, params, told",
    [
        ([], {}, "at least one token id"),
        ([-1], {}, "at least 0"),
        ([260], {}, "from 0 to 259"),
        ([70] * 512, {}, "has room for"),
        ([70], {"n": 2}, "n does not go with"),
        ([70], {"stop": "x"}, "stop does not go with"),
    ],
)
def test_what_is_wrong_is_told(llm: LLM, trace: list[int], params: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as caught:
        replayed(llm, trace, **params)
    assert told in str(caught.value)
