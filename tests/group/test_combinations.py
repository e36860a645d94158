"""Two engines with real weights against one: the same bits with drafts and grammars, after sleep, new weights and a death."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams, SharedTensors, StructuredOutputsParams
from core.api.errors import RequestError, UtilityError
from core_frontend.group.inproc import OfflineGroup
from tests.new_weights import PARAMS, PROMPTS, SETTINGS, answers, answers_of, weights_of
from tests.tiny_models import save_checkpoint

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
GRAMMAR = SamplingParams(max_tokens=12, seed=3, structured_outputs=StructuredOutputsParams(regex="[ab]{4,9}c"))


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("newer"), seed=11)


@pytest.fixture(scope="module")
def two(tiny_llama: Path) -> Iterator[LLM]:
    settings: dict[str, Any] = {**SETTINGS, "enable_sleep_mode": True, "speculative_config": NGRAM}
    with LLM(str(tiny_llama), data_parallel_size=2, **settings) as llm:
        yield llm


def group_of(llm: LLM) -> OfflineGroup:
    client = llm._client
    assert isinstance(client, OfflineGroup)
    return client


def written(llm: LLM) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(["Once", "Twice"], GRAMMAR, use_tqdm=False)]


def test_both_compute_and_the_bits_are_those_of_one(two: LLM, tiny_llama: Path) -> None:
    expected = answers_of(tiny_llama)
    for _ in range(2):
        assert answers(two) == expected
    assert all(stats.prefix_queries for stats in group_of(two)._group.totals.engines)
    settings: dict[str, Any] = {**SETTINGS}
    with LLM(str(tiny_llama), **settings) as one:
        assert written(two) == written(one)
    assert two.get_world_size() == 2
    with pytest.raises(RequestError, match="processes of their own"):
        two.apply_model(print)


@pytest.mark.parametrize("level", [1, 2])
def test_all_sleep_and_wake(two: LLM, tiny_llama: Path, level: int) -> None:
    two.sleep(level)
    assert two.is_sleeping()
    with pytest.raises(RequestError, match="sleeps"):
        two.generate(list(PROMPTS), PARAMS, use_tqdm=False)
    two.wake_up()
    assert answers(two) == answers_of(tiny_llama)


def test_a_death_in_a_batch_changes_no_bit(two: LLM, tiny_llama: Path) -> None:
    group = group_of(two)
    for prompt in PROMPTS:
        two.add_request(str(prompt), prompt, PARAMS)
    victim = next(member for member in group._group.members if group._group._work.at(member.index))
    os.kill(victim.client.pid, signal.SIGKILL)
    last = {}
    while two.has_unfinished_requests():
        for output in two.step():
            last[output.request_id] = list(output.outputs[0].token_ids)
    assert [last[str(prompt)] for prompt in PROMPTS] == [tokens for tokens, _ in answers_of(tiny_llama)]
    while victim.state != "running":
        group._run(asyncio.sleep(0.05))
    assert answers(two) == answers_of(tiny_llama)


def test_new_weights_reach_all(two: LLM, tiny_llama: Path, newer: Path) -> None:
    two.update_weights(path=str(newer), weight_version="newer")
    assert two.weight_version == "newer"
    assert answers(two) == answers_of(newer)
    with SharedTensors(weights_of(tiny_llama)) as shared:
        two.update_weights(shared.update())
    assert answers(two) == answers_of(tiny_llama)
    with pytest.raises(UtilityError):
        two.update_weights(path="/nowhere/at/all")
    assert answers(two) == answers_of(tiny_llama), "what one engine refuses changes nothing"
