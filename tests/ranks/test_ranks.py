"""Two ranks compute what one computes: tokens and log-probabilities, with grammars and drafts, and after failures."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import (
    DeepseekV3Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3NextConfig,
)

from core import LLM, SamplingParams
from core.api.errors import ConfigError, CoreError, EngineDeadError
from core.api.structured_outputs import StructuredOutputsParams
from core_apis.app import create_app
from core_config.resolve import resolve
from core_config.served.server_config import ServerConfig
from core_distributed import commands, executor
from core_distributed.executor import RanksExecutor
from core_frontend.async_engine import AsyncEngine
from tests.loaders.gguf_files import HIDDEN, LAYERS, write_gguf
from tests.tiny_models import LATENT, SHAPE, save_checkpoint, save_model

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
    return LLM(model=str(path), tensor_parallel_size=ranks, **{**FEW, **settings})


def answers(llm: LLM, params: SamplingParams | list[SamplingParams]) -> list[Any]:
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
    llm = started(llama, 2, enable_sleep_mode=True)
    yield llm
    ranks_of(llm).close()


@pytest.fixture(scope="module")
def drafting(llama: Path) -> Iterator[LLM]:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    few = {"max_model_len": 128, "num_gpu_blocks_override": 10, "enable_prefix_caching": False}
    llm = started(llama, 2, speculative_config=drafts, **few)
    yield llm
    ranks_of(llm).close()


@pytest.mark.parametrize("params", [GREEDY, DRAWN, DIGITS], ids=["greedy", "drawn", "grammar"])
def test_two_ranks_answer_as_one(one: LLM, two: LLM, params: SamplingParams) -> None:
    assert answers(two, params) == answers(one, params)


def test_steps_of_ranks_are_recorded(two: LLM) -> None:
    answers(two, GREEDY)
    recorder = ranks_of(two).worker.runner.forward.recorder
    assert recorder.has("decode", 3) and recorder.has("head", 3)


SMALL = {**SHAPE, "num_hidden_layers": 2, "head_dim": 16}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3}
MODELS: dict[str, PretrainedConfig] = {
    "window": Gemma3TextConfig(
        **SMALL, sliding_window=24, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "untied and biased": LlamaConfig(**SMALL, tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "shared expert": Qwen2MoeConfig(**SMALL, **EXPERTS, shared_expert_intermediate_size=64),
    "latent": DeepseekV3Config(**{**SMALL, **LATENT, "n_routed_experts": 6, "q_lora_rank": 40}),
    "sinks": GptOssConfig(
        **SMALL, num_local_experts=4, num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
        sliding_window=24,
    ),
    "gated delta": Qwen3NextConfig(
        **SMALL, **EXPERTS, shared_expert_intermediate_size=64, full_attention_interval=2, linear_num_key_heads=4,
        linear_num_value_heads=8, linear_key_head_dim=16, linear_value_head_dim=16,
    ),
}  # fmt: skip


FEED_FORWARD = {"ffn_gate": (128, HIDDEN), "ffn_up": (128, HIDDEN), "ffn_down": (HIDDEN, 128)}


def saved(name: str, folder: Path) -> Path:
    if name == "Q4 in GGUF":
        draw = np.random.default_rng(3)
        inner = {
            f"blk.{layer}.{name}.weight": draw.standard_normal(shape).astype(np.float32)
            for layer in range(LAYERS)
            for name, shape in FEED_FORWARD.items()
        }
        length = {"gemma3.feed_forward_length": 128}
        return write_gguf(folder / "model.gguf", "gemma3", GGMLQuantizationType.Q4_0, length, inner)
    torch.manual_seed(3)
    return save_model(folder / "model", MODELS[name])


IN_MAKE_TEST_RANKS = ("window", "untied and biased", "sinks")
"""Models that `make test` leaves out: each takes two starts."""


@pytest.mark.parametrize(
    "name",
    [
        "Q4 in GGUF",
        *(pytest.param(name, marks=[pytest.mark.slow] * (name in IN_MAKE_TEST_RANKS)) for name in MODELS),
    ],
)
def test_every_kind_of_model(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    settings = {"max_model_len": 128} if path.suffix else {}
    one = started(path, 1, **settings)
    whole = answers(one, GREEDY)
    two = started(path, 2, **settings)
    assert answers(two, GREEDY) == whole
    assert answers(two, GREEDY) == whole  # with the prefixes that are cached by now
    ranks_of(two).close()


def test_ranks_sleep_and_wake_together(one: LLM, two: LLM) -> None:
    expected = answers(one, GREEDY)
    for level in (1, 2):
        two.sleep(level)
        two.wake_up()
        assert answers(two, GREEDY) == expected


def test_ranks_sleep_all_or_none(one: LLM, two: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(level: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(ranks_of(two)._own, "release", full)
        with pytest.raises(Exception, match="rank 0: OSError: no space left"):
            two.sleep(1)
    assert answers(two, GREEDY) == answers(one, GREEDY)


def test_drafts_grammars_and_preemptions_in_one_batch(one: LLM, drafting: LLM) -> None:
    mixed = [GREEDY, DIGITS, DRAWN]
    assert answers(drafting, mixed) == answers(one, mixed)
    assert answers(drafting, GREEDY) == answers(one, GREEDY)
    stats = drafting.llm_engine.stats()
    assert stats.num_preemptions and stats.spec_accepted_by_place, stats


def test_ranks_wait_without_work(drafting: LLM) -> None:
    child = ranks_of(drafting)._children.pid(1)
    used = cpu_ticks(child)
    time.sleep(0.5)
    assert cpu_ticks(child) - used <= 1  # of 100 a second


def test_a_killed_rank_is_named(drafting: LLM) -> None:
    ranks = ranks_of(drafting)
    child = ranks._children.pid(1)
    os.kill(child, signal.SIGKILL)
    death = rf"Rank 1 of 2 \(process {child}\) was killed by signal 9 \(SIGKILL\) in step"
    with pytest.raises(EngineDeadError, match=death):
        for _ in range(1000):  # the watch may notice it only in the next step
            answers(drafting, GREEDY)
    with pytest.raises(EngineDeadError, match="killed by signal 9"):
        ranks.check()
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


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def groups_in_memory() -> int:
    """How often this process has mapped or opened the memory of ranks."""
    gc.collect()
    opened = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return (Path("/proc/self/maps").read_text() + "".join(opened)).count("memfd:core-ranks")


def names_in_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "core" in name or "rank" in name}


def test_a_stopped_rank_is_named(llama: Path, capfd: Any, caplog: Any) -> None:
    before = groups_in_memory()
    llm = started(llama, 2, distributed_timeout_seconds=0.5)
    ranks = ranks_of(llm)
    child = ranks._children.pid(1)
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(
        EngineDeadError, match=rf"Rank 1 of 2 \(process {child}\) did not answer within 0.5 s in step .*T \(stopped\)"
    ):
        answers(llm, GREEDY)
    assert "engine failed while it computed" not in caplog.text  # neither a request nor a plugin is at fault
    assert "Thread 0x" in capfd.readouterr().err  # the stacks
    ranks.close()
    assert not Path(f"/proc/{child}").exists()
    del llm, ranks
    assert groups_in_memory() <= before


def test_a_rank_that_is_stopped_during_another_call_is_named(llama: Path) -> None:
    llm = started(llama, 2, distributed_timeout_seconds=0.5, enable_sleep_mode=True)
    ranks = ranks_of(llm)
    os.kill(ranks._children.pid(1), signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match=r"Rank 1 of 2 \(process \d+\) was stopped for 1 s"):
        llm.sleep()
    ranks.close()


async def test_the_next_engine_continues_the_streams_of_a_killed_rank(llama: Path, one: LLM) -> None:
    expected, memory = answers(one, GREEDY)[0][0], names_in_memory()
    given = {"model": str(llama), "tensor_parallel_size": 2, **FEW}
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    app = create_app(engine, ServerConfig(), engine.model_config)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")
    children: list[int] = []

    async def first_refusal() -> dict[str, Any]:
        while (answer := await http.get("/ready")).status_code == 200:
            await asyncio.sleep(0.01)
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/live")).json()["state"] == "recovering"
        return answer.json()["error"]

    try:
        assert (await http.get("/ready")).status_code == 200
        tokens: list[int] = []
        async for output in engine.generate({"prompt_token_ids": PROMPTS[0]}, GREEDY, "a"):
            tokens = list(output.outputs[0].token_ids)
            if not children:
                children += ranks_below(engine._client.pid)
                os.kill(children[0], signal.SIGKILL)
                refusal = asyncio.create_task(first_refusal())
        assert tokens == expected
        error = await refusal
        assert error["code"] == "not_ready" and "it is recovering" in error["message"]
        killed = f"Rank 1 of 2 (process {children[0]}) was killed by signal 9 (SIGKILL) in step"
        assert killed in error["message"] and "the start of the next engine" in error["message"]
        assert (await http.get("/ready")).status_code == 200
        children += ranks_below(engine._client.pid)
        assert len(set(children)) == 2  # another engine
        os.kill(engine._client.pid, signal.SIGKILL)
        await wait_until_gone(children)  # the ranks of an engine that is killed end with it
        assert names_in_memory() == memory
    finally:
        await http.aclose()
        await app.state.context.close()
        await engine.close()


async def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def ranks_below(pid: int) -> list[int]:
    return [each.pid for each in psutil.Process(pid).children() if "core_distributed.rank" in each.cmdline()]


def test_a_rank_that_cannot_start_says_why(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = executor.rank_config

    def broken(config: Any, rank: int, size: int) -> Any:
        found = whole(config, rank, size)
        if rank == 0:
            return found
        model = executor.msgspec.structs.replace(found.model, model="/nowhere")
        return executor.msgspec.structs.replace(found, model=model)

    before = groups_in_memory()
    monkeypatch.setattr(executor, "rank_config", broken)
    with pytest.raises(CoreError, match=r"Rank 1 could not start: .*nowhere"):
        started(llama, 2)
    assert groups_in_memory() <= before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel_size": 3}, "4 attention heads cannot be divided .* Sizes that work for this model: 1, 2, 4"),
        ({"tensor_parallel_size": 2, "state_canary": "log"}, "--state-canary: not with"),
        ({"tensor_parallel_size": 2, "keep_kv": True}, "--keep-kv: not with"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "it has one rank"),
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
