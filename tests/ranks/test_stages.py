"""Ranks in stages compute what one rank computes: steps of different sequences at the same time, and after failures."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import MambaConfig, Olmo2Config, PretrainedConfig

from core import LLM, SamplingParams
from core.api.errors import ConfigError, EngineDeadError
from core_config.parallel_cost import WEIGHTS
from core_config.resolve import resolve
from core_distributed import executor
from core_distributed.stages_executor import StagesExecutor
from core_platforms.cpu.ranks import SharedGroup, SharedLink
from core_runtime.executor.ranks import Ranks
from core_runtime.specs.stages import FEWEST_UNEVEN
from tests.ranks.test_ranks import DIGITS, DRAWN, FEW, GREEDY, MODELS, PROMPTS, SMALL, answers, saved, started
from tests.tiny_models import save_checkpoint, save_model

MANY = [[1 + place, 5, 9 + place % 3] for place in range(8)]
TOKENS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def staged(path: Path, stages: int = 2, ranks: int = 1, **settings: Any) -> LLM:
    return started(path, ranks, pipeline_parallel_size=stages, **settings)


def executor_of(llm: LLM) -> StagesExecutor:
    client = llm.llm_engine._client
    assert client is not None
    found = client.core.executor
    assert isinstance(found, StagesExecutor)
    return found


def tokens(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, TOKENS, use_tqdm=False)]


@pytest.fixture(scope="module", autouse=True)
def small_steps() -> Iterator[None]:
    """Two sequences are enough for a step of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "fewest_together", lambda ranks, spec: 2)
        yield


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("stages") / "llama")


@pytest.fixture(scope="module")
def one(llama: Path) -> Iterator[LLM]:
    llm = started(llama, 1)
    yield llm
    del llm


@pytest.fixture(scope="module")
def two(llama: Path) -> Iterator[LLM]:
    """Two stages, with drafts, few blocks and small steps."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    few = {"max_model_len": 128, "num_gpu_blocks_override": 20, "max_num_batched_tokens": 32}
    llm = staged(llama, enable_sleep_mode=True, speculative_config=drafts, **few)
    yield llm
    executor_of(llm).close()


@pytest.mark.parametrize(
    "params", [GREEDY, DRAWN, DIGITS, [GREEDY, DIGITS, DRAWN]], ids=["greedy", "drawn", "grammar", "mixed"]
)
def test_stages_answer_as_one_rank(one: LLM, two: LLM, params: Any) -> None:
    expected = answers(one, params)
    assert answers(two, params) == expected
    assert answers(two, params) == expected  # with the prefixes that are cached by now


def test_steps_in_flight_share_no_sequence(one: LLM, two: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage has a step of its own, and both steps are of one size."""
    submit, seen = StagesExecutor.submit, []

    def watched(executor: StagesExecutor, plan: Any) -> int:
        number = submit(executor, plan)
        seen.append([set(other.slots.tolist()) for _, other in executor._submitted])
        return number

    monkeypatch.setattr(StagesExecutor, "submit", watched)
    assert tokens(two, MANY) == tokens(one, MANY)
    pairs = [each for each in seen if len(each) == 2]
    assert len(pairs) > 10 and all(first.isdisjoint(second) for first, second in pairs)
    assert sum(len(first) == len(second) == 4 for first, second in pairs) > 5


def test_drafts_chunks_and_preemptions(one: LLM, two: LLM) -> None:
    assert tokens(two, [*MANY, *PROMPTS]) == tokens(one, [*MANY, *PROMPTS])
    stats = two.llm_engine.stats()
    assert stats.num_preemptions and stats.spec_accepted_by_place


@pytest.mark.parametrize("level", [1, 2])
def test_stages_sleep_and_wake_together(one: LLM, two: LLM, level: int) -> None:
    two.sleep(level)
    two.wake_up()
    assert answers(two, GREEDY) == answers(one, GREEDY)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_raises_fails_the_step_alone(
    one: LLM, two: LLM, monkeypatch: pytest.MonkeyPatch, caplog: Any, stage: int
) -> None:
    """The sequences of the step start over; those of the other step in flight as well."""
    expected = tokens(one, MANY)
    ranks = executor_of(two)
    failures = ["once"]
    if stage:
        execute = ranks.worker.execute

        def failing(plan: Any) -> Any:
            if failures and len(plan.slots) == 4:
                raise ValueError(failures.pop())
            return execute(plan)

        monkeypatch.setattr(ranks.worker, "execute", failing)
    else:
        whole = executor._for_others

        def damaged(plan: Any) -> Any:
            if failures and plan.new:
                failures.pop()
                return executor.replace(plan, slots=plan.slots + 1000)
            return whole(plan)

        monkeypatch.setattr(executor, "_for_others", damaged)
    assert tokens(two, MANY) == expected
    assert not failures
    if not stage:
        assert "rank 1 (process " in caplog.text


def test_a_killed_stage_is_named(two: LLM) -> None:
    ranks = executor_of(two)
    child = ranks._children.pid(1)
    os.kill(child, signal.SIGKILL)
    death = rf"Rank 1 of 2 \(process {child}\) was killed by signal 9 \(SIGKILL\) in step"
    with pytest.raises(EngineDeadError, match=death):
        for _ in range(1000):  # the watch may notice it only in the next step
            tokens(two, MANY)
    ranks.close()


@pytest.mark.slow
def test_a_stopped_stage_is_named(llama: Path, capfd: Any) -> None:
    llm = staged(llama, 3, distributed_timeout_seconds=0.5)
    ranks = executor_of(llm)
    child = ranks._children.pid(2)  # the first stage, which rank 1 waits for
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(
        EngineDeadError, match=rf"Rank 2 of 3 \(process {child}\) did not answer within 0.5 s in step .*T \(stopped\)"
    ):
        tokens(llm, MANY)
    assert "Thread 0x" in capfd.readouterr().err  # the stacks
    ranks.close()
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.slow
def test_stages_of_several_ranks(llama: Path, one: LLM) -> None:
    llm = staged(llama, 2, 2)
    assert answers(llm, GREEDY) == answers(one, GREEDY)
    assert tokens(llm, MANY) == tokens(one, MANY)
    executor_of(llm).close()


@pytest.mark.slow
def test_engines_of_a_group_have_stages_of_their_own(llama: Path, one: LLM) -> None:
    with staged(llama, data_parallel_size=2, enable_sleep_mode=True) as group:
        for _ in range(2):
            assert answers(group, DRAWN) == answers(one, DRAWN)
            group.sleep()
            group.wake_up()


@pytest.mark.slow
def test_gloo_gives_the_same_bits(llama: Path, one: LLM) -> None:
    llm = staged(llama, disable_custom_all_reduce=True)
    assert answers(llm, GREEDY) == answers(one, GREEDY)
    assert tokens(llm, MANY) == tokens(one, MANY)
    executor_of(llm).close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4 in GGUF", *MODELS])
def test_every_kind_of_model(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    settings = {"max_model_len": 128} if path.suffix else {}
    whole = answers(started(path, 1, **settings), GREEDY)
    llm = staged(path, **settings)
    assert answers(llm, GREEDY) == whole
    assert answers(llm, GREEDY) == whole
    executor_of(llm).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(
            hidden_size=64,
            num_hidden_layers=3,
            vocab_size=260,
            state_size=8,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
        Olmo2Config(**SMALL),
    ],
    ids=["mamba", "norms over all heads"],
)
def test_layers_that_cannot_be_divided(config: PretrainedConfig, tmp_path: Path) -> None:
    path = save_model(tmp_path / "model", config)
    whole = answers(started(path, 1, max_model_len=128), GREEDY)
    llm = staged(path, max_model_len=128)
    assert answers(llm, GREEDY) == whole
    executor_of(llm).close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pipeline_parallel_size": 4}, "cannot be divided into 4 stages; sizes that work for this model: 1 to 3"),
        ({"pipeline_parallel_size": 2, "enable_lora": True}, "--enable-lora: not with --pipeline-parallel-size 2"),
        ({"pipeline_parallel_size": 2, "distributed_executor_backend": "uni"}, "it has one rank"),
        (
            {"pipeline_parallel_size": 32, "tensor_parallel_size": 4},
            "--tensor-parallel-size 4 and --pipeline-parallel-size 32: 128 ranks, expected at most 64",
        ),
        ({"pipeline_parallel_size": 2, "speculative_config": {"method": "medusa"}}, "ngram or suffix"),
    ],
)
def test_what_stages_cannot_do_is_refused_by_name(llama: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(llama), **FEW, **settings}, context="serve", environ={})


def test_stages_send_what_is_explained(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Counter[tuple[str, str]]] = []
    begin, write, recv = SharedGroup.begin, SharedGroup.write, SharedLink.recv

    def count(name: str, nbytes: int) -> None:
        if sent:
            sent[-1][name, "messages"] += 1
            sent[-1][name, "nbytes"] += nbytes

    def begun(group: SharedGroup, number: int) -> None:
        sent.append(Counter())
        begin(group, number)

    def written(group: SharedGroup, data: bytes) -> None:
        count("plans", len(data))
        write(group, data)

    def received(link: SharedLink, x: Any) -> None:
        count("activations", x.nbytes)
        recv(link, x)

    monkeypatch.setattr(Ranks, "fewest_together", lambda ranks, spec: FEWEST_UNEVEN)
    monkeypatch.setattr(SharedGroup, "begin", begun)
    monkeypatch.setattr(SharedGroup, "write", written)
    monkeypatch.setattr(SharedLink, "recv", received)
    settings = {"pipeline_parallel_size": 2, "max_model_len": 64, "kv_cache_memory_bytes": "8M", "max_num_seqs": 32}
    layout = resolve({"model": str(llama), **settings}, context="explain").layout
    assert layout is not None and layout.ranks == 2
    llm = LLM(str(llama), **settings, use_tqdm_on_load=False)
    for sequences, cost in zip((1, 32), layout.steps.values(), strict=True):
        sent.clear()
        prompts = [[1, 2, 3 + place] for place in range(sequences)]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)
        told = {
            share.name: (share.messages, share.nbytes)
            for shares in cost.stages.values()
            for share in shares
            if share.name != WEIGHTS
        }
        for step in sent[6:12]:
            assert {name: (step[name, "messages"], step[name, "nbytes"]) for name, _ in step} == told
        assert any("stages idle: " in line for line in cost.lines())
    executor_of(llm).close()
