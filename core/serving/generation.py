"""Runs the prompts of one HTTP request on the engine.

Owns: their places in the queue, the merged stream of outputs of several prompts, the end of it on failures. Never does:
format answers.
Called by: the completion routes.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from core.api.errors import CoreError, RequestError
from core.api.outputs import RequestOutput
from core.api.pooling_params import PoolingParams
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import FIELD
from core.engine.queue_limit import Arrival
from core.engine.request_terms import RequestTerms
from core.observe.recent_requests import RecentRequest
from core.observe.request_meter import RequestMeter
from core.serving.context import ServingContext
from core.serving.durable.recorder import RequestRecorder
from core.serving.errors import GenerationError
from core.serving.explaining import explain_terms
from core.serving.field_names import OF_ENGINE, renamed
from core.serving.prepared import PreparedChat, PreparedCompletion, PreparedPooling, Prompt
from core.serving.prompt_output import PromptOutput
from core.serving.tenants import Tenants

if TYPE_CHECKING:
    from core.observe.request_span import RequestSpan

logger = logging.getLogger("core.serving")

NO_LIMIT = SamplingParams(max_tokens=None)
"""What is counted of a request to pool: one choice, and no limit of tokens."""


async def run_prompts(
    context: ServingContext,
    prepared: PreparedChat | PreparedCompletion | PreparedPooling,
    response_id: str,
    user: str,
    arrival: Arrival,
    recorder: RequestRecorder | None = None,
) -> AsyncGenerator[PromptOutput, None]:
    """Yield (prompt index, output) as outputs come, in any order of prompts.

    user: whose request it is, for the fair policy.
    arrival: its place in the queue until here.
    recorder: keeps what the prompts get, and knows what they have got already.

    Closing it early aborts everything that still runs. Raises RequestError, EngineDeadError or GenerationError.
    """
    params = prepared.params
    prompts = prepared.prompts
    if context.server.enable_log_requests:
        _log(context, prompts, params, response_id)
    # The engine's ids are ours alone: two clients may send the same request id.
    unique = uuid4().hex[:8]
    ids = [f"{response_id}-{index}-{unique}" for index in range(len(prompts))]
    queue = context.engine.queue
    try:
        arrival.end()
        num_tokens = [len(prompt.token_ids) for prompt in prompts]
        places = dict(zip(ids, num_tokens, strict=True))
        again = recorder is not None and recorder.again
        queue.enter(places, arrival.key, again=again)
        runs = _runs(context, prepared, response_id, ids, user, arrival, recorder)
        async with aclosing(_together(runs, recorder)) as outputs:
            async for item in outputs:
                if recorder is not None:
                    recorder.count(item[1])
                yield item
    except RequestError as error:
        raise renamed(error, {**OF_ENGINE, **prepared.names}) from error
    finally:
        for request_id in ids:
            queue.end(request_id)


def _runs(
    context: ServingContext,
    prepared: PreparedChat | PreparedCompletion | PreparedPooling,
    response_id: str,
    ids: Sequence[str],
    user: str,
    arrival: Arrival,
    recorder: RequestRecorder | None,
) -> list[AsyncGenerator[RequestOutput, None]]:
    """The outputs of each prompt; it begins to run when they are asked for. ids: the engine's."""
    params = prepared.params
    terms = _terms(context, prepared, user, arrival)
    runs: list[AsyncGenerator[RequestOutput, None]] = []
    for index, (request_id, prompt) in enumerate(zip(ids, prepared.prompts, strict=True)):
        given = prompt.as_input(prepared.body.cache_salt)
        own_terms = _with_tenant(terms, context.tenants, arrival.key, prompt)
        if recorder is not None:
            own_terms = replace(own_terms, recorder=recorder.part(index))
        entry = context.recent.enter(response_id, arrival.key)
        runs.append(_run_one(context, given, copy.copy(params), request_id, own_terms, entry))
    return runs


def _terms(
    context: ServingContext,
    prepared: PreparedChat | PreparedCompletion | PreparedPooling,
    user: str,
    arrival: Arrival,
) -> RequestTerms:
    """What all prompts have in common besides their parameters."""
    is_parsed = isinstance(prepared, PreparedChat) and prepared.format is not None
    return RequestTerms(
        priority=prepared.body.priority or 0,
        user=user,
        strict_length=True,
        timeout_s=prepared.body.timeout,
        arrival=arrival.begin,
        marks_specials=is_parsed,
        explain=None if isinstance(prepared, PreparedPooling) else explain_terms(prepared, context.model),
        gives_prompt=True,
    )


def _together(
    runs: Sequence[AsyncGenerator[RequestOutput, None]], recorder: RequestRecorder | None
) -> AsyncGenerator[PromptOutput, None]:
    """The outputs of all prompts with the index of each: as they come, or in the order in which they were recorded."""
    if len(runs) == 1:
        return _alone(runs[0])
    merged = _merge(runs)
    return merged if recorder is None else recorder.in_order(merged)


def _with_tenant(terms: RequestTerms, tenants: Tenants, key: int | None, prompt: Prompt) -> RequestTerms:
    """The terms of one prompt, with whom it shares its cached prefix."""
    if key is None:
        return terms
    num_public_tokens = tenants.num_public_tokens(prompt.token_ids)
    return replace(terms, tenant=tenants.name(key), num_public_tokens=num_public_tokens)


async def final_output(outputs: AsyncGenerator[PromptOutput, None]) -> RequestOutput:
    """The last one of a single prompt."""
    async with aclosing(outputs):
        async for _, output in outputs:
            final = output
    return final


async def _alone(run: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[PromptOutput, None]:
    async with aclosing(run) as outputs:
        async for output in outputs:
            yield 0, output


async def _run_one(
    context: ServingContext,
    prompt: dict[str, Any],
    params: SamplingParams | PoolingParams,
    request_id: str,
    terms: RequestTerms,
    entry: RecentRequest,
) -> AsyncGenerator[RequestOutput, None]:
    counted = params if isinstance(params, SamplingParams) else NO_LIMIT
    meter = RequestMeter(context.metrics, counted, entry)
    stream = context.engine.generate(prompt, params, request_id, terms)
    if context.tracing is not None:
        stream = _traced(stream, context.tracing.follow(request_id, entry.id, params))
    try:
        async with aclosing(stream) as outputs:
            async for output in outputs:
                meter.update(output)
                _raise_failure(output)
                yield output
    except RequestError:
        meter.refuse()
        raise
    finally:
        meter.close()


async def _traced(
    stream: AsyncGenerator[RequestOutput, None], span: RequestSpan
) -> AsyncGenerator[RequestOutput, None]:
    """The same outputs, which a span follows: those that end with a failure too."""
    try:
        async with aclosing(stream) as outputs:
            async for output in outputs:
                span.update(output)
                yield output
    except RequestError:
        span.drop()
        raise
    except CoreError:
        span.close(failed=True)
        raise
    finally:
        span.close()


def _raise_failure(output: RequestOutput) -> None:
    for completion in output.outputs:
        if completion.finish_reason == "error":
            sentence = str(completion.stop_reason)
            if sentence.startswith(FIELD):
                raise RequestError(sentence, param=FIELD, status=422, code="too_much_work")
            raise GenerationError(f"The engine could not finish this request: {completion.stop_reason or 'no details'}")
        if completion.finish_reason == "timeout":
            raise RequestError(str(completion.stop_reason), param="timeout", status=408, code="request_timeout")


async def _merge(runs: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[PromptOutput, None]:
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

    async def pump(index: int, run: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(run) as outputs:
                async for output in outputs:
                    queue.put_nowait((index, output))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    pumps = [asyncio.ensure_future(pump(index, run)) for index, run in enumerate(runs)]
    running = len(pumps)
    try:
        while running:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield index, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _log(
    context: ServingContext, prompts: Sequence[Prompt], params: SamplingParams | PoolingParams, response_id: str
) -> None:
    limit = context.server.max_log_len
    for prompt in prompts:
        shown = prompt.token_ids[:limit] if prompt.text is None else prompt.text[:limit]
        logger.info("Request %s: %r, %d prompt tokens, %s", response_id, shown, len(prompt.token_ids), params)
