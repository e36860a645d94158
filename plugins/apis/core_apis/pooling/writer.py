"""The answer of a pooling API: all outputs in the order of the texts, then one body.

Owns: gathering them, and where the body is serialized. Never does: know a body (`pooling_answers` does). Called by: the
pipeline, through the rows of `core_apis.routes.pooling`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from fastapi import Response

from core_apis.answers.json_pieces import JsonPieces
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.body import PiecesResponse
from core_apis.context import ServingContext
from core_apis.exchange import Answer
from core_apis.pooling.answers import num_entries
from core_apis.prepare.prepared import PreparedPooling
from core_frontend.api.pooling_outputs import PooledOutput, WholeOutput

Write = Callable[..., msgspec.Struct | Response]
"""A function that makes the answer from the prepared request, its outputs, the answer's id and the writer of long
lists.
"""

LIGHT = 8192
"""Limit on the numbers and tokens that are written on the event loop, which takes about 2 ms."""


class PooledAnswer:
    """The answer to one pooling request; see `core_apis.exchange.Answer`."""

    def __init__(self, write: Write, prepared: PreparedPooling, answer_id: str) -> None:
        self._write = write
        self._prepared = prepared
        self._answer_id = answer_id

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. One with many numbers is serialized in a thread."""
        found: dict[int, WholeOutput] = {}
        async with aclosing(outputs):
            async for index, output in outputs:
                assert isinstance(output, PooledOutput), "a text that is pooled has one output"
                found[index] = output.whole()
        in_order = [found[index] for index in sorted(found)]
        work = partial(self._written, in_order)
        return work() if num_entries(in_order) <= LIGHT else await asyncio.to_thread(work)

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Not used: no body of these APIs has a field `stream`."""
        raise AssertionError("texts are pooled whole")

    def _written(self, outputs: list[WholeOutput]) -> Response:
        lists = JsonPieces()
        answer = self._write(self._prepared, outputs, self._answer_id, lists)
        return answer if isinstance(answer, Response) else PiecesResponse(lists.body(answer))


def pooled_by(write: Write, **options: Any) -> Callable[[ServingContext, PreparedPooling, str, int], Answer]:
    """Return a function that makes the answers of one pooling API. options: further arguments of `write`."""
    bound = partial(write, **options)

    def answer(context: ServingContext, prepared: PreparedPooling, answer_id: str, created: int) -> Answer:
        return PooledAnswer(bound, prepared, answer_id)

    return answer
