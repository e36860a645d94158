"""Engines that share blocks through a store of others answer with the bits of one engine, also where the store lies or dies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.engine.kv_handoffs import told
from tests.kv.lmcache_server import LMCacheServer
from tests.tiny_models import save_checkpoint

PROMPT = [1, *(3 + 7 * index % 250 for index in range(200))]
LONGER = [*PROMPT, 9, 8, 7]
PARAMS = SamplingParams(max_tokens=6, temperature=0.8, seed=5, n=2, logprobs=2, ignore_eos=True)
SIZES: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "dtype": "float32", "skip_tokenizer_init": True}


@pytest.fixture
def server() -> Iterator[LMCacheServer]:
    one = LMCacheServer()
    yield one
    one.close()


def through(server: LMCacheServer, **more: Any) -> dict[str, Any]:
    transfer = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"lmcache.remote_url": server.url}}
    return {**SIZES, "kv_transfer_config": transfer, **more}


def answer(llm: LLM, prompt: list[int] = PROMPT) -> tuple[list[Any], int]:
    """The bits of an answer, and the tokens of its prompt that were cached."""
    (output,) = llm.generate([{"prompt_token_ids": prompt}], PARAMS, use_tqdm=False)
    return told(output), output.num_cached_tokens or 0


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "lfm2"])
def test_engines_answer_as_one(tmp_path: Path, family: str, server: LMCacheServer) -> None:
    model = str(save_checkpoint(tmp_path / "model", family=family))
    with LLM(model, **SIZES) as alone:
        expected, longer = answer(alone)[0], answer(alone, LONGER)[0]
    with LLM(model, **through(server)) as one:
        assert answer(one) == (expected, 0)
    with LLM(model, **through(server, max_num_batched_tokens=64)) as other:
        bits, cached = answer(other)
        assert bits == expected and cached >= 160
        assert answer(other, LONGER)[0] == longer
        other.reset_prefix_cache()
        assert answer(other) == (expected, 0), "no page from before a reset"


def test_bits_are_those_of_one_engine_when_the_store_lies_or_dies(tmp_path: Path, server: LMCacheServer) -> None:
    model = str(save_checkpoint(tmp_path / "model", family="llama"))
    with LLM(model, **through(server, enable_sleep_mode=True)) as one:
        expected, cached = answer(one)
        assert not cached
        one.sleep(level=2)
        one.wake_up()
        again, cached = answer(one)
        assert again == expected and cached >= 160, "after a sleep blocks come from the store"
    server.answer = lambda content: content[:-1] + bytes([content[-1] ^ 1])
    with LLM(model, **through(server)) as other:
        assert answer(other) == (expected, 0)
        server.close()
        other.reset_prefix_cache()
        assert answer(other)[0] == expected
