"""A transcription on the engine of a server.

Owns: sending what a transcription asks, and the places of its requests in the queue. Never does: decide what to ask
(`core_media.sound.transcription` does), write an answer. Called by: the routes of sounds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from core_apis.context import ServingContext
from core_apis.watching import PromptCall
from core_frontend.api.outputs import RequestOutput
from core_frontend.queue.limit import Arrival
from core_frontend.request_terms import RequestTerms
from core_media.sound.transcription import Ask, Transcription


async def segments_run(
    context: ServingContext, one: Transcription, arrival: Arrival, user: str, answer_id: str
) -> AsyncGenerator[str, None]:
    """Run a transcription; yield the text of each window that is done, and after the last one stop.

    Raises RequestError, EngineDeadError or GenerationError.
    """
    unique = uuid4().hex[:8]
    key = arrival.key
    tenant = "" if key is None else context.tenants.name(key)
    terms = RequestTerms(user=user, strict_length=True, arrival=arrival.begin, tenant=tenant, gives_prompt=True)
    asking = one.run()
    ask: Ask | None = next(asking)
    count = number = 0
    arrival.end()
    while ask is not None:
        request_id = f"{answer_id}-{number}-{unique}"
        # A transcription that has begun goes on, however many requests wait.
        context.engine.queue.enter({request_id: len(ask.prompt)}, key, again=number > 0)
        try:
            output = await _final(context, ask, request_id, terms, answer_id, key)
        finally:
            context.engine.queue.end(request_id)
        number += 1
        try:
            ask = asking.send(output)
        except StopIteration:
            ask = None
        segments = one.transcript.segments
        if len(segments) > count:
            yield "".join(segment.text for segment in segments[count:])
            count = len(segments)


async def _final(
    context: ServingContext, ask: Ask, request_id: str, terms: RequestTerms, answer_id: str, key: int | None
) -> RequestOutput:
    """Return the last output of a request."""
    entry = context.recent.enter(answer_id, key)
    call = PromptCall({"prompt_token_ids": ask.prompt, "media": [ask.item]}, ask.params, request_id, terms, entry)
    async with aclosing(context.generate(call)) as outputs:
        async for output in outputs:
            final = output
    return final
