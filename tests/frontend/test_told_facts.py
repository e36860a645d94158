"""What answers carry besides tokens: the tokens that could have come, against transformers' filters, and the chosen experts,
against the routers of transformers.
"""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, TopKLogitsWarper, TopPLogitsWarper

from core import LLM, SamplingParams
from core.api.errors import ConfigError, RequestError
from core_apis.answers.told_facts import add_facts
from core_apis.protocol.completions import CompletionChoice
from core_frontend.api.outputs import CompletionOutput
from tests.inside import worker_of
from tests.tiny_models import save_checkpoint

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": "8M",
    "seed": 0,
}
PROMPTS = [[(7 * step + first) % 250 + 4 for step in range(length)] for first, length in ((1, 40), (2, 3), (3, 18))]
RANDOM = SamplingParams(temperature=0.9, top_k=12, top_p=0.8, seed=3, max_tokens=9, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of seven experts, three a token, with one dense layer."""
    return save_checkpoint(tmp_path_factory.mktemp("qwen3_moe"), family="qwen3_moe")


@pytest.fixture(scope="module")
def telling(mixture: Path) -> Iterator[LLM]:
    with LLM(str(mixture), return_sampling_mask=True, enable_return_routed_experts=True, **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def oracle(mixture: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)


def answers(engine: LLM, params: SamplingParams, prompts: list[list[int]] = PROMPTS, salt: str = "") -> list[Any]:
    given: list[Any] = [{"prompt_token_ids": prompt, "cache_salt": salt or None} for prompt in prompts]
    return [output.outputs[0] for output in engine.generate(given, params, use_tqdm=False)]


def expected_experts(oracle: Any, token_ids: list[int]) -> torch.Tensor:
    """Return the experts that transformers' routers choose, [tokens, layers, top_k]; -1 in the dense layer."""
    with torch.no_grad():
        routers = oracle(torch.tensor([token_ids]), output_router_logits=True).router_logits
    chosen = [logits.topk(3, dim=-1).indices for logits in routers]
    dense = torch.full_like(chosen[0], -1)
    return torch.stack([chosen[0], dense, chosen[1]], dim=1)


def test_experts_are_those_of_transformers_routers(telling: LLM, oracle: Any) -> None:
    for prompt, answer in zip(PROMPTS, answers(telling, GREEDY, salt="experts"), strict=True):
        computed = prompt + answer.token_ids[:-1]
        assert answer.routed_experts.dtype == np.int16
        assert answer.routed_experts.tolist() == expected_experts(oracle, computed).tolist()
    assert worker_of(telling).runner.forward.recorder.replayed["decode"] > 0


def test_masks_are_what_transformers_filters_leave(telling: LLM, oracle: Any) -> None:
    for prompt, answer in zip(PROMPTS, answers(telling, RANDOM, salt="masks"), strict=True):
        with torch.no_grad():
            logits = oracle(torch.tensor([prompt + answer.token_ids[:-1]])).logits[0, len(prompt) - 1 :] / 0.9
        left = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, logits))
        wanted = [row.isfinite().nonzero()[:, 0].tolist() for row in left]
        assert answer.sampling_mask.token_ids == wanted
        assert all(token in ids for token, ids in zip(answer.token_ids, wanted, strict=True))


def test_a_greedy_token_is_its_own_mask(telling: LLM) -> None:
    for answer in answers(telling, GREEDY):
        assert answer.sampling_mask.token_ids == [[token] for token in answer.token_ids]


def test_telling_changes_no_token(telling: LLM, mixture: Path) -> None:
    with LLM(str(mixture), **SETTINGS) as silent:
        for params in (GREEDY, RANDOM):
            plain = answers(silent, params)
            assert [one.token_ids for one in answers(telling, params, salt="bits")] == [one.token_ids for one in plain]
            assert all(one.sampling_mask is None and one.routed_experts is None for one in plain)


def test_cached_tokens_have_no_experts(telling: LLM) -> None:
    (first,) = answers(telling, GREEDY, PROMPTS[:1], salt="cached")
    (again,) = answers(telling, GREEDY, PROMPTS[:1], salt="cached")
    assert again.routed_experts.shape == first.routed_experts.shape
    cached = (again.routed_experts == -1).all(axis=(1, 2))
    num_cached = int(cached.sum())
    assert 0 < num_cached < len(PROMPTS[0])
    assert cached[:num_cached].all()
    assert np.array_equal(again.routed_experts[num_cached:], first.routed_experts[num_cached:])


def test_drafts_change_nothing(telling: LLM, mixture: Path) -> None:
    """Rejected drafts leave no trace, and accepted ones have their own masks and experts."""
    drafting: dict[str, Any] = {"speculative_config": {"method": "given", "num_speculative_tokens": 3}}
    told: dict[str, Any] = {"return_sampling_mask": True, "enable_return_routed_experts": True}
    params = SamplingParams(temperature=0.9, top_k=12, seed=1, max_tokens=24, ignore_eos=True)
    expected = answers(telling, params, salt="drafts")
    found = []
    with LLM(str(mixture), **told, **drafting, **SETTINGS) as engine:
        for prompt, answer in zip(PROMPTS, expected, strict=True):
            drafts = [token if place % 8 < 6 else 77 for place, token in enumerate(answer.token_ids)]
            with_drafts = params.clone()
            with_drafts.extra_args = {"given_token_ids": [drafts]}
            found += answers(engine, with_drafts, [prompt])
        stats = engine.stats()
    assert 0 < stats.spec_num_accepted_tokens < stats.spec_num_draft_tokens
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.sampling_mask == other.sampling_mask
        assert np.array_equal(one.routed_experts, other.routed_experts)


@pytest.mark.parametrize("top_k", [0, 4096])
def test_a_mask_without_bound_is_refused(telling: LLM, top_k: int) -> None:
    with pytest.raises(RequestError, match=rf"top_k is {top_k}.*--return-sampling-mask.*1 to 2048"):
        telling.generate([{"prompt_token_ids": [5]}], SamplingParams(top_k=top_k), use_tqdm=False)


def test_a_model_without_experts_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="--enable-return-routed-experts: the model has no experts"):
        LLM(str(tiny_llama), enable_return_routed_experts=True, **SETTINGS)


def test_choices_carry_experts_as_a_file_of_numpy() -> None:
    experts = np.arange(12, dtype=np.int16).reshape(2, 3, 2)
    choice = CompletionChoice(0, "", None, "stop", None)
    add_facts(choice, CompletionOutput(0, "", [], routed_experts=experts))
    assert isinstance(choice.routed_experts, str)
    read = np.load(io.BytesIO(base64.b64decode(choice.routed_experts)))
    assert read.dtype == np.int16
    assert np.array_equal(read, experts)
