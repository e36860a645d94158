"""Ranks that divide keys and values by positions compute what one rank computes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen3NextConfig,
)

from core import LLM
from core.api.errors import ConfigError
from core_config.resolve import resolve
from core_distributed.context import backend
from core_distributed.context.division import Division
from tests.ranks.test_ranks import DIGITS, DRAWN, EXPERTS, GREEDY, SMALL, ranks_of, started
from tests.tiny_models import LATENT, save_model

PROMPTS = [[3 + (place * 7 + count) % 200 for place in range(count)] for count in (5, 127, 128, 245, 250, 400)]
ROOM = {"max_model_len": 512}
DIVIDED = {"decode_context_parallel_size": 2}
LONG = {**SMALL, "num_key_value_heads": 1}
MODELS: dict[str, PretrainedConfig] = {
    "plain": LlamaConfig(**LONG),
    "latent": DeepseekV3Config(**{**SMALL, **LATENT, "n_routed_experts": 6, "q_lora_rank": 40}),
    "window": Gemma3TextConfig(
        **LONG, sliding_window=150, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "sinks": GptOssConfig(
        **LONG, num_local_experts=4, num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
        sliding_window=150,
    ),
    "gated delta": Qwen3NextConfig(
        **LONG, **EXPERTS, shared_expert_intermediate_size=64, full_attention_interval=2, linear_num_key_heads=4,
        linear_num_value_heads=8, linear_key_head_dim=16, linear_value_head_dim=16,
    ),
}  # fmt: skip


def answers(llm: LLM, params: Any, prompts: list[list[int]] = PROMPTS) -> list[Any]:
    """Tokens, and all log-probabilities, of every prompt."""
    found: list[Any] = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        (choice,) = output.outputs
        rows = [*(output.prompt_logprobs or []), *(choice.logprobs or [])]
        logprobs = [sorted((token, each.logprob) for token, each in (row or {}).items()) for row in rows]
        found.append((list(choice.token_ids), logprobs))
    return found


def executor_of(llm: LLM) -> Any:
    client: Any = llm.llm_engine._client
    return client.core.executor


def saved(name: str, folder: Path) -> Path:
    torch.manual_seed(3)
    return save_model(folder / "model", MODELS[name])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("plain", tmp_path_factory.mktemp("context"))


@pytest.fixture(scope="module")
def one(plain: Path) -> LLM:
    return started(plain, 1, **ROOM)


@pytest.fixture(scope="module")
def two(plain: Path) -> Iterator[LLM]:
    """Two ranks with half of the positions each, drafts, and blocks for one of the longer prompts at a time."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    few = {"num_gpu_blocks_override": 7, "max_num_batched_tokens": 96, "enable_sleep_mode": True}
    llm = started(plain, 2, **DIVIDED, **ROOM, **few, speculative_config=drafts)
    yield llm
    ranks_of(llm).close()


@pytest.mark.parametrize("params", [GREEDY, DRAWN, [GREEDY, DIGITS, DRAWN] * 2], ids=["greedy", "drawn", "mixed"])
def test_ranks_with_half_of_the_keys_answer_as_one(one: LLM, two: LLM, params: Any) -> None:
    expected = answers(one, params)
    assert answers(two, params) == expected
    assert answers(two, params) == expected  # with the prefixes that are cached by now
    stats = two.llm_engine.stats()
    assert stats.num_preemptions and stats.spec_accepted_by_place


def test_a_rank_stores_half_of_the_keys(one: LLM, two: LLM) -> None:
    token_bytes = executor_of(one).page_bytes // 16
    assert ranks_of(two).page_bytes == token_bytes * 256  # of all ranks, a block of 256 tokens: each has half of it


def test_ranks_with_half_of_the_keys_sleep_and_wake(one: LLM, two: LLM) -> None:
    two.sleep(2)
    two.wake_up()
    assert answers(two, GREEDY) == answers(one, GREEDY)


@pytest.mark.parametrize(
    "name", ["latent", *(pytest.param(name, marks=pytest.mark.slow) for name in ("window", "sinks", "gated delta"))]
)
def test_every_kind_of_layer(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    one = started(path, 1, **ROOM)
    expected = answers(one, GREEDY)
    two = started(path, 2, **DIVIDED, **ROOM)
    assert answers(two, GREEDY) == expected
    assert answers(two, GREEDY) == expected
    ranks_of(two).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (4, {"decode_context_parallel_size": 2}),
        (4, {"decode_context_parallel_size": 4}),
        (2, {"decode_context_parallel_size": 2, "cp_kv_cache_interleave_size": 256}),
        (2, {"decode_context_parallel_size": 2, "disable_custom_all_reduce": True}),
        (2, {"decode_context_parallel_size": 2, "pipeline_parallel_size": 2}),
        (2, {"decode_context_parallel_size": 2, "kv_cache_dtype": "int8_per_token_head"}),
    ],
    ids=["two groups", "four", "longer pieces", "gloo", "stages", "8-bit keys"],
)
def test_every_division(plain: Path, ranks: int, settings: dict[str, Any]) -> None:
    kept = {name: value for name, value in settings.items() if name == "kv_cache_dtype"}
    expected = answers(started(plain, 1, **ROOM, **kept), GREEDY)
    llm = started(plain, ranks, **ROOM, **settings)
    assert answers(llm, GREEDY) == expected
    executor_of(llm).close()


def test_slots_of_two_ranks_are_those_of_one() -> None:
    slots = torch.tensor([-1, 0, 127, 128, 255, 256 * 3 + 130])
    first, second = (Division(2, rank, 4).own_slots(slots, 256).tolist() for rank in (2, 3))
    assert first == [-1, 0, 127, -1, -1, -1]
    assert second == [-1, -1, -1, 0, 127, 128 * 3 + 2]
    with pytest.raises(ValueError, match="a block of 255 tokens: expected a multiple of 2"):
        Division(2, 0, 2).piece(255)


def test_a_step_gathers_at_most_the_blocks_of_the_longest_sequence() -> None:
    assert backend.room_blocks(512, 256) == 3 and backend.room_blocks(513, 256) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, "give a divisor of 4"),
        ({"decode_context_parallel_size": 17}, "give a divisor of 2"),
        ({**DIVIDED, "cp_kv_cache_interleave_size": 100}, "attention sums 128 keys at a time; give a multiple of 128"),
        ({**DIVIDED, "dcp_kv_cache_interleave_size": 1024}, "has 2048 tokens, expected at most 1024"),
        ({**DIVIDED, "block_size": 16}, "--block-size 16: a block has 128 tokens on each of the 2 ranks .* give 256"),
        ({"tensor_parallel_size": 1, "decode_context_parallel_size": 2}, "or more ranks"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(plain: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(plain), "tensor_parallel_size": 2, **ROOM, **settings}, context="serve", environ={})


def test_heads_that_ranks_divide_already_are_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path / "model", LlamaConfig(**SMALL))
    words = "each of 2 heads of keys is on 1 rank, .* Give --tensor-parallel-size 4"
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(path), "tensor_parallel_size": 2, **DIVIDED}, context="serve", environ={})


def test_the_cache_holds_twice_as_many_tokens(plain: Path) -> None:
    settings = {"model": str(plain), "tensor_parallel_size": 2, "kv_cache_memory_bytes": "8M"}
    whole, divided = (resolve({**settings, **more}, context="explain").memory for more in ({}, DIVIDED))
    assert (divided.num_blocks - 1) * divided.block_size > 1.9 * (whole.num_blocks - 1) * whole.block_size
