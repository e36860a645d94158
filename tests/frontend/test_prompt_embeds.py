"""Prompts that are embeddings, against transformers on the same checkpoint, and against the tokens that they stand for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from core import LLM, BeamSearchParams, SamplingParams
from core.api.errors import ConfigError, RequestError
from core.api.messages import EngineRequest
from core.engine.token_ids import check_request

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SIZE = 64
TEXT = "A text of some length, whose tokens are read in several chunks."


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    """It takes a prompt in chunks of at most 16 tokens."""
    with LLM(
        str(tiny_llama),
        enable_prompt_embeds=True,
        dtype="float32",
        max_num_batched_tokens=16,
        max_num_seqs=4,
        kv_cache_memory_bytes="8M",
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def oracle(tiny_llama: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)


def tokens_of(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


def drawn(count: int, seed: int) -> torch.Tensor:
    """Embeddings of no token, of the size that those of the checkpoint have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, SIZE, generator=generator) * 0.05


def test_they_are_what_transformers_computes(llm: LLM, oracle: Any) -> None:
    prompts = [drawn(count, seed=count) for count in (1, 5, 40)]
    outputs = llm.generate([{"prompt_embeds": prompt} for prompt in prompts], GREEDY, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        wanted = oracle.generate(
            inputs_embeds=prompt[None], max_new_tokens=8, min_new_tokens=8, do_sample=False, eos_token_id=None
        )
        assert tokens_of(output) == wanted[0].tolist()


def test_those_of_tokens_are_these_tokens(llm: LLM, oracle: Any) -> None:
    ids = llm.get_tokenizer().encode(TEXT)
    embeddings = oracle.get_input_embeddings()(torch.tensor(ids))
    flags = [False] * len(ids)
    prompts = [
        TEXT,
        {"prompt_embeds": embeddings},
        {"prompt_embeds": embeddings.detach().numpy(), "prompt_token_ids": ids, "prompt_is_token_ids": flags},
    ]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    first, *others = [tokens_of(output) for output in outputs]
    assert others == [first, first]
    assert outputs[2].prompt_token_ids == ids


def test_prefixes_are_shared_by_equal_embeddings_alone(llm: LLM) -> None:
    one, other = drawn(33, seed=1), drawn(33, seed=2)
    first = [tokens_of(llm.generate({"prompt_embeds": prompt}, GREEDY, use_tqdm=False)[0]) for prompt in (one, other)]
    again = [llm.generate({"prompt_embeds": prompt}, GREEDY, use_tqdm=False)[0] for prompt in (one, other)]
    assert [tokens_of(output) for output in again] == first
    assert first[0] != first[1]
    assert all(output.num_cached_tokens for output in again)


@pytest.mark.parametrize(
    "prompt, params, told",
    [
        ({"prompt_embeds": drawn(3, 0)[:, :8]}, {}, "expected (tokens, 64)"),
        ({"prompt_embeds": drawn(3, 0)[0]}, {}, "expected (tokens, 64)"),
        ({"prompt_embeds": drawn(0, 0)}, {}, "at least one token"),
        ({"prompt_embeds": torch.full((2, SIZE), torch.nan)}, {}, "NaN or infinity"),
        ({"prompt_embeds": "text"}, {}, "expected a tensor"),
        ({"prompt_embeds": np.zeros((600, SIZE))}, {}, "600 positions"),
        ({"prompt_embeds": drawn(2, 0), "prompt_token_ids": [5]}, {}, "has 1 ids for the 2 positions"),
        ({"prompt_embeds": drawn(2, 0), "prompt_is_token_ids": [False, True]}, {}, "2 times False"),
        ({"prompt": "a", "prompt_is_token_ids": [False]}, {}, "without prompt_embeds"),
        ({"prompt_embeds": drawn(2, 0)}, {"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_embeds": drawn(2, 0)}, {"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"prompt_embeds": drawn(2, 0)}, {"repetition_penalty": 1.1}, "set it to 1"),
    ],
)
def test_what_is_wrong_is_told(llm: LLM, prompt: dict[str, Any], params: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompt, SamplingParams(max_tokens=2, **params), use_tqdm=False)
    assert told in str(caught.value)


def test_beam_search_takes_tokens(llm: LLM) -> None:
    with pytest.raises(RequestError, match="Beam search needs"):
        llm.beam_search({"prompt_embeds": drawn(2, 0)}, BeamSearchParams(beam_width=2, max_tokens=2))


def test_a_broken_client_is_refused(llm: LLM) -> None:
    request = EngineRequest("a", 0, [1, 2], SamplingParams(), 0, prompt_embeds=b"1234")
    with pytest.raises(RequestError, match="expected 512"):
        check_request(request, llm._config.model)


def test_they_are_asked_for_and_must_have_one_form(tiny_llama: Path, tiny_gemma3: Path) -> None:
    with pytest.raises(ConfigError, match="scales or projects"):
        LLM(str(tiny_gemma3), enable_prompt_embeds=True)
    with LLM(str(tiny_llama), kv_cache_memory_bytes="8M") as plain:
        with pytest.raises(RequestError, match="--enable-prompt-embeds"):
            plain.generate({"prompt_embeds": drawn(2, 0)}, use_tqdm=False)
        assert plain.generate({"prompt": "a", "prompt_embeds": None}, GREEDY, use_tqdm=False)[0].finished
