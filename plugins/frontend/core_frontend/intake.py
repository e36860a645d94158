"""Intake of requests: conversion of a user's request into the engine's form, on the event loop.

Owns: `Intake`: tokens, grammar and seed of a request, while it keeps a place in the queue. Never does: send it, or know
of other live requests. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from core.api.config import EngineConfig
from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import CompiledGrammar
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.prompts.input_processor import InputProcessor, ProcessedInput
from core_frontend.prompts.prompt_parser import PromptInput
from core_frontend.queue.limit import QueueLimit
from core_frontend.request_terms import RequestTerms
from core_frontend.stat_totals import StatTotals
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core_grammars.compiler import GrammarCompiler

Params = SamplingParams | PoolingParams

LONG_TEXT = 4096
"""Number of characters of a prompt from which it is tokenized outside the event loop."""
LONG_PROMPT = 16_384
"""Number of token ids, or characters, of a prompt from which it is checked outside the event loop: a million takes 80
ms.
"""


class Intake:
    """The intake of one engine.

    queue:    the queue that requests wait in.
    totals:   counts requests that timed out here.
    grammars: compiles the grammars of requests.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, queue: QueueLimit, totals: StatTotals) -> None:
        from core_grammars.compiler import GrammarCompiler  # not before the engine has its configuration

        self.grammars: GrammarCompiler = GrammarCompiler(config, tokenizer)
        self._queue = queue
        self._totals = totals
        self._tokenizer = tokenizer
        texts = None if tokenizer.refusal else tokenizer
        self._long = asyncio.Semaphore(1)  # every computing thread makes the event loop wait
        self._input = InputProcessor(config.model, texts, config.cache.explains)

    async def process(
        self, request_id: str, prompt: PromptInput, params: Params, terms: RequestTerms, deadline: float
    ) -> ProcessedInput:
        """Return the request for the engine. While its grammar is compiled it keeps a place in the queue. Raises
        RequestError.

        deadline: monotonic seconds; 0.0: none.
        """
        with nullcontext() if request_id in self._queue else self._queue.arriving():
            prompt = await self._tokenized(prompt)
            begin = time.monotonic()
            grammar = await self._grammar(params, deadline, terms.tenant)
        if grammar is not None:
            terms = terms.with_grammar(begin)
        recorder = terms.recorder
        if recorder is not None and recorder.seed is not None and isinstance(params, SamplingParams):
            params = msgspec.structs.replace(params, seed=recorder.seed)
        check = partial(self._input.process, request_id, prompt, params, terms, deadline=deadline, grammar=grammar)
        if _size(prompt) <= LONG_PROMPT:
            return check()
        async with self._long:
            return await asyncio.to_thread(check)

    async def _tokenized(self, prompt: PromptInput) -> PromptInput:
        """Return the prompt, with token ids if its text is long: it is then tokenized outside the event loop."""
        given = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
        text = given.get("prompt")
        if not isinstance(text, str) or len(text) <= LONG_TEXT or given.get("prompt_token_ids") is not None:
            return prompt
        return {**given, "prompt_token_ids": await asyncio.to_thread(self._tokenizer.encode, text)}

    async def _grammar(self, params: Params, deadline: float, tenant: str) -> CompiledGrammar | None:
        """Return the compiled grammar of the answer's form, or None. Raises RequestError."""
        wanted = getattr(params, "structured_outputs", None)
        if wanted is None:
            return None
        begin = time.monotonic()
        try:
            async with asyncio.timeout(deadline - begin if deadline else None):
                return await self.grammars.compiled(wanted, tenant)
        except TimeoutError:
            self._totals.timed_out(1)
            raise RequestError(
                f"The request's time was up after {time.monotonic() - begin:.1f} s in which its structured_outputs were "
                "compiled; give the request a longer timeout.",
                param="timeout",
                status=408,
                code="request_timeout",
            ) from None


def _size(prompt: PromptInput) -> int:
    """Return the characters and token ids of a prompt; 0 for one that will be refused."""
    given = prompt.values() if isinstance(prompt, Mapping) else (prompt,)
    return sum(len(value) for value in given if isinstance(value, str | list | tuple))
