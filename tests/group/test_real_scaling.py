"""Engines with real weights that come and go: a new one has the adapters, weights and sleep of the others, to the bit."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core import LLM
from core.api.errors import RequestError
from core.api.sampling_params import RequestOutputKind
from core.api.weights import WeightUpdate
from core_config.resolve import resolve
from core_frontend.async_engine import AsyncEngine
from core_frontend.group import moves as moves_module
from core_frontend.group.comparison import Comparison
from core_frontend.library.lora_request import LoRARequest
from core_frontend.request_terms import RequestTerms
from tests.adapters.drawn import shapes_of, write_adapter
from tests.apis.serving_processes import free_ports
from tests.engine.kv_handoffs import told
from tests.group.test_drains import moves_of
from tests.group.test_group import client_of, states, until
from tests.group.test_real_moves import NGRAM, PARAMS, PROMPTS, SETTINGS
from tests.tiny_models import save_checkpoint

LIMITS: dict[str, Any] = {**SETTINGS, **NGRAM, "enable_lora": True, "max_loras": 2, "max_cpu_loras": 2}


@asynccontextmanager
async def elastic(model: str, **more: Any) -> AsyncIterator[AsyncEngine]:
    given = {"model": model, "enable_elastic_ep": True, "elastic_ep_max_dp_size": 2, **LIMITS, **more}
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    try:
        async with asyncio.timeout(200):
            yield engine
    finally:
        await engine.close()


def answers(model: str, adapter: str | None = None) -> list[Any]:
    """Those of one engine that has these weights from its start."""
    request = None if adapter is None else LoRARequest("a", lora_path=adapter)
    with LLM(model, use_tqdm_on_load=False, **LIMITS) as llm:
        return [
            told(llm.generate([{"prompt_token_ids": prompt}], params, lora_request=request, use_tqdm=False)[0])
            for prompt, params in zip(PROMPTS, PARAMS, strict=True)
        ]


async def ask(engine: AsyncEngine, number: int, begun: list[int], terms: RequestTerms) -> list[Any]:
    params = msgspec.structs.replace(PARAMS[number], output_kind=RequestOutputKind.CUMULATIVE)
    name = f"r{number}-{len(begun)}-{id(terms)}"
    async for output in engine.generate({"prompt_token_ids": PROMPTS[number]}, params, name, terms):
        last = output
        begun[number] = len(output.outputs[0].token_ids)
    return told(last)


def asked(engine: AsyncEngine, terms: RequestTerms) -> tuple[list[int], list[asyncio.Task[list[Any]]]]:
    begun = [0] * len(PROMPTS)
    return begun, [asyncio.create_task(ask(engine, number, begun, terms)) for number in range(len(PROMPTS))]


async def answered_by(engine: AsyncEngine, index: int, terms: RequestTerms) -> list[Any]:
    """What the engine at a place answers, while the other one is drained."""
    await moves_of(engine).drain(1 - index)
    found = await asyncio.gather(*asked(engine, terms)[1])
    await moves_of(engine).undrain(1 - index)
    return found


async def test_a_new_engine_has_what_the_others_have(tmp_path: Path) -> None:
    model = str(save_checkpoint(tmp_path / "first"))
    newer = str(save_checkpoint(tmp_path / "second", seed=11))
    adapter = str(write_adapter(tmp_path / "adapter", shapes_of(model), 6, 3, scale=0.2))
    expected = answers(newer, adapter)
    assert expected != answers(newer)
    async with elastic(model, enable_sleep_mode=True) as engine:
        assert states(engine) == ["running", "ended"]
        loaded = await engine.adapters.load("a", adapter)
        await engine.control.update_weights(WeightUpdate(path=newer, weight_version="newer"))
        await engine.control.sleep(1)
        await moves_of(engine).scale(2, 0.0)
        assert states(engine) == ["running", "running"]
        own = client_of(engine).members[1].client
        assert (await own.call("lifecycle"))["is_sleeping"]
        await engine.control.wake_up()
        terms = RequestTerms(adapter=loaded.facts)
        for index in (0, 1):
            assert await answered_by(engine, index, terms) == expected
        await moves_of(engine).scale(1, 0.0)
        gone = write_adapter(tmp_path / "gone", shapes_of(model), 6, 5, scale=0.2)
        await engine.adapters.load("c", str(gone))
        shutil.rmtree(gone)
        for _ in range(2):
            with pytest.raises(RequestError, match="cannot read the adapter 'c' that the others have loaded"):
                await moves_of(engine).scale(2, 0.0)
        assert states(engine) == ["running", "ended"]
        await engine.adapters.unload("c")
        later = str(write_adapter(tmp_path / "later", shapes_of(model), 6, 4, scale=0.2))
        await engine.adapters.load("b", later)
        await moves_of(engine).scale(2, 0.0)
        assert await answered_by(engine, 1, terms) == expected, "it has kept what it had"
        found = engine.adapters.known("b")
        assert found is not None
        assert await answered_by(engine, 1, RequestTerms(adapter=found.facts)) == answers(newer, later)


@pytest.mark.parametrize("pages", [True, False])
async def test_streams_go_on_to_the_bit(pages: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "compare", lambda *facts, **options: Comparison(2.0, 0.25))
    model = str(save_checkpoint(tmp_path / "first"))
    expected = answers(model)
    role = {"kv_connector": "tcp", "kv_role": "kv_both", "kv_port": free_ports(2)}
    async with elastic(model, **({"kv_transfer_config": role} if pages else {})) as engine:
        begun, streams = asked(engine, RequestTerms())
        await until(lambda: min(begun) > 20)
        grown = await moves_of(engine).scale(2, 0.0)
        assert grown.data_parallel_size == 2
        assert await asyncio.gather(*streams) == expected
        await engine.reset_prefix_cache()
        begun, streams = asked(engine, RequestTerms())
        await until(lambda: min(begun) > 20)
        shrunk = await moves_of(engine).scale(1, 0.0)
        assert await asyncio.gather(*streams) == expected
        assert shrunk.moved > 0 if pages else shrunk.computed > 0
        await engine.check_integrity()
