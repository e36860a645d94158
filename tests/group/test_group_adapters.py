"""Adapters of two engines with real weights: a load reaches both, a name changes in both, and a death loses none."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core_frontend.group.inproc import OfflineGroup
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter
from tests.new_weights import SETTINGS

PROMPTS = [{"prompt_token_ids": [1, 40 + place, *range(60 + place, 70 + place)]} for place in range(8)]
ASKED = SamplingParams(max_tokens=8, temperature=0.7, seed=3, logprobs=2, ignore_eos=True)
LIMITS: dict[str, Any] = {**SETTINGS, "enable_lora": True, "max_loras": 2, "max_cpu_loras": 2}


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), shapes_of(str(tiny_llama))
    return [write_adapter(folder / str(seed), shapes, 6, seed, scale=0.2) for seed in range(3)]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path, adapters: list[Path]) -> list[Any]:
    with LLM(str(tiny_llama), **LIMITS) as one:
        found = [answers(one, LoRARequest(str(path), lora_path=str(path))) for path in adapters]
        return [*found, answers(one, None)]


@pytest.fixture(scope="module")
def two(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), data_parallel_size=2, **LIMITS) as llm:
        yield llm


def answers(llm: LLM, adapter: LoRARequest | None) -> list[Any]:
    found = []
    for output in llm.generate(list(PROMPTS), ASKED, lora_request=adapter, use_tqdm=False):
        (choice,) = output.outputs
        found.append(
            (list(choice.token_ids), [{t: p.logprob for t, p in row.items()} for row in choice.logprobs or []])
        )
    return found


def group_of(llm: LLM) -> OfflineGroup:
    client = llm._client
    assert isinstance(client, OfflineGroup)
    return client


def test_a_load_reaches_both_engines(two: LLM, adapters: list[Path], expected: list[Any]) -> None:
    before = [stats.prefix_queries for stats in group_of(two)._group.totals.engines]
    name = LoRARequest("a", 1, str(adapters[0]))
    assert two.add_lora(name) and two.list_loras() == {1}
    assert answers(two, name) == expected[0]
    assert answers(two, None) == expected[3]
    after = [stats.prefix_queries for stats in group_of(two)._group.totals.engines]
    assert all(new > old for new, old in zip(after, before, strict=True)), "both have computed"


def test_a_name_stands_for_other_weights_in_both(two: LLM, adapters: list[Path], expected: list[Any]) -> None:
    for path, found in ((adapters[1], expected[1]), (adapters[2], expected[2])):
        name = LoRARequest("b", 2, str(path), load_inplace=True)
        two.add_lora(name)
        assert answers(two, LoRARequest("b", 2, str(path))) == found
    assert two.remove_lora(2) and not two.remove_lora(2)
    with pytest.raises(RequestError):
        two.add_lora(LoRARequest("c", 3, "/nowhere/at/all"))
    assert two.list_loras() == {1}


def test_the_engine_that_follows_a_dead_one_has_them(two: LLM, adapters: list[Path], expected: list[Any]) -> None:
    group, name = group_of(two), LoRARequest("d", 4, str(adapters[1]))
    two.add_lora(name)
    victim = group._group.members[0]
    os.kill(victim.client.pid, signal.SIGKILL)
    while victim.state == "running":
        group._run(asyncio.sleep(0.02))
    while victim.state != "running":
        group._run(asyncio.sleep(0.05))
    assert answers(two, name) == expected[1]
    assert two.remove_lora(4)
