"""The way of a prompt that another server may compute.

Owns: `PrefillRouter`: which prompts can be sent away, the order of questions and calls, and what is learned from them. Never
does: compare (`core_apis.prefill.choice`), or trust a server: what it does not bring is computed here. Called by:
`core_apis.app` (wraps `generate`), the server (`close`).

A prompt waits for its ticket no longer than computing it here would take, and a second; likewise for its pages.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import httpx

from core.api.sampling_params import SamplingParams
from core_apis.prefill.choice import Choice, choose
from core_apis.prefill.server import PrefillServer
from core_apis.quotes import ServerQuotes
from core_apis.watching import Generate, PromptCall
from core_frontend.api.explanation import PrefillUse
from core_frontend.api.outputs import RequestOutput
from core_frontend.kv_transfer import KVTransfer
from core_frontend.prompts.prompt_parser import MEDIA
from core_frontend.quote.forecast import Ask
from core_frontend.quote.link import Link
from core_observers.families.prefill_metrics import PrefillMetrics

WORTH_S: Final = 0.05
"""A prompt that takes less here is not sent away: a question and a ticket cost some milliseconds themselves."""
QUESTION_S: Final = 1.0
"""Most seconds for which a quote is awaited."""
MORE_S: Final = 1.0
"""Seconds that a prompt may take longer than computing it here would have."""
MOST_ASKED: Final = 4
"""Servers that are asked for a quote of one prompt."""
HOME_TOKENS: Final = 512
"""First tokens of a prompt by which the servers to ask are chosen, so that prompts with the same beginning meet its pages."""


class PrefillRouter:
    """The router of one server.

    urls: of the servers of prompts. quotes: foretells what this server takes. transport: of all calls; None: the network.
    """

    def __init__(
        self,
        urls: Sequence[str],
        quotes: ServerQuotes,
        metrics: PrefillMetrics,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        # Neither a proxy of the environment nor a redirect gets the keys of requests.
        self._client = httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context(),
            transport=transport,
        )
        self._servers = [PrefillServer(number, url, self._client) for number, url in enumerate(urls)]
        self._links = [Link() for _ in urls]
        self._quotes = quotes
        self._metrics = metrics

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def followed(self, generate: Generate) -> Generate:
        """Wrap `generate` so that prompts are computed where that is faster."""

        async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
            choice = await self._choose(call)
            transfer = None
            if choice.server is not None:
                transfer = await self._compute(self._servers[choice.server], call, choice)
                if transfer is None:
                    self._metrics.count("no_ticket")
                    choice = replace(choice, server=None, why="the chosen server gave no ticket")
            elif choice.there_s is not None:
                self._metrics.count("here")
            if transfer is not None:
                call = replace(call, terms=replace(call.terms, transfer=transfer))
            async with aclosing(self._observed(generate, call, choice)) as outputs:
                async for output in outputs:
                    yield output

        return run

    async def _observed(
        self, generate: Generate, call: PromptCall, choice: Choice
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of a prompt; learn from the first one of a prompt that was sent away, and explain the choice."""
        begin = time.monotonic()
        rest_s = 0.0
        if choice.server is not None:
            rest_s = self._foretold(_rest(self._quotes.ask(call, remember=False))) or 0.0
        awaits_first = choice.server is not None
        async with aclosing(generate(call)) as outputs:
            async for output in outputs:
                if awaits_first and any(one.token_ids for one in output.outputs):
                    awaits_first = False
                    self._learn(choice, output, time.monotonic() - begin - rest_s)
                if output.finished and output.explain is not None:
                    output.explain.prefill = _told(choice)
                yield output

    async def _choose(self, call: PromptCall) -> Choice:
        """Return where a prompt is computed."""
        why = _unfit(call)
        if why:
            return Choice(None, why=why)
        ask = self._quotes.ask(call, remember=False)
        here_s = self._foretold(ask)
        rest_s = self._foretold(_rest(ask))
        if here_s is None or rest_s is None:
            return Choice(None, why="this engine has computed too little yet for a comparison")
        if here_s < WORTH_S:
            return Choice(here_s, why=f"it takes less than {WORTH_S:g} s here")
        servers = self._asked(call)
        if not servers:
            return Choice(here_s, why="every server of prompts is left alone after failures")
        limit_s = min(here_s, QUESTION_S)
        body = _body(call)
        offers = await asyncio.gather(*(server.quote(body, call.key, limit_s) for server in servers))
        # The time of the questions is gone on both sides.
        return choose(here_s, rest_s, [offer for offer in offers if offer is not None], self._links)

    async def _compute(self, server: PrefillServer, call: PromptCall, choice: Choice) -> KVTransfer | None:
        """Have a server compute a prompt; returns where its pages are, or None."""
        limit_s = (choice.here_s or 0.0) + MORE_S
        begin = time.monotonic()
        transfer = await server.compute(_body(call), call.key, limit_s)
        if transfer is None or transfer.source is None:
            return None
        left_s = max(limit_s - (time.monotonic() - begin), MORE_S)
        return KVTransfer(source={**transfer.source, "limit_s": left_s})

    def _learn(self, choice: Choice, output: RequestOutput, seconds: float) -> None:
        """Learn the speed of a link. seconds: that the pages took."""
        assert choice.server is not None
        if not output.num_cached_tokens:
            self._metrics.count("not_received")
        else:
            self._metrics.count("there")
        # Pages that did not come took at least as long.
        self._links[choice.server].observe(choice.num_bytes, seconds)

    def _asked(self, call: PromptCall) -> list[PrefillServer]:
        """Return the servers to ask: those that get prompts with the same beginning first."""
        able = [server for server in self._servers if not server.rests]
        if len(able) <= MOST_ASKED:
            return able
        first = hash(tuple(call.prompt["prompt_token_ids"][:HOME_TOKENS]))
        return sorted(able, key=lambda server: hash((first, server.number)))[:MOST_ASKED]

    def _foretold(self, ask: Ask) -> float | None:
        """Return when the first token is expected, in seconds; None: the engine has computed too little yet."""
        foretold = self._quotes.forecast.foretell(ask)
        return None if foretold is None else foretold.interval("first").middle


def _rest(ask: Ask) -> Ask:
    """Return what is left of a prompt whose pages have come: its last token."""
    return replace(ask, cached=max(ask.prompt - 1, 0))


def _unfit(call: PromptCall) -> str:
    """Return why a prompt cannot be sent away; empty: it can."""
    terms = call.terms
    if not isinstance(call.params, SamplingParams):
        return "it is not generated from"
    if call.beams is not None:
        return "it is searched with beams"
    if terms.transfer is not None:
        return "the request has kv_transfer_params"
    if terms.adapter is not None:
        return "it uses an adapter"
    if call.prompt.get("prompt_embeds") is not None or call.prompt.get(MEDIA):
        return "it has more than tokens"
    if call.params.prompt_logprobs is not None:
        return "log-probabilities of its tokens are asked for, so that all are computed"
    if terms.recorder is not None and terms.recorder.past:
        return "it goes on after the end of an earlier server"
    if not call.prompt.get("prompt_token_ids"):
        return "it has no token"
    return ""


def _body(call: PromptCall) -> dict[str, Any]:
    """Return the completion of one token by which a prompt is computed."""
    body: dict[str, Any] = {"prompt": call.prompt["prompt_token_ids"], "max_tokens": 1, "temperature": 0}
    salt = call.prompt.get("cache_salt")
    if salt is not None:
        body["cache_salt"] = salt
    return body


def _told(choice: Choice) -> PrefillUse:
    """Return a choice as an explanation tells it."""
    why = choice.why or (
        "that was foretold to be faster"
        if choice.server is not None
        else "no server of prompts was foretold to be faster"
    )
    return PrefillUse(
        where="here" if choice.server is None else "there",
        why=why,
        here=_rounded(choice.here_s),
        there=_rounded(choice.there_s),
        transfer=_rounded(choice.transfer_s),
        server=choice.server,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
