"""The run of one HTTP request's prompts on the engine.

Owns: their places in the queue, the merged stream of the outputs of several prompts, its end on failures. Never does:
format answers, or keep anything (`core_apis.durable` extends the run for that). Called by: the pipeline.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import uuid4

from starlette.types import Receive

from core.api.errors import RequestError
from core_apis.answers.explaining import explain_terms
from core_apis.answers.output_log import log_outputs
from core_apis.answers.prompt_output import PromptOutput
from core_apis.beams import beams_of
from core_apis.context import ServingContext
from core_apis.errors import GenerationError
from core_apis.field_names import OF_ENGINE, of_conversation, renamed
from core_apis.histories.memory import Owner
from core_apis.histories.trace import History
from core_apis.prepare.prepared import PreparedChat, PreparedChats, PreparedCompletion, PreparedPooling, Prompt
from core_apis.protocol.sampling import is_flex
from core_apis.server.disconnect import until_disconnect
from core_apis.sessions.files import KeyTerms
from core_apis.sessions.joining import JoinedSession
from core_apis.traffic.recorder import TrafficNote
from core_apis.transfer import asked_by
from core_apis.watching import PromptCall
from core_frontend.adapters import adapter_start
from core_frontend.api.outputs import RequestOutput
from core_frontend.queue.limit import Arrival
from core_frontend.request_terms import RequestTerms
from core_media.default_adapters import adapter_of

logger = logging.getLogger("core_apis")

TASKS_AT_ONCE = 32
"""Number of a request's prompts that begin or end in one iteration of the event loop.

Other clients wait for an iteration: with 500 prompts it took 36 ms of computing, on a busy machine 143 ms.
"""
Piece = PreparedChat | PreparedCompletion | PreparedPooling[Any]
Runnable = Piece | PreparedChats


class PromptRun:
    """The run of one request's prompts.

    answer_id: name in logs and for people; the engine has ids of its own, since two clients may send the same one.
    user: the user of the request, for the fair policy.
    arrival: the request's place in the queue until here.
    note: the record of the request; None: it is not recorded. Set before the first output is awaited.
    key: the headers with the API key of the request, for a server that computes its prompt. Set likewise.
    flex: whether it belongs to the batch class.
    session: what the answer becomes a turn of; None: of no session. Set before the first output is awaited.
    outputs: (prompt index, output) pairs as outputs come, in any order of prompts. Closing it early aborts everything
        that still runs. It raises RequestError, EngineDeadError or GenerationError.
    """

    again = False
    """Whether an earlier server accepted the request; then it is not refused for want of room."""

    def __init__(
        self, context: ServingContext, prepared: Runnable, answer_id: str, user: str, arrival: Arrival
    ) -> None:
        self.context = context
        self.prepared = prepared
        self.answer_id = answer_id
        self.user = user
        self.arrival = arrival
        self.flex = is_flex(prepared.body.service_tier, context.server.default_service_tier)
        self.session: JoinedSession | None = None
        self.note: TrafficNote | None = None
        self.key: Mapping[str, str] = {}
        self.outputs = self._outputs()

    async def first(self, receive: Receive) -> PromptOutput:
        """Return the first output: an error before it gets an HTTP status of its own."""
        try:
            return await until_disconnect(receive, anext(self.outputs))
        except BaseException:
            await self.outputs.aclose()
            raise

    async def accepted(self) -> None:
        """Wait until the request is stored, if there is a journal; here it does nothing."""

    def piece(self, index: int) -> Piece:
        """Return the part of the request that one prompt belongs to: all of it, or one of several chats."""
        return self.prepared.chats[index] if isinstance(self.prepared, PreparedChats) else self.prepared

    def terms(self, index: int) -> RequestTerms:
        """Return the terms of one prompt besides its parameters."""
        prepared, piece = self.prepared, self.piece(index)
        terms = RequestTerms(
            flex=self.flex,
            priority=prepared.body.priority or 0,
            user=self.user,
            strict_length=True,
            timeout_s=prepared.body.timeout,
            arrival=self.arrival.begin,
            marks_specials=isinstance(piece, PreparedChat) and piece.format is not None,
            gives_prompt=True,
        )
        if self.context.adapters is not None:
            own = adapter_of(prepared.prompts[index].media, self.context.preparer.here.settings.media)
            terms = replace(terms, adapter=self.context.adapters.facts(prepared.model, own))
        if not isinstance(piece, PreparedPooling) and prepared.body.explain:
            terms = replace(terms, explain=explain_terms(piece, self.context.model))
        if getattr(prepared.body, "energy", None):
            terms = replace(terms, energy=True)
        transfer = asked_by(prepared.body)
        if transfer is not None:
            terms = replace(terms, transfer=transfer)
        if self.context.receipts is not None and not isinstance(prepared, PreparedPooling) and prepared.body.receipt:
            terms = replace(terms, receipts=self.context.receipts.issuer)
        if self.note is not None:
            issuer = self.note.issuer(index, len(prepared.prompts), shown=terms.receipts is not None)
            terms = replace(terms, receipts=issuer)
        key = self.arrival.key
        if key is None:
            return terms
        tenants = self.context.tenants
        num_public_tokens = tenants.num_public_tokens(prepared.prompts[index].token_ids)
        return replace(terms, tenant=tenants.name(key), num_public_tokens=num_public_tokens)

    def merged(self, runs: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[PromptOutput, None]:
        """Yield the outputs of all prompts with the index of each."""
        return _alone(runs[0]) if len(runs) == 1 else merge(runs)

    async def _outputs(self) -> AsyncGenerator[PromptOutput, None]:
        prompts = self.prepared.prompts
        if self.context.server.enable_log_requests:
            self._log()
        unique = uuid4().hex[:8]
        ids = [f"{self.answer_id}-{index}-{unique}" for index in range(len(prompts))]
        queue = self.context.engine.queue
        try:
            self.arrival.end()
            num_tokens = [len(prompt.token_ids) for prompt in prompts]
            places = dict(zip(ids, num_tokens, strict=True))
            queue.enter(places, self.arrival.key, again=self.again, flex=self.flex)
            runs = [self._run(index, prompt, ids[index]) for index, prompt in enumerate(prompts)]
            async with aclosing(self._logged(self.merged(runs))) as outputs:
                async for item in outputs:
                    yield item
        except RequestError as error:
            raise renamed(error, {**OF_ENGINE, **self.prepared.names}) from error
        finally:
            for request_id in ids:
                queue.end(request_id)

    def _logged(self, outputs: AsyncGenerator[PromptOutput, None]) -> AsyncGenerator[PromptOutput, None]:
        server = self.context.server
        if not server.enable_log_outputs:
            return outputs
        return log_outputs(outputs, self.answer_id, server.max_log_len, pieces=server.enable_log_deltas)

    def _run(self, index: int, prompt: Prompt, request_id: str) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one prompt, which starts at the first iteration."""
        given = prompt.as_input(self.prepared.body.cache_salt)
        entry = self.context.recent.enter(self.answer_id, self.arrival.key)
        piece = self.piece(index)
        params = copy.copy(piece.params)
        terms = self.terms(index)
        beams = beams_of(self.prepared.body, params, self.context.model.max_model_len)
        outputs = self.context.generate(PromptCall(given, params, request_id, terms, entry, self.key, beams))
        if isinstance(piece, PreparedChat) and piece.history is not None:
            outputs = self._followed(outputs, prompt, terms, piece.history)
        if isinstance(self.prepared, PreparedChats):
            outputs = told_apart(outputs, index, piece.names)
        if self.session is None:
            return outputs
        adapter = terms.adapter
        start = None if adapter is None else adapter_start(prompt.token_ids, adapter.invocation_tokens)
        digest = "" if adapter is None or start is None else adapter.digest
        salt = self.prepared.body.cache_salt
        return self.session.followed(outputs, KeyTerms(salt, terms.tenant, terms.num_public_tokens, digest, start or 0))

    async def _followed(
        self, outputs: AsyncGenerator[RequestOutput, None], prompt: Prompt, terms: RequestTerms, history: History
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of a chat whose history is remembered with its first choice, and explain what changed in it."""
        histories = self.context.histories
        text = prompt.text or ""
        owner = Owner(terms.tenant, self.prepared.body.cache_salt, terms.user)
        answer: list[str] = []
        async with aclosing(outputs):
            async for output in outputs:
                answer += [completion.text for completion in output.outputs if completion.index == 0]
                if output.finished:
                    miss = None if output.explain is None else output.explain.cache.first_miss
                    if miss is not None:
                        tokenizer = self.context.engine.tokenizer
                        await histories.explain(owner, history, text, miss, output.prompt_token_ids, tokenizer)
                    histories.remember(owner, history, text, "".join(answer))
                yield output

    def _log(self) -> None:
        limit = self.context.server.max_log_len
        params = self.prepared.params
        for prompt in self.prepared.prompts:
            shown = prompt.token_ids[:limit] if prompt.text is None else prompt.text[:limit]
            num_tokens = len(prompt.token_ids)
            logger.info("Request %s: %r, %d prompt tokens, %s", self.answer_id, shown, num_tokens, params)


async def told_apart(
    outputs: AsyncGenerator[RequestOutput, None], index: int, names: Mapping[str, str]
) -> AsyncGenerator[RequestOutput, None]:
    """Yield the outputs of one of several chats; an error names its index, and fields as `names` does."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                yield output
    except RequestError as error:
        raise of_conversation(renamed(error, names), index) from error
    except GenerationError as error:
        raise GenerationError(f"Conversation {index} of messages: {error}") from error


async def final_output(outputs: AsyncGenerator[PromptOutput, None]) -> RequestOutput:
    """Return the last output of a single prompt."""
    async with aclosing(outputs):
        async for _, output in outputs:
            final = output
    return final


async def _alone(run: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[PromptOutput, None]:
    async with aclosing(run) as outputs:
        async for output in outputs:
            yield 0, output


async def merge(runs: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[PromptOutput, None]:
    """Yield the outputs of all runs as they come, each with the index of its run. Raises what the first run raises."""
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

    async def pump(index: int, run: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(run) as outputs:
                async for output in outputs:
                    queue.put_nowait((index, output))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    pumps: list[asyncio.Future[None]] = []
    running = len(runs)
    try:
        for start in range(0, len(runs), TASKS_AT_ONCE):
            group = enumerate(runs[start : start + TASKS_AT_ONCE], start)
            pumps += [asyncio.ensure_future(pump(index, run)) for index, run in group]
            await asyncio.sleep(0)
        while running:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield index, item
    finally:
        for start in range(0, len(pumps), TASKS_AT_ONCE):
            ending = pumps[start : start + TASKS_AT_ONCE]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
