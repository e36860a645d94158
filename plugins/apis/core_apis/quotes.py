"""Quotes of a server: what a request would take, and the forecast that it keeps of all of them.

Owns: `ServerQuotes`: feeding the forecast, asking the engine what its steps cost, early refusals, and the numbers of a quote.
Never does: foretell (`core_frontend.quote` does), or prepare a body. Called by: `core_apis.app` (builds), the route, the code
that starts the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from core.api.errors import CoreError, RequestError
from core.api.sampling_params import SamplingParams
from core_apis.engine_protocol import ServingEngine
from core_apis.prepare.prepared import Prompt
from core_apis.protocol.quote import Quote, QuotedEnd, QuotedPrompt, TimeRange
from core_apis.watching import Generate, PromptCall
from core_frontend.adapters import adapter_start
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.quote.forecast import Ask, Forecast, Foretold, Interval
from core_frontend.quote.seen_prefixes import SeenPrefixes
from core_frontend.request_terms import RequestTerms
from core_observers.families.quote_metrics import QuoteMetrics

logger = logging.getLogger("core_apis")

LEARN_S = 1.0
"""Seconds between two calls that ask a busy engine what its steps cost."""
IDLE_S = 0.1
LONGEST_WAIT_S = 3600
COMPLETE = ("stop", "length")
DIGITS = 2
"""Digits of a quoted time: more would tell about the requests of others."""


class ServerQuotes:
    """The quotes of one server. forecast: of its engine."""

    def __init__(self, engine: ServingEngine, metrics: QuoteMetrics) -> None:
        self.forecast = engine.queue.forecast = Forecast(engine.config.scheduler)
        self.forecast.scores.on_outcome = metrics.observe
        self._metrics = metrics
        self._engine = engine
        self._max_len = engine.config.model.max_model_len
        self._caches = engine.config.cache.enable_prefix_caching
        self._seen = SeenPrefixes(0)

    async def keep_learning(self) -> None:
        """Ask the engine what its steps cost while it computes, until cancelled."""
        while True:
            if self._engine.num_live or not self.forecast.is_ready:
                await self._learn()
            await asyncio.sleep(LEARN_S if self.forecast.is_ready else IDLE_S)

    def followed(self, generate: Generate) -> Generate:
        """Wrap `generate` to foretell every prompt, to refuse what cannot meet its timeout, and to learn from what happens."""

        async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
            ask = self.ask(call)
            is_new = call.terms.recorder is None or not call.terms.recorder.past
            if is_new:
                self._check_timeout(ask, call.terms)
                arrived = time.monotonic() if call.terms.arrival is None else call.terms.arrival
                self.forecast.enter(call.request_id, ask, arrived)
            counts: dict[int, int] = {}
            is_complete = False
            try:
                async with aclosing(generate(call)) as outputs:
                    async for output in outputs:
                        for each in output.outputs:
                            counts[each.index] = counts.get(each.index, 0) + len(each.token_ids)
                        if output.finished:
                            is_complete = all(each.finish_reason in COMPLETE for each in output.outputs)
                        yield output
            finally:
                self.forecast.end(call.request_id, max(counts.values(), default=0) if is_complete else 0)

        return run

    async def quote(
        self,
        model: str,
        prompts: Sequence[tuple[Prompt, RequestTerms]],
        params: SamplingParams | PoolingParams,
        salt: str | None,
    ) -> Quote:
        """Return the quote of a request that would come now. salt: its `cache_salt`."""
        most = [self._most(params, len(prompt.token_ids)) for prompt, _ in prompts]
        n = params.n if isinstance(params, SamplingParams) else 1
        facts = await self._facts(prompts, most, salt)
        begin = time.perf_counter()
        asks = [
            Ask(len(prompt.token_ids), limit, cached, n)
            for (prompt, _), limit, cached in zip(prompts, most, facts["cached"], strict=True)
        ]
        foretold = self.forecast.foretell_all(asks)
        refused, after = None, None
        for ask, (_, terms) in zip(asks, prompts, strict=True):
            try:
                self._check_timeout(ask, terms)
            except RequestError as error:
                refused, after = str(error), error.retry_after
        quoted = Quote(
            model=model,
            prompts=[
                QuotedPrompt(ask.prompt, ask.cached, num_bytes)
                for ask, num_bytes in zip(asks, facts["bytes"], strict=True)
            ],
            choices=n * len(asks),
            first_token=None if foretold is None else _range(foretold.interval("first")),
            end_at_max_tokens=_end(foretold, max(most)),
            end_at_usual_length=self._usual_end(foretold, max(most)),
            would_be_refused=refused,
            retry_after=after,
            learned_from=self.forecast.scores.num_seen("first"),
        )
        self._metrics.seconds.observe(time.perf_counter() - begin)
        return quoted

    def _usual_end(self, foretold: Foretold | None, most: int) -> QuotedEnd | None:
        usual = self.forecast.lengths.usual(most)
        if foretold is None or usual is None:
            return None
        return QuotedEnd(usual, _range(foretold.interval("usual_end")))

    def _most(self, params: SamplingParams | PoolingParams, num_tokens: int) -> int:
        """Return the limit of tokens of each answer."""
        if isinstance(params, PoolingParams):
            return 1
        room = max(self._max_len - num_tokens, 1)
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def ask(self, call: PromptCall, *, remember: bool = True) -> Ask:
        """Return what is asked for. remember: whether the prompt will be in this engine's cache."""
        ids = call.prompt.get("prompt_token_ids") or ()
        embeds = call.prompt.get("prompt_embeds")
        num_tokens = len(ids) if embeds is None else embeds.num_tokens
        cached = 0
        if self._caches and ids:
            adapter = None if call.terms.adapter is None else call.terms.adapter.digest
            owner = (call.terms.tenant, call.prompt.get("cache_salt"), adapter)
            cached = self._seen.look(ids, owner, remember=remember)
        if call.terms.transfer is not None and call.terms.transfer.source is not None:
            cached = max(num_tokens - 1, 0)  # its pages come from another engine
        n = call.params.n if isinstance(call.params, SamplingParams) else 1
        return Ask(num_tokens, self._most(call.params, num_tokens), cached, n)

    def _check_timeout(self, ask: Ask, terms: RequestTerms) -> None:
        """Raise RequestError for a request that cannot have its first token before its time is up.

        429 with `Retry-After` where others are in its way, 400 where its own prompt takes longer.
        """
        limit_s = terms.timeout_s or self._engine.config.scheduler.request_timeout_s
        if not limit_s or not self.forecast.is_sure:
            return
        foretold = self.forecast.foretell(ask)
        if foretold is None:
            return
        spent = 0.0 if terms.arrival is None else time.monotonic() - terms.arrival
        if foretold.earliest + spent <= limit_s:
            return
        alone = self.forecast.alone(ask)
        least = limit_s if alone is None else alone.earliest
        if least > limit_s:
            raise RequestError(
                f"The request's timeout is {limit_s:g} s, but its prompt of {ask.prompt} tokens takes {_rounded(least):g} s "
                "even if no other request runs; give it a longer timeout or shorten the prompt.",
                param="timeout",
                code="timeout_too_short",
            )
        after = min(max(math.ceil(foretold.latest - limit_s), 1), LONGEST_WAIT_S)
        raise RequestError(
            f"The request's timeout is {limit_s:g} s, but it would wait {_rounded(foretold.earliest):g} s or more for its "
            f"first token; give it a longer timeout, or try again in {after} s.",
            param="timeout",
            status=429,
            code="timeout_too_short",
            retry_after=after,
        )

    async def _learn(self) -> None:
        """Ask the engine what its steps cost. An engine that does not answer now, or has no such call, is asked again later."""
        try:
            facts = await self._engine.control.call("step_costs", prefixes=[], lengths=[])
        except CoreError as error:
            logger.debug("The engine does not tell what its steps cost: %s", error)
            return
        self._take(facts)

    async def _facts(
        self, prompts: Sequence[tuple[Prompt, RequestTerms]], most: Sequence[int], salt: str | None
    ) -> dict[str, Any]:
        """Ask the engine for the cached tokens of each prompt, and for the bytes that it would hold."""
        prefixes = [_prefix(prompt, terms, salt) for prompt, terms in prompts]
        lengths = [len(prompt.token_ids) + limit for (prompt, _), limit in zip(prompts, most, strict=True)]
        facts: dict[str, Any] = await self._engine.control.call("step_costs", prefixes=prefixes, lengths=lengths)
        self._take(facts)
        return facts

    def _take(self, facts: dict[str, Any]) -> None:
        self.forecast.learn(facts["cost"], facts["room"])
        self._seen.room = facts["room"]


def _prefix(prompt: Prompt, terms: RequestTerms, salt: str | None) -> dict[str, Any]:
    """Return what the keys of a prompt's blocks depend on, as the engine takes it."""
    ids = prompt.token_ids
    if prompt.embeds is not None:
        ids = []  # nothing of it is cached
    elif prompt.media:
        ids = ids[: min(item.start for item in prompt.media)]  # keys of later blocks depend on the pictures
    given: dict[str, Any] = {
        "tokens": array("i", ids).tobytes(),
        "salt": salt,
        "tenant": terms.tenant,
        "num_public_tokens": terms.num_public_tokens,
    }
    adapter = terms.adapter
    if adapter is not None:
        start = adapter_start(ids, adapter.invocation_tokens)
        if start is not None:
            given |= {"adapter": adapter.digest, "adapter_from": start}
    return given


def _end(foretold: Foretold | None, tokens: int) -> QuotedEnd | None:
    return None if foretold is None else QuotedEnd(tokens, _range(foretold.interval("end", tokens)))


def _range(interval: Interval) -> TimeRange:
    return TimeRange(_rounded(interval.low), _rounded(interval.high))


def _rounded(seconds: float) -> float:
    """Round to two digits, and to a millisecond at the finest."""
    if seconds <= 0.0:
        return 0.0
    return round(seconds, min(DIGITS - 1 - math.floor(math.log10(seconds)), 3))
