"""Two engines with real weights between which streams move: tokens and log-probabilities are those of one engine."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core import LLM, SamplingParams, StructuredOutputsParams
from core.api.sampling_params import RequestOutputKind
from core_config.resolve import resolve
from core_frontend.async_engine import AsyncEngine
from core_frontend.group import moves as moves_module
from core_frontend.group import replacements
from core_frontend.group.comparison import Comparison
from core_supervision.watch import end_requests
from tests.apis.serving_processes import free_ports
from tests.engine.kv_handoffs import told
from tests.group.test_drains import moves_of
from tests.group.test_group import client_of, until
from tests.tiny_models import save_checkpoint

PROMPTS = [[1, *((3 + stride * place) % 250 for place in range(90))] for stride in (7, 11, 13, 17)]
FREE = SamplingParams(temperature=0.8, seed=5, max_tokens=400, ignore_eos=True, logprobs=2)
PARAMS = [
    FREE,
    msgspec.structs.replace(FREE, n=2, temperature=1.1),
    SamplingParams(temperature=0.9, seed=3, max_tokens=400, logprobs=1,
                   structured_outputs=StructuredOutputsParams(regex="([ab]{3} ){80}[0-9]{20}c")),
    msgspec.structs.replace(FREE, presence_penalty=0.5, min_p=0.02),
]  # fmt: skip
SETTINGS: dict[str, Any] = {"max_model_len": 512, "num_gpu_blocks_override": 320, "max_num_seqs": 8, "dtype": "float32"}
Leaves = Callable[[AsyncEngine, int, list[str]], Awaitable[None]]
"""Has the requests of an engine go on in the other one. The arguments: both, the first one's place, its requests' names."""
NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


@pytest.mark.parametrize(
    ("family", "more"), [("llama", NGRAM), ("gemma3", {}), ("lfm2", {})], ids=["drafts", "window", "state"]
)
async def test_streams_of_a_drained_engine_go_on_to_the_bit(
    family: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams_go_on("tcp", family, more, tmp_path, monkeypatch)


async def test_streams_of_an_engine_that_gets_sigterm_go_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_requests, "LOOK_S", 0.01)  # the answers are complete after half a second
    monkeypatch.setattr(replacements, "SETTLE_S", 0.0)
    await streams_go_on("tcp", "llama", NGRAM, tmp_path, monkeypatch, leaves=end)


async def drain(engine: AsyncEngine, victim: int, here: list[str]) -> None:
    """Have an operator take an engine out, and back. here: names of its requests."""
    drained = await moves_of(engine).drain(victim)
    assert drained.stayed == 0 and drained.moved <= len(here)
    await moves_of(engine).undrain(victim)


async def end(engine: AsyncEngine, victim: int, here: list[str]) -> None:
    """Send SIGTERM to the process of an engine, and wait for the next one."""
    member = client_of(engine).members[victim]
    pid = member.client.pid
    os.kill(pid, signal.SIGTERM)
    await until(lambda: member.client.pid != pid and member.state == "running")


async def streams_go_on(
    connector: str,
    family: str,
    more: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leaves: Leaves = drain,
) -> None:
    """Have the streams of two engines, whose pages this connector moves, leave each of them in turn."""
    monkeypatch.setattr(moves_module, "compare", lambda *facts, **options: Comparison(2.0, 0.25))
    model = str(save_checkpoint(tmp_path / family, family=family))
    with LLM(model, use_tqdm_on_load=False, **SETTINGS, **more) as llm:
        expected = [
            told(llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0])
            for prompt, params in zip(PROMPTS, PARAMS, strict=True)
        ]
    role = {"kv_connector": connector, "kv_role": "kv_both", "kv_port": free_ports(2)}
    given = {"model": model, "data_parallel_size": 2, "kv_transfer_config": role, **SETTINGS, **more}
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))

    given_tokens = [0] * len(PROMPTS)

    async def ask(number: int) -> list[Any]:
        params = msgspec.structs.replace(PARAMS[number], output_kind=RequestOutputKind.CUMULATIVE)
        async for output in engine.generate({"prompt_token_ids": PROMPTS[number]}, params, f"r{number}"):
            last = output
            given_tokens[number] = len(output.outputs[0].token_ids)
        return told(last)

    try:
        async with asyncio.timeout(200):
            for victim in (1, 0):
                given_tokens[:] = [0] * len(PROMPTS)
                before = moves_of(engine).counts["moved"]
                answers = [asyncio.create_task(ask(number)) for number in range(len(PROMPTS))]
                group = client_of(engine)
                member = group.members[victim]
                await until(lambda: min(given_tokens) > 20)
                here = group.requests_at(member)
                await leaves(engine, victim, here)
                assert await asyncio.gather(*answers) == expected
                assert moves_of(engine).counts["moved"] > before or not here
                await engine.reset_prefix_cache()
            counts = moves_of(engine).counts
            assert counts["moved"] > 0 and not counts["not_received"], counts
            await engine.check_integrity()
            for member in engine_members(engine):
                held = await member.client.call("kv_handoffs")
                assert held["leases"] == held["claims"] == held["buffered_bytes"] == 0
    finally:
        await engine.close()


def engine_members(engine: AsyncEngine) -> Any:
    return client_of(engine).members
