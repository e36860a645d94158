"""Two ranks compute what one computes: tokens and log-probabilities, with grammars and drafts, and after failures."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, CoreError, EngineDeadError
from core.api.structured_outputs import StructuredOutputsParams
from core_config.resolve import resolve
from core_distributed import commands, executor
from core_distributed.executor import RanksExecutor
from core_frontend.async_engine import AsyncEngine
from tests.tiny_models import save_checkpoint

LIMIT_S = 60
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], [3 + place % 11 for place in range(90)]]
FEW = {"max_model_len": 256, "kv_cache_memory_bytes": "8M", "use_tqdm_on_load": False}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=1)
DRAWN = SamplingParams(
    temperature=0.9, top_p=0.9, seed=5, max_tokens=24, ignore_eos=True, presence_penalty=0.4, min_tokens=3, logprobs=2
)
DIGITS = SamplingParams(
    temperature=0.7, seed=2, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}-[a-c]{4}")
)


def started(path: Path, ranks: int, **settings: Any) -> LLM:
    return LLM(model=str(path), tensor_parallel_size=ranks, **FEW, **settings)


def answers(llm: LLM, params: SamplingParams) -> list[Any]:
    """Tokens, and all log-probabilities, of every prompt."""
    found: list[Any] = []
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        (choice,) = output.outputs
        rows = [*(output.prompt_logprobs or []), *(choice.logprobs or [])]
        logprobs = [sorted((token, each.logprob, each.rank) for token, each in (row or {}).items()) for row in rows]
        found.append((list(choice.token_ids), choice.text, logprobs))
    return found


def ranks_of(llm: LLM) -> RanksExecutor:
    client = llm.llm_engine._client
    assert client is not None
    found = client.core.executor
    assert isinstance(found, RanksExecutor)
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("ranks") / "llama")


@pytest.fixture(scope="module")
def one(llama: Path) -> Iterator[LLM]:
    llm = started(llama, 1)
    yield llm
    del llm


@pytest.fixture(scope="module")
def two(llama: Path) -> Iterator[LLM]:
    llm = started(llama, 2)
    yield llm
    ranks_of(llm).close()


@pytest.mark.parametrize("params", [GREEDY, DRAWN, DIGITS], ids=["greedy", "drawn", "grammar"])
def test_two_ranks_answer_as_one(one: LLM, two: LLM, params: SamplingParams) -> None:
    assert answers(two, params) == answers(one, params)


def test_steps_of_ranks_are_recorded(two: LLM) -> None:
    answers(two, GREEDY)
    recorder = ranks_of(two).worker.runner.forward.recorder
    assert recorder.has("decode", 3) and recorder.has("head", 3)


MODELS = {
    "window": ("gemma3", {}),
    "untied": ("llama", {"tie_word_embeddings": False, "seed": 3}),
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "experts": ("mixtral", {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model(name: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    path = save_checkpoint(tmp_path / name, family, **changes)
    whole = answers(started(path, 1), GREEDY)
    llm = started(path, 2)
    parts = answers(llm, GREEDY)
    ranks_of(llm).close()
    assert [tokens for tokens, _, _ in parts] == [tokens for tokens, _, _ in whole]
    assert parts == whole


def test_drafts_of_rank_0_are_verified_by_all(llama: Path, one: LLM) -> None:
    llm = started(llama, 2, speculative_config={"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})
    assert answers(llm, GREEDY) == answers(one, GREEDY)
    assert answers(llm, DIGITS) == answers(one, DIGITS)
    ranks_of(llm).close()


def test_ranks_sleep_and_wake_together(llama: Path, one: LLM) -> None:
    llm = started(llama, 2, enable_sleep_mode=True)
    expected = answers(one, GREEDY)
    for level in (1, 2):
        assert answers(llm, GREEDY) == expected
        llm.sleep(level)
        llm.wake_up()
    assert answers(llm, GREEDY) == expected
    ranks_of(llm).close()


def test_ranks_sleep_all_or_none(llama: Path, one: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = started(llama, 2, enable_sleep_mode=True)
    ranks = ranks_of(llm)

    def full(level: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ranks._own, "release", full)
    with pytest.raises(Exception, match="rank 0: OSError: no space left"):
        llm.sleep(1)
    assert answers(llm, GREEDY) == answers(one, GREEDY)
    ranks.close()


def test_gloo_gives_the_same_bits(llama: Path, one: LLM) -> None:
    llm = started(llama, 2, disable_custom_all_reduce=True)
    assert answers(llm, GREEDY) == answers(one, GREEDY)
    ranks_of(llm).close()


def test_a_rank_that_raises_fails_the_step_alone(one: LLM, two: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(one, GREEDY)
    worker, failures = ranks_of(two).worker, [ValueError("not now")]
    execute = worker.execute

    def once(plan: Any) -> Any:
        if failures and plan.total_num_tokens:
            raise failures.pop()
        return execute(plan)

    monkeypatch.setattr(worker, "execute", once)
    assert answers(two, GREEDY) == expected  # the sequences of the step have started over
    assert not failures


def test_another_rank_that_raises_is_named(one: LLM, two: LLM, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    expected = answers(one, GREEDY)
    encode, damaged = executor._for_others, []

    def without_blocks(plan: Any) -> Any:
        if plan.new and not damaged:
            damaged.append(plan)
            return executor.replace(plan, slots=plan.slots + 1000)
        return encode(plan)

    monkeypatch.setattr(executor, "_for_others", without_blocks)
    assert answers(two, GREEDY) == expected
    assert damaged and "rank 1 (process " in caplog.text and "IndexError" in caplog.text


def test_ranks_wait_without_work_and_leave_nothing(llama: Path) -> None:
    llm = started(llama, 2)
    answers(llm, GREEDY)
    ranks = ranks_of(llm)
    child = ranks._children.pid(1)
    used = cpu_ticks(child)
    time.sleep(0.5)
    assert cpu_ticks(child) - used <= 1  # of 100 a second
    ranks.close()
    assert not Path(f"/proc/{child}").exists()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_killed_rank_is_named(llama: Path) -> None:
    llm = started(llama, 2)
    ranks = ranks_of(llm)
    child = ranks._children.pid(1)
    os.kill(child, signal.SIGKILL)
    with pytest.raises(
        EngineDeadError, match=rf"Rank 1 of 2 \(process {child}\) was killed by signal 9 \(SIGKILL\) in step"
    ):
        for _ in range(1000):  # the watch may notice it only in the next step
            answers(llm, GREEDY)
    with pytest.raises(EngineDeadError, match="killed by signal 9"):
        ranks.check()
    ranks.close()


def test_a_stopped_rank_is_named(llama: Path, capfd: Any) -> None:
    llm = started(llama, 2, distributed_timeout_seconds=0.5)
    ranks = ranks_of(llm)
    child = ranks._children.pid(1)
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(
        EngineDeadError, match=rf"Rank 1 of 2 \(process {child}\) did not answer within 0.5 s in step .*T \(stopped\)"
    ):
        answers(llm, GREEDY)
    assert "Thread 0x" in capfd.readouterr().err  # the stacks
    ranks.close()
    assert not Path(f"/proc/{child}").exists()


async def test_the_next_engine_continues_the_streams_of_a_killed_rank(llama: Path, one: LLM) -> None:
    expected = answers(one, GREEDY)[0][0]
    given = {"model": str(llama), "tensor_parallel_size": 2, **FEW}
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    children: list[int] = []
    try:
        tokens: list[int] = []
        async for output in engine.generate({"prompt_token_ids": PROMPTS[0]}, GREEDY, "a"):
            tokens = list(output.outputs[0].token_ids)
            if not children:
                children += ranks_below(engine._client.pid)
                os.kill(children[0], signal.SIGKILL)
        assert tokens == expected
        assert ranks_below(engine._client.pid) != children  # another engine
    finally:
        last = ranks_below(engine._client.pid)
        await engine.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in [*children, *last]))


async def test_ranks_end_with_a_killed_engine(llama: Path) -> None:
    given = {"model": str(llama), "tensor_parallel_size": 2, "engine_restarts": 0, **FEW}
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    children = ranks_below(engine._client.pid)
    assert len(children) == 1
    os.kill(engine._client.pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    await engine.close()


def ranks_below(pid: int) -> list[int]:
    return [each.pid for each in psutil.Process(pid).children() if "core_distributed.rank" in each.cmdline()]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_rank_that_cannot_start_says_why(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = executor.rank_config

    def broken(config: Any, rank: int, size: int) -> Any:
        found = whole(config, rank, size)
        if rank == 0:
            return found
        model = executor.msgspec.structs.replace(found.model, model="/nowhere")
        return executor.msgspec.structs.replace(found, model=model)

    monkeypatch.setattr(executor, "rank_config", broken)
    with pytest.raises(CoreError, match=r"Rank 1 could not start: .*nowhere"):
        started(llama, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel_size": 3}, "4 attention heads cannot be divided .* Sizes that work for this model: 1, 2, 4"),
        (
            {"tensor_parallel_size": 2, "enable_lora": True},
            "--enable-lora: not with --tensor-parallel-size 2",
        ),
        ({"tensor_parallel_size": 2, "kv_offloading_size": 1}, "--kv-offloading-size: not with"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "it has one rank"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, "not started with Ray"),
        ({"tensor_parallel_size": 2, "executor": "torch"}, "--executor: ranks are computed by the executor mp"),
        ({"tensor_parallel_size": 2, "speculative_config": {"method": "medusa"}}, "ngram or suffix"),
    ],
)
def test_what_ranks_cannot_do_is_refused_by_name(llama: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(llama), **FEW, **settings}, context="serve", environ={})


def test_damaged_commands_are_refused() -> None:
    good = commands.encode(commands.Command(commands.Kind.STEP, 7, b"plan"))

    def reader(data: bytes) -> Any:
        stream = memoryview(data)
        position = [0]

        def read(count: int) -> bytes:
            position[0] += count
            return bytes(stream[position[0] - count : position[0]])

        return read

    assert commands.decode(reader(good), 7) == commands.Command(commands.Kind.STEP, 7, b"plan")
    with pytest.raises(commands.CommandError, match="Command 8"):
        commands.decode(reader(good), 8)
    for place in range(commands.HEADER.size - 4):  # the last bytes are the length's upper half
        damaged = bytearray(good)
        damaged[place] ^= 0x80
        try:
            found = commands.decode(reader(bytes(damaged)), 7)
        except commands.CommandError:
            continue
        assert len(found.payload) != len(b"plan") or found.payload == b"plan"
