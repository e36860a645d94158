"""The answer of a pooling API: all outputs in the order of the texts, then one body.

Owns: gathering them, and where the body is serialized. Never does: know a body (`pooling_answers` does). Called by: the
pipeline, through the rows of `core_apis.routes.pooling`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Response

from core.api.errors import RequestError
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.body import PiecesResponse
from core_apis.context import ServingContext
from core_apis.pooling.answers import Plain, PooledTexts, Write
from core_apis.prepare.prepared import PreparedPooling
from core_apis.protocol.pooling import NO_PROCESSOR
from core_frontend.api.pooling_outputs import PooledOutput, WholeOutput

BYTES = "application/octet-stream"
LIGHT = 8192
"""Limit on the numbers and tokens that are written on the event loop, which takes about 2 ms."""


class PooledAnswer:
    """The answer to one pooling request; see `core_apis.exchange.Answer`. version: of Cohere's API, or empty.

    Raises RequestError for data where the server has no IO processor.
    """

    def __init__(
        self,
        write: Write,
        version: str,
        context: ServingContext,
        prepared: PreparedPooling[Any],
        answer_id: str,
        created: int,
    ) -> None:
        self._write = write
        self._version = version
        self._prepared = prepared
        self._answer_id = answer_id
        self._created = created
        self._io = context.preparer.io
        self._has_data = getattr(prepared.body, "data", msgspec.UNSET) is not msgspec.UNSET
        if self._has_data and (self._io is None or not isinstance(prepared.body.data, str)):
            raise RequestError(NO_PROCESSOR, param="data")

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. One with many numbers is serialized in a thread."""
        found: dict[int, WholeOutput] = {}
        async with aclosing(outputs):
            async for index, output in outputs:
                assert isinstance(output, PooledOutput), "a text that is pooled has one output"
                found[index] = output.whole()
        in_order = [found[index] for index in sorted(found)]
        if self._has_data:
            return await self._processed(in_order)
        texts = PooledTexts(self._prepared, in_order, self._answer_id, self._version)
        return self._written(texts) if texts.num_entries <= LIGHT else await asyncio.to_thread(self._written, texts)

    async def _processed(self, outputs: list[WholeOutput]) -> Response:
        """Return the answer that the IO processor makes, in vLLM's form."""
        assert self._io is not None, "data is refused where there is no IO processor"
        data = self._prepared.body.data.encode()
        made = msgspec.Raw(await self._io.answer(data, outputs))
        answer = {"request_id": self._answer_id, "created_at": self._created, "data": made}
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Not used: no body of these APIs has a field `stream`."""
        raise AssertionError("texts are pooled whole")

    def _written(self, texts: PooledTexts[Any]) -> Response:
        answer = self._write(texts)
        if isinstance(answer, Plain):
            return PiecesResponse(answer.parts, BYTES, answer.headers)
        return PiecesResponse(texts.lists.body(answer))
