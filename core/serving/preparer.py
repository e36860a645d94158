"""Decides where a request is prepared: here when it is small, in a helper process when it is not.

Owns: `Preparer` and the turns that small requests take, so that between any two of them other connections are served.
Never does: the steps themselves (`core.serving.preparation`). Called by: routes.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from core.serving.preparation import Buffer, Preparation
from core.serving.preparation_helper import PreparationHelper
from core.serving.prepared import (
    CountedTokens,
    PreparationSettings,
    PreparedChat,
    PreparedCompletion,
    PreparedMessages,
    PreparedPooling,
    PreparedResponse,
)
from core.serving.protocol.tokenize import DetokenizeResponse, TokenizeResponse
from core.tokens.tokenizer import Tokenizer

SMALL_BODY = 16 * 1024
"""Bytes of a body that takes some milliseconds at most, whatever is in it: other clients only see
that short delay."""
SMALL_PAIRS = 1024
"""The same of a body whose texts are read in pairs: a query is tokenized once for each document."""
PAIRED = ("score", "rerank")
"""Kinds of such bodies."""
TURN_SECONDS = 0.005
"""Time that small bodies may take in one turn of the event loop; once it is spent, each waits for a turn of its own."""


class Preparer:
    """One for each server. Its methods take the bytes of a body and raise RequestError for what cannot be served."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer) -> None:
        self.here = Preparation(settings, tokenizer)
        self._helper = PreparationHelper(settings, tokenizer)
        self._turn = asyncio.Lock()
        self._spent_s = 0.0
        self._reads_pairs = settings.pooling is not None and settings.pooling.scores_pairs

    async def chat(self, data: Buffer) -> PreparedChat:
        """A body of /v1/chat/completions."""
        prepared: PreparedChat = await self._prepare("chat", data)
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
        return prepared

    async def messages(self, data: Buffer) -> PreparedMessages:
        """A body of /v1/messages."""
        prepared: PreparedMessages = await self._prepare("messages", data)
        return prepared

    async def count_tokens(self, data: Buffer) -> CountedTokens:
        """A body of /v1/messages/count_tokens."""
        counted: CountedTokens = await self._prepare("count_tokens", data)
        return counted

    async def tokenize(self, data: Buffer) -> TokenizeResponse:
        """A body of /tokenize."""
        prepared: TokenizeResponse = await self._prepare("tokenize", data)
        return prepared

    async def detokenize(self, data: Buffer) -> DetokenizeResponse:
        """A body of /detokenize."""
        prepared: DetokenizeResponse = await self._prepare("detokenize", data)
        return prepared

    async def close(self) -> None:
        """End the helper process."""
        await self._helper.close()

    async def _prepare(self, kind: str, data: Buffer) -> Any:
        small = SMALL_PAIRS if self._reads_pairs and kind in PAIRED else SMALL_BODY
        if len(data) > small:
            return await self._helper.run(kind, data)
        if self._spent_s < TURN_SECONDS:
            return self._run(kind, data)
        async with self._turn:  # whose next owner goes on in the next turn
            return self._run(kind, data)

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
