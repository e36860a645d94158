"""Log-probabilities of tokens that a request names (`logprob_token_ids`), besides the drawn one and the most likely ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core.api.structured_outputs import StructuredOutputsParams

PROMPTS = ["A prompt", "Another one, which is longer", "A prompt"]
LISTED = [70, 2, 201]


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(
        str(tiny_llama),
        max_num_seqs=4,
        max_logprobs=-1,
        max_num_batched_tokens=16,
        kv_cache_memory_bytes="8M",
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
    ) as engine:
        yield engine


def answers(llm: LLM, prompts: list[str], **params: Any) -> list[Any]:
    asked = SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **params})
    return [output.outputs[0] for output in llm.generate(prompts, asked, use_tqdm=False)]


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"logit_bias": {9: 5.0}}, {"top_k": 4}])
def test_their_numbers_are_those_of_the_whole_vocabulary(llm: LLM, params: dict[str, Any]) -> None:
    """Prompts in pieces, from the cache and side by side, and answers with drafts."""
    listed = answers(llm, PROMPTS, logprobs=1, logprob_token_ids=LISTED, **params)
    whole = answers(llm, PROMPTS, logprobs=-1, **params)
    for found, every in zip(listed, whole, strict=True):
        assert found.token_ids == every.token_ids
        for token, position, all_tokens in zip(found.token_ids, found.logprobs, every.logprobs, strict=True):
            best = next(key for key, entry in all_tokens.items() if entry.rank == 1)
            assert set(position) == {token, best, *LISTED}
            for key, entry in position.items():
                assert entry.rank == all_tokens[key].rank
                assert entry.logprob == pytest.approx(all_tokens[key].logprob, abs=1e-6)  # numpy sums all of them


def test_a_form_of_the_answer_changes_none_of_them(llm: LLM) -> None:
    params: dict[str, Any] = {"structured_outputs": StructuredOutputsParams(choice=["ab", "cd"]), "ignore_eos": False}
    (listed,) = answers(llm, PROMPTS[:1], logprobs=0, logprob_token_ids=LISTED, **params)
    (whole,) = answers(llm, PROMPTS[:1], logprobs=-1, **params)
    assert listed.text == whole.text and listed.text in ("ab", "cd")
    for position, every in zip(listed.logprobs, whole.logprobs, strict=True):
        for key in (*position, *LISTED):
            assert position[key].logprob == pytest.approx(every[key].logprob, abs=1e-6)


def test_their_bits_are_those_of_a_drawn_token(llm: LLM) -> None:
    (first,) = answers(llm, PROMPTS[:1], logprobs=0, logprob_token_ids=LISTED, max_tokens=1)[0].logprobs
    for token in LISTED:
        (drawn,) = answers(llm, PROMPTS[:1], logprobs=0, trace_decode_token_ids=[token])[0].logprobs
        assert drawn[token] == first[token]


def test_a_request_beside_others_has_its_own(llm: LLM) -> None:
    plain = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=0)
    listed = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=0, logprob_token_ids=LISTED)
    first, second = llm.generate(PROMPTS[:2], [plain, listed], use_tqdm=False)
    assert all(len(position) == 1 for position in first.outputs[0].logprobs or [{}])
    assert (
        second.outputs[0].logprobs
        == answers(llm, [PROMPTS[1]], max_tokens=4, logprobs=0, logprob_token_ids=LISTED)[0].logprobs
    )


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs"])
def test_they_are_in_the_form_that_the_engine_reports(tiny_llama: Path, mode: str) -> None:
    with LLM(str(tiny_llama), max_logprobs=-1, kv_cache_memory_bytes="8M", logprobs_mode=mode) as llm:
        params = {"temperature": 0.7, "seed": 1, "top_k": 100, "max_tokens": 2}
        (listed,) = answers(llm, PROMPTS[:1], logprobs=0, logprob_token_ids=LISTED, **params)
        (whole,) = answers(llm, PROMPTS[:1], logprobs=-1, **params)
    for position, every in zip(listed.logprobs, whole.logprobs, strict=True):
        assert set(LISTED) <= set(position)
        assert all(position[token].logprob == pytest.approx(every[token].logprob, abs=1e-6) for token in position)


@pytest.mark.parametrize(
    "params, told",
    [
        ({"logprob_token_ids": [5]}, "set logprobs"),
        ({"logprobs": 0, "logprob_token_ids": [-1]}, "at least 0"),
        ({"logprobs": 0, "logprob_token_ids": [260]}, "from 0 to 259"),
        ({"logprobs": 0, "logprob_token_ids": "5"}, "expected a list of token ids"),
        ({"logprobs": 0, "logprob_token_ids": list(range(129))}, "at most 128"),
    ],
)
def test_what_is_wrong_is_told(llm: LLM, params: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as caught:
        answers(llm, ["A prompt"], **params)
    assert told in str(caught.value)
