"""`core serve` whose engine is killed: clients see a pause, and the answers of an engine that was not."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai
import psutil
import pytest

from tests.apis.test_real_server import Server, serving

QUESTION = [{"role": "user", "content": "Tell me about the capital city of Japan."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
}
KILLS_AT = (3, 100)
"""Chunks of all streams together."""

OnChunk = Callable[[], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, "--served-model-name", "model", "--engine-restart-backoff", "0") as running:
        yield running


def engine_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    return next(child for child in children if "core.engine.process" in child.cmdline())


async def chat(client: openai.AsyncOpenAI, on_chunk: OnChunk, **more: Any) -> Any:
    stream = await client.chat.completions.create(
        model="model", messages=QUESTION, stream=True, max_tokens=48, seed=7, **more
    )
    return await gathered(stream, on_chunk, lambda choice: (choice.delta.content, content_tokens(choice.logprobs)))


def content_tokens(logprobs: Any) -> list[str]:
    return [entry.model_dump_json() for entry in logprobs.content] if logprobs else []


async def completion(client: openai.AsyncOpenAI, on_chunk: OnChunk, **more: Any) -> Any:
    stream = await client.completions.create(
        model="model", prompt="Once upon a time", stream=True, max_tokens=48, seed=9, **more
    )
    return await gathered(
        stream, on_chunk, lambda choice: (choice.text, choice.logprobs.tokens if choice.logprobs else [])
    )


async def gathered(stream: Any, on_chunk: OnChunk, told: Callable[[Any], Any]) -> Any:
    """Text, tokens and ends of each choice; where it is cut into chunks depends on how busy the machine is."""
    choices: dict[int, tuple[str, list[Any], list[str]]] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            on_chunk()
            text, tokens = told(choice)
            before, entries, ends = choices.get(choice.index, ("", [], []))
            ends = [*ends, choice.finish_reason] if choice.finish_reason else ends
            choices[choice.index] = (before + (text or ""), [*entries, *tokens], ends)
    return choices


def requests(client: openai.AsyncOpenAI, on_chunk: OnChunk) -> list[Awaitable[Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return [
        chat(client, on_chunk, temperature=0, logprobs=True, top_logprobs=2),
        chat(client, on_chunk, response_format=form),
        completion(client, on_chunk, n=3, stop=["dog", "and the"], extra_body={"ignore_eos": True}),
        completion(client, on_chunk, presence_penalty=1.0, logprobs=2, extra_body={"repetition_penalty": 1.2}),
    ]


async def test_every_stream_goes_on_when_the_engine_is_killed(server: Server) -> None:
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen in KILLS_AT:
            engine_of(server).kill()

    async with openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as client:
        undisturbed = await asyncio.gather(*requests(client, lambda: None))
        restarts = json.loads(server.get("/health"))["engine_restarts"]
        assert await asyncio.gather(*requests(client, count)) == undisturbed
    health = json.loads(server.get("/health"))
    assert health["state"] == "serving"
    assert health["engine_restarts"] - restarts == len(KILLS_AT)
    assert health["last_deaths"][-1]["cause"] == "killed"


@pytest.mark.slow
async def test_a_session_outlives_the_engine(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    async with openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as client:

        async def ask(messages: list[Any], **more: Any) -> Any:
            body = {"session": "lasting", "return_token_ids": True, "explain": True}
            return await client.chat.completions.create(
                model="model", messages=messages, max_tokens=40, seed=7, extra_body=body, **more
            )

        first = await ask(QUESTION, response_format=form)
        sampled = [*first.prompt_token_ids, *first.choices[0].token_ids]
        engine_of(server).kill()
        answer = {"role": "assistant", "content": first.choices[0].message.content}
        second = await ask([*QUESTION, answer, {"role": "user", "content": "And of France?"}])
    kept = second.explain["session"]["kept_tokens"]
    assert kept > len(first.prompt_token_ids)
    assert second.prompt_token_ids[:kept] == sampled[:kept]
    assert len(json.loads(server.get("/v1/sessions/lasting"))["turns"]) == 2
