"""Decides where a request is prepared: on the event loop when it is tiny and renders no template, in a thread when it is small,
else in a helper process.

Owns: `Preparer`, its two helpers, and the turns that tiny requests take on the loop, so that between any two of them other
connections are served.
Never does: the steps themselves (`core.serving.preparation`). Called by: routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from core.serving.preparation import Buffer, Preparation
from core.serving.preparation_helper import Lane, PreparationHelper
from core.serving.prepared import (
    CountedTokens,
    PreparationSettings,
    PreparedChat,
    PreparedCompletion,
    PreparedMessages,
    PreparedPooling,
    PreparedResponse,
    WrittenAnswer,
)
from core.tokens.tokenizer import Tokenizer

logger = logging.getLogger("core.serving")

TINY_BODY = 4 * 1024
"""Bytes of a body that takes some milliseconds at most: other clients only notice that short delay. Tokenizing takes up to 2 ms
for 1,000 characters."""
SMALL_BODY = 16 * 1024
"""Bytes of a body that is prepared in this process, in a thread: the tokenizer lets others go on meanwhile."""
SMALL_AT_ONCE = 2
"""Such threads at work: more of them would only wait for each other, and the event loop for all."""
SMALL_PAIRS = 1024
"""The same for a body whose texts are read in pairs: a query is tokenized once for each document."""
PAIRED = frozenset({"score", "rerank"})
"""Kinds of such bodies."""
RENDERED = frozenset({"chat", "response", "messages", "count_tokens", "tokenize"})
"""Kinds of bodies that may render a template, whose cost no size tells: never on the event loop."""
SMALL_LANE = Lane(most_jobs=4, job_seconds=20.0, idle_seconds=None, niceness=0)
"""For small bodies, so that no chat waits for a large one. The process stays: to start it takes half a second."""
LARGE_LANE = Lane(most_jobs=1, job_seconds=60.0, idle_seconds=120.0, niceness=5)
TURN_SECONDS = 0.005
"""Time that small bodies may take in one turn of the event loop; once it is spent, each waits for a turn of its own."""


class Preparer:
    """One for each server. Its methods take the bytes of a body and raise RequestError for what cannot be served."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer) -> None:
        self.here = Preparation(settings, tokenizer)
        self.small = PreparationHelper(settings, tokenizer, SMALL_LANE)
        self.large = PreparationHelper(settings, tokenizer, LARGE_LANE)
        self._turn = asyncio.Lock()
        self._threads = asyncio.Semaphore(SMALL_AT_ONCE)
        self._spent_s = 0.0
        self._has_noted = False
        self._reads_pairs = settings.pooling is not None and settings.pooling.scores_pairs

    async def chat(self, data: Buffer) -> PreparedChat:
        """A body of /v1/chat/completions."""
        prepared: PreparedChat = await self._prepare("chat", data)
        self._note(prepared)
        return prepared

    async def completion(self, data: Buffer) -> PreparedCompletion:
        """A body of /v1/completions."""
        prepared: PreparedCompletion = await self._prepare("completion", data)
        return prepared

    async def embedding(self, data: Buffer) -> PreparedPooling:
        """A body of /v1/embeddings."""
        return await self._pooling("embedding", data)

    async def embed(self, data: Buffer) -> PreparedPooling:
        """A body of /v2/embed."""
        return await self._pooling("embed", data)

    async def pooling(self, data: Buffer) -> PreparedPooling:
        """A body of /pooling."""
        return await self._pooling("pooling", data)

    async def classify(self, data: Buffer) -> PreparedPooling:
        """A body of /classify."""
        return await self._pooling("classify", data)

    async def score(self, data: Buffer) -> PreparedPooling:
        """A body of /score."""
        return await self._pooling("score", data)

    async def rerank(self, data: Buffer) -> PreparedPooling:
        """A body of /rerank."""
        return await self._pooling("rerank", data)

    async def _pooling(self, kind: str, data: Buffer) -> PreparedPooling:
        prepared: PreparedPooling = await self._prepare(kind, data)
        return prepared

    async def response(self, data: Buffer) -> PreparedResponse:
        """A body of /v1/responses behind the items that are kept for it."""
        prepared: PreparedResponse = await self._prepare("response", data)
        self._note(prepared.chat)
        return prepared

    async def messages(self, data: Buffer) -> PreparedMessages:
        """A body of /v1/messages."""
        prepared: PreparedMessages = await self._prepare("messages", data)
        self._note(prepared.chat)
        return prepared

    async def count_tokens(self, data: Buffer) -> CountedTokens:
        """A body of /v1/messages/count_tokens."""
        counted: CountedTokens = await self._prepare("count_tokens", data)
        return counted

    async def tokenize(self, data: Buffer) -> WrittenAnswer:
        """A body of /tokenize."""
        prepared: WrittenAnswer = await self._prepare("tokenize", data)
        return prepared

    async def detokenize(self, data: Buffer) -> WrittenAnswer:
        """A body of /detokenize."""
        prepared: WrittenAnswer = await self._prepare("detokenize", data)
        return prepared

    async def close(self) -> None:
        """End the helper processes."""
        await asyncio.gather(self.small.close(), self.large.close())

    async def _prepare(self, kind: str, data: Buffer) -> Any:
        reads_pairs = self._reads_pairs and kind in PAIRED
        if len(data) > (SMALL_PAIRS if reads_pairs else SMALL_BODY):
            return await self.large.run(kind, data)
        if reads_pairs or kind in RENDERED:
            return await self.small.run(kind, data)
        if len(data) > TINY_BODY:
            async with self._threads:
                return await asyncio.to_thread(self.here.run, kind, data)
        if self._spent_s < TURN_SECONDS:
            return self._run(kind, data)
        async with self._turn:  # whose next owner goes on in the next turn
            return self._run(kind, data)

    def _note(self, chat: PreparedChat) -> None:
        """Log once that tools are described in a message."""
        if chat.guided and not self._has_noted:
            self._has_noted = True
            logger.warning(
                "The model's chat template shows no tools, so a system message describes them. A model that was not trained "
                "with tools may call them wrongly or not at all; tool_choice 'required' or a named tool holds it to a call."
            )

    def _run(self, kind: str, data: Buffer) -> Any:
        if not self._spent_s:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        begin = time.perf_counter()
        try:
            return self.here.run(kind, data)
        finally:
            self._spent_s += time.perf_counter() - begin

    def _begin_turn(self) -> None:
        self._spent_s = 0.0
