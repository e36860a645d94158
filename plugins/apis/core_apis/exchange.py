"""An API as data: what is asked, by which name its bodies are prepared, and what writes the answer.

Owns: `Exchange`, the row, and `Answer`, what a row's writer offers. Never does: run anything (`core_apis.pipeline` does).
Called by: the routes, which declare rows; the pipeline; `core_apis.durable`, which answers what earlier servers began.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from uuid import uuid4

from fastapi import Request, Response

from core_apis.context import ServingContext
from core_apis.errors import error_event
from core_apis.event_stream import DONE
from core_apis.middleware import client_request_id
from core_apis.prompt_output import Outputs, PromptOutput

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Answer(Protocol):
    """The answer to one prepared request: as events where the field `stream` of its body says so, else whole."""

    async def whole(self, outputs: Outputs) -> Response:
        """The answer once all outputs are there. Closes `outputs`."""
        ...

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Complete events. first: the first output, which has been waited for; outputs: those after it, closed at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One row: a kind of request, and how it is answered.

    kind:     the kind of body; its preparation and the journal know it by this name.
    identify: the answer's id, from the request and what was prepared of it.
    answer:   the `Answer`, from the server's context, what was prepared, the answer's id, and the seconds since the epoch at
              which it was created.
    lasts:    its streams outlive their connections, where a journal is kept.
    headers:  further ones of the answer, from its id.
    done, failed: the end of a stream that went well, and of one that did not.
    """

    kind: str
    identify: Callable[[Request, Any], str]
    answer: Callable[[ServingContext, Any, str, int], Answer]
    lasts: bool = False
    headers: Callable[[str], Mapping[str, str]] = lambda answer_id: NO_HEADERS
    done: bytes = DONE
    failed: Callable[[Exception], bytes] = error_event


def id_with(prefix: str) -> Callable[[Request, Any], str]:
    """Ids of answers: `prefix` and the request's id, from the body, else from `X-Request-Id`, else new."""

    def identify(request: Request, prepared: Any) -> str:
        return f"{prefix}-{prepared.body.request_id or client_request_id(request.headers) or uuid4().hex}"

    return identify
