"""Experts of ranks: one rank's bits wherever they lie and while they move, and a balance that improves."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config, GptOssConfig, PretrainedConfig, Qwen3MoeConfig

from core import LLM, SamplingParams
from core.api.errors import ConfigError, EngineDeadError
from core_config.resolve import resolve
from core_distributed.balance import Balance
from core_distributed.expert_policy import balance_of, chosen_moves, rank_loads
from core_runtime.models.mlp import ExpertsMLP
from tests.ranks.test_ranks import DIGITS, DRAWN, FEW, GREEDY, answers, ranks_of, started
from tests.tiny_models import LATENT, SHAPE, save_model

SMALL = {**SHAPE, "num_hidden_layers": 2, "head_dim": 16}
MOE = Qwen3MoeConfig(**SMALL, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=3)
MIXED = [GREEDY, DIGITS, DRAWN]
MOVING = {
    "enable_expert_parallel": True,
    "enable_eplb": True,
    "eplb_config": {
        "step_interval": 6, "window_size": 8, "num_redundant_experts": 2, "log_balancedness": True,
        "log_balancedness_interval": 4,
    },
}  # fmt: skip
ROUND_ROBIN = {"enable_expert_parallel": True, "expert_placement_strategy": "round_robin"}


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    return save_model(tmp_path_factory.mktemp("experts") / "moe", MOE)


@pytest.fixture(scope="module")
def one(moe: Path) -> Iterator[LLM]:
    llm = started(moe, 1)
    yield llm
    del llm


@pytest.fixture(scope="module")
def two(moe: Path) -> Iterator[LLM]:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    more = {"max_num_batched_tokens": 32, "enable_sleep_mode": True, "speculative_config": drafts}
    llm = started(moe, 2, **more, **MOVING)
    yield llm
    ranks_of(llm).close()


def balance(llm: LLM) -> Balance:
    found = ranks_of(llm).balance
    assert found is not None
    return found


def layers(llm: LLM) -> list[ExpertsMLP]:
    blocks = ranks_of(llm).worker.instances[0].model.weights.blocks
    return [block.mlp for block in blocks if isinstance(block.mlp, ExpertsMLP)]


def test_experts_that_move_change_nothing(one: LLM, two: LLM, caplog: pytest.LogCaptureFixture) -> None:
    before = [mlp.places.experts for mlp in layers(two)]
    with caplog.at_level("INFO", "core_distributed.balance"):
        for _ in range(2):
            assert answers(two, MIXED) == answers(one, MIXED)
    assert [mlp.places.experts for mlp in layers(two)] != before
    stats = two.llm_engine.stats()
    assert stats.expert_moves == balance(two).num_moves > 0 and 0.5 < stats.expert_balance <= 1
    assert stats.spec_accepted_by_place
    assert "Balance of experts over the latest steps: 0." in caplog.text
    assert ranks_of(two).worker.runner.forward.recorder.has("decode", 3)


def test_a_rank_computes_its_own_choices_alone(two: LLM) -> None:
    (mlp, _) = layers(two)
    counted = mlp.places.loads.sum()
    two.generate([[1, 2, 3, 4]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert mlp.places.loads.sum() - counted == 4 * 3 and len(mlp.experts._gate_up) == 5


def test_an_expert_that_cannot_be_read_stays(
    one: LLM, two: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(index: int, expert: int) -> Any:
        raise OSError("the disk is gone")

    # Rank 0 alone fails to read. The other rank may still take a copy of an expert, which is no part of that move.
    monkeypatch.setattr(balance(two), "_read", unreadable)
    before = [mlp.places.experts[:5] for mlp in layers(two)]
    for mlp in layers(two):
        slots = mlp.places.experts
        for expert in sorted(set(slots[:5]) - set(slots[5:]))[:2]:
            mlp.places.loads[expert] += 1_000_000
    assert answers(two, GREEDY) == answers(one, GREEDY)
    assert "stays where it is: the disk is gone" in caplog.text
    assert [mlp.places.experts[:5] for mlp in layers(two)] == before


def test_ranks_with_experts_sleep_and_wake(one: LLM, two: LLM) -> None:
    for level in (1, 2):
        two.sleep(level)
        two.wake_up()
        assert answers(two, MIXED) == answers(one, MIXED)


def test_a_killed_rank_with_experts_is_named(two: LLM) -> None:
    child = ranks_of(two)._children.pid(1)
    os.kill(child, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=rf"Rank 1 of 2 \(process {child}\) was killed by signal 9"):
        for _ in range(1000):
            answers(two, GREEDY)


MODELS: dict[str, PretrainedConfig] = {
    "latent": DeepseekV3Config(**{**SMALL, **LATENT, "n_routed_experts": 6, "q_lora_rank": 40}),
    "sinks": GptOssConfig(
        **SMALL, num_local_experts=4, num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
        sliding_window=24,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("gloo", [False, True])
@pytest.mark.parametrize("settings", [ROUND_ROBIN, MOVING], ids=["round robin", "moving"])
@pytest.mark.parametrize("name", MODELS)
def test_other_models(name: str, settings: dict[str, Any], gloo: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    path = save_model(tmp_path / "model", MODELS[name])
    expected = answers(started(path, 1), GREEDY)
    llm = started(path, 2, disable_custom_all_reduce=gloo, **settings)
    assert answers(llm, GREEDY) == expected == answers(llm, GREEDY)
    ranks_of(llm).close()


@pytest.mark.parametrize("redundant", [0, 2, 6])
@pytest.mark.parametrize("seed", range(4))
def test_moves_even_out_the_loads_of_ranks(seed: int, redundant: int) -> None:
    loads = np.random.default_rng(seed).exponential(size=32)
    experts = [slot % 32 for slot in range(32 + redundant)]
    before, places = rank_loads(experts, loads, 2), list(experts)
    for move in chosen_moves(experts, loads, 2, 16):
        assert len({slot // (len(places) // 2) for slot, _ in move}) == len(move)  # at most one slot of a rank
        for slot, expert in move:
            places[slot] = expert
        assert set(places) == set(range(32))
    for rank in (places[: len(places) // 2], places[len(places) // 2 :]):
        assert len(set(rank)) == len(rank)
    assert balance_of(rank_loads(places, loads, 2)) > max(0.9, balance_of(before) - 1e-9)


def test_even_loads_need_no_moves() -> None:
    assert chosen_moves(range(8), np.ones(8), 2, 10) == []
    assert chosen_moves(range(8), np.zeros(8), 4, 10) == []
    assert balance_of(np.zeros(2)) == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (MOVING | {"eplb_config": {"num_redundant_experts": 1}}, "9 experts cannot be divided into 2 equal parts"),
        (MOVING | {"eplb_config": {"num_redundant_experts": 10}}, "2 ranks can use 8 at most"),
        ({"enable_eplb": True}, "with --enable-expert-parallel alone"),
        ({"all2all_backend": "pplx"}, "needs GPUs"),
    ],
)
def test_what_cannot_be_shared_is_refused(moe: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(moe), "tensor_parallel_size": 2, **FEW, **settings}, context="serve", environ={})
