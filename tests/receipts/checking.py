"""Requests of many kinds, their receipts, and forgeries of these: for the tests, and for the long run of `make test-know`.

Owns: making them. Called by: `test_verified_answers`, `bars`.
"""

import json
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.verify import Question, _verdict
from core_commands.client.endpoint import whole
from core_commands.replay.engine import ReplayEngine, run_replay
from core_observers.receipts.receipt import Receipt, opening_bytes, read_receipts, seal_of

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "sleeps", "near", "an", "old", "river", "sun"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["fox", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def run_on_engine(words: list[str], work: Callable[[ReplayEngine], Awaitable[None]]) -> None:
    """Run `work` on an engine of the commands that compute answers again, which gives receipts too."""

    async def run(engine: ReplayEngine) -> int:
        await work(engine)
        return 0

    assert run_replay(parse_engine_arguments([*words, "--receipts", "ask"]), run) == 0


async def ask(engine: ReplayEngine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request as a client does."""
    data = json.dumps({**body, "receipt": True}).encode()
    async with engine._endpoint.ask("POST", path, data) as answer:
        found = json.loads(await whole(answer))
        assert answer.status == 200, found
        return found


async def verdict(
    engine: ReplayEngine,
    path: str,
    body: dict[str, Any],
    receipts: list[tuple[Receipt, str]],
    answer: dict[str, Any] | None = None,
    skipped: tuple[str, ...] = (),
) -> Any:
    """Return what `core verify` finds."""
    opened = [(receipt, opening_bytes(opening)) for receipt, opening in receipts]
    return await _verdict(engine, Question(opened, path, dict(body), answer, skipped))


def receipts_of(answer: dict[str, Any]) -> list[tuple[Receipt, str]]:
    """Return the receipts of an answer."""
    return read_receipts(json.dumps(answer).encode(), "answer")


def random_request(rng: random.Random, *, tools: bool = False) -> tuple[str, dict[str, Any]]:
    """Return a path and a body. tools: whether some call tools, whose description is a long prompt."""
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))
    sampling: dict[str, Any] = {"temperature": rng.choice([0.0, 0.7, 1.0, 1.3])}
    if rng.random() < 0.5:
        sampling["seed"] = rng.randrange(1 << 40)
    path = rng.choice([CHAT, CHAT, TEXT, TEXT, RESPONSES, MESSAGES])
    length = rng.randint(1, 60)
    if path == RESPONSES:
        return path, {"input": text, "max_output_tokens": length + 15, **sampling}
    if path == MESSAGES:
        sampling.pop("seed", None)
        sampling["temperature"] = min(sampling["temperature"], 1.0)
        return path, {"messages": [{"role": "user", "content": text}], "max_tokens": length, **sampling}
    body: dict[str, Any] = {"max_tokens": length, **sampling}
    options = [
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.05},
        {"presence_penalty": 0.7},
        {"frequency_penalty": 0.4},
        {"repetition_penalty": 1.2},
        {"n": 3},
        {"stop": ["e", "qu"]},
        {"logit_bias": {"40": 3}},
        {"bad_words": ["fox"]},
        {"ignore_eos": True},
        {"min_tokens": min(5, length)},
        {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2},
    ]
    for option in rng.sample(options, rng.randint(0, 3)):
        body |= option
    if rng.random() < 0.3:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        body |= {"response_format": form, "max_tokens": 90, "min_tokens": 0}
    if path == CHAT:
        if tools and rng.random() < 0.3 and "response_format" not in body:
            body |= {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120}
        return path, body | {"messages": [{"role": "user", "content": text}]}
    return path, body | {"prompt": text if rng.random() < 0.7 else [text, "a " + text]}


def forgeries(receipt: Receipt, opening: str) -> Iterator[tuple[str, Receipt]]:
    """Yield (the word that the verdict must begin with, a forged receipt). Half of them come with a new seal, as from a client
    who knows the opening.
    """
    plain = msgspec.to_builtins(receipt)
    key = opening_bytes(opening)
    choice = plain["choices"][0]
    marks = choice["marks"]
    # Receipts of a server's first seconds are from before the weights were hashed whole.
    other = "whole" if plain["weights"]["kind"] == "sampled" else "sampled"
    changes: list[tuple[str, dict[str, Any]]] = [
        ("version", {"version": "9"}),
        ("numerics", {"numerics": "other"}),
        ("instruction_set", {"instruction_set": "other"}),
        ("weights", {"weights": {**plain["weights"], "digest": "0" * 64}}),
        ("weights", {"weights": {**plain["weights"], "kind": other}}),
        ("weights", {"weights": {**plain["weights"], "update": "v9"}}),
        ("tokenizer", {"tokenizer": "other"}),
        ("template", {"template": "other"}),
        ("plugins", {"plugins": plain["plugins"][1:]}),
        ("plugins", {"plugins": [*plain["plugins"], "x 1 2 kernels.x"]}),
        ("adapter", {"adapter": "ab"}),
        ("inputs", {"inputs": "ab"}),
        ("sampling.temperature", {"sampling": plain["sampling"] | {"temperature": 0.123}}),
        ("sampling.top_p", {"sampling": plain["sampling"] | {"top_p": 0.123}}),
        ("sampling.max_tokens", {"sampling": plain["sampling"] | {"max_tokens": 9999}}),
        ("prompt", {"num_prompt_tokens": plain["num_prompt_tokens"] + 1}),
        ("prompt", {"prompt": plain["prompt"] + "00000000"}),
        ("choices", {"choices": [*plain["choices"], {**choice, "index": 99}]}),
        ("choice 0", {"choices": [{**choice, "num_tokens": choice["num_tokens"] + 1}, *plain["choices"][1:]]}),
        ("choice 0", {"choices": [{**choice, "end": "0" * 64}, *plain["choices"][1:]]}),
        ("choice 0", {"choices": [{**choice, "marks": marks[:-8] + "00000000"}, *plain["choices"][1:]]}),
        ("choice 0", {"choices": [{**choice, "finish_reason": "other"}, *plain["choices"][1:]]}),
    ]
    for name, change in changes:
        forged = msgspec.convert(plain | change, Receipt)
        yield name, forged
        resealed = msgspec.convert(plain | change, Receipt)
        resealed.seal = seal_of(resealed, key)
        yield name, resealed
    yield "seal", msgspec.convert(plain | {"created": 1}, Receipt)
    yield "seal", msgspec.convert(plain | {"seal": "00"}, Receipt)
