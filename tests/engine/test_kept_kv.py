"""With `--keep-kv` the engine after a death continues earlier prompts: every kind of layer, with the tokens of no cache."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_config.resolve import resolve
from core_frontend.async_engine import AsyncEngine
from core_runtime.executor.device import Device
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.anonymous_file import anonymous_file
from tests.kv.test_next_turn_models import checkpoint

BLOCK = 16
TURNS = 3
PARAMS = SamplingParams(max_tokens=37, temperature=0.0, ignore_eos=True)


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = anonymous_file("test-kv", 0)
    yield descriptor
    os.close(descriptor)


def config_of(path: Path, file: int | None, **settings: Any) -> EngineConfig:
    given = {"model": str(path), "max_model_len": 512, "max_num_seqs": 4, "kv_cache_memory_bytes": "64M"}
    given |= {"use_tqdm_on_load": False, "keep_kv": True, "max_num_batched_tokens": 64, **settings}
    return msgspec.structs.replace(resolve(given, context="serve", environ={}).engine, kv_file=file)


def answer(core: EngineCore, prompt: list[int]) -> tuple[list[int], int]:
    """The answer, and the number of cached tokens of the prompt. Afterwards the engine has been idle for a moment."""
    core.add([EngineRequest("a", 0, prompt, PARAMS, seed=4)])
    tokens: list[int] = []
    cached = 0
    while core.has_work():
        for output in core.step().outputs:
            tokens += output.token_ids
            cached = output.num_cached_tokens or cached
    while core.idle() is not None:
        pass
    core.scheduler.check_integrity()
    return tokens, cached


def start(config: EngineConfig) -> EngineCore:
    core = build_engine(config, UniprocExecutor, {})
    core.scheduler.check_integrity()
    return core


@pytest.mark.parametrize(
    "family", [pytest.param("llama", marks=pytest.mark.slow), "gemma3", "deepseek_v3", "lfm2", "qwen3_next", "mamba2"]
)
@pytest.mark.parametrize("ahead", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_turn_may_have_an_engine_of_its_own(family: str, ahead: bool, tmp_path: Path, file: int) -> None:
    path = checkpoint(family, tmp_path / "model")
    config = config_of(path, file, async_scheduling=ahead)
    plain = start(config_of(path, None, enable_prefix_caching=False, keep_kv=False))
    left: list[EngineCore] = []
    history: list[int] = []
    for turn in range(TURNS):
        core = start(config)  # the one before it is not closed, as if it had been killed
        left.append(core)
        prompt = history + [5 + (7 * turn + place) % 200 for place in range(23 + 9 * turn)]
        tokens, cached = answer(core, prompt)
        assert len(history) - cached <= BLOCK, f"turn {turn}"
        assert tokens == answer(plain, prompt)[0]
        history = prompt + tokens
    for core in left:
        core.close()
    plain.close()


async def test_a_killed_engine_is_replaced_by_one_that_knows_the_prompt(tiny_llama: Path) -> None:
    given = {"model": str(tiny_llama), "max_model_len": 512, "keep_kv": True, "kv_cache_memory_bytes": "64M"}
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    try:
        prompt = {"prompt_token_ids": [5 + place % 200 for place in range(300)]}

        async def ask() -> tuple[list[int], int]:
            async for output in engine.generate(prompt, PARAMS, "a"):
                last = output
            return list(last.outputs[0].token_ids), last.num_cached_tokens or 0

        first = await ask()
        assert first[1] == 0
        os.kill(engine._client.pid, signal.SIGKILL)
        tokens, cached = await ask()
        assert tokens == first[0]
        assert cached >= 288
    finally:
        await engine.close()


def test_a_device_with_memory_of_its_own_is_refused() -> None:
    runtime = SimpleNamespace(device="cuda:0", allocate=lambda nbytes: None)
    with pytest.raises(UserError, match="--keep-kv: the memory of cuda:0 ends with the engine; leave it out"):
        Device(runtime).in_files()  # type: ignore[arg-type]
