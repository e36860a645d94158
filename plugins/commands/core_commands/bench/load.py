"""Sends requests at their arrival times and records when each part of an answer arrives.

Owns: the clock of each request, and the number of concurrent ones. Never does: compute figures. Called by: `bench
serve`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.api.errors import CoreError
from core_commands.bench.workload import Prompt
from core_commands.client.chunks import chunks
from core_commands.client.endpoint import Answer, Endpoint, EndpointError
from core_commands.client.refusal import refusal


@dataclass(slots=True)
class Outcome:
    """The outcome of one request. Times are seconds of one clock.

    sent: time of sending.
    late_s: delay against the plan, apart from the concurrency limit.
    arrivals: times of the parts with text; for an answer without text, the time when that was known.
    ended: time when the answer was complete.
    has_usage: whether the server reported token counts; otherwise each part counts as one token.
    error: a message; empty on success.
    """

    sent: float = 0.0
    late_s: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    has_usage: bool = False
    has_text: bool = False
    text: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of requests.

    path: such as /v1/completions.
    fields: of every body.
    headers: of every request.
    keeps_text: whether outcomes include the texts.
    """

    path: str
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    keeps_text: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether prompts are sent as messages."""
        return self.path.endswith("/chat/completions")

    def body(self, prompt: Prompt) -> bytes:
        """Return the body of one request."""
        given: dict[str, Any] = {"max_tokens": prompt.max_tokens, **prompt.extra, **self.fields}
        if self.is_chat:
            given["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            given["prompt"] = prompt.text
        return msgspec.json.encode({**given, "stream": True, "stream_options": {"include_usage": True}})


async def send_all(
    endpoint: Endpoint,
    shape: Shape,
    prompts: Sequence[Prompt],
    times: Sequence[float],
    most_at_once: int | None = None,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[Outcome], float]:
    """Send each prompt at its time, independently of earlier ones. Returns the outcomes, and the seconds of all.

    times: seconds since the start, ascending.
    most_at_once: limit on concurrent requests; further ones wait.
    advance: called after each request.
    """
    gate = asyncio.Semaphore(most_at_once or len(prompts) or 1)
    bodies = [shape.body(prompt) for prompt in prompts]
    begin = time.perf_counter()

    async def one(body: bytes, late_s: float) -> Outcome:
        async with gate:
            outcome = await send(endpoint, shape, body)
        outcome.late_s = late_s
        advance()
        return outcome

    tasks: list[asyncio.Task[Outcome]] = []
    try:
        for body, at in zip(bodies, times, strict=True):
            left = begin + at - time.perf_counter()
            if left > 0:
                await asyncio.sleep(left)
            tasks.append(asyncio.create_task(one(body, max(0.0, time.perf_counter() - begin - at))))
        outcomes = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return outcomes, time.perf_counter() - begin


async def send(endpoint: Endpoint, shape: Shape, body: bytes) -> Outcome:
    """Send one request and read its answer; failures become the outcome's error."""
    outcome = Outcome(sent=time.perf_counter())
    texts: list[str] = []
    try:
        async with endpoint.ask("POST", shape.path, body, shape.headers) as answer:
            if answer.status != 200:
                raise EndpointError(await refusal(answer))
            await _read(answer, outcome, texts)
    except CoreError as error:
        outcome.error = str(error)
    outcome.ended = time.perf_counter()
    outcome.has_text = bool(texts)
    if not outcome.has_usage:
        outcome.output_tokens = len(outcome.arrivals) if texts else 0
    if shape.keeps_text:
        outcome.text = "".join(texts)
    return outcome


async def _read(answer: Answer, outcome: Outcome, texts: list[str]) -> None:
    """Record the times and counts of a streamed answer. texts: receives its parts. Raises EndpointError."""
    known: float | None = None
    async for chunk, arrived in chunks(answer):
        pieces = chunk.pieces()
        if pieces:
            outcome.arrivals.append(arrived)
            texts += [piece.text for piece in pieces]
        if chunk.choices:
            known = arrived
        if chunk.usage is not None:
            outcome.has_usage = True
            outcome.prompt_tokens = chunk.usage.prompt_tokens
            outcome.output_tokens = chunk.usage.completion_tokens
    if known is None:
        raise EndpointError("The answer has no part: expected chunks with choices.")
    if not outcome.arrivals:  # a model may generate nothing but its end token
        outcome.arrivals.append(known)
