"""Times of single requests, as the server reports them, and what lies between its clock and the client's.

Owns: the requests of a round. Never does: compare with the machine's limits. Called by: `core bench card`.

Prompts are random token ids, new ones each time, so that no prefix is found in the cache.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from core.api.errors import UNREADABLE
from core_commands.card.limits import Limits
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.served_names import served_name

SHORT: Final = 16
"""Tokens of a prompt whose prefill is not what is timed."""
HEAD_TOKENS: Final = 128
"""Tokens of the prompt whose log-probabilities are asked for, to time the output head on many rows."""
STREAMS: Final = 8
WARM: Final = 2
NEEDED: Final = ("queue_ms", "prompt_ms", "predicted_ms", "predicted_per_token_ms")


@dataclass(frozen=True, slots=True)
class Lengths:
    """prompt: tokens of the timed prompt. context: tokens before the timed attention; 0: not timed. answer: tokens."""

    prompt: int
    context: int
    answer: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one round.

    prefill: of the prompt. head: what logits of `HEAD_TOKENS` rows add to a prompt. decode: of a token, alone.
    decode_far: of a token behind `Lengths.context` others; None: not timed. decode_many: of a token of each of `STREAMS`.
    sampled: of a token with temperature, top-p and top-k. outside: of a request outside of the engine.
    """

    prefill: float
    head: float
    decode: float
    decode_far: float | None
    decode_many: float
    sampled: float
    outside: float


class Requests:
    """The requests of all rounds. vocab_size: of the model; ids below 8 may be special and are left out."""

    def __init__(self, url: str, vocab_size: int) -> None:
        self._endpoint = HttpEndpoint(url)
        self._draw = random.Random(0)
        self._vocab_size = vocab_size
        self._model = ""

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def warm_up(self, lengths: Lengths) -> None:
        """Send what a round sends, in vain: first steps touch their pages and record their kernels. Raises EndpointError."""
        self._model = await served_name(self._endpoint, None)
        for _ in range(WARM):
            await self._ask(lengths.prompt, 1)
            await self._many(lengths.answer)

    async def round(self, lengths: Lengths) -> Times:
        """Return the times of one round. Raises EndpointError."""
        prefill = await self._ask(lengths.prompt, 1)
        plain = await self._ask(HEAD_TOKENS, 1)
        scored = await self._ask(HEAD_TOKENS, 1, prompt_logprobs=0)
        decode, took = await self._timed(SHORT, lengths.answer)
        sampled = await self._ask(SHORT, lengths.answer, temperature=1.0, top_p=0.9, top_k=50)
        far = await self._ask(lengths.context, lengths.answer) if lengths.context else None
        inside = decode["queue_ms"] + decode["prompt_ms"] + decode["predicted_ms"]
        return Times(
            prefill=prefill["prompt_ms"] / 1e3,
            head=(scored["prompt_ms"] - plain["prompt_ms"]) / 1e3,
            decode=decode["predicted_per_token_ms"] / 1e3,
            decode_far=None if far is None else far["predicted_per_token_ms"] / 1e3,
            decode_many=await self._many(lengths.answer),
            sampled=sampled["predicted_per_token_ms"] / 1e3,
            outside=took - inside / 1e3,
        )

    async def _many(self, answer: int) -> float:
        """Return the mean seconds of a token while several requests decode together."""
        found = await asyncio.gather(*(self._ask(SHORT, answer) for _ in range(STREAMS)))
        return sum(each["predicted_per_token_ms"] for each in found) / len(found) / 1e3

    async def _ask(self, num_prompt: int, num_answer: int, **fields: Any) -> dict[str, float]:
        """Return the times that the server reports of one request. Raises EndpointError."""
        return (await self._timed(num_prompt, num_answer, **fields))[0]

    async def _timed(self, num_prompt: int, num_answer: int, **fields: Any) -> tuple[dict[str, float], float]:
        """Return the server's times of one request, and the client's seconds."""
        body = {
            "model": self._model,
            "prompt": self._ids(num_prompt),
            "max_tokens": num_answer,
            "temperature": 0,
            "ignore_eos": True,
            "timings": True,
            **fields,
        }
        data = msgspec.json.encode(body)
        begin = time.perf_counter()
        async with self._endpoint.ask("POST", "/v1/completions", data) as answer:
            text = await whole(answer)
        took = time.perf_counter() - begin
        if answer.status != 200:
            raise EndpointError(f"The server refuses a request of the card: {text[:300].decode(errors='replace')}")
        return timings_of(text), took

    def _ids(self, count: int) -> Sequence[int]:
        return [self._draw.randrange(8, self._vocab_size) for _ in range(count)]


def run_rounds(
    url: str, vocab_size: int, lengths: Lengths, before: list[Limits], count: int, measure: Callable[[], Limits]
) -> list[Times]:
    """Run `count` rounds. before: receives what `measure` returns before each. Raises EndpointError."""

    async def work() -> list[Times]:
        requests = Requests(url, vocab_size)
        try:
            await requests.warm_up(lengths)
            found: list[Times] = []
            for _ in range(count):
                before.append(measure())
                found.append(await requests.round(lengths))
            return found
        finally:
            await requests.close()

    return asyncio.run(work())


class _Answer(msgspec.Struct):
    timings: dict[str, float]


def timings_of(answer: bytes) -> dict[str, float]:
    """Return the times in a server's answer. Raises EndpointError for an answer without all of them."""
    try:
        times = msgspec.json.decode(answer, type=_Answer).timings
    except UNREADABLE as error:
        text = f"The server's answer has no times that can be read ({error}); is it another server?"
        raise EndpointError(text) from None
    missing = [name for name in NEEDED if name not in times]
    if missing:
        raise EndpointError(f"The server's answer has no time '{missing[0]}'; the card needs a server of this version.")
    return times
