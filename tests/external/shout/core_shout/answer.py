"""The answer: whole, or as events while it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec
from fastapi import Response

from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.exchange import Exchange, id_with
from core_apis.generation import final_output
from core_apis.prepare.prepared import PreparedCompletion
from core_frontend.api.outputs import RequestOutput


class Answer(msgspec.Struct):
    """What a client gets; in a stream, of each event the new text alone."""

    id: str
    text: str


class ShoutAnswer:
    """Implements `core_apis.exchange.Answer`."""

    def __init__(self, context: ServingContext, prepared: PreparedCompletion, answer_id: str, created: int) -> None:
        self.answer_id = answer_id

    async def whole(self, outputs: Outputs) -> Response:
        """The answer, once the prompt has its last output."""
        return json_response(self.written(await final_output(outputs)))

    async def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """An event for each output."""
        async with aclosing(outputs):
            yield self.event(first[1])
            async for _, output in outputs:
                yield self.event(output)

    def event(self, output: RequestOutput) -> bytes:
        """One event."""
        return b"data: " + msgspec.json.encode(self.written(output)) + b"\n\n"

    def written(self, output: RequestOutput) -> Answer:
        """The text of an output in capital letters."""
        return Answer(self.answer_id, output.outputs[0].text.upper())


ROW: Final = Exchange(kind="shout", identify=id_with("shout"), answer=ShoutAnswer, lasts=True)
