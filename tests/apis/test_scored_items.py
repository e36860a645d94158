"""Scores of items by a real engine, against transformers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core import LLM
from core.api.errors import RequestError
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.settings import settings_of
from core_apis.scoring.writer import ScoringAnswer
from core_config.served.server_config import ServerConfig
from core_frontend.api.outputs import RequestOutput

LABELS = [70, 201, 2]
BODY: dict[str, Any] = {"query": "Is it blue? ", "items": ["Sky", "The sun", "Sky"], "label_token_ids": LABELS}


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), dtype="float32", max_num_batched_tokens=16, kv_cache_memory_bytes="8M") as engine:
        yield engine


def scored(llm: LLM, mode: str = "raw_logprobs", **fields: Any) -> tuple[list[float], list[list[int]]]:
    """The scores of a body, and the prompts that the engine got."""
    model, tokenizer = llm._config.model, llm._tokenizer
    assert tokenizer is not None
    settings = settings_of(
        model,
        ServerConfig(),
        tokenizer,
        served_names_file=None,
        most_prompts={},
        max_num_queued_tokens=0,
        max_grammar_size=0,
        embedding_size=0,
        pooling=None,
    )
    prepared = Preparation(settings, tokenizer).run("generative scoring", json.dumps({**BODY, **fields}).encode())
    runs = prepared.chat
    given = [prompt.as_input(None) for prompt in runs.prompts]
    outputs = llm.generate(given, runs.params, use_tqdm=False)

    async def coming() -> AsyncGenerator[tuple[int, RequestOutput], None]:
        for index in reversed(range(len(outputs))):  # in any order
            yield index, outputs[index]

    shown: Any = SimpleNamespace(
        model=SimpleNamespace(logprobs_mode=mode), server=SimpleNamespace(enable_prompt_tokens_details=False)
    )
    response = asyncio.run(ScoringAnswer(shown, prepared, "id", 0).whole(coming()))
    rows = json.loads(bytes(response.body))["data"]
    assert [row["index"] for row in rows] == list(range(len(outputs)))
    return [row["score"] for row in rows], [prompt.token_ids for prompt in runs.prompts]


@pytest.mark.parametrize("item_first", [False, True])
def test_scores_are_those_of_transformers(llm: LLM, tiny_llama: Path, item_first: bool) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    among, prompts = scored(llm, item_first=item_first)
    overall, same = scored(llm, item_first=item_first, apply_softmax=False)
    assert prompts == same and prompts[0] == prompts[2]
    assert among[0] == among[2]  # in company, from the cache
    for ids, one, whole in zip(prompts, among, overall, strict=True):
        with torch.no_grad():
            logits = theirs(torch.tensor([ids])).logits[0, -1].double()
        assert one == pytest.approx(float(logits[LABELS].softmax(-1)[0]), rel=1e-4)
        assert whole == pytest.approx(float(logits.softmax(-1)[LABELS[0]]), rel=1e-4)
        assert scored(llm, query=[], items=[ids])[0] == [one]  # alone, and as one piece


def test_logits_are_no_probabilities_of_the_vocabulary(llm: LLM) -> None:
    with pytest.raises(RequestError, match="--logprobs-mode raw_logits"):
        scored(llm, mode="raw_logits", apply_softmax=False)
