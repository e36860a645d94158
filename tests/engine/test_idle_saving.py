"""In idle time an engine process writes what it caches to disk, so that its end, whatever it is, loses little."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from fakes import EOS, TARGET, make_config, reference

from core.api.config import EngineConfig
from core.api.messages import EngineOutputs, EngineRequest
from core.api.sampling_params import SamplingParams
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.owned_engine import start_engine
from tests.kv.connector_rows import with_cache

PROMPT = list(range(41))


def with_disk(path: Path, **scheduler: object) -> EngineConfig:
    config = make_config(options={}, scheduler=scheduler)
    return with_cache(config, block_size=4, disk_path=str(path), disk_bytes=1 << 20)


async def answer(client: ZmqClient) -> tuple[list[int], int]:
    """The tokens of one request, and how many of its prompt's came from a tier."""
    found: list[EngineOutputs] = []
    ended = asyncio.Event()

    def hear(message: EngineOutputs) -> None:
        found.append(message)
        if any(output.finish_reason for output in message.outputs):
            ended.set()

    client.listen(hear, lambda error: None)
    params = SamplingParams(max_tokens=5)
    await client.add([EngineRequest("a", 0, PROMPT, params, seed=1, stop_token_ids=[EOS])])
    await asyncio.wait_for(ended.wait(), 20)
    tokens = [token for message in found for output in message.outputs for token in output.token_ids]
    return tokens, found[-1].stats.tier_hits


async def until_written(path: Path, count: int) -> None:
    async with asyncio.timeout(20):
        while len(list(path.rglob("*.kv"))) < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ahead", [False, True], ids=["step by step", "planned ahead"])
async def test_a_killed_engine_finds_its_prefixes_again(tmp_path: Path, ahead: bool) -> None:
    client = await start_engine(with_disk(tmp_path, async_scheduling=ahead), executor=TARGET)
    assert await answer(client) == (reference(PROMPT, 5), 0)
    await until_written(tmp_path, 11)
    os.kill(client.pid, signal.SIGKILL)
    await client.close()
    again = await start_engine(with_disk(tmp_path, async_scheduling=ahead), executor=TARGET)
    assert await answer(again) == (reference(PROMPT, 5), 40)
    assert await again.call("check_integrity") is None
    assert await again.call("reset_prefix_cache") is True
    assert list(tmp_path.rglob("*.kv")) == []
    await again.close()
